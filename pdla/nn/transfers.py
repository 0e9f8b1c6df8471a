"""A layer's messages: gathering a matrix, and summing addends.

`Transfer(gather(X, layout, axes))` starts a transfer, collectively, and `wait` ends it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

from pdla.grid import ProcessGrid
from pdla.layout import Layout, places_of
from pdla.matmul.schedules.streams import start_gather
from pdla.matrix.core import DistMatrix

T = TypeVar("T")
Axes = tuple[str, ...]
Verbs = Generator[None, None, T]  # starts a verb, yields, waits for it when resumed; then the next


class Transfer(Generic[T]):
    """Verbs of a communicator, one after the other; the first is under way."""

    __slots__ = ("_verbs", "result", "under_way")
    result: T
    under_way: bool

    def __init__(self, verbs: Verbs[T]) -> None:
        self._verbs, self.under_way = verbs, True
        self.go_on()

    def go_on(self) -> None:
        """Wait for the verb that is under way, and start the next."""
        try:
            next(self._verbs)
        except StopIteration as end:
            self.result, self.under_way = end.value, False

    def wait(self) -> T:
        """Collective: wait for all verbs, and return the result."""
        while self.under_way:
            self.go_on()
        return self.result


def gather(X: DistMatrix, layout: Layout, axes: Axes) -> Verbs[DistMatrix]:
    """Collective: gather X to this layout, over the axes of `scheme.find_gather_axes`.

    Without axes the result is X itself.
    """
    if not axes:
        return X
    end = start_gather(X, layout, axes)
    yield
    return end()


def reduce(addends: DistMatrix, layout: Layout, axes: tuple[Axes, Axes], dtype: Any) -> Verbs[DistMatrix]:
    """Collective: sum addends over the axes of `scheme.find_sum_axes`, then cast to `dtype`."""
    grid, block, (scattered, replicated) = addends.grid, addends.base, axes
    if scattered:
        communicator = grid[scattered]
        assert grid.coords is not None and communicator is not None
        places = places_of(addends.shape, layout, addends.layout, scattered, grid.sizes, grid.coords)
        parts = addends.xp.take_all(block, places)
        pending = communicator.reduce_scatter(parts, addends.xp.empty(parts[communicator.rank].shape, block.dtype))
        yield
        block = pending.wait()
    for half in grid[replicated].halves(block, block) if replicated else ():  # type: ignore[union-attr]
        yield
        half.wait()
    return DistMatrix(block.astype(dtype, copy=False), addends.shape, grid, layout)


def allreduce(x: Any, grid: ProcessGrid, axes: Axes, op: str = "add") -> Verbs[Any]:
    """Collective: sum an array, or take its maximum, over the ranks along some axes, in place."""
    axes = tuple([axis for axis in axes if grid.sizes[axis] > 1])
    for half in grid[axes].halves(x, x, op) if axes else ():  # type: ignore[union-attr]
        yield
        half.wait()
    return x
