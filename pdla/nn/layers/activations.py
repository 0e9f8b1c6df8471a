"""Layers that work element by element and send nothing: GeLU, ReLU, Dropout. x has any layout."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np

from pdla.array.composed import sum_dtype
from pdla.errors import ShapeError, suggest
from pdla.matrix.core import DistMatrix
from pdla.nn.blocks import like
from pdla.nn.checks import check_number
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, agree_on_arguments
from pdla.nn.parameter import Parameter, derive_seed
from pdla.nn.scheme import Scheme


class GeLU(Layer):
    """x times the normal distribution's integral up to x, by the error function.

    Parameters
    ----------
    scheme : Scheme
        Any; nothing is sent.

    Notes
    -----
    The forward pass computes the slope, too, and saves it instead of x. The error function takes as
    long as a linear's product, so backward does not compute it again.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm))
    ...     y = pdla.nn.GeLU(scheme).forward(scheme.shard(np.eye(2)))
    ...     return y.gather().round(3).tolist()
    >>> pdla.run(2, program)[0]
    [[0.841, 0.0], [0.0, 0.841]]
    """

    def forward_local(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Compute GeLU of x, and save its slope. Local.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_local`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        return self.apply_with_bias(x, None, batch)

    def backward_local(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Multiply dy by the slope. Local.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_local`'s.

        Returns
        -------
        DistMatrix
            In x's layout.
        """
        (slope,) = batch.saved(self)
        return like(dy, dy.stored * slope)

    def apply_with_bias(self, x: DistMatrix, bias: Parameter | None, batch: MicroBatch) -> DistMatrix:
        """Compute GeLU of x plus the bias of the linear that made x. Local.

        Parameters
        ----------
        x : DistMatrix
            Tokens x features; with a bias, x may be overwritten.
        bias : Parameter or None
            (1, features).
        batch : MicroBatch
            Saves the slope.

        Returns
        -------
        DistMatrix
            In x's layout.
        """
        y, slope = x.xp.gelu(x.stored, batch.saving, None if bias is None else bias.value.stored)
        if batch.saving:
            batch.save(self, slope)
        return like(x, y)

    def compute_gradient_and_sums(self, dy: DistMatrix, batch: MicroBatch) -> tuple[DistMatrix, Any]:
        """Compute the gradient with regard to x plus bias, and its sums over tokens. Local.

        Parameters
        ----------
        dy : DistMatrix
            The gradient with regard to y.
        batch : MicroBatch
            The argument of `apply_with_bias`.

        Returns
        -------
        dx : DistMatrix
            In dy's layout.
        sums : array
            (1, columns of dx's block): this micro-batch's part of the bias's gradient.
        """
        (slope,) = batch.saved(self)
        dx, sums = dy.xp.product_sums(dy.stored, slope)
        return like(dy, dx), sums


class ReLU(Layer):
    """x where x is positive, else 0; NaN for NaN.

    The gradient becomes 0 where x is not positive.

    Parameters
    ----------
    scheme : Scheme
        Any; nothing is sent.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm))
    ...     y = pdla.nn.ReLU(scheme).forward(scheme.shard([[-1.0, 2.0]]))
    ...     return y.gather().tolist()
    >>> pdla.run(2, program)[0]
    [[0.0, 2.0]]
    """

    def forward_local(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Compute x where x is positive, else 0. Local.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_local`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        batch.save(self, x.stored <= 0)
        return like(x, np.maximum(x.stored, x.dtype.type(0)))

    def backward_local(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Compute dy where x is positive, else 0. Local.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_local`'s.

        Returns
        -------
        DistMatrix
            In x's layout.
        """
        (negative,) = batch.saved(self)
        dx = dy.stored.copy()
        dx[negative] = 0  # a product with 0 would make NaN of an infinite gradient
        return like(dy, dx)


class Dropout(Layer):
    """In training, elements become 0 at random; the others grow. Collective to make.

    Parameters
    ----------
    scheme : Scheme
        Any; nothing is sent.
    probability : float
        The probability, below 1, with which an element becomes 0. Other elements are multiplied by
        1 / (1 - probability).
    seed, name : int, str, optional
        The mask depends on seed, name, the layer's `place`, the number of the training pass and the
        element's global place alone. The same elements are dropped on every grid, in every scheme
        and for any number of micro-batches.

    Raises
    ------
    ShapeError
        If the probability is out of range, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm))
    ...     y = pdla.nn.Dropout(scheme, 0.5).forward(scheme.shard(np.ones((8, 8)))).gather()
    ...     return np.unique(y).tolist()
    >>> pdla.run(2, program)[0]
    [0.0, 2.0]
    """

    probability: float
    seed: int
    name: str

    numbers = ("probability", "seed", "name")

    def __init__(self, scheme: Scheme, probability: float, *, seed: int = 0, name: str = "dropout") -> None:
        with agree_on_arguments("Dropout", scheme, f"{probability}, seed={seed}, name={name!r}"):
            check_number("Dropout", "probability", probability)
            if probability >= 1:
                raise ShapeError(f"probability={probability}: from 0 to below 1")
        super().__init__(scheme)
        self.probability, self.seed, self.name = probability, seed, name

    def forward_local(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Drop elements of x, in training. Local.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_local`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        if not (batch.training and self.probability):
            batch.save(self, None)
            return x
        key = derive_seed(self.seed, f"{self.place}{self.name} {batch.context.number}")
        drawn = x.xp.uniform(batch.rows(x), x.indices[1].indices(), key)
        kept = drawn >= self.probability
        batch.save(self, kept)
        return self._scale(x, kept)

    def backward_local(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Set the dropped elements' gradients to 0. Local.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_local`'s.

        Returns
        -------
        DistMatrix
            In x's layout.
        """
        (kept,) = batch.saved(self)
        return dy if kept is None else self._scale(dy, kept)

    def _scale(self, x: DistMatrix, kept: Any) -> DistMatrix:
        scale = sum_dtype(x.dtype).type(1 / (1 - self.probability))  # in 16 bits the scale would be rounded or infinite
        return like(x, (x.stored * kept * scale).astype(x.dtype, copy=False))


def check_kind(kind: str, activation: Any) -> None:
    """ShapeError unless `activation` is a class of layer that is made of a scheme alone."""
    try:
        signature(activation).bind(None)
    except (TypeError, ValueError) as error:
        meant = suggest(activation, ("ReLU", "GeLU"))
        expected = "a class of layer that is made of a scheme alone, as nn.ReLU or nn.GeLU"
        raise ShapeError(f"{kind}: activation={activation!r}: {error}; give {expected}{meant}") from None
