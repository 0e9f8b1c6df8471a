"""Find where a routine works on a matrix: in the matrix's own layout, if it has square blocks or layers, or redistributed."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.grid import ProcessGrid
from pdla.layout import Layout
from pdla.linalg.panels.blocks import place_in_blocks
from pdla.linalg.plan.price import Blocking, predict_seconds, sort_by_price
from pdla.linalg.plan.routine import Routine, Task
from pdla.matrix.core import DistMatrix
from pdla.model.machine import Machine

Place = tuple[Layout, ProcessGrid]


def list_blockings(A: Any, task: Task) -> tuple[Blocking, ...]:
    """List the blockings, the cheapest first; only A's own if its layout is kept.

    A routine of short steps works on fewer ranks where a described machine makes those faster.
    """
    if task.routine.keeps_layout(A):
        return (Blocking(*task.routine.find_blocking(A)),)
    comm = A.grid.comm
    if not task.routine.short_steps:
        return sort_by_price(task, comm.size)
    if not task.machine.is_custom:
        return sort_by_price(task, comm.workers)
    blockings = [sort_by_price(task, ranks)[0] for ranks in task.machine.ladder(comm.workers)]
    return tuple(sorted(blockings, key=lambda blocking: predict_seconds(task, *blocking)))


def find_place(routine: Routine, A: Any, blocking: Blocking) -> Place:
    """Local: the layout and the grid on which the routine works: A's own if these are kept."""
    if routine.keeps_layout(A):
        return A.layout, A.grid
    return place_in_blocks(A, routine.choose_grid(blocking.shape), blocking.block)


def choose_place(routine: Routine, A: DistMatrix, B: Any, dtype: np.dtype) -> Place:
    """Local: the layout and the grid of the cheapest blocking."""
    return find_place(routine, A, list_blockings(A, Task(routine, *routine.sizes(A, B), dtype, Machine.choose()))[0])
