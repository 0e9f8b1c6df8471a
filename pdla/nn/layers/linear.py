"""Linear: Y = X W + b, and its three products in any scheme."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla import config
from pdla.array.composed import sum_dtype
from pdla.comm.ledger import tagged
from pdla.errors import ShapeError
from pdla.layout import Layout
from pdla.matmul.schedules.streams import multiply
from pdla.matrix.core import DistMatrix
from pdla.nn.checks import check_counts
from pdla.nn.context import MicroBatch, Write
from pdla.nn.coroutines import TURN
from pdla.nn.layer import Layer, agree_on_arguments
from pdla.nn.panels import Panels
from pdla.nn.parameter import Parameter
from pdla.nn.products import multiply_and_check
from pdla.nn.scheme import LinearLayouts, Scheme, Table, find_sequence, is_count
from pdla.nn.transfers import Transfer, gather, reduce
from pdla.nn.weights import make_vector, make_weight


class Linear(Layer):
    """Y = X W + b: X (tokens, k), W k x n, b (1, n). Collective to make.

    Parameters
    ----------
    scheme : Scheme
        How the layer is cut.
    k, n : int
        Features of X and of Y.
    kind : "first" or "second", optional
        The layer's place in its pair, which determines the layouts of X and Y.
    bias : bool, optional
        Whether there is b, at first 0.
    units : (int, int), optional
        How many of the k and of the n features cuts keep together, such as those of a head.
    scale : float, optional
        W is normal with this standard deviation; 1 / sqrt(k) by default.
    seed : int, optional
        W's numbers depend on seed, name, k, n and the layer's `place` alone, not on the scheme. W
        is drawn when it is first read.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        The ledger's name for its messages.

    Raises
    ------
    ShapeError
        If a number is out of range, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     layer = pdla.nn.Linear(scheme, 8, 6)
    ...     y = layer.forward(scheme.shard(np.ones((4, 8))))
    ...     return y.local.shape, layer.backward(y).shape
    >>> pdla.run(2, program)[0]
    ((4, 3), (4, 8))
    """

    by_panels = True  # whether products go by panels where the scheme asks for them
    units: tuple[int, int]
    k: int
    n: int
    name: str

    def __init__(
        self, scheme: Scheme, k: int, n: int, *, kind: str = "first", bias: bool = True, units: tuple[int, int] = (1, 1),
        scale: float | None = None, seed: int = 0, dtype: Any = np.float64, name: str = "linear",
    ) -> None:
        with agree_on_arguments("Linear", scheme, f"{k}, {n}, kind={kind!r}, units={units}", bias=bias):
            self.table: Table = scheme.table(kind)
            check_counts("Linear", k=k, n=n)
            if not isinstance(units, tuple) or len(units) != 2 or not all(map(is_count, units)):
                raise ShapeError(f"Linear: units={units!r}: a tuple of two whole numbers, at least 1, for inputs and for outputs")
        super().__init__(scheme)
        self.k, self.n, self.units, self.name = k, n, units, name
        self.takes, self.gives, self.widths = self.table.X, self.table.Y, (k, n)
        scale = max(k, 1) ** -0.5 if scale is None else scale
        self.panels: Panels | None = Panels(scheme, scheme.panel) if scheme.panel and self.by_panels else None
        self.weight: Parameter = make_weight(self, self.table, (k, n), units, scale, seed, dtype, name, whole=not self.panels)
        self.bias: Parameter | None = make_vector(scheme, n, self.table.Y, units[1], 0, dtype) if bias else None
        self.dtype = self.weight.allocated.dtype

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.k}, {self.n}) on {self.scheme!r}"

    def find_layouts(self, x: DistMatrix) -> LinearLayouts:
        """Find the layouts for an input in x's layout. Local.

        Parameters
        ----------
        x : DistMatrix
            (tokens, k).

        Returns
        -------
        LinearLayouts
            The layouts of the three products.
        """
        return self.scheme.linear(self.table, find_sequence(x.layout), self.units)

    def _unfold(self, x: DistMatrix, layouts: LinearLayouts) -> DistMatrix:
        """Make the factor that W multiplies from the gathered x. Forward saves x, not the factor."""
        return x

    def _fold(self, addends: DistMatrix, layouts: LinearLayouts) -> DistMatrix:
        """Reverse `_unfold`: make the addends of dX from those of dY W^T."""
        return addends

    async def forward_async(self, x: DistMatrix, batch: MicroBatch, *, add_bias: bool = True) -> DistMatrix:
        """Compute Y. Collective; called by `forward`.

        Parameters
        ----------
        x : DistMatrix
            (tokens, k) of a micro-batch.
        batch : MicroBatch
            Saves x.
        add_bias : bool, optional
            False gives X W, to which the caller adds the bias.

        Returns
        -------
        DistMatrix
            (tokens, n).
        """
        layouts = self.find_layouts(x)
        with tagged(f"{self.name} forward"):
            if self.panels:
                batch.save(self, x)
                y = self.panels.compute_y(x, self.weight.value, layouts)
            else:
                x_transfer = Transfer(gather(x, layouts.x, layouts.x_gather_axes))
                batch.context.prefetch(self.weight)
                gathered_x = await batch.receive(x_transfer)
                w = batch.context.fetch(self.weight)
                summed = any(layouts.y_sum_axes)
                addends = await _multiply(self._unfold(gathered_x, layouts), w.stored, self.n, layouts.y, summed, batch)
                y_transfer = Transfer(reduce(addends, layouts.Y, layouts.y_sum_axes, self.dtype))
                batch.context.release(self.weight, batch)
                batch.save(self, gathered_x if self.scheme.keep else x)
                y = await batch.receive(y_transfer)
        if add_bias and self.bias is not None:
            y.stored[...] += self.bias.value.stored
        return y

    async def backward_async(self, dy: DistMatrix, batch: MicroBatch, *, sums: Any = None) -> DistMatrix:
        """Compute dX = dY W^T, and add X^T dY to W's gradient meanwhile. Collective.

        Called by `backward`.

        Parameters
        ----------
        dy : DistMatrix
            (tokens, n).
        batch : MicroBatch
            The argument of `forward_async`.
        sums : array, optional
            (1, n): dY's sums over tokens, if the caller has them.

        Returns
        -------
        DistMatrix
            (tokens, k), summed over the ranks that have addends.
        """
        (x,) = batch.saved(self)
        layouts = self.find_layouts(x)
        if self.bias is not None:
            with tagged(f"{self.name} bias"):
                batch.add_gradient(self.bias, dy, dy.xp.sum_columns(dy.stored) if sums is None else sums)
        with tagged(f"{self.name} backward"):
            if self.panels:
                self.weight.gradient = self.panels.compute_dw(x, dy, layouts)
                return self.panels.compute_dx(dy, self.weight.value, layouts)
            dy_transfer = Transfer(gather(dy, layouts.dy, layouts.dy_gather_axes))
            x_transfer = Transfer(gather(x, layouts.x, () if self.scheme.keep else layouts.x_gather_axes))
            batch.context.prefetch(self.weight)
            dy = await batch.receive(dy_transfer)
            w = batch.context.fetch(self.weight)
            addends = await _multiply(dy, w.stored.T, self.k, layouts.unfolded_dx, any(layouts.dx_sum_axes), batch)
            dx_transfer = Transfer(reduce(self._fold(addends, layouts), layouts.X, layouts.dx_sum_axes, self.dtype))
            batch.context.release(self.weight, batch)
            x = await batch.receive(x_transfer)
            batch.context.add_gradient(self.weight, layouts.dw.partial, make_product_write(self._unfold(x, layouts), dy))
            return await batch.receive(dx_transfer)


async def _multiply(a: DistMatrix, b: Any, columns: int, layout: Layout, summed: bool, batch: MicroBatch) -> DistMatrix:
    """Multiply a by a matrix of so many columns, whose block is b. Local.

    The result has this layout. Addends that ranks will sum are in the dtype of the sum. One of
    several micro-batches stops halfway, when another's all-reduce is halfway, too: its second half
    travels during the rest of the product.
    """
    block = a.xp.empty((a.stored.shape[0], b.shape[1]), sum_dtype(b.dtype) if summed else b.dtype)
    half = block.shape[0] // 2 if batch.several else block.shape[0]
    multiply_blocks = multiply_and_check if config.settings.verify else multiply
    multiply_blocks(a.xp, a.stored[:half], b, block[:half], 1, 0)
    if batch.several:  # on ranks without rows, too: all ranks must stop equally often
        await TURN
        multiply_blocks(a.xp, a.stored[half:], b, block[half:], 1, 0)
    return DistMatrix(block, (a.shape[0], columns), a.grid, layout)


def make_product_write(x: DistMatrix, dy: DistMatrix) -> Write:
    """Make the function that sets a block of a gradient to x^T dy, or adds x^T dy."""

    def write(block: Any, first: bool) -> None:
        multiply_blocks = multiply_and_check if config.settings.verify else multiply
        multiply_blocks(x.xp, x.stored.T, dy.stored, block, 1, 0 if first else 1)

    return write
