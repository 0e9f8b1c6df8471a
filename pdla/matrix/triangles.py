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
    made = A.copy()
    if A.xp.name != "meta" and A.stored.size:
        i, j = (part.indices() for part in A.indices)
        # For tril the columns of each row up to the diagonal; for triu those before it.
        counts = np.searchsorted(j, i + k, "right" if call == "tril" else "left")
        for top, (rows, cols), crossing in _bands(counts, call == "tril", len(j)):
            A.xp.scale(made.stored[rows, cols], 0)
            A.xp.place(made.stored, top + crossing[0], crossing[1], 0)
    return made


def _bands(
    counts: np.ndarray, lower: bool, n: int
) -> Iterator[tuple[int, tuple[slice, slice], tuple[np.ndarray, np.ndarray]]]:
    """Yield the zeros, BAND rows at a time: the first row, a rectangle, and single elements beside it, by row and column."""
    for top in range(0, len(counts), BAND):
        some = counts[top : top + BAND, None]
        least, most = int(some[0, 0]), int(some[-1, 0])
        across = np.arange(least, most)
        i, j = np.nonzero(across >= some if lower else across < some)
        yield top, (slice(top, top + len(some)), slice(most, n) if lower else slice(0, least)), (i, least + j)
