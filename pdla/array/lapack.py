"""LAPACK by pointer: the local work of factorizations, in place, on NumPy arrays of any strides.

A block in C order is, to LAPACK, its transpose in Fortran order: triangles, sides and transposes
are exchanged, and nothing is copied. A block without a unit stride is copied, and copied back. The
dtypes are float32, float64, complex64 and complex128.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import copysign, sqrt
from typing import Any

import numpy as np

from pdla import config
from pdla.array.blas import _address, _routine, box_scalars, gemm, orientation
from pdla.array.dtypes import near_one

PREFIXES = {"f": "s", "d": "d", "F": "c", "D": "z"}
DIVISORS = {char: (2 * float(np.finfo(char).tiny), float(np.finfo(char).max / 4)) for char in PREFIXES}  # see has_reciprocals
WORK = 64  # columns of a work array: at least LAPACK's blocks
FEW_DIGITS = 1e-280  # a sum of squares below it may have lost digits: larfg multiplies by UP first
UP = 2.0**600
LEAF, ALIGNED, WIDE = 64, 16, 256  # rows of a triangle that is not halved; their multiple in each half; the fewest columns for that


def potrf(a: np.ndarray) -> tuple[int, float]:
    """Replace the lower triangle of a Hermitian a by its Cholesky factor, and the elements above by 0.

    Return the order of the first leading minor that is not positive definite, and its last pivot;
    (0, 0) if there is none.
    """
    with in_place(np, a) as (x, how, ld):
        info = _lapack("potrf", x, b"U" if how == b"N" else b"L", a.shape[:1], ld)
    diagonal = a.diagonal().real
    fine = diagonal > 0  # False for NaN, too: some LAPACKs do not stop there
    if info or not fine.all():
        first = info - 1 if info else int(fine.argmin())
        return first + 1, float(diagonal[first])
    for i in range(len(a)):  # without a copy: the block may be the whole matrix
        a[i, i + 1 :] = 0
    return 0, 0.0


def trtri(a: np.ndarray) -> float:
    """Invert a lower triangular a without zeros on its diagonal, in place; return its mean condition.

    The mean condition is |a| |a^-1| / n in Frobenius norms, 1 for the identity; infinite or NaN if
    a norm leaves the dtype's range.
    """
    size = frobenius(np, a)
    with in_place(np, a) as (x, how, ld):
        _lapack("trtri", x, (b"U" if how == b"N" else b"L") + b"N", a.shape[:1], ld)
    return size * frobenius(np, a) / max(1, len(a))


def frobenius(module: Any, a: Any) -> float:
    """The Frobenius norm of a block; infinite or 0 if squares leave the dtype's range. module: numpy or cupy."""
    return sqrt(float(module.vdot(a, a).real))


def getrf(a: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, int]:
    """Factor P a = L U with partial pivoting, in place; a (m x n) is a copy of `before`, best by columns.

    Return the pivots: row i was exchanged with row pivots[i], one after another; and `find_fault`
    of U's diagonal.
    """
    pivots = np.zeros(min(a.shape), np.int32)
    with in_place(np, a, b"T") as (x, _, ld):
        _lapack("getrf", x, b"", a.shape, ld, pivots)
    pivots -= 1
    zero = a.diagonal() == 0  # also where LAPACK counted a pivot as 0, and did not exchange its row
    if not has_reciprocals(a.diagonal()) or (zero & (pivots != np.arange(len(pivots)))).any():
        a[...] = before
        pivots = _eliminate(a)
    return pivots, find_fault(a.diagonal())


def find_fault(diagonal: np.ndarray) -> int:
    """Find the first bad pivot, number i from 1 on: i if it is 0, -i if it is not finite; 0 if all are good."""
    fine = np.isfinite(diagonal) & (diagonal != 0)
    if fine.all():
        return 0
    first = int(fine.argmin())
    return first + 1 if diagonal[first] == 0 else -(first + 1)


def _eliminate(a: np.ndarray) -> np.ndarray:
    """`getrf` column by column, by divisions; return the pivots."""
    pivots = np.arange(min(a.shape), dtype=np.int32)
    with np.errstate(all="ignore"):
        for k in range(len(pivots)):
            pivots[k] = p = k + int(np.abs(a[k:, k]).argmax())
            a[[k, p]] = a[[p, k]]
            if a[k, k] != 0:
                a[k + 1 :, k] = divide(a[k + 1 :, k], a[k, k])
            a[k + 1 :, k + 1 :] -= a[k + 1 :, k, None] * a[k, k + 1 :]
    return pivots


def geqrt(a: np.ndarray) -> np.ndarray:
    """Factor a = (I - V T V^H) R (m x n, n <= m) in place: R, and V below its diagonal; best by columns.

    V has ones on its diagonal and zeros above. Return T, upper triangular, with tau on its
    diagonal. Recursive: Elmroth and Gustavson, IBM J. Res. Dev. 44 (2000), LAPACK's geqrt3.
    """
    (m, n), t = a.shape, np.zeros((a.shape[1], a.shape[1]), a.dtype, order="F")
    assert n <= m, f"geqrt of {m} x {n}: at most as many columns as rows"
    if not n:
        return t
    with in_place(np, a, b"T") as (x, _, ld):
        numbers = (ctypes.c_int * 5)(m, n, ld, n, 0)
        at, routine = ctypes.addressof(numbers), _routine(PREFIXES[a.dtype.char] + "geqrt3", config.settings.blas)
        routine(at, at + 4, _address(x), at + 8, _address(t), at + 12, at + 16)
    return t


def larft(gram: np.ndarray, tau: np.ndarray) -> np.ndarray:
    """Find T of I - V T V^H, from V^H V and tau. A tau of 0 means no reflection.

    T^-1 is V^H V above the diagonal, and 1 / tau on it: Joffrain et al., ACM TOMS 32 (2006).
    """
    n, used = len(tau), tau != 0
    inverse = np.triu(gram, 1)
    inverse[~used] = 0
    inverse[:, ~used] = 0
    inverse[range(n), range(n)] = 1 / np.where(used, tau, 1)
    t = np.eye(n, dtype=gram.dtype)
    trsm(inverse, t, False)
    t[~used, ~used] = 0
    return t


def orhr_col(q: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reconstruct the block reflector of orthonormal columns, up to signs S, from their top n x n square q.

    q - S = L U without pivoting. Each sign of S is chosen when its column is reached, so that no
    digits cancel. Return L, U, T = -U S^H L^-H, and S: Ballard et al., UCB/EECS-2013-175, algorithm
    5.
    """
    u, n = q.copy(), len(q)
    signs = np.ones(n, q.dtype)
    for j in range(n):
        size = abs(u[j, j])
        signs[j] = -u[j, j] / size if size else -1
        u[j, j] -= signs[j]
        u[j + 1 :, j] /= u[j, j]
        u[j + 1 :, j + 1 :] -= u[j + 1 :, j, None] * u[j, j + 1 :]
    low, up = np.tril(u, -1) + np.eye(n, dtype=q.dtype), np.triu(u)
    adjoint = -(signs[:, None] * np.conj(up.T))
    trsm(low, adjoint, True, True)
    return low, up, np.triu(np.conj(adjoint.T)), signs


def stedc(d: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, ascending, and eigenvectors of a tridiagonal matrix, by divide and conquer; NaN if that fails."""
    n = len(d)
    w, e, z = d.copy(), e.copy(), np.empty((n, n), d.dtype, order="F")
    if not n or not (np.isfinite(d).all() and np.isfinite(e).all()):
        return w * np.nan, z
    work, integers = np.empty(1 + 4 * n + n * n, d.dtype), np.empty(3 + 5 * n, np.int32)
    sizes = (ctypes.c_int * 4)(n, len(work), len(integers), 0)
    at = ctypes.addressof(sizes)
    _routine(PREFIXES[d.dtype.char] + "stedc", config.settings.blas)(
        b"I", at, _address(w), _address(e), _address(z), at, _address(work), at + 4, _address(integers), at + 8, at + 12
    )
    return w if not sizes[3] else w * np.nan, z


def sterf(d: np.ndarray, e: np.ndarray) -> np.ndarray:
    """Eigenvalues alone, ascending, by QR iteration without roots; NaN if that fails."""
    w, e = d.copy(), e.copy()
    if not len(d) or not (np.isfinite(d).all() and np.isfinite(e).all()):
        return w * np.nan
    sizes = (ctypes.c_int * 2)(len(d), 0)
    at = ctypes.addressof(sizes)
    _routine(PREFIXES[d.dtype.char] + "sterf", config.settings.blas)(at, _address(w), _address(e), at + 4)
    return w if not sizes[1] else w * np.nan


def laed4(d: np.ndarray, z: np.ndarray, rho: float, begin: int, end: int) -> np.ndarray:
    """Roots begin to end - 1 of the secular equation 1 + rho sum z_i^2 / (d_i - x) = 0.

    There are three or more poles d, ascending; z has length 1. A root is its difference from the
    nearer of the poles beside it, > 0 from the lower one, < 0 from the upper; NaN if not found.
    """
    n, dtype = len(d), d.dtype
    delta, scalars, found = np.empty(n, dtype), np.array([rho, 0], dtype), np.empty(end - begin, dtype)
    sizes = (ctypes.c_int * 3)(n, 0, 0)
    at, factor = ctypes.addressof(sizes), _address(scalars)
    routine, *arrays = _routine(PREFIXES[dtype.char] + "laed4", config.settings.blas), *map(_address, (d, z, delta))
    for i in range(begin, end):
        sizes[1] = i + 1
        routine(at, at + 4, *arrays, factor, factor + dtype.itemsize, at + 8)
        near = i + 1 if i + 1 < n and delta[i + 1] < -delta[i] else i
        found[i - begin] = -delta[near] if not sizes[2] else np.nan
    return found


def trsm(t: np.ndarray, b: np.ndarray, lower: bool, unit: bool = False, conjugate: bool = False) -> None:
    """`b` = t^-1 b, in place, with the lower or the upper triangle of t; the other one is not read. Transposes are views.

    unit       t has ones on its diagonal, whatever is stored there
    conjugate  b = conj(t)^-1 b

    Large triangles are halved recursively for a wide b: OpenBLAS's trsm has half the speed of its
    gemm.
    """
    if not b.size:
        return
    if len(t) <= LEAF or b.shape[1] < WIDE or orientation(b) is None:
        if unit or has_reciprocals(t.diagonal()):
            _trsm(t, b, lower, unit, conjugate)
        else:
            _substitute(t.conj() if conjugate else t, b, lower)
        return
    h = -(-len(t) // (2 * ALIGNED)) * ALIGNED
    first, second = (slice(h), slice(h, None)) if lower else (slice(h, None), slice(h))
    trsm(t[first, first], b[first], lower, unit, conjugate)
    beside = np.conj(t[second, first]) if conjugate else t[second, first]
    gemm(beside if orientation(beside) else beside.copy(), b[first], b[second], -1, 1)
    trsm(t[second, second], b[second], lower, unit, conjugate)


def _substitute(t: np.ndarray, b: np.ndarray, lower: bool) -> None:
    """`trsm` row by row, by divisions."""
    with np.errstate(all="ignore"):
        for i in range(len(t)) if lower else reversed(range(len(t))):
            b[i] = divide(b[i], t[i, i])
            rest = slice(i + 1, None) if lower else slice(i)
            b[rest] -= t[rest, i, None] * b[i]


def has_reciprocals(d: np.ndarray) -> bool:
    """Whether BLAS can divide by each of these numbers: it multiplies by 1 / d, which must be finite.

    OpenBLAS's getrf takes a number for 0 if both its parts are subnormal: it neither pivots on it
    nor divides by it. The number that stays on the diagonal is then at most twice as large. The
    caller handles zero and NaN.
    """
    sizes = np.maximum(np.abs(d.real), np.abs(d.imag)) if d.dtype.kind == "c" else np.abs(d)
    least, most = DIVISORS[d.dtype.char]
    return not (sizes.max(initial=0) > most or (sizes.min(initial=1) < least and (sizes[sizes > 0] < least).any()))


def divide(x: Any, d: Any, asarray: Callable[[Any], Any] = np.asarray) -> Any:
    """`x` / d, for NumPy's numbers d. Complex ones are scaled to finite reciprocals first.

    asarray: converts d for x's module
    """
    if d.dtype.kind != "c":
        return x / asarray(d)
    powers = near_one(np.maximum(np.abs(d.real), np.abs(d.imag)), d.dtype)
    return x * asarray(powers) / asarray(d * powers)


def _trsm(t: np.ndarray, b: np.ndarray, lower: bool, unit: bool, conjugate: bool) -> None:
    with in_place(np, b) as (x, into, ldb):
        t, ld, *flags = orient_triangle(np, t, into, lower, conjugate)
        m, n = b.shape if into == b"T" else b.shape[::-1]
        sizes = (ctypes.c_int * 4)(m, n, ld, ldb)
        size, (_, one) = ctypes.addressof(sizes), box_scalars(1, 0, b.dtype.char)
        _routine(PREFIXES[b.dtype.char] + "trsm", config.settings.blas)(
            *flags, b"U" if unit else b"N", size, size + 4, one, _address(t), size + 8, _address(x), size + 12
        )


def orient_triangle(module: Any, t: Any, into: bytes, lower: bool, conjugate: bool) -> tuple[Any, int, bytes, bytes, bytes]:
    """BLAS's arguments for t, to solve for a block stored as `into` says.

    Return t or a copy, its leading dimension, and the flags side, triangle and transpose. A block
    stored by rows is solved as x^T t^T = b^T; BLAS sees t^T if t is stored by rows, too.
    """
    conjugate, how = conjugate and t.dtype.kind == "c", orientation(t)
    if how is None or (conjugate and how[0] == into):  # BLAS conjugates only what it transposes
        t = module.ascontiguousarray(t.conj() if conjugate else t)
        conjugate, how = False, (b"N", max(1, t.shape[1]))
    turn = b"N" if how[0] == into else b"C" if conjugate else b"T"
    return t, how[1], b"R" if into == b"N" else b"L", b"L" if lower == (how[0] == b"T") else b"U", turn


def larfg(x: np.ndarray) -> tuple[float, complex]:
    """Replace a column x by v, v_0 = 1, of H = I - tau v v^H with H^H x = (beta, 0, ...); return the real beta, and tau.

    Squares of x must not overflow. (LAPACK's own takes three times as long for short columns.)
    """
    alpha, rest = x[0, 0].item(), x[1:, 0]
    wide = rest if x.itemsize > 4 * (1 + (x.dtype.kind == "c")) else rest.astype(np.result_type(x.dtype, np.float64))
    size = float(np.vdot(wide, wide).real)
    if abs(alpha) ** 2 + size < FEW_DIGITS and x.any():
        x *= UP
        beta, tau = larfg(x)
        return beta / UP, tau
    x[0, 0] = 1
    if not size and not alpha.imag:
        return alpha.real, 0.0
    beta = -copysign(sqrt(abs(alpha) ** 2 + size), alpha.real)
    np.multiply(wide, 1 / (alpha - beta), out=rest, casting="same_kind")
    return beta, (beta - alpha) / beta


def sytrd(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reduce a Hermitian a = Q T Q^H in place; return T's diagonal, its subdiagonal, and tau.

    Only the lower triangle is read. The vectors of Q's reflections replace the elements below the
    subdiagonal. Best by columns.
    """
    n, real = len(a), a.real.dtype
    d, e, tau = np.zeros(n, real), np.zeros(max(1, n), real), np.zeros(max(1, n), a.dtype)
    if n:
        name = PREFIXES[a.dtype.char] + ("hetrd" if a.dtype.kind == "c" else "sytrd")
        work = np.empty((n, WORK), a.dtype)
        with in_place(np, a, b"T") as (x, _, ld):
            sizes = (ctypes.c_int * 4)(n, ld, work.size, 0)
            size = ctypes.addressof(sizes)
            _routine(name, config.settings.blas)(
                b"L", size, _address(x), size + 4, *map(_address, (d, e, tau, work)), size + 8, size + 12
            )
    return d, e[: max(0, n - 1)], tau[: max(0, n - 1)]


def syevd(a: np.ndarray) -> np.ndarray:
    """The eigenvalues, ascending, of a Hermitian a, whose lower triangle alone is read; its eigenvectors take its place.

    NaN where a is not finite, or has eigenvalues that were not found. Divide and conquer; best for columns of unit stride.
    """
    n, w, at = len(a), np.zeros(len(a), a.real.dtype), np.arange(len(a))
    a[at, at] = a.diagonal().real
    if not n or not (np.isfinite(a).all() or np.isfinite(np.tril(a)).all()):  # with NaN LAPACK may not end
        return w * np.nan
    if a.dtype.kind == "c":
        name, spaces = "heevd", [np.empty(2 * n + n * n, a.dtype), np.empty(1 + 5 * n + 2 * n * n, w.dtype)]
    else:
        name, spaces = "syevd", [np.empty(1 + 6 * n + 2 * n * n, a.dtype)]
    spaces.append(np.empty(3 + 5 * n, np.int32))
    with in_place(np, a, b"T") as (x, _, ld):
        sizes = (ctypes.c_int * 6)(n, ld, 0, *map(len, spaces))
        size = ctypes.addressof(sizes)
        pairs = [each for i, space in enumerate(spaces, 3) for each in (_address(space), size + 4 * i)]
        _routine(PREFIXES[a.dtype.char] + name, config.settings.blas)(
            b"V", b"L", size, _address(x), size + 4, _address(w), *pairs, size + 8
        )
    return w if not sizes[2] else w * np.nan


def _lapack(name: str, x: np.ndarray, flags: bytes, shape: tuple[int, ...], ld: int, *arrays: np.ndarray) -> int:
    """Call name(flags..., sizes..., x, ld, arrays..., info); return info."""
    if not x.size:
        return 0
    numbers = (ctypes.c_int * 4)(*shape, *[0] * (2 - len(shape)), ld, 0)
    at = ctypes.addressof(numbers)
    letters, sizes = [bytes([flag]) for flag in flags], [at + 4 * i for i in range(len(shape))]
    routine = _routine(PREFIXES[x.dtype.char] + name, config.settings.blas)
    routine(*letters, *sizes, _address(x), at + 8, *map(_address, arrays), at + 12)
    return numbers[3]


@contextmanager
def in_place(module: Any, a: Any, wanted: bytes = b"") -> Iterator[tuple[Any, bytes, int]]:
    """A with-block with `a` as LAPACK takes it, its `orientation`, and its leading dimension.

    A block without a unit stride, or in another order than `wanted`, is copied, and copied back at
    the end. module: numpy or cupy.
    """
    how = orientation(a)
    if how is not None and wanted in (b"", how[0]):
        yield a, *how
        return
    x = module.array(a, order="C" if wanted == b"N" else "F")
    yield x, b"N" if wanted == b"N" else b"T", max(1, x.shape[wanted == b"N"])
    a[...] = x
