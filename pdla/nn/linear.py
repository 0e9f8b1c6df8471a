"""Linear: Y = X W + b, and the three products that any scheme's layers are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pdla.array.composed import summing, widened
from pdla.array.draw import Draw
from pdla.array.dtypes import check_numbers
from pdla.comm.agreement import agreed
from pdla.comm.ledger import tagged
from pdla.errors import ShapeError
from pdla.layout import Layout, axes_of
from pdla.matmul.schedules.streams import multiply
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import zeros
from pdla.matrix.redistribute import local_shape
from pdla.nn.activation import check_activation, check_counts, check_floats, check_number
from pdla.nn.layer import Layer, made
from pdla.nn.panels import Panels
from pdla.nn.scheme import Meeting, Scheme, Table, counts, sequence_of
from pdla.nn.steps import Steps, begun, gathered, settled
from pdla.nn.trip import Parameter, Shard, seeded


def weights(
    layer: Layer, table: Table, shape: tuple[int, int], units: tuple[int, int], scale: float, seed: int, dtype: Any, name: str
) -> Parameter:
    """Collective: a weight for a layer of this table, normal with a standard deviation of `scale`, the same in every scheme."""
    scheme = layer.scheme
    with agreed(scheme.grid.comm, f"{name} of seed {seed} times {scale}, of {dtype!r}"):
        kind = np.dtype(dtype)
        check_floats(name, kind)
        check_numbers(name, kind, scheme.grid.comm.xp)
        check_number(name, "scale", scale)
    meeting = scheme.meeting(table, 1, units)
    value = zeros(shape, scheme.grid, meeting.W, dtype=kind)
    return Parameter(value, meeting.w, name, normal(layer, value, scale, seed, name))


def normal(layer: Layer, value: DistMatrix, scale: float, seed: int, name: str) -> Callable[[], None]:
    """What draws this matrix's block, normal with a standard deviation of `scale`, by the seed, the layer's place and the name. The
    layer then keeps its place, whatever it is put into."""

    def draw() -> None:
        layer.drawn = True
        if value.xp.name != "meta":  # which has no numbers: to draw them would count as work of the first pass
            numbers = Draw(value.shape[1], np.dtype(np.float64), seeded(seed, layer.place + name), "normal", 0, 1)
            value.xp.copy(value.stored, (value.xp.drawn(*value.indices, numbers) * scale).astype(value.dtype))

    return draw


def vector(scheme: Scheme, n: int, spec: str, unit: int, fill: float, dtype: Any) -> Parameter:
    """Collective: a parameter (1, n), cut as the features of an activation laid out as `spec`, copied where only tokens are cut."""
    value = zeros((1, n), scheme.grid, Layout(None, scheme.activation(spec, 1, unit).cols), dtype=dtype)
    check_floats("a parameter", value.dtype)
    value.stored[...] += fill
    return Parameter(value)


def product(a: DistMatrix, b: DistMatrix, layout: Layout, at: Shard) -> Steps[DistMatrix]:
    """This rank's part of a b, as addends of that layout, in the dtype in which ranks sum them. With several shards it yields
    halfway: another shard's all-reduce is then halfway, too, and its second half travels while the rest is computed."""
    shape = (a.shape[0], b.shape[1])
    several = any(a.grid.sizes[axis] > 1 for axis in layout.partial)
    block = a.xp.empty(local_shape(shape, layout, a.grid), summing(a.dtype) if several else a.dtype)
    rows = block.shape[0]
    half = rows if at.trip.scheme.shards == 1 else rows // 2
    multiply(a.xp, a.stored[:half], b.stored, block[:half], 1, 0)
    if at.trip.scheme.shards > 1:  # on ranks without rows, too: all ranks must yield equally often
        yield
        multiply(a.xp, a.stored[half:], b.stored, block[half:], 1, 0)
    return DistMatrix(block, shape, a.grid, layout)


def add_product(a: DistMatrix, b: DistMatrix):
    """A function that sets a block of a gradient to a b, or adds a b to it."""

    def write(block: Any, first: bool) -> None:
        multiply(a.xp, a.stored, b.stored, block, 1, 0 if first else 1)

    return write


def add_sums(sums: Any):
    """A function that sets a vector's block to sums over tokens, or adds them to it."""

    def write(block: Any, first: bool) -> None:
        if first:
            block[...] = sums
        else:
            block[...] += sums

    return write


class Linear(Layer):
    """Y = X W + b, X (tokens, k), W k x n, b (1, n). Collective to make.

    kind   "first" or "second", the layer's place in its pair: it says where X and Y lie
    units  how many of the k and of the n features cuts keep together, as those of a head
    seed   W is normal with a standard deviation of `scale` (1 / sqrt(k) by default), b is 0; the numbers depend on seed, name,
           k, n and the layer's place in others alone, not on the scheme. They are drawn when they are first asked for
    name   by which the ledger records its messages
    """

    by_panels = True  # whether products go by panels where the scheme asks for them
    units: tuple[int, int]

    def __init__(
        self, scheme: Scheme, k: int, n: int, *, kind: str = "first", bias: bool = True, units: tuple[int, int] = (1, 1),
        scale: float | None = None, seed: int = 0, dtype: Any = np.float64, name: str = "linear",
    ) -> None:
        with made("Linear", scheme, f"{k}, {n}, kind={kind!r}, units={units}", bias=bias):
            self.table: Table = scheme.table(kind)
            check_counts("Linear", k=k, n=n)
            if not isinstance(units, tuple) or len(units) != 2 or not all(map(counts, units)):
                raise ShapeError(f"Linear: units={units!r}: a tuple of two whole numbers, at least 1, for inputs and for outputs")
        super().__init__(scheme)
        self.k, self.n, self.units, self.name = k, n, units, name
        self.takes, self.gives, self.widths = self.table.X, self.table.Y, (k, n)
        scale = max(k, 1) ** -0.5 if scale is None else scale
        self.weight = weights(self, self.table, (k, n), units, scale, seed, dtype, name)
        self.panels = Panels(scheme, scheme.panel, name) if scheme.panel and self.by_panels else None
        if self.panels:
            self.weight.used = self.weight.made.layout
        self.bias = vector(scheme, n, self.table.Y, units[1], 0, dtype) if bias else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.k}, {self.n}) on {self.scheme!r}"

    def _takes(self, x: Any) -> None:
        check_activation(self, x, self.k, self.weight.value.dtype, self.table.X, self.units[0])

    def meeting(self, x: DistMatrix) -> Meeting:
        """The layouts for an input that lies as x."""
        return self.scheme.meeting(self.table, sequence_of(x.layout), self.units)

    def _spread(self, x: DistMatrix, meeting: Meeting) -> DistMatrix:
        """The factor made of the gathered x, whose columns are W's rows. What is kept for backward is the gathered x."""
        return x

    def _folded(self, addends: DistMatrix, meeting: Meeting) -> DistMatrix:
        """The reverse: the addends of dX, given those of dY W^T."""
        return addends

    def _forward(self, x: DistMatrix, at: Shard) -> Steps[DistMatrix]:
        y = yield from self.without_bias(x, at)
        if self.bias is not None:
            y.stored[...] += self.bias.value.stored
        return y

    def _backward(self, dy: DistMatrix, at: Shard) -> Steps[DistMatrix]:
        sums = None if self.bias is None else widened(dy.stored).sum(axis=0, keepdims=True)
        return (yield from self.passed_back(dy, sums, at))

    def without_bias(self, x: DistMatrix, at: Shard) -> Steps[DistMatrix]:
        """X W; the caller adds the bias."""
        if not self.panels:
            return (yield from self._y(x, self.meeting(x), at))
        at.keep(self, x)
        return self.panels.y(x, self.weight.value, self.meeting(x))

    def passed_back(self, dy: DistMatrix, sums: Any, at: Shard) -> Steps[DistMatrix]:
        """dX, given dY and, where there is a bias, the sums (1, n) of dY over tokens."""
        (x,) = at.take(self)
        meeting = self.meeting(x)
        if self.bias is not None:
            with tagged(f"{self.name} bias"):
                at.trip.add(self.bias, axes_of(dy.layout.rows), add_sums(sums))
        if self.panels:
            self.weight.gradient = self.panels.dw(x, dy, meeting)
            return self.panels.dx(dy, self.weight.value, meeting)
        return (yield from self._dx(dy, x, meeting, at))

    # ------------------------------------------------------------------ all at once

    def _y(self, x: DistMatrix, meeting: Meeting, at: Shard) -> Steps[DistMatrix]:
        """X W, summed over the ranks that have addends."""
        name = f"{self.name} forward"
        coming = begun(gathered(x, meeting.x), name)
        at.trip.ask(self.weight)
        seen = yield from coming
        addends = yield from begun(product(self._spread(seen, meeting), at.trip.gathered(self.weight), meeting.y, at), name)
        y_coming = begun(settled(addends, meeting.Y, x.dtype), name)
        at.release(self.weight)
        at.keep(self, seen if self.scheme.keep else x)
        return (yield from y_coming)

    def _dx(self, dy: DistMatrix, x: DistMatrix, meeting: Meeting, at: Shard) -> Steps[DistMatrix]:
        """dX: dY W^T, summed over the ranks that have addends; meanwhile X^T dY is added to W's gradient."""
        name, layout = f"{self.name} backward", Layout(meeting.y.rows, meeting.w.rows, meeting.dx.partial)
        coming, x_coming = begun(gathered(dy, meeting.y.summed), name), begun(gathered(x, meeting.x), name)
        at.trip.ask(self.weight)
        dy = yield from coming
        addends = yield from begun(product(dy, at.trip.gathered(self.weight).T, layout, at), name)
        dx_coming = begun(settled(self._folded(addends, meeting), meeting.X, dy.dtype), name)
        at.release(self.weight)
        x = yield from x_coming
        with tagged(name):
            at.trip.add(self.weight, meeting.dw.partial, add_product(self._spread(x, meeting).T, dy))
        return (yield from dx_coming)
