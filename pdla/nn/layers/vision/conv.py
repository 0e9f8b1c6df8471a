"""Convolution, as a linear layer of the pixels around each pixel. arXiv 2305.13525 (version 1).

An activation is (pixels, channels). A sample's pixels are rows, ordered by y, then x; a rank that
multiplies has all of them. Channels are cut as a linear's features. Kernels and samples are never
cut, so there is no halo.

Forward gathers pixels before it unfolds them, and backward folds products before ranks sum them.
Unfolded matrices never travel: they would take kernel^2 times the words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from pdla.array.composed import sum_dtype
from pdla.errors import ShapeError
from pdla.layout import Layout
from pdla.matrix.core import DistMatrix
from pdla.nn.checks import check_counts
from pdla.nn.layer import agree_on_arguments
from pdla.nn.layers.linear import Linear
from pdla.nn.scheme import LinearLayouts, Scheme, find_sequence, is_count


class Conv2d(Linear):
    """Y = conv(X, W) + b, a linear of the pixels around each pixel. Collective to make.

    X is (samples height width, inputs), Y (samples height' width', outputs). W is (inputs kernel
    kernel) x outputs, its rows ordered by input channel, then y, then x. W is the transpose of a
    weight (outputs, inputs, kernel, kernel) reshaped to (outputs, -1).

    Parameters
    ----------
    scheme : Scheme
        How the layer is cut.
    inputs, outputs : int
        Channels of X and of Y.
    kernel : int
        The kernel's height and width. height' = (height + 2 padding - kernel) // stride + 1, width'
        likewise.
    height, width : int
        Pixels of a sample.
    stride : int, optional
        Pixels from one place of the kernel to the next.
    padding : int, optional
        Pixels of 0 around a sample. The default, kernel // 2, keeps height and width for an odd
        kernel of stride 1.
    kind : "first" or "second", optional
        The layer's place in its pair, which determines the layouts of X and Y.
    bias : bool, optional
        Whether there is b, (1, outputs), at first 0.
    seed : int, optional
        The seed of W, which is normal with standard deviation 1 / sqrt(rows), the same in every
        scheme.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        The ledger's name for its messages; W depends on it.

    Raises
    ------
    ShapeError
        If the kernel does not fit into a sample, on every rank.

    Notes
    -----
    Singh et al., arXiv 2305.13525 (version 1). Unfolded matrices never travel.

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
                    f"a kernel of {kernel} x {kernel}, stride {stride}, in samples of {height} x {width} with padding {pad}: "
                    "give whole numbers, kernel and stride at least 1, and a kernel that fits in"
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
        """Find the layouts for an input in x's layout. Local.

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
        """Yield, for each place in the kernel, views of its pixels in `padded` and in `unfolded`."""
        high, wide = (self.stride * (n - 1) + 1 for n in (self.height_out, self.width_out))
        for place in range(self.kernel * self.kernel):
            y, x = divmod(place, self.kernel)
            yield padded[:, y : y + high : self.stride, x : x + wide : self.stride], unfolded[..., place]

    def _pad(self, xp: Any, samples: int, channels: int, dtype: np.dtype) -> tuple[Any, Any]:
        """Allocate samples of zeros with their padding; return them and a view without padding."""
        p, h, w = self.padding, self.height, self.width
        padded = xp.empty((samples, h + 2 * p, w + 2 * p, channels), dtype)
        padded[...] = 0
        return padded, padded[:, p : p + h, p : p + w]

    def _unfold(self, x: DistMatrix, layouts: LinearLayouts) -> DistMatrix:
        """Unfold x: a row for each output pixel, a column for each channel and place in the kernel."""
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
        """Fold addends: for each input pixel, sum over the places in the kernel that read it."""
        rows, channels = addends.stored.shape[0], addends.stored.shape[1] // self.kernel**2
        pixels_out = self.height_out * self.width_out
        samples = rows // pixels_out
        padded, inside = self._pad(addends.xp, samples, channels, sum_dtype(addends.dtype))
        unfolded = addends.stored.reshape(samples, self.height_out, self.width_out, channels, self.kernel**2)
        for pixels, place in self._pair_views(padded, unfolded):
            pixels[...] += place
        block = addends.xp.empty(inside.shape, addends.dtype)  # contiguous, since the block travels
        block[...] = inside
        shape = addends.shape[0] // pixels_out * self.sequence, self.inputs
        return DistMatrix(block.reshape(samples * self.sequence, channels), shape, addends.grid, layouts.dx)
