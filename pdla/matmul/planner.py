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
from pdla.matmul.schedules.base import AHEAD, find_even_width

COSTED = 10  # ways of least price that are run dry if a machine is described


def make(builder: PlanBuilder) -> Plan:
    """Make the cheapest plan: by price or, if a machine is described, the fastest on it of the cheapest few."""
    if builder.options.memory_limit is not None:
        return fit(list_plans(builder), builder.options.memory_limit)
    if builder.machine.is_custom and not builder.is_decided:
        return _find_fastest([builder.plan(way, builder.describe_runners_up) for way in builder.list_contenders(COSTED)])
    return builder.plan(builder.find_cheapest(), builder.describe_runners_up)


def _find_fastest(plans: Iterable[Plan]) -> Plan:
    """Find the plan that is fastest on its machine; of equals the one whose first rank is faster."""
    best, *others = sorted(plans, key=lambda plan: costs.clock(plan, costs.find_first_rank(plan)).seconds)
    for plan in others:
        if costs.is_faster(plan, best.machine_cost.seconds):
            best = plan
    return best


def list_plans(builder: PlanBuilder) -> Iterator[Plan]:
    """List the plans for a builder, cheapest first.

    If the caller leaves the choice, plans in panels on its grid, which need less memory, follow
    each plan.
    """
    options = builder.options
    for way in builder.list_ways():
        yield (cheapest := builder.plan(way))
        how = SCHEDULES[way.schedule]
        has_whole_faces = way.table is not None and way.table == way.table.with_whole_faces
        if has_whole_faces and options.schedule is None and how.in_panels_from_any_layout:
            yield builder.plan(replace(way, schedule=how.in_panels_from_any_layout))
        name = how.in_panels
        if name and options.schedule in (None, name) and (options.algorithm not in SCHEDULES or options.algorithm == name):
            for walked in "knm" if way.table is not None else (None,):
                panels = replace(way, schedule=name, algorithm=way.algorithm if way.table is not None else name)
                if (plan := builder.plan(panels, walked=walked)) != cheapest:
                    yield plan


def fit(plans: Iterable[Plan], limit: int) -> Plan:
    """Find the first plan within the limit (bytes of workspace a rank), with panels as narrow as needed; PlanError if none is."""
    too_large: list[tuple[float, Plan]] = []
    for plan in plans:
        thinnest = _with_thinnest_panels(plan)
        least = _bound_workspace(thinnest)
        peak, narrowed = (least, plan) if least > limit else _narrow(plan, limit)
        if peak <= limit:
            return narrowed
        too_large.append((peak, thinnest))
    peak, leanest = _find_leanest(too_large)
    if peak > limit:
        raise PlanError(
            f"memory_limit={limit}: {peak - limit} bytes too few; the leanest plan found, {leanest.full_name} "
            f"on {leanest.grid!r}, needs {peak} bytes a rank"
        )
    return leanest


def _find_leanest(guessed: list[tuple[float, Plan]]) -> tuple[int, Plan]:
    """Find the plan of least workspace, and its bytes; `guessed`: each plan with an estimate of its least bytes.

    One rank is run dry first: a plan that needs no less on it is not tried on the others.
    """
    (_, leanest), *others = sorted(guessed, key=lambda pair: pair[0])
    for guess, plan in others:
        least = leanest.peak
        if guess >= least:
            break
        if plan.peak_of(costs.find_first_rank(plan)) < least:
            leanest = min(leanest, plan, key=lambda plan: plan.peak)
    return leanest.peak, leanest


def _bound_workspace(plan: Plan) -> int:
    """Bound a plan's workspace from below, in bytes, without a dry run: what the grid's first rank must hold at once.

    The rank holds the blocks of converted matrices in native layouts, and C's addends, if they are
    summed. To these the larger of two parts is added. Before the products, this is the gathered parts
    of A and B, unless in memory that ranks share, and panels. After the products, it is the addends
    that arrive, if along one axis.
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
    at_first = how.count_under_way(plan)
    if not how.gathers_in_common(nodes, plan.grid.comm.size):
        at_first += sum(max(0, block(shape, face) - block(shape, X)) for shape, X, face, _ in sides[:2])
    at_last, summed = 0, [sizes[axis] for axis in faces[2].partial if sizes[axis] > 1]
    if summed:
        addends = block((m, n), faces[2])
        words += addends
        at_last = addends // summed[0] * (summed[0] - 1) if len(summed) == nodes == 1 else 0
    return plan.dtype.itemsize * (words + max(at_first, at_last))


def _with_thinnest_panels(plan: Plan) -> Plan:
    """Make the plan with the narrowest panels to try: about MOST_PANELS, a rank's indices cut evenly."""
    if not plan.how.walks:
        return plan
    common = walk.count_first_common(plan.walk, plan.mnk, plan.grid.sizes)
    pieces = max(1, MOST_PANELS * common // max(1, plan.walk.length(plan.mnk)))
    return replace(plan, panel=min(plan.panel, PANEL, max(1, -(-common // pieces))))


def _narrow(plan: Plan, limit: int) -> tuple[float, Plan]:
    """Halve the plan's panels until it keeps the limit; return the bytes of workspace, and the plan.

    If no width keeps it, the bytes are an estimate of the least.

    One rank is run dry first: a plan above the limit there is not tried on the others.
    """
    least, narrowed = _narrow_by(lambda plan: plan.peak_of(costs.find_first_rank(plan)), plan, limit)
    if least > limit:
        return least, plan
    return _narrow_by(lambda plan: plan.peak, narrowed, limit)


def _narrow_by(peak_of: Callable[[Plan], int], plan: Plan, limit: int) -> tuple[float, Plan]:
    """Halve the plan's panels as `_narrow` does, with `peak_of` to find a plan's bytes of workspace.

    A dry run of more panels takes longer. With more panels than buffers, workspace is linear in their
    width. Then the bytes at two widths tell whether any width keeps the limit.
    """
    peak, thinnest = peak_of(plan), _with_thinnest_panels(plan).panel
    if peak <= limit or thinnest == plan.panel:
        return peak, plan
    width = find_even_width(walk.find_widest(plan.walk, plan.mnk, plan.grid.sizes), plan.panel)
    while peak > limit and width > thinnest:
        half = replace(plan, panel=max(-(-width // 2), thinnest))
        below = peak_of(half)
        bytes_an_index = (peak - below) / (width - half.panel)
        least = below - bytes_an_index * (half.panel - thinnest)
        if least > limit and plan.how.count_panels(plan, width) > 1 + AHEAD:
            return least, plan
        plan, width, peak = half, half.panel, below
    return peak, plan
