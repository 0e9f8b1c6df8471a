"""The MLP of a transformer: two linears, and an activation of any kind between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.matrix.core import DistMatrix
from pdla.nn.checks import check_counts
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, agree_on_arguments
from pdla.nn.layers.activations import GeLU, check_kind
from pdla.nn.layers.linear import Linear
from pdla.nn.layers.sequential import Sequential
from pdla.nn.scheme import Scheme


class MLP(Sequential):
    """Two linears with an activation between them. Collective to make.

    Parameters
    ----------
    scheme : Scheme
        How the layer is cut.
    hidden : int
        Features of x and of y.
    inner : int, optional
        Features between the linears; 4 hidden by default.
    activation : type of Layer, optional
        The layer between the linears, made of a scheme alone: `nn.ReLU`, say, or one of your own.
    bias : bool, optional
        Whether the linears have a bias.
    seed : int, optional
        Of the weights.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        Prefix of the linears' names.

    Raises
    ------
    ShapeError
        If a number is out of range, or the activation cannot be made, on every rank.

    Notes
    -----
    `nn.GeLU` also adds the first linear's bias, and sums the bias's gradient.

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
        self, scheme: Scheme, hidden: int, inner: int | None = None, *, activation: type[Layer] = GeLU, bias: bool = True,
        seed: int = 0, dtype: Any = np.float64, name: str = "mlp",
    ) -> None:
        with agree_on_arguments("MLP", scheme, f"{hidden}", bias=bias):
            check_counts("MLP", hidden=hidden)
            check_kind("MLP", activation)
            inner = 4 * hidden if inner is None else inner
        first = Linear(scheme, hidden, inner, kind="first", bias=bias, seed=seed, dtype=dtype, name=f"{name} first")
        second = Linear(scheme, inner, hidden, kind="second", bias=bias, seed=seed, dtype=dtype, name=f"{name} second")
        super().__init__(scheme, [first, activation(scheme), second])
        self.adds_bias: bool = type(self.layers[1]) is GeLU  # a subclass may override forward_local

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Compute second(activation(first(x))). Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        if not self.adds_bias:
            return await super().forward_async(x, batch)
        first, gelu, second = self.layers
        x = await first.forward_async(x, batch, add_bias=False)
        x = gelu.apply_with_bias(x, first.bias, batch)  # may overwrite x, which nothing else refers to
        return await second.forward_async(x, batch)

    async def backward_async(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Compute the gradient with regard to x. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            In x's layout.
        """
        if not self.adds_bias:
            return await super().backward_async(dy, batch)
        first, gelu, second = self.layers
        inner, sums = gelu.compute_gradient_and_sums(await second.backward_async(dy, batch), batch)
        return await first.backward_async(inner, batch, sums=sums)
