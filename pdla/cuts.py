"""Cuts of one dimension along one axis of a grid: immutable values, no communication.

Each kind of cut finds a coordinate's share and its length, the owners of given indices, and the cut
of a part of the dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np

from pdla.errors import ArgumentError, LayoutError
from pdla.indices import MOST, IndexSet, search_sorted, unique, unite_ranges

LISTED = 64  # boundaries that a repr lists
LONGEST = 2**40  # the longest cyclic block: a round of blocks, one for each rank, is then counted in 64 bits


def block_bounds(n: int, parts: int, i: int) -> tuple[int, int]:
    """[start, stop) of part i of n indices in balanced parts: the first n mod parts are one longer."""
    size, longer = divmod(n, parts)
    start = i * size + min(i, longer)
    return start, start + size + (i < longer)


@lru_cache(maxsize=256)
def bounds_of_blocks(n: int, parts: int) -> list[tuple[int, int]]:
    """The same of every part, a list that is shared: do not change it."""
    return [block_bounds(n, parts, i) for i in range(parts)]


def _check_axis(cut: Any, axis: Any) -> None:
    if not isinstance(axis, str):
        raise LayoutError(f"{cut!r}: the axis comes first, by its name")


def _to_int(cut: Any, number: Any) -> int:
    """Convert a number to a Python int: NumPy's short integers wrap around."""
    if not isinstance(number, (int, np.integer)):
        raise ArgumentError(f"{cut!r}: indices are counted in whole numbers")
    return int(number)


@dataclass(frozen=True)
class Block:
    """Balanced contiguous blocks along one axis: what a bare axis name in a Layout means.

    Parameters
    ----------
    axis : str
        Name of the grid's axis.
    unit : int, optional
        Indices that are never cut apart.
    """

    axis: str
    unit: int = 1

    def _bounds(self, n: int, parts: int, i: int) -> tuple[int, int]:
        start, stop = block_bounds(-(-n // self.unit), parts, i)
        return min(start * self.unit, n), min(stop * self.unit, n)

    def share(self, n: int, parts: int, i: int) -> IndexSet:
        """Give the indices that one coordinate owns.

        Parameters
        ----------
        n : int
            Length of the dimension.
        parts : int
            Ranks along the axis.
        i : int
            The coordinate.

        Returns
        -------
        IndexSet
            Of 0 to n - 1.
        """
        return IndexSet.interval(*self._bounds(n, parts, i))

    def length(self, n: int, parts: int, i: int) -> int:
        """Count the indices of `share`, which is not made.

        Parameters
        ----------
        n : int
            Length of the dimension.
        parts : int
            Ranks along the axis.
        i : int
            The coordinate.

        Returns
        -------
        int
            How many there are.
        """
        start, stop = self._bounds(n, parts, i)
        return stop - start

    def owners(self, n: int, parts: int, held: IndexSet) -> np.ndarray:
        """Find the coordinates that own some of given indices.

        Parameters
        ----------
        n : int
            Length of the dimension.
        parts : int
            Ranks along the axis.
        held : IndexSet
            The indices.

        Returns
        -------
        numpy.ndarray of int
            Coordinates, ascending.
        """
        return unite_ranges(self._owners(n, parts, held.starts), self._owners(n, parts, held.stops - 1))

    def _owners(self, n: int, parts: int, indices: np.ndarray) -> np.ndarray:
        size, longer = divmod(-(-n // self.unit), parts)
        units, early = indices // self.unit, longer * (size + 1)
        long = min(size + 1, MOST)  # with one part `size` may be MOST, and no share is long
        return np.where(units < early, units // long, longer + (units - early) // max(size, 1))

    def with_axis(self, axis: str) -> Block:
        """Give the same kind of cut along another axis.

        Parameters
        ----------
        axis : str
            Its name.

        Returns
        -------
        Block
            With the same unit.
        """
        return Block(axis, self.unit)

    def part(self, n: int, parts: int, start: int, stop: int, step: int = 1) -> Cuts:
        """Cut a part of the dimension, taken as one of its own, so that each index keeps its owner.

        Parameters
        ----------
        n : int
            Length of the whole dimension.
        parts : int
            Ranks along the axis.
        start, stop : int
            The part: from `start` up to, not including, `stop`.
        step : int, optional
            Each step-th of these alone.

        Returns
        -------
        Cuts
            The cut of the part's indices.
        """
        shares = [self.share(n, parts, i) for i in range(parts)]
        ends = [0, *(int(held.stops[-1]) if len(held) else n for held in shares)]
        return Cuts(self.axis, tuple(ends)).part(n, parts, start, stop, step)


@dataclass(frozen=True, repr=False)
class Cyclic:
    """Block-cyclic, as ScaLAPACK's: blocks of `block` indices go to the ranks along an axis in turn.

    Parameters
    ----------
    axis : str
        Name of the grid's axis.
    block : int
        Indices of a block, from 1 to 2^40.
    source : int, optional
        The coordinate that gets the first block.
    first : int, optional
        Length of the first block, if it is shorter than the others, as in a part of a matrix; 0:
        not shorter.

    Raises
    ------
    LayoutError, ArgumentError
        For numbers that cannot be.

    Examples
    --------
    >>> pdla.Cyclic("row", 2).share(10, 2, 0).indices()
    array([0, 1, 4, 5, 8, 9])
    """

    axis: str
    block: int
    source: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        _check_axis(self, self.axis)
        for field in ("block", "source", "first"):
            object.__setattr__(self, field, _to_int(self, getattr(self, field)))
        if not 1 <= self.block <= LONGEST or self.source < 0:
            raise LayoutError(f"{self!r}: block must be at least 1 and at most 2^40, source at least 0")
        if not 0 <= self.first <= self.block:
            raise LayoutError(f"{self!r}: the first block has at most {self.block} indices (0: as many)")
        if self.first == self.block:
            object.__setattr__(self, "first", 0)  # so that equal cuts compare equal

    def __repr__(self) -> str:
        others = "".join(f", {name}={value}" for name, value in (("source", self.source), ("first", self.first)) if value)
        return f"Cyclic({self.axis!r}, {self.block}{others})"

    @property
    def offset(self) -> int:
        """The number of indices that the first block lacks."""
        return self.block - self.first if self.first else 0

    def share(self, n: int, parts: int, i: int) -> IndexSet:
        """Give the indices that one coordinate owns.

        Parameters
        ----------
        n : int
            Length of the dimension.
        parts : int
            Ranks along the axis.
        i : int
            The coordinate.

        Returns
        -------
        IndexSet
            Of 0 to n - 1.
        """
        turn = (i - self.source) % parts * self.block - self.offset
        starts = np.arange(turn, n, parts * self.block, dtype=np.int64)
        return IndexSet(np.maximum(starts, 0), np.minimum(starts + self.block, n)).merge()

    def length(self, n: int, parts: int, i: int) -> int:
        """Count the indices of `share` without making it: it may have many runs.

        Parameters
        ----------
        n : int
            Length of the dimension.
        parts : int
            Ranks along the axis.
        i : int
            The coordinate.

        Returns
        -------
        int
            How many there are.
        """
        before = (i - self.source) % parts * self.block
        rounds, rest = divmod(n + self.offset, parts * self.block)
        return rounds * self.block + min(max(rest - before, 0), self.block) - (0 if before else self.offset)

    def owners(self, n: int, parts: int, held: IndexSet) -> np.ndarray:
        """Find the coordinates that own some of given indices.

        Parameters
        ----------
        n : int
            Length of the dimension.
        parts : int
            Ranks along the axis.
        held : IndexSet
            The indices.

        Returns
        -------
        numpy.ndarray of int
            Coordinates, ascending.
        """
        firsts, lasts = ((ends + self.offset) // self.block for ends in (held.starts, held.stops - 1))
        lasts = np.minimum(lasts, firsts + parts - 1)  # every coordinate owns a part of a run of `parts` blocks or more
        return unique((unite_ranges(firsts, lasts) + self.source) % parts)

    def with_axis(self, axis: str) -> Cyclic:
        """Give the same kind of cut along another axis.

        Parameters
        ----------
        axis : str
            Its name.

        Returns
        -------
        Cyclic
            With equally long blocks, the first one at coordinate 0.
        """
        return Cyclic(axis, self.block)

    def part(self, n: int, parts: int, start: int, stop: int, step: int = 1) -> Cyclic:
        """Cut a part of the dimension, taken as one of its own, so that each index keeps its owner.

        Parameters
        ----------
        n : int
            Length of the whole dimension.
        parts : int
            Ranks along the axis.
        start, stop : int
            The part: from `start` up to, not including, `stop`.
        step : int, optional
            Each step-th of these alone; it divides `block`.

        Returns
        -------
        Cyclic
            The cut of the part's indices.
        """
        turn, done = divmod(start + self.offset, self.block)
        return Cyclic(self.axis, self.block // step, (self.source + turn) % parts, -(-(self.block - done) // step))


@dataclass(frozen=True, repr=False)
class Cuts:
    """Explicit shares: coordinate i owns the indices from boundaries[i] to boundaries[i + 1] - 1.

    Outermost cut of a dimension only.

    Parameters
    ----------
    axis : str
        Name of the grid's axis.
    boundaries : tuple of int
        One more than the axis has ranks, from 0 to the length of the dimension, never falling.

    Raises
    ------
    LayoutError
        For boundaries that do not start with 0, or fall.

    Examples
    --------
    >>> pdla.Cuts("row", (0, 7, 10)).share(10, 2, 1).indices()
    array([7, 8, 9])
    """

    axis: str
    boundaries: Sequence[int] | np.ndarray  # kept as a tuple

    def __post_init__(self) -> None:
        _check_axis(self, self.axis)
        ends = tuple(_to_int(self, end) for end in self.boundaries) if np.iterable(self.boundaries) else ()
        if len(ends) < 2 or ends[0] != 0 or any(a > b for a, b in pairwise(ends)):
            raise LayoutError(f"{self!r}: boundaries must start with 0 and never fall, one more than the axis has ranks")
        object.__setattr__(self, "boundaries", ends)

    def __repr__(self) -> str:
        ends = repr(self.boundaries)
        if np.iterable(self.boundaries) and len(self.boundaries) > LISTED:
            from pdla.show import abbreviate

            digest = blake2b(ends.encode(), digest_size=4).hexdigest()  # of all: different cuts have different texts
            ends = f"({abbreviate(self.boundaries)[1:-1]}), digest {digest}"
        return f"Cuts({self.axis!r}, {ends})"

    def share(self, n: int, parts: int, i: int) -> IndexSet:
        """Give the indices that one coordinate owns.

        Parameters
        ----------
        n : int
            Length of the dimension.
        parts : int
            Ranks along the axis.
        i : int
            The coordinate.

        Returns
        -------
        IndexSet
            Of 0 to n - 1.
        """
        return IndexSet.interval(self.boundaries[i], self.boundaries[i + 1])

    def length(self, n: int, parts: int, i: int) -> int:
        """Count the indices of `share`, which is not made.

        Parameters
        ----------
        n : int
            Length of the dimension.
        parts : int
            Ranks along the axis.
        i : int
            The coordinate.

        Returns
        -------
        int
            How many there are.
        """
        return self.boundaries[i + 1] - self.boundaries[i]

    def owners(self, n: int, parts: int, held: IndexSet) -> np.ndarray:
        """Find the coordinates that own some of given indices.

        Parameters
        ----------
        n : int
            Length of the dimension.
        parts : int
            Ranks along the axis.
        held : IndexSet
            The indices.

        Returns
        -------
        numpy.ndarray of int
            Coordinates, ascending, perhaps some with an empty share.
        """
        boundaries = np.array(self.boundaries)
        firsts, lasts = (search_sorted(boundaries, ends, "right") - 1 for ends in (held.starts, held.stops - 1))
        return unite_ranges(firsts, lasts)

    def part(self, n: int, parts: int, start: int, stop: int, step: int = 1) -> Cuts:
        """Cut a part of the dimension, taken as one of its own, so that each index keeps its owner.

        Parameters
        ----------
        n : int
            Length of the whole dimension.
        parts : int
            Ranks along the axis.
        start, stop : int
            The part: from `start` up to, not including, `stop`.
        step : int, optional
            Each step-th of these alone.

        Returns
        -------
        Cuts
            The cut of the part's indices.
        """
        return Cuts(self.axis, tuple(-((start - min(max(end, start), stop)) // step) for end in self.boundaries))

    def with_axis(self, axis: str) -> Block:
        """Give a cut along another axis, which may have another number of ranks.

        Parameters
        ----------
        axis : str
            Its name.

        Returns
        -------
        Block
            Balanced blocks.
        """
        return Block(axis)


@dataclass(frozen=True, repr=False)
class Balanced:
    """Balanced blocks of whole units: tokens by sequence, features by head.

    Parameters
    ----------
    axes : str or tuple of str
        One axis of the grid or several, outermost first.
    unit : int, optional
        Indices that are never cut apart.

    Raises
    ------
    LayoutError
        For a unit that is no whole number of at least 1.

    Examples
    --------
    >>> layout = pdla.Layout(rows=pdla.Balanced("row", unit=4))
    >>> layout.local_shape((10, 3), {"row": 2}, {"row": 0})
    (8, 3)
    """

    axes: str | tuple[str, ...]
    unit: int = 1

    def __post_init__(self) -> None:
        for axis in self._several:
            _check_axis(self, axis)
        object.__setattr__(self, "unit", _to_int(self, self.unit))
        if self.unit < 1:
            raise LayoutError(f"{self!r}: unit must be at least 1")

    def __repr__(self) -> str:
        return f"Balanced({self.axes!r}{f', unit={self.unit}' if self.unit != 1 else ''})"

    @property
    def _several(self) -> tuple[str, ...]:
        return tuple(self.axes) if isinstance(self.axes, (tuple, list)) else (self.axes,)

    def expand(self) -> tuple[Block, ...]:
        """Give the cuts along each of its axes.

        Returns
        -------
        tuple of Block
            Outermost first.
        """
        return tuple(Block(axis, self.unit) for axis in self._several)


Cut = Block | Cyclic | Cuts


def cuts_of(spec: Any, dimension: str) -> tuple[Cut, ...]:
    """Convert a user's rows= or cols= to cuts: None, an axis, a cut, or a tuple of these, outermost first."""
    if spec is None:
        return ()
    if isinstance(spec, str):
        return (Block(spec),)
    if isinstance(spec, (Block, Cyclic, Cuts)):
        return (spec,)
    if isinstance(spec, Balanced):
        return spec.expand()
    if isinstance(spec, tuple):
        return tuple(cut for part in spec for cut in cuts_of(part, dimension))
    if isinstance(spec, list):
        one = ", ".join(map(repr, spec))
        raise LayoutError(
            f"{dimension}={spec!r} is a list: Layout({one}) cuts rows and columns; "
            f"a tuple, {dimension}=({one}), cuts {dimension} alone, one cut within the other"
        )
    raise LayoutError(
        f"{dimension}={spec!r} is not a cut: give None, an axis name, Cyclic, Cuts, Balanced or a tuple of these"
    )


def to_spec(cuts: tuple[Cut, ...]) -> Any:
    """Convert cuts to rows= or cols= as a user writes them."""
    if not cuts:
        return None
    words: list[Any] = [cut.axis if isinstance(cut, Block) and cut.unit == 1 else cut for cut in cuts]
    if all(isinstance(cut, Block) and cut.unit == cuts[0].unit != 1 for cut in cuts):  # type: ignore[union-attr]
        axes = tuple(cut.axis for cut in cuts)
        return Balanced(axes if len(axes) > 1 else axes[0], cuts[0].unit)  # type: ignore[union-attr]
    words = [Balanced(word.axis, word.unit) if isinstance(word, Block) else word for word in words]
    return words[0] if len(words) == 1 else tuple(words)
