"""Walking one dimension: which matrices move along it, over which axes, and in which layouts.

SUMMA and Cannon walk m, n or k. The two matrices that have the walked dimension may move along it:
A and B are broadcast or shifted, C is reduced or passed on. The third matrix does not move. Gathers
along other dimensions come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdla.cuts import Block
from pdla.layout import Layout, axes_of, effective, share, shares
from pdla.matmul.roles import Nest, Roles, simplify
from pdla.matmul.schedules.streams import PlanCache, Stream, assemble, list_meetings
from pdla.matrix.core import DistMatrix

# The walked dimension of A, B and C: 0 is rows, 1 is columns, None is neither.
WALKED: dict[str, tuple[int | None, int | None, int | None]] = {"k": (1, 0, None), "n": (None, 1, 1), "m": (0, None, 0)}


@dataclass(frozen=True)
class Walk:
    """How panels move along the walked dimension.

    axes_a, axes_b, axes_c  the axes along which A, B and C move; empty: the matrix does not move
    A, B, C                 the layouts in which A and B start and C ends
    words                   the words of all panels
    """

    dimension: str
    axes_a: tuple[str, ...]
    axes_b: tuple[str, ...]
    axes_c: tuple[str, ...]
    A: Layout
    B: Layout
    C: Layout
    words: float

    @property
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """The axes along which A, B and C move."""
        return self.axes_a, self.axes_b, self.axes_c

    @property
    def layouts(self) -> tuple[Layout, Layout, Layout]:
        """The layouts of A, B and C."""
        return self.A, self.B, self.C

    @property
    def sides(self) -> list[tuple[Nest, tuple[str, ...]]]:
        """For each of the two matrices that have the walked dimension: its cuts of it, and the axes along which it moves."""
        matrices = zip(self.layouts, self.axes, WALKED[self.dimension], strict=True)
        return [((X.rows, X.cols)[dimension], axes) for X, axes, dimension in matrices if dimension is not None]

    def length(self, mnk: tuple[int, int, int]) -> int:
        """Count the indices of the walked dimension."""
        return mnk["mnk".index(self.dimension)]


def _list_cuts(layout: Layout, dimension: int, sizes: Mapping[str, int]) -> Nest:
    return effective((layout.rows, layout.cols)[dimension], sizes)


def _replace_cuts(layout: Layout, dimension: int, cuts: Nest) -> Layout:
    return Layout(cuts, layout.cols, layout.partial) if dimension == 0 else Layout(layout.rows, cuts, layout.partial)


def _plan_stream(given: Layout, needed: Layout, dimension: int | None, sizes: Mapping[str, int]) -> tuple[tuple[str, ...], Layout]:
    """Find the axes along which an operand can move in panels, and the layout that it must have before the walk.

    No axes: it must be gathered.
    """
    if dimension is None:
        return (), needed
    before, after = _list_cuts(given, dimension, sizes), _list_cuts(needed, dimension, sizes)
    axes = axes_of(before[len(after) :])
    if before[: len(after)] != after or set(axes) & set(needed.axes):
        return (), needed
    return axes, _replace_cuts(needed, dimension, before)


def _plan_reduction(c: Layout, target: Layout, dimension: int | None, sizes: Mapping[str, int]) -> tuple[tuple[str, ...], Layout]:
    """Find the axes along which addends of C can be summed panel by panel, and C's layout after the walk.

    Each panel is summed at its owner; sums along other axes may remain.
    """
    axes, layout = _plan_stream(target, c.summed, dimension, sizes)
    if not set(axes) <= set(c.partial):
        return (), c
    return axes, Layout(layout.rows, layout.cols, [axis for axis in c.partial if axis not in axes])


def _make_walk(
    dimension: str, A: Layout, B: Layout, target: Layout, roles: Roles, sizes: Mapping[str, int], mnk: tuple[int, int, int]
) -> Walk:
    da, db, dc = WALKED[dimension]
    (axes_a, a), (axes_b, b) = _plan_stream(A, roles.A, da, sizes), _plan_stream(B, roles.B, db, sizes)
    axes_c, c = _plan_reduction(roles.C, target, dc, sizes)
    m, n, k = mnk

    def count_share(size: int, layout: Layout, axes: tuple[str, ...]) -> float:
        held = float(size)
        for axis in layout.axes:
            held /= 1 if axis in axes else sizes[axis]
        return held if axes else 0.0

    words = count_share(m * k, a, axes_a) + count_share(k * n, b, axes_b) + count_share(m * n, c, axes_c)
    return Walk(dimension, axes_a, axes_b, axes_c, a, b, c, words)


def choose(
    A: Layout, B: Layout, target: Layout, roles: Roles, sizes: Mapping[str, int], mnk: tuple[int, int, int],
    dimension: str | None = None,
) -> Walk:
    """Choose the walk along a dimension; None: the dimension of most words in panels, ties to k, then n."""
    A, B, target = (simplify(X, sizes) for X in (A, B, target))
    return max((_make_walk(d, A, B, target, roles, sizes, mnk) for d in dimension or "knm"), key=lambda walk: walk.words)


def find_widest(walked: Walk, mnk: tuple[int, int, int], sizes: Mapping[str, int]) -> int:
    """Find the width of the widest panel that can occur.

    Two matrices have the walked dimension. The width is the most indices that a share of the one and
    a share of the other have in common.
    """
    n, nests = walked.length(mnk), [nest for nest, _ in walked.sides]
    if all(isinstance(cut, Block) for nest in nests for cut in nest):  # the first shares both start at 0, and none is longer
        return count_first_common(walked, mnk, sizes)
    xs, ys = (shares(n, nest, sizes, axes_of(nest), {}) for nest in nests)
    return max((meeting.width for meeting in list_meetings(xs, ys)), default=0)


def count_first_common(walked: Walk, mnk: tuple[int, int, int], sizes: Mapping[str, int]) -> int:
    """Count the indices of the walked dimension that the grid's first rank holds of both matrices that have it.

    The widest panel is no narrower, if panels may be so wide.
    """
    x, y = (share(walked.length(mnk), nest, sizes, dict.fromkeys(axes_of(nest), 0)) for nest, _ in walked.sides)
    return x.overlay(y)[2]


def make_streams(a: DistMatrix, b: DistMatrix, c: DistMatrix, walk: Walk, memo: PlanCache) -> list[Stream] | None:
    """Collective: make streams of A, B and C along the walked dimension, A and B gathered as `walk` needs; None on idle ranks."""
    a, b = assemble(a, walk.A, memo), assemble(b, walk.B, memo)
    for axes in walk.axes:
        if axes:
            a.grid[axes]
    if not a.grid.active:
        return None
    da, db, dc = WALKED[walk.dimension]
    along = [(a, da or 0, walk.axes_a), (b, db or 0, walk.axes_b), (c, dc or 0, walk.axes_c)]
    parts = memo.find_or_make(("parts", walk), lambda: [Stream.list_parts(*operand) for operand in along])
    return [Stream.along(*operand, own_parts) for operand, own_parts in zip(along, parts, strict=True)]

