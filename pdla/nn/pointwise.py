"""Element by element: GeLU, ReLU, Dropout. Nothing is sent, whatever the scheme."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.array.composed import summing
from pdla.errors import LayoutError, ShapeError
from pdla.grid import one_communicator
from pdla.matrix.core import DistMatrix
from pdla.nn.activation import check_floats, check_number, like
from pdla.nn.layer import Layer, made
from pdla.nn.scheme import Scheme
from pdla.nn.steps import Steps
from pdla.nn.trip import Parameter, Shard, seeded


class Pointwise(Layer):
    """A layer that takes activations of any layout and sends nothing. Subclasses write `_apply`, forward, and `_gradient`, back."""

    units: tuple[int | None, int | None] = (None, None)

    def _takes(self, x: Any) -> None:
        if isinstance(x, DistMatrix):
            one_communicator(x.grid, self.scheme.grid, "the layer's scheme", "x")
        if not isinstance(x, DistMatrix) or x.grid != self.scheme.grid:
            raise ShapeError(f"{self!r} takes a DistMatrix on the scheme's grid, not {x!r}")
        if x.layout.partial:
            raise LayoutError(f"{self!r} of partial sums {x.layout!r}: redistribute to {x.layout.summed!r} first")
        check_floats(self, x.dtype)

    def _apply(self, x: DistMatrix, at: Shard) -> DistMatrix:
        raise NotImplementedError

    def _gradient(self, dy: DistMatrix, at: Shard) -> DistMatrix:
        raise NotImplementedError

    def _forward(self, x: DistMatrix, at: Shard) -> Steps[DistMatrix]:
        yield from ()
        return self._apply(x, at)

    def _backward(self, dy: DistMatrix, at: Shard) -> Steps[DistMatrix]:
        yield from ()
        return self._gradient(dy, at)


class GeLU(Pointwise):
    """x times the normal distribution's integral up to x, by the error function.

    The slope is computed in the forward pass and kept instead of x: the error function takes as long as a linear's product, and
    is not computed again.
    """

    def _apply(self, x: DistMatrix, at: Shard) -> DistMatrix:
        return self.biased(x, None, at)

    def _gradient(self, dy: DistMatrix, at: Shard) -> DistMatrix:
        (slope,) = at.take(self)
        return like(dy, dy.stored * slope)

    def biased(self, x: DistMatrix, bias: Parameter | None, at: Shard) -> DistMatrix:
        """GeLU of x plus the bias of the linear that made x; where there is a bias, x may be overwritten."""
        y, slope = x.xp.gelu(x.stored, at.keeping, None if bias is None else bias.value.stored)
        if at.keeping:
            at.keep(self, slope)
        return like(x, y)

    def gradient_and_sums(self, dy: DistMatrix, at: Shard) -> tuple[DistMatrix, Any]:
        """The gradient with regard to what `biased` took, and its sums over tokens, which are this shard's part of the bias's."""
        (slope,) = at.take(self)
        dx, sums = dy.xp.product_sums(dy.stored, slope)
        return like(dy, dx), sums


class ReLU(Pointwise):
    """x where it is positive, else 0; NaN stays NaN. The gradient becomes 0 where x is not positive."""

    def _apply(self, x: DistMatrix, at: Shard) -> DistMatrix:
        at.keep(self, x.stored <= 0)
        return like(x, np.maximum(x.stored, x.dtype.type(0)))

    def _gradient(self, dy: DistMatrix, at: Shard) -> DistMatrix:
        (stopped,) = at.take(self)
        dx = dy.stored.copy()
        dx[stopped] = 0  # a product with 0 would make NaN of an infinite gradient
        return like(dy, dx)


class Dropout(Pointwise):
    """In training, each element becomes 0 with the given probability, and the others are multiplied by 1 / (1 - probability).

    What is dropped depends on the seed, the name, the layer's place in others, the number of the training pass and the element's
    global place alone: it is the same on every grid, in every scheme and for any number of shards. Collective to make.
    """

    numbers = ("probability", "seed", "name")

    def __init__(self, scheme: Scheme, probability: float, *, seed: int = 0, name: str = "dropout") -> None:
        with made("Dropout", scheme, f"{probability}, seed={seed}, name={name!r}"):
            check_number("Dropout", "probability", probability)
            if probability >= 1:
                raise ShapeError(f"probability={probability}: from 0 to below 1")
        super().__init__(scheme)
        self.probability, self.seed, self.name = probability, seed, name

    def _apply(self, x: DistMatrix, at: Shard) -> DistMatrix:
        if not (at.trip.training and self.probability):
            at.keep(self, None)
            return x
        key = seeded(self.seed, f"{self.place}{self.name} {at.trip.number}")
        drawn = x.xp.uniform(at.rows(x.layout, x.shape[0]), x.indices[1].indices(), key)
        kept = drawn >= self.probability
        at.keep(self, kept)
        return self._scaled(x, kept)

    def _gradient(self, dy: DistMatrix, at: Shard) -> DistMatrix:
        (kept,) = at.take(self)
        return dy if kept is None else self._scaled(dy, kept)

    def _scaled(self, x: DistMatrix, kept: Any) -> DistMatrix:
        scale = summing(x.dtype).type(1 / (1 - self.probability))  # in 16 bits it would be rounded, all elements alike, or infinite
        return like(x, (x.stored * kept * scale).astype(x.dtype, copy=False))
