"""Triangular systems: LAPACK's ratio on every number of ranks and layout, integers exactly, words by the ledger, faults by name."""

import numpy as np
import pytest
from helpers.covers import cover
from helpers.systems import BLOCKS, GRIDS, KINDS, cyclic, drawn, on, raised, ratio, taken, triangular

import pdla
from pdla import Cyclic, Layout
from pdla.errors import LayoutError, LinAlgError, ShapeError
from pdla.linalg import cho_factor, cho_solve, inv, lu_factor, lu_solve, matrix_power, solve, solve_triangular, trsm


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_any_grid_and_block_borders(grid):
    """Any two of the sizes, the layout and the triangle meet on every grid."""
    rows = list(cover(((0, 1, 3, 7, 8, 9, 33), (0, 1, 5, 40), (cyclic(8), BLOCKS), (True, False)), GRIDS.index(grid)))

    def program(comm):
        worst = 0.0
        for n, m, layout, lower in rows:
            t, b = triangular(n, "float64", lower), drawn((n, m), "float64", 1)
            A, B = on(grid, t, layout, comm), on(grid, b, BLOCKS, comm)
            X = solve_triangular(A, B, lower=lower)
            assert X.layout == B.layout and X.grid == B.grid
            worst = max(worst, ratio(taken(t, lower), X.gather(), b))
            assert np.array_equal(A.gather(), t) and np.array_equal(B.gather(), b)
        return worst

    assert max(pdla.run(grid[0] * grid[1], program)) < 30


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("view", ["T", "H", "conj"])
def test_views_are_as_they_seem(dtype, view):
    t, b = triangular(37, dtype), drawn((37, 40), dtype, 1)

    def program(comm):
        worst = 0.0
        for layout in (cyclic(8), BLOCKS, Layout("col", "row")):
            for m in (3, 40):
                A, B = on((2, 2), t, layout, comm), on((2, 2), b.conj().T, Layout("col"), comm).H[:, :m]
                V = A.conj() if view == "conj" else getattr(A, view)
                for unit in (False, True):
                    X = solve_triangular(V, B, lower=view == "conj", unit_diagonal=unit)
                    worst = max(worst, ratio(taken(V.gather(), view == "conj", unit), X.gather(), b[:, :m]))
        return worst

    assert max(pdla.run(4, program)) < 30


@pytest.mark.parametrize("dtype", KINDS)
def test_vectors_are_vectors_on_every_rank(dtype):
    t, b = triangular(21, dtype), drawn((21,), dtype, 1)

    def program(comm):
        x = solve_triangular(on((3, 1), t, cyclic(4), comm), b, lower=True)
        assert x.dtype == np.dtype(dtype) and x.shape == b.shape
        return ratio(taken(t, True), x[:, None], b[:, None])

    assert max(pdla.run(3, program)) < 30


def test_a_list_is_a_vector_and_a_list_of_factors_a_pair():
    a, b = drawn((9, 9), "float64") + 9 * np.eye(9), [*range(9)]

    def program(comm):
        A, P = on((3, 1), a, cyclic(4), comm), on((3, 1), a @ a.T, BLOCKS, comm)
        found = [(a, solve(A, b)), (a, lu_solve([*lu_factor(A)], b)), (np.tril(a), solve_triangular(A, tuple(b), lower=True))]
        found += [(a @ a.T, cho_solve([*cho_factor(P)], b)), (np.diag(np.diag(a)), solve(A, b, assume_a="diagonal"))]
        return [ratio(a, x[:, None], np.array(b)[:, None]) for a, x in found]

    assert max(map(max, pdla.run(4, program))) < 30
    nan = [*b[:-1], np.nan]
    assert "B has nan at [8]" in raised(lambda comm: solve(on((2, 1), a, BLOCKS, comm), nan))[1]


def test_idle_ranks_parts_copies_and_another_grid():
    t, b = triangular(30, "float64"), drawn((30, 50), "float64", 1)

    def program(comm):
        grid = pdla.ProcessGrid((2, 2), comm=comm)
        deep = pdla.ProcessGrid((1, 2, 2), comm=comm)
        A = pdla.from_global(t, grid, cyclic(4))
        B = pdla.from_global(b, deep, Layout("row", "col"))
        part = ratio(taken(t, True)[3:29, 3:29], solve_triangular(A[3:29, 3:29], B[3:29, 5:45], lower=True).gather(), b[3:29, 5:45])
        C = pdla.from_global(t, deep, Layout(Cyclic("row", 4), Cyclic("col", 4)))
        X = solve_triangular(C, B, lower=True, layout=Layout("depth"))
        assert X.layout == Layout("depth") and X.grid == deep
        return max(part, ratio(taken(t, True), X.gather(), b))

    assert max(pdla.run(5, program)) < 30


def test_trsm_on_either_side_of_integers_is_exact():
    t = np.tril(np.random.default_rng(0).integers(-2, 3, (20, 20)), -1) + np.eye(20)
    x = np.random.default_rng(1).integers(-4, 5, (20, 40)).astype(float)

    def program(comm):
        A = on((2, 2), t, cyclic(4), comm)
        for lower, whole in ((True, t), (False, t.T)):
            V = A if lower else A.T
            left = trsm(V, on((2, 2), whole @ x, BLOCKS, comm), lower=lower, alpha=2)
            right = trsm(V, on((2, 2), x.T @ whole, BLOCKS, comm), lower=lower, side="right", alpha=-1)
            assert np.array_equal(left.gather(), 2 * x) and np.array_equal(right.gather(), -x.T)
            assert right.layout == BLOCKS

    pdla.run(4, program)


@pytest.mark.parametrize("grid", [(1, 4), (4, 1), (2, 2), (2, 3)], ids=str)
@pytest.mark.parametrize("m", [8, 48])
def test_words_are_those_of_a_dry_run(grid, m):
    size, n, nb = grid[0] * grid[1], 48, 8

    def program(comm):
        there = pdla.ProcessGrid(grid, comm=comm)
        A, B = (pdla.ones((n, k), there, layout) for k, layout in ((n, cyclic(nb)), (m, Layout(Cyclic("row", nb), "col"))))
        with pdla.record() as ledger:
            solve_triangular(A, B, lower=True)
        return ledger.by_verb().get("bcast", 0) // 8, ledger.by_verb(), ledger.flops

    ran = pdla.run(size, program)
    assert ran == [pdla.dry_run(size, program, rank=rank)[0] for rank in range(size)]
    if m == 48:  # panels along the grid rows, blocks of X along the grid columns
        pr, pc = grid
        panels = sum((n - k) * nb for k in range(0, n, nb)) * (pc - 1)
        assert sum(words for words, *_ in ran) == panels + n * m * (pr - 1)


def test_dry_runs_of_1024_ranks_are_quick():
    def program(comm):
        grid = pdla.ProcessGrid((32, 32), comm=comm)
        A, B = (pdla.zeros((4096, 4096), grid, cyclic(64)) for _ in range(2))
        solve_triangular(A, B, lower=True)

    _, ledger = pdla.dry_run(1024, program, rank=37)
    assert 0 < ledger.by_verb()["bcast"] < 8 * 2 * 4096**2 / 32


def test_faults_are_the_same_on_every_rank():
    t, b = triangular(12, "float64"), np.ones(12)
    singular, nan = t.copy(), t.copy()
    singular[7, 7], nan[9, 2] = 0, np.nan

    def solve(t, b=b, **named):
        return lambda comm: solve_triangular(on((1, 2), t, BLOCKS, comm), b, **{"lower": True, **named})

    kind, text = raised(solve(singular))
    assert kind is LinAlgError and "element (7, 7) of its diagonal is 0" in text and issubclass(kind, np.linalg.LinAlgError)
    kind, text = raised(solve(nan))
    assert kind is LinAlgError and "A has nan at [9, 2]" in text
    assert "B has inf at [3]" in raised(solve(t, np.where(np.arange(12) == 3, np.inf, 1)))[1]
    kind, text = raised(solve(np.eye(12, dtype="float16"), b.astype("float16")))
    assert kind is ShapeError and "solve_triangular of float16: LAPACK has float32" in text
    assert "must be square" in raised(solve(t[:5]))[1]
    assert "a vector has 12 numbers" in raised(solve(t, np.ones(11)))[1]
    assert raised(solve(t, layout=Layout()))[0] is LayoutError
    assert "lower='upper'" in raised(solve(t, lower="upper"))[1]


@pytest.mark.parametrize(("ranks", "shape"), [(2, (1, 1)), (3, (2, 1)), (3, (1, 2)), (5, (2, 2)), (4, (3, 1)), (2, (2, 1))])
def test_the_next_call_works_after_a_singular_matrix_on_some_of_the_ranks(ranks, shape):
    """In partial sums too, and in blocks: it is brought where it is worked on by messages in which idle ranks take no part."""
    ones, zeros = np.ones(4), np.zeros((4, 4))
    singular = {
        "solve_triangular": lambda A: solve_triangular(A, ones, lower=True),
        "trsm": lambda A: trsm(A, A, lower=False, side="right"),
        "lu_solve": lambda A: lu_solve((A, np.arange(4)), ones), "cho_solve": lambda A: cho_solve((A, True), ones),
        "gen": lambda A: solve(A, ones), "pos": lambda A: solve(A, ones, assume_a="pos"),
        "diagonal": lambda A: solve(A, ones, assume_a="diagonal"), "inv": inv,
        "a triangle's": lambda A: inv(A, assume_a="lower triangular"), "a positive one's": lambda A: inv(A, assume_a="pos"),
        "a power": lambda A: matrix_power(A, -1),
    }

    def program(comm):
        for layout in (Layout(partial=("row", "col")), Layout("row", partial="col"), BLOCKS, Layout(Cyclic("col", 1)), Layout()):
            A = pdla.zeros((4, 4), pdla.ProcessGrid(shape, comm=comm), layout)
            for name, call in singular.items():
                with pytest.raises(LinAlgError):
                    call(A)
                assert np.array_equal(A.gather(), zeros), (name, layout)

    pdla.run(ranks, program)


def test_integers_are_solved_as_float64():
    x = pdla.run(2, lambda comm: solve_triangular(on((1, 2), 2 * np.eye(4, dtype=int), BLOCKS, comm), np.arange(4), lower=True))[0]
    assert x.dtype == np.float64 and np.array_equal(x, np.arange(4) / 2)


def test_what_may_be_overwritten_is_only_where_it_is_said():
    t, b = triangular(24, "float64"), drawn((24, 40), "float64", 1)

    def program(comm):
        A = on((2, 2), t, cyclic(4), comm)
        for side, there in (("left", b), ("right", b.T)):
            for over in (False, True):
                B = on((2, 2), there, Layout(Cyclic("row", 4), "col") if side == "left" else Layout("col", Cyclic("row", 4)), comm)
                X = trsm(A if side == "left" else A.T, B, lower=side == "left", side=side, overwrite_b=over)
                assert over == np.array_equal(B.gather(), X.gather()) and over != np.array_equal(B.gather(), there)

    pdla.run(4, program)
