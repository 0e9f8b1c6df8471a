"""Plans: where a routine works, what that costs, and how it runs. A plan runs with all operands like those it was made for.

Blockings are compared by price. Under a memory limit, dry runs find their workspace, and the cheapest blocking within it is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from pdla.array.meta import Meta
from pdla.checks import describe, digest_arrays, open_grids, written_to
from pdla.comm.agreement import agreed
from pdla.comm.workspace import Workspace, within
from pdla.errors import PlanError
from pdla.grid import check_same_communicator
from pdla.layout import draw_html
from pdla.linalg import checks
from pdla.linalg.panels.blocks import cut_in_blocks, place_in_blocks
from pdla.linalg.plan import price
from pdla.linalg.plan.blocking import Place, find_place, list_blockings
from pdla.linalg.plan.dry import choose_within_limit, predict_cost, predict_most_bytes, predict_workspace
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.price import Blocking, sort_by_price
from pdla.linalg.plan.right_side import RightSide
from pdla.linalg.plan.routine import Task
from pdla.linalg.verify import verifying
from pdla.matmul.choose.problem import Operand
from pdla.matmul.dry import sample_ranks
from pdla.matmul.images import Part
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import check_array
from pdla.model.cost import Cost, in_words
from pdla.model.machine import Machine

NEXT = 2  # how many other blockings `explain` lists
MOST_RANKS = 4096  # for more ranks, or more than MOST_STEPS in all dry runs, seconds are those of the closed form
MOST_STEPS = 500
COSTED = 3  # how many blockings, those of least price, are run dry on a described machine
Kind = Operand | Meta  # what a plan knows of an operand, a matrix or an array on every rank


def find_kind(X: Any) -> Kind:
    """Local: what a plan knows of X."""
    return Operand.of(X) if isinstance(X, DistMatrix) else Meta(X.shape, X.dtype)


def _is_like(kind: Kind | None, X: Any) -> bool:
    """Whether X is of this kind."""
    if isinstance(kind, Operand):
        return isinstance(X, DistMatrix) and kind.matches(X) and X.dtype == kind.dtype
    if kind is None or isinstance(X, DistMatrix):
        return X is None
    return (getattr(X, "shape", None), getattr(X, "dtype", None)) == (kind.shape, kind.dtype)


def _describe(kind: Kind) -> str:
    return f"{kind}" if isinstance(kind, Operand) else f"array of shape {kind.shape}, {kind.dtype}"


@dataclass(frozen=True)
class FactorPlan:
    """How a matrix is factored, or a system solved; ``plan(A)`` or ``plan(A, B)`` runs it.

    `plan_cholesky`, `plan_lu`, `plan_solve` and `plan_solve_triangular` make it. The plan keeps its
    buffers from run to run; `free` releases them.

    Parameters
    ----------
    name : str
        The function's name.
    operands : tuple of Operand
        Shapes, layouts, grids and dtypes of A and B.
    out : Operand or None
        The same of the matrix that receives the result.
    dtype : numpy.dtype
        Of the work.
    options : Options
        The function's options.
    reads : Part or None
        The part of A that is read; None: all of A.
    tasks : tuple of Task
        The routines, one after another; none if there is nothing to choose.
    candidates : tuple of Blocking
        The blockings that were compared, the cheapest first.
    shape : tuple of int
        pr and pc of the grid, and the number of layers if there are several.
    block : int
        Columns of a panel; with one layer also the rows of square blocks.
    keeps_layout : bool
        Whether the routine works in A's own layout.
    work : callable
        The work, collective and unchecked: ``work(plan, A)`` or ``work(plan, A, B)``.
    check_elements : callable
        Checks the operands' elements, local.
    adjoint : bool
        Whether the routines work on A^H.
    passes : int
        How often the work goes over the blocks, for each time that the routines do.
    worst : bool
        Whether the full solution follows refinement: a memory limit must count both.

    Examples
    --------
    >>> def program(comm):
    ...     A = 4 * pdla.eye(64, pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
    ...     plan = pdla.linalg.plan_cholesky(A)
    ...     return plan.name, plan.block, plan(A).trace()
    >>> pdla.run(4, program)[0]
    ('cholesky', 32, np.float64(128.0))
    """

    name: str
    operands: tuple[Kind, ...]
    out: Kind | None
    dtype: np.dtype
    options: Options
    reads: Part | None
    tasks: tuple[Task, ...]
    candidates: tuple[Blocking, ...] = field(repr=False)
    shape: tuple[int, ...]
    block: int
    keeps_layout: bool
    work: Callable[..., Any] = field(compare=False, repr=False)
    check_elements: Callable[..., None] = field(compare=False, repr=False)
    adjoint: bool = False
    passes: int = 1
    worst: bool = False
    buffers: Workspace = field(default_factory=Workspace, init=False, compare=False, repr=False)

    @staticmethod
    def of(
        name: str, operands: tuple[Any, ...], out: Any, dtype: np.dtype, options: Options, reads: Part | None,
        tasks: tuple[Task, ...], work: Callable[..., Any], check_elements: Callable[..., None], adjoint: bool = False,
        passes: int = 1,
    ) -> FactorPlan:
        """Make the plan in the cheapest blocking within a memory limit. Local.

        Parameters
        ----------
        name : str
            The function's name.
        operands : tuple
            A, or A and B.
        out : DistMatrix or array or None
            Receives the result.
        dtype : numpy.dtype
            Of the work.
        options : Options
            The function's options.
        reads : Part or None
            The part of A that is read.
        tasks : tuple of Task
            The routines, one after another.
        work : callable
            See `FactorPlan`.
        check_elements : callable
            See `FactorPlan`.
        adjoint : bool, optional
            Whether the tasks are those of A^H.
        passes : int, optional
            See `FactorPlan`.

        Returns
        -------
        FactorPlan
            The same on every rank.

        Raises
        ------
        PlanError
            If no blocking is within the memory limit.
        """
        A, kinds = operands[0].H if adjoint else operands[0], tuple(map(find_kind, operands))
        blockings = list_blockings(A, tasks[0]) if tasks else (Blocking((1, 1), 1),)
        keeps_layout = bool(tasks) and tasks[0].routine.keeps_layout(A)
        out_kind = None if out is None else find_kind(out)
        plan = FactorPlan(
            name, kinds, out_kind, dtype, options, reads, tasks, blockings, *blockings[0],
            keeps_layout, work, check_elements, adjoint, passes,
        )
        if len(blockings) > 1 and plan.machine.is_custom:
            blockings = plan._sort_by_seconds(blockings)
            plan = replace(plan, candidates=blockings).with_blocking(blockings[0])
        if options.memory_limit is None or not tasks:
            return plan
        worst = replace(plan, worst=True)

        def peak(blocking: Blocking) -> int:
            candidate = worst.with_blocking(blocking)
            return predict_workspace(candidate._kinds, candidate._work_dry, candidate.place[1])

        return plan.with_blocking(choose_within_limit(blockings, options.memory_limit, peak))

    def _sort_by_seconds(self, blockings: tuple[Blocking, ...]) -> tuple[Blocking, ...]:
        """Sort the first few blockings by seconds, of dry runs if all can be run dry.

        The preferred one of those within GOOD of the fastest is first.
        """
        plans = [self.with_blocking(blocking) for blocking in blockings[:COSTED]]
        closed = any(plan.many_steps for plan in plans)
        seconds = {plan.blocking: plan._chain if closed else plan.seconds for plan in plans}
        timed = sorted(seconds, key=lambda blocking: seconds[blocking])
        close = [blocking for blocking in timed if seconds[blocking] <= price.GOOD * seconds[timed[0]]]
        preferred = max(close, key=lambda blocking: self.tasks[0].routine.preference(*blocking))
        return (preferred, *(blocking for blocking in (*timed, *blockings[COSTED:]) if blocking != preferred))

    def with_blocking(self, blocking: Blocking) -> FactorPlan:
        """Make the same plan in other blocks. Local.

        Parameters
        ----------
        blocking : Blocking
            The grid's shape, and the columns of a panel.

        Returns
        -------
        FactorPlan
            A plan of the same operands and options.
        """
        return replace(self, shape=blocking.shape, block=blocking.block)

    # ------------------------------------------------------------------ blocking, places and bound

    @property
    def blocking(self) -> Blocking:
        """The grid's shape and the block, together."""
        return Blocking(self.shape, self.block)

    @property
    def A(self) -> Operand:
        """The first operand, or its adjoint, as the plan works on it."""
        operand: Operand = self.operands[0]  # type: ignore[assignment]
        return operand.H if self.adjoint else operand

    @property
    def machine(self) -> Machine:
        """The machine that the plan is made for."""
        return self.tasks[0].machine

    @cached_property
    def place(self) -> Place:
        """The layout and the grid of the working copy of A."""
        return find_place(self.tasks[0].routine, self.A, self.blocking)

    @cached_property
    def adjoint_place(self) -> Place:
        """The layout and the grid of the working copy of A^H, which is never in layers."""
        layout, grid = self.place
        if self.keeps_layout and len(self.shape) == 2:
            return layout.T, grid
        return place_in_blocks(self.A, *sort_by_price(self.tasks[0], grid.comm.size)[0]) if self.keeps_layout else self.place

    @property
    def square_place(self) -> Place | None:
        """`place` if it is in square blocks, else None: triangles are not solved in layers."""
        return self.place if len(self.shape) == 2 else None

    @property
    def closed(self) -> bool:
        """Whether a grid of the operands has been closed."""
        return any(X.grid.closed for X in self.operands if isinstance(X, Operand))

    @property
    def bound(self) -> float:
        """The least bytes that a rank must receive, with memory for its share of A and its addends."""
        return self.dtype.itemsize * sum(task.bound(self.shape) for task in self.tasks)

    def overwrites(self, which: str) -> bool:
        """Return whether A or B may be overwritten. Local.

        Parameters
        ----------
        which : "a" or "b"
            A or B.

        Returns
        -------
        bool
            False if `verify` keeps them.
        """
        overwrite = self.options.overwrite_a if which == "a" else self.options.overwrite_b
        return overwrite and self.options.verify != "keep"

    def describe_side(self, B: Any, out: Any = None) -> RightSide:
        """Describe B as a right-hand side, with the options for X. Local.

        Parameters
        ----------
        B : DistMatrix or array
            The right-hand side.
        out : DistMatrix or array, optional
            Receives X.

        Returns
        -------
        RightSide
            B, `out`, X's layout and the dtype.
        """
        return RightSide(B, self.options.layout, self.dtype, self.overwrites("b"), out)

    # ------------------------------------------------------------------ running

    def __call__(self, *operands: Any, out: Any = None) -> Any:
        """Run the plan. Collective.

        Parameters
        ----------
        *operands : DistMatrix or array
            A, or A and B, like those that the plan was made for.
        out : DistMatrix or array, optional
            Receives X, if the plan was made with `out`.

        Returns
        -------
        object
            The function's result.

        Raises
        ------
        PlanError
            For operands that the plan was not made for, on every rank.
        LinAlgError, VerificationError, ShapeError, GridError, AgreementError
            As by the function, on every rank.
        """
        description = describe(*operands, *(() if out is None else (out,)))
        with agreed(self.A.grid.comm, f"a plan of {self.name}: {description}{digest_arrays(operands)}"):
            open_grids(X.grid for X in self.operands if isinstance(X, Operand))
            operands = tuple([self._check_vector(X) if isinstance(X, (list, np.ndarray)) else X for X in operands])
            if len(operands) != len(self.operands) or not all(map(_is_like, (*self.operands, self.out), (*operands, out))):
                made_for = "; ".join(map(_describe, (*self.operands, *(() if self.out is None else (self.out,)))))
                raise PlanError(f"this plan is for {made_for}, in {self.dtype}, not for {description}")
            self.check(operands, out)
        return self.run(operands, out, self.buffers)

    def _check_vector(self, x: Any) -> Any:
        return check_array(self.name, self.A.grid.comm, x)

    def check(self, operands: tuple[Any, ...], out: Any = None, elements: bool = True) -> None:
        """Check the operands' memory and elements, which descriptions leave out. Local.

        Parameters
        ----------
        operands : tuple
            Like those that the plan was made for.
        out : DistMatrix or array, optional
            Receives the result.
        elements : bool, optional
            Whether elements are checked.

        Raises
        ------
        ShapeError, GridError, LinAlgError
            For memory that cannot be overwritten, other grids, NaN and infinity.
        """
        A, *rest = operands
        options = self.options
        matrices = [(name, X) for name, X in (("A", A), ("B", operands[-1]), ("out", out)) if isinstance(X, DistMatrix)]
        for name, X in matrices:
            check_same_communicator(self.A.grid, X.grid, name)
        open_grids([X.grid for _, X in matrices])
        if options.overwrite_a:
            checks.check_overwrite("A", A, *rest)
        if options.overwrite_b and isinstance(rest[-1], DistMatrix):
            checks.check_overwrite("B", rest[-1], A)
        written_to(out, *operands)
        if elements:
            self.check_elements(*operands)
        if elements and options.check_finite:
            checks.check_finite(A, rest[-1] if rest else None, part=self.reads)

    def run(self, operands: tuple[Any, ...], out: Any, buffers: Workspace) -> Any:
        """Run the plan without checks. Collective.

        Parameters
        ----------
        operands : tuple
            Like those that the plan was made for.
        out : DistMatrix or array or None
            Receives the result.
        buffers : Workspace
            Provides buffers; a plan with a memory limit uses its own.

        Returns
        -------
        object
            The function's result.
        """
        buffers = buffers if self.options.memory_limit is None else Workspace(spare=0)
        with within(buffers), verifying(self.options.verify):
            return self.work(self, *operands) if out is None else self.work(self, *operands, out=out)

    def free(self) -> None:
        """Release the buffers kept for the next run; the plan can still run. Not collective."""
        self.buffers.trim(0)

    # ------------------------------------------------------------------ what it costs

    def _work_dry(self, *ghosts: Any) -> Any:
        """Collective: do the work on a dry communicator, with arrays without data and without checks."""
        *operands, out = ghosts if self.out is not None else (*ghosts, None)
        plan = replace(self, operands=tuple(map(find_kind, operands)))
        with within(Workspace()), verifying(False):
            return self.work(plan, *operands) if out is None else self.work(plan, *operands, out=out)

    @property
    def _kinds(self) -> tuple[Kind, ...]:
        return self.operands if self.out is None else (*self.operands, self.out)

    @cached_property
    def predicted(self) -> Cost:
        """The predicted cost of a run, as `Cost`.

        Bytes, messages and workspace are each the maximum over sampled ranks, by dry runs of the
        function itself.
        """
        peak = predict_workspace(self._kinds, self._work_dry, self.place[1])
        return replace(self._cost, peak_workspace=peak, seconds=self.seconds)

    @cached_property
    def seconds(self) -> float:
        """Predict the seconds on the plan's machine.

        The slowest sampled rank's seconds or, if longer, those of the chain from panel to panel,
        for which all ranks wait. A closed form gives the chain, and alone decides for many steps.
        """
        return self._chain if self.many_steps else max(self._chain, self._cost.seconds)

    @property
    def _chain(self) -> float:
        """Seconds by closed forms."""
        return sum(price.predict_seconds(task, *self.blocking) for task in self.tasks)

    @property
    def many_steps(self) -> bool:
        """Whether there are too many ranks, or too many steps in all, to time dry runs."""
        comm = self.A.grid.comm
        ranks, steps = sample_ranks(comm, [self.A.grid, self.place[1]]), sum(-(-task.size // self.block) for task in self.tasks)
        return comm.size > MOST_RANKS or self.passes * steps * len(ranks) > MOST_STEPS

    @cached_property
    def _cost(self) -> Cost:
        return predict_cost(self._kinds, self._work_dry, self.place[1], self.machine)

    @cached_property
    def at_most(self) -> int:
        """The most bytes that a sampled rank receives, for any pivots of an LU.

        With c layers each of its rows may be a pivot row, for which c - 2 more layers send addends.
        """
        received = predict_most_bytes(self._kinds, self._work_dry, self.place[1])
        rows, cols = price.count_shares(self.tasks[0], self.shape, self.block)
        return received + max(0, prod(self.shape[2:]) - 2) * rows * cols * self.dtype.itemsize

    # ------------------------------------------------------------------ descriptions

    def explain(self) -> str:
        """Describe the plan: its layouts, cost and bound, and the next best blockings.

        Returns
        -------
        str
            A few lines.
        """
        cost, A = self.predicted, self.A
        layouts = f"{A.layout!r}" if self.keeps_layout else f"{A.layout!r} -> {cut_in_blocks(*self.blocking)!r}"
        rivals = [blocking for blocking in self.candidates if blocking != self.blocking][:NEXT]
        return "\n".join([
            f"{self._title}, {self.dtype}, on {A.grid!r}",
            f"  algorithm   {self.tasks[0].routine.algorithm}, {self.blocking}",
            f"  {'A^H' if self.adjoint else 'A':<12}{layouts}",
            f"  a rank      receives at most {cost.bytes_received} bytes in {cost.messages} message{'s' * (cost.messages != 1)}, "
            f"workspace {cost.peak_workspace} bytes",
            f"  bound       {self.bound:.0f} bytes",
            f"  time        {in_words(cost, self.machine, A.grid.comm.size)}",
            *(f"  next        {blocking}, {self.with_blocking(blocking).seconds:.3g} s" for blocking in rivals),
        ])

    @property
    def _title(self) -> str:
        return f"{self.name} of {' and '.join(' x '.join(map(str, X.shape)) for X in self.operands)}"

    def __repr__(self) -> str:
        return f"FactorPlan({self._title}, {self.dtype}, {self.blocking})"

    def _repr_html_(self) -> str:
        """The plan in words, and A's distribution during the work; nothing is run dry."""
        from pdla import show

        layout, grid = self.place if self.tasks else (self.A.layout, self.A.grid)
        return show.heading(f"{self!r}, where it works") + draw_html(layout, self.A.shape, grid)
