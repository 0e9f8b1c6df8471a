"""Block-cyclic parts of a NumPy array, copied as strips: NumPy takes lists of positions element by element.

Positions in runs of one width at one distance are a dimension in two, runs and places in a run, of which NumPy makes a view.
Most lists are one such group, or three, where the first and the last run are shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pdla.indices import Selection

ALL = slice(None)
LARGE = 2**15  # elements from which to look for strips costs less than it gains
WIDE, FEW = 8, 4  # runs of at least so many positions on average, and groups of runs in all


class Strips(NamedTuple):
    """So many runs of `width` positions, each beginning `step` after the one before; the first at `start`."""

    start: int
    step: int
    runs: int
    width: int

    def within(self, x: np.ndarray, dimension: int) -> np.ndarray:
        """x at these positions, the dimension in two."""
        shape, strides = list(x.shape), list(x.strides)
        here = strides[dimension]
        shape[dimension : dimension + 1] = self.runs, self.width
        strides[dimension : dimension + 1] = self.step * here, here
        return as_strided(x[(slice(None),) * dimension + (slice(self.start, None),)], shape, strides)


Group = tuple[Strips, Strips]  # positions in an array, and in the part of it


class Part(NamedTuple):
    """Some rows and columns of an array: their number, the array's part that slices leave, and what makes up each list."""

    shape: tuple[int, int]
    x: np.ndarray
    lists: list[tuple[int, list[Group]]]

    def beside(self, part: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pieces of the array and of `part`, of that shape, which are each other's."""
        for groups in product(*(groups for _, groups in self.lists)):
            there, here = self.x, part
            for (d, _), (in_x, in_part) in zip(self.lists, groups, strict=True):
                there, here = in_x.within(there, d), in_part.within(here, d)
            yield there, here


def find(x: np.ndarray, rows: Selection, cols: Selection) -> Part | None:
    """x[rows][:, cols], not both slices, as strips; None where it is small, or a list is not made up of a few groups."""
    # The last dimension first: those before it keep their numbers as it becomes two.
    lists = {d: positions for d, positions in ((1, cols), (0, rows)) if not isinstance(positions, slice)}
    sliced = x[tuple(chosen if isinstance(chosen, slice) else ALL for chosen in (rows, cols))]
    m, n = (len(lists.get(d, range(size))) for d, size in enumerate(sliced.shape))
    if m * n < LARGE:
        return None
    found = [(d, _groups(positions)) for d, positions in lists.items()]
    return Part((m, n), sliced, found) if all(groups for _, groups in found) else None


def _groups(positions: np.ndarray) -> list[Group]:
    """Ascending positions as runs of equal width and distance; none where there are more than a few such groups."""
    first = np.concatenate(([0], np.flatnonzero(np.diff(positions) != 1) + 1))
    if len(positions) < WIDE * len(first):
        return []
    starts, widths = positions[first], np.diff(first, append=len(positions))
    groups: list[Group] = []
    while len(starts) and len(groups) < FEW:
        step = int(starts[1] - starts[0]) if len(starts) > 1 else 0
        alike = (starts == starts[0] + step * np.arange(len(starts))) & (widths == widths[0])
        runs, width = len(alike) if alike.all() else int(np.argmin(alike)), int(widths[0])
        groups.append((Strips(int(starts[0]), step, runs, width), Strips(int(first[0]), width, runs, width)))
        first, starts, widths = first[runs:], starts[runs:], widths[runs:]
    return [] if len(starts) else groups
