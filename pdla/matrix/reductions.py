"""Reductions of a whole matrix to numbers on all ranks: its norm and trace, and whether its copies are equal."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from math import inf, isnan
from typing import Any

import numpy as np

from pdla.array import namespace
from pdla.array.composed import widen
from pdla.array.dtypes import near_one
from pdla.array.numpy import to_bytes
from pdla.comm.agreement import agree, agreed, collective_section
from pdla.errors import LayoutError, ShapeError
from pdla.matrix.core import DistMatrix

CACHED = 1 << 18  # elements of a strip: its absolute values are still in the cache when they are summed
STRIP = 1 << 20  # elements that are squared, or copied to the host, at once
TINY = 1e-280  # in a sum of squares above this, squares that underflow are negligible
BATCH = 256  # elements of a diagonal in scattered rows and columns that are read at once: a BATCH x BATCH block is copied


def norm(A: DistMatrix) -> float:
    """Collective: see DistMatrix.norm."""
    with agreed(A.grid.comm, f"norm of {A.description}"):
        check_no_partial_sums(A, "norm")
    return frobenius(A)


def frobenius(*matrices: DistMatrix) -> float:
    """Collective, unchecked: compute the Frobenius norm of all elements of some matrices over one communicator."""
    comm, xp = matrices[0].grid.comm, matrices[0].xp
    with collective_section(comm, "norm"), np.errstate(over="ignore", under="ignore"):
        squares = _sum_squares(matrices)
        if xp.name == "meta" or isnan(squares) or TINY < squares < inf:
            return float(np.sqrt(squares))
        top = max(comm.share(max(map(_find_largest, matrices))))
        if top in (0, inf):
            return top
        factor = float(near_one(top, np.dtype(float)))
        return float(np.sqrt(_sum_squares(matrices, factor)) / factor)


def trace(A: DistMatrix) -> Any:
    """Collective: see DistMatrix.trace."""
    with agreed(A.grid.comm, f"trace of {A.description}"):
        check_no_partial_sums(A, "trace")
        if A.shape[0] != A.shape[1]:
            raise ShapeError(f"the trace of a matrix of shape {A.shape}: it must be square")
    return sum_parts(A, "trace", _list_diagonal(A))


def check_copies(A: DistMatrix) -> bool:
    """Collective: see DistMatrix.check_copies."""
    if A.xp.name == "meta":
        return True
    agree(A.grid.comm, f"check_copies of {A.description}")
    coords = A.grid.coords or {}
    block = tuple(coords[axis] for axis in (*A.layout.axes, *A.layout.partial)) if coords else None
    digests: dict[Any, bytes] = {}
    with collective_section(A.grid.comm, "check_copies"):
        digest = hashlib.blake2b()
        for part in parts(A.stored):
            digest.update(to_bytes(A.xp.host(part)))
        pairs = [pair for pair in A.grid.comm.share((block, digest.digest())) if pair[0] is not None]
    return all(digests.setdefault(block, digest) == digest for block, digest in pairs)


def reduce_columns(A: DistMatrix, op: str) -> np.ndarray:
    """Collective: sum the absolute values of each column (op="add"), or find the largest ("maximum"), on every rank.

    A column with NaN has NaN; without data the result is 0. The matrix has no partial sums. An
    all-reduce of n numbers: 2 n words a rank.
    """
    own, comm = np.zeros(A.shape[1]), A.grid.comm
    with collective_section(comm, "sums of columns"), np.errstate(over="ignore"):
        if A.first and A.stored.size and A.xp.name != "meta":
            own[A.indices[1].indices()] = _reduce_columns(A, np.add if op == "add" else np.maximum)
        total = comm.xp.asarray(own)
        for half in comm.halves(total.copy(), total, op) if own.size else ():
            half.wait()
    return A.xp.host(comm.xp.host_or(total, own))


def _reduce_columns(A: DistMatrix, ufunc: np.ufunc) -> np.ndarray:
    wide, x = np.result_type(A.dtype, np.float64), A.stored
    height = max(1, CACHED // x.shape[1])
    strips = (np.abs(x[top : top + height].astype(wide, copy=False)) for top in range(0, x.shape[0], height))
    return functools.reduce(ufunc, (A.xp.host(strip.sum(0) if ufunc is np.add else strip.max(0)) for strip in strips))


def check_no_partial_sums(A: DistMatrix, what: str) -> None:
    """Raise LayoutError for a matrix with partial sums."""
    if A.layout.partial:
        raise LayoutError(f"{what} of partial sums {A.layout!r}: redistribute to {A.layout.summed!r} first")


def _sum_once(A: DistMatrix, mine: Any) -> Any:
    """Collective: sum a number over the ranks that hold the first copy of a block."""
    return sum(A.grid.comm.share(mine if A.first else 0))


def sum_parts(A: DistMatrix, call: str, parts: Iterable[Any], dtype: np.dtype | None = None) -> Any:
    """Collective: sum all elements of these parts of each rank's block. dtype: of the sum; by default NumPy's."""
    dtype = np.empty(0, A.dtype).sum().dtype if dtype is None else dtype
    with collective_section(A.grid.comm, call):
        own = sum(widen(A.xp.reinterpret(part, A.conjugated)).sum().item() for part in parts)
        total = _sum_once(A, own)
    if dtype.kind in "iu":
        total = np.uint64(total % 2**64)  # NumPy's sums wrap around
    return np.asarray(total).astype(dtype)[()]


def _list_diagonal(A: DistMatrix) -> Iterator[Any]:
    """Yield the diagonal's elements in this block as vectors, of at most BATCH each if they are scattered."""
    if A.xp.name == "meta":
        return
    rows, cols = A.indices
    in_rows, in_cols, size = rows.overlay(cols)
    if isinstance(in_rows, slice) and isinstance(in_cols, slice):
        yield A.xp.take(A.stored, in_rows, in_cols).diagonal()
        return
    i, j = rows.find_common(cols)
    for batch in (slice(lo, lo + BATCH) for lo in range(0, size, BATCH)):
        yield A.xp.take(A.stored, i[batch], j[batch]).diagonal()


def _sum_squares(matrices: tuple[DistMatrix, ...], factor: float = 1) -> float:
    """Collective: sum the squares of all elements times `factor`; copies count once."""
    scaled = (part if factor == 1 else part * factor for A in matrices if A.first for part in _list_reals(A))
    own = sum((np.vdot(part, part) for part in scaled), 0.0)  # BLAS reads each element once, and nothing is written
    return sum(matrices[0].grid.comm.share(float(own)))


def _find_largest(A: DistMatrix) -> float:
    """Find the largest absolute value in this block, of real and imaginary parts."""
    return max((float(np.abs(part).max()) for part in _list_reals(A)), default=0.0)


def _list_reals(A: DistMatrix) -> Iterator[Any]:
    """Yield this block in double precision or better, part by part, complex elements as two real ones.

    A whole copy of a large block may not fit. (BLAS's complex dot makes NaN of infinity.)
    """
    wide = np.result_type(A.dtype, np.float64)
    real = np.empty(0, wide).real.dtype
    return (part.astype(wide, order="C", copy=False).view(real) for part in parts(A.base))


def parts(block: Any) -> Iterator[Any]:
    """Yield all of a block, at most STRIP elements at a time; nothing of a block without data."""
    if namespace(block).name == "meta":
        return
    m, n = block.shape
    width = max(1, min(n, STRIP))
    for top in range(0, m, STRIP // width):
        for left in range(0, n, width):
            yield block[top : top + STRIP // width, left : left + width]
