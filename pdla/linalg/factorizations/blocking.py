"""Where a factorization of a matrix works: where it lies in square blocks, or brought to the cheapest grid and blocks.

With a memory limit it is the cheapest blocking whose workspace, by dry runs of the routine, keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from math import prod
from typing import Any

import numpy as np

from pdla import config
from pdla.array.meta import Meta
from pdla.comm.cache import cached
from pdla.comm.workspace import Workspace, within
from pdla.grid import ProcessGrid
from pdla.layout import Layout, effective
from pdla.linalg.factorizations.block_cyclic import block_of, depth_of, square_blocks, working
from pdla.linalg.factorizations.dry import fitting, workspace
from pdla.linalg.factorizations.price import LAYERED, Blocking, Task, cheapest, worked
from pdla.matmul import checks
from pdla.matmul.choose.problem import Operand
from pdla.matrix.core import DistMatrix
from pdla.model.machine import Machine

_chosen: ContextVar[Blocking | None] = ContextVar("pdla_linalg_blocking", default=None)


class to:
    """Bring matrices to this blocking, for the length of a with-block; None: as before, at first to the cheapest.

    limit  bytes, or None: with one, all buffers come from one workspace, which keeps none beyond the peak of those in use
    """

    __slots__ = ("bound", "token")

    def __init__(self, blocking: Blocking | None, limit: float | None = None) -> None:
        self.token = _chosen.set(blocking or _chosen.get())
        self.bound = None if limit is None else within(Workspace(spare=0))

    def __enter__(self) -> None: ...

    def __exit__(self, *failure: object) -> None:
        _chosen.reset(self.token)
        if self.bound is not None:
            self.bound.__exit__()


def by(blocking: Blocking | None, run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does the same with matrices brought to this blocking."""

    def done(*matrices: Any) -> Any:
        with to(blocking):
            return run(*matrices)

    return done


def task(routine: str, A: DistMatrix, cols: int, dtype: np.dtype) -> Task:
    """The routine's work on A; cols: A's, or those of the right-hand sides of a triangular system."""
    return Task(routine, A.shape[0], cols, dtype, Machine.chosen())


def columns(routine: str, A: DistMatrix, *sides: Any) -> int:
    """Those by which a blocking is chosen: A's, which is factored; of a triangular system those of its right-hand side."""
    shape = sides[0].shape if sides and routine == "triangular" else A.shape
    return shape[1] if len(shape) > 1 else 1


def stays(routine: str, A: DistMatrix) -> bool:
    """Whether the routine works on A, or a copy of it, where it lies."""
    return square_blocks(A) or (routine in LAYERED and depth_of(A) is not None)


def blockings(routine: str, A: DistMatrix, cols: int, dtype: np.dtype) -> tuple[Blocking, ...]:
    """The blockings, the cheapest first: one, where A stays."""
    if not stays(routine, A):
        return cheapest(task(routine, A, cols, dtype), A.grid.comm.size)
    sizes = A.grid.sizes
    shape = [prod(sizes[cut.axis] for cut in effective(cuts, sizes)[:1]) for cuts in (A.layout.rows, A.layout.cols)]
    depth = [sizes[cut.axis] for cut in effective(A.layout.cols, sizes)[1:]]
    return (Blocking((*shape, *depth), block_of(A)),)


def where(routine: str, A: DistMatrix, cols: int, dtype: np.dtype) -> tuple[Layout, ProcessGrid]:
    """The layout and the grid, A's own or those to which it is brought: the blocking of `to`, else the cheapest."""
    if stays(routine, A):
        return A.layout, A.grid
    blocking = _chosen.get() or blockings(routine, A, cols, dtype)[0]
    return working(A, worked(routine, blocking.shape), blocking.block)


def limited(
    routine: str, A: DistMatrix, dtype: np.dtype, limit: float | None, run: Callable[..., Any], *more: Any, said: str = ""
) -> Blocking | None:
    """The cheapest within a limit in bytes of workspace; None: no limit, or no choice. PlanError, on every rank, if none does.

    run   run(A, *more) is the routine;  more: a right-hand side;  said: the call in words, which tells it from others
    """
    checks.limit(limit)
    if limit is None or routine == "diagonal":
        return None
    operands = [Operand.of(X) for X in (A, *more) if isinstance(X, DistMatrix)]
    others = [Meta(X.shape, X.dtype) for X in more if not isinstance(X, DistMatrix)]

    def found() -> Blocking:
        return fitting(
            blockings(routine, A, columns(routine, A, *more), dtype), limit,
            lambda blocking: workspace(operands, by(blocking, lambda *ghosts: run(*ghosts, *others))),
        )

    key = ("factored within", said, limit, *operands, config.settings.machine)
    return cached(A.grid.comm, key, found)
