"""What a layer sends: a matrix gathered, addends summed. Each is under way when it has been made, and is waited for later."""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import Any, Generic, TypeVar

from pdla.comm.ledger import tag, tagged
from pdla.grid import ProcessGrid
from pdla.layout import Layout, extra_axes, places_of
from pdla.matmul.schedules.streams import gathering
from pdla.matrix.core import DistMatrix

T = TypeVar("T")
Verbs = Generator[None, None, T]  # begins a verb, yields, and waits for it when it is resumed; then the next; returns the result


class Transfer(Generic[T]):
    """Verbs, one after the other, of which the first is under way. All are recorded under the name under which it was made."""

    __slots__ = ("_name", "_verbs", "result", "under_way")
    result: T

    def __init__(self, verbs: Verbs[T]) -> None:
        self._verbs, self._name, self.under_way = verbs, tag(), True
        self.go_on()

    def go_on(self) -> None:
        """Wait for the verb that is under way, and begin the next."""
        try:
            next(self._verbs)
        except StopIteration as end:
            self.result, self.under_way = end.value, False

    def wait(self) -> T:
        """Collective: the result."""
        if self.under_way:
            with tagged(self._name):
                while self.under_way:
                    self.go_on()
        return self.result


def gathered(X: DistMatrix, layout: Layout) -> Transfer[DistMatrix]:
    """Collective: X gathered over the axes that the layout does not cut; X itself where there are none."""
    return Transfer(_gathered(X, layout))


def settled(addends: DistMatrix, layout: Layout, dtype: Any) -> Transfer[DistMatrix]:
    """Collective: the addends summed in their own dtype, then cast to `dtype`. The sum is scattered over those of its axes that
    `layout` cuts, and the same on all ranks along the others."""
    return Transfer(_settled(addends, layout, dtype))


def summed(x: Any, grid: ProcessGrid, axes: tuple[str, ...], op: str = "add") -> Transfer[Any]:
    """Collective: an array's sum (or maximum) over the ranks along some axes, in place, the same on all of them."""
    return Transfer(_summed(x, grid, tuple([axis for axis in axes if grid.sizes[axis] > 1]), op))


# ---------------------------------------------------------------------------------------------- their verbs


def _gathered(X: DistMatrix, layout: Layout) -> Verbs[DistMatrix]:
    axes = _gather_axes(X.layout, layout, tuple(X.grid.sizes.items()))
    if not axes:
        return X
    end = gathering(X, layout, axes)
    yield
    return end()


def _settled(addends: DistMatrix, layout: Layout, dtype: Any) -> Verbs[DistMatrix]:
    grid, block = addends.grid, addends.stored
    scattered, alike = sum_axes(addends.layout, layout, tuple(grid.sizes.items()))
    if scattered:
        assert grid.coords is not None
        communicator = grid[scattered]
        assert communicator is not None
        places = places_of(addends.shape, layout, addends.layout, scattered, grid.sizes, grid.coords)
        parts = addends.xp.takes(block, places)
        pending = communicator.reduce_scatter(parts, addends.xp.empty(parts[communicator.rank].shape, block.dtype))
        yield
        block = pending.wait()
    if alike:
        block = yield from _summed(block, grid, alike)
    return DistMatrix(block.astype(dtype, copy=False), addends.shape, grid, layout)


def _summed(x: Any, grid: ProcessGrid, axes: tuple[str, ...], op: str = "add") -> Verbs[Any]:
    if axes:
        for half in grid[axes].halves(x, x, op):  # type: ignore[union-attr]
            yield
            half.wait()
    return x


@lru_cache(maxsize=256)
def _gather_axes(old: Layout, new: Layout, sizes: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    axes = extra_axes(old, new, dict(sizes))
    assert axes is not None, f"{old} is not {new} cut further"
    return axes


@lru_cache(maxsize=256)
def sum_axes(addends: Layout, layout: Layout, sizes: tuple[tuple[str, int], ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes of several ranks along which the sum of addends is scattered, and those along which it is the same."""
    several = dict(sizes)
    partial = [axis for axis in addends.partial if several[axis] > 1]
    scattered = tuple(axis for axis in layout.axes if axis in partial)
    return scattered, tuple(axis for axis in partial if axis not in scattered)
