"""Steps: a pass through a layer, written once, that stops wherever something is on its way.

A pass is a generator. It yields where it would wait for messages, and whoever drives it may let another pass compute in the
meantime: `finish` drives one to its end, `together` several in turn (overdecomposition, arXiv 2305.13525). Every rank drives
the same passes in the same order, so the verbs match.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from itertools import count
from typing import Any, TypeVar

from pdla.comm.ledger import tagged
from pdla.grid import ProcessGrid
from pdla.layout import Layout, extra_axes, places_of
from pdla.matmul.schedules.streams import gathering
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import local_shape

T = TypeVar("T")
Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Drive a pass to its end; gives its result."""
    while True:
        over, result = _step(steps)
        if over:
            return result  # type: ignore[return-value]


def together(passes: Iterable[Steps[T]]) -> list[T]:
    """Drive passes in turn, each until it would wait; gives their results.

    Each begins one turn after the one before it, so that they do not all wait at the same time.
    """
    under_way = dict(enumerate(passes))
    results: dict[int, T] = {}
    for turn in count():
        if not under_way:
            break
        for number in [number for number in under_way if number <= turn]:
            over, result = _step(under_way[number])
            if over:
                results[number] = result  # type: ignore[assignment]
                del under_way[number]
    return [results[number] for number in sorted(results)]


def begun(steps: Steps[T], name: str) -> Steps[T]:
    """Drive a pass to where it first waits, its messages under way. Gives the rest of it. Both are recorded under this name."""
    with tagged(name):
        ended, result = _step(steps)

    def rest() -> Steps[T]:
        over, value = ended, result
        while not over:
            yield
            with tagged(name):
                over, value = _step(steps)
        return value  # type: ignore[return-value]

    return rest()


def _step(steps: Steps[T]) -> tuple[bool, T | None]:
    """Drive a pass one step; gives whether it has ended, and its result."""
    try:
        next(steps)
    except StopIteration as end:
        return True, end.value
    return False, None


# ---------------------------------------------------------------------------------------------- between layouts


def gathered(X: DistMatrix, layout: Layout) -> Steps[DistMatrix]:
    """Collective: X gathered over the axes that the layout does not cut; X itself where there are none."""
    axes = extra_axes(X.layout, layout, X.grid.sizes)
    assert axes is not None, f"{X.layout} is not {layout} cut further"
    if not axes:
        return X
    end = gathering(X, layout, axes)
    yield
    return end()


def settled(addends: DistMatrix, layout: Layout, dtype: Any) -> Steps[DistMatrix]:
    """Collective: the addends summed in their own dtype, then cast to `dtype`. The sum is scattered over those of its axes that
    `layout` cuts, and the same on all ranks along the others."""
    grid, block = addends.grid, addends.stored
    partial = [axis for axis in addends.layout.partial if grid.sizes[axis] > 1]
    cut = tuple(axis for axis in layout.axes if axis in partial)
    if cut:
        block = yield from _scattered(addends, layout, cut)
    block = yield from summed(block, grid, tuple(axis for axis in partial if axis not in cut))
    return DistMatrix(block.astype(dtype, copy=False), addends.shape, grid, layout)


def _scattered(addends: DistMatrix, layout: Layout, axes: tuple[str, ...]) -> Steps[Any]:
    grid, xp = addends.grid, addends.xp
    assert grid.coords is not None
    places = places_of(addends.shape, layout, addends.layout, axes, grid.sizes, grid.coords)
    parts = xp.takes(addends.stored, places)
    out = xp.empty(local_shape(addends.shape, layout, grid), addends.dtype)
    pending = grid[axes].reduce_scatter(parts, out)  # type: ignore[union-attr]
    yield
    return pending.wait()


def summed(x: Any, grid: ProcessGrid, axes: tuple[str, ...], op: str = "add") -> Steps[Any]:
    """Collective: an array's sum (or maximum) over the ranks along some axes, in place, the same on all of them."""
    axes = tuple(axis for axis in axes if grid.sizes[axis] > 1)
    if not axes:
        return x
    for half in grid[axes].halves(x, x, op):  # type: ignore[union-attr]
        yield
        half.wait()
    return x
