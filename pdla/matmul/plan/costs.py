"""What a plan costs: dry runs of the plan itself, as ranks that may have most."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pdla.array.meta import Meta
from pdla.comm.dry import DryComm
from pdla.comm.ledger import Ledger
from pdla.comm.workspace import Workspace
from pdla.grid import ProcessGrid
from pdla.matmul import dry
from pdla.matmul.choose import problem
from pdla.matmul.choose.problem import Operand
from pdla.matmul.plan import running
from pdla.matmul.plan.description import Description
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import local_shape
from pdla.model.cost import Cost

EVERY_RANK = 64  # ranks up to which all of them are run: a product's dry run takes a few milliseconds


def predicted(plan: Description, timed: Cost) -> Cost:
    """Local: the largest counts of the sampled ranks, as here, with the seconds of some on the plan's machine."""
    counts = [count(plan, rank) for rank in _counted(plan)]
    received, messages, peak, flops = (max(figures) for figures in zip(*counts, strict=True))
    return replace(timed, bytes_received=received, messages=messages, peak_workspace=peak, flops=flops)


def timed(plan: Description) -> Cost:
    """Local: the largest figures of some ranks of the plan's machine."""
    return Cost.of(clocked(plan).values())


def peak(plan: Description) -> int:
    """Local: the most bytes of workspace of any of the sampled ranks."""
    return max(count(plan, rank)[2] for rank in _counted(plan))


def count(plan: Description, rank: int) -> tuple[int, int, int, int]:
    """Local: bytes and messages that one rank receives, its bytes of workspace, and its flops, from a dry run, made once."""

    def counted() -> tuple[int, int, int, int]:
        ledger = dry.as_here(plan.grid.comm, _program(plan), rank)
        return ledger.bytes_received, ledger.messages, ledger.peak_workspace, ledger.flops

    return plan.memo.once(("dry", rank), counted)


def clocked(plan: Description) -> dict[int, Ledger]:
    """Local: the ledgers of some ranks on the plan's machine."""
    return {rank: clock(plan, rank) for rank in _timed(plan)}


def is_faster(plan: Description, seconds: float) -> bool:
    """Local: whether the plan takes less than so many seconds on its machine. The first rank that takes more ends the dry runs."""
    return all(clock(plan, rank).seconds < seconds for rank in _timed(plan))


def clock(plan: Description, rank: int) -> Ledger:
    """Local: the ledger of one rank on the plan's machine, from a dry run, made once."""
    return plan.memo.once(("clock", rank), lambda: dry.on_machine(plan.grid.comm, _program(plan), rank, plan.machine))


def first(plan: Description) -> int:
    """The first rank of the plan's grid, which has the largest blocks."""
    return int(plan.grid.ranks.flat[0])


def _grids(plan: Description) -> list[ProcessGrid]:
    return [plan.grid, plan.A.grid, plan.B.grid, plan.C.grid]


def _timed(plan: Description) -> list[int]:
    """The ranks whose seconds count; of very many the first alone."""
    comm = plan.grid.comm
    return dry.sampled(comm, _grids(plan), EVERY_RANK) if comm.size <= problem.LARGE else [first(plan)]


def _counted(plan: Description) -> list[int]:
    """The ranks whose bytes count; of very many not the second along an axis."""
    comm = plan.grid.comm
    return dry.sampled(comm, _grids(plan), EVERY_RANK, second=comm.size <= problem.LARGE)


def _program(plan: Description) -> dry.Program:
    """The plan's run, on a dry communicator."""

    def program(comm: DryComm) -> None:
        alike = {grid: grid.with_comm(comm) for grid in _grids(plan)}
        a, b, c = (ghost(X, alike[X.grid], plan.dtype) for X in (plan.A, plan.B, plan.C))
        running.run(replace(plan, grid=alike[plan.grid]), a, b, c, 1, int(plan.adds), Workspace())

    return program


def ghost(X: Operand, grid: ProcessGrid, dtype: np.dtype) -> DistMatrix:
    """A matrix like X without data, on a dry world's copy of its grid; dtype: used where X has none."""
    shape = local_shape(X.shape, X.layout, grid)
    rows, cols = shape[::-1] if X.transposed else shape
    kind = X.dtype or dtype
    # Negative strides stand for all blocks with gaps within rows: they are copied for BLAS, and
    # packed for messages.
    base = Meta((rows, 2 * cols), kind)[::-1, ::-2] if X.gaps > 1 else Meta((rows, cols + X.gaps), kind)[:, :cols]
    whole = X.shape[::-1] if X.transposed else X.shape
    return DistMatrix(base, X.shape, grid, X.layout, X.transposed, X.conjugated, X.gaps, Meta(whole, kind) if X.shared else None)
