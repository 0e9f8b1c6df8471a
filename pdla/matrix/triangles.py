"""The triangles of a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pdla.errors import ShapeError, kind_of
from pdla.matrix.core import DistMatrix
from pdla.matrix.diagonals import clip_offset

BAND = 64  # rows that are cleared at once


def tril(A: DistMatrix, k: int = 0) -> DistMatrix:
    """Copy the elements on and below a diagonal; the others are zeros. Local.

    Parameters
    ----------
    A : DistMatrix
        A matrix of any dtype and layout, partial sums too.
    k : int, optional
        How far above the main diagonal it is; below it where negative.

    Returns
    -------
    DistMatrix
        In A's layout.

    Raises
    ------
    ShapeError, ArgumentError
        For an A that is no matrix, and a k that is no integer.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.ones((2, 3), pdla.ProcessGrid(comm.size), pdla.Layout("row"))
    ...     return pdla.tril(A).gather()
    >>> pdla.run(2, program)[0]
    array([[1., 0., 0.],
           [1., 1., 0.]])
    """
    return _copy_triangle("tril", A, k)


def triu(A: DistMatrix, k: int = 0) -> DistMatrix:
    """Copy the elements on and above a diagonal; the others are zeros. Local.

    Parameters
    ----------
    A : DistMatrix
        A matrix of any dtype and layout, partial sums too.
    k : int, optional
        How far above the main diagonal it is; below it where negative.

    Returns
    -------
    DistMatrix
        In A's layout.

    Raises
    ------
    ShapeError, ArgumentError
        For an A that is no matrix, and a k that is no integer.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.ones((2, 3), pdla.ProcessGrid(comm.size), pdla.Layout("row"))
    ...     return pdla.triu(A, 1).gather()
    >>> pdla.run(2, program)[0]
    array([[0., 1., 1.],
           [0., 0., 1.]])
    """
    return _copy_triangle("triu", A, k)


def _copy_triangle(call: str, A: Any, k: Any) -> DistMatrix:
    if not isinstance(A, DistMatrix):
        raise ShapeError(f"{call}(A): A is {kind_of(A)}, not a DistMatrix")
    k = clip_offset(A, call, "k", k)
    triangle = A.copy()
    if A.xp.name != "meta" and A.stored.size:
        i, j = (part.indices() for part in A.indices)
        # For tril the columns of each row up to the diagonal; for triu those before it.
        counts = np.searchsorted(j, i + k, "right" if call == "tril" else "left")
        for top, (rows, cols), crossing in _list_zeros(counts, call == "tril", len(j)):
            A.xp.scale(triangle.stored[rows, cols], 0)
            A.xp.place(triangle.stored, top + crossing[0], crossing[1], 0)
    return triangle


def _list_zeros(
    counts: np.ndarray, lower: bool, n: int
) -> Iterator[tuple[int, tuple[slice, slice], tuple[np.ndarray, np.ndarray]]]:
    """List the zeros of a triangle, BAND rows at a time.

    Each band is its first row, a rectangle (rows, columns), and single elements beside the rectangle
    (rows, counted from the band's first, and columns).

    counts  for each row, the columns up to the diagonal
    lower   whether the zeros are above the diagonal
    n       the columns of the block
    """
    for top in range(0, len(counts), BAND):
        ends = counts[top : top + BAND, None]
        least, most = int(ends[0, 0]), int(ends[-1, 0])
        columns = np.arange(least, most)
        i, j = np.nonzero(columns >= ends if lower else columns < ends)
        yield top, (slice(top, top + len(ends)), slice(most, n) if lower else slice(0, least)), (i, least + j)
