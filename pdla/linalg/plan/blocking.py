"""Where a routine works on a matrix: where it lies, in square blocks or layers, or redistributed to another grid and blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.grid import ProcessGrid
from pdla.layout import Layout
from pdla.linalg.panels.blocks import place_in_blocks
from pdla.linalg.plan.price import Blocking, cheapest
from pdla.linalg.plan.routine import Routine, Task
from pdla.matrix.core import DistMatrix
from pdla.model.machine import Machine

Place = tuple[Layout, ProcessGrid]


def blockings(A: Any, task: Task) -> tuple[Blocking, ...]:
    """The blockings, the cheapest first: one, where A stays."""
    if not task.routine.stays(A):
        comm = A.grid.comm
        return cheapest(task, comm.workers if task.routine.hasty else comm.size)
    return (Blocking(*task.routine.blocking_of(A)),)


def place_for(routine: Routine, A: Any, blocking: Blocking) -> Place:
    """Local: the layout and the grid on which the routine works, A's own where it stays."""
    return (A.layout, A.grid) if routine.stays(A) else place_in_blocks(A, routine.grid_for(blocking.shape), blocking.block)


def best_place(routine: Routine, A: DistMatrix, B: Any, dtype: np.dtype) -> Place:
    """Local: the cheapest."""
    return place_for(routine, A, blockings(A, Task(routine, *routine.sizes(A, B), dtype, Machine.choose()))[0])
