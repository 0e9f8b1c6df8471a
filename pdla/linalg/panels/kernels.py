"""LAPACK routines on one rank's blocks, recorded in the ledger, as `multiply` records products."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.comm.ledger import count, held, timed
from pdla.linalg.panels.rows import clip_numbers
from pdla.matmul.schedules.streams import multiply

MAX_CONDITION = 8  # mean condition of L up to which blocks are multiplied by its inverse; of random matrices it is 1 to 1.2


def _count_flops(real: int, x: Any) -> int:
    return real * (4 if x.dtype.kind == "c" else 1)


def potrf(xp: Any, a: Any) -> tuple[int, float]:
    """See pdla.array.lapack; n^3 / 3 operations."""
    with timed("potrf", flops=_count_flops(len(a) ** 3 // 3, a)):
        return xp.potrf(a)


def find_pivot_range(xp: Any, a: Any) -> list[float]:
    """Local: the least and the largest absolute value on the diagonal of a; 1 for arrays without data."""
    at = np.arange(min(a.shape))
    sizes = np.abs(xp.host_or(xp.pick(a, at, at), np.ones(len(at))))
    return [float(sizes.min(initial=np.inf)), float(sizes.max(initial=0))]


def trtri(xp: Any, a: Any) -> float:
    """See pdla.array.lapack; n^3 / 3 operations."""
    with timed("trtri", flops=_count_flops(len(a) ** 3 // 3, a)):
        return xp.trtri(a)


def multiply_by_inverse(xp: Any, x: Any, inverse: Any, out: Any) -> None:
    """Local: out = x L^-H, by `inverse` = L^-1, lower triangular; a quarter of the work, with zeros, is left out."""
    inverse, half = xp.reinterpret(inverse, True), out.shape[1] // 2
    for cols in (slice(half), slice(half, out.shape[1])):
        multiply(xp, x[:, : cols.stop], inverse[cols, : cols.stop].T, out[:, cols], 1, 0)


def getrf(xp: Any, a: Any, before: Any) -> tuple[np.ndarray, int]:
    """See pdla.array.lapack; of an m x n block, n <= m, m n^2 - n^3 / 3 operations."""
    (m, n), k = a.shape, min(a.shape)
    with timed("getrf", flops=_count_flops(2 * m * n * k - (m + n) * k**2 + 2 * k**3 // 3, a)):
        pivots, fault = xp.getrf(a, before)
    return clip_numbers(pivots, 0, m), fault


def geqrt(xp: Any, a: Any) -> Any:
    """See pdla.array.lapack; of an m x n block 3 m n^2 - n^3 operations."""
    m, n = a.shape
    with timed("geqrt", flops=_count_flops(3 * m * n * n - n**3, a)):
        return xp.geqrt(a)


def larft(xp: Any, gram: Any, tau: np.ndarray) -> Any:
    """See pdla.array.lapack; n^3 / 3 operations."""
    with timed("larft", flops=_count_flops(len(tau) ** 3 // 3, gram)):
        return xp.larft(gram, tau)


def orhr_col(xp: Any, q: Any) -> tuple[Any, Any, Any, Any]:
    """See pdla.array.lapack; 5/3 n^3 operations."""
    with timed("orhr_col", flops=_count_flops(5 * len(q) ** 3 // 3, q)):
        return xp.orhr_col(q)


def trsm(xp: Any, t: Any, b: Any, lower: bool, unit: bool = False, conjugate: bool = False) -> None:
    """See pdla.array.lapack; of an m x n block b m^2 n operations."""
    with timed("trsm", flops=_count_flops(len(b) ** 2 * b.shape[1], b)):
        xp.trsm(t, b, lower, unit, conjugate)


def sytrd(xp: Any, a: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See pdla.array.lapack; 4/3 n^3 operations."""
    with timed("sytrd", flops=_count_flops(4 * len(a) ** 3 // 3, a)):
        return xp.sytrd(a)


def syevd(xp: Any, a: Any) -> np.ndarray:
    """See pdla.array.lapack; 14/3 n^3 operations, and memory of twice a's size."""
    with timed("syevd", flops=_count_flops(14 * len(a) ** 3 // 3, a)), held(2 * a.size * a.itemsize):
        return xp.syevd(a)


def stedc(xp: Any, d: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, Any]:
    """See pdla.array.lapack; without deflation 4/3 n^3 operations, and memory of twice the vectors' size."""
    with timed("stedc", flops=4 * len(d) ** 3 // 3), held(2 * len(d) ** 2 * d.itemsize):
        w, z = xp.stedc(d, e)
    count(z)
    return w, z


def sterf(xp: Any, d: np.ndarray, e: np.ndarray) -> np.ndarray:
    """See pdla.array.lapack."""
    with timed("sterf"):
        return xp.sterf(d, e)


def laed4(xp: Any, d: np.ndarray, z: np.ndarray, rho: float, begin: int, end: int) -> np.ndarray:
    """See pdla.array.lapack."""
    with timed("laed4"):
        return xp.laed4(d, z, rho, begin, end)
