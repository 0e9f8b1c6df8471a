"""The choices for a product, a frozen value: grid, layouts, roles, schedule, panels, and the product itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import numpy as np

from pdla.grid import ProcessGrid
from pdla.layout import Layout, Shape
from pdla.matmul import roles
from pdla.matmul.choose.problem import Operand
from pdla.matmul.plan.run_state import RunState
from pdla.matmul.schedules import SCHEDULES, walk
from pdla.matmul.schedules.base import Schedule
from pdla.matmul.schedules.streams import PlanCache
from pdla.matrix.redistribute import local_shape
from pdla.model.machine import Machine

_CLOSED = attrgetter("closed")


@dataclass(frozen=True)
class Description:
    """How C = alpha A B + beta C is computed; `Plan` says what each field is.

    state  buffers and results that are kept from run to run; no part of the value
    """

    A: Operand
    B: Operand
    C: Operand
    dtype: np.dtype
    algorithm: str
    schedule: str
    grid: ProcessGrid
    native: tuple[Layout, Layout, Layout]
    stays: tuple[bool, bool, bool]
    roles: roles.Roles
    walk: walk.Walk
    panel: int
    machine: Machine
    words: float
    moved: float
    bound: float
    adds: bool
    limit: float
    rivals: Callable[[], tuple[str, ...]] = field(default=tuple, compare=False)
    state: RunState = field(default_factory=RunState, init=False, compare=False)

    @cached_property
    def how(self) -> Schedule:
        """The schedule itself, of which `schedule` is the name."""
        return SCHEDULES[self.schedule]

    @property
    def layout(self) -> Layout:
        """The layout of C."""
        return self.C.layout

    @property
    def mnk(self) -> tuple[int, int, int]:
        """The sizes of the product: C is m x n, A is m x k, B is k x n."""
        return (*self.C.shape, self.A.shape[1])

    @property
    def memo(self) -> PlanCache:
        """The results that a schedule computes at its first run and keeps."""
        return self.state.memo

    @property
    def closed(self) -> bool:
        """Whether one of its grids has been closed.

        Matrices on an equal grid, made later, need a new plan.
        """
        return any(map(_CLOSED, (self.grid, self.A.grid, self.B.grid, self.C.grid)))

    @property
    def full_name(self) -> str:
        """The algorithm's name, with the schedule's where the two differ."""
        return self.algorithm if self.schedule == self.algorithm else f"{self.algorithm} by {self.schedule}"

    @property
    def product(self) -> str:
        """The product in words: sizes, dtype, grid."""
        m, n, k = self.mnk
        return f"C({m}, {n}) = A({m}, {k}) B({k}, {n}), {self.dtype}, on {self.grid!r}"

    def __repr__(self) -> str:
        return f"Plan({self.product}, {self.full_name})"

    # ------------------------------------------------------------------ what follows for a run

    @cached_property
    def block(self) -> Shape:
        """The shape of this rank's block of C."""
        return local_shape(self.C.shape, self.layout, self.C.grid)

    @cached_property
    def needs_no_conversion(self) -> bool:
        """Whether A and B are multiplied without a conversion.

        A and B must be on the plan's very grid, of its dtype, and not conjugated.
        """
        return all(self.stays[:2]) and not (self.A.layout.partial or self.B.layout.partial)
