"""The cost of a plan: dry runs of the plan itself, as ranks that may have most."""

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


def predict(plan: Description, cost: Cost) -> Cost:
    """Local: predict the largest counts of sampled ranks of this communicator, with the seconds of some on the plan's machine."""
    counts = [count(plan, rank) for rank in _sample_counted(plan)]
    received, messages, peak, flops = (max(figures) for figures in zip(*counts, strict=True))
    return replace(cost, bytes_received=received, messages=messages, peak_workspace=peak, flops=flops)


def find_cost(plan: Description) -> Cost:
    """Local: find the largest figures of some ranks of the plan's machine."""
    return Cost.of(clock_ranks(plan).values())


def find_peak(plan: Description) -> int:
    """Local: find the most bytes of workspace of any of the sampled ranks."""
    return max(count(plan, rank)[2] for rank in _sample_counted(plan))


def count(plan: Description, rank: int) -> tuple[int, int, int, int]:
    """Local: count the bytes and messages that one rank receives, its workspace and flops, by a dry run, made once."""

    def run() -> tuple[int, int, int, int]:
        ledger = dry.run_here(plan.grid.comm, _make_program(plan), rank)
        return ledger.bytes_received, ledger.messages, ledger.peak_workspace, ledger.flops

    return plan.memo.find_or_make(("dry", rank), run)


def clock_ranks(plan: Description) -> dict[int, Ledger]:
    """Local: run some ranks dry on the plan's machine, and return their ledgers."""
    return {rank: clock(plan, rank) for rank in _sample_timed(plan)}


def is_faster(plan: Description, seconds: float) -> bool:
    """Local: whether the plan takes less than so many seconds on its machine. The first rank that takes more ends the dry runs."""
    return all(clock(plan, rank).seconds < seconds for rank in _sample_timed(plan))


def clock(plan: Description, rank: int) -> Ledger:
    """Local: run one rank dry on the plan's machine, once, and return its ledger."""
    program = _make_program(plan)
    return plan.memo.find_or_make(("clock", rank), lambda: dry.run_on_machine(plan.grid.comm, program, rank, plan.machine))


def find_first_rank(plan: Description) -> int:
    """Find the first rank of the plan's grid, which has the largest blocks."""
    return int(plan.grid.ranks.flat[0])


def _list_grids(plan: Description) -> list[ProcessGrid]:
    return [plan.grid, plan.A.grid, plan.B.grid, plan.C.grid]


def _sample_timed(plan: Description) -> list[int]:
    """Choose the ranks whose seconds count; of very many ranks the first alone."""
    comm = plan.grid.comm
    return dry.sample_ranks(comm, _list_grids(plan), EVERY_RANK) if comm.size <= problem.LARGE else [find_first_rank(plan)]


def _sample_counted(plan: Description) -> list[int]:
    """Choose the ranks whose bytes count; of very many ranks not the second along an axis."""
    comm = plan.grid.comm
    return dry.sample_ranks(comm, _list_grids(plan), EVERY_RANK, second=comm.size <= problem.LARGE)


def _make_program(plan: Description) -> dry.Program:
    """Make the program that runs the plan on a dry communicator."""

    def program(comm: DryComm) -> None:
        copies = {grid: grid.with_comm(comm) for grid in _list_grids(plan)}
        a, b, c = (make_ghost(X, copies[X.grid], plan.dtype) for X in (plan.A, plan.B, plan.C))
        running.run(replace(plan, grid=copies[plan.grid]), a, b, c, 1, int(plan.adds), Workspace())

    return program


def make_ghost(X: Operand, grid: ProcessGrid, dtype: np.dtype) -> DistMatrix:
    """Make a matrix like X without data, on a dry world's copy of its grid; dtype: used if X has none."""
    shape = local_shape(X.shape, X.layout, grid)
    rows, cols = shape[::-1] if X.transposed else shape
    stored_dtype = X.dtype or dtype
    # Negative strides stand for all blocks with gaps within rows: they are copied for BLAS, and
    # packed for messages.
    base = Meta((rows, 2 * cols), stored_dtype)[::-1, ::-2] if X.gaps > 1 else Meta((rows, cols + X.gaps), stored_dtype)[:, :cols]
    whole = X.shape[::-1] if X.transposed else X.shape
    common = Meta(whole, stored_dtype) if X.shared else None
    return DistMatrix(base, X.shape, grid, X.layout, X.transposed, X.conjugated, X.gaps, common)
