"""Trapezoids: the elements of a block on or below the matrix's diagonal, and their places in an array.

Each row of a trapezoid keeps its columns up to the diagonal. Trapezoids are copied in pieces. Rows
that keep equally many columns form one rectangle, so a trapezoid below the diagonal is one piece.
If the diagonal crosses it, each BAND rows form two pieces. One is the rectangle of the columns that
all of them keep, the other the single elements to its right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pdla.indices import IndexSet, Selection, slice_selection

BAND = 64  # how many rows form a piece where the diagonal crosses


@dataclass(frozen=True)
class Block:
    """Rows and columns of a matrix."""

    rows: IndexSet
    cols: IndexSet

    @property
    def T(self) -> Block:
        return Block(self.cols, self.rows)


class Piece(NamedTuple):
    """Elements of an array.

    rows, cols  their rows and columns
    shape       two-dimensional for a rectangle, one-dimensional for single elements
    kept        the rows and columns of single elements within the rectangle; None: all of it
    """

    rows: Selection
    cols: Selection
    shape: tuple[int, ...]
    kept: tuple[np.ndarray, np.ndarray] | None = None

    def read(self, xp: Any, x: Any) -> Any:
        """The elements of x: a view if rows and columns are slices, else a copy."""
        part = xp.take(x, self.rows, self.cols)
        return part if self.kept is None else xp.pick(part, *self.kept)

    def write(self, xp: Any, x: Any, beta: complex, source: Any) -> None:
        """Set x = beta x + source, for these elements only."""
        part = xp.take(x, self.rows, self.cols)
        target = part if self.kept is None else xp.pick(part, *self.kept)
        xp.combine(target, beta, source)
        if self.kept is not None:
            xp.place(part, *self.kept, target)
        if not (isinstance(self.rows, slice) and isinstance(self.cols, slice)):
            xp.put(x, self.rows, self.cols, part)


@dataclass(frozen=True)
class Trapezoid:
    """Rows and columns of an array, of which row i keeps its first counts[i] columns."""

    rows: Selection
    cols: Selection
    counts: np.ndarray

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    def share(self, i: int, count: int) -> Trapezoid:
        """The i-th of `count` shares of the rows, about equal in size; it may be empty."""
        ends = np.cumsum(self.counts)
        lo, hi = (int(np.searchsorted(ends, self.size * k // count, "right")) if k else 0 for k in (i, i + 1))
        return Trapezoid(slice_selection(self.rows, lo, hi), self.cols, self.counts[lo:hi])

    def pieces(self) -> Iterator[Piece]:
        """Yield the trapezoid's pieces, from the top down."""
        lo = 0
        while lo < len(self.counts):
            equal_end = int(np.searchsorted(self.counts, self.counts[lo], "right"))
            hi = max(equal_end, min(lo + BAND, len(self.counts)))
            common, longest = int(self.counts[lo]), int(self.counts[hi - 1])
            rows = slice_selection(self.rows, lo, hi)
            if common:
                yield Piece(rows, slice_selection(self.cols, 0, common), (hi - lo, common))
            if longest > common:
                i, j = np.nonzero(np.arange(common, longest) < self.counts[lo:hi, None])
                yield Piece(rows, slice_selection(self.cols, common, longest), i.shape, (i, j))
            lo = hi


def intersect(source: Block, target: Block, below: int | None) -> tuple[Trapezoid, Trapezoid] | None:
    """Intersect two blocks: the common elements (i, j) with i - j >= below, as positions in each block's array.

    below = None takes all common elements. Returns None without common elements.
    """
    if _are_apart(source.rows, target.rows) or _are_apart(source.cols, target.cols):
        return None
    rows, target_rows, m = source.rows.overlay(target.rows)
    cols, target_cols, n = source.cols.overlay(target.cols)
    if not m or not n:
        return None
    counts = np.full(m, n)
    if below is not None:
        i, j = source.rows.indices()[rows], source.cols.indices()[cols]
        counts = np.searchsorted(j, i - below, "right")
    return (Trapezoid(rows, cols, counts), Trapezoid(target_rows, target_cols, counts)) if counts.any() else None


def _are_apart(one: IndexSet, other: IndexSet) -> bool:
    """Whether one set ends before the other starts, or one is empty. The test is quick, and true for most pairs of ranks."""
    return not (one.starts.size and other.starts.size and one.starts[0] < other.stops[-1] and other.starts[0] < one.stops[-1])


def find_triangle(block: Block) -> Trapezoid:
    """The elements of a block on or below the diagonal, as positions in the block's array."""
    i, j = block.rows.indices(), block.cols.indices()
    return Trapezoid(slice(0, len(i)), slice(0, len(j)), np.searchsorted(j, i, "right"))


def pack(xp: Any, parts: Sequence[tuple[Any, Trapezoid]], flat: Any) -> None:
    """Copy the trapezoids of some arrays, one after another, into the one-dimensional array `flat`."""
    for x, trapezoid in parts:
        for piece in trapezoid.pieces():
            front, flat = _take_front(flat, piece.shape)
            xp.copy(front, piece.read(xp, x))


def unpack(xp: Any, flat: Any, x: Any, trapezoid: Trapezoid, beta: complex = 0) -> Any:
    """Set the trapezoid's elements of one array: x = beta x + the first elements of flat. Returns the rest of flat."""
    for piece in trapezoid.pieces():
        front, flat = _take_front(flat, piece.shape)
        piece.write(xp, x, beta, front)
    return flat


def _take_front(flat: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The first elements of flat as an array of this shape, and the rest of flat."""
    size = prod(shape)
    return flat[:size].reshape(*shape), flat[size:]
