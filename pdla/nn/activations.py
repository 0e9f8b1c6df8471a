"""Element by element: GeLU, ReLU, Dropout. Nothing is sent, whatever the scheme, and x may lie anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.array.composed import summing
from pdla.errors import ShapeError
from pdla.matrix.core import DistMatrix
from pdla.nn.blocks import like
from pdla.nn.checks import check_number
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, arguments_agreed
from pdla.nn.parameter import Parameter, seeded
from pdla.nn.scheme import Scheme


class GeLU(Layer):
    """x times the normal distribution's integral up to x, by the error function.

    The slope is computed in the forward pass and kept instead of x: the error function takes as long as a linear's product, and
    is not computed again.
    """

    def forward_local(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        return self.biased(x, None, batch)

    def backward_local(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        (slope,) = batch.saved(self)
        return like(dy, dy.stored * slope)

    def biased(self, x: DistMatrix, bias: Parameter | None, batch: MicroBatch) -> DistMatrix:
        """GeLU of x plus the bias of the linear that made x; where there is a bias, x may be overwritten."""
        y, slope = x.xp.gelu(x.stored, batch.saving, None if bias is None else bias.value.stored)
        if batch.saving:
            batch.save(self, slope)
        return like(x, y)

    def gradient_and_sums(self, dy: DistMatrix, batch: MicroBatch) -> tuple[DistMatrix, Any]:
        """The gradient with regard to what `biased` took, and its sums over tokens: this micro-batch's part of the bias's."""
        (slope,) = batch.saved(self)
        dx, sums = dy.xp.product_sums(dy.stored, slope)
        return like(dy, dx), sums


class ReLU(Layer):
    """x where it is positive, else 0; NaN stays NaN. The gradient becomes 0 where x is not positive."""

    def forward_local(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        batch.save(self, x.stored <= 0)
        return like(x, np.maximum(x.stored, x.dtype.type(0)))

    def backward_local(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        (stopped,) = batch.saved(self)
        dx = dy.stored.copy()
        dx[stopped] = 0  # a product with 0 would make NaN of an infinite gradient
        return like(dy, dx)


class Dropout(Layer):
    """In training, each element becomes 0 with the given probability, and the others are multiplied by 1 / (1 - probability).

    What is dropped depends on the seed, the name, the layer's place in others, the number of the training pass and the element's
    global place alone: it is the same on every grid, in every scheme and for any number of micro-batches. Collective to make.
    """

    numbers = ("probability", "seed", "name")

    def __init__(self, scheme: Scheme, probability: float, *, seed: int = 0, name: str = "dropout") -> None:
        with arguments_agreed("Dropout", scheme, f"{probability}, seed={seed}, name={name!r}"):
            check_number("Dropout", "probability", probability)
            if probability >= 1:
                raise ShapeError(f"probability={probability}: from 0 to below 1")
        super().__init__(scheme)
        self.probability, self.seed, self.name = probability, seed, name

    def forward_local(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        if not (batch.training and self.probability):
            batch.save(self, None)
            return x
        key = seeded(self.seed, f"{self.place}{self.name} {batch.context.number}")
        drawn = x.xp.uniform(batch.rows(x), x.indices[1].indices(), key)
        kept = drawn >= self.probability
        batch.save(self, kept)
        return self._scaled(x, kept)

    def backward_local(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        (kept,) = batch.saved(self)
        return dy if kept is None else self._scaled(dy, kept)

    def _scaled(self, x: DistMatrix, kept: Any) -> DistMatrix:
        scale = summing(x.dtype).type(1 / (1 - self.probability))  # in 16 bits it would be rounded, all elements alike, or infinite
        return like(x, (x.stored * kept * scale).astype(x.dtype, copy=False))
