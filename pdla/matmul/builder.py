"""Making a plan: the product that it is for, and the plan of a given way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from pdla.grid import ProcessGrid
from pdla.matmul import roles
from pdla.matmul.algorithms.table import Table
from pdla.matmul.choose import candidates
from pdla.matmul.choose.price import Way
from pdla.matmul.choose.problem import Operand, Problem
from pdla.matmul.options import Options
from pdla.matmul.plan import Plan
from pdla.matmul.schedules import SCHEDULES, walk
from pdla.model.machine import Machine

PANEL = 512  # indices: wide enough for a GEMM at full speed, narrow enough that four panels are small
MOST_PANELS = 2048  # about the most panels of a plan: longer products have wider ones, also under a memory limit


@dataclass(frozen=True)
class PlanBuilder:
    """The product that a plan is made for.

    C=None leaves C's layout to the plan; adds: beta is not 0, so C's old values are added.
    """

    A: Operand
    B: Operand
    C: Operand | None
    dtype: np.dtype
    options: Options
    machine: Machine
    adds: bool = False

    @cached_property
    def problem(self) -> Problem:
        return Problem.of(self.A, self.B, self.C, self.dtype.itemsize, self.machine)

    @property
    def is_decided(self) -> bool:
        """Whether the options leave nothing to choose but roles."""
        return self.options.schedule is not None and (self.options.box is not None or self.options.algorithm in SCHEDULES)

    def list_ways(self) -> list[Way]:
        """List all ways that the options allow, cheapest first."""
        return candidates.list_ways(self.problem, self.options.algorithm, self.options.box, self.options.schedule)

    def list_contenders(self, most: int) -> list[Way]:
        """List up to `most` of the cheapest ways that differ, and every schedule on the matrices' own grid."""
        own = candidates.list_own_grid_ways(self.problem) if self.options == Options(panel=self.options.panel) else []
        return candidates.keep_distinct([*candidates.keep_distinct(self.list_ways())[:most], *own])

    def find_cheapest(self) -> Way:
        """Find the first of `list_ways`."""
        return candidates.find_cheapest(self.problem, self.options.algorithm, self.options.box, self.options.schedule)

    def describe_runners_up(self) -> tuple[str, ...]:
        """Describe the next cheapest ways."""
        return candidates.describe_runners_up(self.list_ways(), self.dtype.itemsize)

    def plan(self, way: Way, rivals: Callable[[], tuple[str, ...]] = tuple, walked: str | None = None) -> Plan:
        """Make the plan of a way."""
        q = self.problem
        if way.table is None:
            grid, c = self.A.grid, self.C.layout if self.C is not None else roles.native_layout(way.roles.C)
            native = self.A.layout, self.B.layout, c
        else:
            grid = self._grid(way.table, way.order)
            native, walked = way.table.layouts, walked or way.table.walked
        a, b, c = (layout.summed for layout in native)
        steps = walk.choose(a, b, c, way.roles, grid.sizes, q.mnk, walked)
        C = self.C or Operand((q.mnk[0], q.mnk[1]), c, grid)
        width = self.options.panel or max(PANEL, -(-steps.length(q.mnk) // MOST_PANELS))
        limit = inf if self.options.memory_limit is None else self.options.memory_limit
        return Plan(
            self.A, self.B, C, self.dtype, way.algorithm, way.schedule, grid, native, way.stays, way.roles, steps, width,
            self.machine, way.words, way.moved, q.bound, self.adds, limit, rivals,
        )

    def _grid(self, table: Table, order: np.ndarray | None) -> ProcessGrid:
        """Make the table's grid, or take A's if both are equal: a million ranks need not be arranged again for each plan."""
        assert order is not None
        if self.problem.A.place.has_order(table.axes, table.shape, order):
            return self.A.grid
        return ProcessGrid.trust(table.shape, self.A.grid.comm, order, table.axes)


def plan_in_panels(A: Operand, B: Operand, C: Operand, dtype: np.dtype, chosen: roles.Roles, panel: int) -> Plan:
    """Make SUMMA's plan for operands on one grid, with given roles of its axes."""
    builder = PlanBuilder(A, B, C, dtype, Options(panel=panel), Machine.choose())
    words = roles.price((A.layout, B.layout, C.layout), chosen.layouts, builder.problem.mnk, A.grid.sizes)
    return builder.plan(Way("summa", "summa", chosen, None, None, words, 0.0, 0.0))
