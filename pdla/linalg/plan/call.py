"""One call: the ranks agree on its description, check it, find its plan or make it, and run it.

call = Call("cholesky", CHOLESKY, work)     a function of A;  work(plan, A) is collective and unchecked
call(A, lower=True, verify=None)            agrees, checks, plans, runs
call.plan(A, lower=True)                    agrees, checks and plans

The description has operands and options, so ranks that agree find the same plan. Elements and memory are not in it: every call
checks them (`FactorPlan.check`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from pdla import config
from pdla.checks import communicator, describe, digest_arrays, matrix
from pdla.comm import workspace
from pdla.comm.agreement import agreed
from pdla.comm.communicator import Communicator
from pdla.cuts import Cyclic
from pdla.errors import PlanError
from pdla.grid import ProcessGrid
from pdla.layout import Layout, Shape
from pdla.linalg import checks
from pdla.linalg.panels.blocks import cut_in_blocks
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.price import Blocking
from pdla.linalg.plan.right_side import check_side
from pdla.linalg.plan.routine import Routine, Task
from pdla.linalg.plan.stacked import map_stacks
from pdla.linalg.products.stacks import Stack
from pdla.matmul.api import plans_of
from pdla.matmul.dry import make_communicator
from pdla.matmul.images import Part
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import check_array, zeros
from pdla.model.machine import Machine

Routines = tuple[Routine, ...]
Function = TypeVar("Function", bound=Callable[..., Any])


def _find_part_read(options: Options) -> Part | None:
    """The part of A that is read: `assume_a` implies it."""
    return options.part


def _list_result_shapes(A: DistMatrix) -> Sequence[Shape]:
    return (A.shape,)


def _check_nothing(*arguments: Any) -> None: ...


def _work_on_a(options: Options, A: DistMatrix) -> bool:
    return False


@dataclass(frozen=True, eq=False)
class Call:
    """A function of A, or of A and a right-hand side B, which is the last operand.

    name       the function's name
    routines   run one after another: a tuple; a table by the option assume_a; or a function of options and A. If empty,
               there is nothing to choose.
    work       the work, a function of a plan and operands, collective and unchecked
    solves     whether the last operand is B
    square     whether A must be square
    reads      the part of A that is read
    results    the shapes of the matrices to which the option `layout` applies, if there is no B
    check      check(options, dtype, *operands): further checks of what descriptions have
    check_elements  check_elements(*operands): further checks of elements
    adjoint    adjoint(options, A): whether the routines work on A^H
    passes     how often the work goes over the blocks, for each time that the routines do
    argument   the name of the first operand
    """

    name: str
    routines: Routines | Mapping[str, Routines] | Callable[[Options, DistMatrix], Routines]
    work: Callable[..., Any]
    solves: bool = False
    square: bool = True
    reads: Callable[[Options], Part | None] = _find_part_read
    results: Callable[[DistMatrix], Sequence[Shape]] = _list_result_shapes
    check: Callable[..., None] = _check_nothing
    check_elements: Callable[..., None] = _check_nothing
    adjoint: Callable[[Options, DistMatrix], bool] = _work_on_a
    passes: int = 1
    argument: str = "A"

    def __call__(self, *operands: Any, out: Any = None, **options: Any) -> Any:
        """Collective: agree, check, find the plan or make it, and run it."""
        plan, operands = self._agree(operands, out, options)
        plans = plans_of(operands[0].grid.comm)
        result = plan.run(operands, out, plans.workspace)
        plans.workspace.trim(workspace.KEPT)
        return result

    def plan(self, *operands: Any, **options: Any) -> FactorPlan:
        """Collective: agree, check, and return the plan. Elements are not checked."""
        plan, _ = self._agree(operands, None, options, "plan_")
        if not plan.tasks:
            raise PlanError(f"plan_{self.name}: assume_a={options['assume_a']!r}: there is nothing to choose")
        return plan

    def _agree(
        self, operands: tuple[Any, ...], out: Any, options: dict[str, Any], prefix: str = ""
    ) -> tuple[FactorPlan, tuple[Any, ...]]:
        """Collective: agree on the call, and return the plan and the operands as the plan takes them.

        prefix: "plan_" for a plan alone, whose elements are not checked
        """
        comm = communicator(operands, self.argument)
        plans = plans_of(comm)
        operands, error = self._convert_b(comm, operands)
        description = f"{self.name}({describe(*operands, **options)}{'' if out is None else f'; out={describe(out)}'})"
        # Numbers of different types may have equal descriptions, but not all types are valid.
        key = self, description, config.settings.machine, *map(type, options.values())
        with agreed(comm, f"{prefix}{description}{'' if prefix else digest_arrays(operands)}"):
            if error is not None:
                raise error
            plan = plans.plan(key, lambda: self._make(operands, out, options, Machine.choose()))
            plan.check(operands, out, elements=not prefix)
        plans.keep(key, plan)
        return plan, operands

    def _convert_b(self, comm: Communicator, operands: tuple[Any, ...]) -> tuple[tuple[Any, ...], Exception | None]:
        """Local: convert a B that is no matrix to an array. Returns the operands, and the error if B cannot be converted."""
        if not self.solves or isinstance(operands[-1], DistMatrix):
            return operands, None
        try:
            return (*operands[:-1], check_array(self.name, comm, operands[-1])), None
        except Exception as error:
            return operands, error

    def imagine(self, shape: Shape, columns: int, dtype: np.dtype, blocking: Blocking, ranks: int, machine: Machine) -> FactorPlan:
        """Local: the plan for matrices without data, which may be overwritten, on so many ranks of a machine.

        A has this shape and these blocks. B, if there is one, has A's blocks of rows and so many columns.
        """
        grid = ProcessGrid.trust(blocking.shape, make_communicator(ranks, machine), None)
        A = zeros(shape, grid, cut_in_blocks(blocking.shape, blocking.block), dtype=dtype)
        if not self.solves:
            return self._make((A,), None, {"overwrite_a": True}, machine)
        B = zeros((shape[0], columns), grid, Layout(Cyclic("row", blocking.block), "col"), dtype=dtype)
        return self._make((A, B), None, {"overwrite_a": True, "overwrite_b": True}, machine)

    def _make(self, operands: tuple[Any, ...], out: Any, keywords: dict[str, Any], machine: Machine) -> FactorPlan:
        """Local: check what the description has, and make the plan."""
        options, A = Options(**keywords), matrix(operands[0])
        options.check(self.name, keywords)
        if self.square:
            checks.check_square(self.name, A)
        if self.solves:
            dtype = check_side(self.name, A, operands[-1], options.layout, out)
        else:
            dtype = checks.find_working_dtype(self.name, A.dtype)
            for shape in self.results(A):
                checks.check_result(A, shape, dtype, None, options.layout)
        self.check(options, dtype, *operands)
        adjoint = self.adjoint(options, A)
        tasks = self._list_tasks(options, A.H if adjoint else A, operands[-1], dtype, machine)
        reads = self.reads(options)
        return FactorPlan.of(
            self.name, operands, out, dtype, options, reads, tasks, self.work, self.check_elements, adjoint, self.passes
        )

    def _list_tasks(self, options: Options, A: DistMatrix, B: Any, dtype: np.dtype, machine: Machine) -> tuple[Task, ...]:
        """The tasks for this A: routines with their sizes."""
        if callable(self.routines):
            routines = self.routines(options, A)
        else:
            routines = self.routines[options.assume_a] if isinstance(self.routines, Mapping) else self.routines
        sizes = (A, B) if self.solves else (A,)
        return tuple(Task(routine, *routine.sizes(*sizes), dtype, machine) for routine in routines)


def accept_stacks(routine: Routine, like: int = 0) -> Callable[[Function], Function]:
    """Decorate a function of DistMatrix: for stacks it applies the function to each matrix.

    routine  takes most of the function's time, for a square matrix
    like     the number of the operand whose layout results have by default
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            values = (*args, *named.values())
            stacks, mixed = [*_find_all(Stack, values)], any(True for _ in _find_all(DistMatrix, values))
            # the function itself refuses a stack beside a matrix, as any other wrong type
            if not stacks or mixed:
                return function(*args, **named)
            return map_stacks(function, routine, stacks[: like + 1][-1], stacks, args, named)

        return cast(Function, call)

    return decorate


def _find_all(kind: type, values: Any) -> Iterator[Any]:
    """Yield the values of this type, also those in tuples, as factors are."""
    for value in values:
        if isinstance(value, kind):
            yield value
        elif isinstance(value, tuple):
            yield from _find_all(kind, value)
