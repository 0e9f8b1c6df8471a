"""LAPACK by pointer: every dtype, on blocks however they lie; what it does not solve it says."""

import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import scipy.linalg

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


def wide(x):
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def reflector(v, t):
    """I - V T V^H."""
    v, t = wide(v), wide(t)
    return np.eye(len(v)) - v @ t @ v.conj().T


def unit_lower(x):
    return np.tril(x, -1) + np.eye(*x.shape, dtype=x.dtype)


def same(x, y, dtype):
    """As LAPACK's testers: the largest column sum of x - y, over its rows, eps, and y's; right below 30."""
    size = max(float(np.abs(y).sum(0).max(initial=0)), float(np.finfo(dtype).tiny))
    assert np.abs(x - y).sum(0).max(initial=0) <= 30 * max(1, *x.shape) * np.finfo(dtype).eps * size


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (1, 1), (5, 5), (40, 7), (33, 33)], ids=str)
@pytest.mark.parametrize("how", LIE)
@pytest.mark.parametrize("dtype", KINDS)
def test_geqrt(dtype, how, shape):
    a, n = drawn(*shape, dtype), shape[1]
    x = lying(a, how)
    t = lapack.geqrt(x)
    v, q = unit_lower(x), reflector(unit_lower(x), t)
    assert t.shape == (n, n) and t.dtype == x.dtype and not np.tril(t, -1).any()
    same(q[:, :n] @ wide(np.triu(x[:n])), wide(a), dtype)
    same(q.conj().T @ q, np.eye(len(q)), dtype)
    if n:
        factors, wanted, _ = scipy.linalg.lapack.get_lapack_funcs("geqrt", dtype=dtype)(n, a)
        close(x, factors, max(shape))
        close(t, np.triu(wanted), max(shape))
        close(lapack.larft(v.conj().T @ v, t.diagonal()), t, max(shape))


@pytest.mark.parametrize("dtype", KINDS)
def test_columns_that_need_no_reflection_have_a_tau_of_0(dtype):
    """And T has none of their rows and columns, whatever is in V^H V there."""
    a = drawn(9, 6, dtype)
    a[:, 2] = a[:, 4] = 0
    a[[0, 1], 2], a[4, 4] = 1, 2  # that is nothing below row 1 before, and not after, the first reflections: so from R back
    r = np.triu(a[:6])
    for given in (a, np.vstack([r, np.zeros((3, 6), dtype)]), np.zeros((9, 6), dtype)):
        x = given.copy("F")
        t = lapack.geqrt(x)
        v, tau = unit_lower(x), t.diagonal().copy()
        same(reflector(v, t)[:, :6] @ wide(np.triu(x[:6])), wide(given), dtype)
        gram = v.conj().T @ v
        close(lapack.larft(gram, tau), t, 9)
        for unused in ([0], [2, 3], [5], range(6)):
            some = tau.copy()
            some[[*unused]] = 0
            found, whole = lapack.larft(gram, some), np.eye(9)
            for i in range(6):  # H_0 H_1 ...
                whole = whole @ (np.eye(9) - some[i] * np.outer(v[:, i], v[:, i].conj()))
            same(reflector(v, found), whole, dtype)
            assert not found[[*unused]].any() and not found[:, [*unused]].any()


def orthonormal(m, n, dtype):
    return np.linalg.qr(drawn(m, n, dtype))[0].astype(dtype)


TOPS = {
    "drawn": lambda n, dtype: orthonormal(2 * n + 1, n, dtype), "square": lambda n, dtype: orthonormal(n, n, dtype),
    "identity": lambda n, dtype: np.eye(n + 3, n, dtype=dtype), "minus": lambda n, dtype: -np.eye(n + 3, n, dtype=dtype),
    "below": lambda n, dtype: np.eye(2 * n, n, -n, dtype=dtype), "reversed": lambda n, dtype: np.eye(n, dtype=dtype)[::-1],
    "nearly": lambda n, dtype: np.linalg.qr(np.eye(n + 3, n) + 1e-3 * drawn(n + 3, n, dtype))[0].astype(dtype),
}


@pytest.mark.parametrize("name", TOPS)
@pytest.mark.parametrize("n", [0, 1, 7, 33])
@pytest.mark.parametrize("dtype", KINDS)
def test_orhr_col_reconstructs_the_reflections_of_orthonormal_columns(dtype, n, name):
    q = TOPS[name](n, dtype)
    kept = q.copy()
    low, up, t, signs = lapack.orhr_col(q[:n])
    assert np.array_equal(q, kept) and [x.dtype for x in (low, up, t, signs)] == [q.dtype] * 4
    assert np.array_equal(low, unit_lower(low)) and not np.tril(up, -1).any() and not np.tril(t, -1).any()
    close(np.abs(signs), np.ones(n, q.real.dtype), 1)
    assert np.abs(up.diagonal()).min(initial=1) > 1 - 1e-3  # no digits cancel
    same(wide(low) @ wide(up), wide(q[:n]) - np.diag(signs), dtype)
    below = scipy.linalg.solve_triangular(up.T, q[n:].T, lower=True).T if n else q[n:]
    h = reflector(np.vstack([low, below]), t)
    same(h[:, :n], wide(q) * signs.conj(), dtype)
    same(h.conj().T @ h, np.eye(len(q)), dtype)


@pytest.mark.parametrize("dtype", KINDS)
def test_reflections_of_columns_whose_squares_underflow(dtype):
    kind = np.finfo(dtype)
    for power in (0, 1e-42, float(kind.tiny) * 2, 1e-160, 1e-200, 1):
        for x in (drawn(5, 1, dtype), np.eye(5, 1) * drawn(1, 1, dtype)):
            x = np.asfortranarray(x * power, dtype)
            v = x.copy("F")
            beta, tau = lapack.larfg(v)
            h = np.eye(5) - tau * wide(v) @ wide(v).conj().T
            close(h.conj().T @ h, np.eye(5, dtype=h.dtype), 5 * kind.eps / np.finfo(h.dtype).eps)
            size = float(np.abs(x).max()) or 1.0
            assert np.abs(h.conj().T @ (wide(x) / size) - np.eye(5, 1) * (beta / size)).max() < 30 * kind.eps


@pytest.mark.parametrize("n", [0, 1, 2, 40])
@pytest.mark.parametrize("how", LIE)
@pytest.mark.parametrize("dtype", KINDS)
def test_syevd(dtype, how, n):
    kind = np.finfo(dtype)
    a = drawn(n, n, dtype)
    a += a.conj().T
    for power in (1, float(kind.tiny) * 2**8, float(kind.max) / 2**8):  # squares of elements leave the range
        x = lying(a * kind.dtype.type(power), how)
        x[np.triu_indices(n, 1)] = np.nan  # not read
        if x.dtype.kind == "c":
            x.imag[range(n), range(n)] = np.nan
        w = lapack.syevd(x)
        assert w.dtype == kind.dtype and w.shape == (n,) and (np.diff(w) >= 0).all()
        w = wide(w).real / power
        same(wide(a) @ wide(x), wide(x) * w, dtype)
        same(wide(x).conj().T @ wide(x), np.eye(n), dtype)
    for bad in (np.nan, np.inf):
        x = lying(a, how)
        x[n - 1 :, :1] = bad
        assert np.isnan(lapack.syevd(x)).all()


def test_a_block_of_more_columns_than_rows_has_no_reflections_here():
    for module in (lapack, meta):
        with pytest.raises(AssertionError, match="geqrt of 2 x 3: at most as many columns as rows"):
            module.geqrt(np.ones((2, 3)))


def test_a_fault_is_the_first_of_its_kind():
    assert [lapack.find_fault(np.array(d)) for d in ([], [1, 2], [1, 0, np.nan], [1j, complex(0, np.inf), 0])] == [0, 0, 2, -2]


def test_arrays_without_data_have_the_same_shapes():
    a = meta.Meta((40, 8))
    assert meta.potrf(meta.Meta((8, 8))) == (0, 0.0) and meta.trtri(meta.Meta((8, 8))) == 1.2
    pivots, singular = meta.getrf(a, a)
    assert pivots.shape == (8,) and pivots.max() < 40 and singular == 0
    assert meta.host_or(a, np.ones(3)).tolist() == [1, 1, 1] and meta.is_finite(a)


def test_only_what_is_needed_of_scipy_is_loaded():
    program = "import sys, numpy; from pdla.array import lapack; lapack.potrf(numpy.eye(3)); print('scipy.linalg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split() == ["False"]
