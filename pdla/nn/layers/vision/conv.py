"""Convolution, as a linear layer of the pixels around each pixel. arXiv 2305.13525 (version 1).

An activation is (pixels, channels): a sample's pixels are rows, in order of y, then x, and lie on
one rank wherever they are multiplied. Channels are cut as a linear's features; kernels and samples
never are, so there is no halo. A rank unfolds the pixels that it has gathered before it multiplies,
and backward folds products before they are summed. So what travels is never unfolded, which would
be as many times the words as a kernel has places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from pdla.array.composed import summing
from pdla.errors import ShapeError
from pdla.layout import Layout
from pdla.matrix.core import DistMatrix
from pdla.nn.checks import check_counts
from pdla.nn.layer import agree_on_arguments
from pdla.nn.layers.linear import Linear
from pdla.nn.scheme import LinearLayouts, Scheme, find_sequence, is_count


class Conv2d(Linear):
    """Y = conv(X, W) + b, a linear of the pixels around each pixel. Collective to make.

    X is (samples height width, inputs), Y (samples height' width', outputs), W (inputs kernel
    kernel) x outputs, its rows ordered by input channel, then y, then x: row r of column c is
    element (c, r) of a weight (outputs, inputs, kernel, kernel) reshaped to (outputs, -1).

    Parameters
    ----------
    scheme : Scheme
        How it is cut.
    inputs, outputs : int
        Channels.
    kernel : int
        Its height and width; height' = (height + 2 padding - kernel) // stride + 1, width'
        likewise.
    height, width : int
        Pixels of a sample.
    stride : int, optional
        Pixels from one place of the kernel to the next.
    padding : int, optional
        Pixels of 0 around a sample; by default kernel // 2, by which an odd kernel of stride 1
        keeps height and width.
    kind : "first" or "second", optional
        The layer's place in its pair, which says where X and Y lie.
    bias : bool, optional
        Whether there is b, (1, outputs), which begins as 0.
    seed : int, optional
        Of W, normal with a standard deviation of 1 / sqrt(rows), the same in every scheme.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        By which the ledger records its messages; W depends on it.

    Raises
    ------
    ShapeError
        Where the kernel does not fit into a sample, on every rank.

    Notes
    -----
    Singh et al., arXiv 2305.13525 (version 1). What travels is never unfolded.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     layer = pdla.nn.Conv2d(scheme, 3, 4, 3, height=8, width=8, stride=2)
    ...     return layer.forward(scheme.shard(np.ones((2 * 64, 3)))).shape
    >>> pdla.run(2, program)
    [(32, 4), (32, 4)]
    """

    inputs: int
    kernel: int
    stride: int
    padding: int
    height: int
    width: int
    height_out: int
    width_out: int

    by_panels = False  # panels of the unfolded matrix would travel

    def __init__(
        self, scheme: Scheme, inputs: int, outputs: int, kernel: int, *, height: int, width: int, stride: int = 1,
        padding: int | None = None, kind: str = "first", bias: bool = True, seed: int = 0, dtype: Any = np.float64,
        name: str = "conv",
    ) -> None:
        call = f"{inputs}, {outputs}, {kernel}, {height} x {width}, stride={stride}, padding={padding}"
        with agree_on_arguments("Conv2d", scheme, call):
            check_counts("Conv2d", inputs=inputs, outputs=outputs)
            valid = all(map(is_count, (kernel, stride, height, width))) and (padding is None or is_count(padding, 0))
            pad = padding if padding is not None else kernel // 2 if valid else 0
            if not valid or min(height, width) + 2 * pad < kernel:
                raise ShapeError(
                    f"a kernel of {kernel} x {kernel}, stride {stride}, in samples of {height} x {width} with {pad} around: "
                    "whole numbers, kernel and stride at least 1, and the kernel fits in"
                )
        area = kernel * kernel
        super().__init__(
            scheme, inputs * area, outputs, kind=kind, bias=bias, units=(area, 1), seed=seed, dtype=dtype, name=name
        )
        self.widths, self.units = (inputs, outputs), (1, 1)  # in channels, each of which has `area` rows of W
        self.inputs, self.kernel, self.stride, self.padding = inputs, kernel, stride, pad
        self.height, self.width, self.sequence = height, width, height * width
        self.height_out, self.width_out = ((n + 2 * pad - kernel) // stride + 1 for n in (height, width))
        self.scale: Fraction = Fraction(self.height_out * self.width_out, height * width)
        self.sizes: tuple[tuple[int, int], tuple[int, int]] = (height, width), (self.height_out, self.width_out)
        self._layouts: dict[int, LinearLayouts] = {}  # by the pixels that a cut keeps together

    def __repr__(self) -> str:
        size = f"{self.height} x {self.width} to {self.height_out} x {self.width_out}"
        return f"Conv2d({self.inputs}, {self.n}, {self.kernel}, {size}) on {self.scheme!r}"

    def find_layouts(self, x: DistMatrix) -> LinearLayouts:
        """Give the layouts for an input that lies as x. Local.

        Parameters
        ----------
        x : DistMatrix
            Pixels x channels.

        Returns
        -------
        LinearLayouts
            X and x as pixels x channels, W, w, y and Y as in the unfolded product.
        """
        pixels = max(find_sequence(x.layout), self.sequence)
        if pixels not in self._layouts:
            inner = self.scheme.linear(self.table, pixels, (1, 1))
            outer = self.scheme.linear(self.table, self._count_out(pixels), (self.kernel**2, 1))
            self._layouts[pixels] = replace(outer, X=inner.X, x=inner.x)
        return self._layouts[pixels]

    def _count_out(self, pixels: int) -> int:
        return pixels // self.sequence * self.height_out * self.width_out

    # ------------------------------------------------------------------ this rank's samples and channels

    def _pair_views(self, padded: Any, unfolded: Any) -> Iterator[tuple[Any, Any]]:
        """For each place in the kernel: views of the pixels it meets, and of those in `unfolded`.

        It meets them as the kernel goes over the sample.
        """
        high, wide = (self.stride * (n - 1) + 1 for n in (self.height_out, self.width_out))
        for place in range(self.kernel * self.kernel):
            y, x = divmod(place, self.kernel)
            yield padded[:, y : y + high : self.stride, x : x + wide : self.stride], unfolded[..., place]

    def _pad(self, xp: Any, samples: int, channels: int, dtype: np.dtype) -> tuple[Any, Any]:
        """Samples of zeros with their padding, and a view of them without it."""
        p, h, w = self.padding, self.height, self.width
        padded = xp.empty((samples, h + 2 * p, w + 2 * p, channels), dtype)
        padded[...] = 0
        return padded, padded[:, p : p + h, p : p + w]

    def _unfold(self, x: DistMatrix, layouts: LinearLayouts) -> DistMatrix:
        """The unfolded x.

        It has a row for each output pixel, a column for each channel and place in the kernel.
        """
        rows, channels = x.stored.shape
        samples = rows // self.sequence
        padded, inside = self._pad(x.xp, samples, channels, x.dtype)
        inside[...] = x.stored.reshape(samples, self.height, self.width, channels)
        unfolded = x.xp.empty((samples, self.height_out, self.width_out, channels, self.kernel**2), x.dtype)
        for pixels, place in self._pair_views(padded, unfolded):
            place[...] = pixels
        block = unfolded.reshape(self._count_out(rows), channels * self.kernel**2)
        return DistMatrix(block, (self._count_out(x.shape[0]), self.k), x.grid, Layout(layouts.y.rows, layouts.w.rows))

    def _fold(self, addends: DistMatrix, layouts: LinearLayouts) -> DistMatrix:
        """The reverse: the sum, for each input pixel, over the places in the kernel that met it."""
        rows, channels = addends.stored.shape[0], addends.stored.shape[1] // self.kernel**2
        pixels_out = self.height_out * self.width_out
        samples = rows // pixels_out
        padded, inside = self._pad(addends.xp, samples, channels, summing(addends.dtype))
        unfolded = addends.stored.reshape(samples, self.height_out, self.width_out, channels, self.kernel**2)
        for pixels, place in self._pair_views(padded, unfolded):
            pixels[...] += place
        block = addends.xp.empty(inside.shape, addends.dtype)  # contiguous, since it travels
        block[...] = inside
        shape = addends.shape[0] // pixels_out * self.sequence, self.inputs
        return DistMatrix(block.reshape(samples * self.sequence, channels), shape, addends.grid, layouts.dx)
