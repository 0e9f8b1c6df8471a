"""Predict what a routine costs on given matrices, by dry runs of the routine itself on a described machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pdla.array.meta import Meta
from pdla.comm.dry import DryComm
from pdla.comm.ledger import Ledger
from pdla.errors import PlanError
from pdla.grid import ProcessGrid
from pdla.linalg.panels.rows import ANY, RARE, extra_deviations
from pdla.linalg.plan.price import Blocking
from pdla.matmul import dry
from pdla.matmul.choose.problem import Operand
from pdla.matmul.plan import make_ghost
from pdla.matrix.core import DistMatrix
from pdla.model.cost import Cost
from pdla.model.machine import Machine

Run = Callable[..., Any]


def predict_cost(operands: Sequence[Operand | Meta], run: Run, place: ProcessGrid, machine: Machine) -> Cost:
    """Local: each figure's maximum over the sampled ranks of a machine.

    run    the work, a function of the operands
    place  the grid on which the work is done
    """
    return Cost.of(_run_dry(operands, run, place, machine=machine))


def predict_workspace(operands: Sequence[Operand | Meta], run: Run, place: ProcessGrid) -> int:
    """Local: the most bytes of buffers that a sampled rank holds at once, for pivots of random elements."""
    return max(ledger.peak_workspace for ledger in _run_dry(operands, run, place, deviations=RARE))


def predict_most_bytes(operands: Sequence[Operand | Meta], run: Run, place: ProcessGrid) -> int:
    """Local: the most bytes that a sampled rank receives, whichever rows are exchanged."""
    return max(ledger.bytes_received for ledger in _run_dry(operands, run, place, deviations=ANY))


def _run_dry(
    operands: Sequence[Operand | Meta], run: Run, place: ProcessGrid, deviations: float = 0.0, machine: Machine | None = None
) -> list[Ledger]:
    """The ledgers of the sampled ranks. With a machine these ranks send messages; else they share memory as the caller's do.

    deviations  how many standard deviations above the mean a rank's exchanges of rows are
    """
    comm = operands[0].grid.comm  # type: ignore[union-attr]
    operand_grids = [X.grid for X in operands if isinstance(X, Operand)]

    def program(dry_comm: DryComm) -> None:
        extra_deviations.set(deviations)
        grids = {grid: grid.with_comm(dry_comm) for grid in operand_grids}
        run(*(_make_ghost(X, grids[X.grid]) if isinstance(X, Operand) else X for X in operands))

    if machine is None:
        return [dry.run_here(comm, program, rank) for rank in dry.sample_ranks(comm, [*operand_grids, place], second=True)]
    return [dry.run_on_machine(comm, program, rank, machine) for rank in dry.sample_ranks(comm, [*operand_grids, place])]


def _make_ghost(X: Operand, grid: ProcessGrid) -> DistMatrix:
    return make_ghost(replace(X, grid=grid), grid, np.dtype(X.dtype))


def choose_within_limit(blockings: Sequence[Blocking], limit: float, peak_of: Callable[[Blocking], int]) -> Blocking:
    """The first blocking within the limit (bytes of workspace a rank); PlanError, as by matmul, if none is."""
    peaks = {}
    for blocking in blockings:
        peaks[blocking] = peak_of(blocking)
        if peaks[blocking] <= limit:
            return blocking
    smallest = min(peaks, key=lambda blocking: peaks[blocking])
    raise PlanError(
        f"memory_limit={limit}: {peaks[smallest] - limit} bytes too few; the leanest plan found, {smallest}, "
        f"needs {peaks[smallest]} bytes a rank"
    )
