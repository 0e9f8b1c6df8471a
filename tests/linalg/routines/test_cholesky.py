"""Cholesky factors: LAPACK's ratio on every grid and layout, words by formula, faults by name on every rank."""

from functools import partial
from itertools import cycle
from math import prod

import numpy as np
import pytest
from helpers.systems import BLOCKS, GRIDS, KINDS, cyclic, drawn, factor_ratio, on, one_triangle, positive, raised, ratio

import pdla
from pdla import Layout
from pdla.errors import LinAlgError
from pdla.linalg import cho_factor, cho_solve, cholesky, cholesky_words, solve
from pdla.linalg.panels.blocks import cut_in_blocks, find_near_square


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_any_grid_and_block_borders(grid):
    def program(comm):
        worst = 0.0
        for n in (0, 1, 3, 7, 8, 9, 33, 41):
            a = positive(n)
            for layout in (cyclic(8), cyclic(3), BLOCKS):
                for lower in (True, False):
                    A = on(grid, one_triangle(a, lower), layout, comm)
                    L = cholesky(A, lower=lower)
                    l = L.gather()
                    l = l if lower else l.T
                    assert L.layout == layout and not np.triu(l, 1).any()
                    worst = max(worst, factor_ratio(a, l))
                    assert np.array_equal(A.gather(), one_triangle(a, lower))
        return worst

    assert max(pdla.run(grid[0] * grid[1], program)) < 30


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("lower", [True, False])
def test_dtypes_views_and_vectors(dtype, lower):
    a, b = positive(37, dtype).astype(dtype), drawn((37, 40), dtype, 1)

    def program(comm):
        worst = 0.0
        for layout in (cyclic(8), BLOCKS, Layout("col", "row")):
            for view in (lambda A: A, lambda A: A.T, lambda A: A.conj(), lambda A: A.H):
                A = view(on((2, 2), one_triangle(a, lower), layout, comm))
                wanted = lower if A.layout == layout and not A.transposed else not lower
                whole = view(on((2, 2), a, layout, comm)).gather()
                l = cholesky(A, lower=wanted).gather()
                worst = max(worst, factor_ratio(whole, l if wanted else l.conj().T))
                factor = cho_factor(A, lower=wanted)
                assert factor[1] == wanted
                x = cho_solve(factor, b[:, 0])
                X = cho_solve(factor, on((2, 2), b, BLOCKS, comm))
                assert X.layout == BLOCKS and x.dtype == np.dtype(dtype)
                worst = max(worst, ratio(whole, x[:, None], b[:, :1]), ratio(whole, X.gather(), b))
        return worst

    assert max(pdla.run(4, program)) < 30


@pytest.mark.parametrize("condition", [1e2, 1e8, 1e15])
def test_ill_conditioned_and_scaled(condition):
    a = positive(60, condition=condition)

    def program(comm):
        scales = (1, 1e-150, 1e150)
        return max(factor_ratio(a * s, cholesky(on((2, 1), a * s, cyclic(8), comm)).gather()) for s in scales)

    assert max(pdla.run(2, program)) < 30


def test_integers_come_exactly():
    l = np.tril(np.random.default_rng(0).integers(-3, 4, (40, 40)), -1) + np.diag(np.repeat([1, 2, 4, 8], 10))

    def program(comm):
        for layout in (cyclic(4), BLOCKS):
            assert np.array_equal(cholesky(on((3, 2), l @ l.T, layout, comm)).gather(), l)

    pdla.run(6, program)


def test_idle_ranks_parts_and_another_layout():
    a = positive(30)

    def program(comm):
        A = on((2, 2), a, cyclic(4), comm)
        L = cholesky(A[2:28, 2:28], layout=Layout("col"))
        assert L.layout == Layout("col")
        x = solve(A, np.ones(30), assume_a="pos")
        return max(factor_ratio(a[2:28, 2:28], L.gather()), ratio(a, x[:, None], np.ones((30, 1))))

    assert max(pdla.run(5, program)) < 30


@pytest.mark.parametrize("grid", [(1, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 2), (4, 2)], ids=str)
def test_words_are_those_of_a_dry_run_and_of_the_formula(grid):
    size, n, nb = grid[0] * grid[1], 48, 8

    def program(comm):
        A = pdla.from_function(lambda i, j: 50.0 * (i == j), (n, n), pdla.ProcessGrid(grid, comm=comm), cyclic(nb))
        with pdla.record() as ledger:
            cholesky(A)
        return ledger.by_verb().get("bcast", 0), ledger.messages, ledger.flops

    ran = pdla.run(size, program)
    assert ran == [pdla.dry_run(size, program, rank=rank)[0] for rank in range(size)]
    assert sum(received for received, *_ in ran) == round(8 * size * cholesky_words(n, grid, nb))
    if grid == (2, 2):  # 6 blocks on the diagonal to 1 rank, panels to 2, and rows to 1 in a column: the next block's first
        assert sum(messages for _, messages, _ in ran) == 6 + 12 + 5 + (3 * 2 + 1)


def test_dry_runs_of_1024_ranks():
    def program(comm):
        return cholesky(pdla.zeros((16384, 16384), pdla.ProcessGrid((32, 32), comm=comm), cyclic(64)))

    bytes_ = [pdla.dry_run(1024, program, rank=rank)[1].by_verb()["bcast"] for rank in (0, 37, 1023)]
    assert 0.9 < max(bytes_) / 8 / cholesky_words(16384, (32, 32), 64) < 1


@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (3, 1), (1, 3)], ids=str)
@pytest.mark.parametrize("place", [0, 7, 8, 17, 39])
def test_a_minor_that_is_not_positive_definite_is_named_on_every_rank(grid, place):
    a = np.eye(40)
    a[place, place] = -0.5
    for layout in (cyclic(8), BLOCKS):
        said = raised(lambda comm, layout=layout: cholesky(on(grid, a, layout, comm)), grid[0] * grid[1] + 1)
        assert said == (LinAlgError, f"the leading minor of order {place + 1} is not positive definite (pivot -0.5)")
    assert issubclass(LinAlgError, np.linalg.LinAlgError)


@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (3, 1), (2, 2), (2, 3), (2, 2, 2)], ids=str)
def test_each_order_is_named_on_every_rank_of_whatever_asks_for_a_factor(grid):
    """Also on two that are idle, and over layers; complex, of either triangle."""
    layouts = (cut_in_blocks(grid, 4), BLOCKS)
    calls = (
        cholesky, cho_factor, partial(cholesky, lower=False), partial(pdla.linalg.inv, assume_a="pos"),
        lambda A: solve(A, np.ones(13), assume_a="pos"),
    )

    def said(call, A):
        with pytest.raises(LinAlgError) as error:
            call(A)
        return str(error.value)

    def program(comm):
        found = []
        for place, layout in zip(range(13), cycle(layouts), strict=False):
            a = positive(13, "complex128")
            a[place, place] = -1
            found += [(place, said(call, on(grid, a, layout, comm))) for call in calls]
        return found

    ran = pdla.run(prod(grid) + 2, program)
    assert ran == ran[:1] * len(ran)
    assert all(text.startswith(f"the leading minor of order {place + 1} is not positive definite") for place, text in ran[0])


def test_nan_and_other_faults():
    a = positive(12)
    nan = np.where(np.arange(144).reshape(12, 12) == 31, np.nan, a)

    def of(a, **named):
        return lambda comm: cholesky(on((1, 2), a, BLOCKS, comm), **named)

    assert "A has nan at [7, 2]" in raised(of(nan.T))[1]
    assert "not positive definite (pivot nan)" in raised(of(nan.T, check_finite=False))[1]
    assert "cholesky of float16: LAPACK has" in raised(of(a.astype("float16")))[1]
    assert "must be square" in raised(of(a[:5]))[1]
    assert "c_and_lower is" in raised(lambda comm: cho_solve(np.eye(3), np.ones(3)))[1]


@pytest.mark.parametrize(("ranks", "shape"), [(1, (1, 1)), (2, (1, 2)), (6, (2, 3)), (7, (1, 7)), (13, (3, 4)), (1021, (31, 32))])
def test_grids_are_near_square(ranks, shape):
    """Where that would leave a long one, as of a large prime number of ranks, some are idle."""
    assert find_near_square(ranks) == shape


@pytest.mark.parametrize("assume", ["pos", "lower triangular", "upper triangular"])
def test_solve_takes_scipys_words(assume):
    a, b = positive(33), drawn((33, 2), "float64", 1)
    a = {"pos": a, "lower triangular": np.tril(a) + np.eye(33), "upper triangular": np.triu(a) + np.eye(33)}[assume]

    def program(comm):
        X = solve(on((2, 1), a, BLOCKS, comm), on((2, 1), b, BLOCKS, comm), assume_a=assume)
        return ratio(a, X.gather(), b)

    assert max(pdla.run(2, program)) < 30
    assert "assume_a='band'" in raised(lambda comm: solve(on((2, 1), a, BLOCKS, comm), b[:, 0], assume_a="band"))[1]


def test_more_ranks_than_a_grid_takes():
    """Of 11 ranks 9 work, and the other 2 get what all get."""
    a = positive(40)

    def program(comm):
        x = solve(on((11,), a, Layout("row"), comm), np.ones(40), assume_a="pos")
        return ratio(a, x[:, None], np.ones((40, 1)))

    assert max(pdla.run(11, program)) < 30
    bad = np.diag(np.arange(40) - 20.0)
    said = raised(lambda comm: cholesky(on((11,), bad, Layout("row"), comm)), 11)
    assert said[1] == "the leading minor of order 1 is not positive definite (pivot -20)"
