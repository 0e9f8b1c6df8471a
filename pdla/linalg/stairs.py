"""Parts of a triangle: what a block has of the elements on or below the diagonal, in one array and in another.

Where a block meets another one, a row keeps its columns up to the diagonal: stairs. Rows that keep equally many are one
rectangle, so stairs far from the diagonal are one. On it a few rows at a time are a rectangle, of what they all keep, and the
elements beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pdla.indices import IndexSet, Selection, some_of

BAND = 64  # rows whose elements are told apart together


@dataclass(frozen=True)
class Block:
    """Rows and columns of a matrix."""

    rows: IndexSet
    cols: IndexSet


class Piece(NamedTuple):
    """Rows and columns of an array, and which elements there, by row and by column, one after another; None: all."""

    rows: Selection
    cols: Selection
    shape: tuple[int, ...]
    kept: tuple[np.ndarray, np.ndarray] | None = None

    def of(self, xp: Any, x: Any) -> Any:
        """Its elements of x."""
        part = xp.take(x, self.rows, self.cols)
        return part if self.kept is None else xp.picked(part, *self.kept)

    def write(self, xp: Any, x: Any, beta: complex, source: Any) -> None:
        """x = beta x + source, in its elements."""
        part = xp.take(x, self.rows, self.cols)
        target = part if self.kept is None else xp.picked(part, *self.kept)
        xp.combine(target, beta, source)
        if self.kept is not None:
            xp.place(part, *self.kept, target)
        if not (isinstance(self.rows, slice) and isinstance(self.cols, slice)):
            xp.put(x, self.rows, self.cols, part)


@dataclass(frozen=True)
class Stairs:
    """Rows and columns of an array, of which row i keeps its first counts[i] columns."""

    rows: Selection
    cols: Selection
    counts: np.ndarray

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    def pieces(self) -> Iterator[Piece]:
        """What they are made of, top down."""
        lo = 0
        while lo < len(self.counts):
            alike = int(np.searchsorted(self.counts, self.counts[lo], "right"))
            hi = max(alike, min(lo + BAND, len(self.counts)))
            least, most = int(self.counts[lo]), int(self.counts[hi - 1])
            rows = some_of(self.rows, lo, hi)
            if least:
                yield Piece(rows, some_of(self.cols, 0, least), (hi - lo, least))
            if most > least:
                i, j = np.nonzero(np.arange(least, most) < self.counts[lo:hi, None])
                yield Piece(rows, some_of(self.cols, least, most), i.shape, (i, j))
            lo = hi


def meeting(here: Block, there: Block, below: int | None) -> tuple[Stairs, Stairs] | None:
    """What two blocks share of the elements (i, j) with i - j >= below (None: of all): positions in each; None: nothing."""
    if _apart(here.rows, there.rows) or _apart(here.cols, there.cols):
        return None
    rows, their_rows, m = here.rows.overlay(there.rows)
    cols, their_cols, n = here.cols.overlay(there.cols)
    if not m or not n:
        return None
    counts = np.full(m, n)
    if below is not None:
        i, j = here.rows.indices()[rows], here.cols.indices()[cols]
        counts = np.searchsorted(j, i - below, "right")
    return (Stairs(rows, cols, counts), Stairs(their_rows, their_cols, counts)) if counts.any() else None


def _apart(one: IndexSet, other: IndexSet) -> bool:
    """Whether one ends before the other begins, or has nothing: of many ranks' blocks most do."""
    return not (one.starts.size and other.starts.size and one.starts[0] < other.stops[-1] and other.starts[0] < one.stops[-1])


def whole(block: Block) -> Stairs:
    """A block's own part on or below the diagonal."""
    i, j = block.rows.indices(), block.cols.indices()
    return Stairs(slice(0, len(i)), slice(0, len(j)), np.searchsorted(j, i, "right"))


def pack(xp: Any, parts: Sequence[tuple[Any, Stairs]], flat: Any) -> None:
    """The stairs of some arrays, one after the other, into a one-dimensional array."""
    for x, stairs in parts:
        for piece in stairs.pieces():
            front, flat = _front(flat, piece.shape)
            xp.copy(front, piece.of(xp, x))


def unpack(xp: Any, flat: Any, x: Any, stairs: Stairs, beta: complex = 0) -> Any:
    """The reverse: the stairs of x are multiplied by beta and added to; gives the rest of flat."""
    for piece in stairs.pieces():
        front, flat = _front(flat, piece.shape)
        piece.write(xp, x, beta, front)
    return flat


def _front(flat: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The first elements as an array of a shape, and the rest."""
    size = prod(shape)
    return flat[:size].reshape(*shape), flat[size:]
