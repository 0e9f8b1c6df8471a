"""Distribute the tiles of a triangle to any number of ranks, with equal work and equally few rows of A.

P = v c ranks. The triangle's rows are cut into v blocks, k into c parts. The blocks form a circle. A
ruler has w marks, with two marks at every distance from 1 to v/2. The ruler of rank (r, l) starts
at block r. The rank receives the row blocks under the marks, and part l of k. For each distance the rank
multiplies the two blocks under one pair of marks. Thus every pair of blocks is multiplied once in
each part of k. A rank multiplies about v/2 of the v (v + 1) / 2 tiles. It needs only w of the v row
blocks, about sqrt(1.5 v).

v = 1 cuts k alone: every rank has addends of the whole triangle. c = 1 cuts the triangle alone.
Rulers: Wichmann, J. London Math. Soc. 38 (1963). Lower bound of words: Al Daas, Ballard, Grigori,
Kumar, Rouse, SPAA 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, combinations, count

import numpy as np

from pdla.cuts import Cyclic, block_bounds
from pdla.errors import ShapeError
from pdla.indices import IndexSet, unique
from pdla.linalg.products.trapezoid import Block


def make_wichmann(r: int, s: int) -> tuple[int, ...]:
    """Make a ruler of 4 r + s + 3 marks and length 4 r (r + s + 2) + 3 (s + 1), with two marks at every distance."""
    gaps = [1] * r + [r + 1] + [2 * r + 1] * r + [4 * r + 3] * s + [2 * r + 2] * (r + 1) + [1] * r
    return tuple(accumulate(gaps, initial=0))


@lru_cache(maxsize=1024)
def find_ruler(length: int) -> tuple[int, ...]:
    """Few marks, two of them at every distance from 1 to `length`."""
    if length < 2:
        return (0, 1)[: length + 1]
    sizes = ((r, s) for marks in count(3) for r in range((marks - 3) // 4 + 1) for s in [marks - 3 - 4 * r])
    return next(make_wichmann(r, s) for r, s in sizes if 4 * r * (r + s + 2) + 3 * (s + 1) >= length)


@lru_cache(maxsize=1024)
def find_mark_pairs(v: int) -> dict[int, tuple[int, int]]:
    """A pair of marks for each distance on a circle of v blocks."""
    return {b - a: (a, b) for a, b in combinations(find_ruler(v // 2), 2) if b - a <= v // 2}


@dataclass(frozen=True)
class DifferenceCover:
    """v row blocks and c parts of k on v c places. Place r c + l is (r, l); a place is a rank's number in the grid."""

    v: int
    c: int

    def list_row_blocks(self, place: int) -> list[int]:
        """The row blocks that a place receives, ascending."""
        r = place // self.c
        return sorted({(r + mark) % self.v for mark in find_ruler(self.v // 2)})

    def rows(self, n: int, place: int) -> IndexSet:
        """The rows of A that a place receives."""
        bounds = np.array([block_bounds(n, self.v, block) for block in self.list_row_blocks(place)])
        starts, stops = bounds[bounds[:, 0] < bounds[:, 1]].T
        return IndexSet(starts, stops).merge()

    def tiles(self, n: int, place: int) -> list[Block]:
        """The tiles of the n x n triangle that a place multiplies: one on the diagonal, and one for each distance."""
        return [self._cut_tile(n, place, a, b) for a, b in _list_mark_pairs(self.v).T.tolist()]

    def _cut_tile(self, n: int, place: int, a: int, b: int) -> Block:
        """The tile of the two row blocks under two of the place's marks; on or below the diagonal."""
        v = self.v
        first, second = (place // self.c + a) % v, (place // self.c + b) % v
        rows, cols = _cut_block(n, v, max(first, second)), _cut_block(n, v, min(first, second))
        if 2 * (b - a) == v:  # two places have this pair: each multiplies half of the tile's rows
            rows = rows.select(IndexSet.interval(*block_bounds(len(rows), 2, int(first > second))))
        return Block(rows, cols)

    def sums(self, n: int, place: int) -> list[Block]:
        """The parts of its tiles that a place has after the sum over the c parts of k: every c-th row of each tile."""
        return [self._cut_sum(tile, place) for tile in self.tiles(n, place)]

    def _cut_sum(self, tile: Block, place: int) -> Block:
        return Block(tile.rows.select(Cyclic("", 1).share(len(tile.rows), self.c, place % self.c)), tile.cols)

    def list_blocks(self, n: int, sender: int, receiver: int, target: Block) -> list[tuple[int, Block]]:
        """The blocks of C that a sender has at the end, with their numbers in `sums`.

        Only blocks that may overlap the receiver's target are listed: on many ranks they are few.
        """
        marks, ends = _list_mark_pairs(self.v), _list_bounds(n, self.v)
        first, second = (sender // self.c + marks) % self.v
        high, low = np.maximum(first, second), np.minimum(first, second)
        overlaps = _intersect(ends, high, target.rows) & _intersect(ends, low, target.cols)
        numbers = np.flatnonzero(overlaps).tolist()
        return [(i, self._cut_sum(self._cut_tile(n, sender, *marks[:, i].tolist()), sender)) for i in numbers]

    def find_receivers(self, n: int, rows: IndexSet) -> list[int]:
        """The places that receive some of these rows of A, each for the first part of k."""
        blocks = np.flatnonzero(_intersect(_list_bounds(n, self.v), np.arange(self.v), rows))
        zeros = (blocks[:, None] - np.array(find_ruler(self.v // 2))) % self.v
        return (unique(zeros) * self.c).tolist()

    def find_senders(self, n: int, target: Block) -> list[int]:
        """The places whose tiles may overlap a target block, each for the first part of k."""
        blocks, ends = np.arange(self.v), _list_bounds(n, self.v)
        high, low = (np.flatnonzero(_intersect(ends, blocks, indices)) for indices in (target.rows, target.cols))
        zeros = np.concatenate([self._find_zeros(high[:, None], low), self._find_zeros(low, high[:, None])])
        return (unique(zeros) * self.c).tolist()

    def _find_zeros(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """The zeros of the rulers that have a pair of marks over two row blocks, the first mark over the first block.

        Only pairs count whose second block is at most half a circle after the first.
        """
        distance = (second - first) % self.v
        valid = 2 * distance <= self.v
        return ((first - _list_first_marks(self.v)[np.where(valid, distance, 0)]) % self.v)[valid]

    def flops(self, n: int, k: int) -> float:
        """Multiplications and additions of each rank."""
        return n * (n + 1) * k / self.v / self.c

    def words(self, n: int, k: int) -> float:
        """Words that a rank receives: its row blocks of A, as if it held none, and the addends of its sums.

        Exact if v c divides n and c divides k; for c > 1 the words of the rank that sums the longest
        rows.
        """
        b, rows = n / self.v, n / self.v / self.c
        square = (self.v - 1) / 2 * rows * b
        triangle = self.c * rows * (rows + 1) / 2
        return len(find_ruler(self.v // 2)) * b * k / self.c + (self.c - 1) * (square + triangle)


@lru_cache(maxsize=64)
def _list_mark_pairs(v: int) -> np.ndarray:
    """The pairs of marks of a place's tiles, as columns: (0, 0) for the tile on the diagonal, then a pair for each distance."""
    return np.array([(0, 0), *find_mark_pairs(v).values()]).T


@lru_cache(maxsize=64)
def _list_first_marks(v: int) -> np.ndarray:
    """The first of the pair of marks at each distance, from 0."""
    return np.array([0, *(find_mark_pairs(v)[distance][0] for distance in range(1, v // 2 + 1))])


@lru_cache(maxsize=64)
def _list_bounds(n: int, v: int) -> np.ndarray:
    """The first row of each row block, then the end of the last."""
    return np.array([0, *(block_bounds(n, v, block)[1] for block in range(v))])


def _intersect(ends: np.ndarray, blocks: np.ndarray, indices: IndexSet) -> np.ndarray:
    """Whether each of these row blocks overlaps the indices.

    A run overlaps a block if it ends after the block's start, and starts before the block's end.
    """
    return np.searchsorted(indices.stops, ends[blocks], "right") < np.searchsorted(indices.starts, ends[blocks + 1], "left")


def _cut_block(n: int, v: int, block: int) -> IndexSet:
    return IndexSet.interval(*block_bounds(n, v, block))


@lru_cache(maxsize=1024)
def list_covers(ranks: int) -> tuple[DifferenceCover, ...]:
    """Every factorization of the number of ranks as v c, fewest row blocks first."""
    return tuple(DifferenceCover(v, ranks // v) for v in range(1, ranks + 1) if ranks % v == 0)


def syrk_words(n: int, k: int, P: int) -> float:
    """Words that a rank of P receives for one triangle of A A^T, at least.

    Parameters
    ----------
    n, k : int
        Rows and columns of A.
    P : int
        Number of ranks.

    Returns
    -------
    float
        For ranks that hold nothing of A, and a C that is not redistributed.

    Raises
    ------
    ShapeError
        For a negative size, or P < 1.

    Notes
    -----
    Subtract the words of its row blocks of A that a rank already holds. Add those of its part of
    the triangle, which is sent to C's layout.

    Examples
    --------
    >>> pdla.syrk_words(700, 700, 7)
    210000.0
    """
    if P < 1 or min(n, k) < 0:
        raise ShapeError(f"n={n}, k={k}, P={P}: sizes are 0 or more, ranks 1 or more")
    return min(cover.words(n, k) for cover in list_covers(P))
