"""What a plan costs: dry runs of the plan itself, as ranks that may have most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from pdla.array.meta import Meta
from pdla.comm.dry import DryComm, dry_run
from pdla.comm.workspace import Workspace
from pdla.grid import ProcessGrid
from pdla.matmul.choose import problem
from pdla.matmul.choose.problem import Operand
from pdla.matmul.plan import running
from pdla.matmul.plan.description import Description
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import local_shape

EVERY_RANK = 64  # ranks up to which all of them are run dry to predict costs, beyond only a sample


@dataclass(frozen=True)
class Figures:
    """What a plan costs: of each figure the most that any rank has.

    Parameters
    ----------
    bytes_received : int
        Bytes received from other ranks.
    messages : int
        Messages received from other ranks.
    peak_workspace : int
        Bytes of buffers at any moment.
    seconds : float
        By the plan's machine, without overlap.
    """

    bytes_received: int
    messages: int
    peak_workspace: int
    seconds: float


def predicted(plan: Description) -> Figures:
    """Local: the largest figures of the sampled ranks."""
    received, messages, peak, flops = (max(figures) for figures in zip(*(_dry(plan, r) for r in _sample(plan)), strict=True))
    seconds = plan.machine.seconds(flops, received, messages, plan.dtype.itemsize // (2 if plan.dtype.kind == "c" else 1))
    return Figures(received, messages, peak, seconds)


def peak_of(plan: Description, rank: int) -> int:
    """Local: the bytes of workspace of one rank of the grid's communicator."""
    return _dry(plan, rank)[2]


def _sample(plan: Description) -> list[int]:
    """The ranks that are run dry: all of them, if there are few.

    Of many, those that may have the highest costs: first, second and last along each axis of the
    grids (of very many not the second), and the first rank of the second node. Where cuts do not
    match, or a Cannon grid's sides do not divide each other, another rank may have more.
    """
    comm = plan.grid.comm
    if comm.size <= EVERY_RANK:
        return list(range(comm.size))
    grids = dict.fromkeys((plan.grid, plan.A.grid, plan.B.grid, plan.C.grid))
    second = 1 if comm.size <= problem.LARGE else 0
    corners = [grid.ranks[corner] for grid in grids for corner in product(*({0, min(second, p - 1), p - 1} for p in grid.shape))]
    return sorted({*map(int, corners), *(comm.homes.index(home) for home in list(dict.fromkeys(comm.homes))[1:2])})


def _dry(plan: Description, rank: int) -> tuple[int, int, int, int]:
    """Bytes and messages that one rank receives, its bytes of workspace, and its flops, from a dry run, made once."""
    return plan.memo.once(("dry", rank), lambda: _figures(plan, rank))


def _figures(plan: Description, rank: int) -> tuple[int, int, int, int]:

    def program(comm: DryComm) -> None:
        here = plan.grid.comm
        comm.homes, comm.shared_limit, comm.adds = here.homes, here.shared_limit, here.adds  # on which figures depend
        alike = {grid: grid.over(comm) for grid in (plan.grid, plan.A.grid, plan.B.grid, plan.C.grid)}
        a, b, c = (ghost(X, alike[X.grid], plan.dtype) for X in (plan.A, plan.B, plan.C))
        running.run(replace(plan, grid=alike[plan.grid]), a, b, c, 1, int(plan.adds), Workspace())

    _, ledger = dry_run(plan.grid.comm.size, program, rank=rank)
    return ledger.bytes_received, ledger.messages, ledger.peak_workspace, ledger.flops


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
