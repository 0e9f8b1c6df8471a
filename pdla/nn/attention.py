"""Softmax self-attention: heads are cut over ranks, sequences are whole, so that nothing is sent but by the linears around it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.errors import LayoutError, ShapeError
from pdla.layout import Layout
from pdla.matrix import DistMatrix
from pdla.nn.layer import Layer, Shard
from pdla.nn.linear import Linear
from pdla.nn.scheme import Scheme, sequence_of
from pdla.nn.steps import Steps

SCORES = 1 << 20  # elements of the scores that are held at a time: queries are taken in so many that they fit


class SelfAttention(Layer):
    """softmax(Q K^T / sqrt(d)) V for each sequence and head, a linear that makes Q, K and V before it and one behind.

    The first linear's columns are ordered by head: a head's q, k and v lie together, so that a cut keeps heads whole. Memory
    grows with the sequence, not with its square: scores are made for some queries at a time, and again on the way back.
    Collective to make.

    sequence  tokens of a sequence;  causal: a token sees itself and those before it
    """

    def __init__(
        self, scheme: Scheme, hidden: int, heads: int, *, sequence: int, causal: bool = True, bias: bool = True,
        seed: int = 0, dtype: Any = np.float64, name: str = "attention",
    ) -> None:  # fmt: skip
        super().__init__(scheme)
        if heads < 1 or hidden % heads:
            raise ShapeError(f"SelfAttention: {hidden} features are not {heads} equal heads")
        if sequence < 1:
            raise ShapeError(f"SelfAttention: sequence={sequence}: tokens of a sequence, at least 1")
        self.hidden, self.heads, self.sequence, self.causal = hidden, heads, sequence, causal
        self.takes = self.gives = scheme.first.X
        size = hidden // heads
        self.qkv = Linear(
            scheme, hidden, 3 * hidden, kind="first", bias=bias, units=(1, 3 * size), seed=seed, dtype=dtype, name=f"{name} qkv"
        )
        self.out = Linear(
            scheme, hidden, hidden, kind="second", bias=bias, units=(size, 1), seed=seed + 1, dtype=dtype, name=f"{name} out"
        )

    def __repr__(self) -> str:
        return f"SelfAttention({self.hidden}, {self.heads} heads, sequences of {self.sequence}) on {self.scheme!r}"

    def _takes(self, x: Any) -> None:
        self.qkv.sequence = self.sequence
        self.qkv._takes(x)
        if x.layout.rows and sequence_of(x.layout) % self.sequence and self.scheme.first.Y.split("|")[0].strip():
            raise LayoutError(f"x lies as {x.layout!r}, whose cuts do not keep sequences of {self.sequence} tokens whole")

    def _forward(self, x: DistMatrix, at: Shard) -> Steps[DistMatrix]:
        y = yield from self.qkv._forward(x, at)
        q, k, v = self._heads(y.stored)
        mixed, normal = self._mixed(y.xp, q, k, v)
        at.keep(self, y.stored, normal)
        unit = self.hidden // self.heads
        layout = Layout(y.layout.rows, self.scheme.meeting(self.out.table, sequence_of(y.layout), (unit, 1)).X.cols)
        return (yield from self.out._forward(DistMatrix(mixed, (y.shape[0], self.hidden), y.grid, layout), at))

    def _backward(self, dy: DistMatrix, at: Shard) -> Steps[DistMatrix]:
        dmixed = yield from self.out._backward(dy, at)
        y, normal = at.take(self)
        dy_ = dmixed.xp.empty(y.shape, y.dtype)
        self._unmixed(dmixed, self._heads(y), normal, self._heads(dy_))
        units = (1, 3 * self.hidden // self.heads)
        layout = Layout(dmixed.layout.rows, self.scheme.meeting(self.qkv.table, 1, units).Y.cols)
        return (yield from self.qkv._backward(DistMatrix(dy_, (dmixed.shape[0], 3 * self.hidden), dmixed.grid, layout), at))

    # ------------------------------------------------------------------ this rank's sequences and heads

    def _heads(self, y: Any) -> tuple[Any, Any, Any]:
        """Q, K and V as (sequences, heads, tokens, features of a head), views."""
        size = self.hidden // self.heads
        split = y.reshape(y.shape[0] // self.sequence, self.sequence, y.shape[1] // (3 * size), 3, size)
        q, k, v = (split[:, :, :, i].transpose(0, 2, 1, 3) for i in range(3))
        return q, k, v

    def _pieces(self, q: Any) -> list[tuple[int, int, int]]:
        """Queries taken at a time, first and last, and how many keys they see."""
        wide = max(1, min(self.sequence, SCORES // max(1, q.shape[0] * q.shape[1] * self.sequence)))
        ends = [(first, min(first + wide, self.sequence)) for first in range(0, self.sequence, wide)]
        return [(first, last, last if self.causal else self.sequence) for first, last in ends]

    def _scores(self, xp: Any, q: Any, k: Any, piece: tuple[int, int, int]) -> Any:
        first, last, seen = piece
        scores = q[:, :, first:last] @ k[:, :, :seen].transpose(0, 1, 3, 2) * q.dtype.type(q.shape[3] ** -0.5)
        if self.causal:
            scores[..., first:last] += xp.asarray(np.triu(np.full((last - first, last - first), -np.inf, q.dtype), 1))
        return scores

    def _mixed(self, xp: Any, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        """The attended values as (tokens, features), and for each query the logarithm of its sum of exponentials."""
        sequences, heads, tokens, size = q.shape
        mixed = xp.empty((sequences * tokens, heads * size), q.dtype)
        out = mixed.reshape(sequences, tokens, heads, size).transpose(0, 2, 1, 3)
        normal = xp.empty((sequences, heads, tokens, 1), q.dtype)
        for piece in self._pieces(q):
            first, last, seen = piece
            scores = self._scores(xp, q, k, piece)
            top = scores.max(axis=3, keepdims=True)
            weights = np.exp(scores - top)
            total = weights.sum(axis=3, keepdims=True)
            out[:, :, first:last] = weights @ v[:, :, :seen] / total
            normal[:, :, first:last] = top + np.log(total)
        return mixed, normal

    def _unmixed(self, dmixed: DistMatrix, qkv: tuple[Any, Any, Any], normal: Any, into: tuple[Any, Any, Any]) -> None:
        """The gradients of Q, K and V, written into their places."""
        (q, k, v), (dq, dk, dv), xp = qkv, into, dmixed.xp
        sequences, heads, tokens, size = q.shape
        d = dmixed.stored.reshape(sequences, tokens, heads, size).transpose(0, 2, 1, 3)
        dk[...], dv[...] = 0, 0
        for piece in self._pieces(q):
            first, last, seen = piece
            weights = np.exp(self._scores(xp, q, k, piece) - normal[:, :, first:last])
            dv[:, :, :seen] += weights.transpose(0, 1, 3, 2) @ d[:, :, first:last]
            slope = d[:, :, first:last] @ v[:, :, :seen].transpose(0, 1, 3, 2)
            slope = weights * (slope - (slope * weights).sum(axis=3, keepdims=True)) * q.dtype.type(size**-0.5)
            dq[:, :, first:last] = slope @ k[:, :, :seen]
            dk[:, :, :seen] += slope.transpose(0, 1, 3, 2) @ q[:, :, first:last]
