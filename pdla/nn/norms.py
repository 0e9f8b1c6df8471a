"""Normalisation: LayerNorm and RMSNorm over features, GroupNorm over a sample's pixels and a group's channels.

Features may be cut. Sums over them then go over the ranks that share a token: twice forward (for the mean, then for the squares of
x - mean: the mean of x^2 less the square of the mean would lose digits) and once backward. LayerNorm reads x once for both sums: a
rank takes the squares about the mean of its own features, and corrects them when it knows the mean of all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.array.composed import summing, widened
from pdla.comm.ledger import tagged
from pdla.errors import ShapeError
from pdla.indices import IndexSet
from pdla.layout import axes_of
from pdla.matrix.core import DistMatrix
from pdla.nn.activation import check_activation, check_counts, check_number, check_whole, like
from pdla.nn.layer import Layer, made
from pdla.nn.linear import add_sums, vector
from pdla.nn.scheme import Scheme, counts
from pdla.nn.steps import Steps, begun, summed
from pdla.nn.trip import Shard


class Norm(Layer):
    """What all norms share: gain and offset for each feature, and sums over features that may be cut. Collective to make."""

    numbers = ("eps",)

    def __init__(
        self, scheme: Scheme, features: int, *, kind: str = "first", offset: bool = True, eps: float = 1e-5,
        dtype: Any = np.float64, name: str = "norm",
    ) -> None:
        with made(type(self).__name__, scheme, f"{features}, kind={kind!r}, eps={eps}", offset=offset):
            self.takes = self.gives = self.spec = scheme.table(kind).X
            check_counts(type(self).__name__, features=features)
            check_number(type(self).__name__, "eps", eps)
        super().__init__(scheme)
        self.features, self.eps, self.name = features, eps, name
        self.widths = features, features
        self.gain = vector(scheme, features, self.spec, 1, 1, dtype)
        self.offset = vector(scheme, features, self.spec, 1, 0, dtype) if offset else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.features}) on {self.scheme!r}"

    def _takes(self, x: Any) -> None:
        check_activation(self, x, self.features, self.gain.value.dtype, self.spec)

    def _summed(self, sums: Any, x: DistMatrix) -> Steps[Any]:
        return begun(summed(sums, x.grid, axes_of(x.layout.cols)), f"{self.name} sums")

    def _learn(self, dy: DistMatrix, normal: Any, at: Shard) -> None:
        """Add to the gradients of gain and offset."""
        along, sums = dy.xp.column_sums(dy.stored, normal)
        with tagged(f"{self.name} gradients"):
            at.trip.add(self.gain, axes_of(dy.layout.rows), add_sums(along))
            if self.offset is not None:
                at.trip.add(self.offset, axes_of(dy.layout.rows), add_sums(sums))


class TokenNorm(Norm):
    """What LayerNorm and RMSNorm share. centred: whether a token's mean is subtracted."""

    centred: bool

    @property
    def _count(self) -> int:
        """What sums over a token's features are divided by to get means; 1 where there are no features, whose sums are 0."""
        return max(self.features, 1)

    def _normal(self, x: DistMatrix, sums: Any, squares: Any, at: Shard) -> DistMatrix:
        """y, given the sums of each token's features (None: they are not centred) and those of their squares."""
        gain, offset = self.gain.value.stored, None if self.offset is None else self.offset.value.stored
        y, normal, scale = x.xp.normalise(x.stored, sums, squares, self._count, self.eps, gain, offset, at.keeping)
        at.keep(self, normal, scale)
        return like(x, y)

    def _backward(self, dy: DistMatrix, at: Shard) -> Steps[DistMatrix]:
        normal, scale = at.take(self)
        self._learn(dy, normal, at)
        gain, sums = self.gain.value.stored, dy.xp.empty((1 + self.centred, dy.stored.shape[0], 1), summing(dy.dtype))
        dy.xp.row_sums(dy.stored, normal, gain, sums)
        sums = yield from self._summed(sums, dy)
        return like(dy, dy.xp.norm_gradient(dy.stored, normal, scale, gain, sums, self._count))


class LayerNorm(TokenNorm):
    """(x - mean) / sqrt(variance + eps) * gain + offset, over each token's features."""

    centred = True

    def _forward(self, x: DistMatrix, at: Shard) -> Steps[DistMatrix]:
        own, squares = x.xp.moments(x.stored)
        sums = yield from self._summed(own.copy(), x)
        here = x.stored.shape[1]
        if here < self.features:  # else this rank has all features
            x.xp.recentre(squares, own, sums, here, self.features)
        squares = yield from self._summed(squares, x)
        return self._normal(x, sums, squares, at)


class RMSNorm(TokenNorm):
    """x / sqrt(mean of x^2 + eps) * gain, over each token's features."""

    centred = False

    def __init__(
        self, scheme: Scheme, features: int, *, kind: str = "first", eps: float = 1e-5, dtype: Any = np.float64, name: str = "norm"
    ) -> None:
        super().__init__(scheme, features, kind=kind, offset=False, eps=eps, dtype=dtype, name=name)

    def _forward(self, x: DistMatrix, at: Shard) -> Steps[DistMatrix]:
        squares = x.xp.empty((1, x.stored.shape[0], 1), summing(x.dtype))
        x.xp.row_sums(x.stored, x.stored, None, squares)
        squares = yield from self._summed(squares, x)
        return self._normal(x, None, squares[0], at)


class GroupNorm(Norm):
    """(x - mean) / sqrt(variance + eps) * gain + offset, over each sample's pixels and each group's channels.

    pixels  tokens of a sample, one after the other, on one rank;  groups: how many groups of channels; ranks may share a group
    """

    def __init__(
        self, scheme: Scheme, channels: int, *, groups: int, pixels: int, kind: str = "first", eps: float = 1e-5,
        dtype: Any = np.float64, name: str = "norm",
    ) -> None:
        with made("GroupNorm", scheme, f"{channels}, groups={groups}, pixels={pixels}"):
            if not (counts(groups) and counts(channels, 0)) or channels % groups:
                raise ShapeError(f"GroupNorm: {channels} channels are not {groups} equal groups")
            if not counts(pixels):
                raise ShapeError(f"GroupNorm: pixels={pixels}: tokens of a sample, a whole number, at least 1")
        super().__init__(scheme, channels, kind=kind, eps=eps, dtype=dtype, name=name)
        self.groups, self.sequence = groups, pixels

    def _takes(self, x: Any) -> None:
        super()._takes(x)
        check_whole(self, x)

    def _by_sample(self, x: Any) -> Any:
        return x.reshape(x.shape[0] // self.sequence, self.sequence, x.shape[1])

    def _means(self, values: Any, x: DistMatrix) -> Steps[Any]:
        """Means of (samples, pixels, channels) over each sample's pixels and each group's channels, as (samples, 1, channels)."""
        values, members = values.sum(axis=1), _members(x, self.groups)
        sums = x.xp.empty((values.shape[0], self.groups), values.dtype)
        sums[...] = 0
        for group, channels in members:  # a product with a matrix of 0 and 1 would carry a NaN into all groups
            sums[:, group] = values[:, channels].sum(axis=1)
        sums = yield from self._summed(sums, x)
        for group, channels in members:
            values[:, channels] = sums[:, group : group + 1] / (self.sequence * self.features // self.groups)
        return values.reshape(values.shape[0], 1, values.shape[1])

    def _forward(self, x: DistMatrix, at: Shard) -> Steps[DistMatrix]:
        at.check_whole(self, x)
        seen = widened(self._by_sample(x.stored))
        centered = seen - (yield from self._means(seen, x))
        scale = 1 / np.sqrt((yield from self._means(centered * centered, x)) + self.eps)
        normal = (centered * scale).astype(x.dtype, copy=False)
        at.keep(self, normal, scale)
        y = normal.reshape(*x.stored.shape) * self.gain.value.stored
        return like(x, y if self.offset is None else y + self.offset.value.stored)

    def _backward(self, dy: DistMatrix, at: Shard) -> Steps[DistMatrix]:
        normal, scale = at.take(self)
        self._learn(dy, normal.reshape(*dy.stored.shape), at)
        d = self._by_sample(widened(dy.stored) * self.gain.value.stored)
        mean = yield from self._means(d, dy)
        along = yield from self._means(d * normal, dy)
        dx = ((d - mean - normal * along) * scale).astype(dy.dtype, copy=False)
        return like(dy, dx.reshape(*dy.stored.shape))


def _members(x: DistMatrix, groups: int) -> list[tuple[int, slice]]:
    """The groups of which this rank has channels, each with the slice of those among the rank's."""
    held: IndexSet = x.indices[1]
    found = np.unique(held.indices() // (x.shape[1] // groups), return_index=True, return_counts=True)
    return [(int(group), slice(int(first), int(first + count))) for group, first, count in zip(*found, strict=True)]
