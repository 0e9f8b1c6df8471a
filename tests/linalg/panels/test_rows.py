"""Permutations of rows: pivots, moves and orders say the same; moved over a grid column, rows are where NumPy puts them."""

import numpy as np
import pytest
from helpers.systems import cyclic, on

import pdla
from pdla.linalg.panels.blocks import find_dimensions
from pdla.linalg.panels.rows import Permutation, RowExchange, clip_numbers, to_pivots


def exchanged(pivots, first, m):
    rows = np.arange(m)
    for i, j in enumerate(pivots, first):
        rows[[i, j]] = rows[[j, i]]
    return rows


def drawn_pivots(rng, first, count, m):
    return np.array([rng.integers(first + i, m) for i in range(count)], np.int64)


@pytest.mark.parametrize("seed", range(20))
def test_moves_and_orders_are_the_exchanges(seed):
    rng = np.random.default_rng(seed)
    m, first = 12, seed % 4
    pivots = drawn_pivots(rng, first, rng.integers(0, m - first + 1), m)
    rows, (to, was) = np.arange(m), Permutation.of_pivots(pivots, first)
    rows[to] = was
    assert np.array_equal(rows, exchanged(pivots, first, m))
    if not first:
        assert np.array_equal(Permutation.of_pivots(pivots).rows(m), rows)
    assert np.array_equal(to_pivots(rows[first : first + len(pivots)], first), pivots)


@pytest.mark.parametrize("grid", [(1, 2), (2, 1), (3, 1), (2, 2), (5, 1)], ids=str)
def test_rows_move_over_a_grid_column(grid):
    a = np.arange(17 * 9.0).reshape(17, 9)

    def program(comm):
        for seed in range(6):
            A = on(grid, a, cyclic(2), comm)
            pivots = drawn_pivots(np.random.default_rng(seed), 3, 6, 17)
            exchange = RowExchange(find_dimensions(A)[0], *Permutation.of_pivots(pivots, 3))
            cut = A.stored.shape[1] // 2
            for part in (A.stored[:, :cut], A.stored[:, cut:], A.stored[:, :0]):
                exchange.run(A.xp, part)
            assert np.array_equal(A.gather(), a[exchanged(pivots, 3, 17)])
        with pdla.record() as ledger:
            RowExchange(find_dimensions(A)[0], *Permutation.of_pivots(np.arange(3))).run(A.xp, A.stored)
        return ledger.messages

    assert pdla.run(grid[0] * grid[1], program) == [0] * (grid[0] * grid[1])


def test_numbers_that_cannot_be_become_some_that_can():
    assert clip_numbers(np.array([3, 8, 5.0]), 3, 9).tolist() == [3, 8, 5]
    assert clip_numbers(np.array([np.nan, -np.inf, np.inf, 2, 9, 1e300, 4.5]), 3, 9).tolist() == [3, 3, 8, 3, 8, 8, 4]
    with np.errstate(all="raise"):
        Permutation.of_pivots(clip_numbers(np.full(3, np.nan), 4, 9), 4)
