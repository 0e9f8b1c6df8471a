"""Matrices of matrices, beside and above each other: each is redistributed directly to its part of the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pdla.array.dtypes import promote
from pdla.comm.agreement import agreed, collective_section, raise_everywhere
from pdla.cuts import Cuts
from pdla.errors import LayoutError, ShapeError, kind_of
from pdla.grid import ProcessGrid, check_layout, check_same_communicator, find_communicator
from pdla.layout import Layout, Shape, effective
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import convert, local_shape, move


def hstack(matrices: Sequence[DistMatrix], *, layout: Layout | None = None) -> DistMatrix:
    """Put matrices beside each other. Collective, idle ranks included.

    Parameters
    ----------
    matrices : sequence of DistMatrix
        Matrices of equally many rows, in any layouts on any grids over one communicator.
    layout : Layout, optional
        Layout of the result, as for `block`.

    Returns
    -------
    DistMatrix
        On the first one's grid. Dtypes promote as NumPy's do.

    Raises
    ------
    ShapeError, LayoutError, GridError, AgreementError
        As by `block`, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.eye(2, pdla.ProcessGrid(comm.size), pdla.Layout("row"))
    ...     return pdla.hstack([A, 2 * A]).gather()
    >>> pdla.run(2, program)[0]
    array([[1., 0., 2., 0.],
           [0., 1., 0., 2.]])
    """
    return _assemble("hstack", matrices, lambda: [_to_list(matrices)], layout)


def vstack(matrices: Sequence[DistMatrix], *, layout: Layout | None = None) -> DistMatrix:
    """Put matrices above each other. Collective, idle ranks included.

    Parameters
    ----------
    matrices : sequence of DistMatrix
        Matrices of equally many columns, in any layouts on any grids over one communicator.
    layout : Layout, optional
        Layout of the result, as for `block`.

    Returns
    -------
    DistMatrix
        On the first one's grid. Dtypes promote as NumPy's do.

    Raises
    ------
    ShapeError, LayoutError, GridError, AgreementError
        As by `block`, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.eye(2, pdla.ProcessGrid(comm.size), pdla.Layout("row"))
    ...     return pdla.vstack([A, 2 * A]).shape
    >>> pdla.run(2, program)[0]
    (4, 2)
    """
    return _assemble("vstack", matrices, lambda: [[X] for X in _to_list(matrices)], layout)


def block(blocks: Sequence[Any], *, layout: Layout | None = None) -> DistMatrix:
    """Put matrices together to a larger one. Collective, idle ranks included.

    Parameters
    ----------
    blocks : sequence of sequences of DistMatrix
        Rows of matrices, or one row alone. Matrices of a row have equally many rows, and all rows
        are equally wide. In any layouts on any grids over one communicator.
    layout : Layout, optional
        Layout of the result, on the first matrix's grid. By default the first matrix's, with
        balanced blocks in place of `Cuts` of another length.

    Returns
    -------
    DistMatrix
        On the first one's grid. Dtypes promote as NumPy's do.

    Raises
    ------
    ShapeError
        For no matrices, and sizes that do not go together.
    LayoutError
        For a layout that does not fit, or has partial sums.
    GridError
        For grids over different communicators.
    AgreementError
        If ranks give different arguments. All of these are raised on every rank.

    Notes
    -----
    A layout that cuts a dimension along several axes takes two redistributions, the first one to
    whole rows of the result. All ranks share these evenly.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.eye(2, pdla.ProcessGrid(comm.size), pdla.Layout("row"))
    ...     return pdla.block([[A, A], [3 * A, A]]).gather()
    >>> pdla.run(2, program)[0]
    array([[1., 0., 1., 0.],
           [0., 1., 0., 1.],
           [3., 0., 1., 0.],
           [0., 3., 0., 1.]])
    """
    is_one_row = isinstance(blocks, (list, tuple)) and all(isinstance(X, DistMatrix) for X in blocks)
    return _assemble("block", blocks, lambda: [_to_list(row) for row in ([blocks] if is_one_row else _to_list(blocks))], layout)


def _to_list(given: Any) -> list[Any]:
    if isinstance(given, (list, tuple)):
        return list(given)
    raise ShapeError(f"{given!r} is {kind_of(given)}: give a list of matrices")


def _flatten(given: Any) -> Iterator[Any]:
    """Yield the entries of nested lists."""
    for X in given if isinstance(given, (list, tuple)) else ():
        yield from _flatten(X) if isinstance(X, (list, tuple)) else [X]


def _describe(given: Any) -> str:
    if isinstance(given, (list, tuple)):
        return f"[{', '.join(map(_describe, given))}]"
    return given.description if isinstance(given, DistMatrix) else repr(given)


def _assemble(call: str, given: Any, rows_of: Callable[[], list[list[Any]]], layout: Any) -> DistMatrix:
    first = next((X for X in _flatten(given) if isinstance(X, DistMatrix)), None)
    if first is None:
        raise_everywhere(ShapeError(f"{call} of no matrices, but {kind_of(given)}: give a list of them"))
    grid = first.grid
    with agreed(find_communicator(_flatten(given)) or grid.comm, f"{call}({_describe(given)}, layout={layout!r})"):
        rows = rows_of()
        for X in (X for row in rows for X in row):
            if not isinstance(X, DistMatrix):
                raise ShapeError(f"{call}: {X!r} is {kind_of(X)}, not a DistMatrix")
            check_same_communicator(grid, X.grid, f"another matrix of {call}", "the first one")
        shape = _find_shape(call, rows)
        target = _choose_layout(first, shape) if layout is None else layout
        check_layout(call, target)
        target.check(shape, grid.sizes)
        if target.partial:
            raise LayoutError(f"{call}(layout={layout!r}): the result cannot be left as partial sums")
        dtype = promote(*(X.dtype for row in rows for X in row))
    with collective_section(grid.comm, call):
        return _fill(rows, shape, dtype, target, grid)


def _find_shape(call: str, rows: list[list[DistMatrix]]) -> Shape:
    """Find the shape of the whole; ShapeError if it has a hole."""
    sizes = [[X.shape for X in row] for row in rows if row]
    for row in sizes:
        if len({m for m, _ in row}) != 1:
            raise ShapeError(f"{call}: matrices beside each other have the shapes {row}: give equally many rows")
    widths = [sum(n for _, n in row) for row in sizes]
    if len(set(widths)) > 1:
        raise ShapeError(f"{call}: rows of matrices are {widths} columns wide, and should be equally wide")
    return sum(row[0][0] for row in sizes), widths[0]


def _choose_layout(X: DistMatrix, shape: Shape) -> Layout:
    rows, cols = (
        tuple(cut.axis if isinstance(cut, Cuts) and cut.boundaries[-1] != n else cut for cut in cuts)
        for n, cuts in zip(shape, (X.layout.rows, X.layout.cols), strict=True)
    )
    return Layout(rows, cols)


def _fill(rows: list[list[DistMatrix]], shape: Shape, dtype: np.dtype, layout: Layout, grid: ProcessGrid) -> DistMatrix:
    """Collective: make the whole.

    If a dimension is cut along several axes, no layout describes a part of it: whole rows are made first.
    """
    if max(len(effective(cuts, grid.sizes)) for cuts in (layout.rows, layout.cols)) > 1:
        everyone = ProcessGrid.everyone(grid.comm)
        return convert(_fill(rows, shape, dtype, Layout(everyone.axes), everyone), layout, grid)
    whole = DistMatrix(grid.comm.xp.empty(local_shape(shape, layout, grid), dtype), shape, grid, layout)
    for X, top, left in _list_places(rows):
        part = whole[top : top + X.shape[0], left : left + X.shape[1]]
        X = convert(X, X.layout.summed, X.grid) if X.layout.partial else X
        move(X if X.dtype == dtype else X.astype(dtype), part.layout, grid, part.stored)
    return whole


def _list_places(rows: list[list[DistMatrix]]) -> Iterator[tuple[DistMatrix, int, int]]:
    """Yield each matrix with its first row and column in the whole."""
    top = 0
    for row in rows:
        left = 0
        for X in row:
            yield X, top, left
            left += X.shape[1]
        top += row[0].shape[0] if row else 0
