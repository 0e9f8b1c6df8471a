"""What a routine costs on matrices like these: dry runs of the routine itself, on a described machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from pdla.array.meta import Meta
from pdla.comm.dry import DryComm, dry_run
from pdla.comm.ledger import Ledger
from pdla.errors import PlanError
from pdla.grid import ProcessGrid
from pdla.linalg.panels.rows import ANY, RARE, deviating
from pdla.linalg.plan.price import Blocking
from pdla.matmul.choose.problem import Operand
from pdla.matmul.plan import Figures, ghost
from pdla.matrix.core import DistMatrix
from pdla.model.machine import Machine

# Ranks up to which all are run dry, beyond only a few: the largest workspace is among them, but of
# 256 ranks the busiest may receive a third more bytes.
EVERY_RANK = 16
Run = Callable[..., Any]


def figures(operands: Sequence[Operand | Meta], run: Run, machine: Machine) -> Figures:
    """Of each figure the most that any of the sampled ranks has. Not collective.

    run  what is done with operands like these
    """
    ran = _ledgers(operands, run, machine=machine)
    received, messages, seconds = (max(map(attrgetter(name), ran)) for name in ("bytes_received", "messages", "seconds"))
    return Figures(received, messages, workspace(operands, run), seconds)


def workspace(operands: Sequence[Operand | Meta], run: Run) -> int:
    """The most bytes of buffers that any of the sampled ranks has at once, for pivots as of random elements. Not collective."""
    return max(ledger.peak_workspace for ledger in _ledgers(operands, run, deviations=RARE))


def most_received(operands: Sequence[Operand | Meta], run: Run) -> int:
    """The most bytes that any of the sampled ranks receives in exchanges of any rows. Not collective."""
    return max(ledger.bytes_received for ledger in _ledgers(operands, run, deviations=ANY))


def _sample(ranks: int) -> Sequence[int]:
    side = max(1, round(ranks**0.5))
    return range(ranks) if ranks <= EVERY_RANK else sorted({0, 1, side - 1, side, ranks // 2, ranks - 1})


def _ledgers(operands: Sequence[Operand | Meta], run: Run, deviations: float = 0.0, machine: Machine | None = None) -> list[Ledger]:
    """What the sampled ranks count. With a machine they send messages; without, they share memory as the ranks here do.

    deviations  by how many standard deviations a rank exchanges more rows than in the mean
    """
    here = operands[0].grid.comm  # type: ignore[union-attr]

    def program(comm: DryComm) -> None:
        deviating.set(deviations)
        comm.homes, comm.shared_limit = here.homes, here.shared_limit  # on which figures depend
        if machine is None:
            comm.publishes, comm.adds = here.publishes, here.adds
        grids = {X.grid: X.grid.over(comm) for X in operands if isinstance(X, Operand)}
        run(*(_ghost(X, grids[X.grid]) if isinstance(X, Operand) else X for X in operands))

    return [dry_run(here.size, program, rank=rank, machine=machine)[1] for rank in _sample(here.size)]


def _ghost(X: Operand, grid: ProcessGrid) -> DistMatrix:
    return ghost(replace(X, grid=grid), grid, np.dtype(X.dtype))


def first_fitting(blockings: Sequence[Blocking], limit: float, peak_of: Callable[[Blocking], int]) -> Blocking:
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
