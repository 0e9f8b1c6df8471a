"""Softmax self-attention: ranks have whole sequences of some heads, so only linears send messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.errors import ShapeError
from pdla.matrix.core import DistMatrix
from pdla.nn.blocks import like
from pdla.nn.checks import check_sequence
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, agree_on_arguments
from pdla.nn.layers.attention.heads import Heads
from pdla.nn.layers.attention.masks import Causal, Full
from pdla.nn.layers.attention.softmax import attend, attend_backward
from pdla.nn.layers.linear import Linear
from pdla.nn.scheme import Scheme, is_count


class SelfAttention(Layer):
    """Softmax attention of each sequence and head, between two linears. Collective to make.

    The first linear computes Q, K and V; its columns are ordered by head. A head's q, k and v are
    adjacent, so that a cut keeps heads whole. Memory grows with the sequence, not with its square,
    as either pass computes the scores of some heads or queries at a time.

    Parameters
    ----------
    scheme : Scheme
        How the layer is cut.
    hidden : int
        Features of x and of y.
    heads : int
        Equal parts of the features.
    sequence : int
        Tokens of a sequence.
    causal : bool, optional
        Whether a token sees only itself and those before it.
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
        If numbers do not fit together, on every rank.

    Notes
    -----
    softmax(Q K^T / sqrt(hidden / heads)) V. Only the linears send messages.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     layer = pdla.nn.SelfAttention(scheme, 8, 2, sequence=4)
    ...     return layer.forward(scheme.shard(np.ones((8, 8)), sequence=4)).shape
    >>> pdla.run(2, program)
    [(8, 8), (8, 8)]
    """

    hidden: int
    heads: int
    causal: bool
    by_head: Heads

    numbers = ("causal",)
    units = 1, 1

    def __init__(
        self, scheme: Scheme, hidden: int, heads: int, *, sequence: int, causal: bool = True, bias: bool = True,
        seed: int = 0, dtype: Any = np.float64, name: str = "attention",
    ) -> None:
        with agree_on_arguments("SelfAttention", scheme, f"{hidden}, {heads} heads, sequence={sequence}", causal=causal, bias=bias):
            if not (is_count(heads) and is_count(hidden)) or hidden % heads:
                raise ShapeError(f"SelfAttention: {hidden} features are not {heads} equal heads")
            check_sequence("SelfAttention", sequence)
        super().__init__(scheme)
        self.hidden, self.heads, self.sequence, self.causal = hidden, heads, sequence, causal
        self.takes = self.gives = scheme.first.X
        self.widths = hidden, hidden
        self.by_head = by_head = Heads(hidden // heads, sequence)
        self.qkv: Linear = Linear(
            scheme, hidden, heads * by_head.columns, kind="first", bias=bias, units=(1, by_head.columns), seed=seed, dtype=dtype,
            name=f"{name} qkv",
        )
        self.out: Linear = Linear(
            scheme, hidden, hidden, kind="second", bias=bias, units=(by_head.size, 1), seed=seed, dtype=dtype, name=f"{name} out"
        )
        self.dtype = self.qkv.dtype

    def __repr__(self) -> str:
        return f"SelfAttention({self.hidden}, {self.heads} heads, sequences of {self.sequence}) on {self.scheme!r}"

    @property
    def mask(self) -> Full:
        """The mask, which follows `causal`: that may be set between passes."""
        return Causal() if self.causal else Full()

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Apply the first linear, attention and the second linear. Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        y = await self.qkv.forward_async(x, batch)
        rows, columns = y.stored.shape
        attended = y.xp.empty((rows, columns // self.by_head.columns * self.by_head.size), y.dtype)
        attend(self.by_head.split_qkv(y.stored), self.mask, self.by_head.split(attended))
        batch.save(self, y.stored)
        return await self.out.forward_async(like(y, attended, self.hidden, self.by_head.size), batch)

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
        dattended = await self.out.backward_async(dy, batch)
        (y,) = batch.saved(self)
        dqkv = dattended.xp.empty(y.shape, y.dtype)
        split = self.by_head.split_qkv
        attend_backward(self.by_head.split(dattended.stored), split(y), self.mask, split(dqkv))
        return await self.qkv.backward_async(like(dattended, dqkv, self.qkv.n, self.by_head.columns), batch)
