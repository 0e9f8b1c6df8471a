"""Sums, means and extremes of a matrix, of all its elements or of each row or column; every rank gets the same.

Along a dimension each rank reduces its own block to a vector. If the dimension is cut, the ranks that
hold first copies all-reduce these vectors along the axes that cut it; other copies could be rounded
differently. Then every rank gathers all parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdla.array.composed import sum_dtype
from pdla.array.dtypes import has_fractions
from pdla.comm.agreement import agreed, collective_section, to_text
from pdla.errors import ShapeError, misfit
from pdla.grid import ProcessGrid
from pdla.layout import Layout, axes_of
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import convert
from pdla.matrix.reductions import check_no_partial_sums, parts, sum_parts


def total(A: DistMatrix, axis: int | None) -> Any:
    """Collective: see DistMatrix.sum."""
    axis = _check_axis(A, "sum", axis)
    if axis is None:
        return sum_parts(A, "sum", parts(A.base))
    dtype = np.empty(0, A.dtype).sum().dtype
    return _reduce_along(A, axis, _make_sum(sum_dtype(dtype)), "sum").astype(dtype, copy=False)


def mean(A: DistMatrix, axis: int | None) -> Any:
    """Collective: see DistMatrix.mean."""
    axis = _check_axis(A, "mean", axis)
    dtype = A.dtype.newbyteorder("=") if has_fractions(A.dtype) else np.dtype(float)
    wide = sum_dtype(dtype)
    with np.errstate(invalid="ignore"):
        if axis is not None:
            return (_reduce_along(A, axis, _make_sum(wide), "mean") / np.intp(A.shape[axis])).astype(dtype, copy=False)
        total = sum_parts(A, "mean", (part.astype(wide, copy=False) for part in parts(A.base)), wide)
        return (total / np.intp(A.size)).astype(dtype)


def find_extreme(A: DistMatrix, name: str, axis: int | None) -> Any:
    """Collective: see DistMatrix.max and DistMatrix.min. name: "max" or "min"."""
    axis = _check_axis(A, name, axis)
    reduction = _make_max(A.dtype) if name == "max" else _make_min(A.dtype)
    if axis is not None:
        return _reduce_along(A, axis, reduction, name).astype(A.dtype.newbyteorder("="), copy=False)
    with collective_section(A.grid.comm, name):
        own = [reduction.of(part.astype(reduction.dtype, copy=False).reshape(-1), 0).item() for part in parts(A.base) if part.size]
        extremes = np.array([x for of_rank in A.grid.comm.share(own) for x in of_rank] or [0], reduction.dtype)
    return reduction.of(extremes, 0).astype(A.dtype.newbyteorder("="))[()]


def _check_axis(A: DistMatrix, name: str, axis: Any) -> int | None:
    """Collective: return the axis as 0, 1 or None."""
    with agreed(A.grid.comm, f"{name} of {A.description}, axis={to_text(axis)}"):
        check_no_partial_sums(A, name)
        if axis is not None and not (isinstance(axis, (int, np.integer)) and -2 <= axis < 2):
            error_class = misfit(ShapeError, axis)
            raise error_class(f"{name}(axis={axis!r}): 0 for one of each column, 1 for one of each row, None for one of all")
        normalized = None if axis is None else int(axis) % 2
        if name in ("max", "min"):
            _check_order(A, name, normalized)
    return normalized


def _check_order(A: DistMatrix, name: str, axis: int | None) -> None:
    if A.dtype.kind == "c":
        raise ShapeError(f"{name} of {A.dtype}: complex numbers have no order; take {name} of abs(A), or of A.real")
    if not (A.size if axis is None else A.shape[axis]):
        raise ShapeError(f"{name} of a matrix of shape {A.shape}: there is none of no elements")


# ---------------------------------------------------------------------------------------------- one dimension


@dataclass(frozen=True)
class Reduction:
    """A reduction of the elements along a dimension.

    dtype     of the result
    of        reduces an array along an axis
    join      reduces two vectors, into `out`
    identity  the result for no elements
    op        its name for verbs
    flip      a function to call before and after `op`, if verbs have only the opposite one; else None
    """

    dtype: np.dtype
    of: Callable[[Any, int], Any]
    join: Callable[..., Any]
    identity: Any
    op: str
    flip: Callable[..., Any] | None = None


def _make_sum(dtype: np.dtype) -> Reduction:
    return Reduction(dtype, lambda x, axis: x.sum(axis=axis), np.add, 0, "add")


def _make_max(dtype: np.dtype) -> Reduction:
    native = _to_native(dtype)
    lowest = False if native.kind == "b" else np.iinfo(native).min if native.kind in "iu" else -np.inf
    return Reduction(native, lambda x, axis: x.max(axis=axis), np.maximum, lowest, "maximum")


def _make_min(dtype: np.dtype) -> Reduction:
    native = _to_native(dtype)
    highest = True if native.kind == "b" else np.iinfo(native).max if native.kind in "iu" else np.inf
    flip = np.negative if native.kind == "f" else np.invert
    return Reduction(native, lambda x, axis: x.min(axis=axis), np.minimum, highest, "maximum", flip)


def _to_native(dtype: np.dtype) -> np.dtype:
    """Find a dtype of NumPy's own that has all numbers of this one: some of ml_dtypes' have no infinity."""
    return np.dtype(np.float32) if dtype.kind == "V" else dtype.newbyteorder("=")


def _reduce_along(A: DistMatrix, axis: int, reduction: Reduction, call: str) -> np.ndarray:
    """Collective: reduce along rows (axis 1) or columns (0) to a vector on every rank; zeros without data."""
    comm, cuts = A.grid.comm, (A.layout.rows, A.layout.cols)
    oriented = A if axis == 0 else A.T
    with collective_section(comm, call):
        grid = _find_first_copies(A) if any(A.grid.sizes[cut.axis] > 1 for cut in cuts[axis]) else A.grid
        vector = _reduce_block(oriented, reduction, grid.active)
        if (comm_of_cuts := A.grid[axes_of(cuts[axis])] if grid is not A.grid else None) is not None and grid.active:
            vector = _allreduce(vector, reduction, comm_of_cuts)
        row = DistMatrix(vector, (1, oriented.shape[1]), grid, Layout(cols=cuts[1 - axis]))
        whole = convert(row, Layout(), ProcessGrid.everyone(comm)).local
        whole = comm.xp.reinterpret(whole.reshape(whole.size), A.conjugated)
    return comm.xp.host(comm.xp.host_or(whole, np.zeros(whole.shape, reduction.dtype)))


def _find_first_copies(A: DistMatrix) -> ProcessGrid:
    """Make a grid, with A's axes, of the ranks that hold the first copy of each block."""
    place = tuple(slice(None) if axis in A.layout.axes else slice(0, 1) for axis in A.grid.axes)
    ranks = A.grid.ranks[place]
    return ProcessGrid.trust(ranks.shape, A.grid.comm, ranks.ravel(), A.grid.axes)


def _reduce_block(A: DistMatrix, reduction: Reduction, active: bool) -> Any:
    """Reduce each column of this rank's block, to 1 x n; to 1 x 0 on a rank that is not active."""
    xp, n = A.xp, A.stored.shape[1] if active else 0
    vector = xp.create((1, n), reduction.dtype, lambda x: x.fill(reduction.identity))
    axis = 1 if A.transposed else 0
    for place, part in _list_parts(A.base) if n else ():
        target = vector[0, place[1 - axis]]
        part = part.astype(reduction.dtype, order="C", copy=False)
        reduction.join(target, reduction.of(part, axis), out=target)
    return vector


def _list_parts(base: Any) -> Iterator[tuple[tuple[slice, slice], Any]]:
    """Yield `parts` in order, each with its rows and columns."""
    top = left = 0
    for part in parts(base):
        height, width = part.shape
        yield (slice(top, top + height), slice(left, left + width)), part
        left += width
        if left == base.shape[1]:
            top, left = top + height, 0


def _allreduce(vector: Any, reduction: Reduction, comm: Any) -> Any:
    """Collective: all-reduce the vectors of several ranks."""
    if not vector.size:
        return vector
    flipped = vector if reduction.flip is None else reduction.flip(vector)
    result = flipped.copy()
    for half in comm.halves(flipped, result, reduction.op):
        half.wait()
    return result if reduction.flip is None else reduction.flip(result)
