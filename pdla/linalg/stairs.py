"""Parts of a triangle: what a block has of the elements on or below the diagonal, in one array and in another.

Where a block meets another one, a row keeps its columns up to the diagonal: stairs. Rows that keep equally many are one
rectangle, so stairs far from the diagonal are one rectangle, and those on it one for each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from pdla.comm.ledger import buffer
from pdla.indices import IndexSet, Selection, some_of
from pdla.layout import Shape


@dataclass(frozen=True)
class Block:
    """Rows and columns of a matrix."""

    rows: IndexSet
    cols: IndexSet


@dataclass(frozen=True)
class Stairs:
    """Rows and columns of an array, of which row i keeps its first counts[i] columns."""

    rows: Selection
    cols: Selection
    counts: np.ndarray

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    def pieces(self) -> Iterator[tuple[Selection, Selection, Shape]]:
        """The rectangles that make them, top down: rows, columns, shape."""
        edges = np.flatnonzero(np.diff(self.counts)) + 1
        for lo, hi in pairwise((0, *edges.tolist(), len(self.counts))):
            if hi > lo and (n := int(self.counts[lo])):
                yield some_of(self.rows, lo, hi), some_of(self.cols, 0, n), (hi - lo, n)


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


def packed(xp: Any, parts: Sequence[tuple[Any, Stairs]], dtype: Any) -> Any:
    """The stairs of some arrays, one after the other, in a new one-dimensional array."""
    flat = buffer(xp, (sum(stairs.size for _, stairs in parts),), dtype)
    begin = 0
    for x, stairs in parts:
        for rows, cols, (m, n) in stairs.pieces():
            xp.copy(flat[begin : begin + m * n].reshape(m, n), xp.take(x, rows, cols))
            begin += m * n
    return flat


def unpack(xp: Any, flat: Any, x: Any, stairs: Stairs, beta: complex = 0) -> Any:
    """The reverse: the stairs of x are multiplied by beta and added to; gives the rest of flat."""
    for rows, cols, (m, n) in stairs.pieces():
        write(xp, x, rows, cols, beta, flat[: m * n].reshape(m, n))
        flat = flat[m * n :]
    return flat


def write(xp: Any, x: Any, rows: Selection, cols: Selection, beta: complex, source: Any) -> None:
    """x[rows, cols] = beta x[rows, cols] + source."""
    target = xp.take(x, rows, cols)
    xp.combine(target, beta, source)
    if not (isinstance(rows, slice) and isinstance(cols, slice)):
        xp.put(x, rows, cols, target)
