"""Which rank takes which place of a box's grid: the one that holds most of what the place needs already.

What a place of the grid and a rank of the user's grid have in common of a matrix is a product of two overlaps, of rows and
of columns; all of them are found at once from the layouts, without a message. The best assignment is a linear one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product

import numpy as np

from pdla.grid import ProcessGrid
from pdla.layout import Cut, Layout, Shape, axes_of, effective, share

Nest = tuple[int, tuple[Cut, ...], tuple[int, ...]]  # a dimension's length, its cuts, and into how many parts each cuts
FEW = 512  # ranks up to which an assignment is looked for: its time grows with their cube


@dataclass(frozen=True)
class Place:
    """A grid as numbers: its axes, and the rank at each place in C order; of `ranks` ranks in all."""

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    order: tuple[int, ...]
    ranks: int

    @staticmethod
    def of(grid: ProcessGrid) -> Place:
        return Place(grid.axes, grid.shape, tuple(grid.ranks.ravel().tolist()), grid.comm.size)

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.axes, self.shape, strict=True))


@dataclass(frozen=True)
class Side:
    """A matrix as it lies: shape, layout, and the grid's axes."""

    shape: Shape
    layout: Layout
    axes: tuple[str, ...]
    grid: tuple[int, ...]

    def _nest(self, dimension: int) -> tuple[Cut, ...]:
        return (self.layout.rows, self.layout.cols)[dimension]

    @cached_property
    def nests(self) -> list[Nest]:
        """How rows and columns are cut, whatever the axes are called."""
        return [self._named_by_place(n, self._nest(d)) for d, n in enumerate(self.shape)]

    def _named_by_place(self, n: int, nest: tuple[Cut, ...]) -> Nest:
        sizes = dict(zip(self.axes, self.grid, strict=True))
        nest = effective(nest, sizes)
        return n, tuple(replace(cut, axis=str(i)) for i, cut in enumerate(nest)), tuple(sizes[cut.axis] for cut in nest)

    @cached_property
    def numbers(self) -> list[np.ndarray]:
        """Of rows and of columns: the number of its share for each place of the grid, flat."""
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
        rows, cols = (np.add.reduceat(stops - starts, first) for starts, stops, first in map(_runs, self.nests))
        return rows[self.numbers[0]] * cols[self.numbers[1]]


@lru_cache(maxsize=1024)
def _runs(nest_: Nest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts and stops of all shares' runs, and where each share's begin (none is without)."""
    n, nest, sizes = nest_
    names = axes_of(nest)
    along = dict(zip(names, sizes, strict=True))
    held = [share(n, nest, along, dict(zip(names, point, strict=True))) for point in product(*map(range, sizes))]
    starts = [part.starts if len(part.starts) else np.zeros(1, np.int64) for part in held]
    stops = [part.stops if len(part.stops) else np.zeros(1, np.int64) for part in held]
    return np.concatenate(starts), np.concatenate(stops), np.cumsum([0, *map(len, starts)])[:-1]


@lru_cache(maxsize=1024)
def _overlap(user: Nest, native: Nest) -> np.ndarray:
    """Indices in common of each of the user's shares and each native share, which is one run."""
    starts, stops, first = _runs(user)
    begin, end, _ = _runs(native)
    common = np.minimum(stops[:, None], end) - np.maximum(starts[:, None], begin)
    return np.add.reduceat(np.maximum(common, 0), first, axis=0)


@dataclass(frozen=True)
class Kept:
    """What each rank holds of what each place of the native grid needs, in elements; `order` ranks on the user's grid."""

    user: Side
    native: Side
    order: tuple[int, ...]
    ranks: int

    @cached_property
    def _overlaps(self) -> list[np.ndarray]:
        """Of rows and of columns: the user's shares x the native shares."""
        return [_overlap(user, native) for user, native in zip(self.user.nests, self.native.nests, strict=True)]

    @property
    def elements(self) -> np.ndarray:
        """Ranks x places; none where a rank is idle on the user's grid."""
        kept = np.zeros((self.ranks, len(self.native.elements)), np.int64)
        rows, cols = (o[u][:, v] for o, u, v in zip(self._overlaps, self.user.numbers, self.native.numbers, strict=True))
        kept[np.array(self.order)] = rows * cols
        return kept

    def _in_place(self, order: np.ndarray) -> np.ndarray:
        """What the rank at each place keeps there, with ranks placed in this order."""
        place = np.full(self.ranks, -1)
        place[np.array(self.order)] = np.arange(len(self.order))
        here, idle = place[order], place[order] < 0
        rows, cols = (o[u[here], v] for o, u, v in zip(self._overlaps, self.user.numbers, self.native.numbers, strict=True))
        return np.where(idle, 0, rows * cols)

    def arriving(self, order: np.ndarray) -> np.ndarray:
        """Elements that each rank receives on the way to the native layout."""
        words = np.zeros(self.ranks, np.int64)
        words[order] = self.native.elements - self._in_place(order)
        return words

    def returning(self, order: np.ndarray) -> np.ndarray:
        """Elements that each rank receives on the way back to the user's layout."""
        words = np.zeros(self.ranks, np.int64)
        words[np.array(self.order)] = self.user.elements
        words[order] -= self._in_place(order)
        return words


def relabelled(kept: Sequence[Kept], order: np.ndarray) -> np.ndarray:
    """The rank for each place that keeps most elements where they are; `order` where nothing is better."""
    total = np.add.reduce([one.elements for one in kept])
    here = np.arange(len(order))
    if len(total) > FEW or total[order, here].sum() == total.max(axis=0, initial=0).sum():
        return order
    from scipy.optimize import linear_sum_assignment

    places, ranks = linear_sum_assignment(total.T, maximize=True)
    return ranks[np.argsort(places)] if total[ranks, places].sum() > total[order, here].sum() else order
