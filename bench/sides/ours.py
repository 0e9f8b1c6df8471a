"""pdla through a plan. Variants:

native  its own layouts on all ranks           few     the faster of both on as many ranks as there are cores
shared  with A and B in shared memory          blocks  from 2-D blocks to 2-D blocks

In pdla's own layouts a tall C may be faster by columns on some processors (docs/choosing.md), so this side tries both orders.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import pdla
from bench.common.launch import CORES
from bench.common.meeting import Meeting
from bench.common.product import Block, Product, Side, make_block

if TYPE_CHECKING:
    from mpi4py import MPI

BLOCKS = (pdla.Layout("row", "col"),) * 3
TALL = 4  # rows over columns of a block of C from which the side also tries storage by columns
TRIES = 3  # products of each compared side, in turns


def make_grid(comm: MPI.Comm) -> pdla.ProcessGrid:
    """Collective: make the near-square grid of all ranks."""
    return pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)


def make_operands(product: Product, grid: pdla.ProcessGrid, layouts: Sequence[pdla.Layout]) -> tuple[pdla.DistMatrix, ...]:
    """Collective: make A, B and C of zeros."""
    shapes = ((product.m, product.k), (product.k, product.n), (product.m, product.n))
    return tuple(pdla.zeros(s, grid, layout, dtype=product.dtype) for s, layout in zip(shapes, layouts, strict=True))


def make(comm: MPI.Comm, product: Product, variant: str) -> Side:
    if variant == "few":
        few = comm.Split(comm.rank < CORES)
        return make_fewer(few, product) if comm.rank < CORES else make_idle(product)
    if variant in ("native", "shared"):
        grid, *layouts = pdla.native_layouts(product.m, product.n, product.k, comm=comm, dtype=product.dtype)
        A, B, C = make_operands(product, grid, layouts)
        if variant == "shared":
            A, B = A.shared(), B.shared()
        rows, cols = C.local.shape
        if not all(grid.comm.share(rows >= TALL * cols)):
            return make_side(A, B, C)
        by_columns = pdla.zeros(C.shape[::-1], grid, C.layout.T, dtype=product.dtype).T
        return choose_faster(Meeting(comm), make_side(A, B, C), make_side(A, B, by_columns))
    return make_side(*make_operands(product, make_grid(comm), BLOCKS))


def make_fewer(few: MPI.Comm, product: Product) -> Side:
    """Collective over a few of the ranks: make the faster side of "native" and "shared" on them."""
    return choose_faster(Meeting(few), *(make(few, product, variant) for variant in ("native", "shared")))


def choose_faster(meeting: Meeting, *sides: Side) -> Side:
    """Collective: choose the side with the fastest product."""
    times = [[meeting.seconds(side.multiply) for side in sides] for _ in range(TRIES)]
    least = [min(seconds) for seconds in zip(*times, strict=True)]
    return sides[least.index(min(least))]


def make_idle(product: Product) -> Side:
    """Make the side of a rank without a part in the product."""
    none = np.arange(0)
    nothing = make_block(none, none, product.dtype)
    return Side(nothing, nothing, (none, none), lambda: nothing.array)


def make_side(A: pdla.DistMatrix, B: pdla.DistMatrix, C: pdla.DistMatrix, **options: Any) -> Side:
    """Collective: make the side of a plan; `options`: algorithm, box and schedule, as for plan_matmul."""
    plan = pdla.plan_matmul(A, B, out=C, **options)
    a, b, c = (Block(X.local, *(held.indices() for held in X.indices)) for X in (A, B, C))

    def multiply():
        plan(A, B, out=C)
        return c.array

    with pdla.record() as ledger:
        multiply()
    method = plan.algorithm if plan.schedule == plan.algorithm else f"{plan.algorithm} by {plan.schedule}"
    about = f"pdla {pdla.__version__}: {method} on {dict(plan.grid.sizes)}"
    return Side(a, b, (c.rows, c.cols), multiply, plan.predicted.peak_workspace, about, count_busiest(A.grid.comm, ledger))


def count_busiest(comm: pdla.Communicator, ledger: pdla.Ledger) -> int:
    """Collective: count the bytes that a host's ranks received from other hosts, by the ledger; the most of any host."""
    sums: Counter[str] = Counter()
    for host, size in comm.share((platform.node(), ledger.bytes_from_far)):
        sums[host] += size
    return max(sums.values())
