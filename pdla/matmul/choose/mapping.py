"""The place of each rank on a box's grid, so that most elements are already on the rank that needs them.

A rank holds, on the user's grid, some elements that a place needs. Their number is the overlap of
rows times that of columns. The layouts give all of these numbers at once, without a message. The
best placing is a linear assignment problem. On several nodes the problem is solved for whole nodes
first, which keeps places of one node together, and then for the ranks of each node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from pdla.cuts import Block, Cut
from pdla.grid import ProcessGrid
from pdla.indices import MOST, intersect, runs
from pdla.layout import Layout, Shape, axes_of, effective, shares

Nest = tuple[int, tuple[Cut, ...], tuple[int, ...]]  # a dimension's length, its cuts, and into how many parts each cuts


@dataclass(frozen=True)
class Place:
    """A grid without its communicator: axes, shape, the rank at each place in C order, and the number of ranks, idle ones too.

    order_digest  the grid's digest of `order`, which may be a million ranks: places are compared by it
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    order: np.ndarray = field(compare=False)
    ranks: int
    order_digest: bytes

    @staticmethod
    def of(grid: ProcessGrid) -> Place:
        return Place(grid.axes, grid.shape, grid.ranks.ravel(), grid.comm.size, grid.order_digest)

    def has_order(self, axes: tuple[str, ...], shape: tuple[int, ...], order: np.ndarray) -> bool:
        """Whether the grid has these axes, this shape, and its ranks in this order."""
        return self.axes == axes and self.shape == shape and (order is self.order or np.array_equal(self.order, order))

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.axes, self.shape, strict=True))


@dataclass(frozen=True)
class Side:
    """A matrix on a grid: its shape and layout, and the grid's axes and shape."""

    shape: Shape
    layout: Layout
    axes: tuple[str, ...]
    grid: tuple[int, ...]

    @cached_property
    def nests(self) -> tuple[Nest, Nest]:
        """How rows and columns are cut, with axes named by their place in the nest: so equal cuts compare equal."""
        sizes, (m, n) = dict(zip(self.axes, self.grid, strict=True)), self.shape
        return _name_by_place(m, self.layout.rows, sizes), _name_by_place(n, self.layout.cols, sizes)

    @cached_property
    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """For rows and for columns: the number of the share that each place of the grid holds, flat."""
        return self._number_shares(axes_of(self.layout.rows)), self._number_shares(axes_of(self.layout.cols))

    def _number_shares(self, along: tuple[str, ...]) -> np.ndarray:
        number = np.zeros(self.grid, np.int64)
        for axis in along:
            i = self.axes.index(axis)
            number = number * self.grid[i] + np.arange(self.grid[i]).reshape((-1, *[1] * (len(self.grid) - 1 - i)))
        return number.ravel()

    @cached_property
    def elements(self) -> np.ndarray:
        """Elements of the block at each place of the grid."""
        return _count_lengths(self.nests[0])[self.numbers[0]] * _count_lengths(self.nests[1])[self.numbers[1]]


def _name_by_place(n: int, nest: tuple[Cut, ...], sizes: Mapping[str, int]) -> Nest:
    nest = effective(nest, sizes)
    return n, _number_cuts(nest), tuple(map(sizes.__getitem__, axes_of(nest)))


@lru_cache(maxsize=1024)
def _number_cuts(nest: tuple[Cut, ...]) -> tuple[Cut, ...]:
    """Name the axis of each cut by its number in the nest."""
    return tuple([replace(cut, axis=str(i)) for i, cut in enumerate(nest)])


@lru_cache(maxsize=1024)
def _find_runs(nest: Nest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the runs of all shares of a dimension, as `indices.runs` does: starts, stops, and the number of each run's share."""
    n, cuts, parts = nest
    if n < MOST // 2 and all(isinstance(cut, Block) for cut in cuts):
        return _find_runs_of_blocks(n, cuts, parts)  # type: ignore[arg-type]
    axes = axes_of(cuts)
    return runs(shares(n, cuts, dict(zip(axes, parts, strict=True)), axes, {}))


def _find_runs_of_blocks(n: int, cuts: tuple[Block, ...], parts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find these runs for blocks within blocks, all at once: `Block._bounds` for arrays."""
    starts, sizes = np.zeros(1, np.int64), np.array([n])
    for cut, p in zip(cuts, parts, strict=True):
        units, counts = -(-sizes // cut.unit)[:, None], np.arange(p + 1)
        ends = np.minimum((units // p * counts + np.minimum(counts, units % p)) * cut.unit, sizes[:, None])
        starts, sizes = (starts[:, None] + ends[:, :-1]).ravel(), np.diff(ends).ravel()
    number = np.flatnonzero(sizes)
    return starts[number], starts[number] + sizes[number], number


@lru_cache(maxsize=1024)
def _count_lengths(nest: Nest) -> np.ndarray:
    """Count the indices of each share of a dimension."""
    starts, stops, number = _find_runs(nest)
    lengths = np.zeros(prod(nest[2]), np.int64)
    np.add.at(lengths, number, stops - starts)
    return lengths


@dataclass(frozen=True)
class Overlap:
    """How many indices each of the user's shares of a dimension and each native share have in common.

    Only pairs with common indices are stored: of thousands of shares most pairs have none.

    shape  the user's shares x the native shares
    pairs  the places of these pairs in this shape, flat and ascending; the last entry is a place after all
    sizes  how many indices these pairs have in common; the last entry is 0
    """

    shape: tuple[int, int]
    pairs: np.ndarray
    sizes: np.ndarray

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(user: Nest, native: Nest) -> Overlap:
        (user_starts, user_stops, held), (native_starts, native_stops, needed) = _find_runs(user), _find_runs(native)
        i, j, low, high = intersect(user_starts, user_stops, native_starts, native_stops)
        shape = prod(user[2]), prod(native[2])
        pairs, numbers = np.unique(np.append(held[i] * shape[1] + needed[j], prod(shape)), return_inverse=True)
        sizes = np.zeros(len(pairs), np.int64)
        np.add.at(sizes, numbers[:-1], high - low)
        return Overlap(shape, pairs, sizes)

    def __call__(self, held: np.ndarray, needed: np.ndarray) -> np.ndarray:
        """Count the indices that the user's shares and the native shares of these numbers have in common, elementwise."""
        places = held * self.shape[1] + needed
        found = np.searchsorted(self.pairs, places)
        return np.where(self.pairs[found] == places, self.sizes[found], 0)

    @cached_property
    def partners(self) -> tuple[np.ndarray, np.ndarray]:
        """For each user's share, the number of native shares with common indices; and the reverse."""
        held, needed = np.divmod(self.pairs[:-1], self.shape[1])
        return np.bincount(held, minlength=self.shape[0]), np.bincount(needed, minlength=self.shape[1])

    def table(self) -> np.ndarray:
        """Tabulate the overlaps of all shares."""
        return self(np.arange(self.shape[0])[:, None], np.arange(self.shape[1]))


@dataclass(frozen=True)
class Holding:
    """How many elements each rank holds of the block at each place of the native grid.

    order  the rank at each place of the user's grid
    ranks  the number of ranks, idle ones too
    """

    user: Side
    native: Side
    order: np.ndarray
    ranks: int

    @cached_property
    def _overlaps(self) -> tuple[Overlap, Overlap]:
        """The overlaps of rows, and of columns."""
        (rows, cols), (native_rows, native_cols) = self.user.nests, self.native.nests
        return Overlap.of(rows, native_rows), Overlap.of(cols, native_cols)

    @property
    def elements(self) -> np.ndarray:
        """Ranks x places; 0 for a rank that is idle on the user's grid."""
        held = np.zeros((self.ranks, len(self.native.elements)), np.int64)
        numbers = zip(self._overlaps, self.user.numbers, self.native.numbers, strict=True)
        rows, cols = (overlap.table()[np.ix_(held, needed)] for overlap, held, needed in numbers)
        held[self.order] = rows * cols
        return held

    @cached_property
    def _places(self) -> np.ndarray:
        """Each rank's place on the user's grid, or -1 if it is idle; the last -1 is for rank -1, which is no rank."""
        places = np.full(self.ranks + 1, -1)
        places[self.order] = np.arange(len(self.order))
        return places

    def _count_held(self, ranks: np.ndarray) -> np.ndarray:
        """Count the elements that given ranks hold of the blocks at the native grid's places.

        Each place has one rank, or a row of ranks; rank -1 is no rank, and holds nothing.
        """
        places = self._places[ranks]
        by_place, overlaps = (slice(None), *[None] * (ranks.ndim - 1)), []
        for overlap, held, needed in zip(self._overlaps, self.user.numbers, self.native.numbers, strict=True):
            overlaps.append(overlap(held[places], needed[by_place]))
        return np.where(places < 0, 0, overlaps[0] * overlaps[1])

    def count_received(self, order: np.ndarray) -> np.ndarray:
        """Count the elements that each rank receives on the way to the native layout."""
        words = np.zeros(self.ranks, np.int64)
        words[order] = self.native.elements - self._count_held(order)
        return words

    def count_sent(self, order: np.ndarray) -> np.ndarray:
        """Count the elements that each rank sends on the way to the native layout, if ranks with copies share the work evenly."""
        words = np.zeros(self.ranks)
        words[self.order] = self.user.elements * (self.native.elements.sum() / max(1, self.user.elements.sum()))
        words[order] -= self._count_held(order)
        return np.maximum(words, 0)

    def count_returned(self, order: np.ndarray) -> np.ndarray:
        """Count the elements that each rank receives on the way back to the user's layout."""
        words = np.zeros(self.ranks, np.int64)
        words[self.order] = self.user.elements
        words[order] -= self._count_held(order)
        return words

    def count_messages(self, order: np.ndarray, back: bool) -> np.ndarray:
        """Count the messages that each rank receives on the way to the native layout, or back from it.

        A rank receives one for each other rank's share that has elements of its block.
        """
        to, side, ranks = (0, self.user, self.order) if back else (1, self.native, order)
        received, (by_rows, by_cols) = np.zeros(self.ranks, np.int64), self._overlaps
        received[ranks] = by_rows.partners[to][side.numbers[0]] * by_cols.partners[to][side.numbers[1]]
        received[order] -= self._count_held(order) > 0
        return received

    def count_far(self, order: np.ndarray, homes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count the elements that each rank receives from other nodes on the way to the native layout, and on the way back.

        homes  the node of each rank, numbered from 0
        """
        neighbours = _list_neighbours(homes)[homes[order]]
        held = self._count_held(neighbours)
        forth, back = np.zeros(self.ranks), np.zeros(self.ranks)
        forth[order] = np.maximum(self.native.elements - held.sum(axis=1), 0)  # below 0 if several ranks of a node hold copies
        back[self.order] = self.user.elements
        back -= np.bincount(neighbours[neighbours >= 0], held[neighbours >= 0], self.ranks)
        return forth, np.maximum(back, 0)


def _list_neighbours(homes: np.ndarray) -> np.ndarray:
    """List the ranks of each node, one row for each; filled up with -1 where a node has fewer than others."""
    counts = np.bincount(homes)
    rows = np.full((len(counts), counts.max()), -1)
    rows[np.arange(counts.max()) < counts[:, None]] = np.argsort(homes, kind="stable")
    return rows


def sum_held(holdings: Sequence[Holding]) -> np.ndarray:
    """Count the elements, of several matrices, that each rank holds of the blocks at each place: ranks x places."""
    return np.add.reduce([matrix.elements for matrix in holdings])


def bound_held(total: np.ndarray) -> int:
    """Bound from above the elements of `sum_held` that need not move, for any placing of ranks."""
    return int(min(total.max(axis=0).sum(), total.max(axis=1).sum()))


def relabel(total: np.ndarray, order: np.ndarray, homes: np.ndarray | None = None) -> np.ndarray:
    """Place ranks so that the fewest elements move; return the rank at each place, or `order` itself if none is better.

    total  see `sum_held`
    homes  the node of each rank, numbered from 0: the fewest elements leave their node, then the fewest their rank;
           places that share a node in `order` share one again
    """
    if total[order, np.arange(len(order))].sum() == bound_held(total):
        return order
    if homes is None:
        return _assign(total)
    tiles = [np.flatnonzero(homes[order] == node) for node in np.unique(homes[order])]
    nodes = [np.flatnonzero(homes == node) for node in np.unique(homes)]
    never = -1 - total.sum()
    stay = [[total[np.ix_(ranks, tile)].sum() if len(ranks) >= len(tile) else never for tile in tiles] for ranks in nodes]
    placed = np.empty_like(order)
    for tile, node in zip(tiles, _assign(np.array(stay)), strict=True):
        placed[tile] = nodes[node][_assign(total[np.ix_(nodes[node], tile)])]
    return placed


def _assign(worth: np.ndarray) -> np.ndarray:
    """Assign a row to each column of `worth`, no row twice, so that the sum of these elements is largest."""
    from scipy.optimize import linear_sum_assignment

    _, rows = linear_sum_assignment(worth.T, maximize=True)  # in order of columns, as none goes without a row
    return rows
