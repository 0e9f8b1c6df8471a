"""A parameter: a matrix that is learned."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from hashlib import blake2b
from typing import Any

from pdla.array.composed import summing
from pdla.layout import Layout, Shape
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import local_shape
from pdla.nn.scheme import gather_axes, sum_axes
from pdla.nn.transfers import Axes, Transfer, settled


def seeded(seed: int, name: str) -> int:
    """A seed of its own for each name, which begins with the layer's place: layers made with one seed are not alike."""
    return int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=8).digest())


class Parameter:
    """A matrix that is learned, and its gradient after a backward pass, in the same layout.

    An attribute of a layer that is a Parameter is one of the layer's parameters. `nn.vector` and `nn.weight` make those whose
    layouts follow from a scheme.

    used        the layout in which layers compute with it: it is gathered to this one, and its gradient is summed from this to
                its own
    axes        those over which it is gathered, to lie so
    made        the value as it was made: what is to be drawn may not be there yet
    name        its messages are recorded as "name forward" and "name backward"
    layers      how many layers use it
    backward    whether the backward pass needs it, too
    draw        what writes its first numbers, once somebody asks for them: by then the layer has been put into its place
    """

    def __init__(
        self, value: DistMatrix, used: Layout | None = None, name: str = "", draw: Callable[[], None] | None = None
    ) -> None:
        self.made, self.name, self.layers, self.backward, self._draw = value, name, 1, True, draw
        self.used = value.layout if used is None else used
        self.axes = gather_axes(value.layout, self.used, value.grid.sizes)
        self.gradient: DistMatrix | None = None
        self._addends: dict[Axes, tuple[Layout, Shape, Any]] = {}
        self._summed: dict[Axes, tuple[Axes, Axes]] = {}

    @property
    def value(self) -> DistMatrix:
        """Its numbers, which are drawn when they are first asked for."""
        if self._draw is not None:
            self._draw()
            self._draw = None
        return self.made

    def addends(self, partial: Axes) -> DistMatrix:
        """A matrix for addends of the gradient along these axes, still to be written to, in the dtype in which they are summed."""
        made = self.made
        if partial not in self._addends:
            layout = Layout(self.used.rows, self.used.cols, partial)
            self._addends[partial] = layout, local_shape(made.shape, layout, made.grid), summing(made.dtype)
            self._summed[partial] = sum_axes(layout, made.layout, made.grid.sizes)
        layout, shape, dtype = self._addends[partial]
        return DistMatrix(made.xp.empty(shape, dtype), made.shape, made.grid, layout)

    def settling(self, addends: DistMatrix) -> Transfer[DistMatrix]:
        """Collective: begin to sum these addends to the gradient."""
        axes = self._summed[addends.layout.partial]
        return Transfer(settled(addends, self.made.layout, axes, self.made.base.dtype))

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        made = memo[id(self)] = Parameter(self.value.copy(), self.used, self.name)
        made.layers, made.backward, made.gradient = self.layers, self.backward, deepcopy(self.gradient, memo)
        return made
