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
    pivots, singular = lapack.getrf(x, a)
    order = np.arange(shape[0])
    for i, j in enumerate(pivots):
        order[[i, j]] = order[[j, i]]
    close((np.tril(x[:, :k], -1) + np.eye(shape[0], k, dtype=dtype)) @ np.triu(x[:k]), a[order], shape[0])
    assert singular == 0 and np.abs(np.tril(x[:, :k], -1)).max(initial=0) <= np.sqrt(2)


@pytest.mark.parametrize(("a", "fault"), [
    ([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]], 2), ([[1.0, 0], [0, np.nan]], -2), ([[1e308, 1e308], [-1e308, 1e308]], -2),
    ([[0, 1e-310], [0, 1]], 1),
])
def test_getrf_names_a_pivot_that_is_zero_or_not_finite(a, fault):
    a = np.array(a)
    assert lapack.getrf(a.copy(), a)[1] == fault


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


def whole(m, n, dtype, seed=0):
    """Integers, of complex numbers both parts, whose sums of products a subnormal multiple can hold."""
    real, imag = np.random.default_rng(seed).integers(-2, 3, (2, m, n))
    return (real + 1j * imag if np.dtype(dtype).kind == "c" else real).astype(dtype)


@pytest.mark.parametrize(("lower", "conjugate"), [*product([True, False], repeat=2)])
@pytest.mark.parametrize("dtype", KINDS)
def test_trsm_divides_where_reciprocals_leave_the_range(dtype, lower, conjugate):
    """Subnormal numbers, and complex ones whose squares' quotient overflows; triangles that are halved, too."""
    kind = np.finfo(dtype)
    for n, m in ((33, 5), (130, 300)):
        t = np.tril(whole(n, n, dtype)) if lower else np.triu(whole(n, n, dtype))
        t[np.diag_indices(n)] = np.random.default_rng(1).choice([1, -1, 2, *([1j, 1 + 1j] if kind.dtype != t.dtype else [])], n)
        t *= np.eye(n) if n > 99 else 1  # of a large triangle X would grow
        x = whole(n, m, dtype, 2)
        b = (t.conj() if conjugate else t) @ x
        for power in (kind.tiny / 2**12, kind.tiny / 2):
            for one, other in product(LIE[:2], LIE):
                found = lying(b * power, other)
                lapack.trsm(lying(t * power, one), found, lower, False, conjugate)
                np.testing.assert_allclose(found, x, rtol=0, atol=0 if n < 99 and t.dtype.kind == "f" else 4 * kind.eps)
    t = np.diag([kind.max, kind.max / 2, kind.max * t.dtype.type(1j if t.dtype.kind == "c" else 1)] * 3).astype(dtype)
    t[np.diag_indices(9)] *= 1 + 1j if t.dtype.kind == "c" else 1
    b = t / 4
    lapack.trsm(t, b, lower)
    np.testing.assert_allclose(b, np.eye(9) / 4, rtol=4 * kind.eps, atol=0)


@pytest.mark.parametrize("how", LIE)
@pytest.mark.parametrize("dtype", KINDS)
def test_getrf_divides_by_subnormal_pivots(dtype, how):
    """L is of quarters, U of integers, so that nothing is rounded; rows lie the other way round."""
    kind = np.finfo(dtype)
    least = kind.tiny / 2**12
    for m, n in ((9, 9), (40, 7), (5, 8)):
        k = min(m, n)
        l = np.tril(np.clip(whole(m, k, dtype).real, -1, 1) / 4, -1) + np.eye(m, k)
        a = (l @ (np.triu(whole(k, n, dtype), 1) + 4 * np.eye(k, n)))[::-1].astype(dtype)
        x, order = lying(a * least, how), np.arange(m)
        pivots, fault = lapack.getrf(x, a * least)
        for i, j in enumerate(pivots):
            order[[i, j]] = order[[j, i]]
        found = np.tril(x[:, :k], -1) + np.eye(m, k)
        assert fault == 0 and np.abs(found - np.eye(m, k)).max() == 0.25
        assert np.array_equal(found @ (np.triu(x[:k]) * (1 / kind.tiny) * 2**12), a[order])


@pytest.mark.parametrize("dtype", KINDS)
def test_getrf_of_elements_next_to_the_least_normal_number(dtype):
    """Multiples of it, and sums in which it cancels: pivots are subnormal in both parts, or beside a zero."""
    rng, tiny = np.random.default_rng(0), np.finfo(dtype).tiny
    for _ in range(300):
        a = (rng.integers(-3, 4, (5, 5)) * (rng.random((5, 5)) < 0.6)).astype(dtype)
        if a.dtype.kind == "c":
            a += 1j * rng.integers(-3, 4, (5, 5)) * (rng.random((5, 5)) < 0.6)
        x, order = np.array(a * tiny, order="F"), np.arange(5)
        pivots, fault = lapack.getrf(x, a * tiny)
        for i, j in enumerate(pivots):
            order[[i, j]] = order[[j, i]]
        l, u = np.tril(x, -1) + np.eye(5), np.triu(x) / tiny
        assert np.abs(l @ u - a[order]).max() < 100 * np.finfo(dtype).eps and np.abs(l).max() <= 1.5
        assert fault == 0 or np.linalg.cond(a) > 1e6


def test_a_fault_is_the_first_of_its_kind():
    assert [lapack.fault(np.array(d)) for d in ([], [1, 2], [1, 0, np.nan], [1j, complex(0, np.inf), 0])] == [0, 0, 2, -2]


def test_arrays_without_data_have_the_same_shapes():
    a = meta.Meta((40, 8))
    assert meta.potrf(meta.Meta((8, 8))) == (0, 0.0) and meta.trtri(meta.Meta((8, 8))) == 1
    pivots, singular = meta.getrf(a, a)
    assert pivots.shape == (8,) and pivots.max() < 40 and singular == 0
    assert meta.host_or(a, np.ones(3)).tolist() == [1, 1, 1] and meta.finite(a)


def test_only_what_is_needed_of_scipy_is_loaded():
    program = "import sys, numpy; from pdla.array import lapack; lapack.potrf(numpy.eye(3)); print('scipy.linalg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split() == ["False"]
