"""LAPACK by pointer: every dtype, on blocks however they lie; what it does not solve it says."""

import subprocess
import sys
from itertools import product

import numpy as np
import pytest

from pdla.array import lapack, meta

KINDS, LIE = ["float32", "float64", "complex64", "complex128"], ["C", "F", "gaps", "gaps F", "steps"]


def lying(x, how):
    """A copy of x that lies so or so."""
    m, n = x.shape
    made = {
        "C": lambda: np.empty((m, n), x.dtype), "F": lambda: np.empty((n, m), x.dtype).T,
        "gaps": lambda: np.empty((m, n + 3), x.dtype)[:, 1 : n + 1],
        "gaps F": lambda: np.empty((n, m + 3), x.dtype)[:, 1 : m + 1].T,
        "steps": lambda: np.empty((2 * m, 2 * n), x.dtype)[::2, ::2],
    }[how]()
    made[...] = x
    return made


def drawn(m, n, dtype, seed=0):
    real, imag = np.random.default_rng(seed).uniform(-1, 1, (2, m, n))
    return (real + 1j * imag if np.dtype(dtype).kind == "c" else real).astype(dtype)


def close(x, y, n):
    assert x.dtype == y.dtype
    np.testing.assert_allclose(x, y, rtol=0, atol=30 * max(1, n) * np.finfo(x.dtype).eps * np.abs(y).max(initial=1))


@pytest.mark.parametrize("n", [0, 1, 7, 130])
@pytest.mark.parametrize("how", LIE)
@pytest.mark.parametrize("dtype", KINDS)
def test_potrf_and_trtri(dtype, how, n):
    a = drawn(n, n, dtype)
    a = a @ a.conj().T + n * np.eye(n, dtype=dtype)
    x = lying(a, how)
    x[np.triu_indices(n, 1)] = np.nan  # not read
    assert lapack.potrf(x) == (0, 0.0)
    assert not np.triu(x, 1).any()
    close(x @ x.conj().T, a, n)
    inverse = lying(x, how)
    condition = lapack.trtri(inverse)
    close(inverse @ x, np.eye(n, dtype=dtype), n)
    assert condition == pytest.approx(np.linalg.norm(x) * np.linalg.norm(inverse) / max(1, n), rel=1e-3)


@pytest.mark.parametrize("scale", [1e-170, 1e170])
def test_a_condition_beyond_the_numbers_is_not_small(scale):
    assert not lapack.trtri(scale * np.eye(8)) <= 8


@pytest.mark.parametrize("how", ["C", "F"])
@pytest.mark.parametrize(("place", "value"), [(0, -1.0), (17, -0.5), (17, 0.0), (39, np.nan)])
def test_potrf_names_the_minor_that_is_not_positive_definite(how, place, value):
    a = np.eye(40)
    a[place, place] = value
    order, pivot = lapack.potrf(lying(a, how))
    assert order == place + 1 and np.array_equal(pivot, value, equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (1, 1), (5, 9), (40, 7), (130, 130)], ids=str)
@pytest.mark.parametrize("how", LIE)
@pytest.mark.parametrize("dtype", KINDS)
def test_getrf(dtype, how, shape):
    a, k = drawn(*shape, dtype), min(shape)
    x = lying(a, how)
    pivots, singular = lapack.getrf(x)
    order = np.arange(shape[0])
    for i, j in enumerate(pivots):
        order[[i, j]] = order[[j, i]]
    close((np.tril(x[:, :k], -1) + np.eye(shape[0], k, dtype=dtype)) @ np.triu(x[:k]), a[order], shape[0])
    assert singular == 0 and np.abs(np.tril(x[:, :k], -1)).max(initial=0) <= np.sqrt(2)


def test_getrf_names_a_pivot_that_is_zero_or_nan():
    assert lapack.getrf(np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]))[1] == 2
    assert lapack.getrf(np.array([[1.0, 0], [0, np.nan]]))[1] == 2


@pytest.mark.parametrize(("lower", "unit", "conjugate"), [*product([True, False], repeat=3)])
@pytest.mark.parametrize("dtype", KINDS)
def test_trsm(dtype, lower, unit, conjugate):
    n, m = 33, 5
    t = drawn(n, n, dtype) / n + np.eye(n, dtype=dtype)
    t[np.triu_indices(n, 1) if lower else np.tril_indices(n, -1)] = np.nan
    if unit:
        np.fill_diagonal(t, np.nan)
    whole = np.nan_to_num(t) + (np.eye(n, dtype=dtype) if unit else 0)
    for one, other in product(LIE, LIE):
        b = lying(drawn(n, m, dtype, 1), other)
        lapack.trsm(lying(t, one), b, lower, unit, conjugate)
        close((whole.conj() if conjugate else whole) @ b, drawn(n, m, dtype, 1), n)


def test_arrays_without_data_have_the_same_shapes():
    a = meta.Meta((40, 8))
    assert meta.potrf(meta.Meta((8, 8))) == (0, 0.0) and meta.trtri(meta.Meta((8, 8))) == 1
    pivots, singular = meta.getrf(a)
    assert pivots.shape == (8,) and pivots.max() < 40 and singular == 0
    assert meta.host_or(a, np.ones(3)).tolist() == [1, 1, 1] and meta.finite(a)


def test_only_what_is_needed_of_scipy_is_loaded():
    program = "import sys, numpy; from pdla.array import lapack; lapack.potrf(numpy.eye(3)); print('scipy.linalg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split() == ["False"]
