"""Making a plan: what the caller asks for, and the cheapest way to compute it, within a memory limit if there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod

import numpy as np

from pdla import config
from pdla.comm.agreement import in_words
from pdla.errors import PlanError
from pdla.grid import ProcessGrid
from pdla.layout import Layout, Shape
from pdla.matmul import roles
from pdla.matmul.algorithms.table import Table
from pdla.matmul.choose import candidates
from pdla.matmul.choose.candidates import Way
from pdla.matmul.choose.problem import Operand, Problem
from pdla.matmul.plan import Plan
from pdla.matmul.schedules import SCHEDULES, walk
from pdla.matmul.schedules.base import AHEAD, evenly
from pdla.model.bounds import exact
from pdla.model.machine import Machine

PANEL = 512  # indices: wide enough for a GEMM at full speed, narrow enough that four panels are small
MOST_PANELS = 2048  # about how many panels a plan has at most: of more each is wider, or what keeps a memory limit is not as thin


@dataclass(frozen=True, repr=False)
class Options:
    """What the caller asks of the plan: arguments of matmul, described there."""

    algorithm: str = "auto"
    box: tuple[int, int, int] | None = None
    schedule: str | None = None
    panel: int | None = None
    memory_limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("box", "panel", "memory_limit"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, exact(*given) if isinstance(given, tuple) else exact(given)[0])

    def __repr__(self) -> str:
        return ", ".join([f"{name}={in_words(value)}" for name, value in vars(self).items() if value is not None])


@dataclass(frozen=True)
class Task:
    """What a plan is made for.

    C=None leaves C's layout to the plan;  adds: beta is not 0, C has old values to add.
    """

    A: Operand
    B: Operand
    C: Operand | None
    dtype: np.dtype
    wish: Options
    machine: Machine
    adds: bool = False

    @cached_property
    def question(self) -> Problem:
        return Problem.about(self.A, self.B, self.C, self.dtype.itemsize, self.machine)

    def ways(self) -> list[Way]:
        """All ways that the wish allows, cheapest first."""
        return candidates.ways(self.question, self.wish.algorithm, self.wish.box, self.wish.schedule)

    def cheapest(self) -> Way:
        """The first of `ways`."""
        return candidates.cheapest(self.question, self.wish.algorithm, self.wish.box, self.wish.schedule)

    def runners_up(self) -> tuple[str, ...]:
        """The next cheapest ways, in words."""
        return candidates.runners_up(self.ways(), self.dtype.itemsize)

    def plan(self, way: Way, rivals: Callable[[], tuple[str, ...]] = tuple, walked: str | None = None) -> Plan:
        """The plan that goes this way."""
        q = self.question
        if way.table is None:
            grid, c = self.A.grid, self.C.layout if self.C is not None else roles.native(way.roles.C)
            native = self.A.layout, self.B.layout, c
        else:
            grid = self._grid(way.table, way.order)
            native, walked = way.table.layouts, walked or way.table.walked
        a, b, c = (layout.summed for layout in native)
        steps = walk.choose(a, b, c, way.roles, grid.sizes, q.mnk, walked)
        C = self.C or Operand((q.mnk[0], q.mnk[1]), c, grid)
        width = self.wish.panel or config.settings.panel or max(PANEL, -(-steps.length(q.mnk) // MOST_PANELS))
        limit = inf if self.wish.memory_limit is None else self.wish.memory_limit
        return Plan(
            self.A, self.B, C, self.dtype, way.algorithm, way.schedule, grid, native, way.stays, way.roles, steps, width,
            self.machine, way.words, way.moved, q.bound, self.adds, limit, rivals,
        )

    def _grid(self, table: Table, order: np.ndarray | None) -> ProcessGrid:
        """The table's grid: A's own, if that is the same, as a million ranks are not arranged once more for each plan."""
        assert order is not None
        if self.question.A.place.filled_so(table.axes, table.shape, order):
            return self.A.grid
        return ProcessGrid.trusted(table.shape, self.A.grid.comm, order, table.axes)


def make(task: Task) -> Plan:
    """The cheapest plan for a task."""
    if task.wish.memory_limit is not None:
        return fitting(lean(task), task.wish.memory_limit)
    return task.plan(task.cheapest(), task.runners_up)


def in_panels(A: Operand, B: Operand, C: Operand, dtype: np.dtype, chosen: roles.Roles, panel: int) -> Plan:
    """SUMMA's plan for operands on one grid, with given roles of its axes."""
    task = Task(A, B, C, dtype, Options(panel=panel), Machine.chosen())
    words = roles.price((A.layout, B.layout, C.layout), chosen.layouts, task.question.mnk, A.grid.sizes)
    return task.plan(Way("summa", "summa", chosen, None, None, words, 0.0, 0.0))


def lean(task: Task) -> Iterator[Plan]:
    """The plans for a task, cheapest first. Where the caller leaves the choice, each is followed by plans in panels on its grid,
    which need less memory."""
    wish = task.wish
    for way in task.ways():
        yield (cheapest := task.plan(way))
        how = SCHEDULES[way.schedule]
        if wish.schedule is None and how.straight_in_panels and way.table is not None and way.table == way.table.straight:
            yield task.plan(replace(way, schedule=how.straight_in_panels))
        name = how.in_panels
        if name and wish.schedule in (None, name) and (wish.algorithm not in SCHEDULES or wish.algorithm == name):
            for walked in "knm" if way.table is not None else (None,):
                panels = replace(way, schedule=name, algorithm=way.algorithm if way.table is not None else name)
                if (plan := task.plan(panels, walked=walked)) != cheapest:
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
            f"memory_limit={limit}: {peak - limit} bytes too few; the leanest plan found, {leanest.named} "
            f"on {leanest.grid!r}, needs {peak} bytes a rank"
        )
    return leanest


def _leanest(guessed: list[tuple[float, Plan]]) -> tuple[int, Plan]:
    """The plan that needs the least workspace, and its bytes; `guessed`: each plan with about how much it needs at least.

    One rank is run dry first: a plan that needs no less on it need not be tried on the others.
    """
    (_, leanest), *others = sorted(guessed, key=lambda pair: pair[0])
    for guess, plan in others:
        least = leanest.predicted.peak_workspace
        if guess >= least:
            break
        if plan.peak_of(_first(plan)) < least:
            leanest = min(leanest, plan, key=lambda plan: plan.predicted.peak_workspace)
    return leanest.predicted.peak_workspace, leanest


def _least(plan: Plan) -> int:
    """A lower bound on a plan's workspace, in bytes, without a dry run: what the grid's first rank must hold at once.

    That is the blocks of A, B and C in native layouts in which they do not come already; C's addends, where they are summed over
    ranks; and the larger of what is needed at first and of what is needed at last. At first that is what is gathered of A and B,
    unless in memory that ranks share, and panels, those under way too; at last the addends that come, if along one axis.
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
    common = walk.first_common(plan.walk, plan.mnk, plan.grid.sizes)
    pieces = max(1, MOST_PANELS * common // max(1, plan.walk.length(plan.mnk)))
    return replace(plan, panel=min(plan.panel, PANEL, max(1, -(-common // pieces))))


def _narrowed(plan: Plan, limit: int) -> tuple[float, Plan]:
    """The plan with its panels halved until it keeps the limit, and its bytes of workspace; where no width keeps it, about how many
    bytes it needs at least.

    One rank is run dry first: a plan that is too much for it need not be tried on the others.
    """
    least, narrowed = _narrowed_by(lambda plan: plan.peak_of(_first(plan)), plan, limit)
    if least > limit:
        return least, plan
    return _narrowed_by(lambda plan: plan.predicted.peak_workspace, narrowed, limit)


def _first(plan: Plan) -> int:
    """The first rank of the plan's grid."""
    return int(plan.grid.ranks.flat[0])


def _narrowed_by(peak_of: Callable[[Plan], int], plan: Plan, limit: int) -> tuple[float, Plan]:
    """The same, where `peak_of` gives a plan's bytes of workspace.

    A dry run takes the longer the more panels there are. But where there are more than can be under way, workspace grows linearly
    with their width: so the bytes at two widths tell, without narrower ones being run, whether any width can keep the limit.
    """
    peak, thinnest = peak_of(plan), _thinnest(plan).panel
    if peak <= limit or thinnest == plan.panel:
        return peak, plan
    width = evenly(walk.widest(plan.walk, plan.mnk, plan.grid.sizes), plan.panel)
    while peak > limit and width > thinnest:
        half = replace(plan, panel=max(-(-width // 2), thinnest))
        below = peak_of(half)
        bytes_an_index = (peak - below) / (width - half.panel)
        least = below - bytes_an_index * (half.panel - thinnest)
        if least > limit and plan.how.panels(plan, width) > 1 + AHEAD:
            return least, plan
        plan, width, peak = half, half.panel, below
    return peak, plan
