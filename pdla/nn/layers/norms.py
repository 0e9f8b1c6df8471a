"""Normalisation: LayerNorm and RMSNorm over features, GroupNorm over a sample's pixels and a group's channels.

Features may be cut. Sums over them then go over the ranks that share a token: twice forward (for
the mean, then for the squares of x - mean: the mean of x^2 less the square of the mean would lose
digits) and once backward. LayerNorm reads x once for both sums: a rank takes the squares about the
mean of its own features, and corrects them when it knows the mean of all.
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
from pdla.nn.blocks import like
from pdla.nn.checks import check_counts, check_number, check_whole
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, arguments_agreed
from pdla.nn.scheme import Scheme, is_count
from pdla.nn.transfers import Transfer, allreduced
from pdla.nn.weights import vector


class Norm(Layer):
    """What all norms share: gain and offset for each feature, and sums over features that may be cut. Collective to make."""

    numbers = ("eps",)
    units = 1, 1

    def __init__(
        self, scheme: Scheme, features: int, *, kind: str = "first", offset: bool = True, eps: float = 1e-5,
        dtype: Any = np.float64, name: str = "norm",
    ) -> None:
        with arguments_agreed(type(self).__name__, scheme, f"{features}, kind={kind!r}, eps={eps}", offset=offset):
            self.takes = self.gives = cut = scheme.table(kind).X
            check_counts(type(self).__name__, features=features)
            check_number(type(self).__name__, "eps", eps)
        super().__init__(scheme)
        self.features, self.eps, self.name = features, eps, name
        self.widths = features, features
        self.gain = vector(scheme, features, cut, 1, 1, dtype)
        self.offset = vector(scheme, features, cut, 1, 0, dtype) if offset else None
        self.dtype = self.gain.value.dtype

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.features}) on {self.scheme!r}"

    async def _summed(self, sums: Any, x: DistMatrix, batch: MicroBatch) -> Any:
        """The sums over the ranks that share x's tokens, in place."""
        with tagged(f"{self.name} sums"):
            return await batch.received(Transfer(allreduced(sums, x.grid, axes_of(x.layout.cols))))

    def _learn(self, dy: DistMatrix, normal: Any, batch: MicroBatch) -> None:
        """Add to the gradients of gain and offset."""
        along, sums = dy.xp.column_sums(dy.stored, normal)
        with tagged(f"{self.name} gradients"):
            batch.add_gradient(self.gain, dy, along)
            if self.offset is not None:
                batch.add_gradient(self.offset, dy, sums)


class TokenNorm(Norm):
    """What LayerNorm and RMSNorm share. centred: whether a token's mean is subtracted."""

    centred: bool

    @property
    def _count(self) -> int:
        """What sums over a token's features are divided by to get means; 1 where there are no features, whose sums are 0."""
        return max(self.features, 1)

    def _normal(self, x: DistMatrix, sums: Any, squares: Any, batch: MicroBatch) -> DistMatrix:
        """y, given the sums of each token's features (None: they are not centred) and those of their squares."""
        gain, offset = self.gain.value.stored, None if self.offset is None else self.offset.value.stored
        y, normal, scale = x.xp.normalise(x.stored, sums, squares, self._count, self.eps, gain, offset, batch.saving)
        batch.save(self, normal, scale)
        return like(x, y)

    async def backward_async(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give the gradient with regard to x, and add to those of gain and offset. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            Laid out as x.
        """
        normal, scale = batch.saved(self)
        self._learn(dy, normal, batch)
        gain, sums = self.gain.value.stored, dy.xp.empty((1 + self.centred, dy.stored.shape[0], 1), summing(dy.dtype))
        dy.xp.row_sums(dy.stored, normal, gain, sums)
        sums = await self._summed(sums, dy, batch)
        return like(dy, dy.xp.norm_gradient(dy.stored, normal, scale, gain, sums, self._count))


class LayerNorm(TokenNorm):
    """(x - mean) / sqrt(variance + eps) * gain + offset, over each token's features.

    Collective to make.

    Parameters
    ----------
    scheme : Scheme
        How it is cut.
    features : int
        Of x and of y.
    kind : "first" or "second", optional
        The place in its pair of the layer that takes y: x lies as that one's input.
    offset : bool, optional
        Whether there is one.
    eps : float, optional
        Added to the variance.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        By which the ledger records its messages.

    Raises
    ------
    ShapeError
        For numbers that are out of range, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm))
    ...     y = pdla.nn.LayerNorm(scheme, 2).forward(scheme.shard([[1.0, 3.0]]))
    ...     return y.gather().round(2).tolist()
    >>> pdla.run(2, program)[0]
    [[-1.0, 1.0]]
    """

    centred = True

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Normalise each token's features. Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        own, squares = x.xp.moments(x.stored)
        sums = await self._summed(own.copy(), x, batch)
        here = x.stored.shape[1]
        if here < self.features:  # else this rank has all features
            x.xp.recentre(squares, own, sums, here, self.features)
        squares = await self._summed(squares, x, batch)
        return self._normal(x, sums, squares, batch)


class RMSNorm(TokenNorm):
    """x / sqrt(mean of x^2 + eps) * gain, over each token's features. Collective to make.

    Parameters
    ----------
    scheme : Scheme
        How it is cut.
    features : int
        Of x and of y.
    kind : "first" or "second", optional
        The place in its pair of the layer that takes y: x lies as that one's input.
    eps : float, optional
        Added to the mean of the squares.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        By which the ledger records its messages.

    Raises
    ------
    ShapeError
        For numbers that are out of range, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm))
    ...     y = pdla.nn.RMSNorm(scheme, 2).forward(scheme.shard([[1.0, 7.0]]))
    ...     return y.gather().round(2).tolist()
    >>> pdla.run(2, program)[0]
    [[0.2, 1.4]]
    """

    centred = False

    def __init__(
        self, scheme: Scheme, features: int, *, kind: str = "first", eps: float = 1e-5, dtype: Any = np.float64, name: str = "norm"
    ) -> None:
        super().__init__(scheme, features, kind=kind, offset=False, eps=eps, dtype=dtype, name=name)

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Divide each token's features by their root mean square. Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        squares = x.xp.empty((1, x.stored.shape[0], 1), summing(x.dtype))
        x.xp.row_sums(x.stored, x.stored, None, squares)
        squares = await self._summed(squares, x, batch)
        return self._normal(x, None, squares[0], batch)


class GroupNorm(Norm):
    """Normalisation over each sample's pixels and each group's channels. Collective to make.

    Parameters
    ----------
    scheme : Scheme
        How it is cut.
    channels : int
        Of x and of y.
    groups : int
        How many groups of channels; ranks may share a group.
    pixels : int
        Tokens of a sample, one after the other, on one rank.
    kind : "first" or "second", optional
        The place in its pair of the layer that takes y: x lies as that one's input.
    eps : float, optional
        Added to the variance.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        By which the ledger records its messages.

    Raises
    ------
    ShapeError
        For numbers that do not fit, on every rank.

    Notes
    -----
    (x - mean) / sqrt(variance + eps) * gain + offset.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm))
    ...     layer = pdla.nn.GroupNorm(scheme, 2, groups=1, pixels=2)
    ...     x = scheme.shard([[1.0, 3.0], [3.0, 1.0]], sequence=2)
    ...     return layer.forward(x).gather().round(2).tolist()
    >>> pdla.run(2, program)[0]
    [[-1.0, 1.0], [1.0, -1.0]]
    """

    def __init__(
        self, scheme: Scheme, channels: int, *, groups: int, pixels: int, kind: str = "first", eps: float = 1e-5,
        dtype: Any = np.float64, name: str = "norm",
    ) -> None:
        with arguments_agreed("GroupNorm", scheme, f"{channels}, groups={groups}, pixels={pixels}"):
            if not (is_count(groups) and is_count(channels, 0)) or channels % groups:
                raise ShapeError(f"GroupNorm: {channels} channels are not {groups} equal groups")
            if not is_count(pixels):
                raise ShapeError(f"GroupNorm: pixels={pixels}: tokens of a sample, a whole number, at least 1")
        super().__init__(scheme, channels, kind=kind, eps=eps, dtype=dtype, name=name)
        self.groups, self.sequence = groups, pixels

    def check_input(self, x: Any) -> None:
        """Raise unless the layer takes x, of whole samples on each rank. Local: all ranks are told.

        Parameters
        ----------
        x : object
            What `forward` was given.

        Raises
        ------
        ShapeError, LayoutError
            Where the layer does not take it.
        """
        super().check_input(x)
        check_whole(self, x)

    def _by_sample(self, x: Any) -> Any:
        return x.reshape(x.shape[0] // self.sequence, self.sequence, x.shape[1])

    async def _means(self, values: Any, x: DistMatrix, batch: MicroBatch) -> Any:
        """Means of (samples, pixels, channels) over each sample's pixels and each group's channels, as (samples, 1, channels)."""
        values, members = values.sum(axis=1), _members(x, self.groups)
        sums = x.xp.empty((values.shape[0], self.groups), values.dtype)
        sums[...] = 0
        for group, channels in members:  # a product with a matrix of 0 and 1 would carry a NaN into all groups
            sums[:, group] = values[:, channels].sum(axis=1)
        sums = await self._summed(sums, x, batch)
        for group, channels in members:
            values[:, channels] = sums[:, group : group + 1] / (self.sequence * self.features // self.groups)
        return values.reshape(values.shape[0], 1, values.shape[1])

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Normalise each sample's groups of channels. Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        check_whole(self, x)
        seen = widened(self._by_sample(x.stored))
        centered = seen - await self._means(seen, x, batch)
        scale = 1 / np.sqrt(await self._means(centered * centered, x, batch) + self.eps)
        normal = (centered * scale).astype(x.dtype, copy=False)
        batch.save(self, normal, scale)
        y = normal.reshape(*x.stored.shape) * self.gain.value.stored
        return like(x, y if self.offset is None else y + self.offset.value.stored)

    async def backward_async(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give the gradient with regard to x, and add to those of gain and offset. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            Laid out as x.
        """
        normal, scale = batch.saved(self)
        self._learn(dy, normal.reshape(*dy.stored.shape), batch)
        d = self._by_sample(widened(dy.stored) * self.gain.value.stored)
        mean = await self._means(d, dy, batch)
        along = await self._means(d * normal, dy, batch)
        dx = ((d - mean - normal * along) * scale).astype(dy.dtype, copy=False)
        return like(dy, dx.reshape(*dy.stored.shape))


def _members(x: DistMatrix, groups: int) -> list[tuple[int, slice]]:
    """The groups of which this rank has channels, each with the slice of those among the rank's."""
    held: IndexSet = x.indices[1]
    found = np.unique(held.indices() // (x.shape[1] // groups), return_index=True, return_counts=True)
    return [(int(group), slice(int(first), int(first + count))) for group, first, count in zip(*found, strict=True)]
