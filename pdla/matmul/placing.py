"""Which rank takes which place of a box's grid: ranks are placed so that most elements are where they are needed already.

How many elements a rank holds, on the user's grid, of what a place needs is a product of two overlaps, of rows and of columns; all
are found at once from the layouts, without a message. The best placing is a linear assignment problem. Where there are several
nodes it is solved for whole nodes first, so that places on one node stay together, and then for the ranks of each node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from pdla.cuts import Cut
from pdla.grid import ProcessGrid
from pdla.indices import IndexSet, intersect, runs
from pdla.layout import Layout, Shape, axes_of, effective, shares

Nest = tuple[int, tuple[Cut, ...], tuple[int, ...]]  # a dimension's length, its cuts, and into how many parts each cuts


@dataclass(frozen=True)
class Place:
    """A grid without its communicator: axes, shape, the rank at each place in C order, and the ranks there are, idle ones too.

    placing  what stands for `order`, which may be a million ranks, where places are compared: the grid's digest of it
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    order: np.ndarray = field(compare=False)
    ranks: int
    placing: bytes

    @staticmethod
    def of(grid: ProcessGrid) -> Place:
        return Place(grid.axes, grid.shape, grid.ranks.ravel(), grid.comm.size, grid.placing)

    def filled_so(self, axes: tuple[str, ...], shape: tuple[int, ...], order: np.ndarray) -> bool:
        """Whether it is this grid, with its ranks in this order."""
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

    def _nest(self, dimension: int) -> tuple[Cut, ...]:
        return (self.layout.rows, self.layout.cols)[dimension]

    @cached_property
    def nests(self) -> list[Nest]:
        """How rows and columns are cut, with axes named by their place in the nest: so equal cuts are equal whatever their axes."""
        return [self._named_by_place(n, self._nest(d)) for d, n in enumerate(self.shape)]

    def _named_by_place(self, n: int, nest: tuple[Cut, ...]) -> Nest:
        sizes = dict(zip(self.axes, self.grid, strict=True))
        nest = effective(nest, sizes)
        return n, tuple(replace(cut, axis=str(i)) for i, cut in enumerate(nest)), tuple(sizes[cut.axis] for cut in nest)

    @cached_property
    def numbers(self) -> list[np.ndarray]:
        """For rows and for columns: the number of the share that each place of the grid holds, flat."""
        return [self._numbers(d) for d in (0, 1)]

    def _numbers(self, dimension: int) -> np.ndarray:
        number = np.zeros(self.grid, np.int64)
        for axis in axes_of(self._nest(dimension)):
            i = self.axes.index(axis)
            along = np.arange(self.grid[i]).reshape([-1 if d == i else 1 for d in range(len(self.grid))])
            number = number * self.grid[i] + along
        return number.ravel()

    @cached_property
    def elements(self) -> np.ndarray:
        """Elements of the block at each place of the grid."""
        rows, cols = (np.array([len(share) for share in _shares(nest)]) for nest in self.nests)
        return rows[self.numbers[0]] * cols[self.numbers[1]]


@lru_cache(maxsize=1024)
def _shares(nest: Nest) -> list[IndexSet]:
    """All shares of a dimension, by their numbers."""
    n, cuts, parts = nest
    axes = axes_of(cuts)
    return shares(n, cuts, dict(zip(axes, parts, strict=True)), axes, {})


@dataclass(frozen=True)
class Overlap:
    """How many indices each of the user's shares of a dimension and each native share have in common. Only pairs that have any are
    kept: of thousands of shares most pairs have none.

    shape  the user's shares x the native shares
    pairs  the places in this shape, flat and ascending, of the pairs that have any; last, one that lies past all
    sizes  how many indices these pairs have in common; last, 0
    """

    shape: tuple[int, int]
    pairs: np.ndarray
    sizes: np.ndarray

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(user: Nest, native: Nest) -> Overlap:
        (starts, stops, held), (begins, ends, needed) = runs(_shares(user)), runs(_shares(native))
        i, j, low, high = intersect(starts, stops, begins, ends)
        shape = prod(user[2]), prod(native[2])
        pairs, at = np.unique(np.append(held[i] * shape[1] + needed[j], prod(shape)), return_inverse=True)
        sizes = np.zeros(len(pairs), np.int64)
        np.add.at(sizes, at[:-1], high - low)
        return Overlap(shape, pairs, sizes)

    def __call__(self, held: np.ndarray, needed: np.ndarray) -> np.ndarray:
        """The indices that the user's shares and the native shares of these numbers have in common, elementwise."""
        wanted = held * self.shape[1] + needed
        at = np.searchsorted(self.pairs, wanted)
        return np.where(self.pairs[at] == wanted, self.sizes[at], 0)

    @cached_property
    def met(self) -> tuple[np.ndarray, np.ndarray]:
        """With how many native shares each of the user's has indices in common; and the other way round."""
        held, needed = np.divmod(self.pairs[:-1], self.shape[1])
        return np.bincount(held, minlength=self.shape[0]), np.bincount(needed, minlength=self.shape[1])

    def table(self) -> np.ndarray:
        """The same for all shares."""
        return self(np.arange(self.shape[0])[:, None], np.arange(self.shape[1]))


@dataclass(frozen=True)
class Kept:
    """How many elements each rank holds of what each place of the native grid needs.

    order  the rank at each place of the user's grid;  ranks: how many there are, idle ones too
    """

    user: Side
    native: Side
    order: np.ndarray
    ranks: int

    @cached_property
    def _overlaps(self) -> list[Overlap]:
        """What rows have in common, and what columns have."""
        return [Overlap.of(user, native) for user, native in zip(self.user.nests, self.native.nests, strict=True)]

    @property
    def elements(self) -> np.ndarray:
        """Ranks x places; 0 for a rank that is idle on the user's grid."""
        kept = np.zeros((self.ranks, len(self.native.elements)), np.int64)
        numbers = zip(self._overlaps, self.user.numbers, self.native.numbers, strict=True)
        rows, cols = (overlap.table()[np.ix_(held, needed)] for overlap, held, needed in numbers)
        kept[self.order] = rows * cols
        return kept

    @cached_property
    def _places(self) -> np.ndarray:
        """Each rank's place on the user's grid, -1 for an idle rank; and at the end one more -1, for rank -1, which is nobody."""
        places = np.full(self.ranks + 1, -1)
        places[self.order] = np.arange(len(self.order))
        return places

    def _held(self, ranks: np.ndarray) -> np.ndarray:
        """Elements that given ranks hold of what the native grid's places need: for each place one rank, or a row of them; rank -1
        is nobody, and holds none."""
        at = self._places[ranks]
        by_place = (slice(None), *[None] * (ranks.ndim - 1))
        numbers = zip(self._overlaps, self.user.numbers, self.native.numbers, strict=True)
        rows, cols = (overlap(held[at], needed[by_place]) for overlap, held, needed in numbers)
        return np.where(at < 0, 0, rows * cols)

    def arriving(self, order: np.ndarray) -> np.ndarray:
        """Elements that each rank receives on the way to the native layout."""
        words = np.zeros(self.ranks, np.int64)
        words[order] = self.native.elements - self._held(order)
        return words

    def leaving(self, order: np.ndarray) -> np.ndarray:
        """Elements that each rank sends on the way to the native layout, if ranks that hold copies share that evenly."""
        words = np.zeros(self.ranks)
        words[self.order] = self.user.elements * (self.native.elements.sum() / max(1, self.user.elements.sum()))
        words[order] -= self._held(order)
        return np.maximum(words, 0)

    def returning(self, order: np.ndarray) -> np.ndarray:
        """Elements that each rank receives on the way back to the user's layout."""
        words = np.zeros(self.ranks, np.int64)
        words[self.order] = self.user.elements
        words[order] -= self._held(order)
        return words

    def messages(self, order: np.ndarray, back: bool) -> np.ndarray:
        """Messages that each rank receives on the way to the native layout, or back from it: one for each share that its block has
        elements in common with, its own left out."""
        to, side, ranks = (0, self.user, self.order) if back else (1, self.native, order)
        rows, cols = (overlap.met[to][numbers] for overlap, numbers in zip(self._overlaps, side.numbers, strict=True))
        received = np.zeros(self.ranks, np.int64)
        received[ranks] = rows * cols
        received[order] -= self._held(order) > 0
        return received

    def far(self, order: np.ndarray, homes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Elements that each rank receives from other nodes on the way to the native layout, and on the way back.

        homes  the node of each rank, numbered from 0
        """
        beside = _neighbours(homes)[homes[order]]
        held = self._held(beside)
        there, back = np.zeros(self.ranks), np.zeros(self.ranks)
        there[order] = np.maximum(self.native.elements - held.sum(axis=1), 0)  # below 0 where several on a node hold copies
        back[self.order] = self.user.elements
        back -= np.bincount(beside[beside >= 0], held[beside >= 0], self.ranks)
        return there, np.maximum(back, 0)


def _neighbours(homes: np.ndarray) -> np.ndarray:
    """The ranks of each node, one row for each; filled up with -1 where a node has fewer than others."""
    counts = np.bincount(homes)
    rows = np.full((len(counts), counts.max()), -1)
    rows[np.arange(counts.max()) < counts[:, None]] = np.argsort(homes, kind="stable")
    return rows


def kept_in_all(kept: Sequence[Kept]) -> np.ndarray:
    """How many elements of several matrices each rank holds of what each place needs: ranks x places."""
    return np.add.reduce([matrix.elements for matrix in kept])


def most_kept(total: np.ndarray) -> int:
    """Elements of `kept_in_all` that stay on their rank at most, whichever rank is put where."""
    return int(min(total.max(axis=0).sum(), total.max(axis=1).sum()))


def relabelled(total: np.ndarray, order: np.ndarray, homes: np.ndarray | None = None) -> np.ndarray:
    """The rank at each place, so that as many elements as possible stay on their rank; `order` itself where none is better.

    total  see `kept_in_all`
    homes  the node of each rank, numbered from 0; with it as many elements as possible stay on their node, then on their rank, and
           places that share a node in `order` share one again
    """
    if total[order, np.arange(len(order))].sum() == most_kept(total):
        return order
    if homes is None:
        return _assigned(total)
    tiles = [np.flatnonzero(homes[order] == node) for node in np.unique(homes[order])]
    nodes = [np.flatnonzero(homes == node) for node in np.unique(homes)]
    never = -1 - total.sum()
    stay = [[total[np.ix_(ranks, tile)].sum() if len(ranks) >= len(tile) else never for tile in tiles] for ranks in nodes]
    placed = np.empty_like(order)
    for tile, node in zip(tiles, _assigned(np.array(stay)), strict=True):
        placed[tile] = nodes[node][_assigned(total[np.ix_(nodes[node], tile)])]
    return placed


def _assigned(worth: np.ndarray) -> np.ndarray:
    """For each column of `worth` a row, no row twice, so that the sum of these elements is largest."""
    from scipy.optimize import linear_sum_assignment

    _, rows = linear_sum_assignment(worth.T, maximize=True)  # in order of columns, as none goes without a row
    return rows
