"""Diagonals of a matrix: gathered, and written to."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.array.dtypes import has, is_number
from pdla.comm.agreement import agreed, collective_section, to_text
from pdla.errors import ArgumentError, LayoutError, ShapeError, kind_of
from pdla.indices import IndexSet
from pdla.layout import points
from pdla.matrix.core import DistMatrix
from pdla.matrix.reductions import check_no_partial_sums


def diagonal(A: DistMatrix, offset: Any) -> np.ndarray:
    """Collective: see DistMatrix.diagonal."""
    comm, xp = A.grid.comm, A.grid.comm.xp
    with agreed(comm, f"diagonal of {A.description}, offset={to_text(offset)}"):
        check_no_partial_sums(A, "diagonal")
        offset = clip_offset(A, "diagonal", "offset", offset)
    down, length = max(0, -offset), _compute_length(A.shape, offset)
    crossings = {rank: find_crossing(found, offset) for rank, found in _find_holders(A).items()}
    own = crossings.get(comm.rank, _NO_ELEMENTS)
    elements = xp.reinterpret(xp.pick(A.stored, own[0], own[1]), A.conjugated)
    others = {rank: places for rank, (_, _, places) in crossings.items() if places.size and rank != comm.rank}
    outs = {rank: xp.empty(places.shape, A.dtype) for rank, places in others.items()}
    whole = np.empty(length, A.dtype)
    with collective_section(comm, "diagonal"):
        comm.allgather(elements, outs | {comm.rank: elements}).wait()
    for rank, part in {**outs, comm.rank: elements}.items():
        whole[crossings.get(rank, _NO_ELEMENTS)[2] - down] = xp.host_or(part, 0)
    return whole


_NO_ELEMENTS = tuple(np.empty(0, np.int64) for _ in range(3))  # the crossing of a rank that holds no block first


def _compute_length(shape: tuple[int, int], offset: int) -> int:
    m, n = shape
    return max(0, min(m, n - offset) if offset >= 0 else min(m + offset, n))


def _find_holders(A: DistMatrix) -> dict[int, tuple[IndexSet, IndexSet]]:
    """Map the first rank that holds each block to the block's rows and columns."""
    grid, first = A.grid, dict.fromkeys(A.grid.axes, 0)
    return {grid.rank_of(at): A.layout.indices(A.shape, grid.sizes, at) for at in points(grid.sizes, A.layout.axes, first)}


def find_crossing(held: tuple[IndexSet, IndexSet], offset: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the elements of a diagonal in a block: the positions of their rows and columns in it, and their rows in the matrix."""
    rows, cols = held
    i, j = rows.find_common(IndexSet(cols.starts - offset, cols.stops - offset))
    return i, j, rows.indices()[i]


def clip_offset(A: DistMatrix, call: str, name: str, offset: Any) -> int:
    """Clip the offset of a diagonal to those just outside the matrix; ArgumentError unless it is an integer."""
    if not isinstance(offset, (int, np.integer)):
        raise ArgumentError(f"{call}({name}={offset!r}): a whole number, {kind_of(offset)} is none")
    return min(max(int(offset), -A.shape[0]), A.shape[1])


def fill_diagonal(A: DistMatrix, val: Any) -> None:
    """Write to the main diagonal. Local.

    Parameters
    ----------
    A : DistMatrix
        The matrix, which changes.
    val : number or array
        A number for all elements; or a vector of one for each, the same on all ranks.

    Raises
    ------
    ShapeError
        For an A that is no matrix, a vector of another length, and a `val` of another kind.
    LayoutError
        For numbers that A's dtype does not have, and partial sums.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.ones((2, 3), pdla.ProcessGrid(comm.size), pdla.Layout("row"))
    ...     pdla.fill_diagonal(A, [5, 7])
    ...     return A.gather()
    >>> pdla.run(2, program)[0]
    array([[5., 1., 1.],
           [1., 7., 1.]])
    """
    if not isinstance(A, DistMatrix):
        raise ShapeError(f"fill_diagonal(A, val): A is {kind_of(A)}, not a DistMatrix")
    if A.layout.partial:
        raise LayoutError(f"fill_diagonal of {A.description}: redistribute A to a layout without partial sums first")
    values = _check_values(A, val)
    i, j, rows = find_crossing(A.indices, 0)
    stored = np.conjugate(values) if A.conjugated else values
    A.xp.place(A.stored, i, j, A.xp.asarray(stored[rows]) if stored.ndim else stored[()])


def _check_values(A: DistMatrix, val: Any) -> Any:
    """Check `val`, and cast it to A's dtype: a number, or a vector of one for each element of the diagonal."""
    try:
        values = np.asarray(A.xp.host(val) if hasattr(val, "dtype") else val)
    except ValueError as error:
        raise ShapeError(f"fill_diagonal: {kind_of(val)} that is no array: {error}") from None
    if values.ndim not in (0, 1) or (values.ndim and len(values) != min(A.shape)):
        raise ShapeError(f"fill_diagonal of {A.description}: give a number, or a vector of {min(A.shape)}, not {kind_of(val)}")
    for number in values.reshape(-1).tolist():
        if not is_number(number):
            raise ShapeError(f"fill_diagonal of {A.description}: {number!r} is no number")
        if not has(A.dtype, number):
            raise LayoutError(f"fill_diagonal of {A.description}: {A.dtype} cannot represent {number}; cast A first")
    return values.astype(A.dtype)
