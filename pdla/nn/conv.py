"""Convolution, as a linear layer of the pixels around each pixel; and the blocks of a residual U-Net. arXiv 2305.13525 (version 1).

An activation is (pixels, channels): a sample's pixels are rows, in order of y, then x, and lie on one rank wherever they are
multiplied. Channels are cut as a linear's features; kernels and samples never are, so there is no halo. A rank unfolds the pixels
that it has gathered before it multiplies, and backward folds products before they are summed. So what travels is never unfolded,
which would be as many times the words as a kernel has places.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from inspect import signature
from numbers import Integral
from typing import Any

import numpy as np

from pdla.array.composed import summing, widened
from pdla.errors import ShapeError
from pdla.layout import Layout
from pdla.matrix.core import DistMatrix
from pdla.nn.activations import ReLU
from pdla.nn.blocks import like
from pdla.nn.checks import check_counts, check_whole
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, arguments_agreed
from pdla.nn.linear import Linear
from pdla.nn.norms import GroupNorm
from pdla.nn.scheme import LinearLayouts, Scheme, is_count, sequence_of
from pdla.nn.transformer import Sequential


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

    by_panels = False  # panels of the unfolded matrix would travel

    def __init__(
        self, scheme: Scheme, inputs: int, outputs: int, kernel: int, *, height: int, width: int, stride: int = 1,
        padding: int | None = None, kind: str = "first", bias: bool = True, seed: int = 0, dtype: Any = np.float64,
        name: str = "conv",
    ) -> None:
        call = f"{inputs}, {outputs}, {kernel}, {height} x {width}, stride={stride}, padding={padding}"
        with arguments_agreed("Conv2d", scheme, call):
            check_counts("Conv2d", inputs=inputs, outputs=outputs)
            whole = all(map(is_count, (kernel, stride, height, width))) and (padding is None or is_count(padding, 0))
            around = padding if padding is not None else kernel // 2 if whole else 0
            if not whole or min(height, width) + 2 * around < kernel:
                raise ShapeError(
                    f"a kernel of {kernel} x {kernel}, stride {stride}, in samples of {height} x {width} with {around} around: "
                    "whole numbers, kernel and stride at least 1, and the kernel fits in"
                )
        area = kernel * kernel
        super().__init__(
            scheme, inputs * area, outputs, kind=kind, bias=bias, units=(area, 1), seed=seed, dtype=dtype, name=name
        )
        self.widths, self.units = (inputs, outputs), (1, 1)  # in channels, each of which has `area` rows of W
        self.inputs, self.kernel, self.stride, self.padding = inputs, kernel, stride, around
        self.height, self.width, self.sequence = height, width, height * width
        self.height_out, self.width_out = ((n + 2 * around - kernel) // stride + 1 for n in (height, width))
        self.scale = Fraction(self.height_out * self.width_out, height * width)
        self.sizes = (height, width), (self.height_out, self.width_out)
        self._layouts: dict[int, LinearLayouts] = {}  # by the pixels that a cut keeps together

    def __repr__(self) -> str:
        size = f"{self.height} x {self.width} to {self.height_out} x {self.width_out}"
        return f"Conv2d({self.inputs}, {self.n}, {self.kernel}, {size}) on {self.scheme!r}"

    def layouts(self, x: DistMatrix) -> LinearLayouts:
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
        pixels = max(sequence_of(x.layout), self.sequence)
        if pixels not in self._layouts:
            inner = self.scheme.linear(self.table, pixels, (1, 1))
            outer = self.scheme.linear(self.table, self._pixels_out(pixels), (self.kernel**2, 1))
            self._layouts[pixels] = replace(outer, X=inner.X, x=inner.x)
        return self._layouts[pixels]

    def _pixels_out(self, pixels: int) -> int:
        return pixels // self.sequence * self.height_out * self.width_out

    # ------------------------------------------------------------------ this rank's samples and channels

    def _views(self, around: Any, unfolded: Any):
        """For each place in the kernel: views of the pixels it meets, and of those in `unfolded`.

        It meets them as the kernel goes over the sample.
        """
        high, wide = (self.stride * (n - 1) + 1 for n in (self.height_out, self.width_out))
        for place in range(self.kernel * self.kernel):
            y, x = divmod(place, self.kernel)
            yield around[:, y : y + high : self.stride, x : x + wide : self.stride], unfolded[..., place]

    def _around(self, xp: Any, samples: int, channels: int, dtype: np.dtype) -> tuple[Any, Any]:
        """Samples of zeros with their padding, and a view of them without it."""
        p, h, w = self.padding, self.height, self.width
        around = xp.empty((samples, h + 2 * p, w + 2 * p, channels), dtype)
        around[...] = 0
        return around, around[:, p : p + h, p : p + w]

    def _unfolded(self, x: DistMatrix, layouts: LinearLayouts) -> DistMatrix:
        """The unfolded x.

        It has a row for each output pixel, a column for each channel and place in the kernel.
        """
        rows, channels = x.stored.shape
        samples = rows // self.sequence
        around, inside = self._around(x.xp, samples, channels, x.dtype)
        inside[...] = x.stored.reshape(samples, self.height, self.width, channels)
        unfolded = x.xp.empty((samples, self.height_out, self.width_out, channels, self.kernel**2), x.dtype)
        for pixels, place in self._views(around, unfolded):
            place[...] = pixels
        block = unfolded.reshape(self._pixels_out(rows), channels * self.kernel**2)
        return DistMatrix(block, (self._pixels_out(x.shape[0]), self.k), x.grid, Layout(layouts.y.rows, layouts.w.rows))

    def _folded(self, addends: DistMatrix, layouts: LinearLayouts) -> DistMatrix:
        """The reverse: the sum, for each input pixel, over the places in the kernel that met it."""
        rows, channels = addends.stored.shape[0], addends.stored.shape[1] // self.kernel**2
        pixels_out = self.height_out * self.width_out
        samples = rows // pixels_out
        around, inside = self._around(addends.xp, samples, channels, summing(addends.dtype))
        unfolded = addends.stored.reshape(samples, self.height_out, self.width_out, channels, self.kernel**2)
        for pixels, place in self._views(around, unfolded):
            pixels[...] += place
        block = addends.xp.empty(inside.shape, addends.dtype)  # contiguous, since it travels
        block[...] = inside
        shape = addends.shape[0] // pixels_out * self.sequence, self.inputs
        return DistMatrix(block.reshape(samples * self.sequence, channels), shape, addends.grid, layouts.dx)


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
        For numbers that are not whole or below 1, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     layer = pdla.nn.Upsample(scheme, height=1, width=2)
    ...     return layer.forward(scheme.shard([[1.0], [2.0]])).gather().ravel().tolist()
    >>> pdla.run(2, program)[0]
    [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]
    """

    def __init__(self, scheme: Scheme, *, height: int, width: int, factor: int = 2) -> None:
        with arguments_agreed("Upsample", scheme, f"{height} x {width}, by {factor}"):
            if not all(map(is_count, (height, width, factor))):
                raise ShapeError(f"Upsample of {height} x {width} by {factor}: height, width and factor are whole, at least 1")
        super().__init__(scheme)
        self.height, self.width, self.factor, self.sequence = height, width, factor, height * width
        self.scale, self.takes, self.gives = Fraction(factor**2), scheme.first.X, scheme.first.X
        self.units, self.sizes = (1, 1), ((height, width), (factor * height, factor * width))

    def __repr__(self) -> str:
        return f"Upsample({self.height} x {self.width}, by {self.factor}) on {self.scheme!r}"

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
        check_whole(self, x, self._given(x))

    def _given(self, x: DistMatrix) -> Layout:
        return self.scheme.residual(self.factor**2 * max(sequence_of(x.layout), self.sequence))

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
        layout = self._given(x)
        check_whole(self, x, layout)
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
            Laid out as x.
        """
        f, h, w, area = self.factor, self.height, self.width, self.factor**2
        rows, channels = dy.stored.shape[0] // area, dy.stored.shape[1]
        block = widened(dy.stored.reshape(rows // self.sequence, h, f, w, f, channels)).sum(axis=4).sum(axis=2)
        layout = self.scheme.residual(max(sequence_of(dy.layout) // area, self.sequence))
        block = block.reshape(rows, channels).astype(dy.dtype, copy=False)
        return DistMatrix(block, (dy.shape[0] // area, dy.shape[1]), dy.grid, layout)


class _Block(Layer):
    """A layer that gives as many pixels and channels as it takes, laid out alike."""

    units = 1, 1

    def __init__(self, scheme: Scheme, channels: int, height: int, width: int) -> None:
        super().__init__(scheme)
        self.channels, self.sequence, self.widths = channels, height * width, (channels, channels)
        self.sizes = (height, width), (height, width)
        self.takes = self.gives = scheme.first.X

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, {self.sequence} pixels) on {self.scheme!r}"


class ResidualBlock(_Block):
    """x + conv(act(norm(conv(act(norm(x)))))), a pair of convolutions. Collective to make.

    Samples must lie whole on the ranks.

    Parameters
    ----------
    scheme : Scheme
        How it is cut.
    channels : int
        Of x and of y.
    groups : int
        GroupNorm's groups of channels.
    height, width : int
        Pixels of a sample.
    kernel : int, optional
        An odd number.
    activation : type of Layer, optional
        The layer between norm and convolution, `nn.ReLU` or `nn.GeLU`.
    seed : int, optional
        Of the weights.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        Begins the names of the layers.

    Raises
    ------
    ShapeError
        For numbers that do not fit, on every rank.
    LayoutError
        By a pass, on every rank, where the scheme cuts a sample between the layers of a pair.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     block = pdla.nn.ResidualBlock(scheme, 4, groups=2, height=4, width=4)
    ...     return block.forward(scheme.shard(np.ones((2 * 16, 4)))).shape
    >>> pdla.run(2, program)
    [(32, 4), (32, 4)]
    """

    def __init__(
        self, scheme: Scheme, channels: int, *, groups: int, height: int, width: int, kernel: int = 3,
        activation: type[Layer] = ReLU, seed: int = 0, dtype: Any = np.float64, name: str = "block",
    ) -> None:
        with arguments_agreed("ResidualBlock", scheme, f"{channels}, {height} x {width}, kernel={kernel}, seed={seed}"):
            check_parts("ResidualBlock", activation, seed)
            if not is_count(kernel) or kernel % 2 == 0:
                raise ShapeError(f"ResidualBlock adds what it takes in to what comes out: kernel={kernel} must be an odd number")
            if not (is_count(height) and is_count(width)):
                raise ShapeError(f"ResidualBlock of samples of {height} x {width}: whole numbers, at least 1")
        super().__init__(scheme, channels, height, width)
        parts: list[Layer] = []
        for i, kind in enumerate(("first", "second")):
            norm = GroupNorm(
                scheme, channels, groups=groups, pixels=height * width, kind=kind, dtype=dtype, name=f"{name} norm{i + 1}"
            )
            conv = Conv2d(
                scheme, channels, channels, kernel, height=height, width=width, kind=kind, seed=seed + i, dtype=dtype,
                name=f"{name} conv{i + 1}",
            )
            parts += [norm, activation(scheme), conv]
        self.inner = Sequential(scheme, parts)

    def check_input(self, x: Any) -> None:
        """Raise unless the block's layers take x. Local: all ranks are told.

        Parameters
        ----------
        x : object
            What `forward` was given.

        Raises
        ------
        ShapeError, LayoutError
            Where the layer does not take it.
        """
        self.inner.check_input(x)

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give x + inner(x). Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        y = await self.inner.forward_async(x, batch)
        return like(x, x.stored + y.stored)

    async def backward_async(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give the gradient with regard to x. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            Laid out as x.
        """
        dx = await self.inner.backward_async(dy, batch)
        return like(dy, dy.stored + dx.stored)


class UNetBlock(_Block):
    """A level of a residual U-Net: y = block(x), then y + up(inner(down(y))). Collective to make.

    * down: a pair of convolutions to twice the channels, at half the height and width;
    * inner: the next level where levels > 1, else a ResidualBlock;
    * up: each pixel repeated as 2 x 2, then a pair of convolutions back to the channels.

    Parameters
    ----------
    scheme : Scheme
        How it is cut.
    channels : int
        Of x and of y.
    groups : int
        GroupNorm's groups of channels.
    height, width : int
        Pixels of a sample, even numbers.
    levels : int, optional
        How often height and width are halved.
    kernel : int, optional
        An odd number.
    activation : type of Layer, optional
        The layer between norm and convolution, `nn.ReLU` or `nn.GeLU`.
    seed : int, optional
        Of the weights.
    dtype : dtype-like, optional
        Of real floats.
    name : str, optional
        Begins the names of the layers.

    Raises
    ------
    ShapeError
        For numbers that do not fit, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     block = pdla.nn.UNetBlock(scheme, 2, groups=1, height=4, width=4)
    ...     return block.forward(scheme.shard(np.ones((16, 2)))).shape
    >>> pdla.run(2, program)
    [(16, 2), (16, 2)]
    """

    def __init__(
        self, scheme: Scheme, channels: int, *, groups: int, height: int, width: int, levels: int = 1, kernel: int = 3,
        activation: type[Layer] = ReLU, seed: int = 0, dtype: Any = np.float64, name: str = "unet",
    ) -> None:
        with arguments_agreed("UNetBlock", scheme, f"{channels}, {height} x {width}, levels={levels}, seed={seed}"):
            check_parts("UNetBlock", activation, seed)
            if not all(map(is_count, (levels, height, width))) or height % 2 or width % 2:
                raise ShapeError(f"UNetBlock of {levels} levels halves samples of {height} x {width}: give levels >= 1, even sizes")
        super().__init__(scheme, channels, height, width)
        high: dict[str, Any] = {"height": height, "width": width}
        low: dict[str, Any] = {"height": height // 2, "width": width // 2}
        same: dict[str, Any] = {"kernel": kernel, "dtype": dtype}
        block: dict[str, Any] = {"groups": groups, "activation": activation, **same}
        self.block = ResidualBlock(scheme, channels, seed=seed, name=f"{name} block", **high, **block)
        self.down = Sequential(
            scheme, _pair(scheme, channels, 2 * channels, stride=2, seed=seed + 2, name=f"{name} down", **high, **same)
        )
        level: Any = partial(UNetBlock, levels=levels - 1) if levels > 1 else ResidualBlock
        self.inner: Layer = level(scheme, 2 * channels, seed=seed + 6, name=f"{name} inner", **low, **block)
        back = _pair(scheme, 2 * channels, channels, seed=seed + 4, name=f"{name} up", **high, **same)
        self.up = Sequential(scheme, [Upsample(scheme, **low), *back])

    def check_input(self, x: Any) -> None:
        """Raise unless the block's layers take x. Local: all ranks are told.

        Parameters
        ----------
        x : object
            What `forward` was given.

        Raises
        ------
        ShapeError, LayoutError
            Where the layer does not take it.
        """
        self.block.check_input(x)

    @property
    def below(self) -> tuple[Layer, ...]:
        """The layers on the way to half the height and width, there, and back, in order."""
        return self.down, self.inner, self.up

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give y + up(inner(down(y))), y = block(x). Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        high = low = await self.block.forward_async(x, batch)
        for layer in self.below:
            low = await layer.forward_async(low, batch)
        return like(high, high.stored + low.stored)

    async def backward_async(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Give the gradient with regard to x. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            Laid out as x.
        """
        low = dy
        for layer in reversed(self.below):
            low = await layer.backward_async(low, batch)
        return await self.block.backward_async(like(dy, dy.stored + low.stored), batch)


def _pair(
    scheme: Scheme, inputs: int, outputs: int, *, kernel: int, height: int, width: int, stride: int = 1, seed: int, dtype: Any,
    name: str,
) -> list[Layer]:
    """Two convolutions: the first from inputs to outputs, with the stride; the second from outputs to outputs."""
    first = Conv2d(
        scheme, inputs, outputs, kernel, height=height, width=width, stride=stride, seed=seed, dtype=dtype, name=f"{name}1"
    )
    second = Conv2d(
        scheme, outputs, outputs, kernel, height=first.height_out, width=first.width_out, kind="second", seed=seed + 1,
        dtype=dtype, name=f"{name}2",
    )
    return [first, second]


# ---------------------------------------------------------------------------------------------- checks


def check_parts(kind: str, activation: Any, seed: Any) -> None:
    """ShapeError unless these are fit for a block's layers, some of which would have been made before the fault showed."""
    try:
        signature(activation).bind(None)
    except (TypeError, ValueError) as error:
        taken = "a kind of layer, nn.ReLU or nn.GeLU, which is made of a scheme alone"
        raise ShapeError(f"{kind}: activation={activation!r}: {error}; give {taken}") from None
    if not isinstance(seed, Integral):
        raise ShapeError(f"{kind}: seed={seed!r}: a whole number, as its convolutions have this one and those after it")
