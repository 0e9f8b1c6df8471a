"""LAPACK's routines on a GPU, as lapack.py's on NumPy's arrays: cuSOLVER's, and cuBLAS's trsm.

All but trsm wait for the device, to look for faults.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cupy
import numpy as np

from pdla.array import blas, lapack
from pdla.array.cupy.launch import cublas
from pdla.array.dtypes import near_one
from pdla.array.lapack import PREFIXES, in_place, laed4, orient_triangle, sterf  # noqa: F401 - laed4, sterf: the host's work


@cache
def _cusolver() -> Any:
    """CuPy's binding, which loads the library."""
    from cupy_backends.cuda.libs import cusolver

    return cusolver


def _solve(name: str, x: Any, first: tuple[int, ...], ld: int, *arrays: Any) -> int:
    """Call cuSOLVER's routine; gives info."""
    handle, routine = cupy.cuda.device.get_cusolver_handle(), PREFIXES[x.dtype.char] + name
    size = getattr(_cusolver(), f"{routine}_bufferSize")(handle, *first, x.data.ptr, ld)
    work, info = cupy.empty((max(1, size),), x.dtype), cupy.empty((1,), np.int32)
    pointers, space = [array.data.ptr for array in arrays], (work.data.ptr, size)
    rest = {"potrf": space, "getrf": (work.data.ptr, *pointers), "geqrf": (*pointers, *space)}[name]
    getattr(_cusolver(), routine)(handle, *first, x.data.ptr, ld, *rest, info.data.ptr)
    return int(info.get()[0])


def potrf(a: Any) -> tuple[int, float]:
    """See lapack.py. Where a is not positive definite, the host finds the pivot."""
    if not a.size:
        return 0, 0.0
    before, library = a.copy(), cublas()
    with in_place(cupy, a) as (x, how, ld):
        fill = library.CUBLAS_FILL_MODE_UPPER if how == b"N" else library.CUBLAS_FILL_MODE_LOWER
        info = _solve("potrf", x, (fill, len(a)), ld)
    if info or not bool((a.diagonal().real > 0).all()):
        order, pivot = lapack.potrf(cupy.asnumpy(before))
        return order or max(1, info), pivot
    a[...] = cupy.tril(a)
    return 0, 0.0


def trtri(a: Any) -> float:
    """See lapack.py."""
    inverse, size = cupy.eye(len(a), dtype=a.dtype), lapack.frobenius(cupy, a)
    trsm(a, inverse, True)
    a[...] = inverse
    return size * lapack.frobenius(cupy, inverse) / max(1, len(a))


def getrf(a: Any, before: Any) -> tuple[np.ndarray, int]:
    """See lapack.py; the host gets the pivots, and factors again where the device cannot divide by one."""
    if not a.size:
        return np.zeros(0, np.int32), 0
    pivots = cupy.empty((min(a.shape),), np.int32)
    with in_place(cupy, a, b"T") as (x, _, ld):
        _solve("getrf", x, a.shape, ld, pivots)
    diagonal = cupy.asnumpy(a.diagonal())
    if lapack.has_reciprocals(diagonal):
        return cupy.asnumpy(pivots) - 1, lapack.find_fault(diagonal)
    factors = cupy.asnumpy(before).copy()
    found = lapack.getrf(factors, factors.copy())
    a[...] = cupy.asarray(factors)
    return found


def geqrt(a: Any) -> Any:
    """See lapack.py; T by the Gram matrix of V."""
    m, n = a.shape
    assert n <= m, f"geqrt of {m} x {n}: at most as many columns as rows"
    if not a.size:
        return cupy.empty((n, n), a.dtype)
    tau = cupy.empty((n,), a.dtype)
    with in_place(cupy, a, b"T") as (x, _, ld):
        _solve("geqrf", x, (m, n), ld, tau)
    v = cupy.tril(a, -1)
    v[np.arange(n), np.arange(n)] = 1
    return larft(v.conj().T @ v, cupy.asnumpy(tau))


def larft(gram: Any, tau: np.ndarray) -> Any:
    """See lapack.py; the host's work."""
    return cupy.asarray(lapack.larft(cupy.asnumpy(gram), tau))


def orhr_col(q: Any) -> tuple[Any, ...]:
    """See lapack.py; the host's work."""
    return tuple(map(cupy.asarray, lapack.orhr_col(cupy.asnumpy(q))))


def stedc(d: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, Any]:
    """See lapack.py; the host's work."""
    w, z = lapack.stedc(d, e)
    return w, cupy.asarray(z)


def trsm(t: Any, b: Any, lower: bool, unit: bool = False, conjugate: bool = False) -> None:
    """See lapack.py."""
    if not b.size:
        return
    library = cublas()
    with in_place(cupy, b) as (x, into, ldb):
        t, ld, side, fill, turn = orient_triangle(cupy, t, into, lower, conjugate)
        m, n = b.shape if into == b"T" else b.shape[::-1]
        (_, one), handle = blas.box_scalars(1, 0, b.dtype.char), cupy.cuda.device.get_cublas_handle()
        words = {
            b"L": (library.CUBLAS_SIDE_LEFT, library.CUBLAS_FILL_MODE_LOWER), b"R": (library.CUBLAS_SIDE_RIGHT,),
            b"U": (None, library.CUBLAS_FILL_MODE_UPPER),
        }
        turns = {b"N": library.CUBLAS_OP_N, b"T": library.CUBLAS_OP_T, b"C": library.CUBLAS_OP_C}
        diagonal = library.CUBLAS_DIAG_UNIT if unit else library.CUBLAS_DIAG_NON_UNIT
        getattr(library, PREFIXES[b.dtype.char] + "trsm")(
            handle, words[side][0], words[fill][1], turns[turn], diagonal, m, n, one, t.data.ptr, ld, x.data.ptr, ldb
        )


def larfg(x: Any) -> tuple[float, complex]:
    """See lapack.py; on the host."""
    v = cupy.asnumpy(x)
    found = lapack.larfg(v)
    x[...] = cupy.asarray(v)
    return found


def sytrd(a: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See lapack.py; on the host."""
    x = np.asfortranarray(cupy.asnumpy(a))
    found = lapack.sytrd(x)
    a[...] = cupy.asarray(x)
    return found


def syevd(a: Any) -> np.ndarray:
    """See lapack.py; brought near 1 first, as LAPACK does by itself."""
    if not a.size:
        return np.zeros(0, a.real.dtype)
    x, at = cupy.tril(a), np.arange(len(a))
    x[at, at] = a.diagonal().real
    if not bool(cupy.isfinite(x).all()):
        return np.full(len(a), np.nan, a.real.dtype)
    scale = near_one(float(abs(x).max()), a.dtype)
    x *= scale
    w, a[...] = cupy.linalg.eigh(x, UPLO="L")
    return cupy.asnumpy(w) / scale
