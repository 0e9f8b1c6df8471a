"""The plan for a product: the cheapest one or, with a memory limit, the cheapest one that keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import prod

from pdla.errors import PlanError
from pdla.layout import Layout, Shape
from pdla.matmul.builder import MOST_PANELS, PANEL, PlanBuilder
from pdla.matmul.plan import Plan, costs
from pdla.matmul.schedules import SCHEDULES, walk
from pdla.matmul.schedules.base import AHEAD, even_width

COSTED = 10  # ways, of least price, that are run dry where a machine is described


def make(builder: PlanBuilder) -> Plan:
    """The cheapest plan for a builder: by price and, where a machine is described, of the best few the fastest on it."""
    if builder.options.memory_limit is not None:
        return fitting(lean(builder), builder.options.memory_limit)
    if builder.machine.is_custom and not builder.is_decided:
        return _fastest([builder.plan(way, builder.runners_up) for way in builder.list_contenders(COSTED)])
    return builder.plan(builder.find_cheapest(), builder.runners_up)


def _fastest(plans: Iterable[Plan]) -> Plan:
    """The plan that is fastest on its machine; of equals the one whose first rank is faster."""
    best, *others = sorted(plans, key=lambda plan: costs.clock(plan, costs.first(plan)).seconds)
    for plan in others:
        if costs.is_faster(plan, best.timed.seconds):
            best = plan
    return best


def lean(builder: PlanBuilder) -> Iterator[Plan]:
    """The plans for a builder, cheapest first.

    Where the caller leaves the choice, each is followed by plans in panels on its grid, which need
    less memory.
    """
    options = builder.options
    for way in builder.list_ways():
        yield (cheapest := builder.plan(way))
        how = SCHEDULES[way.schedule]
        if options.schedule is None and how.straight_in_panels and way.table is not None and way.table == way.table.straight:
            yield builder.plan(replace(way, schedule=how.straight_in_panels))
        name = how.in_panels
        if name and options.schedule in (None, name) and (options.algorithm not in SCHEDULES or options.algorithm == name):
            for walked in "knm" if way.table is not None else (None,):
                panels = replace(way, schedule=name, algorithm=way.algorithm if way.table is not None else name)
                if (plan := builder.plan(panels, walked=walked)) != cheapest:
                    yield plan


def fitting(plans: Iterable[Plan], limit: int) -> Plan:
    """The first plan within the limit (bytes of workspace a rank), its panels as narrow as that needs. PlanError if none is."""
    above: list[tuple[float, Plan]] = []
    for plan in plans:
        thinnest = _thinnest(plan)
        least = _least(thinnest)
        peak, narrowed = (least, plan) if least > limit else _narrowed(plan, limit)
        if peak <= limit:
            return narrowed
        above.append((peak, thinnest))
    peak, leanest = _leanest(above)
    if peak > limit:
        raise PlanError(
            f"memory_limit={limit}: {peak - limit} bytes too few; the leanest plan found, {leanest.full_name} "
            f"on {leanest.grid!r}, needs {peak} bytes a rank"
        )
    return leanest


def _leanest(guessed: list[tuple[float, Plan]]) -> tuple[int, Plan]:
    """The plan that needs the least workspace, and its bytes; `guessed`: each plan with about how much it needs at least.

    One rank is run dry first: a plan that needs no less on it need not be tried on the others.
    """
    (_, leanest), *others = sorted(guessed, key=lambda pair: pair[0])
    for guess, plan in others:
        least = leanest.peak
        if guess >= least:
            break
        if plan.peak_of(_first(plan)) < least:
            leanest = min(leanest, plan, key=lambda plan: plan.peak)
    return leanest.peak, leanest


def _least(plan: Plan) -> int:
    """A lower bound on a plan's workspace, in bytes, without a dry run: what the grid's first rank must hold at once.

    That is the blocks of A, B and C in native layouts in which they do not come already; C's
    addends, where they are summed over ranks; and the larger of what is needed at first and of what
    is needed at last. At first that is what is gathered of A and B, unless in memory that ranks
    share, and panels, those under way too; at last the addends that come, if along one axis.
    """
    (m, n, k), sizes, nodes = plan.mnk, plan.grid.sizes, plan.grid.comm.nodes
    how = plan.how
    faces = plan.walk.layouts if how.walks else plan.roles.layouts
    stays = (True, True, plan.stays[2]) if how.takes_any_layout else plan.stays
    first = dict.fromkeys(sizes, 0)

    def block(shape: Shape, layout: Layout) -> int:
        return prod(layout.local_shape(shape, sizes, first))

    sides = list(zip(((m, k), (k, n), (m, n)), plan.native, faces, stays, strict=True))
    words = sum(block(shape, X) for shape, X, _, stay in sides if not stay)
    at_first = how.under_way(plan)
    if not how.gathers_in_common(nodes, plan.grid.comm.size):
        at_first += sum(max(0, block(shape, face) - block(shape, X)) for shape, X, face, _ in sides[:2])
    at_last, summed = 0, [sizes[axis] for axis in faces[2].partial if sizes[axis] > 1]
    if summed:
        addends = block((m, n), faces[2])
        words += addends
        at_last = addends // summed[0] * (summed[0] - 1) if len(summed) == nodes == 1 else 0
    return plan.dtype.itemsize * (words + max(at_first, at_last))


def _thinnest(plan: Plan) -> Plan:
    """The plan with the narrowest panels that are tried: about MOST_PANELS, a rank's indices cut evenly."""
    if not plan.how.walks:
        return plan
    common = walk.count_first_common(plan.walk, plan.mnk, plan.grid.sizes)
    pieces = max(1, MOST_PANELS * common // max(1, plan.walk.length(plan.mnk)))
    return replace(plan, panel=min(plan.panel, PANEL, max(1, -(-common // pieces))))


def _narrowed(plan: Plan, limit: int) -> tuple[float, Plan]:
    """The plan with its panels halved until it keeps the limit, and its bytes of workspace.

    Where no width keeps it, about how many bytes it needs at least.

    One rank is run dry first: a plan that is too much for it need not be tried on the others.
    """
    least, narrowed = _narrowed_by(lambda plan: plan.peak_of(_first(plan)), plan, limit)
    if least > limit:
        return least, plan
    return _narrowed_by(lambda plan: plan.peak, narrowed, limit)


def _first(plan: Plan) -> int:
    """The first rank of the plan's grid."""
    return int(plan.grid.ranks.flat[0])


def _narrowed_by(peak_of: Callable[[Plan], int], plan: Plan, limit: int) -> tuple[float, Plan]:
    """The same, where `peak_of` gives a plan's bytes of workspace.

    A dry run takes the longer the more panels there are. But where there are more than can be under
    way, workspace grows linearly with their width: so the bytes at two widths tell, without
    narrower ones being run, whether any width can keep the limit.
    """
    peak, thinnest = peak_of(plan), _thinnest(plan).panel
    if peak <= limit or thinnest == plan.panel:
        return peak, plan
    width = even_width(walk.find_widest(plan.walk, plan.mnk, plan.grid.sizes), plan.panel)
    while peak > limit and width > thinnest:
        half = replace(plan, panel=max(-(-width // 2), thinnest))
        below = peak_of(half)
        bytes_an_index = (peak - below) / (width - half.panel)
        least = below - bytes_an_index * (half.panel - thinnest)
        if least > limit and plan.how.count_panels(plan, width) > 1 + AHEAD:
            return least, plan
        plan, width, peak = half, half.panel, below
    return peak, plan
