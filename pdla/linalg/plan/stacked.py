"""Apply a function of matrices to each matrix of stacks, in its layer.

If a stack is cut along an axis, each layer works on its own matrices. If not, there are two ways, and the one that is predicted
to be faster is taken. Either the matrices are redistributed to groups of ranks, and results return to the stack's grid. Or all
ranks work on one matrix after another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pdla.checks import describe_call
from pdla.comm.agreement import agreed
from pdla.comm.cache import find_or_make
from pdla.comm.communicator import Communicator
from pdla.errors import GridError, PdlaError, ShapeError
from pdla.grid import ProcessGrid, balanced_shape
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.panels.blocks import cut_layout, to_layout
from pdla.linalg.plan import price
from pdla.linalg.plan.routine import Routine, Task
from pdla.linalg.products.stacks import Stack
from pdla.matrix.core import DistMatrix
from pdla.model.machine import Machine


def _replace(value: Any, parts: dict[int, Any]) -> Any:
    """Replace each stack in an argument by its part."""
    if isinstance(value, tuple):
        return tuple(_replace(element, parts) for element in value)
    return parts[id(value)] if isinstance(value, Stack) else value


def map_stacks(
    function: Callable[..., Any], routine: Routine, like: Stack, stacks: list[Stack], args: Any, named: dict[str, Any]
) -> Any:
    """Collective: apply the function to each matrix of the stacks; matrices become stacks, other results an array.

    like: the stack whose layout results have by default
    """
    name, first = function.__name__, stacks[0]
    comm, layout = first.grid.comm, named.get("layout")
    with agreed(comm, describe_call(name, *args, **named)):
        if not first.shape[0]:
            raise ShapeError(f"{name}: the stack has no matrices")
        for other in stacks[1:]:
            _check_match(name, first, other)
    # groups would write to copies of `out`
    place = _choose_groups(routine, first) if first.axis is None and named.get("out") is None else None
    if place is not None:
        named = {key: value for key, value in named.items() if key != "layout"}
    parts = stacks if place is None else [element._move(*place) for element in stacks]
    rows: list[tuple[Any, ...]] = []
    error, single = None, True
    matrices = [element.matrices() for element in parts]
    for at, number in enumerate(parts[0].indices):
        matrix_of_stack = {id(stack): layer_matrices[at] for stack, layer_matrices in zip(stacks, matrices, strict=True)}
        try:
            keywords = {key: _replace(value, matrix_of_stack) for key, value in named.items()}
            result = function(*_replace(args, matrix_of_stack), **keywords)
            single = not isinstance(result, tuple)
            rows.append(tuple(_to_grid(element, matrix_of_stack[id(first)]) for element in ((result,) if single else result)))
        except PdlaError as raised:  # raised on this layer's ranks alone
            error = type(raised)(f"matrix {number} of the stack: {raised}")
            break
    with agreed(comm, f"{name} of a stack"):
        if error is not None:
            raise error
    results, single = _join(name, comm, parts[0], rows, single)
    results = results if place is None else [_return_result(element, like, layout) for element in results]
    return results[0] if single else tuple(results)


def _check_match(name: str, first: Stack, other: Stack) -> None:
    if first.grid != other.grid or first.axis != other.axis:
        stacks = f"one stack is {first.description}, another {other.description}"
        raise GridError(f"{name}: {stacks}: cut both along one axis of one grid")
    if first.shape[0] != other.shape[0]:
        raise ShapeError(f"{name}: one stack has {first.shape[0]} matrices, another {other.shape[0]}")


def _choose_groups(routine: Routine, S: Stack) -> tuple[ProcessGrid, Layout, str] | None:
    """Collective: the grid, layout and axis of the fastest groups of ranks; None if all ranks together are as fast."""
    ranks, (batch, *shape) = S.grid.comm.size, S.shape
    groups = min(_list_divisors(ranks), key=lambda groups: _predict_seconds(routine, shape, S.dtype, batch, groups, ranks))
    if groups == 1:
        return None
    group_shape = balanced_shape(ranks // groups)
    axes = ("group", "row", "col")
    grid = find_or_make(S.grid, (_choose_groups, groups), lambda: ProcessGrid((groups, *group_shape), axes, S.grid.comm))
    return grid, Layout("row", "col"), "group"


def _list_divisors(ranks: int) -> list[int]:
    """All divisors, the largest first."""
    return [groups for groups in range(ranks, 0, -1) if ranks % groups == 0]


def _predict_seconds(routine: Routine, shape: Any, dtype: np.dtype, batch: int, groups: int, ranks: int) -> float:
    """Local: predict the seconds of the group with most matrices, and of redistributing them there and back."""
    (m, n), machine = shape, Machine.choose()
    task = Task(routine, m, n, np.dtype(dtype if dtype.kind in "fc" else float), machine)
    work = -(-batch // groups) * price.predict_seconds(task, *price.sort_by_price(task, ranks // groups)[0])
    moving = 2 * batch * (machine.latency + m * n * task.dtype.itemsize / ranks / machine.bandwidth)
    return work + (moving if groups > 1 else 0.0)


def _to_grid(value: Any, X: DistMatrix) -> Any:
    """Collective: redistribute a result to X's grid; factors may be on another grid over its ranks."""
    if not isinstance(value, DistMatrix) or value.grid == X.grid:
        return value
    return to_layout(value, cut_layout(X, value.shape), X.grid)


def _join(name: str, comm: Communicator, like: Stack, results: list[tuple[Any, ...]], single: bool) -> tuple[list[Any], bool]:
    """Collective: join the results of all matrices. Also returns whether the function returns a single value, no tuple."""
    kinds = [*map(_describe_matrix, results[0])] if results else []
    rows = [[None if kind else value for kind, value in zip(kinds, row, strict=True)] for row in results]
    shared = comm.share((dict(zip(like.indices, rows, strict=False)), kinds, single))
    some_rows, kinds, single = next(share for share in shared if share[0])
    # A dry rank has the results of its own layer alone: they stand for those of other layers.
    by_number = dict.fromkeys(range(like.shape[0]), next(iter(some_rows.values())))
    for values, *_ in shared:
        by_number |= values
    joined: list[Any] = []
    for i, kind in enumerate(kinds):
        if kind is not None:
            shape, layout, *rest = kind
            joined.append(Stack([row[i].base for row in results], (like.shape[0], *shape), like.grid, layout, like.axis, *rest))
        else:
            values = [row[i] for row in by_number.values()]
            _check_sizes(name, values)
            joined.append(values[0] if isinstance(values[0], bool) else np.array(values))
    return joined, single


def _check_sizes(name: str, values: list[Any]) -> None:
    """ShapeError unless the results of all matrices have one shape: an interval may hold more eigenvalues of some matrices."""
    for number, value in enumerate(values):
        if np.shape(value) != np.shape(values[0]):
            shapes = f"of shape {np.shape(values[0])} of matrix 0, {np.shape(value)} of matrix {number}"
            raise ShapeError(f"{name} of a stack: results are {shapes}: choose equal numbers for all matrices, or call it for each")


def _describe_matrix(value: Any) -> Any:
    """All of a matrix but its elements; None for other values."""
    if not isinstance(value, DistMatrix):
        return None
    return value.shape, value.layout, value.dtype, value.transposed, value.conjugated


def _return_result(result: Any, like: Stack, layout: Layout | None) -> Any:
    """Collective: return a result to a stack's grid, in `layout`, by default the stack's; LayoutError if it does not fit."""
    if not isinstance(result, Stack):
        return result
    checks.check_result(like, result.shape[1:], result.dtype, None, layout)
    return result._move(like.grid, layout or cut_layout(like, result.shape[1:]), None)
