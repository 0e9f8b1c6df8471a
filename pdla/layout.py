"""Who owns which rows and columns: immutable values, no communication.

A matrix dimension is cut along grid axes by a tuple of *cuts*, outermost first. Each cut divides what the cuts before it
left, so that gathering the innermost axis gives exactly the layout without it. A rank's share of a dimension is an
`IndexSet` (pdla/indices.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np

from pdla.errors import LayoutError
from pdla.indices import IndexSet, Selection, between

Shape = tuple[int, int]


def block_bounds(n: int, parts: int, i: int) -> tuple[int, int]:
    """[start, stop) of part i when n indices are cut into balanced parts: the first n mod parts are one longer."""
    size, longer = divmod(n, parts)
    start = i * size + min(i, longer)
    return start, start + size + (i < longer)


# ---------------------------------------------------------------------------------------------- cuts


def _named(cut: Any, axis: Any) -> None:
    if not isinstance(axis, str):
        raise LayoutError(f"{cut!r}: the axis comes first, by its name")


def _counted(cut: Any, number: Any) -> int:
    """As Python's int, which does not wrap around as NumPy's short ones do."""
    if not isinstance(number, (int, np.integer)):
        raise LayoutError(f"{cut!r}: indices are counted in whole numbers")
    return int(number)


@dataclass(frozen=True)
class Block:
    """Balanced contiguous blocks of whole units along one axis: what a bare axis name in a Layout means."""

    axis: str
    unit: int = 1

    def share(self, n: int, parts: int, i: int) -> IndexSet:
        start, stop = block_bounds(-(-n // self.unit), parts, i)
        return IndexSet.interval(min(start * self.unit, n), min(stop * self.unit, n))

    def owners(self, n: int, parts: int, held: IndexSet) -> np.ndarray:
        """The coordinates, ascending, that own some of these indices."""
        return between(self._owners(n, parts, held.starts), self._owners(n, parts, held.stops - 1))

    def _owners(self, n: int, parts: int, indices: np.ndarray) -> np.ndarray:
        size, longer = divmod(-(-n // self.unit), parts)
        units, early = indices // self.unit, longer * (size + 1)
        return np.where(units < early, units // (size + 1), longer + (units - early) // max(size, 1))

    def part(self, n: int, parts: int, start: int, stop: int) -> Cuts:
        """The cut of the indices from start to stop alone."""
        shares = [self.share(n, parts, i) for i in range(parts)]
        ends = [0, *(int(held.stops[-1]) if len(held) else n for held in shares)]
        return Cuts(self.axis, tuple(ends)).part(n, parts, start, stop)


@dataclass(frozen=True, repr=False)
class Cyclic:
    """Blocks of `block` indices dealt out in turn along an axis, the first to coordinate `source` (ScaLAPACK's).

    first  indices of the first block, where it is shorter than the others, as it is in part of a matrix; 0: as long as they
    """

    axis: str
    block: int
    source: int = 0
    first: int = 0

    def __post_init__(self) -> None:
        _named(self, self.axis)
        for field in ("block", "source", "first"):
            object.__setattr__(self, field, _counted(self, getattr(self, field)))
        if self.block < 1 or self.source < 0:
            raise LayoutError(f"{self!r}: block must be at least 1 and source at least 0")
        if not 0 <= self.first <= self.block:
            raise LayoutError(f"{self!r}: the first block has at most {self.block} indices (0: as many)")
        if self.first == self.block:
            object.__setattr__(self, "first", 0)  # one way of writing it

    def __repr__(self) -> str:
        first = f", first={self.first}" if self.first else ""
        return f"Cyclic(axis={self.axis!r}, block={self.block}, source={self.source}{first})"

    @property
    def missing(self) -> int:
        """Indices that the first block lacks."""
        return self.block - self.first if self.first else 0

    def share(self, n: int, parts: int, i: int) -> IndexSet:
        turn = (i - self.source) % parts * self.block - self.missing
        starts = np.arange(turn, n, parts * self.block, dtype=np.int64)
        return IndexSet(np.maximum(starts, 0), np.minimum(starts + self.block, n)).merged()

    def owners(self, n: int, parts: int, held: IndexSet) -> np.ndarray:
        """The coordinates, ascending, that own some of these indices."""
        firsts, lasts = ((ends + self.missing) // self.block for ends in (held.starts, held.stops - 1))
        lasts = np.minimum(lasts, firsts + parts - 1)  # a round of blocks has them all
        return np.unique((between(firsts, lasts) + self.source) % parts)

    def part(self, n: int, parts: int, start: int, stop: int) -> Cyclic:
        """The cut of the indices from start to stop alone."""
        turn, done = divmod(start + self.missing, self.block)
        return Cyclic(self.axis, self.block, (self.source + turn) % parts, self.block - done)


@dataclass(frozen=True)
class Cuts:
    """Explicit shares: coordinate i of the axis owns the indices from boundaries[i] up to, not including, boundaries[i + 1].

    boundaries  one more than the axis has ranks, from 0 to the length of the dimension, never falling. Outermost cut only.
    """

    axis: str
    boundaries: tuple[int, ...]

    def __post_init__(self) -> None:
        _named(self, self.axis)
        ends = tuple(_counted(self, end) for end in self.boundaries) if np.iterable(self.boundaries) else ()
        if len(ends) < 2 or ends[0] != 0 or any(a > b for a, b in pairwise(ends)):
            raise LayoutError(f"{self!r}: boundaries must begin with 0 and never fall, one more than the axis has ranks")
        object.__setattr__(self, "boundaries", ends)

    def share(self, n: int, parts: int, i: int) -> IndexSet:
        return IndexSet.interval(self.boundaries[i], self.boundaries[i + 1])

    def owners(self, n: int, parts: int, held: IndexSet) -> np.ndarray:
        """The coordinates, ascending, that own some of these indices, and such between them as own none at all."""
        firsts, lasts = (np.searchsorted(self.boundaries, ends, "right") - 1 for ends in (held.starts, held.stops - 1))
        return between(firsts, lasts)

    def part(self, n: int, parts: int, start: int, stop: int) -> Cuts:
        """The cut of the indices from start to stop alone."""
        return Cuts(self.axis, tuple(min(max(end, start), stop) - start for end in self.boundaries))


@dataclass(frozen=True)
class Balanced:
    """Balanced blocks of whole units over one axis or several, outermost first: tokens by sequence, features by head."""

    axes: str | tuple[str, ...]
    unit: int = 1

    def __post_init__(self) -> None:
        for axis in self._several:
            _named(self, axis)
        object.__setattr__(self, "unit", _counted(self, self.unit))
        if self.unit < 1:
            raise LayoutError(f"{self!r}: unit must be at least 1")

    @property
    def _several(self) -> tuple[str, ...]:
        return tuple(self.axes) if isinstance(self.axes, (tuple, list)) else (self.axes,)

    def expand(self) -> tuple[Block, ...]:
        return tuple(Block(axis, self.unit) for axis in self._several)


Cut = Block | Cyclic | Cuts


def _cuts(spec: Any, dimension: str) -> tuple[Cut, ...]:
    """The cuts that a user's words mean: None, an axis, a cut, or a tuple of these, outermost first."""
    if spec is None:
        return ()
    if isinstance(spec, str):
        return (Block(spec),)
    if isinstance(spec, (Block, Cyclic, Cuts)):
        return (spec,)
    if isinstance(spec, Balanced):
        return spec.expand()
    if isinstance(spec, (tuple, list)):
        return tuple(cut for part in spec for cut in _cuts(part, dimension))
    raise LayoutError(
        f"{dimension}={spec!r} is not a cut: give None, an axis name, Cyclic, Cuts, Balanced or a tuple of these"
    )


def _summed_over(spec: Any) -> tuple[str, ...]:
    """The axes that a user's words mean; a set's in one order on all ranks."""
    axes = (spec,) if isinstance(spec, str) else tuple(sorted(spec, key=str)) if isinstance(spec, (set, frozenset)) else spec
    if not isinstance(axes, (tuple, list)) or not all(isinstance(axis, str) for axis in axes):
        raise LayoutError(f"partial={spec!r}: give the name of an axis or a tuple of names")
    return tuple(axes)


def _written(cuts: tuple[Cut, ...]) -> Any:
    """The cuts as a user would write them."""
    if not cuts:
        return None
    words: list[Any] = [cut.axis if isinstance(cut, Block) and cut.unit == 1 else cut for cut in cuts]
    if all(isinstance(cut, Block) and cut.unit == cuts[0].unit != 1 for cut in cuts):  # type: ignore[union-attr]
        axes = tuple(cut.axis for cut in cuts)
        return Balanced(axes if len(axes) > 1 else axes[0], cuts[0].unit)  # type: ignore[union-attr]
    words = [Balanced(word.axis, word.unit) if isinstance(word, Block) else word for word in words]
    return words[0] if len(words) == 1 else tuple(words)


@lru_cache(maxsize=65536)
def _share(n: int, cuts: tuple[Cut, ...], parts: tuple[int, ...], coords: tuple[int, ...]) -> IndexSet:
    """Indices of 0..n-1 left after every cut in turn, outermost first."""
    held = IndexSet.interval(0, n)
    for cut, p, i in zip(cuts, parts, coords, strict=True):
        held = held.select(cut.share(len(held), p, i))
    return held


def share(n: int, cuts: tuple[Cut, ...], sizes: Mapping[str, int], coords: Mapping[str, int]) -> IndexSet:
    """The indices of a dimension of length n that the rank at `coords` holds."""
    return _share(n, cuts, tuple(sizes[c.axis] for c in cuts), tuple(coords[c.axis] for c in cuts))


def shares(
    n: int, cuts: tuple[Cut, ...], sizes: Mapping[str, int], over: tuple[str, ...], coords: Mapping[str, int]
) -> Iterator[tuple[dict[str, int], IndexSet]]:
    """The shares along the axes `over`, first axis slowest, the other coordinates as given: (coordinates, indices)."""
    for point in product(*(range(sizes[axis]) for axis in over)):
        where = {**coords, **dict(zip(over, point, strict=True))}
        yield where, share(n, cuts, sizes, where)


def shares_meeting(
    n: int, cuts: tuple[Cut, ...], sizes: Mapping[str, int], held: IndexSet, where: Mapping[str, int] | None = None
) -> Iterator[tuple[dict[str, int], IndexSet]]:
    """The shares of a dimension that have some of the indices held, as `shares` gives them; no others are looked at."""
    where = dict(where or {})
    if len(where) == len(cuts):
        yield where, share(n, cuts, sizes, where)
        return
    cut, left = cuts[len(where)], share(n, cuts[: len(where)], sizes, where)
    for i in cut.owners(len(left), sizes[cut.axis], held.within(left)).tolist():
        yield from shares_meeting(n, cuts, sizes, held, {**where, cut.axis: i})


class Overlay(NamedTuple):
    """A share of a dimension that has some of the indices held: the coordinates of its ranks, its indices, and of those in common
    where they are in the held ones, where in the share, and how many they are."""

    where: dict[str, int]
    share: IndexSet
    here: Selection
    there: Selection
    size: int


def overlays(n: int, cuts: tuple[Cut, ...], sizes: Mapping[str, int], held: IndexSet) -> Iterator[Overlay]:
    """The shares of a dimension that have some of the indices held, and what they have in common with these."""
    for where, part in shares_meeting(n, cuts, sizes, held):
        here, there, size = held.overlay(part)
        if size:
            yield Overlay(where, part, here, there, size)


def effective(cuts: tuple[Cut, ...], sizes: Mapping[str, int]) -> tuple[Cut, ...]:
    """The cuts without those along axes of one rank, which cut nothing."""
    return tuple(cut for cut in cuts if sizes[cut.axis] > 1)


def extra_axes(old: Layout, new: Layout, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """The axes over which gathering turns old into new: the innermost cuts of old. None where gathering does not do it."""
    extra: tuple[str, ...] = ()
    for before, after in ((old.rows, new.rows), (old.cols, new.cols)):
        before, after = effective(before, sizes), effective(after, sizes)
        if before[: len(after)] != after:
            return None
        extra += axes_of(before[len(after) :])
    return extra


def axes_of(cuts: tuple[Cut, ...]) -> tuple[str, ...]:
    return tuple(cut.axis for cut in cuts)


# ---------------------------------------------------------------------------------------------- layouts


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Layout:
    """How a matrix is cut: `Layout(rows="row", cols="col")`.

    rows, cols   None (whole), an axis name (balanced blocks), Cyclic, Cuts, Balanced, or a tuple of these, outermost first.
    partial      axes along which every rank holds an addend of the matrix rather than the matrix, in any order.
    Axes that are not named hold copies. Raises LayoutError for an axis used twice or a cut that cannot be nested so.
    """

    rows: tuple[Cut, ...]
    cols: tuple[Cut, ...]
    partial: tuple[str, ...]

    def __init__(self, rows: Any = None, cols: Any = None, partial: Any = ()) -> None:
        object.__setattr__(self, "rows", _cuts(rows, "rows"))
        object.__setattr__(self, "cols", _cuts(cols, "cols"))
        object.__setattr__(self, "partial", _summed_over(partial))
        named = [*axes_of(self.rows), *axes_of(self.cols), *self.partial]
        for axis in named:
            if named.count(axis) > 1:
                raise LayoutError(f"{self!r} names the axis {axis!r} twice: an axis cuts one dimension, once")
        for cut in (*self.rows[1:], *self.cols[1:]):
            if isinstance(cut, Cuts):
                raise LayoutError(f"{self!r}: {cut!r} must be the outermost cut of its dimension")

    @cached_property
    def _key(self) -> tuple:
        return self.rows, self.cols, frozenset(self.partial)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._hash == other._hash and self._key == other._key)

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple:
        return Layout, (self.rows, self.cols, self.partial)  # not the hash, which is another in another process

    def __repr__(self) -> str:
        words = [f"{name}={_written(cuts)!r}" for name, cuts in (("rows", self.rows), ("cols", self.cols)) if cuts]
        words += [f"partial={self.partial!r}"] if self.partial else []
        return f"Layout({', '.join(words)})"

    @property
    def T(self) -> Layout:
        """The layout of the transpose."""
        return Layout(self.cols, self.rows, self.partial)

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes that cut a dimension, rows first."""
        return axes_of(self.rows) + axes_of(self.cols)

    @property
    def summed(self) -> Layout:
        """The layout once the partial sums have been added up: whole along their axes."""
        return Layout(self.rows, self.cols)

    def check(self, shape: Shape, sizes: Mapping[str, int]) -> None:
        """Raise LayoutError unless this layout fits a matrix of this shape on a grid with these axes."""
        for axis in (*self.axes, *self.partial):
            if axis not in sizes:
                raise LayoutError(f"{self!r} names the axis {axis!r}; the grid has {', '.join(sizes)}")
        for n, cuts in zip(shape, (self.rows, self.cols), strict=True):
            for cut in cuts:
                self._check_cut(cut, n, sizes[cut.axis])

    def _check_cut(self, cut: Cut, n: int, parts: int) -> None:
        if isinstance(cut, Cuts) and (len(cut.boundaries) != parts + 1 or cut.boundaries[-1] != n):
            raise LayoutError(
                f"{cut!r} does not cut {n} indices over {parts} ranks: it needs {parts + 1} boundaries from 0 to {n}"
            )
        if isinstance(cut, Cyclic) and cut.source >= parts:
            raise LayoutError(f"{cut!r}: source must be below {parts}, the size of the axis")

    def indices(
        self, shape: Shape, sizes: Mapping[str, int], coords: Mapping[str, int] | None
    ) -> tuple[IndexSet, IndexSet]:
        """The rows and the columns that the rank at `coords` holds; none where these are None, an idle rank's.

        LayoutError where this layout does not fit, as `check` says.
        """
        if coords is None:
            return IndexSet.interval(0, 0), IndexSet.interval(0, 0)
        try:
            return share(shape[0], self.rows, sizes, coords), share(shape[1], self.cols, sizes, coords)
        except (KeyError, IndexError):
            self.check(shape, sizes)
            raise

    def local_shape(self, shape: Shape, sizes: Mapping[str, int], coords: Mapping[str, int] | None) -> Shape:
        """Shape of the block that the rank at `coords` holds: see `indices`."""
        rows, cols = self.indices(shape, sizes, coords)
        return len(rows), len(cols)

    def part(self, shape: Shape, sizes: Mapping[str, int], rows: tuple[int, int], cols: tuple[int, int]) -> Layout:
        """The layout of the rows and columns [start, stop) alone, each element where it is.

        LayoutError for a dimension that is cut along several axes: part of a cut within a cut is no such cut.
        """
        faces = zip(("rows", "cols"), shape, (self.rows, self.cols), (rows, cols), strict=True)
        made = [self._part(name, n, cuts, sizes, *ends) for name, n, cuts, ends in faces]
        return Layout(made[0], made[1], self.partial)

    def _part(
        self, name: str, n: int, cuts: tuple[Cut, ...], sizes: Mapping[str, int], start: int, stop: int
    ) -> tuple[Cut, ...]:
        if (start, stop) == (0, n):
            return cuts
        cuts = effective(cuts, sizes)
        if len(cuts) > 1:
            raise LayoutError(f"{name} {start} to {stop} of {n} in {self!r}: cut along several axes; redistribute first")
        return tuple(cut.part(n, sizes[cut.axis], start, stop) for cut in cuts)

    def owner(self, index: tuple[int, int], shape: Shape, sizes: Mapping[str, int]) -> dict[str, int]:
        """Coordinates, along the axes that cut, of the ranks that hold the element (row, column)."""
        for i, n in zip(index, shape, strict=True):
            if not 0 <= i < n:
                raise LayoutError(f"element {index} lies outside a matrix of shape {shape}")
        coords: dict[str, int] = {}
        for i, n, cuts in zip(index, shape, (self.rows, self.cols), strict=True):
            held, position = IndexSet.interval(0, n), i
            for cut in cuts:
                [coords[cut.axis]] = cut.owners(len(held), sizes[cut.axis], IndexSet.interval(position, position + 1)).tolist()
                held = held.select(cut.share(len(held), sizes[cut.axis], coords[cut.axis]))
                position = held.position(i)
        return coords

    def same_cuts(self, other: Layout, shape: Shape, sizes: Mapping[str, int]) -> bool:
        """Whether every rank holds the same rows and columns under both layouts (partial sums apart)."""
        pairs = ((self.rows, other.rows), (self.cols, other.cols))
        return all(_same_cut(n, *pair, sizes) for n, pair in zip(shape, pairs, strict=True))


def _same_cut(n: int, first: tuple[Cut, ...], second: tuple[Cut, ...], sizes: Mapping[str, int]) -> bool:
    """Compare index sets, never names: two ways of writing one cut are one cut."""
    first, second = effective(first, sizes), effective(second, sizes)
    if first == second:
        return True
    if set(axes_of(first)) != set(axes_of(second)):
        return False
    over = axes_of(first)
    return all(held == share(n, second, sizes, where) for where, held in shares(n, first, sizes, over, {}))


# ---------------------------------------------------------------------------------------------- blocks within blocks


def places_of(
    shape: Shape, parts: Layout, whole: Layout, axes: tuple[str, ...], sizes: Mapping[str, int], coords: Mapping[str, int]
) -> list[tuple[Selection, Selection]]:
    """Of each rank that differs from the one at `coords` along the axes alone: where its block under `parts` lies in that one's
    block under `whole`."""
    return _places_of(shape, parts, whole, axes, tuple(sizes.items()), tuple(coords.items()))


@lru_cache(maxsize=128)
def _places_of(
    shape: Shape, parts: Layout, whole: Layout, axes: tuple[str, ...], sized: tuple, placed: tuple
) -> list[tuple[Selection, Selection]]:
    sizes, coords = dict(sized), dict(placed)
    held = whole.indices(shape, sizes, coords)
    faces = zip(shape, (parts.rows, parts.cols), held, strict=True)
    rows, cols = (_places_along(n, cuts, mine, axes, sizes, coords) for n, cuts, mine in faces)
    return list(zip(rows, cols, strict=True))


def _places_along(
    n: int, cuts: tuple[Cut, ...], held: IndexSet, axes: tuple[str, ...], sizes: Mapping[str, int], coords: Mapping[str, int]
) -> list[Selection]:
    """The same of one dimension; of many ranks most may have none of it."""
    free = [axis for axis in axes_of(cuts) if axis in axes]
    fixed = [axis for axis in axes_of(cuts) if axis not in axes]
    found = {
        tuple(one.where[axis] for axis in free): one.here
        for one in overlays(n, cuts, sizes, held)
        if all(one.where[axis] == coords[axis] for axis in fixed)
    }
    turns, nothing = [axes.index(axis) for axis in free], slice(0, 0)
    return [found.get(tuple(point[i] for i in turns), nothing) for point in product(*(range(sizes[axis]) for axis in axes))]
