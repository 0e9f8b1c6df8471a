"""Upsampling: each pixel is repeated in height and width."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from pdla.array.composed import widen
from pdla.errors import LayoutError, ShapeError
from pdla.layout import Layout
from pdla.matrix.core import DistMatrix
from pdla.nn.checks import check_whole_sequences, count_tokens
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, agree_on_arguments
from pdla.nn.scheme import Scheme, find_sequence, is_count


class Upsample(Layer):
    """Each pixel repeated as factor x factor pixels, between pairs of layers. Collective to make.

    Parameters
    ----------
    scheme : Scheme
        Any; nothing is sent.
    height, width : int
        Pixels of a sample of x.
    factor : int, optional
        How often a pixel is repeated, in height and in width.

    Raises
    ------
    ShapeError
        If a number is not whole or below 1, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     layer = pdla.nn.Upsample(scheme, height=1, width=2)
    ...     return layer.forward(scheme.shard([[1.0], [2.0]])).gather().ravel().tolist()
    >>> pdla.run(2, program)[0]
    [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]
    """

    height: int
    width: int
    factor: int
    scale: Fraction
    sizes: tuple[tuple[int, int], tuple[int, int]]

    def __init__(self, scheme: Scheme, *, height: int, width: int, factor: int = 2) -> None:
        with agree_on_arguments("Upsample", scheme, f"{height} x {width}, by {factor}"):
            if not all(map(is_count, (height, width, factor))):
                raise ShapeError(f"Upsample of {height} x {width} by {factor}: height, width and factor are whole, at least 1")
        super().__init__(scheme)
        self.height, self.width, self.factor, self.sequence = height, width, factor, height * width
        self.scale, self.takes, self.gives = Fraction(factor**2), scheme.first.X, scheme.first.X
        self.units, self.sizes = (1, 1), ((height, width), (factor * height, factor * width))

    def __repr__(self) -> str:
        return f"Upsample({self.height} x {self.width}, by {self.factor}) on {self.scheme!r}"

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
        self._lay_out(x)

    def _lay_out(self, x: DistMatrix) -> Layout:
        """Find the layout of y.

        LayoutError unless each rank holds whole samples of x, from which it makes all its tokens of
        y.
        """
        check_whole_sequences(self, x)
        area, layout = self.factor**2, self.scheme.residual(self.factor**2 * max(find_sequence(x.layout), self.sequence))
        counts = [area * tokens for tokens in count_tokens(x.shape[0], x.layout, x.grid)]
        if counts != count_tokens(area * x.shape[0], layout, x.grid):
            raise LayoutError(
                f"{self!r} makes {area} tokens of each without a message, so ranks must hold equally many of x's {x.shape[0]} "
                f"tokens; x has {x.layout!r}"
            )
        return layout

    def forward_local(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Repeat the pixels of x. Local.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_local`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        layout = self._lay_out(x)
        f, h, w, area = self.factor, self.height, self.width, self.factor**2
        (rows, channels), samples = x.stored.shape, x.stored.shape[0] // self.sequence
        block = x.xp.empty((samples, h, f, w, f, channels), x.dtype)
        block[...] = x.stored.reshape(samples, h, 1, w, 1, channels)
        return DistMatrix(block.reshape(rows * area, channels), (x.shape[0] * area, x.shape[1]), x.grid, layout)

    def backward_local(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Sum dy over each pixel's repetitions. Local.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_local`'s.

        Returns
        -------
        DistMatrix
            In x's layout.
        """
        f, h, w, area = self.factor, self.height, self.width, self.factor**2
        rows, channels = dy.stored.shape[0] // area, dy.stored.shape[1]
        block = widen(dy.stored.reshape(rows // self.sequence, h, f, w, f, channels)).sum(axis=4).sum(axis=2)
        layout = self.scheme.residual(max(find_sequence(dy.layout) // area, self.sequence))
        block = block.reshape(rows, channels).astype(dy.dtype, copy=False)
        return DistMatrix(block, (dy.shape[0] // area, dy.shape[1]), dy.grid, layout)
