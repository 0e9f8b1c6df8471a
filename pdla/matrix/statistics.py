"""Sums, means and extremes of a matrix, of all its elements or of each row or column; every rank gets the same.

Along a dimension each rank reduces its own block to a vector. If the dimension is cut, ranks with
the first copies all-reduce these along the axes that cut it; other copies could be rounded
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
from pdla.matrix.reductions import check_no_partial_sums, parts, sum_of


def total(A: DistMatrix, axis: int | None) -> Any:
    """Collective: see DistMatrix.sum."""
    axis = _check_axis(A, "sum", axis)
    if axis is None:
        return sum_of(A, "sum", parts(A.base))
    kind = np.empty(0, A.dtype).sum().dtype
    return _reduce_along(A, axis, _make_sum(sum_dtype(kind)), "sum").astype(kind, copy=False)


def mean(A: DistMatrix, axis: int | None) -> Any:
    """Collective: see DistMatrix.mean."""
    axis = _check_axis(A, "mean", axis)
    kind = A.dtype.newbyteorder("=") if has_fractions(A.dtype) else np.dtype(float)
    wide = sum_dtype(kind)
    with np.errstate(invalid="ignore"):
        if axis is not None:
            return (_reduce_along(A, axis, _make_sum(wide), "mean") / np.intp(A.shape[axis])).astype(kind, copy=False)
        added = sum_of(A, "mean", (part.astype(wide, copy=False) for part in parts(A.base)), wide)
        return (added / np.intp(A.size)).astype(kind)


def extreme(A: DistMatrix, name: str, axis: int | None) -> Any:
    """Collective: see DistMatrix.max and DistMatrix.min, which are the names."""
    axis = _check_axis(A, name, axis)
    how = _make_max(A.dtype) if name == "max" else _make_min(A.dtype)
    if axis is not None:
        return _reduce_along(A, axis, how, name).astype(A.dtype.newbyteorder("="), copy=False)
    with collective_section(A.grid.comm, name):
        mine = [how.of(part.astype(how.kind, copy=False).reshape(-1), 0).item() for part in parts(A.base) if part.size]
        found = np.array([x for some in A.grid.comm.share(mine) for x in some] or [0], how.kind)
    return how.of(found, 0).astype(A.dtype.newbyteorder("="))[()]


def _check_axis(A: DistMatrix, name: str, axis: Any) -> int | None:
    """Collective: the axis as 0, 1 or None."""
    with agreed(A.grid.comm, f"{name} of {A.description}, axis={to_text(axis)}"):
        check_no_partial_sums(A, name)
        if axis is not None and not (isinstance(axis, (int, np.integer)) and -2 <= axis < 2):
            kind = misfit(ShapeError, axis)
            raise kind(f"{name}(axis={axis!r}): 0 for one of each column, 1 for one of each row, None for one of all")
        chosen = None if axis is None else int(axis) % 2
        if name in ("max", "min"):
            _check_order(A, name, chosen)
    return chosen


def _check_order(A: DistMatrix, name: str, axis: int | None) -> None:
    if A.dtype.kind == "c":
        raise ShapeError(f"{name} of {A.dtype}: complex numbers have no order; take {name} of abs(A), or of A.real")
    if not (A.size if axis is None else A.shape[axis]):
        raise ShapeError(f"{name} of a matrix of shape {A.shape}: there is none of no elements")


# ---------------------------------------------------------------------------------------------- one dimension


@dataclass(frozen=True)
class Reduction:
    """A reduction of the elements along a dimension, in the dtype `kind`.

    of       reduces an array along an axis
    join     reduces two vectors, into `out`
    nothing  the result for no elements
    op       its name for verbs
    flip     a function to call before and after `op`, if verbs have only the opposite one; else None
    """

    kind: np.dtype
    of: Callable[[Any, int], Any]
    join: Callable[..., Any]
    nothing: Any
    op: str
    flip: Callable[..., Any] | None = None


def _make_sum(kind: np.dtype) -> Reduction:
    return Reduction(kind, lambda x, axis: x.sum(axis=axis), np.add, 0, "add")


def _make_max(dtype: np.dtype) -> Reduction:
    kind = _to_native(dtype)
    lowest = False if kind.kind == "b" else np.iinfo(kind).min if kind.kind in "iu" else -np.inf
    return Reduction(kind, lambda x, axis: x.max(axis=axis), np.maximum, lowest, "maximum")


def _make_min(dtype: np.dtype) -> Reduction:
    kind = _to_native(dtype)
    highest = True if kind.kind == "b" else np.iinfo(kind).max if kind.kind in "iu" else np.inf
    flip = np.negative if kind.kind == "f" else np.invert
    return Reduction(kind, lambda x, axis: x.min(axis=axis), np.minimum, highest, "maximum", flip)


def _to_native(dtype: np.dtype) -> np.dtype:
    """A dtype of NumPy's own that has all these numbers: some of ml_dtypes' have no infinity."""
    return np.dtype(np.float32) if dtype.kind == "V" else dtype.newbyteorder("=")


def _reduce_along(A: DistMatrix, axis: int, how: Reduction, call: str) -> np.ndarray:
    """Collective: reduce along rows (axis 1) or columns (0) to a vector on every rank; without data 0."""
    comm, cuts = A.grid.comm, (A.layout.rows, A.layout.cols)
    turned = A if axis == 0 else A.T
    with collective_section(comm, call):
        grid = _find_first_copies(A) if any(A.grid.sizes[cut.axis] > 1 for cut in cuts[axis]) else A.grid
        vector = _reduce_block(turned, how, grid.active)
        if (among := A.grid[axes_of(cuts[axis])] if grid is not A.grid else None) is not None and grid.active:
            vector = _allreduce(vector, how, among)
        row = DistMatrix(vector, (1, turned.shape[1]), grid, Layout(cols=cuts[1 - axis]))
        whole = convert(row, Layout(), ProcessGrid.everyone(comm)).local
        whole = comm.xp.reinterpret(whole.reshape(whole.size), A.conjugated)
    return comm.xp.host(comm.xp.host_or(whole, np.zeros(whole.shape, how.kind)))


def _find_first_copies(A: DistMatrix) -> ProcessGrid:
    """Make a grid, with A's axes, of the ranks that hold the first copy of each block."""
    place = tuple(slice(None) if axis in A.layout.axes else slice(0, 1) for axis in A.grid.axes)
    ranks = A.grid.ranks[place]
    return ProcessGrid.trust(ranks.shape, A.grid.comm, ranks.ravel(), A.grid.axes)


def _reduce_block(A: DistMatrix, how: Reduction, active: bool) -> Any:
    """Reduce each column of this rank's block, to 1 x n; to 1 x 0 on a rank that is not active."""
    xp, n = A.xp, A.stored.shape[1] if active else 0
    vector = xp.create((1, n), how.kind, lambda x: x.fill(how.nothing))
    axis = 1 if A.transposed else 0
    for place, part in _pieces(A.base) if n else ():
        found = vector[0, place[1 - axis]]
        part = part.astype(how.kind, order="C", copy=False)
        how.join(found, how.of(part, axis), out=found)
    return vector


def _pieces(base: Any) -> Iterator[tuple[tuple[slice, slice], Any]]:
    """Yield `parts` in order, each with its rows and columns."""
    top = left = 0
    for part in parts(base):
        height, width = part.shape
        yield (slice(top, top + height), slice(left, left + width)), part
        left += width
        if left == base.shape[1]:
            top, left = top + height, 0


def _allreduce(vector: Any, how: Reduction, comm: Any) -> Any:
    """Collective: all-reduce the vectors of several ranks."""
    if not vector.size:
        return vector
    flipped = vector if how.flip is None else how.flip(vector)
    found = flipped.copy()
    for half in comm.halves(flipped, found, how.op):
        half.wait()
    return found if how.flip is None else how.flip(found)
