"""A plan: how a product is computed, what that will cost, and how it is run; builder.py and planner.py make one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from operator import attrgetter
from typing import Any
from weakref import ref

import numpy as np

from pdla import config
from pdla.array.composed import summing
from pdla.array.dtypes import promoted
from pdla.array.meta import Meta
from pdla.comm.agreement import collective_section, failed
from pdla.comm.dry import DryComm, dry_run
from pdla.comm.ledger import buffer
from pdla.comm.workspace import Workspace, within
from pdla.errors import PlanError
from pdla.grid import ProcessGrid, one_communicator
from pdla.layout import Layout, Shape
from pdla.matmul import checks, roles, verify
from pdla.matmul.choose import problem
from pdla.matmul.choose.problem import Operand
from pdla.matmul.schedules import SCHEDULES, shared, walk
from pdla.matmul.schedules.base import Schedule
from pdla.matmul.schedules.streams import PlanCache, route
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import local_shape, start, summed, sums
from pdla.model.machine import Machine

EVERY_RANK = 64  # ranks up to which all of them are run dry to foretell costs, beyond only a sample


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


_CLOSED = attrgetter("closed")


def _nothing() -> None:
    """Stands for a weak reference where no `out` was given."""


def _forget(seen: list[Any], gone: ref) -> None:
    """Clear what is kept for the matrices of the last call, as one of its factors is gone."""
    seen.clear()


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


@dataclass(frozen=True)
class Plan:
    """How C = alpha A B + beta C is computed; `plan_matmul` makes it, ``plan(A, B)`` runs it.

    Its buffers are kept from run to run; `free` gives them back.

    Parameters
    ----------
    A, B, C : Operand
        What it was made for: shapes, layouts, grids, dtypes.
    dtype : numpy.dtype
        Of the product.
    algorithm : str
        What was chosen.
    schedule : str
        How its panels move.
    grid : ProcessGrid
        What the product is computed on.
    native : tuple of three Layout
        Those on `grid` to which A and B are brought, and in which C is computed.
    stays : tuple of three bool
        Which of the three have theirs.
    roles : Roles
        What each axis of `grid` carries.
    walk : Walk
        The dimension along which panels pass.
    panel : int
        Width of panels, in indices.
    machine : Machine
        What the plan is made for.
    words : float
        A rank receives for the product.
    moved : float
        Words for the conversions of layouts.
    bound : float
        Words that some rank must receive.
    adds : bool
        Made for a beta other than 0: then C, if it comes from another layout, needs memory of its
        own before it is added.
    limit : float
        Bytes of workspace, or infinity.
    rivals : callable, optional
        Finds the next cheapest ways, in words.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.ones((8, 8), pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
    ...     return pdla.plan_matmul(A, A, algorithm="summa")
    >>> pdla.run(4, program)[0]
    Plan(C(8, 8) = A(8, 8) B(8, 8), float64, on ProcessGrid(row=2, col=2), summa)
    """

    A: Operand
    B: Operand
    C: Operand
    dtype: np.dtype
    algorithm: str
    schedule: str
    grid: ProcessGrid
    native: tuple[Layout, Layout, Layout]
    stays: tuple[bool, bool, bool]
    roles: roles.Roles
    walk: walk.Walk
    panel: int
    machine: Machine
    words: float
    moved: float
    bound: float
    adds: bool
    limit: float
    rivals: Callable[[], tuple[str, ...]] = field(default=tuple, compare=False)
    workspace: Workspace = field(default_factory=Workspace, init=False, compare=False)
    memo: PlanCache = field(default_factory=PlanCache, init=False, compare=False)
    seen: list[Any] = field(default_factory=list, init=False, compare=False)

    @cached_property
    def how(self) -> Schedule:
        """The schedule itself, of which `schedule` is the name."""
        return SCHEDULES[self.schedule]

    @property
    def layout(self) -> Layout:
        """The layout of C."""
        return self.C.layout

    @property
    def mnk(self) -> tuple[int, int, int]:
        """The sizes of the product: C is m x n, A is m x k, B is k x n."""
        return (*self.C.shape, self.A.shape[1])

    @property
    def closed(self) -> bool:
        """Whether one of its grids has been closed.

        For matrices on an equal grid, made later, another plan must be made.
        """
        return any(map(_CLOSED, (self.grid, self.A.grid, self.B.grid, self.C.grid)))

    @property
    def named(self) -> str:
        """The algorithm's name, with the schedule's where the two differ."""
        return self.algorithm if self.schedule == self.algorithm else f"{self.algorithm} by {self.schedule}"

    # ------------------------------------------------------------------ running

    def __call__(
        self, A: DistMatrix, B: DistMatrix, *, out: DistMatrix | None = None, alpha: complex = 1, beta: complex = 0
    ) -> DistMatrix:
        """Multiply. Collective; matrices are checked without a message.

        Parameters
        ----------
        A, B : DistMatrix
            Like those that the plan was made for.
        out : DistMatrix, optional
            The matrix C to fill.
        alpha : number, optional
            Factor of the product.
        beta : number, optional
            Factor of what `out` holds.

        Returns
        -------
        DistMatrix
            C; `out` itself, where it is given.

        Raises
        ------
        PlanError
            For matrices that the plan was not made for, on this rank alone.
        ShapeError, LayoutError
            For an `out`, alpha or beta that does not fit them, on this rank alone.
        GridError
            Where a grid of theirs or the plan's is closed, or they are on another communicator than
            the plan, on this rank alone.
        """
        try:
            if not (self._saw(A, B) and self.seen[2]() is out):
                self._check(A, B, out)
            checks.open_grids((self.grid, A.grid, B.grid, (A if out is None else out).grid))
            checks.scalars(self.dtype, alpha, beta, out)
        except BaseException as error:
            failed(self.grid.comm, "a plan's call", error)
            raise
        return (verify.run if config.settings.verify else Plan.run)(self, A, B, out, alpha, beta, self.workspace)

    def _check(self, A: DistMatrix, B: DistMatrix, out: DistMatrix | None) -> None:
        """Local: check the matrices of a call, and remember them, so that the next call with the same ones need not."""
        for name, X in (("A", A), ("B", B), *([("out", out)] if out is not None else [])):
            checks.matrix(X, name)
            one_communicator(self.grid, X.grid, name, "the plan")
        alike = self.A.like(A) and self.B.like(B) and promoted(A.dtype, B.dtype) == self.dtype
        if not alike or (out is not None and not self.C.cut_like(out)):
            made_for = f"{self.A}; {self.B}; out={self.C}, in {self.dtype}"
            given = f"{A.described}; {B.described}; out={None if out is None else out.described}"
            raise PlanError(f"this plan is for {made_for}, not for {given}")
        if out is not None:
            checks.result(A, B, out, None, self.dtype)
        self._see(A, B, out)

    def _saw(self, A: DistMatrix, B: DistMatrix) -> bool:
        """Whether the last call was with these very factors."""
        return bool(self.seen) and self.seen[0]() is A and self.seen[1]() is B

    def _see(self, A: DistMatrix, B: DistMatrix, out: DistMatrix | None) -> None:
        """Remember the matrices of this call, and the turn in which they are multiplied where a call does nothing else.

        Only a factor that is gone clears this, and no call has one: so it does not change amid a
        call, whenever an `out` is gone.
        """
        forget, product = partial(_forget, self.seen), (A, B, self.roles, self.grid, self.memo)
        as_they_are = A.dtype == B.dtype == self.dtype and not (A.conjugated or B.conjugated)
        again = self._at_once and as_they_are and shared.Script.kept(*product).bound
        known = _nothing if out is None else ref(out)
        self.seen[:] = ref(A, forget), ref(B, forget), known, shared.Turn(*product) if again else None

    @cached_property
    def _at_once(self) -> bool:
        """Whether a call with factors of the plan's dtype, not conjugated, is one shared product, straight into C's block."""
        # Blocks of A or B that lie right, but on another grid, would be taken for others', and
        # copied.
        here = self.A.grid == self.B.grid == self.C.grid == self.grid
        lies = self.how.reads_in_place and here and all(self.stays) and self._taken_as_they_lie
        return lies and self._same(self.dtype, self.C.layout, self.roles.C)

    def run(
        self, A: DistMatrix, B: DistMatrix, out: DistMatrix | None, alpha: complex, beta: complex, workspace: Workspace
    ) -> DistMatrix:
        """Multiply without checks, with buffers from a workspace. Collective.

        Parameters
        ----------
        A, B : DistMatrix
            Like those that the plan was made for.
        out : DistMatrix or None
            The matrix C to fill.
        alpha, beta : number
            Factors of the product and of what `out` holds.
        workspace : Workspace
            Where buffers come from.

        Returns
        -------
        DistMatrix
            C; `out` itself, where it is given.
        """
        comm = self.grid.comm
        if not self._saw(A, B):
            with collective_section(comm, "a product"):
                self._see(A, B, out)
        if (turn := self.seen[3]) is None:
            with collective_section(comm, "a product"):
                return self._run(A, B, out, alpha, beta, workspace)
        comm.in_step("a product")
        before = comm.enter("a product")
        try:
            C = self._new(A) if out is None else out
            workspace.most = self.limit
            with within(workspace):
                turn.run(self._part(C.stored), alpha, beta)
        except BaseException as error:  # not by `collective_section`, whose cost would show in the smallest products
            failed(comm, "a product", error)
            raise
        finally:
            comm.user = before
        return C

    def _new(self, A: DistMatrix) -> DistMatrix:
        """A matrix for the product, whose contents are undefined; with the arrays of A's kind."""
        C = self.C
        return DistMatrix(A.xp.empty(self._block, self.dtype), C.shape, C.grid, C.layout)

    @cached_property
    def _block(self) -> Shape:
        """The shape of this rank's block of C."""
        return local_shape(self.C.shape, self.layout, self.C.grid)

    def _run(
        self, A: DistMatrix, B: DistMatrix, out: DistMatrix | None, alpha: complex, beta: complex, workspace: Workspace
    ) -> DistMatrix:
        workspace.most = self.limit
        with within(workspace):
            if out is None:
                out, beta = self._new(A), 0
            a, b = self._converted(A, B)
            if self.stays[2]:
                self._multiply(a, b, self._as_it_lies(out, self.native[2]), alpha, beta)
            else:
                self._multiply_and_return(a, b, out, alpha, beta)
        return out

    def free(self) -> None:
        """Give back the buffers kept for the next run; the plan still runs. Not collective."""
        self.workspace.trim(0)

    # ------------------------------------------------------------------ there and back

    def _converted(self, A: DistMatrix, B: DistMatrix) -> tuple[DistMatrix, DistMatrix]:
        """A and B in their native layouts; both are on their way before either is waited for.

        Some schedules take them in whatever layouts they come.
        """
        alike = A.grid is B.grid is self.grid and A.dtype is B.dtype is self.dtype
        if alike and self._taken_as_they_lie and not (A.conjugated or B.conjugated):
            return A, B
        ready = [self._ready(X) for X in (A, B)]
        there, ends = [], []
        for X, layout, stays in zip(ready, self.native, self.stays, strict=False):
            if stays or self.how.takes_any_layout:
                there.append(self._as_it_lies(X, layout) if stays else X)
                continue
            out = buffer(X.xp, local_shape(X.shape, layout, self.grid), X.dtype)
            ends.append(start(X, route(X, layout, self.grid, self.memo), self.grid.comm, out))
            there.append(DistMatrix(out, X.shape, self.grid, layout))
        for end in ends:
            end()
        return there[0], there[1]

    @cached_property
    def _taken_as_they_lie(self) -> bool:
        """Whether nothing needs to be done to A and B if they are on the plan's very grid, of its dtype, and not conjugated."""
        return all(self.stays[:2]) and not (self.A.layout.partial or self.B.layout.partial)

    def _as_it_lies(self, X: DistMatrix, layout: Layout) -> DistMatrix:
        """X as a matrix on the plan's grid, where its blocks are on the right ranks already."""
        if X.grid is self.grid or X.grid == self.grid:
            return X
        shape = local_shape(X.shape, layout, self.grid)
        # A block without elements may have another shape in the new layout.
        base = X.base if X.base.size else X.xp.empty(shape[::-1] if X.transposed else shape, X.dtype)
        return DistMatrix(base, X.shape, self.grid, layout, X.transposed, common=X.common)

    def _ready(self, X: DistMatrix) -> DistMatrix:
        """An operand in the product's dtype, with its partial sums added up, and no conjugate view."""
        if X.layout.partial:
            X = summed(X, X.layout.summed)
        if X.dtype == self.dtype and not X.conjugated:
            return X
        base = buffer(X.xp, X.base.shape, self.dtype)
        X.xp.copy(base, X.base, X.conjugated)
        return DistMatrix(base, X.shape, X.grid, X.layout, X.transposed)

    def _multiply_and_return(self, a: DistMatrix, b: DistMatrix, out: DistMatrix, alpha: complex, beta: complex) -> None:
        """Compute the product in C's native layout, bring it to `out`'s, and add beta times what was there.

        Only then are 16-bit floats rounded.
        """
        xp, kind = out.xp, self.dtype if beta == 0 else summing(self.dtype)
        block = buffer(xp, local_shape(out.shape, self.native[2], self.grid), kind)
        c = DistMatrix(block, out.shape, self.grid, self.native[2])
        self._multiply(a, b, c, alpha, 0)
        home = out.stored if beta == 0 else buffer(xp, out.stored.shape, kind)
        start(c, route(c, out.layout, out.grid, self.memo), self.grid.comm, home)()
        if beta != 0:
            xp.combine(out.stored, beta, home)

    # ------------------------------------------------------------------ multiplying

    def _multiply(self, a: DistMatrix, b: DistMatrix, c: DistMatrix, alpha: complex, beta: complex) -> None:
        """`c = alpha a b + beta c` on the plan's grid.

        Computed in c's own block where that is in the layout and dtype in which the products come,
        else in a buffer that is then summed and brought to c.
        """
        xp = c.xp
        layout, moving = (self.walk.C, bool(self.walk.axes_c)) if self.how.walks else (self.roles.C, False)
        if self.memo.once(("same", c.dtype), lambda: self._same(c.dtype, c.layout, layout)) and (beta == 0 or not moving):
            inside = DistMatrix(c.stored, c.shape, self.grid, layout)
            self.how.run(self, a, b, inside, alpha, beta)
            return
        shape = local_shape(c.shape, layout, self.grid)
        # By columns where these are cut to be summed: parts of rows would have gaps, and be copied
        # to be sent.
        by_columns = bool(layout.partial) and not sums(c.shape, layout, c.layout, tuple(self.grid.sizes.items()))[0][1]
        base = buffer(xp, shape[::-1] if by_columns else shape, summing(self.dtype))
        addends = DistMatrix(base, c.shape, self.grid, layout, by_columns)
        inside = DistMatrix(addends.stored, c.shape, self.grid, layout)  # no transpose, as panels of C travel by rows
        self.how.run(self, a, b, inside, alpha, 0)
        if addends.layout.partial:
            addends = summed(addends, c.layout)
        if not self._same(addends.dtype, addends.layout, c.layout):
            moved = buffer(xp, c.stored.shape, summing(self.dtype))
            start(addends, route(addends, c.layout, self.grid, self.memo), self.grid.comm, moved)()
            addends = DistMatrix(moved, c.shape, self.grid, c.layout)
        xp.combine(c.stored, beta, addends.stored)

    def _part(self, block: Any) -> Any:
        """The block of C of this rank; None if the rank has no part in the product."""
        return block if self.grid.active else None

    def _same(self, dtype: np.dtype, lying: Layout, layout: Layout) -> bool:
        """Whether products that come in `layout` can be added directly to blocks of C of this dtype that lie as `lying` says."""
        return dtype == summing(self.dtype) and not layout.partial and lying.same_cuts(layout, self.C.shape, self.grid.sizes)

    # ------------------------------------------------------------------ foretelling

    @cached_property
    def runners_up(self) -> tuple[str, ...]:
        """The next cheapest ways, in words; they are looked for when this is first asked for."""
        return self.rivals()

    @cached_property
    def predicted(self) -> Figures:
        """What the plan will cost, as `Figures`.

        The largest of the sampled ranks, each from a dry run of this very plan.
        """
        received, messages, peak, flops = (max(figures) for figures in zip(*map(self._dry, self._sample()), strict=True))
        seconds = self.machine.seconds(flops, received, messages, self.dtype.itemsize // (2 if self.dtype.kind == "c" else 1))
        return Figures(received, messages, peak, seconds)

    def peak_of(self, rank: int) -> int:
        """Foretell the workspace of one rank.

        Parameters
        ----------
        rank : int
            Of the grid's communicator.

        Returns
        -------
        int
            Bytes.
        """
        return self._dry(rank)[2]

    def _sample(self) -> list[int]:
        """The ranks that are run dry: all of them, if there are few.

        Of many, those that may have the highest costs: first, second and last along each axis of
        the grids (of very many not the second), and the first rank of the second node. Where cuts
        do not match, or a Cannon grid's sides do not divide each other, another rank may have more.
        """
        if self.grid.comm.size <= EVERY_RANK:
            return list(range(self.grid.comm.size))
        grids = dict.fromkeys((self.grid, self.A.grid, self.B.grid, self.C.grid))
        second = 1 if self.grid.comm.size <= problem.LARGE else 0
        corners = [
            grid.ranks[corner] for grid in grids for corner in product(*({0, min(second, p - 1), p - 1} for p in grid.shape))
        ]
        homes = self.grid.comm.homes
        return sorted({*map(int, corners), *(homes.index(home) for home in list(dict.fromkeys(homes))[1:2])})

    def _dry(self, rank: int) -> tuple[int, int, int, int]:
        """Bytes and messages that one rank receives, its bytes of workspace, and its flops, from a dry run, made once."""
        return self.memo.once(("dry", rank), lambda: self._figures(rank))

    def _figures(self, rank: int) -> tuple[int, int, int, int]:

        def program(comm: DryComm) -> None:
            here = self.grid.comm
            comm.homes, comm.shared_limit, comm.adds = here.homes, here.shared_limit, here.adds  # on which figures depend
            alike = {grid: grid.over(comm) for grid in (self.grid, self.A.grid, self.B.grid, self.C.grid)}
            a, b, c = (ghost(X, alike[X.grid], self.dtype) for X in (self.A, self.B, self.C))
            replace(self, grid=alike[self.grid]).run(a, b, c, 1, int(self.adds), Workspace())

        _, ledger = dry_run(self.grid.comm.size, program, rank=rank)
        return ledger.bytes_received, ledger.messages, ledger.peak_workspace, ledger.flops

    def __repr__(self) -> str:
        return f"Plan({self._product}, {self.named})"

    @property
    def _product(self) -> str:
        m, n, k = self.mnk
        return f"C({m}, {n}) = A({m}, {k}) B({k}, {n}), {self.dtype}, on {self.grid!r}"

    def explain(self) -> str:
        """Describe the plan: how it multiplies, what it costs, the bound, and the next best ways.

        Returns
        -------
        str
            A few lines.
        """
        walked = f", walking {self.walk.dimension}" if self.how.walks else ""
        panels = f" in panels of {self.panel}" if self.how.walks else ""
        cost, machine, size = self.predicted, self.machine, self.dtype.itemsize
        return "\n".join([
            self._product,
            f"  algorithm   {self.named}{walked}{panels}",
            f"  roles       {str(self.roles) or 'one rank'}",
            *(f"  {name}           {self._way_of(i)}" for i, name in enumerate("ABC")),
            f"  a rank      receives at most {cost.bytes_received} bytes in {cost.messages} message{'s' * (cost.messages != 1)}, "
            f"workspace {cost.peak_workspace} bytes",
            f"  bound       {size * self.bound:.0f} bytes; conversions bring {size * self.moved:.0f} bytes",
            f"  time        {cost.seconds:.3g} s at {machine.flops:.3g} flops and {machine.bandwidth:.3g} bytes a second",
            *(f"  next        {way}" for way in self.runners_up),
        ])

    def _way_of(self, i: int) -> str:
        """The layouts that A, B or C (0, 1 or 2) goes through: as given, native, and as the local products take it."""
        given, native, needed = (self.A, self.B, self.C)[i].layout, self.native[i], self.roles.layouts[i]
        steps = [given] if self.stays[i] else [given, native]
        steps += [] if steps[-1] == needed else [needed]
        return " -> ".join(map(repr, steps if i < 2 else reversed(steps)))
