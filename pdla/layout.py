"""Layouts: the owners of rows and columns, as immutable values, without communication.

A tuple of *cuts* (pdla/cuts.py), outermost first, cuts a matrix dimension along grid axes. Each cut
divides each share of the cuts before it: an all-gather along the innermost axis gives exactly the
layout without it. A rank's share of a dimension is an `IndexSet` (pdla/indices.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pdla.cuts import Cut, Cuts, Cyclic, cuts_of, to_spec
from pdla.errors import LayoutError, suggest
from pdla.indices import IndexSet, Selection

if TYPE_CHECKING:
    from pdla.show import Drawing, Span

Shape = tuple[int, int]
DRAWN = 24  # blocks of rows, and of columns, that are drawn
MOST_BLOCKS = 10**5  # of a dimension that is drawn
_AXIS = attrgetter("axis")


# ---------------------------------------------------------------------------------------------- shares


@lru_cache(maxsize=65536)
def _share(n: int, cuts: tuple[Cut, ...], parts: tuple[int, ...], coords: tuple[int, ...]) -> IndexSet:
    """Find the share of indices 0 to n - 1 after all cuts, outermost first."""
    if not cuts:
        return IndexSet.interval(0, n)
    held = _share(n, cuts[:-1], parts[:-1], coords[:-1])
    return held.select(cuts[-1].share(len(held), parts[-1], coords[-1]))


def share(n: int, cuts: tuple[Cut, ...], sizes: Mapping[str, int], coords: Mapping[str, int]) -> IndexSet:
    """Find the indices of a dimension of length n that the rank at `coords` holds."""
    axes = axes_of(cuts)
    return _share(n, cuts, tuple(map(sizes.__getitem__, axes)), tuple(map(coords.__getitem__, axes)))


def share_length(n: int, cuts: tuple[Cut, ...], sizes: Mapping[str, int], coords: Mapping[str, int]) -> int:
    """Count the indices of `share` without making it: the runs of short cyclic blocks could fill the memory."""
    for cut in cuts:
        n = cut.length(n, sizes[cut.axis], coords[cut.axis])
    return n


def points(sizes: Mapping[str, int], over: tuple[str, ...], coords: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the coordinates of ranks that differ from `coords` only along the axes `over`, first axis slowest."""
    for point in product(*(range(sizes[axis]) for axis in over)):
        yield {**coords, **dict(zip(over, point, strict=True))}


def shares(
    n: int, cuts: tuple[Cut, ...], sizes: Mapping[str, int], over: tuple[str, ...], coords: Mapping[str, int]
) -> list[IndexSet]:
    """List the shares of such ranks, of which each is made once: ranks share one along axes that do not cut the dimension."""
    turning = tuple(axis for axis in over if axis in axes_of(cuts))
    made = {tuple([where[axis] for axis in turning]): share(n, cuts, sizes, where) for where in points(sizes, turning, coords)}
    at = [i for i, axis in enumerate(over) if axis in turning]
    if len(at) == len(over):
        return [*made.values()]
    return [made[tuple([point[i] for i in at])] for point in product(*(range(sizes[axis]) for axis in over))]


def find_shares(
    n: int, cuts: tuple[Cut, ...], sizes: Mapping[str, int], held: IndexSet, where: Mapping[str, int] | None = None
) -> Iterator[tuple[dict[str, int], IndexSet]]:
    """Yield the shares of a dimension that have indices in common with `held`, without a look at others."""
    where = dict(where or {})
    if len(where) == len(cuts):
        yield where, share(n, cuts, sizes, where)
        return
    cut, left = cuts[len(where)], share(n, cuts[: len(where)], sizes, where)
    for i in cut.owners(len(left), sizes[cut.axis], held.locate_in(left)).tolist():
        yield from find_shares(n, cuts, sizes, held, {**where, cut.axis: i})


class Overlay(NamedTuple):
    """A share of a dimension that has indices in common with an index set `held`.

    where  the coordinates of its ranks
    share  its indices
    here   the positions of the common indices in `held`
    there  their positions in the share
    size   their number
    """

    where: dict[str, int]
    share: IndexSet
    here: Selection
    there: Selection
    size: int


def overlays(n: int, cuts: tuple[Cut, ...], sizes: Mapping[str, int], held: IndexSet) -> Iterator[Overlay]:
    """Yield the overlay of each share of a dimension that has indices in common with `held`."""
    for where, part in find_shares(n, cuts, sizes, held):
        here, there, size = held.overlay(part)
        if size:
            yield Overlay(where, part, here, there, size)


def overlays_of_blocks(
    shape: Shape, layout: Layout, sizes: Mapping[str, int], held: tuple[IndexSet, IndexSet]
) -> Iterator[tuple[Overlay, Overlay]]:
    """Overlay rows and columns `held` with each block of a matrix that has elements in common with them."""
    rows, cols = (overlays(n, cuts, sizes, part) for n, cuts, part in zip(shape, (layout.rows, layout.cols), held, strict=True))
    return product(rows, cols)


def effective(cuts: tuple[Cut, ...], sizes: Mapping[str, int]) -> tuple[Cut, ...]:
    """The cuts without those along axes of one rank, which cut nothing; mostly `cuts` itself."""
    for cut in cuts:
        if sizes[cut.axis] == 1:
            return tuple([cut for cut in cuts if sizes[cut.axis] > 1])
    return cuts


def extra_axes(old: Layout, new: Layout, sizes: Mapping[str, int]) -> tuple[str, ...] | None:
    """Find the axes, of the innermost cuts of `old`, whose all-gather turns `old` into `new`; None if there are none."""
    extra: tuple[str, ...] = ()
    for before, after in ((old.rows, new.rows), (old.cols, new.cols)):
        before, after = effective(before, sizes), effective(after, sizes)
        if before[: len(after)] != after:
            return None
        extra += axes_of(before[len(after) :])
    return extra


def axes_of(cuts: tuple[Cut, ...]) -> tuple[str, ...]:
    return tuple(map(_AXIS, cuts))


def ranks_along(axes: Iterable[str], sizes: Mapping[str, int]) -> int:
    """Count the ranks that differ only along these axes."""
    return prod(map(sizes.__getitem__, axes))


def usual_order(shape: tuple[int, ...]) -> np.ndarray:
    """The rank at each coordinate of a grid with order=None: col varies fastest, then row, then depth, a fourth axis slowest."""
    n, lead = len(shape), min(len(shape), 2)
    flat = np.arange(prod(shape)).reshape((*shape[:1:-1], *shape[:2]))
    return flat.transpose([*range(n - lead, n), *range(n - lead - 1, -1, -1)])


# ---------------------------------------------------------------------------------------------- layouts


def _summed_over(spec: Any) -> tuple[str, ...]:
    """Convert a user's partial= to a tuple of axes; a set is sorted, so that all ranks have the same order."""
    axes = (spec,) if isinstance(spec, str) else tuple(sorted(spec, key=str)) if isinstance(spec, (set, frozenset)) else spec
    if not isinstance(axes, (tuple, list)) or not all(isinstance(axis, str) for axis in axes):
        raise LayoutError(f"partial={spec!r}: give the name of an axis or a tuple of names")
    return tuple(axes)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Layout:
    """The cuts of a matrix over a grid: an immutable value, without communication.

    Ranks along axes that are not named hold copies.

    Parameters
    ----------
    rows, cols : None, str, Cyclic, Cuts, Balanced or tuple of these, optional
        How rows and columns are cut, outermost first: None: not at all; an axis name: in balanced
        blocks.
    partial : str or tuple of str, optional
        Axes along which each rank holds an addend of the matrix, not the matrix; in any order.

    Raises
    ------
    LayoutError
        For an axis used twice, and for Cuts inside another cut.

    Examples
    --------
    >>> layout = pdla.Layout(rows="row", cols="col")
    >>> layout.local_shape((10, 6), {"row": 2, "col": 3}, {"row": 0, "col": 1})
    (5, 2)
    >>> layout.T
    Layout(rows='col', cols='row')
    """

    rows: tuple[Cut, ...]
    cols: tuple[Cut, ...]
    partial: tuple[str, ...]

    def __init__(self, rows: Any = None, cols: Any = None, partial: Any = ()) -> None:
        object.__setattr__(self, "rows", cuts_of(rows, "rows"))
        object.__setattr__(self, "cols", cuts_of(cols, "cols"))
        object.__setattr__(self, "partial", _summed_over(partial))
        named = [*axes_of(self.rows), *axes_of(self.cols), *self.partial]
        for axis in named:
            if named.count(axis) > 1:
                raise LayoutError(f"{self!r} names the axis {axis!r} twice: an axis cuts one dimension, once")
        for cut in (*self.rows[1:], *self.cols[1:]):
            if isinstance(cut, Cuts):
                raise LayoutError(f"{self!r}: {cut!r} must be the outermost cut of its dimension")

    @staticmethod
    def trust(rows: tuple[Cut, ...], cols: tuple[Cut, ...], partial: tuple[str, ...] = ()) -> Layout:
        """Make a layout of cuts without a check. The caller knows that they fit together.

        Parameters
        ----------
        rows, cols : tuple of cuts
            Outermost first.
        partial : tuple of str, optional
            Axes of addends.

        Returns
        -------
        Layout
            The layout.
        """
        made = object.__new__(Layout)
        made.__dict__.update(rows=rows, cols=cols, partial=partial)
        return made

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return self.rows, self.cols, frozenset(self.partial)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._hash == other._hash and self._key == other._key)

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout, (self.rows, self.cols, self.partial)  # without the cached hash: another process hashes strings otherwise

    def __repr__(self) -> str:
        return self._words

    @cached_property
    def _words(self) -> str:
        words = [f"{name}={to_spec(cuts)!r}" for name, cuts in (("rows", self.rows), ("cols", self.cols)) if cuts]
        words += [f"partial={self.partial!r}"] if self.partial else []
        return f"Layout({', '.join(words)})"

    def _repr_html_(self) -> str:
        """The layout in words, and its drawing on the smallest grid and matrix that show all cuts."""
        from pdla import show

        sizes: dict[str, int] = dict.fromkeys(self.partial, 2)
        shape = []
        for cuts in (self.rows, self.cols):
            length = 4 if not cuts else 2 * max(getattr(cut, "block", getattr(cut, "unit", 1)) for cut in cuts)
            for cut in cuts:
                sizes[cut.axis] = len(cut.boundaries) - 1 if isinstance(cut, Cuts) else max(2, getattr(cut, "source", 0) + 1)
                length *= sizes[cut.axis]
            shape.append(cuts[0].boundaries[-1] if cuts and isinstance(cuts[0], Cuts) else length)
        grid = f", as of {shape[0]} x {shape[1]} elements on {' x '.join(map(str, sizes.values()))} ranks" if sizes else ""
        return show.heading(f"{self!r}{grid}") + draw_html(self, (shape[0], shape[1]), sizes)

    @property
    def T(self) -> Layout:
        """The layout of the transpose."""
        return Layout.trust(self.cols, self.rows, self.partial)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Axes that cut a dimension, rows first."""
        return tuple(map(_AXIS, self.rows + self.cols))

    @property
    def contiguous(self) -> bool:
        """Whether no cut is cyclic: each rank's rows, and its columns, are one range."""
        return not any(isinstance(cut, Cyclic) for cut in (*self.rows, *self.cols))

    @property
    def summed(self) -> Layout:
        """The layout after an all-reduce of the partial sums, whose axes then hold copies."""
        return Layout.trust(self.rows, self.cols) if self.partial else self

    def check(self, shape: Shape, sizes: Mapping[str, int]) -> None:
        """Check that this layout fits a matrix on a grid.

        Parameters
        ----------
        shape : tuple of int
            Rows and columns of the matrix.
        sizes : mapping of str to int
            Ranks along each axis, `ProcessGrid.sizes`.

        Raises
        ------
        LayoutError
            Unless it does.
        """
        for axis in (*self.axes, *self.partial):
            if axis not in sizes:
                raise LayoutError(f"{self!r} names the axis {axis!r}; the grid has {', '.join(sizes)}{suggest(axis, sizes)}")
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
        """Give the rows and the columns that a rank holds.

        Parameters
        ----------
        shape : tuple of int
            Rows and columns of the matrix.
        sizes : mapping of str to int
            Ranks along each axis, `ProcessGrid.sizes`.
        coords : mapping of str to int, or None
            The rank's coordinates, `ProcessGrid.coords`; None: an idle rank's.

        Returns
        -------
        rows, cols : IndexSet
            Both empty on an idle rank.

        Raises
        ------
        LayoutError
            If the layout does not fit, see `check`.
        """
        if coords is None:
            return IndexSet.interval(0, 0), IndexSet.interval(0, 0)
        try:
            return share(shape[0], self.rows, sizes, coords), share(shape[1], self.cols, sizes, coords)
        except (KeyError, IndexError):
            self.check(shape, sizes)
            raise

    def local_shape(self, shape: Shape, sizes: Mapping[str, int], coords: Mapping[str, int] | None) -> Shape:
        """Give the shape of the block that a rank holds.

        Parameters
        ----------
        shape : tuple of int
            Rows and columns of the matrix.
        sizes : mapping of str to int
            Ranks along each axis, `ProcessGrid.sizes`.
        coords : mapping of str to int, or None
            The rank's coordinates, `ProcessGrid.coords`; None: an idle rank's.

        Returns
        -------
        tuple of int
            Rows and columns; (0, 0) on an idle rank.

        Raises
        ------
        LayoutError
            If the layout does not fit, see `check`.
        """
        if coords is None:
            return 0, 0
        try:
            return share_length(shape[0], self.rows, sizes, coords), share_length(shape[1], self.cols, sizes, coords)
        except (KeyError, IndexError):
            self.check(shape, sizes)
            raise

    def part(self, shape: Shape, sizes: Mapping[str, int], rows: range, cols: range) -> Layout:
        """Give the layout of some rows and columns; each element stays on its rank.

        Parameters
        ----------
        shape : tuple of int
            Rows and columns of the matrix.
        sizes : mapping of str to int
            Ranks along each axis, `ProcessGrid.sizes`.
        rows, cols : range
            Rows and columns of the part, ascending.

        Returns
        -------
        Layout
            The layout of the part.

        Raises
        ------
        LayoutError
            For a part of a dimension that is cut along several axes: no nested cuts describe it.
            The first indices of cyclic cuts are allowed. For steps that do not divide the length of
            cyclic blocks.
        """
        faces = zip(("rows", "cols"), shape, (self.rows, self.cols), (rows, cols), strict=True)
        made = [self._part(name, n, cuts, sizes, some) for name, n, cuts, some in faces]
        return Layout(made[0], made[1], self.partial)

    def _part(self, name: str, n: int, cuts: tuple[Cut, ...], sizes: Mapping[str, int], some: range) -> tuple[Cut, ...]:
        if some == range(n):
            return cuts
        cuts, step = effective(cuts, sizes), some.step
        told = f"{name} {some.start} to {some.stop} of {n}{f' in steps of {step}' if step > 1 else ''} in {self!r}"
        cyclic = [cut for cut in cuts if isinstance(cut, Cyclic)]
        if len(cuts) > 1 and (some.start or step > 1 or len(cyclic) < len(cuts)):
            raise LayoutError(f"{told}: cut along several axes; redistribute first")
        if any(cut.block % step for cut in cyclic):
            raise LayoutError(f"{told}: steps must divide cyclic blocks; redistribute to other blocks first")
        return tuple(cut.part(n, sizes[cut.axis], some.start, some.stop, step) for cut in cuts)

    def owner(self, index: tuple[int, int], shape: Shape, sizes: Mapping[str, int]) -> dict[str, int]:
        """Find the ranks that hold an element.

        Parameters
        ----------
        index : tuple of int
            Its row and column.
        shape : tuple of int
            Rows and columns of the matrix.
        sizes : mapping of str to int
            Ranks along each axis, `ProcessGrid.sizes`.

        Returns
        -------
        dict of str to int
            Their coordinates along the axes that cut.

        Raises
        ------
        LayoutError
            For an element outside the matrix.

        Examples
        --------
        >>> pdla.Layout("row", "col").owner((9, 0), (10, 6), {"row": 2, "col": 3})
        {'row': 1, 'col': 0}
        """
        for i, n in zip(index, shape, strict=True):
            if not 0 <= i < n:
                raise LayoutError(f"element {index} is outside a matrix of shape {shape}")
        coords: dict[str, int] = {}
        for i, n, cuts in zip(index, shape, (self.rows, self.cols), strict=True):
            [(where, _)] = find_shares(n, cuts, sizes, IndexSet.interval(i, i + 1))
            coords |= where
        return coords

    def draw(self, shape: Shape, grid: Any) -> Drawing:
        """Draw the owners: each element in the colour of its ranks, with their numbers. Local.

        Each of up to 16 rows, or columns, has a square. More are drawn as blocks: neighbours on the
        same ranks. Only the first 24 blocks are drawn.

        Parameters
        ----------
        shape : tuple of int
            Rows and columns of the matrix.
        grid : ProcessGrid or mapping of str to int
            The grid, on which this rank's part has a frame. Or ranks along each axis, in the usual
            order of a grid.

        Returns
        -------
        Drawing
            A notebook shows it, a terminal prints it, and its `save(path)` writes an SVG file.

        Raises
        ------
        LayoutError
            If the layout does not fit, see `check`; for more than 100000 blocks, unless all cuts
            are cyclic.

        Examples
        --------
        >>> pdla.Layout("row", pdla.Cyclic("col", 1)).draw((3, 4), {"row": 2, "col": 2})
        0  1  0  1
        0  1  0  1
        2  3  2  3
        """
        from pdla import show

        sizes = getattr(grid, "sizes", grid)
        self.check(shape, sizes)
        ranks = getattr(grid, "ranks", None)
        ranks = usual_order(tuple(sizes.values())) if ranks is None else ranks
        rows, cols = (_spans(n, cuts, sizes) for n, cuts in zip(shape, (self.rows, self.cols), strict=True))

        def holders(*where: dict[str, int]) -> list[int]:
            at = where[0] | where[1]
            return ranks[tuple(at.get(axis, slice(None)) for axis in sizes)].ravel().tolist()

        here = grid.comm.rank if hasattr(grid, "comm") else None
        return show.owners(shape, rows, cols, holders, "+" if self.partial else " ", here)

    def same_cuts(self, other: Layout, shape: Shape, sizes: Mapping[str, int]) -> bool:
        """Tell whether every rank holds the same rows and columns under both layouts.

        Partial sums are not compared.

        Parameters
        ----------
        other : Layout
            The other layout.
        shape : tuple of int
            Rows and columns of the matrix.
        sizes : mapping of str to int
            Ranks along each axis, `ProcessGrid.sizes`.

        Returns
        -------
        bool
            Whether the shares are equal, however the cuts are written.
        """
        pairs = ((self.rows, other.rows), (self.cols, other.cols))
        return all(_same_cut(n, *pair, sizes) for n, pair in zip(shape, pairs, strict=True))


def _same_cut(n: int, first: tuple[Cut, ...], second: tuple[Cut, ...], sizes: Mapping[str, int]) -> bool:
    """Whether every rank has the same indices by both. Index sets are compared: a cut may be written in two ways."""
    first, second = effective(first, sizes), effective(second, sizes)
    if first == second:
        return True
    if set(axes_of(first)) != set(axes_of(second)):
        return False
    over = axes_of(first)
    return all(share(n, first, sizes, where) == share(n, second, sizes, where) for where in points(sizes, over, {}))


# ---------------------------------------------------------------------------------------------- drawings


def draw_html(layout: Layout, shape: Shape, grid: Any) -> str:
    """Draw a layout in HTML; return "" if there is too much to draw."""
    try:
        return layout.draw(shape, grid)._repr_html_()
    except LayoutError:
        return ""


def check_drawable(n: int, cuts: tuple[Cut, ...], sizes: Mapping[str, int]) -> None:
    """LayoutError for a dimension of more than MOST_BLOCKS blocks: the search for them would take seconds."""
    blocks = [cut.block for cut in cuts if isinstance(cut, Cyclic)]
    parts = max(ranks_along(axes_of(cuts), sizes), n // min(blocks, default=n or 1))
    if parts > MOST_BLOCKS:
        raise LayoutError(f"{to_spec(cuts)!r} cuts {n} indices into {parts} blocks: too many to draw")


def _spans(n: int, cuts: tuple[Cut, ...], sizes: Mapping[str, int]) -> list[Span]:
    """List the first blocks of a dimension, with the coordinates of their ranks; of a short dimension each index."""
    from pdla.show import SINGLE, Span

    blocks = [cut.block for cut in cuts if isinstance(cut, Cyclic)]
    # With cyclic cuts only, the owners of the first indices do not depend on the length.
    length = min(n, DRAWN * max(blocks)) if blocks and len(blocks) == len(cuts) else n
    check_drawable(length, cuts, sizes)
    found = [
        Span(start, stop, where)
        for where in points(sizes, axes_of(cuts), {})
        for start, stop in share(length, cuts, sizes, where).runs
    ]
    found = sorted(found, key=attrgetter("start"))[:DRAWN]
    if n <= SINGLE:
        return [Span(i, i + 1, span.key) for span in found for i in range(span.start, span.stop)]
    return found


# ---------------------------------------------------------------------------------------------- blocks within blocks


def places_of(
    shape: Shape, parts: Layout, whole: Layout, axes: tuple[str, ...], sizes: Mapping[str, int], coords: Mapping[str, int]
) -> list[tuple[Selection, Selection]]:
    """List the places of ranks' blocks, in the layout `parts`, within the block of the rank at `coords` in the layout `whole`.

    The ranks differ from that one only along the axes, in C order. `whole` is `parts` without its
    cuts along the axes, the innermost ones: blocks of other ranks have no elements there.
    """
    return _places_of(shape, parts, whole, axes, tuple(sizes.items()), tuple(coords.items()))


@lru_cache(maxsize=128)
def _places_of(
    shape: Shape, parts: Layout, whole: Layout, axes: tuple[str, ...], sized: tuple[Any, ...], placed: tuple[Any, ...]
) -> list[tuple[Selection, Selection]]:
    sizes, coords = dict(sized), dict(placed)
    along_each = (_places_along(found, axes, sizes) for found in _overlay_block(shape, parts, whole, sizes, coords))
    return list(zip(*along_each, strict=True))


def _places_along(found: Iterable[Overlay], axes: tuple[str, ...], sizes: Mapping[str, int]) -> list[Selection]:
    """The same along one dimension, from the overlays of the block."""
    numbers: list[int] = []
    here = {}
    for met in found:
        numbers = [i for i, axis in enumerate(axes) if axis in met.where]
        here[tuple(met.where[axes[i]] for i in numbers)] = met.here
    nothing = slice(0, 0)
    return [here.get(tuple(point[i] for i in numbers), nothing) for point in product(*(range(sizes[axis]) for axis in axes))]


def find_blocks(
    shape: Shape, parts: Layout, whole: Layout, axes: tuple[str, ...], sizes: Mapping[str, int], coords: Mapping[str, int]
) -> dict[int, tuple[Overlay, Overlay]]:
    """Find the ranks whose blocks in `parts` have elements of the block in `whole`, as `places_of`.

    Map a rank's number, in C order, to the overlays of its block's rows and columns. All of the
    axes cut `parts`.
    """
    weight, total = {}, 1
    for axis in reversed(axes):
        weight[axis] = total
        total *= sizes[axis]

    def number(met: Overlay) -> int:
        return sum([weight.get(axis, 0) * at for axis, at in met.where.items()])

    rows, cols = ([(number(met), met) for met in found] for found in _overlay_block(shape, parts, whole, sizes, coords))
    return dict(sorted((i + j, (along, across)) for i, along in rows for j, across in cols))


def _overlay_block(
    shape: Shape, parts: Layout, whole: Layout, sizes: Mapping[str, int], coords: Mapping[str, int]
) -> Iterator[Iterator[Overlay]]:
    """Yield the overlays of the block along rows, and those along columns, without a look at other ranks."""
    for n, cuts, held in zip(shape, (parts.rows, parts.cols), whole.indices(shape, sizes, coords), strict=True):
        yield overlays(n, cuts, sizes, held)
