"""Walking one dimension: which matrices move along it, over which axes, and in which layouts.

SUMMA and Cannon walk m, n or k. The two matrices that have the walked dimension may move along it
(A and B are broadcast or shifted, C is reduced or passed on); the third stays. What has to be
gathered along other dimensions is gathered first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdla.cuts import Block
from pdla.layout import Layout, axes_of, effective, share, shares
from pdla.matmul.roles import Nest, Roles, simplify
from pdla.matmul.schedules.streams import PlanCache, Stream, assemble, list_meetings
from pdla.matrix.core import DistMatrix

# Which dimension of A, B and C is the walked one: 0 the rows, 1 the columns, None neither.
WALKED: dict[str, tuple[int | None, int | None, int | None]] = {"k": (1, 0, None), "n": (None, 1, 1), "m": (0, None, 0)}


@dataclass(frozen=True)
class Walk:
    """How panels pass along the walked dimension.

    It has the axes along which A, B and C move panel by panel (none: it stays); the layouts from
    which A and B set out, and at which C arrives; and the words that all of the panels have.
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
        """Those along which A, B and C move."""
        return self.axes_a, self.axes_b, self.axes_c

    @property
    def layouts(self) -> tuple[Layout, Layout, Layout]:
        """Of A, B and C."""
        return self.A, self.B, self.C

    @property
    def sides(self) -> list[tuple[Nest, tuple[str, ...]]]:
        """Of each of the two matrices that have the walked dimension: how it is cut along it, and the axes along which it moves."""
        found = zip(self.layouts, self.axes, WALKED[self.dimension], strict=True)
        return [((X.rows, X.cols)[which], axes) for X, axes, which in found if which is not None]

    def length(self, mnk: tuple[int, int, int]) -> int:
        """How many indices the walked dimension has."""
        return mnk["mnk".index(self.dimension)]


def _cuts(layout: Layout, dimension: int, sizes: Mapping[str, int]) -> Nest:
    return effective((layout.rows, layout.cols)[dimension], sizes)


def _replace_cuts(layout: Layout, dimension: int, cuts: Nest) -> Layout:
    return Layout(cuts, layout.cols, layout.partial) if dimension == 0 else Layout(layout.rows, cuts, layout.partial)


def _plan_stream(given: Layout, needed: Layout, dimension: int | None, sizes: Mapping[str, int]) -> tuple[tuple[str, ...], Layout]:
    """The axes over which an operand can move along the dimension, and the layout that it must have before.

    None: it has to be gathered.
    """
    if dimension is None:
        return (), needed
    before, after = _cuts(given, dimension, sizes), _cuts(needed, dimension, sizes)
    axes = axes_of(before[len(after) :])
    if before[: len(after)] != after or set(axes) & set(needed.axes):
        return (), needed
    return axes, _replace_cuts(needed, dimension, before)


def _plan_reduction(c: Layout, wanted: Layout, dimension: int | None, sizes: Mapping[str, int]) -> tuple[tuple[str, ...], Layout]:
    """The axes over which addends of C can be summed panel by panel, and C's layout after the walk.

    Each panel is summed at the rank that is to hold it; sums over other axes may be left.
    """
    axes, layout = _plan_stream(wanted, c.summed, dimension, sizes)
    if not set(axes) <= set(c.partial):
        return (), c
    return axes, Layout(layout.rows, layout.cols, [axis for axis in c.partial if axis not in axes])


def _walk(
    dimension: str, A: Layout, B: Layout, wanted: Layout, roles: Roles, sizes: Mapping[str, int], mnk: tuple[int, int, int]
) -> Walk:
    da, db, dc = WALKED[dimension]
    (axes_a, a), (axes_b, b) = _plan_stream(A, roles.A, da, sizes), _plan_stream(B, roles.B, db, sizes)
    axes_c, c = _plan_reduction(roles.C, wanted, dc, sizes)
    m, n, k = mnk

    def count_share(size: int, layout: Layout, axes: tuple[str, ...]) -> float:
        held = float(size)
        for axis in layout.axes:
            held /= 1 if axis in axes else sizes[axis]
        return held if axes else 0.0

    words = count_share(m * k, a, axes_a) + count_share(k * n, b, axes_b) + count_share(m * n, c, axes_c)
    return Walk(dimension, axes_a, axes_b, axes_c, a, b, c, words)


def choose(
    A: Layout, B: Layout, wanted: Layout, roles: Roles, sizes: Mapping[str, int], mnk: tuple[int, int, int],
    dimension: str | None = None,
) -> Walk:
    """The walk along a dimension; None: along that on which most words move panel by panel, ties to k, then n."""
    A, B, wanted = (simplify(X, sizes) for X in (A, B, wanted))
    return max((_walk(d, A, B, wanted, roles, sizes, mnk) for d in dimension or "knm"), key=lambda walk: walk.words)


def find_widest(walked: Walk, mnk: tuple[int, int, int], sizes: Mapping[str, int]) -> int:
    """The width of the widest panel there can be.

    That is the most indices of the walked dimension that a share by the one and a share by the
    other matrix that has it have in common.
    """
    n, nests = walked.length(mnk), [nest for nest, _ in walked.sides]
    if all(isinstance(cut, Block) for nest in nests for cut in nest):  # the first shares begin together, and none is longer
        return count_first_common(walked, mnk, sizes)
    xs, ys = (shares(n, nest, sizes, axes_of(nest), {}) for nest in nests)
    return max((meeting.width for meeting in list_meetings(xs, ys)), default=0)


def count_first_common(walked: Walk, mnk: tuple[int, int, int], sizes: Mapping[str, int]) -> int:
    """How many indices of the walked dimension the grid's first rank holds of both matrices that have it.

    If panels may be so wide, its widest has no fewer.
    """
    x, y = (share(walked.length(mnk), nest, sizes, dict.fromkeys(axes_of(nest), 0)) for nest, _ in walked.sides)
    return x.overlay(y)[2]


def make_streams(a: DistMatrix, b: DistMatrix, c: DistMatrix, walk: Walk, memo: PlanCache) -> list[Stream] | None:
    """Collective: A, B and C as streams along the walked dimension, A and B gathered as `walk` needs them; None on idle ranks."""
    a, b = assemble(a, walk.A, memo), assemble(b, walk.B, memo)
    for axes in walk.axes:
        if axes:
            a.grid[axes]
    if not a.grid.active:
        return None
    da, db, dc = WALKED[walk.dimension]
    along = [(a, da or 0, walk.axes_a), (b, db or 0, walk.axes_b), (c, dc or 0, walk.axes_c)]
    parts = memo.once(("parts", walk), lambda: [Stream.list_parts(*one) for one in along])
    return [Stream.along(*one, held) for one, held in zip(along, parts, strict=True)]

