"""Inverses and powers: LAPACK's ratio on every grid and layout, Hermitian bit for bit, words by formula, faults by name."""

import numpy as np
import pytest
from helpers.systems import BLOCKS, GRIDS, KINDS, cyclic, drawn, hilbert, on, one_triangle, positive, raised, taken, triangular

import pdla
from pdla import Cyclic, Layout
from pdla.errors import LinAlgError
from pdla.linalg import cholesky_words, inv, lu_words, matrix_power


def inverse_ratio(a, x):
    """LAPACK's measure of A X - 1: below 30 it is as good as rounding allows."""
    if not a.size:
        return 0.0
    wide = a.astype(np.result_type(a.dtype, np.float64))
    norms = [np.abs(y).sum(0).max() for y in (wide @ x - np.eye(len(a)), wide, x)]
    return norms[0] / (norms[1] * norms[2] * len(a) * np.finfo(x.dtype).eps)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_any_grid_and_block_borders(grid):
    def program(comm):
        worst = 0.0
        for n in (0, 1, 3, 7, 8, 9, 33):
            general, hermitian = drawn((n, n), "float64"), positive(n)
            for layout in (cyclic(8), cyclic(3), cyclic(4, None), BLOCKS):
                A = on(grid, general, layout, comm)
                X = inv(A)
                assert X.layout == layout and X.grid == A.grid and np.array_equal(A.gather(), general)
                S = inv(on(grid, one_triangle(hermitian, True), layout, comm), assume_a="pos").gather()
                assert np.array_equal(S, S.T)
                worst = max(worst, inverse_ratio(general, X.gather()), inverse_ratio(hermitian, S))
        return worst

    assert max(pdla.run(grid[0] * grid[1], program)) < 30


@pytest.mark.parametrize("dtype", KINDS)
def test_dtypes_and_views(dtype):
    a, h = drawn((37, 37), dtype), positive(37, dtype).astype(dtype)

    def program(comm):
        worst = 0.0
        for layout in (cyclic(8), Layout("col", "row")):
            for view, lower in ((lambda A: A, True), (lambda A: A.T, False), (lambda A: A.conj(), True), (lambda A: A.H, False)):
                A = view(on((2, 2), a, layout, comm))
                x = inv(A, layout=Layout("row")).gather()
                H = view(on((2, 2), one_triangle(h, True), layout, comm))
                s = inv(H, assume_a="pos", lower=lower).gather()
                assert x.dtype == s.dtype == np.dtype(dtype) and np.array_equal(s, s.conj().T)
                worst = max(worst, inverse_ratio(A.gather(), x), inverse_ratio(view(on((2, 2), h, layout, comm)).gather(), s))
        return worst

    assert max(pdla.run(4, program)) < 30


@pytest.mark.parametrize("lower", [True, False])
def test_triangles(lower):
    t = triangular(33, "complex128", lower)

    def program(comm):
        x = inv(on((2, 2), t, cyclic(4), comm), assume_a=f"{'lower' if lower else 'upper'} triangular").gather()
        assert np.array_equal(x, np.tril(x) if lower else np.triu(x))
        return inverse_ratio(taken(t, lower), x)

    assert max(pdla.run(4, program)) < 30


@pytest.mark.filterwarnings("ignore:A is ill-conditioned")
@pytest.mark.parametrize("a", [hilbert(9), drawn((40, 40), "float64") * np.geomspace(1e-9, 1e9, 40)], ids="hg")
def test_a_few_of_the_zoo(a):
    assert max(pdla.run(3, lambda comm: inverse_ratio(a, inv(on((1, 3), a, cyclic(4), comm)).gather()))) < 30


def test_idle_ranks_parts_integers_and_overwriting():
    a = np.random.default_rng(0).permutation(np.eye(30) * 2)

    def program(comm):
        A = on((2, 2), a, BLOCKS, comm)
        assert np.array_equal(inv(A).gather(), a.T / 4)
        assert np.array_equal(inv(on((2, 2), a.astype(int), cyclic(4), comm), overwrite_a=True).gather(), a.T / 4)
        assert inverse_ratio(np.eye(7), inv(on((2, 2), np.eye(30), BLOCKS, comm)[3:10, 3:10]).gather()) == 0

    pdla.run(5, program)


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_words_are_those_of_a_dry_run_and_of_the_formula(ranks):
    n, nb = 48, 8

    def program(comm):
        A = pdla.random((n, n), pdla.ProcessGrid(ranks, comm=comm), Layout(None, Cyclic("row", nb)), seed=1)
        with pdla.record() as ledger:
            inv(A)
        return ledger.by_verb().get("bcast", 0), ledger.messages  # how much is computed depends on the pivots

    ran = pdla.run(ranks, program)
    assert ran == [pdla.dry_run(ranks, program, rank=rank)[0] for rank in range(ranks)]
    words = ranks * lu_words(n, n, (1, ranks), nb) + (ranks - 1) * (n * n + n * nb)
    assert sum(received for received, *_ in ran) == round(8 * words)


@pytest.mark.parametrize("grid", [(2, 2), (3, 1), (2, 3)], ids=str)
def test_words_of_a_positive_definite_one(grid):
    (pr, pc), size, n, nb = grid, grid[0] * grid[1], 96, 4

    def program(comm):
        A = pdla.eye(n, pdla.ProcessGrid(grid, comm=comm), cyclic(nb))
        with pdla.record() as ledger:
            inv(A, assume_a="pos")
        return ledger.by_verb().get("bcast", 0), ledger.bytes_received, ledger.messages

    ran = pdla.run(size, program)
    assert ran == [pdla.dry_run(size, program, rank=rank)[0] for rank in range(size)]
    words = size * (cholesky_words(n, grid, nb) + n * n * (1 / pr + 1 / pc - 2 / size))
    assert 1 <= sum(received for received, *_ in ran) / 8 / words < 1.1


def test_a_positive_definite_one_takes_a_third_of_n_cubed_for_each_of_three_triangles():
    """LAPACK's operations for potrf, trtri and lauum, and little more for small blocks."""
    n, block = 512, 16

    def program(comm):
        A = on((1, 2), positive(n), cyclic(block), comm)
        with pdla.record() as ledger:
            inv(A, assume_a="pos", check_finite=False)
        return ledger.flops

    assert n**3 < sum(pdla.run(2, program)) < 1.1 * n**3


def test_dry_runs_of_1024_ranks():
    def program(comm):
        A = pdla.zeros((4096, 4096), pdla.ProcessGrid((32, 32), comm=comm), cyclic(32))
        return inv(A).shape, inv(A, assume_a="pos").shape

    assert pdla.dry_run(1024, program, rank=37)[0] == ((4096, 4096),) * 2


def test_faults_on_every_rank():
    a = drawn((20, 20), "float64")
    a[:, 11] = 0

    def of(a, **named):
        return lambda comm: inv(on((2, 1), a, BLOCKS, comm), **named)

    assert raised(of(a), 3) == (LinAlgError, "the matrix is singular: element (11, 11) of U is 0")
    assert "order 12 is not positive definite" in raised(of(np.diag(1.0 - (np.arange(20) == 11)), assume_a="pos"), 3)[1]
    assert "element (11, 11) of its diagonal is 0" in raised(of(np.triu(a), assume_a="upper triangular"), 3)[1]
    nan = np.where(np.arange(400).reshape(20, 20) == 31, np.nan, drawn((20, 20), "float64"))
    assert "A has nan at [1, 11]" in raised(of(nan))[1]
    assert "of U is not finite" in raised(of(nan, check_finite=False))[1]
    assert "assume_a='band'" in raised(of(a, assume_a="band"))[1]
    assert "must be square" in raised(of(a[:5]))[1]


@pytest.mark.parametrize("n", [0, 1, 2, 5, 6, -1, -3])
def test_powers(n):
    a = np.random.default_rng(n + 3).permutation(np.eye(12, dtype=int)) * np.repeat([1, 2, 4], 4)

    def program(comm):
        for layout in (BLOCKS, cyclic(2), Layout("col")):
            X = matrix_power(on((2, 2), a, layout, comm), n)
            assert np.array_equal(X.gather(), np.linalg.matrix_power(a if n >= 0 else a.astype(float), n))
            assert X.layout == layout and X.dtype == (int if n >= 0 else float)
        A = on((2, 2), a, BLOCKS, comm)
        X = matrix_power(A, n)
        X.local[...] = 7
        assert np.array_equal(A.gather(), a)

    pdla.run(5, program)
    least = pdla.run(2, lambda comm: matrix_power(on((2, 1), 2 * np.eye(3), BLOCKS, comm), np.int8(-128)).gather())[0]
    assert np.array_equal(least, 2.0**-128 * np.eye(3))
    assert "n=0.5: an integer" in raised(lambda comm: matrix_power(on((2, 1), a, BLOCKS, comm), 0.5))[1]
