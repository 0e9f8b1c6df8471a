"""Reduction to tridiagonal form of any layout and rank count: LAPACK's ratios, several panels, words, faults."""

import numpy as np
import pytest
from helpers.systems import KINDS, drawn, on

import pdla
from pdla import Cyclic, Layout
from pdla.errors import LinAlgError
from pdla.linalg.panels.blocks import cut_in_blocks
from pdla.linalg.routines import tridiagonal
from pdla.linalg.routines.tridiagonal import TRIDIAGONAL, multiply_by_q, tridiagonal_words

SIZES = [0, 1, 2, 3, 17, 40, 67]


@pytest.fixture(autouse=True)
def solve_few(monkeypatch):
    """Ranks reduce columns together, in several panels of a block, and in parts for the cache."""
    for name, value in {"SMALL": 8, "PANEL": 3, "CACHED": 64}.items():
        monkeypatch.setattr(tridiagonal, name, value)


def hermitian(n, dtype, seed=0):
    a = drawn((n, n), dtype, seed)
    return a + a.conj().T


def reduced(a, ranks, block=8, limit=2**30, given=lambda A: A.T):
    """Both diagonals, Q and the scale. Only the lower triangle is read, and of the diagonal the real parts."""
    n = len(a)
    seen = np.where(np.tri(n, dtype=bool), a, np.nan)
    if a.dtype.kind == "c":
        seen[range(n), range(n)] += 5j

    def program(comm):
        comm.shared_limit = limit
        grid = pdla.ProcessGrid((ranks, 1), comm=comm)
        place = cut_in_blocks((ranks, 1), block), grid
        made = TRIDIAGONAL.compute(given(on((1, 1), seen, Layout(), comm)), place, a.dtype, False)
        Q = pdla.from_global(np.eye(n, dtype=a.dtype), grid, Layout(cols=Cyclic("row", block)))
        multiply_by_q(made, Q)
        return made.d, made.e, Q.gather(), made.scale

    first, *others = pdla.run(ranks, program)
    assert all(np.array_equal(x, y) for other in others for x, y in zip(first, other, strict=True))
    return first


def ratios(a, d, e, q, scale):
    n, kind = len(a), np.finfo(a.dtype)
    wide = "complex128" if a.dtype.kind == "c" else "float64"
    a, q, unit = a.astype(wide) * scale, q.astype(wide), max(1, n) * float(kind.eps)
    t = np.diag(d.astype(float)) + np.diag(e.astype(float), 1) + np.diag(e.astype(float), -1)
    left = np.abs(q @ t @ q.conj().T - a).max(initial=0) / (np.abs(a).max(initial=0) * unit or 1)
    return left, np.abs(q.conj().T @ q - np.eye(n)).max(initial=0) / unit


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("n", SIZES)
def test_of_all_sizes_on_any_ranks(n, dtype):
    a = hermitian(n, dtype)
    for ranks, limit in ((1, 0), (2, 2**30), (3, 0), (5, 2**30)):
        assert max(ratios(a, *reduced(a, ranks, limit=limit))) < 10, ranks


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_rank_alone_has_lapack_s_and_several_have_the_same_but_for_rounding(dtype):
    a = hermitian(50, dtype)
    alone = reduced(a, 1)
    for ranks, block in ((2, 8), (3, 5), (4, 32), (3, 1)):
        found = reduced(a, ranks, block)
        assert all(np.allclose(x, y, atol=1e-12) for x, y in zip(alone, found, strict=True))


def test_integers_without_rounding():
    """A tridiagonal matrix is its own T; signs of the elements below the diagonal stay where there is nothing to reflect."""
    n = 30
    a = np.diag(np.arange(1.0, n + 1)) + np.diag(np.arange(1.0, n), 1) + np.diag(np.arange(1.0, n), -1)
    for ranks in (1, 2, 3):
        d, e, q, scale = reduced(a, ranks)
        assert np.array_equal(d, a.diagonal()) and np.array_equal(e, a.diagonal(1)) and np.array_equal(q, np.eye(n)) and scale == 1


@pytest.mark.parametrize("power", [1e-320, 1e-300, 1e-160, 1e160, 1e300])
def test_near_the_ends_of_the_range(power):
    a = np.round(hermitian(40, "float64") * 2**8)
    for ranks in (1, 3):
        assert max(ratios(a * power, *reduced(a * power, ranks))) < 10


def test_a_transpose_that_lies_by_columns_may_be_overwritten():
    a = hermitian(40, "float64")

    def program(comm):
        grid, block = pdla.ProcessGrid((2, 1), comm=comm), Cyclic("row", 8)
        A = pdla.from_global(a, grid, Layout(cols=block))
        made = TRIDIAGONAL.compute(A.T, (Layout(block), grid), a.dtype, True)
        Q = pdla.from_global(np.eye(40), grid, Layout(cols=block))
        multiply_by_q(made, Q)
        return made.d, made.e, Q.gather(), made.scale

    assert max(ratios(a, *pdla.run(2, program)[0])) < 10


@pytest.mark.parametrize(("ranks", "n", "block"), [(1, 50, 8), (2, 64, 8), (3, 72, 6), (4, 61, 9)])
@pytest.mark.parametrize("limit", [0, 2**30])
def test_words_are_those_of_the_formula_in_any_world(ranks, n, block, limit):
    def received(comm, A):
        comm.shared_limit = limit
        grid = pdla.ProcessGrid((ranks, 1), comm=comm)
        X = A.redistribute(Layout(Cyclic("row", block)), grid)
        with pdla.record() as ledger:
            TRIDIAGONAL.compute(X, (cut_in_blocks((ranks, 1), block), grid), X.dtype, False)
        return ledger.bytes_received

    real = pdla.run(ranks, lambda comm: received(comm, pdla.from_global(hermitian(n, "float64"))))
    assert sum(real) == pytest.approx(8 * ranks * tridiagonal_words(n, ranks, block) * (ranks > 1), rel=1e-12)
    for rank in range(ranks):
        dry = pdla.dry_run(ranks, lambda comm: received(comm, pdla.zeros((n, n))), rank=rank)[0]
        assert dry == pytest.approx(real[rank], rel=0.01)


def test_nan_that_nobody_looks_for_is_an_error_on_every_rank():
    a = hermitian(40, "float64")
    a[30, 2] = np.nan
    for ranks in (1, 3):
        with pytest.raises(LinAlgError, match="infinite or NaN"):
            reduced(a, ranks)
