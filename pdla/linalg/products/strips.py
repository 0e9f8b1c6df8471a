"""Strips: each rank computes some rows of the triangle, fewer the longer they are, so that all ranks have the same work.

A strip needs all rows of A up to its own last one. Ranks of one node read A in place, so that no
words are sent. A strip's products are larger than those of the tiles of difference_cover.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from pdla.indices import IndexSet
from pdla.linalg.products.trapezoid import Block, find_triangle


@dataclass(frozen=True)
class Strips:
    """v strips of rows on v places."""

    v: int
    c = 1  # parts of k

    def _find_ends(self, n: int, place: int) -> tuple[int, int]:
        """Find the strip's first row, and the row after its last. The first i rows have i (i + 1) / 2 elements."""
        first, last = (round(n * sqrt(i / self.v)) for i in (place, place + 1))
        return first, last

    def rows(self, n: int, place: int) -> IndexSet:
        """The rows of A that a place needs: all up to the strip's last row."""
        return self.tiles(n, place)[0].cols

    def tiles(self, n: int, place: int) -> list[Block]:
        """The one tile of a place: its strip, as wide as its last row up to the diagonal."""
        first, last = self._find_ends(n, place)
        return [Block(IndexSet.interval(first, last), IndexSet.interval(0, last if first < last else 0))]

    def list_blocks(self, n: int, sender: int, receiver: int, target: Block) -> list[tuple[int, Block]]:
        """The sender's numbered tiles: see DifferenceCover.list_blocks."""
        return [(0, tile) for tile in self.tiles(n, sender)]

    def find_receivers(self, n: int, rows: IndexSet) -> range:
        """The places that may need some of these rows of A."""
        return range(self.v)

    def find_senders(self, n: int, target: Block) -> range:
        """The places whose tiles may overlap a target block."""
        return range(self.v)

    def flops(self, n: int, k: int) -> float:
        """The most multiplications and additions of any rank."""
        return 2 * k * max(find_triangle(tile).size for place in range(self.v) for tile in self.tiles(n, place))
