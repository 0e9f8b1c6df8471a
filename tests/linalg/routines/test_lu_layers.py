"""2.5-D LU: any number of layers, words by formula, fewer than on one layer, work shared, memory promised; where rows lie."""

import numpy as np
import pytest
from helpers.systems import KINDS, drawn, layered, lu_ratio, planned_and_limited, raised, ratio

import pdla
from pdla.errors import LinAlgError
from pdla.linalg import lu_factor, lu_words, plan_lu, plan_solve, solve
from pdla.linalg.panels.blocks import Dimension, cut_in_blocks
from pdla.linalg.panels.rows import Permutation, to_pivots
from pdla.linalg.routines.lu_layers import RowPlaces

GRIDS = [(2, 2, 2), (2, 3, 2), (3, 2, 3), (2, 2, 4), (2, 2, 5)]
SQUARE = [(n, n) for n in (0, 1, 3, 7, 8, 9, 16, 33, 100)]
SHAPES = [*SQUARE, (60, 33), (33, 60), (5, 0), (0, 5), (90, 42), (42, 90)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_any_number_of_layers_and_block_borders(grid):
    def program(comm):
        found = []
        for shape in SHAPES:
            a = drawn(shape, "float64")
            A = layered(grid, 4, a, comm)
            X, pivots = lu_factor(A)
            assert X.layout == A.layout and np.array_equal(A.gather(), a)
            found.append((lu_ratio(a, X.gather(), pivots), pivots.tolist()))
        return found

    said = pdla.run(np.prod(grid) + 1, program)  # one rank is idle
    assert max(worst for worst, _ in said[0]) < 30 and all(each == said[0] for each in said)


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_and_what_is_checked_where_it_lies(kind):
    def program(comm, shape):
        a = drawn(shape, kind)
        A = layered((2, 2, 3), 4, a, comm)
        X, pivots = lu_factor(A, verify=True)
        p, L, U = pdla.linalg.lu(A)
        product = (L @ U).gather()
        assert L.layout == U.layout == A.layout and abs(product[p] - a).max() < 200 * np.finfo(kind).eps
        return lu_ratio(a, X.gather(), pivots)

    assert max(max(pdla.run(12, program, shape)) for shape in ((50, 50), (50, 33), (33, 50))) < 30


@pytest.mark.parametrize("grid", [(2, 2, 2), (3, 2, 2), (6, 1, 2), (2, 2, 5)], ids=str)
@pytest.mark.parametrize("zeros", [(2, 3), (9, 22), (14, 15), (5, 28)], ids=str)
def test_the_first_pivot_that_is_0_is_named(grid, zeros):
    a = drawn((29, 29), "float64")
    a[:, zeros] = 0
    said = raised(lambda comm: solve(layered(grid, 4, a, comm), np.ones(29)), int(np.prod(grid)) + 1)
    assert said == (LinAlgError, f"the matrix is singular: element ({zeros[0]}, {zeros[0]}) of U is 0")


def test_integers_come_exactly_and_in_place():
    rng = np.random.default_rng(0)
    l, u = np.tril(rng.integers(-1, 2, (90, 90)), -1) / 2 + np.eye(90), np.triu(rng.integers(-2, 3, (90, 90)), 1) + 4 * np.eye(90)

    def program(comm):
        for grid, b in (((2, 2, 4), 4), ((2, 4, 2), 8), ((2, 2, 3), 5)):
            A = layered(grid, b, l @ u, comm)
            X, pivots = lu_factor(A, overwrite_a=True)
            assert X.base is A.base and np.array_equal(X.gather(), np.tril(l, -1) + u) and np.array_equal(pivots, np.arange(90))

    pdla.run(16, program)


@pytest.mark.parametrize("backwards", [False, True])
def test_pivots_of_one_grid_row_alone(backwards):
    """All pivots of a panel may be on one rank, and none on another, which has no rows left then."""
    a = drawn((64, 64), "float64") + 1e3 * np.eye(64)
    a = a[np.argsort(np.arange(64) // 8 % 2 * (-1 if backwards else 1), kind="stable")]

    def program(comm):
        X, pivots = lu_factor(layered((2, 2, 2), 4, a, comm))
        return lu_ratio(a, X.gather(), pivots)

    assert max(pdla.run(8, program)) < 30


@pytest.mark.parametrize("grid", [*GRIDS, (4, 2, 2)], ids=str)
@pytest.mark.parametrize(("m", "n"), [(240, 240), (240, 160), (160, 240)])
def test_words_are_those_of_a_dry_run_and_of_the_formula(grid, m, n):
    size = int(np.prod(grid))

    def program(comm):
        A = pdla.random((m, n), pdla.ProcessGrid(grid, comm=comm), cut_in_blocks(grid, 4), seed=1)
        with pdla.record() as ledger:
            lu_factor(A)
        return ledger.by_verb().get("bcast", 0), ledger.bytes_received

    ran, dry = pdla.run(size, program), [pdla.dry_run(size, program, rank=rank)[0] for rank in range(size)]
    assert sum(panels for panels, _ in ran) == sum(panels for panels, _ in dry)
    total, predicted = (sum(each for _, each in ranks) for ranks in (ran, dry))
    assert 0.95 < predicted / total < 1.05 and 0.95 < 8 * size * lu_words(m, n, grid, 4) / total < 1.05


@pytest.mark.parametrize(("ranks", "flat", "deep", "times"), [
    (64, (8, 8), (4, 4, 4), 1.2), (256, (16, 16), (8, 8, 4), 1.45), (1024, (32, 32), (16, 16, 4), 1.6),
    (4096, (64, 64), (16, 16, 16), 2),
])
def test_layers_spare_words(ranks, flat, deep, times):
    n, b = 16384, 64
    assert lu_words(n, n, flat, b) > times * lu_words(n, n, deep, b)


def test_layers_share_the_work():
    def program(comm, grid):
        A = pdla.random((512, 512), pdla.ProcessGrid(grid, comm=comm), cut_in_blocks(grid, 8), seed=1)
        with pdla.record() as ledger:
            lu_factor(A)
        return ledger.flops

    flat, deep = max(pdla.run(16, program, (4, 4))), max(pdla.run(16, program, (2, 2, 4)))
    assert deep < 1.3 * flat


def test_plans_say_what_layers_take_and_keep_memory_limits():
    a = drawn((96, 96), "float64")

    def program(comm):
        A = layered((2, 2, 2), 8, a, comm)
        told, ledger = planned_and_limited(A, plan_lu, lu_factor)
        x = plan_solve(A, A)(A, A)
        assert abs(x.gather() - np.eye(96)).max() < 1e-9 and ratio(a, solve(A, a[:, 0])[:, None], a[:, :1]) < 30
        return told.bytes_received / ledger.bytes_received, told.peak_workspace / ledger.peak_workspace

    words, memory = zip(*pdla.run(8, program), strict=True)
    assert min(words) > 0.9 and max(words) < 1.5 and min(memory) > 0.95  # as of pivots that are evenly spread


def test_rows_lie_where_their_moves_bring_them():
    rng = np.random.default_rng(1)
    for n, block, parts, run in ((20, 4, 3, 1), (41, 3, 2, 2), (5, 2, 4, 1)):
        places = [RowPlaces(Dimension(n, block, parts, here, run=run)) for here in range(parts)]
        lying = [np.flatnonzero(places[0].ranks == here) for here in range(parts)]
        winners = rng.permutation(n)
        for rows in np.array_split(winners, 4):
            spread = places[0].draw_pivot_rows(len(rows))
            left = {row for each in places for row in each.remaining}
            assert len(set(spread.tolist())) == len(rows) and set(spread) <= left
            for each in places:
                assert np.array_equal(each.keep_valid(rows.astype(float)), rows)
                for wrong in (np.nan, -1, n, 1e300, *set(range(n)) - left, *rows[1:2]):
                    one = np.array([wrong, *rows[1:]], float)
                    assert set(each.keep_valid(one)) <= left and len(set(each.keep_valid(one))) == len(one)
            for here, each in enumerate(places):
                to, was = each.take(rows)
                lying[here][to] = lying[here][was]
                done = each.pivots[here]
                assert lying[here][:done].tolist() == [row for row in winners[: sum(each.pivots)] if each.ranks[row] == here]
                assert np.array_equal(lying[here][done:], each.remaining) and each.heights[here] == len(each.remaining)
        assert np.array_equal(Permutation.of_pivots(to_pivots(winners, 0)).rows(n), winners)
        assert Permutation.of_pivots(np.arange(n)).to.size == 0
