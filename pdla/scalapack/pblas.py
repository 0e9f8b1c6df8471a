"""Run PBLAS calls from libpdla_pblas.so: as products by a plan, of matrices over the caller's memory.

A call gets a plan when it and its repetitions so far are enough work (PDLA_PBLAS_FLOPS). Later calls
find the plan by their arguments, and run without an agreement. All processes of the grid decide the
same, by arguments that are equal on all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pdla import config
from pdla.array.numpy import view_address
from pdla.comm import cache, from_fortran, workspace
from pdla.comm.agreement import agree
from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffer
from pdla.comm.workspace import Workspace, within
from pdla.grid import ProcessGrid
from pdla.linalg.products.rank_k import compute_triangle
from pdla.linalg.products.symmetric import copy_mirrored
from pdla.matmul import planner, verify
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose.problem import Operand
from pdla.matmul.options import Options
from pdla.matmul.plan import Plan
from pdla.matmul.schedules.streams import PlanCache, find_route
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import local_shape, start
from pdla.model.machine import Machine
from pdla.scalapack.descriptor import Descriptor

DTYPES: dict[str, type[Any]] = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
AUTO = Options("auto", None, None, None, None)
Place = tuple[int, int]  # (address, leading dimension) of a local block; both may differ between processes and between calls
Run = Callable[[complex, Place, Place, complex, Place], None]  # (alpha, a, b, beta, c)
ROUTINES = {"g": "gemm", "s": "symm", "h": "hemm", "k": "syrk", "j": "herk", "a": "geadd or tran"}
REMEMBERED = 4096  # the most calls without a plan whose operations a context counts


@dataclass(frozen=True)
class Call:
    """A routine and its arguments except addresses and scalars: the same on every process of the grid."""

    routine: str  # one of ROUTINES
    dtype: np.dtype
    words: str  # transa transb; side uplo; uplo trans; trans
    shapes: tuple[tuple[int, int], ...]  # of sub(A), sub(B), sub(C); without a B, C's replace its values
    corners: tuple[tuple[int, int], ...]  # the first row and column of each, from 1
    descriptors: tuple[Descriptor, ...]

    @property
    def said(self) -> str:
        """The call in words, the same on every process."""
        alike = [d.words[2:-1].tolist() for d in self.descriptors]
        return (
            f"{ROUTINES[self.routine]} {self.words} of {self.dtype}: sub(A), sub(B) and sub(C) have shapes {self.shapes} "
            f"and start at {self.corners} of {alike}, which are descriptors without context and lld"
        )


class Context:
    """The grid of a BLACS context, the calls that have a plan, and their common workspace.

    The context's communicator keeps it.
    """

    def __init__(self, comm: Communicator, shape: tuple[int, int], here: tuple[int, int]) -> None:
        """Collective over comm: make the grid. here: this process's row and column in it."""
        ranks = {place: rank for rank, place in enumerate(comm.share(here))}
        self.grid: ProcessGrid = ProcessGrid(shape, comm=comm, order=[ranks[place] for place in np.ndindex(*shape)])
        self.calls: dict[bytes, Run] = {}
        self.met: defaultdict[bytes, float] = defaultdict(float)  # operations so far of calls without a plan
        self.workspace: Workspace = Workspace()

    def find(self, key: bytes, flops: float, read: Callable[[], Call]) -> Run | None:
        """Find the function that runs a call, by its key; None while a plan does not pay. Collective if it makes a plan."""
        if key in self.calls:
            self.calls[key] = self.calls.pop(key)  # the call used last is last
            return self.calls[key]
        self.met[key] += flops
        if self.met[key] < config.settings.pblas_flops * self.grid.size:
            if len(self.met) > REMEMBERED:
                self.met.clear()
            return None
        del self.met[key]  # after its plan is dropped, operations count from 0 again
        call = read()
        agree(self.grid.comm, call.said)
        run = self.calls[key] = BIND[call.routine](self, [Window.of(call, i, self.grid) for i in range(3)], call)
        while len(self.calls) > cache.MOST:
            del self.calls[next(iter(self.calls))]
        return run

    def run(self, run: Run, *arguments: Any) -> None:
        with within(self.workspace):
            run(*arguments)
        self.workspace.trim(workspace.KEPT)


def context(handle: int, shape: tuple[int, int], here: tuple[int, int]) -> Context:
    """Find the Context that the communicator of a BLACS grid keeps, or make it, collectively. handle: its number in Fortran."""
    comm: Any = from_fortran(handle)
    if not hasattr(comm, "_context"):
        comm._context = Context(comm, shape, here)
    return comm._context


# ---------------------------------------------------------------------------------------------- windows on the caller's memory


@dataclass(frozen=True)
class Window:
    """sub(X) of a matrix in the caller's memory, except for the address and leading dimension, which each call gives."""

    like: DistMatrix  # sub(X), with a block that has no memory of its own
    first: tuple[int, int]  # the first row and column of the part in the local block

    @staticmethod
    def of(call: Call, i: int, grid: ProcessGrid) -> Window:
        desc, (row, col), (m, n) = call.descriptors[i], call.corners[i], call.shapes[i]
        whole = desc.layout(grid.axes)
        layout = whole.part(desc.shape, grid.sizes, range(row - 1, row - 1 + m), range(col - 1, col - 1 + n))
        first = whole.local_shape((row - 1, col - 1), grid.sizes, grid.coords)  # local rows above, local columns to the left
        nothing = np.broadcast_to(np.zeros((), call.dtype), local_shape((m, n), layout, grid)[::-1])
        return Window(DistMatrix(nothing, (m, n), grid, layout, transposed=True), first)

    def at(self, place: Place) -> DistMatrix:
        """Make sub(X) with its local block in the caller's memory; `place` is the whole matrix's local block."""
        x, (address, lld), size = self.like, place, self.like.dtype.itemsize
        base = view_address(address + (self.first[0] + self.first[1] * lld) * size, x.base.shape, x.dtype, (lld * size, size))
        return DistMatrix(base, x.shape, x.grid, x.layout, transposed=True)


TURNS: dict[str, Callable[[DistMatrix], DistMatrix]] = {"N": lambda X: X, "T": lambda X: X.T, "C": lambda X: X.H}


# ---------------------------------------------------------------------------------------------- the routines


def _make_plan(context: Context, A: DistMatrix, B: DistMatrix, C: DistMatrix) -> Plan:
    return planner.make(PlanBuilder(Operand.of(A), Operand.of(B), Operand.of(C), C.dtype, AUTO, Machine.choose()))


def gemm(context: Context, windows: list[Window], call: Call) -> Run:
    """Bind sub(C) = alpha op(sub(A)) op(sub(B)) + beta sub(C)."""
    A, B, C = windows
    turn_a, turn_b = (TURNS[word] for word in call.words)
    plan = _make_plan(context, turn_a(A.like), turn_b(B.like), C.like)

    def run(alpha: complex, a: Place, b: Place, beta: complex, c: Place) -> None:
        checked = verify.run if config.settings.verify else Plan.run
        checked(plan, turn_a(A.at(a)), turn_b(B.at(b)), C.at(c), alpha, beta, context.workspace)

    return run


def symm(context: Context, windows: list[Window], call: Call, hermitian: bool) -> Run:
    """Bind sub(C) = alpha sub(A) sub(B) + beta sub(C), or alpha sub(B) sub(A) + ...; it reads only one triangle of A."""
    A, B, C = windows
    left, lower = call.words[0] == "L", call.words[1] == "L"
    whole = DistMatrix(A.like.stored, A.like.shape, A.like.grid, A.like.layout)
    plan = _make_plan(context, *((whole, B.like) if left else (B.like, whole)), C.like)

    def run(alpha: complex, a: Place, b: Place, beta: complex, c: Place) -> None:
        whole, other = copy_mirrored(A.at(a), lower, hermitian), B.at(b)
        checked = verify.run if config.settings.verify else Plan.run
        checked(plan, *((whole, other) if left else (other, whole)), C.at(c), alpha, beta, context.workspace)

    return run


def syrk(context: Context, windows: list[Window], call: Call, hermitian: bool) -> Run:
    """Bind one triangle of sub(C) = alpha sub(A) sub(A)^T + beta sub(C), or with sub(A)^T sub(A); hermitian: ^H for ^T."""
    A, _, C = windows
    lower, turn = call.words[0] == "L", TURNS[call.words[1]]

    def run(alpha: complex, a: Place, b: Place, beta: complex, c: Place) -> None:
        X, Y = turn(A.at(a)), C.at(c)
        if not lower:  # the upper triangle of C is the lower one of C^T = conj(A) A^T
            X, Y = X.conj() if hermitian else X, Y.T
        compute_triangle(X, Y, alpha, beta, hermitian)

    return run


def add(context: Context, windows: list[Window], call: Call) -> Run:
    """Bind sub(C) = alpha op(sub(A)) + beta sub(C)."""
    A, _, C = windows
    turn, memo = TURNS[call.words[0]], PlanCache()

    def run(alpha: complex, a: Place, b: Place, beta: complex, c: Place) -> None:
        X, Y = turn(A.at(a)), C.at(c)
        home = buffer(Y.xp, Y.stored.shape, Y.dtype)
        start(X, find_route(X, Y.layout, Y.grid, memo), Y.grid.comm, home)()
        Y.xp.scale(home, alpha)
        Y.xp.combine(Y.stored, beta, home)

    return run


Bind = Callable[[Context, list[Window], Call], Run]
BIND: dict[str, Bind] = {
    "g": gemm,
    "s": partial(symm, hermitian=False),
    "h": partial(symm, hermitian=True),
    "k": partial(syrk, hermitian=False),
    "j": partial(syrk, hermitian=True),
    "a": add,
}
