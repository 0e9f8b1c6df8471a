"""Plans: where a factorization or a solution works, what that costs, and how it is run. Blockings are compared by price."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np

from pdla.comm.agreement import agreed, failed
from pdla.errors import PlanError
from pdla.grid import one_communicator
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.factorizations import price
from pdla.linalg.factorizations.block_cyclic import in_blocks
from pdla.linalg.factorizations.blocking import blockings, by, columns, limited, stays, task, to
from pdla.linalg.factorizations.cholesky import cholesky
from pdla.linalg.factorizations.dry import figures, most_received
from pdla.linalg.factorizations.lu import lu_factor
from pdla.linalg.factorizations.price import Blocking, Task
from pdla.linalg.factorizations.right_side import RightSide
from pdla.linalg.factorizations.triangular import solve_triangular
from pdla.linalg.solve import ROUTINES, solve
from pdla.matmul.checks import communicator
from pdla.matmul.choose.problem import Operand
from pdla.matmul.plan import Figures
from pdla.matrix.core import DistMatrix

NEXT = 2  # other blockings that `explain` lists


@dataclass(frozen=True)
class FactorPlan:
    """How a matrix is factored, or a system solved; ``plan(A)`` or ``plan(A, B)`` runs it.

    `plan_cholesky`, `plan_lu`, `plan_solve` and `plan_solve_triangular` make it.

    Parameters
    ----------
    name : str
        The function that it runs.
    operands : tuple of Operand
        What it was made for: shapes, layouts, grids, dtypes of A and B.
    dtype : numpy.dtype
        In which it works.
    tasks : tuple of Task
        The routines that it consists of.
    shape : tuple of int
        pr and pc, of the grid on which it works; and layers, where there are several.
    block : int
        Columns of a panel; of square blocks the rows, where there is one layer.
    stays : bool
        Whether A is worked on where it lies.
    rivals : tuple of str
        The next cheapest blockings.
    call : callable
        What it runs.
    limit : float, optional
        Bytes of workspace a rank, at most.

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
    operands: tuple[Operand, ...]
    dtype: np.dtype
    tasks: tuple[Task, ...]
    shape: tuple[int, ...]
    block: int
    stays: bool
    rivals: tuple[str, ...]
    call: Callable[..., Any] = field(compare=False)
    limit: float | None = None

    @property
    def blocking(self) -> Blocking:
        """The grid's shape and the block, together."""
        return Blocking(self.shape, self.block)

    @property
    def machine(self) -> Any:
        """The machine that the plan is made for."""
        return self.tasks[0].machine

    def __call__(self, *matrices: DistMatrix) -> Any:
        """Run the plan. Collective.

        Parameters
        ----------
        *matrices : DistMatrix
            A, or A and B, like those that the plan was made for.

        Returns
        -------
        object
            What the function gives.

        Raises
        ------
        PlanError
            For matrices that the plan was not made for, on this rank alone.
        """
        comm = self.operands[0].grid.comm
        try:
            self._check(matrices)
        except BaseException as error:
            failed(comm, "a plan's call", error)
            raise
        with to(self.blocking, self.limit):
            return self.call(*matrices)

    def _check(self, matrices: tuple[Any, ...]) -> None:
        alike = len(matrices) == len(self.operands) and all(
            isinstance(X, DistMatrix) and like.like(X) and X.dtype == like.dtype
            for like, X in zip(self.operands, matrices, strict=True)
        )
        if not alike:
            given = "; ".join(X.described if isinstance(X, DistMatrix) else repr(X) for X in matrices)
            raise PlanError(f"this plan is for {'; '.join(map(str, self.operands))}, in {self.dtype}, not for {given}")
        for X in matrices:
            one_communicator(self.operands[0].grid, X.grid, "a matrix", "the plan")

    @cached_property
    def predicted(self) -> Figures:
        """What the plan will cost, as `Figures`.

        Bytes, messages and workspace are those of dry runs of the function itself, the largest of
        the sampled ranks; seconds are theirs on the plan's machine or, if they are more, those of
        the chain from panel to panel, for which all ranks wait.
        """
        told = figures(self.operands, by(self.blocking, self.call), self.machine)
        return replace(told, seconds=max(told.seconds, sum(price.seconds(task, self.shape, self.block) for task in self.tasks)))

    @cached_property
    def at_most(self) -> int:
        """Bytes that any of the sampled ranks receives at most, whatever the pivots of an LU are.

        Over c layers each of its rows may be a pivot row, to which c - 2 layers more give addends
        than one rank's row would bring.
        """
        told = most_received(self.operands, by(self.blocking, self.call))
        rows, cols = price.shares(self.tasks[0], self.shape, self.block)
        return told + max(0, prod(self.shape[2:]) - 2) * rows * cols * self.dtype.itemsize

    @property
    def bound(self) -> float:
        """Bytes that a rank must receive at least, with room for its share of A and its addends."""
        return self.dtype.itemsize * sum(price.bound(task, self.shape) for task in self.tasks)

    def explain(self) -> str:
        """Describe the plan: where it works, what it costs, the bound, and the next best blockings.

        Returns
        -------
        str
            A few lines.
        """
        cost, machine, A = self.predicted, self.machine, self.operands[0]
        there = f"{A.layout!r}" if self.stays else f"{A.layout!r} -> {in_blocks(*self.blocking)!r}"
        return "\n".join([
            f"{self._said}, {self.dtype}, on {A.grid!r}",
            f"  algorithm   right-looking, {_priced(self.blocking, self.tasks)}",
            f"  A           {there}",
            f"  a rank      receives at most {cost.bytes_received} bytes in {cost.messages} message{'s' * (cost.messages != 1)}, "
            f"workspace {cost.peak_workspace} bytes",
            f"  bound       {self.bound:.0f} bytes",
            f"  time        {cost.seconds:.3g} s at {machine.flops:.3g} flops and {machine.bandwidth:.3g} bytes a second",
            *(f"  next        {blocking}" for blocking in self.rivals),
        ])

    @property
    def _said(self) -> str:
        shapes = " and ".join(f"{X.shape[0]} x {X.shape[1]}" for X in self.operands)
        return f"{self.name} of {shapes}"

    def __repr__(self) -> str:
        return f"FactorPlan({self._said}, {self.dtype}, {self.blocking})"


def plan_cholesky(
    A: DistMatrix, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True, layout: Layout | None = None,
    memory_limit: int | None = None,
) -> FactorPlan:
    """Plan how `cholesky` will factor matrices like A. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        As for `cholesky`, as all arguments are. Its elements do not matter.
    lower : bool, optional
        Which triangle is read.
    overwrite_a : bool, optional
        Whether A may be written to.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    layout : Layout, optional
        Of the factor.
    memory_limit : int, optional
        Bytes of workspace a rank, at most.

    Returns
    -------
    FactorPlan
        It says what it will cost, and factors matrices like A.

    Raises
    ------
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        As by `cholesky`, on every rank.

    See Also
    --------
    predict_cholesky : What it costs, from its size alone.

    Examples
    --------
    >>> def program(comm):
    ...     layout = pdla.Layout(pdla.Cyclic("row", 8), pdla.Cyclic("col", 8))
    ...     plan = pdla.linalg.plan_cholesky(pdla.eye(64, pdla.ProcessGrid((2, 2)), layout))
    ...     return plan.stays, plan.predicted.bytes_received < 20000
    >>> pdla.run(4, program)[0]
    (True, True)
    """
    named = {"lower": lower, "over": overwrite_a, "finite": check_finite, "layout": layout, "limit": memory_limit}
    said = checks.words("plan_cholesky", A, **named)
    with agreed(communicator((A,)), said):
        checks.flags(check_finite=check_finite)
        dtype = checks.to_factor("cholesky", A, overwrite_a, False, lower=lower)
        checks.result(A, A.shape, dtype, None, layout)
        call = partial(cholesky, lower=lower, overwrite_a=overwrite_a, check_finite=check_finite, layout=layout)
        return _plan("cholesky", "cholesky", (A,), dtype, call, memory_limit, said)


def plan_lu(
    A: DistMatrix, *, overwrite_a: bool = False, check_finite: bool = True, memory_limit: int | None = None
) -> FactorPlan:
    """Plan how `lu_factor` will factor matrices like A. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        As for `lu_factor`, as all arguments are. Its elements do not matter.
    overwrite_a : bool, optional
        Whether A may be written to.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    memory_limit : int, optional
        Bytes of workspace a rank, at most.

    Returns
    -------
    FactorPlan
        It says what it will cost, and factors matrices like A.

    Raises
    ------
    ShapeError, PlanError, AgreementError
        As by `lu_factor`, on every rank.

    See Also
    --------
    predict_lu : What it costs, from its sizes alone.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.random((64, 64), pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
    ...     LU, pivots = pdla.linalg.plan_lu(A)(A)
    ...     return len(pivots)
    >>> pdla.run(4, program)[0]
    64
    """
    said = checks.words("plan_lu", A, over=overwrite_a, finite=check_finite, limit=memory_limit)
    with agreed(communicator((A,)), said):
        checks.flags(check_finite=check_finite)
        dtype = checks.to_factor("lu_factor", A, overwrite_a, False, rectangular=True)
        call = partial(lu_factor, overwrite_a=overwrite_a, check_finite=check_finite)
        return _plan("lu_factor", "lu", (A,), dtype, call, memory_limit, said)


def plan_solve(
    A: DistMatrix, B: DistMatrix, *, assume_a: str = "gen", lower: bool = True, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, layout: Layout | None = None, memory_limit: int | None = None,
) -> FactorPlan:
    """Plan how `solve` will solve systems like A X = B. Collective, idle ranks included.

    Parameters
    ----------
    A, B : DistMatrix
        As for `solve`, as all arguments are; no vectors. Their elements do not matter.
    assume_a : str, optional
        What is known of A; not "diagonal".
    lower : bool, optional
        For "sym", "her" and "pos": which triangle is read.
    overwrite_a, overwrite_b : bool, optional
        Whether they may be written to.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    layout : Layout, optional
        Of X.
    memory_limit : int, optional
        Bytes of workspace a rank, at most.

    Returns
    -------
    FactorPlan
        It says what it will cost, and solves systems like this one.

    Raises
    ------
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        As by `solve`, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = 4 * pdla.eye(64, pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
    ...     plan = pdla.linalg.plan_solve(A, A, assume_a="pos")
    ...     return plan(A, A).trace()
    >>> pdla.run(4, program)[0]
    np.float64(64.0)
    """
    named = {"lower": lower, "over": (overwrite_a, overwrite_b), "finite": check_finite, "layout": layout, "limit": memory_limit}
    said = checks.words("plan_solve", A, B, assume_a=assume_a, **named)
    with agreed(communicator((A, B)), said):
        checks.assumed("plan_solve", assume_a)
        if (routine := ROUTINES[assume_a]) == "diagonal":
            raise PlanError("plan_solve: assume_a='diagonal': there is nothing to choose")
        checks.flags(lower=lower, overwrite_a=overwrite_a, overwrite_b=overwrite_b, check_finite=check_finite)
        checks.square("solve", A)
        if overwrite_a:
            checks.overwritten("A", A, B)
        dtype = _matrix_side("plan_solve", A, B, layout, overwrite_b).dtype
        call = partial(
            solve, assume_a=assume_a, lower=lower, overwrite_a=overwrite_a, overwrite_b=overwrite_b, check_finite=check_finite,
            layout=layout,
        )
        return _plan("solve", routine, (A, B), dtype, call, memory_limit, said)


def plan_solve_triangular(
    A: DistMatrix, B: DistMatrix, *, lower: bool, unit_diagonal: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, layout: Layout | None = None,
) -> FactorPlan:
    """Plan how `solve_triangular` will solve systems like A X = B. Collective, idle ranks included.

    Parameters
    ----------
    A, B : DistMatrix
        As for `solve_triangular`, as all arguments are; no vectors. Their elements do not matter.
    lower : bool
        Which triangle it is.
    unit_diagonal : bool, optional
        Whether to take the diagonal to be ones.
    overwrite_b : bool, optional
        Whether B may be written to.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    layout : Layout, optional
        Of X.

    Returns
    -------
    FactorPlan
        It says what it will cost, and solves systems like this one.

    Raises
    ------
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        As by `solve_triangular`, on every rank.

    See Also
    --------
    predict_solve_triangular : What it costs, from its sizes alone.

    Examples
    --------
    >>> def program(comm):
    ...     A = 4 * pdla.eye(64, pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
    ...     return pdla.linalg.plan_solve_triangular(A, A, lower=True)(A, A).trace()
    >>> pdla.run(4, program)[0]
    np.float64(64.0)
    """
    options = {"lower": lower, "unit_diagonal": unit_diagonal, "overwrite_b": overwrite_b, "check_finite": check_finite}
    said = checks.words("plan_solve_triangular", A, B, layout=layout, **options)
    with agreed(communicator((A, B)), said):
        checks.flags(**options)
        checks.square("solve_triangular", A)
        dtype = _matrix_side("plan_solve_triangular", A, B, layout, overwrite_b).dtype
        call: partial = partial(solve_triangular, layout=layout, **options)  # type: ignore[arg-type]
        return _plan("solve_triangular", "triangular", (A, B), dtype, call, None, said)


def _matrix_side(name: str, A: DistMatrix, B: Any, layout: Layout | None, overwrite: bool) -> RightSide:
    if not isinstance(B, DistMatrix):
        raise PlanError(f"{name}: B={B!r}: a DistMatrix; a vector is solved without a plan")
    return RightSide.of(name, A, B, layout, overwrite)


def _plan(
    name: str, routine: str, matrices: tuple[DistMatrix, ...], dtype: np.dtype, call: Callable[..., Any], limit: float | None,
    said: str,
) -> FactorPlan:
    A, *others = matrices
    cols = columns(routine, A, *others)
    limited_to = limited(routine, A, dtype, limit, call, *others, said=said)
    found = blockings(routine, A, cols, dtype)
    blocking = limited_to or found[0]
    first = task(routine, A, cols, dtype)
    sides = [replace(first, routine="triangular", n=B.shape[1]) for B in 2 * others if routine != "triangular"]
    tasks = (first, *sides)
    rivals = [_priced(other, tasks) for other in found if other != blocking][:NEXT]
    operands = tuple(map(Operand.of, matrices))
    return FactorPlan(name, operands, dtype, tasks, blocking.shape, blocking.block, stays(routine, A), tuple(rivals), call, limit)


def _priced(blocking: Blocking, tasks: tuple[Task, ...]) -> str:
    """A blocking, and how long the work takes in it, without conversions."""
    return f"{blocking}, {sum(price.seconds(each, *blocking) for each in tasks):.3g} s"
