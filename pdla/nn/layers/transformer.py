"""The transformer's parts: MLP and pre-norm layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.matrix.core import DistMatrix
from pdla.nn.blocks import like
from pdla.nn.checks import check_counts
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, arguments_agreed
from pdla.nn.layers.activations import Dropout, GeLU
from pdla.nn.layers.attention import SelfAttention
from pdla.nn.layers.linear import Linear
from pdla.nn.layers.norms import LayerNorm
from pdla.nn.layers.sequential import Sequential
from pdla.nn.scheme import Scheme


class MLP(Sequential):
    """Two linears with a GeLU between them. Collective to make.

    The GeLU also adds the first one's bias.

    Parameters
    ----------
    scheme : Scheme
        How it is cut.
    hidden : int
        Features of x and of y.
    inner : int, optional
        Features between the linears; 4 hidden by default.
    bias : bool, optional
        Whether the linears have one.
    seed : int, optional
        Of the weights.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        Begins the names of the linears.

    Raises
    ------
    ShapeError
        For numbers that are out of range, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     return pdla.nn.MLP(scheme, 8).forward(scheme.shard(np.ones((4, 8)))).shape
    >>> pdla.run(2, program)
    [(4, 8), (4, 8)]
    """

    layers: list[Any]

    def __init__(
        self, scheme: Scheme, hidden: int, inner: int | None = None, *, bias: bool = True, seed: int = 0,
        dtype: Any = np.float64, name: str = "mlp",
    ) -> None:
        with arguments_agreed("MLP", scheme, f"{hidden}", bias=bias):
            check_counts("MLP", hidden=hidden)
            inner = 4 * hidden if inner is None else inner
        first = Linear(scheme, hidden, inner, kind="first", bias=bias, seed=seed, dtype=dtype, name=f"{name} first")
        second = Linear(scheme, inner, hidden, kind="second", bias=bias, seed=seed, dtype=dtype, name=f"{name} second")
        super().__init__(scheme, [first, GeLU(scheme), second])

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give second(GeLU(first(x))). Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        first, gelu, second = self.layers
        x = await first.forward_async(x, batch, biased=False)
        x = gelu.biased(x, first.bias, batch)  # x, overwritten, is held by no one else
        return await second.forward_async(x, batch)

    async def backward_async(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give the gradient with regard to x. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            Laid out as x.
        """
        first, gelu, second = self.layers
        inner, sums = gelu.gradient_and_sums(await second.backward_async(dy, batch), batch)
        return await first.backward_async(inner, batch, sums=sums)


class TransformerLayer(Layer):
    """x + dropped(attention(norm(x))), then the same with the MLP. Collective to make.

    Parameters
    ----------
    scheme : Scheme
        How it is cut.
    hidden : int
        Features of x and of y.
    heads : int
        Equal parts of the features.
    sequence : int
        Tokens of a sequence.
    inner : int, optional
        Features between the MLP's linears; 4 hidden by default.
    causal : bool, optional
        Whether a token sees only itself and those before it.
    dropout : float, optional
        The probability with which an element is dropped.
    bias : bool, optional
        Whether the linears have one.
    recompute : bool, optional
        Keep x alone from forward to backward, which then begins by repeating the forward pass.
    seed : int, optional
        Of weights and of dropout, which also depend on names and places.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        Begins the names of the layers.

    Raises
    ------
    ShapeError
        For numbers that do not fit, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     layer = pdla.nn.TransformerLayer(scheme, 8, 2, sequence=4, dropout=0.1)
    ...     return layer.forward(scheme.shard(np.ones((8, 8)), sequence=4)).shape
    >>> pdla.run(2, program)
    [(8, 8), (8, 8)]
    """

    numbers = ("recompute",)
    units = 1, 1

    def __init__(
        self, scheme: Scheme, hidden: int, heads: int, *, sequence: int, inner: int | None = None, causal: bool = True,
        dropout: float = 0.0, bias: bool = True, recompute: bool = False, seed: int = 0, dtype: Any = np.float64,
        name: str = "layer",
    ) -> None:
        numbers = f"{hidden}, {heads} heads, sequence={sequence}"
        with arguments_agreed("TransformerLayer", scheme, numbers, causal=causal, bias=bias, recompute=recompute):
            self.hidden, self.heads, self.sequence, self.recompute = hidden, heads, sequence, recompute
        super().__init__(scheme)
        self.takes = self.gives = scheme.first.X
        self.widths = hidden, hidden
        self.norm1 = LayerNorm(scheme, hidden, dtype=dtype, name=f"{name} norm1")
        self.attention = SelfAttention(
            scheme, hidden, heads, sequence=sequence, causal=causal, bias=bias, seed=seed, dtype=dtype, name=f"{name} attention"
        )
        self.dropout1 = Dropout(scheme, dropout, seed=seed, name=f"{name} dropout1")
        self.dtype = self.norm1.dtype
        self.norm2 = LayerNorm(scheme, hidden, dtype=dtype, name=f"{name} norm2")
        self.mlp = MLP(scheme, hidden, inner, bias=bias, seed=seed, dtype=dtype, name=f"{name} mlp")
        self.dropout2 = Dropout(scheme, dropout, seed=seed, name=f"{name} dropout2")

    def __repr__(self) -> str:
        return f"TransformerLayer({self.hidden}, {self.heads} heads) on {self.scheme!r}"

    @property
    def halves(self) -> tuple[tuple[Layer, ...], ...]:
        """The layers whose output is added to x, and those whose output is added to that."""
        return (self.norm1, self.attention, self.dropout1), (self.norm2, self.mlp, self.dropout2)

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give x with both halves added. Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        if not self.recompute:
            return await self._through(x, batch)
        batch.save(self, x)
        return await self._through(x, batch.without_saving())

    async def _through(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        for half in self.halves:
            y = x
            for layer in half:
                y = await layer.forward_async(y, batch)
            x = like(x, x.stored + y.stored)
        return x

    async def backward_async(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give the gradient with regard to x. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            Laid out as x.
        """
        if self.recompute:
            (x,) = batch.saved(self)
            batch = batch.recomputation()
            await self._through(x, batch)
            batch.recomputing = False
        for half in reversed(self.halves):
            dx = dy
            for layer in reversed(half):
                dx = await layer.backward_async(dx, batch)
            dy = like(dy, dy.stored + dx.stored)
        return dy
