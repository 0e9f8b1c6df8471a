"""Index sets: ascending global indices, stored as runs; and the positions of the common indices of two sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

Selection = slice | np.ndarray
EMPTY = slice(0, 0)
MOST = 2**63 - 1  # the longest dimension: indices have 64 bits
SHORT = 64  # short arrays do not use NumPy's sort and search, which release Python's lock: ranks that are threads queue for it


@dataclass(frozen=True, eq=False, repr=False)
class IndexSet:
    """Ascending global indices as disjoint runs; local position p is the p-th of them.

    Parameters
    ----------
    starts : numpy.ndarray of int
        The first index of each run.
    stops : numpy.ndarray of int
        One more than the last index of each run.
    """

    starts: np.ndarray
    stops: np.ndarray

    def __repr__(self) -> str:
        from pdla.show import abbreviate

        return f"IndexSet(starts={abbreviate(self.starts)}, stops={abbreviate(self.stops)})"

    @staticmethod
    def interval(start: int, stop: int) -> IndexSet:
        """Make an index set of one run.

        Parameters
        ----------
        start, stop : int
            From `start` up to, not including, `stop`.

        Returns
        -------
        IndexSet
            Empty where stop <= start.
        """
        runs = ([start], [stop]) if stop > start else ([], [])
        return IndexSet(np.array(runs[0], np.int64), np.array(runs[1], np.int64))

    @cached_property
    def offsets(self) -> np.ndarray:
        """Local position of the start of each run."""
        lengths = self.stops - self.starts
        return np.cumsum(lengths) - lengths

    def __len__(self) -> int:
        return self._size

    @cached_property
    def _size(self) -> int:
        return int((self.stops - self.starts).sum())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IndexSet):
            return NotImplemented
        mine, theirs = self.merge(), other.merge()
        return np.array_equal(mine.starts, theirs.starts) and np.array_equal(mine.stops, theirs.stops)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def merge(self) -> IndexSet:
        """Join runs that touch.

        Returns
        -------
        IndexSet
            The same indices.
        """
        touching = self.starts[1:] == self.stops[:-1]
        if not touching.any():
            return self
        return IndexSet(self.starts[np.append(True, ~touching)], self.stops[np.append(~touching, True)])

    def indices(self) -> np.ndarray:
        """Give all global indices, in local order.

        Returns
        -------
        numpy.ndarray of int
            All indices, ascending.
        """
        return _expand(self.starts, self.stops - self.starts)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The first index of each run, and one more than the last."""
        return list(zip(self.starts.tolist(), self.stops.tolist(), strict=True))

    @property
    def selection(self) -> Selection:
        """The global indices, as a slice if one selects them."""
        return _selection(self.starts, self.stops - self.starts)

    def select(self, positions: IndexSet) -> IndexSet:
        """Find the global indices at some local positions: a cut within a cut.

        Parameters
        ----------
        positions : IndexSet
            Local positions, all below len(self).

        Returns
        -------
        IndexSet
            The indices.
        """
        if len(self.starts) == 1:  # as mostly
            return IndexSet(positions.starts + self.starts, positions.stops + self.starts)
        offsets = self.offsets
        mine, _, lo, hi = intersect(offsets, offsets + self.stops - self.starts, positions.starts, positions.stops)
        shift = self.starts[mine] - offsets[mine]
        return IndexSet(lo + shift, hi + shift)

    def locate_in(self, other: IndexSet) -> IndexSet:
        """Find the positions in another set of the indices that both sets hold.

        Parameters
        ----------
        other : IndexSet
            The other set.

        Returns
        -------
        IndexSet
            Positions in `other`: `other.select` maps them to the common indices.
        """
        if len(self.starts) == len(other.starts) == 1:
            low, high, _, theirs = self._meet(other)
            return IndexSet.interval(low - theirs, high - theirs)
        _, j, lo, hi = intersect(self.starts, self.stops, other.starts, other.stops)
        shift = other.offsets[j] - other.starts[j]
        return IndexSet(lo + shift, hi + shift)

    def _meet(self, other: IndexSet) -> tuple[int, int, int, int]:
        """Start and stop of the common indices of two sets of one run each, none if stop <= start; and both starts."""
        (mine,), (theirs,) = self.starts.tolist(), other.starts.tolist()
        return max(mine, theirs), min(mine + self._size, theirs + other._size), mine, theirs

    def find_common(self, other: IndexSet) -> tuple[np.ndarray, np.ndarray]:
        """Find the positions, one by one, of the indices that both sets hold.

        Parameters
        ----------
        other : IndexSet
            The other set.

        Returns
        -------
        here, there : numpy.ndarray of int
            Their local positions in this set and in `other`. For a block's rows and columns these
            are the elements of the matrix's diagonal.
        """
        here, there, _ = self.overlay(other)
        return np.arange(len(self))[here], np.arange(len(other))[there]

    def overlay(self, other: IndexSet) -> tuple[Selection, Selection, int]:
        """Find the positions of the indices that both sets hold, as slices if possible.

        Parameters
        ----------
        other : IndexSet
            The other set.

        Returns
        -------
        here, there : slice or numpy.ndarray of int
            Their local positions in this set and in `other`.
        size : int
            How many there are.
        """
        if len(self.starts) == len(other.starts) == 1:  # as mostly
            low, high, mine, theirs = self._meet(other)
            empty = EMPTY, EMPTY, 0
            return (slice(low - mine, high - mine), slice(low - theirs, high - theirs), high - low) if high > low else empty
        i, j, lo, hi = intersect(self.starts, self.stops, other.starts, other.stops)
        here = self.offsets[i] + lo - self.starts[i]
        there = other.offsets[j] + lo - other.starts[j]
        return _selection(here, hi - lo), _selection(there, hi - lo), int((hi - lo).sum())


    def positions(self, some: range) -> slice:
        """Find the positions of the indices of a range in this set.

        Parameters
        ----------
        some : range
            Ascending. Its step divides the length of the runs of this set within it, but for the
            first and the last.

        Returns
        -------
        slice
            Their local positions.
        """
        here, _, size = self.overlay(IndexSet.interval(some.start, some.stop))
        assert isinstance(here, slice)  # a range covers all indices between two of this set
        if some.step == 1 or not size:
            return here
        first = int(self.select(IndexSet.interval(here.start, here.start + 1)).starts[0])
        return slice(min(here.start + (some.start - first) % some.step, here.stop), here.stop, some.step)


def join(parts: Sequence[IndexSet]) -> IndexSet:
    """Join disjoint index sets."""
    starts, stops = (np.sort(np.concatenate([getattr(part, end) for part in parts])) for end in ("starts", "stops"))
    return IndexSet(starts, stops).merge()


def find_overlaps(xs: Sequence[IndexSet], ys: Sequence[IndexSet]) -> list[tuple[int, int]]:
    """Find the pairs of index sets of xs and ys with common indices, by their numbers, ascending.

    The sets of xs are disjoint, and so are those of ys. All pairs are found together: there may be
    a million sets, most of them empty.
    """
    (starts, stops, x), (begins, ends, y) = runs(xs), runs(ys)
    i, j, _, _ = intersect(starts, stops, begins, ends)
    pairs = unique(x[i] * len(ys) + y[j])
    return [divmod(pair, len(ys)) for pair in pairs.tolist()]


def runs(parts: Sequence[IndexSet]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List the runs of disjoint index sets, ascending: their starts, their stops, and the number of each run's set."""
    starts, stops = (np.concatenate([getattr(part, end) for part in parts]) for end in ("starts", "stops"))
    number = np.repeat(np.arange(len(parts)), [len(part.starts) for part in parts])
    order = np.argsort(starts)
    return starts[order], stops[order], number[order]


def intersect(
    starts1: np.ndarray, stops1: np.ndarray, starts2: np.ndarray, stops2: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Find all pairs of overlapping runs of two sorted lists: each run's number in its list, and the overlap [lo, hi)."""
    first = search_sorted(stops2, starts1, "right")
    counts = np.maximum(search_sorted(starts2, stops1, "left") - first, 0)
    i = np.repeat(np.arange(len(starts1)), counts)
    j = np.arange(len(i)) + (first - np.cumsum(counts) + counts)[i]
    return i, j, np.maximum(starts1[i], starts2[j]), np.minimum(stops1[i], stops2[j])


def unite_ranges(firsts: np.ndarray, lasts: np.ndarray) -> np.ndarray:
    """Unite the ranges from each first to its last, inclusive; ascending."""
    if len(firsts) == 1:
        return np.arange(firsts[0], lasts[0] + 1)
    return unique(_expand(firsts, lasts - firsts + 1))


def search_sorted(ascending: np.ndarray, numbers: np.ndarray, side: str) -> np.ndarray:
    """np.searchsorted; short arrays are compared directly: see SHORT."""
    if len(ascending) * len(numbers) > SHORT:
        return np.searchsorted(ascending, numbers, side)  # type: ignore[call-overload]
    before = ascending <= numbers[:, None] if side == "right" else ascending < numbers[:, None]
    return before.sum(axis=1)


def unique(numbers: np.ndarray) -> np.ndarray:
    """np.unique; short arrays are sorted by Python: see SHORT."""
    if numbers.size > SHORT:
        return np.unique(numbers)
    return np.array(sorted(set(numbers.ravel().tolist())), numbers.dtype)


def _expand(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)


def count(selection: Selection) -> int:
    """Count the selected positions."""
    if not isinstance(selection, slice):
        return len(selection)
    return len(range(selection.start, selection.stop, selection.step or 1))


def slice_selection(selection: Selection, lo: int, hi: int) -> Selection:
    """Select the lo-th up to, not including, the hi-th of the selected positions."""
    if not isinstance(selection, slice):
        return selection[lo:hi]
    some = range(selection.start, selection.stop, selection.step or 1)[lo:hi]
    return slice(some.start, some.stop, some.step)


def _selection(starts: np.ndarray, lengths: np.ndarray) -> Selection:
    """A slice for one run, or for single indices evenly spaced; else the positions, which stay as they are: devices keep a copy."""
    if not len(starts):
        return EMPTY
    if np.array_equal(starts[1:], (starts + lengths)[:-1]):
        return slice(int(starts[0]), int(starts[-1] + lengths[-1]))
    steps = np.diff(starts)
    if (lengths == 1).all() and (steps == steps[0]).all():
        return slice(int(starts[0]), int(starts[-1]) + 1, int(steps[0]))
    positions = _expand(starts, lengths)
    positions.flags.writeable = False
    return positions
