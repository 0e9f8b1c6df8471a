"""Strips: each rank multiplies some rows of the triangle, so many that all have the same work.

A strip needs all rows of A up to its own last one: where the ranks of a node read A in place, that is no more to move, and a strip
is multiplied in larger products than tiles are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from pdla.indices import IndexSet
from pdla.linalg.stairs import Block, whole


@dataclass(frozen=True)
class Strips:
    """v strips of rows on v places."""

    v: int
    c = 1  # parts of k

    def _ends(self, n: int, place: int) -> tuple[int, int]:
        """Of the rows: the triangle of the first i has i (i + 1) / 2 elements."""
        first, last = (round(n * sqrt(i / self.v)) for i in (place, place + 1))
        return first, last

    def rows(self, n: int, place: int) -> IndexSet:
        """The rows of A that a place needs."""
        return self.tiles(n, place)[0].cols

    def tiles(self, n: int, place: int) -> list[Block]:
        """A place's strip, up to the diagonal."""
        first, last = self._ends(n, place)
        return [Block(IndexSet.interval(first, last), IndexSet.interval(0, last if first < last else 0))]

    def gives(self, n: int, giver: int, taker: int, wanted: Block) -> list[tuple[int, Block]]:
        return [(0, tile) for tile in self.tiles(n, giver)]

    def flops(self, n: int, k: int) -> float:
        """Multiplications and additions of the rank with most."""
        return 2 * k * max(whole(tile).size for place in range(self.v) for tile in self.tiles(n, place))
