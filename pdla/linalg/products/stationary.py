"""C-stationary: each rank computes its own block of C's triangle, and fetches the rows of A for its rows and columns.

C is not redistributed, as in ScaLAPACK. The layout determines the balance of work. In a Cyclic
layout with short blocks, about half of each rank's block is in the triangle. In 2-D blocks, most
ranks' blocks are all in the triangle, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pdla.indices import IndexSet
from pdla.layout import Layout
from pdla.linalg.products.trapezoid import Block, find_triangle


@dataclass(frozen=True)
class Stationary:
    """C's layout on a grid of these (axis, size). A place is a rank's number in the grid, in C order of coordinates."""

    layout: Layout
    sizes: tuple[tuple[str, int], ...]
    c = 1  # parts of k

    def _find_block(self, n: int, place: int) -> Block:
        numbers = np.unravel_index(place, [size for _, size in self.sizes])
        coords = {axis: int(i) for (axis, _), i in zip(self.sizes, numbers, strict=True)}
        return Block(*self.layout.indices((n, n), dict(self.sizes), coords))

    def rows(self, n: int, place: int) -> IndexSet:
        """The rows of A that a place needs."""
        (tile,) = self.tiles(n, place)
        indices = np.union1d(tile.rows.indices(), tile.cols.indices())
        return IndexSet(indices, indices + 1).merge()

    def tiles(self, n: int, place: int) -> list[Block]:
        """The one tile of a place: its block of C, without rows and columns that are all above the diagonal."""
        block = self._find_block(n, place)
        counts = find_triangle(block).counts
        rows = IndexSet.interval(int(np.searchsorted(counts, 0, "right")), len(counts))
        cols = IndexSet.interval(0, int(counts.max(initial=0)))
        return [Block(block.rows.select(rows), block.cols.select(cols))]

    def list_blocks(self, n: int, sender: int, receiver: int, target: Block) -> list[tuple[int, Block]]:
        """The sender's numbered tiles, for itself only: see DifferenceCover.list_blocks."""
        return [(0, tile) for tile in self.tiles(n, sender)] if sender == receiver else []

    def find_receivers(self, n: int, rows: IndexSet) -> range:
        """The places that may need some of these rows of A."""
        return self._list_places()

    def find_senders(self, n: int, target: Block) -> range:
        """The places that may send a tile to another place: none."""
        return range(0)

    def _list_places(self) -> range:
        return range(int(np.prod([size for _, size in self.sizes])))

    def part(self, n: int) -> int:
        """The most elements of the triangle that any rank holds."""
        return max(find_triangle(tile).size for place in self._list_places() for tile in self.tiles(n, place))

    def flops(self, n: int, k: int) -> float:
        """The most multiplications and additions of any rank."""
        return 2 * self.part(n) * k

    def words(self, n: int, k: int) -> float:
        """The most words that any rank receives, if it holds none of the rows of A that it needs."""
        return max(len(self.rows(n, place)) for place in self._list_places()) * k
