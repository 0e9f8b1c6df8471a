"""What a routine costs on matrices like these: dry runs of the routine itself, on a described machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pdla.comm.dry import DryComm, dry_run
from pdla.errors import PlanError
from pdla.linalg.factorizations.price import Blocking
from pdla.matmul.choose.problem import Operand
from pdla.matmul.plan import Figures, ghost
from pdla.model.machine import Machine

# Ranks up to which all are run dry, beyond only a few: the largest workspace is among them, but of
# 256 ranks the busiest may receive a third more bytes.
EVERY_RANK = 16
Run = Callable[..., Any]


def figures(operands: Sequence[Operand], run: Run, machine: Machine) -> Figures:
    """Of each figure the most that any of the sampled ranks has. Not collective.

    run  what is done with matrices like the operands
    """
    told = [_dry(operands, run, machine, rank) for rank in _sample(operands[0].grid.comm.size)]
    received, messages, peak, seconds = (max(each) for each in zip(*told, strict=True))
    return Figures(received, messages, peak, seconds)


def _sample(ranks: int) -> Sequence[int]:
    side = max(1, round(ranks**0.5))
    return range(ranks) if ranks <= EVERY_RANK else sorted({0, 1, side - 1, side, ranks // 2, ranks - 1})


def _dry(operands: Sequence[Operand], run: Run, machine: Machine, rank: int) -> tuple[int, int, int, float]:
    here = operands[0].grid.comm

    def program(comm: DryComm) -> None:
        comm.homes, comm.shared_limit = here.homes, here.shared_limit  # on which figures depend
        grids = {X.grid: X.grid.over(comm) for X in operands}
        run(*(ghost(replace(X, grid=grids[X.grid]), grids[X.grid], X.dtype or np.dtype(float)) for X in operands))

    _, ledger = dry_run(here.size, program, rank=rank, machine=machine)
    return ledger.bytes_received, ledger.messages, ledger.peak_workspace, ledger.seconds


def fitting(blockings: Sequence[Blocking], limit: float, peak_of: Callable[[Blocking], int]) -> Blocking:
    """The first blocking within the limit (bytes of workspace a rank); PlanError, as by matmul, if none is."""
    peaks = {}
    for blocking in blockings:
        peaks[blocking] = peak_of(blocking)
        if peaks[blocking] <= limit:
            return blocking
    leanest = min(peaks, key=lambda blocking: peaks[blocking])
    raise PlanError(
        f"memory_limit={limit}: {peaks[leanest] - limit} bytes too few; the leanest plan found, {leanest}, "
        f"needs {peaks[leanest]} bytes a rank"
    )
