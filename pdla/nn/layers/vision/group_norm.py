"""GroupNorm: normalisation over a sample's pixels and a group's channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.array.composed import widen
from pdla.errors import ShapeError
from pdla.indices import IndexSet
from pdla.matrix.core import DistMatrix
from pdla.nn.blocks import like
from pdla.nn.checks import check_whole_sequences
from pdla.nn.context import MicroBatch
from pdla.nn.layer import agree_on_arguments
from pdla.nn.layers.norms import Norm
from pdla.nn.scheme import Scheme, is_count


class GroupNorm(Norm):
    """Normalisation over each sample's pixels and each group's channels. Collective to make.

    Parameters
    ----------
    scheme : Scheme
        How the layer is cut.
    channels : int
        Channels of x and of y.
    groups : int
        Groups of channels; ranks may share a group.
    pixels : int
        Tokens of a sample, consecutive and on one rank.
    kind : "first" or "second", optional
        The place in its pair of the layer that takes y. x has the layout of that layer's input.
    eps : float, optional
        Added to the variance.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        The ledger's name for its messages.

    Raises
    ------
    ShapeError
        If numbers do not fit together, on every rank.

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

    groups: int

    def __init__(
        self, scheme: Scheme, channels: int, *, groups: int, pixels: int, kind: str = "first", eps: float = 1e-5,
        dtype: Any = np.float64, name: str = "norm",
    ) -> None:
        with agree_on_arguments("GroupNorm", scheme, f"{channels}, groups={groups}, pixels={pixels}"):
            if not (is_count(groups) and is_count(channels, 0)) or channels % groups:
                raise ShapeError(f"GroupNorm: {channels} channels are not {groups} equal groups")
            if not is_count(pixels):
                raise ShapeError(f"GroupNorm: pixels={pixels}: tokens of a sample, a whole number, at least 1")
        super().__init__(scheme, channels, kind=kind, eps=eps, dtype=dtype, name=name)
        self.groups, self.sequence = groups, pixels

    def check_input(self, x: Any) -> None:
        """Raise unless the layer takes x, with whole samples on each rank. Local.

        Parameters
        ----------
        x : object
            The argument of `forward`.

        Raises
        ------
        ShapeError, LayoutError
            If the layer does not take x.
        """
        super().check_input(x)
        check_whole_sequences(self, x)

    def _split_samples(self, x: Any) -> Any:
        return x.reshape(x.shape[0] // self.sequence, self.sequence, x.shape[1])

    async def _average(self, values: Any, x: DistMatrix, batch: MicroBatch) -> Any:
        """Collective: average over each sample's pixels and each group's channels.

        Values are (samples, pixels, channels), means (samples, 1, channels).
        """
        values, members = values.sum(axis=1), _find_groups(x, self.groups)
        sums = x.xp.empty((values.shape[0], self.groups), values.dtype)
        sums[...] = 0
        for group, channels in members:  # a product with a matrix of 0 and 1 would carry a NaN into all groups
            sums[:, group] = values[:, channels].sum(axis=1)
        sums = await self._sum(sums, x, batch)
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
        check_whole_sequences(self, x)
        samples = widen(self._split_samples(x.stored))
        centered = samples - await self._average(samples, x, batch)
        scale = 1 / np.sqrt(await self._average(centered * centered, x, batch) + self.eps)
        normal = (centered * scale).astype(x.dtype, copy=False)
        batch.save(self, normal, scale)
        y = normal.reshape(*x.stored.shape) * self.gain.value.stored
        return like(x, y if self.offset is None else y + self.offset.value.stored)

    async def backward_async(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Compute the gradient with regard to x, and add to those of gain and offset. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            In x's layout.
        """
        normal, scale = batch.saved(self)
        self._learn(dy, normal.reshape(*dy.stored.shape), batch)
        d = self._split_samples(widen(dy.stored) * self.gain.value.stored)
        mean = await self._average(d, dy, batch)
        along = await self._average(d * normal, dy, batch)
        dx = ((d - mean - normal * along) * scale).astype(dy.dtype, copy=False)
        return like(dy, dx.reshape(*dy.stored.shape))


def _find_groups(x: DistMatrix, groups: int) -> list[tuple[int, slice]]:
    """Find the groups of this rank's channels, each with its slice of them."""
    channels: IndexSet = x.indices[1]
    parts = np.unique(channels.indices() // (x.shape[1] // groups), return_index=True, return_counts=True)
    return [(int(group), slice(int(first), int(first + count))) for group, first, count in zip(*parts, strict=True)]
