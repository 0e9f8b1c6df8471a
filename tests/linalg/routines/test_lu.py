"""LU: SciPy's pivots where one rank has a panel, LAPACK's ratio on any grid, words by formula, singular matrices by name."""

from itertools import cycle
from math import prod

import numpy as np
import pytest
from helpers.systems import BLOCKS, GRIDS, KINDS, cyclic, drawn, hilbert, lu_ratio, on, raised, ratio, wilkinson
from scipy.linalg import lapack

import pdla
from pdla import Cyclic, Layout
from pdla.errors import LinAlgError, ShapeError
from pdla.layout import effective
from pdla.linalg import checks, lu, lu_factor, lu_solve, lu_words, solve
from pdla.linalg.panels.blocks import cut_in_blocks

SHAPES = [(0, 0), (1, 1), (3, 3), (7, 7), (8, 8), (9, 9), (33, 33), (40, 17), (17, 40), (5, 0), (0, 5), (20, 8)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_any_grid_and_block_borders(grid):
    def program(comm):
        worst = 0.0
        for shape in SHAPES:
            a = drawn(shape, "float64")
            for layout in (cyclic(8), cyclic(3), BLOCKS):
                A = on(grid, a, layout, comm)
                X, pivots = lu_factor(A)
                worst = max(worst, lu_ratio(a, X.gather(), pivots))
                assert np.array_equal(A.gather(), a)
                if a.size and not effective(X.layout.rows, X.grid.sizes):  # one rank has a panel
                    assert np.array_equal(pivots, lapack.dgetrf(a)[1])
        return worst

    assert max(pdla.run(grid[0] * grid[1], program)) < 30


@pytest.mark.parametrize("dtype", KINDS)
def test_dtypes_views_and_vectors(dtype):
    a, b = drawn((37, 37), dtype), drawn((37, 40), dtype, 1)

    def program(comm):
        worst = 0.0
        for layout in (cyclic(8), cyclic(8, None), BLOCKS, Layout("col", "row")):
            for view in (lambda A: A, lambda A: A.T, lambda A: A.conj(), lambda A: A.H):
                A = view(on((2, 2), a, layout, comm))
                whole, factor, B = A.gather(), lu_factor(A), on((2, 2), b, BLOCKS, comm)
                for x, y in ((lu_solve(factor, b[:, 0])[:, None], b[:, :1]), (lu_solve(factor, B).gather(), b)):
                    assert x.dtype == np.dtype(dtype)
                    worst = max(worst, ratio(whole, x, y))
                assert np.array_equal(solve(A, B, layout=Layout("col")).gather(), lu_solve(factor, B).gather())
        return worst

    assert max(pdla.run(4, program)) < 30


@pytest.mark.parametrize("a", [hilbert(40), wilkinson(24), drawn((40, 40), "float64") * np.geomspace(1e-9, 1e9, 40)], ids="hwg")
def test_a_few_of_the_zoo(a):
    def program(comm):
        X, pivots = lu_factor(on((1, 3), a, cyclic(8), comm))
        return lu_ratio(a, X.gather(), pivots)

    assert max(pdla.run(3, program)) < 30


def test_integers_come_exactly():
    rng = np.random.default_rng(0)
    l, u = np.tril(rng.integers(-1, 2, (40, 40)), -1) / 2 + np.eye(40), np.triu(rng.integers(-2, 3, (40, 40)), 1) + 4 * np.eye(40)
    x = rng.integers(-4, 5, (40, 40)).astype(float)

    def program(comm):
        A = on((2, 2), l @ u, BLOCKS, comm)
        X, pivots = lu_factor(A)
        assert np.array_equal(pivots, np.arange(40)) and np.array_equal(X.gather(), np.tril(l, -1) + u)
        assert np.array_equal(solve(A, on((2, 2), l @ u @ x, BLOCKS, comm)).gather(), x)
        assert np.array_equal(solve(A, l @ u @ x[:, 0]), x[:, 0])

    pdla.run(4, program)


def test_idle_ranks_and_parts():
    a = drawn((30, 30), "float64")

    def program(comm):
        for layout in (cyclic(4, None, "row"), BLOCKS):
            A = on((2, 2), a, layout, comm) if layout == BLOCKS else on((4,), a, layout, comm)
            X, pivots = lu_factor(A[:, 3:] if layout == BLOCKS else A[2:, :])
            part = a[:, 3:] if layout == BLOCKS else a[2:]
            assert np.array_equal(pivots, lapack.dgetrf(part)[1]) and lu_ratio(part, X.gather(), pivots) < 30
            assert ratio(a, solve(A, np.ones(30))[:, None], np.ones((30, 1))) < 30

    pdla.run(5, program)


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_words_are_those_of_a_dry_run_and_of_the_formula(ranks):
    n, m, nb = 48, 50, 8

    def program(comm):
        A = pdla.random((m, n), pdla.ProcessGrid(ranks, comm=comm), Layout(None, Cyclic("row", nb)), seed=1)
        with pdla.record() as ledger:
            lu_factor(A)
        return ledger.by_verb().get("bcast", 0), ledger.messages, ledger.flops

    ran = pdla.run(ranks, program)
    assert ran == [pdla.dry_run(ranks, program, rank=rank)[0] for rank in range(ranks)]
    assert sum(received for received, *_ in ran) == round(8 * ranks * lu_words(m, n, (1, ranks), nb))


def test_singular_matrices_are_named_on_every_rank():
    a = drawn((20, 20), "float64")
    a[:, 11] = 0

    def program(comm):
        with pytest.warns(RuntimeWarning, match=r"element \(11, 11\) of U is 0"):
            X, pivots = lu_factor(on((1, 2), a, cyclic(4), comm))
        return np.isfinite(X.gather()).all() and lu_ratio(a, X.gather(), pivots) < 30

    assert pdla.run(1, lambda comm: pdla.linalg.lu_factor(on((1, 1), np.eye(3), BLOCKS, comm)))[0][1].tolist() == [0, 1, 2]
    wanted = LinAlgError, "the matrix is singular: element (11, 11) of U is 0"
    for grid in ((1, 2), (2, 1)):
        assert raised(lambda comm, grid=grid: solve(on(grid, a, cyclic(4), comm), np.ones(20)), 3) == wanted


@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (3, 1), (2, 2), (2, 3)], ids=str)
def test_each_pivot_that_is_0_is_named_on_every_rank(grid):
    """Also on two that are idle; blocks of 4 end within and at the end of 13, a panel may be of one column."""
    a = drawn((13, 13), "complex128")

    def said(function, *args):
        with pytest.raises(LinAlgError) as error:
            function(*args)
        return str(error.value)

    def program(comm):
        found = []
        for place, layout in zip(range(13), cycle((cyclic(4), BLOCKS)), strict=False):
            A = on(grid, np.where(np.arange(13) == place, 0, a), layout, comm)
            wanted = f"element ({place}, {place}) of U is 0"
            found += [(wanted, said(solve, A, np.ones(13))), (wanted, said(pdla.linalg.inv, A))]
            assert pdla.linalg.det(A) == 0 and pdla.linalg.cond(A) == np.inf
        return found

    ran = pdla.run(grid[0] * grid[1] + 2, program)
    assert all(text == f"the matrix is singular: {wanted}" for wanted, text in ran[0]) and ran == ran[:1] * len(ran)


def test_other_faults():
    a = drawn((12, 12), "float64")
    nan = np.where(np.arange(144).reshape(12, 12) == 31, np.inf, a)

    def of(a, f=lambda A: solve(A, np.ones(12))):
        return lambda comm: f(on((1, 2), a, BLOCKS, comm))

    assert "A has inf at [2, 7]" in raised(of(nan))[1]
    assert "must be square" in raised(of(a[:5]))[1]
    assert "lu_factor of float16: LAPACK has" in raised(of(a.astype("float16"), lu_factor))[1]
    assert "12 row numbers" in raised(of(a, lambda A: lu_solve((A, np.arange(13)), np.ones(12))))[1]


def test_rows_that_a_dtype_cannot_count_are_refused():
    def program(comm, kind, m, call=lambda A: checks.check_row_count("lu", A, A.dtype)):
        return call(pdla.zeros((m, 1), pdla.ProcessGrid((2, 1), comm=comm), Layout("row"), dtype=kind))

    for kind, call in (("float32", lu_factor), ("complex64", lu)):
        pdla.dry_run(2, program, kind, 2**24)
        with pytest.raises(ShapeError, match=f"A has 16777217 rows, {kind} has integers up to 16777216 only: cast A to double"):
            pdla.dry_run(2, program, kind, 2**24 + 1, call)
    pdla.dry_run(2, program, "complex128", 2**24 + 1)


def test_what_may_be_overwritten_is_worked_on_where_it_lies():
    a, b = drawn((24, 24), "float64") + 24 * np.eye(24), drawn((24, 40), "float64", 1)

    def program(comm):
        columns = Layout(None, Cyclic("row", 4))
        A, B = on((3,), a, columns, comm), on((3,), b, Layout(None, "row"), comm)
        x = solve(A, B).gather()
        X, pivots = lu_factor(A, overwrite_a=True)
        assert X.base is A.base and np.array_equal(lu_solve((X, pivots), B).gather(), x)
        T = on((3,), np.tril(a), columns, comm)
        X = pdla.linalg.solve_triangular(T, B, lower=True, overwrite_b=True)
        assert X.base is B.base and ratio(np.tril(a), X.gather(), b) < 30
        H = on((3,), a @ a.T, columns, comm)
        assert pdla.linalg.cho_factor(H, overwrite_a=True)[0].base is H.base
        return True

    pdla.run(3, program)
    said = raised(lambda comm: overwriting(on((1, 2), a, BLOCKS, comm)))
    assert "overwrite_b: B shares memory" in said[1]
    said = raised(lambda comm: lu_factor(fixed(comm, a), overwrite_a=True))
    assert "overwrite_a: A is in read-only memory" in said[1]
    assert "overwrite_a: A shares memory" in raised(lambda comm: by_its_own_column(on((1,), a, Layout(), comm)), 1)[1]


def fixed(comm, a):
    A = on((1, 2), a, BLOCKS, comm)
    A.local.flags.writeable = False
    return A


def by_its_own_column(A):
    return solve(A, A.local[:, 0], overwrite_a=True)


def overwriting(A):
    return pdla.linalg.solve_triangular(A, A, lower=True, overwrite_b=True)


def test_nan_that_nobody_looked_for_is_no_solution():
    a = np.where(np.arange(144).reshape(12, 12) == 31, np.nan, drawn((12, 12), "float64"))
    kind, text = raised(lambda comm: solve(on((1, 2), a, BLOCKS, comm), np.ones(12), check_finite=False))
    assert kind is LinAlgError and "of U is not finite" in text


@pytest.mark.parametrize(("shape", "block"), [((2, 2), 1), ((2, 2), 2), ((4, 1), 1), ((3, 2), 3), ((2, 2, 2), 1), ((2, 2, 2), 2)])
def test_dry_runs_of_narrow_panels_exchange_as_many_rows_as_of_random_matrices(shape, block):
    """Of one row in a panel, too, the rank that has it is as often another one."""

    def program(comm):
        A = pdla.zeros((96, 96), pdla.ProcessGrid(shape, comm=comm), cut_in_blocks(shape, block))
        with pdla.record() as ledger:
            lu_factor(A)
        return ledger.bytes_received / 8

    ranks = prod(shape)
    mean = sum(pdla.dry_run(ranks, program, rank=rank)[0] for rank in range(ranks)) / ranks
    assert mean == pytest.approx(lu_words(96, 96, shape, block), rel=0.06)
