"""Copy block-cyclic parts of a NumPy array strip by strip: NumPy takes lists of positions element by element.

Runs of positions, of equal width at equal distances, are a view with two dimensions in place of
one: the run, and the place in the run. Most lists are one such group of runs, or three if the first
and the last run are shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pdla.indices import Selection

ALL = slice(None)
LARGE = 2**15  # elements of a part for which the search for strips pays
WIDE, FEW = 8, 4  # the least average width of runs, and the most groups of runs


class Strips(NamedTuple):
    """`runs` runs of `width` positions; the first starts at `start`, each other one `step` after the one before."""

    start: int
    step: int
    runs: int
    width: int

    def within(self, x: np.ndarray, dimension: int) -> np.ndarray:
        """View x at these positions of a dimension, which becomes two: runs and places in a run."""
        shape, strides = list(x.shape), list(x.strides)
        here = strides[dimension]
        shape[dimension : dimension + 1] = self.runs, self.width
        strides[dimension : dimension + 1] = self.step * here, here
        return as_strided(x[(slice(None),) * dimension + (slice(self.start, None),)], shape, strides)


Group = tuple[Strips, Strips]  # positions in an array, and in the part of it


class Part(NamedTuple):
    """Some rows and columns of an array.

    shape  numbers of rows and columns
    x      the array, cut to the rows or columns given by a slice
    lists  of each dimension given by a list: (dimension, groups of the list)
    """

    shape: tuple[int, int]
    x: np.ndarray
    lists: list[tuple[int, list[Group]]]

    def pairs_with(self, part: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pair views of the array with views of `part`, an array of `shape`, for the same elements."""
        for groups in product(*(groups for _, groups in self.lists)):
            there, here = self.x, part
            for (d, _), (in_x, in_part) in zip(self.lists, groups, strict=True):
                there, here = in_x.within(there, d), in_part.within(here, d)
            yield there, here

    def extract(self, part: np.ndarray) -> None:
        """Copy the elements to `part`."""
        for there, here in self.pairs_with(part):
            np.copyto(here, there)


def find(x: np.ndarray, rows: Selection, cols: Selection) -> Part | None:
    """Find x[rows][:, cols], not both slices, as strips; None if it is small, or a list is not a few groups of runs."""
    # The last dimension first: the first keeps its number when the last becomes two.
    lists = {d: positions for d, positions in ((1, cols), (0, rows)) if not isinstance(positions, slice)}
    sliced = x[tuple(chosen if isinstance(chosen, slice) else ALL for chosen in (rows, cols))]
    m, n = (len(lists.get(d, range(size))) for d, size in enumerate(sliced.shape))
    if m * n < LARGE:
        return None
    found = [(d, _groups(positions)) for d, positions in lists.items()]
    return Part((m, n), sliced, found) if all(groups for _, groups in found) else None


def _groups(positions: np.ndarray) -> list[Group]:
    """Divide ascending positions into groups of runs of equal width and distance; empty for more than FEW groups."""
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
