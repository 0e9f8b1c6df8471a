"""The grid and layouts in which to make matrices, so that their product costs the least."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pdla.comm import as_communicator
from pdla.comm.agreement import agreed
from pdla.errors import PlanError, ShapeError
from pdla.grid import ProcessGrid
from pdla.layout import Layout
from pdla.matmul import checks
from pdla.matmul.algorithms import NAMED
from pdla.matmul.choose.candidates import native_tables
from pdla.matmul.choose.problem import Sizes
from pdla.model.bounds import exact
from pdla.model.machine import Machine


class Native(NamedTuple):
    """A grid, and on it the layouts of A, B and C."""

    grid: ProcessGrid
    A: Layout
    B: Layout
    C: Layout


def native_layouts(m: int, n: int, k: int, *, comm: Any = None, dtype: Any = np.float64, algorithm: str = "auto") -> Native:
    """The grid and the layouts in which C (m x n) = A (m x k) B (k x n) is cheapest, as none of the three has to be redistributed.

    algorithm  "auto": the best box of any sides on the ranks of comm; or one of the algorithms that have a grid of their own
    Neighbours on the grid are put on one node where that saves words from other nodes. Ranks may stay idle. Collective. Raises, on
    every rank, ShapeError for sizes that no matrix has, PlanError for an algorithm that works on the matrices' own grid.
    """
    world, (m, n, k) = as_communicator(comm), exact(m, n, k)
    with agreed(world, f"native_layouts({m}, {n}, {k}, dtype={dtype!r}, algorithm={algorithm!r})"):
        if not checks.sizes(m, n, k):
            raise ShapeError(f"m={m}, n={n}, k={k}: sizes are whole numbers from 0 to 2^63 - 1")
        if not checks.one_of(algorithm, (*NAMED, "auto")):
            raise PlanError(f"algorithm={algorithm!r}: one of {', '.join(NAMED)}, auto")
        kind, machine = np.dtype(dtype), Machine.chosen()
    q = Sizes((m, n, k), world.size, kind.itemsize, machine, world.shared_limit, tuple(world.homes))
    table, order = native_tables(q, algorithm)[0]
    return Native(ProcessGrid.trusted(table.shape, world, order, table.axes), table.A, table.B, table.C)
