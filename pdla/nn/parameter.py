"""A parameter: a matrix that a layer learns."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from hashlib import blake2b
from typing import Any

from pdla.array.composed import sum_dtype
from pdla.layout import Layout, Shape
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import local_shape
from pdla.nn.scheme import find_gather_axes, find_sum_axes
from pdla.nn.transfers import Axes, Transfer, reduce


def derive_seed(seed: int, name: str) -> int:
    """Derive a seed from a layer's seed and a name that starts with the layer's place.

    Layers made with one seed then have different numbers.
    """
    return int.from_bytes(blake2b(f"{seed} {name}".encode(), digest_size=8).digest())


class Parameter:
    """A matrix that a layer learns, and its gradient after a backward pass, in the same layout.

    Local to make. A Parameter that is an attribute of a layer is a parameter of the layer.
    `nn.feature_vector` makes one.

    Parameters
    ----------
    value : DistMatrix
        Its numbers.
    gathered_layout : Layout, optional
        The layout in which layers compute with it: `value` is gathered to this layout, and addends
        of the gradient, in this layout, are summed to the value's. By default the value's own.
    name : str, optional
        The ledger records its messages as "name forward" and "name backward".
    draw : callable, optional
        Writes its first numbers when `value` is first read. By then the layer has its place.

    Attributes
    ----------
    gradient : DistMatrix or None
        The gradient of the last backward pass, in the layout of `value`, the same on all copies.
    allocated : DistMatrix
        The value, whose numbers may not have been drawn yet.
    axes : tuple of str
        The axes over which it is gathered.
    layers : int
        How many layers use it.
    backward : bool
        Whether the backward pass needs it, too.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,), comm=comm)
    ...     value = pdla.ones((1, 6), grid, pdla.Layout(cols="row"))
    ...     return pdla.nn.Parameter(value).value.local.shape
    >>> pdla.run(2, program)
    [(1, 3), (1, 3)]
    """

    allocated: DistMatrix
    name: str
    layers: int
    backward: bool

    def __init__(
        self, value: DistMatrix, gathered_layout: Layout | None = None, name: str = "", draw: Callable[[], None] | None = None
    ) -> None:
        self.allocated, self.name, self.layers, self.backward, self._draw = value, name, 1, True, draw
        self.gathered_layout: Layout = value.layout if gathered_layout is None else gathered_layout
        self.axes: tuple[str, ...] = find_gather_axes(value.layout, self.gathered_layout, value.grid.sizes)
        self.gradient: DistMatrix | None = None
        self._addends: dict[Axes, tuple[Layout, Shape]] = {}
        self._summed: dict[Axes, tuple[Axes, Axes]] = {}

    @property
    def value(self) -> DistMatrix:
        """The numbers, drawn when they are first read; `value.local` is this rank's block."""
        if self._draw is not None:
            self._draw()
            self._draw = None
        return self.allocated

    def make_addends(self, partial: Axes, count: int) -> DistMatrix:
        """Allocate a matrix for addends of the gradient. Local.

        Parameters
        ----------
        partial : tuple of str
            The axes along which the addends will be summed.
        count : int
            How many addends this rank will add in place.

        Returns
        -------
        DistMatrix
            In the dtype of sums; a sole addend, which is the gradient, in the value's.
        """
        value = self.allocated
        if partial not in self._addends:
            layout = Layout(self.gathered_layout.rows, self.gathered_layout.cols, partial)
            self._addends[partial] = layout, local_shape(value.shape, layout, value.grid)
            self._summed[partial] = find_sum_axes(layout, value.layout, value.grid.sizes)
        layout, shape = self._addends[partial]
        dtype = sum_dtype(value.dtype) if count > 1 or any(self._summed[partial]) else value.dtype
        return DistMatrix(value.xp.empty(shape, dtype), value.shape, value.grid, layout)

    def start_sum(self, addends: DistMatrix) -> Transfer[DistMatrix]:
        """Start the sum of addends to the gradient. Collective.

        Parameters
        ----------
        addends : DistMatrix
            Made by `make_addends`.

        Returns
        -------
        Transfer
            Its result is the gradient.
        """
        axes = self._summed[addends.layout.partial]
        return Transfer(reduce(addends, self.allocated.layout, axes, self.allocated.base.dtype))

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        copy = memo[id(self)] = Parameter(self.value.copy(), self.gathered_layout, self.name)
        copy.layers, copy.backward, copy.gradient = self.layers, self.backward, deepcopy(self.gradient, memo)
        return copy
