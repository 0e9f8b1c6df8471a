"""C stays: each rank multiplies what it holds of C's triangle, for which it fetches its rows and its columns of A.

Nothing of C moves. The work is as even as the layout: half of each block where C is cut in turn (Cyclic), all or nothing of it
in 2-D blocks. As ScaLAPACK does it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pdla.indices import IndexSet
from pdla.layout import Layout
from pdla.linalg.stairs import Block, whole


@dataclass(frozen=True)
class Stay:
    """The triangle of an n x n matrix in a layout on a grid of these axes; place: the number of a coordinate in C order."""

    layout: Layout
    sizes: tuple[tuple[str, int], ...]
    c = 1  # parts of k

    def _block(self, n: int, place: int) -> Block:
        where = np.unravel_index(place, [size for _, size in self.sizes])
        coords = {axis: int(i) for (axis, _), i in zip(self.sizes, where, strict=True)}
        return Block(*self.layout.indices((n, n), dict(self.sizes), coords))

    def rows(self, n: int, place: int) -> IndexSet:
        """The rows of A that a place needs."""
        (tile,) = self.tiles(n, place)
        indices = np.union1d(tile.rows.indices(), tile.cols.indices())
        return IndexSet(indices, indices + 1).merged()

    def tiles(self, n: int, place: int) -> list[Block]:
        """The block of C at a place, without the rows and columns that are all above the diagonal."""
        block = self._block(n, place)
        counts = whole(block).counts
        rows = IndexSet.interval(int(np.searchsorted(counts, 0, "right")), len(counts))
        cols = IndexSet.interval(0, int(counts.max(initial=0)))
        return [Block(block.rows.select(rows), block.cols.select(cols))]

    def gives(self, n: int, giver: int, taker: int, wanted: Block) -> list[tuple[int, Block]]:
        return [(0, tile) for tile in self.tiles(n, giver)] if giver == taker else []

    def _places(self) -> range:
        return range(int(np.prod([size for _, size in self.sizes])))

    def part(self, n: int) -> int:
        """Elements of the triangle that the rank with most holds."""
        return max(whole(tile).size for place in self._places() for tile in self.tiles(n, place))

    def flops(self, n: int, k: int) -> float:
        return 2 * self.part(n) * k

    def words(self, n: int, k: int) -> float:
        """Words that the rank with most receives, if it holds none of its rows and columns of A."""
        return max(len(self.rows(n, place)) for place in self._places()) * k
