"""Softmax self-attention: heads are cut over ranks and sequences are whole, so that only the linears around it send messages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product
from math import prod
from operator import matmul
from typing import Any

import numpy as np

from pdla import config
from pdla.array import namespace
from pdla.array.composed import summing, widened
from pdla.comm.ledger import timed
from pdla.errors import ShapeError
from pdla.matrix.core import DistMatrix
from pdla.model.machine import operations
from pdla.nn.blocks import like
from pdla.nn.checks import check_sequence
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, arguments_agreed
from pdla.nn.layers.linear import Linear
from pdla.nn.products import checked
from pdla.nn.scheme import Scheme, is_count


class SelfAttention(Layer):
    """Softmax attention of each sequence and head, between two linears. Collective to make.

    The first linear makes Q, K and V, its columns ordered by head: a head's q, k and v lie
    together, so that a cut keeps heads whole. Memory grows with the sequence, not with its square:
    scores are made for some heads or queries at a time, in either pass.

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
    causal : bool, optional
        Whether a token sees only itself and those before it.
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
        For numbers that do not fit, on every rank.

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

    numbers = ("causal",)
    units = 1, 1

    def __init__(
        self, scheme: Scheme, hidden: int, heads: int, *, sequence: int, causal: bool = True, bias: bool = True,
        seed: int = 0, dtype: Any = np.float64, name: str = "attention",
    ) -> None:
        with arguments_agreed("SelfAttention", scheme, f"{hidden}, {heads} heads, sequence={sequence}", causal=causal, bias=bias):
            if not (is_count(heads) and is_count(hidden)) or hidden % heads:
                raise ShapeError(f"SelfAttention: {hidden} features are not {heads} equal heads")
            check_sequence("SelfAttention", sequence)
        super().__init__(scheme)
        self.hidden, self.heads, self.sequence, self.causal = hidden, heads, sequence, causal
        self.takes = self.gives = scheme.first.X
        self.widths = hidden, hidden
        size = hidden // heads
        self.qkv = Linear(
            scheme, hidden, 3 * hidden, kind="first", bias=bias, units=(1, 3 * size), seed=seed, dtype=dtype, name=f"{name} qkv"
        )
        self.out = Linear(
            scheme, hidden, hidden, kind="second", bias=bias, units=(size, 1), seed=seed, dtype=dtype, name=f"{name} out"
        )
        self.dtype = self.qkv.dtype

    def __repr__(self) -> str:
        return f"SelfAttention({self.hidden}, {self.heads} heads, sequences of {self.sequence}) on {self.scheme!r}"

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give the attended values through both linears. Collective.

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
        attended, normal = self._attend(y.xp, *self._heads(y.stored))
        batch.save(self, y.stored, normal)
        return await self.out.forward_async(like(y, attended, self.hidden, self.hidden // self.heads), batch)

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
        dattended = await self.out.backward_async(dy, batch)
        y, normal = batch.saved(self)
        dy_ = dattended.xp.empty(y.shape, y.dtype)
        self._attend_backward(dattended, self._heads(y), normal, self._heads(dy_))
        return await self.qkv.backward_async(like(dattended, dy_, 3 * self.hidden, 3 * self.hidden // self.heads), batch)

    # ------------------------------------------------------------------ this rank's sequences and heads

    def _heads(self, y: Any) -> tuple[Any, Any, Any]:
        """Q, K and V as (sequences, heads, tokens, features of a head), views."""
        size = self.hidden // self.heads
        split = y.reshape(y.shape[0] // self.sequence, self.sequence, y.shape[1] // (3 * size), 3, size)
        q, k, v = (split[:, :, :, i].transpose(0, 2, 1, 3) for i in range(3))
        return q, k, v

    def _pieces(self, q: Any) -> Iterator[tuple[tuple[slice, slice], list[tuple[slice, slice]]]]:
        """Slices of sequences and heads, with slices of queries and of the keys that those see.

        The scores of the queries are held at a time; those of whole heads, where they fit.
        """
        fit = namespace(q).AT_ONCE // self.sequence  # so many queries
        heads = max(1, min(q.shape[1], fit // self.sequence))
        queries = [(few, slice(few.stop if self.causal else None)) for few in _slices(q.shape[2], fit)]
        for some, those in product(_slices(q.shape[0], fit // (self.sequence * heads)), _slices(q.shape[1], heads)):
            yield (some, those), queries

    def _scores(self, xp: Any, q: Any, k: Any) -> Any:
        """The scores of some queries against the keys they see. If causal, the last keys are of the queries' own tokens."""
        scaled = widened(q) * summing(q.dtype).type(q.shape[3] ** -0.5)
        scores = _product(scaled, k.transpose(0, 1, 3, 2))
        if self.causal:
            queries, keys = scores.shape[2:]
            scores[..., keys - queries :] += xp.asarray(_causal_mask(queries, scores.dtype))
        return scores

    def _attend(self, xp: Any, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        """The attended values, and each query's greatest score and sum of exponentials.

        The values are (tokens, features). The latter two are kept apart, since adding the logarithm
        of the latter to the former would lose digits.
        """
        sequences, heads, tokens, size = q.shape
        attended = xp.empty((sequences * tokens, heads * size), q.dtype)
        out = attended.reshape(sequences, tokens, heads, size).transpose(0, 2, 1, 3)
        tops, totals = normal = xp.empty((2, sequences, heads, tokens, 1), summing(q.dtype))
        for part, pieces in self._pieces(q):
            for queries, keys in pieces:
                at_q, at_k = (*part, queries), (*part, keys)
                scores = self._scores(xp, q[at_q], k[at_k])
                top = scores.max(axis=3, keepdims=True)
                weights = np.exp(scores - top)
                total = weights.sum(axis=3, keepdims=True)
                out[at_q] = _product(weights, v[at_k]) / total
                tops[at_q], totals[at_q] = top, total
        return attended, normal

    def _attend_backward(self, dattended: DistMatrix, qkv: tuple[Any, Any, Any], normal: Any, into: tuple[Any, Any, Any]) -> None:
        """Write the gradients of Q, K and V to the views `into`."""
        (q, k, v), (dq, dk, dv), (tops, totals), xp = qkv, into, normal, dattended.xp
        sequences, heads, tokens, size = q.shape
        d = dattended.stored.reshape(sequences, tokens, heads, size).transpose(0, 2, 1, 3)
        for part, pieces in self._pieces(q):
            k_sums, v_sums = sums = xp.empty((2, *k[part].shape), summing(k.dtype))
            sums[...] = 0
            for queries, keys in pieces:
                at_q, at_k = (*part, queries), (*part, keys)
                weights, total = np.exp(self._scores(xp, q[at_q], k[at_k]) - tops[at_q]), totals[at_q]
                share = widened(d[at_q]) / total  # dividing the weights would take longer: they are more
                v_sums[:, :, keys] += _product(weights.transpose(0, 1, 3, 2), share)
                slope = _product(share, v[at_k].transpose(0, 1, 3, 2))
                slope = weights * (slope - (slope * weights).sum(axis=3, keepdims=True) / total) * slope.dtype.type(size**-0.5)
                dq[at_q] = _product(slope, k[at_k])
                k_sums[:, :, keys] += _product(slope.transpose(0, 1, 3, 2), q[at_q])
            dk[part], dv[part] = k_sums, v_sums


def _product(x: Any, y: Any) -> Any:
    """Each matrix of the stack x times that of y, 16-bit floats as float32.

    Scores and slopes may be beyond float16's range, and CuPy does not multiply stacks of bfloat16.
    """
    x, y = widened(x), widened(y)
    with timed("gemm", flops=prod(x.shape[:2]) * operations(x.shape[2], y.shape[3], x.shape[3], x.dtype)):
        return checked(partial(matmul, x, y), x, y) if config.settings.verify else x @ y


@lru_cache(maxsize=8)
def _causal_mask(queries: int, dtype: np.dtype) -> np.ndarray:
    """The mask to add to the scores of queries and their own keys: -inf where the key comes after the query, else 0."""
    return np.triu(np.full((queries, queries), -np.inf, dtype), 1)


def _slices(n: int, size: int) -> list[slice]:
    """Slices that divide n things, `size` of them at a time, but at least one."""
    return [slice(first, min(first + max(size, 1), n)) for first in range(0, n, max(size, 1))]
