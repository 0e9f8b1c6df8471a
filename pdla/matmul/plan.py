"""A plan: the choice made once, the figures it promises, and how it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import lcm, prod

import numpy as np

from pdla import config
from pdla.array.meta import Meta
from pdla.comm.dry import DryComm, dry_run
from pdla.comm.ledger import buffer
from pdla.errors import PlanError
from pdla.grid import ProcessGrid
from pdla.layout import Layout, Shape
from pdla.matmul import cannon, gather, roles, summa, walk
from pdla.matmul.operands import Sink
from pdla.matrix import DistMatrix
from pdla.redistribute import converted, local_shape, summed

ALGORITHMS = ("gather", "summa", "cannon")
GATHER_BELOW = 16 * 2**20  # bytes of workspace up to which "auto" gathers at once: beyond, panels are faster and smaller
PANEL = 512  # indices: wide enough for a GEMM at full speed, narrow enough that four panels are small


@dataclass(frozen=True)
class Figures:
    """What a plan costs the rank that pays most of each: bytes and messages received, bytes of workspace."""

    bytes_received: int
    messages: int
    peak_workspace: int


@dataclass(frozen=True)
class Operand:
    """What a plan knows of a matrix: all but its elements."""

    shape: Shape
    layout: Layout
    transposed: bool

    @staticmethod
    def of(X: DistMatrix) -> Operand:
        return Operand(X.shape, X.layout, X.transposed)

    def ghost(self, grid: ProcessGrid, dtype: np.dtype) -> DistMatrix:
        """A matrix like it, without data."""
        shape = local_shape(self.shape, self.layout, grid)
        return DistMatrix(Meta(shape[::-1] if self.transposed else shape, dtype), self.shape, grid, self.layout, self.transposed)


@dataclass(frozen=True)
class Plan:
    """C = alpha A B + beta C on one grid: algorithm, roles of the axes, walked dimension, panel width.

    `plan(A, B, out=C)` runs it on operands like those it was made for; collective, checked without a message.
    """

    grid: ProcessGrid
    A: Operand
    B: Operand
    layout: Layout
    dtype: np.dtype
    algorithm: str
    roles: roles.Roles
    walk: walk.Walk
    panel: int

    # ------------------------------------------------------------------ running

    def __call__(
        self, A: DistMatrix, B: DistMatrix, *, out: DistMatrix | None = None, alpha: complex = 1, beta: complex = 0
    ) -> DistMatrix:
        """Collective: the product. PlanError, on this rank alone, for operands that the plan was not made for."""
        if (Operand.of(A), Operand.of(B), A.grid) != (self.A, self.B, self.grid):
            raise PlanError(f"this plan is for {self.A} and {self.B} on {self.grid!r}, not for {A!r} and {B!r}")
        return self.run(A, B, out, alpha, beta)

    def run(self, A: DistMatrix, B: DistMatrix, out: DistMatrix | None, alpha: complex, beta: complex) -> DistMatrix:
        shape = (A.shape[0], B.shape[1])
        if out is None:
            out = DistMatrix(A.xp.empty(local_shape(shape, self.layout, self.grid), self.dtype), shape, self.grid, self.layout)
            beta = 0
        a, b = (self._ready(X) for X in (A, B))
        if self.algorithm == "gather":
            self._in_place_or_after(out, self.roles.C, alpha, beta, lambda c, sink: gather.run(a, b, self.roles, sink))
        else:
            self._in_place_or_after(out, self.walk.C, alpha, beta, lambda c, sink: self._walk(a, b, c, sink))
        return out

    def _ready(self, X: DistMatrix) -> DistMatrix:
        """An operand in the product's dtype, summed and not conjugated."""
        if X.layout.partial:
            X = summed(X, X.layout.summed)
        if X.dtype != self.dtype:
            X = X.astype(self.dtype)
        return DistMatrix(X.xp.reinterpret(X.base, X.conjugated), X.shape, X.grid, X.layout, X.transposed)

    def _in_place_or_after(
        self, out: DistMatrix, layout: Layout, alpha: complex, beta: complex,
        multiply: Callable[[DistMatrix, Sink | None], None],
    ) -> None:  # fmt: skip
        """Let `multiply` fill out's own block where the products belong there, else a block that is then brought there."""
        xp, moving = out.xp, self.algorithm != "gather" and self.walk.axes_c
        same = not layout.partial and out.layout.same_cuts(layout, out.shape, self.grid.sizes)
        if same and (beta == 0 or not moving):
            c = DistMatrix(out.stored, out.shape, self.grid, layout)
            multiply(c, Sink(xp, out.stored, alpha, beta) if self.grid.active else None)
            return
        block = buffer(xp, local_shape(out.shape, layout, self.grid), self.dtype)
        c = DistMatrix(block, out.shape, self.grid, layout)
        multiply(c, Sink(xp, block, alpha, 0) if self.grid.active else None)
        if c.layout.partial:
            c = summed(c, out.layout)
        if not c.layout.same_cuts(out.layout, out.shape, self.grid.sizes):
            c = converted(c, out.layout, self.grid)
        xp.combine(out.stored, beta, c.stored)

    def _walk(self, a: DistMatrix, b: DistMatrix, c: DistMatrix, sink: Sink | None) -> None:
        streams = walk.streams(a, b, c, self.walk)
        if self.algorithm == "cannon":
            streams = self._in_step(streams, a, b)
        if streams is None or sink is None:
            return
        sa, sb, sc = streams
        if self.walk.dimension == "k":
            summa.walk_k(sa, sb, sink, self.panel) if self.algorithm == "summa" else cannon.walk_k(sa, sb, sink)
            return
        moving, still = (sa, sb) if self.walk.dimension == "m" else (sb, sa)
        if not sink.block.size or not moving.X.shape[1 - moving.dimension]:
            sink.xp.scale(sink.block, sink.beta)
        if self.algorithm == "summa":
            summa.walk_mn(moving, still.X.stored, sc, sink, self.panel)
        else:
            cannon.walk_mn(moving, still.X.stored, sc, sink)

    def _in_step(self, streams, a: DistMatrix, b: DistMatrix):
        """Cannon's streams; where their parts do not line up on some rank, one operand is gathered first."""
        walked = self.walk
        first, second = {"k": (0, 1), "m": (0, 2), "n": (1, 2)}[walked.dimension]
        fits = streams is None or cannon.lines_up(streams[first], streams[second])
        if all(self.grid.comm.share(fits)):
            return streams
        still = replace(walked, axes_a=(), A=self.roles.A) if first == 0 else replace(walked, axes_b=(), B=self.roles.B)
        c = streams[2].X if streams is not None else DistMatrix(a.xp.empty((0, 0), self.dtype), (0, 0), self.grid, walked.C)
        return walk.streams(a, b, c, still)

    # ------------------------------------------------------------------ foretelling

    @property
    def words(self) -> float:
        """Words a rank receives by the roles' closed formula (without Cannon's skew); exact where sizes divide."""
        return self.roles.words

    @cached_property
    def predicted(self) -> Figures:
        """The largest figures of any kind of rank (first or last along each axis), from dry runs of this very plan."""
        corners = product(*({0, min(1, p - 1), p - 1} for p in self.grid.shape))
        ledgers = [self._dry(dict(zip(self.grid.axes, corner, strict=True))) for corner in corners]
        return Figures(*(max(figures) for figures in zip(*ledgers, strict=True)))

    def _dry(self, coords: dict[str, int]) -> tuple[int, int, int]:
        grid = self.grid

        def program(comm: DryComm) -> None:
            here = ProcessGrid(grid.shape, grid.axes, comm, grid.ranks.ravel().tolist())
            ghost = replace(self, grid=here)
            ghost.run(self.A.ghost(here, self.dtype), self.B.ghost(here, self.dtype), None, 1, 0)

        _, ledger = dry_run(grid.comm.size, program, rank=grid.rank_of(coords))
        return ledger.bytes_received, ledger.messages, ledger.peak_workspace

    def explain(self) -> str:
        """The plan in words, beside what it costs."""
        (m, k), n = self.A.shape, self.B.shape[1]
        walked = "" if self.algorithm == "gather" else f", walking {self.walk.dimension} in panels of {self.panel}"
        cost = self.predicted
        return "\n".join([
            f"C({m}, {n}) = A({m}, {k}) B({k}, {n}), {self.dtype}, on {self.grid!r}",
            f"  algorithm   {self.algorithm}{walked if self.algorithm == 'summa' else walked.split(' in ')[0]}",
            f"  roles       {self.roles or 'one rank'}",
            f"  A           {self.A.layout!r} -> {self.roles.A!r}",
            f"  B           {self.B.layout!r} -> {self.roles.B!r}",
            f"  C           {self.roles.C!r} -> {self.layout!r}",
            f"  a rank      receives at most {cost.bytes_received} bytes in {cost.messages} messages, "
            f"workspace {cost.peak_workspace} bytes",
        ])  # fmt: skip


def make(
    A: DistMatrix, B: DistMatrix, layout: Layout, dtype: np.dtype, algorithm: str, panel: int | None,
    memory_limit: int | None, native: bool = False,
) -> Plan:  # fmt: skip
    """The plan for these operands; "auto" gathers little things at once and walks large ones in panels."""
    grid = A.grid
    mnk = (A.shape[0], B.shape[1], A.shape[1])
    chosen = roles.choose(A.layout.summed, B.layout.summed, None if native else layout, *mnk, tuple(grid.sizes.items()))
    if native:
        layout = roles.native(chosen.C)
    walked = walk.choose(A.layout, B.layout, layout, chosen, grid.sizes, mnk)
    width = panel or config.settings.panel or PANEL
    plan = Plan(grid, Operand.of(A), Operand.of(B), layout, dtype, "gather", chosen, walked, width)
    if algorithm == "auto":
        limit = min(GATHER_BELOW, memory_limit) if memory_limit is not None else GATHER_BELOW
        if plan.predicted.peak_workspace <= limit:
            return plan
        plan = replace(plan, algorithm="summa")
        return plan if memory_limit is None else _narrowed(plan, memory_limit)
    return replace(plan, algorithm=algorithm)


def _narrowed(plan: Plan, memory_limit: int) -> Plan:
    """The same with panels so narrow that the workspace stays below the limit."""
    while plan.predicted.peak_workspace > memory_limit and plan.panel > 1:
        plan = replace(plan, panel=plan.panel // 2)
    if plan.predicted.peak_workspace > memory_limit:
        raise PlanError(
            f"memory_limit={memory_limit}: the least workspace here is {plan.predicted.peak_workspace} bytes a rank, "
            f"{plan.predicted.peak_workspace - memory_limit} more"
        )
    return plan


def words(algorithm: str, m: int, n: int, k: int, grid: tuple[int, int]) -> float:
    """Words a rank receives for C = A B in 2-D blocks on a pr x pc grid: the closed formula, exact where sizes divide.

    Cannon's is the most that any rank receives: what SUMMA sends, a block for the skew, and another where a rank begins
    inside a part, which happens on rectangles whose sides do not divide each other.
    """
    pr, pc = grid
    if algorithm not in ALGORITHMS:
        raise PlanError(f"algorithm={algorithm!r}: one of {', '.join(ALGORITHMS)}")
    if algorithm == "cannon":
        return (m * k * _visits(pc, pr) + k * n * _visits(pr, pc)) / prod(grid)
    return (m * k * (pc - 1) + k * n * (pr - 1)) / prod(grid)


def _visits(ring: int, across: int) -> int:
    """Parts that come to a rank on a Cannon ring, beside a ring of `across` ranks; the rank to which most come."""
    steps = lcm(ring, across)
    mine, theirs = steps // ring, steps // across
    late = ((theirs * i // mine % ring > 0) + (theirs * i % mine > 0) for i in range(across))
    return ring - 1 + max(late) if ring > 1 else 0

