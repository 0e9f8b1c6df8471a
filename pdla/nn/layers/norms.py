"""Normalisation over features: LayerNorm and RMSNorm, and the class of all norms.

Features may be cut. The ranks that share a token then sum over features, twice forward and once
backward. The first sum is for the mean, the second for the squares of x - mean. (The mean of x^2
less the square of the mean would lose digits.) LayerNorm reads x once for both sums. A rank sums
the squares about the mean of its own features, and corrects the sum for the mean of all features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.array.composed import sum_dtype
from pdla.comm.ledger import tagged
from pdla.layout import axes_of
from pdla.matrix.core import DistMatrix
from pdla.nn.blocks import like
from pdla.nn.checks import check_counts, check_number
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, agree_on_arguments
from pdla.nn.parameter import Parameter
from pdla.nn.scheme import Scheme
from pdla.nn.transfers import Transfer, allreduce
from pdla.nn.weights import make_vector


class Norm(Layer):
    """A norm: gain and offset for each feature, and sums over features. Collective to make."""

    features: int
    eps: float
    name: str

    numbers = ("eps",)
    units = 1, 1

    def __init__(
        self, scheme: Scheme, features: int, *, kind: str = "first", offset: bool = True, eps: float = 1e-5,
        dtype: Any = np.float64, name: str = "norm",
    ) -> None:
        with agree_on_arguments(type(self).__name__, scheme, f"{features}, kind={kind!r}, eps={eps}", offset=offset):
            self.takes = self.gives = cut = scheme.table(kind).X
            check_counts(type(self).__name__, features=features)
            check_number(type(self).__name__, "eps", eps)
        super().__init__(scheme)
        self.features, self.eps, self.name = features, eps, name
        self.widths = features, features
        self.gain: Parameter = make_vector(scheme, features, cut, 1, 1, dtype)
        self.offset: Parameter | None = make_vector(scheme, features, cut, 1, 0, dtype) if offset else None
        self.dtype = self.gain.value.dtype

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.features}) on {self.scheme!r}"

    async def _sum(self, sums: Any, x: DistMatrix, batch: MicroBatch) -> Any:
        """Collective: add up sums in place over the ranks that share x's tokens."""
        with tagged(f"{self.name} sums"):
            return await batch.receive(Transfer(allreduce(sums, x.grid, axes_of(x.layout.cols))))

    def _learn(self, dy: DistMatrix, normal: Any, batch: MicroBatch) -> None:
        """Add to the gradients of gain and offset."""
        along, sums = dy.xp.column_sums(dy.stored, normal)
        with tagged(f"{self.name} gradients"):
            batch.add_gradient(self.gain, dy, along)
            if self.offset is not None:
                batch.add_gradient(self.offset, dy, sums)


class TokenNorm(Norm):
    """A norm of each token's features. `centred`: whether a token's mean is subtracted."""

    centred: bool

    @property
    def _divisor(self) -> int:
        """The number of features, by which sums become means; 1 for no features."""
        return max(self.features, 1)

    def _normalise(self, x: DistMatrix, sums: Any, squares: Any, batch: MicroBatch) -> DistMatrix:
        """Compute y from the sums of each token's features (None: not centred) and of their squares."""
        gain, offset = self.gain.value.stored, None if self.offset is None else self.offset.value.stored
        y, normal, scale = x.xp.normalise(x.stored, sums, squares, self._divisor, self.eps, gain, offset, batch.saving)
        batch.save(self, normal, scale)
        return like(x, y)

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
        self._learn(dy, normal, batch)
        gain, sums = self.gain.value.stored, dy.xp.empty((1 + self.centred, dy.stored.shape[0], 1), sum_dtype(dy.dtype))
        dy.xp.row_sums(dy.stored, normal, gain, sums)
        sums = await self._sum(sums, dy, batch)
        return like(dy, dy.xp.norm_gradient(dy.stored, normal, scale, gain, sums, self._divisor))


class LayerNorm(TokenNorm):
    """(x - mean) / sqrt(variance + eps) * gain + offset, over each token's features.

    Collective to make.

    Parameters
    ----------
    scheme : Scheme
        How the layer is cut.
    features : int
        Features of x and of y.
    kind : "first" or "second", optional
        The place in its pair of the layer that takes y. x has the layout of that layer's input.
    offset : bool, optional
        Whether there is an offset.
    eps : float, optional
        Added to the variance.
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
        local_sums, squares = x.xp.moments(x.stored)
        sums = await self._sum(local_sums.copy(), x, batch)
        width = x.stored.shape[1]
        if width < self.features:  # else this rank has all features
            x.xp.recentre(squares, local_sums, sums, width, self.features)
        squares = await self._sum(squares, x, batch)
        return self._normalise(x, sums, squares, batch)


class RMSNorm(TokenNorm):
    """x / sqrt(mean of x^2 + eps) * gain, over each token's features. Collective to make.

    Parameters
    ----------
    scheme : Scheme
        How the layer is cut.
    features : int
        Features of x and of y.
    kind : "first" or "second", optional
        The place in its pair of the layer that takes y. x has the layout of that layer's input.
    eps : float, optional
        Added to the mean of the squares.
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
        squares = x.xp.empty((1, x.stored.shape[0], 1), sum_dtype(x.dtype))
        x.xp.row_sums(x.stored, x.stored, None, squares)
        squares = await self._sum(squares, x, batch)
        return self._normalise(x, None, squares[0], batch)
