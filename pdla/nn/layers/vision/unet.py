"""The blocks of a residual U-Net. arXiv 2305.13525 (version 1)."""

from __future__ import annotations

from functools import partial
from numbers import Integral
from typing import Any

import numpy as np

from pdla.errors import ShapeError
from pdla.matrix.core import DistMatrix
from pdla.nn.context import MicroBatch
from pdla.nn.layer import Layer, agree_on_arguments
from pdla.nn.layers.activations import ReLU, check_kind
from pdla.nn.layers.block import Block
from pdla.nn.layers.sequential import Sequential
from pdla.nn.layers.vision.conv import Conv2d
from pdla.nn.layers.vision.group_norm import GroupNorm
from pdla.nn.layers.vision.upsample import Upsample
from pdla.nn.scheme import Scheme, is_count


class ResidualBlock(Block):
    """x + conv(act(norm(conv(act(norm(x)))))), a pair of convolutions. Collective to make.

    Each rank must have whole samples.

    Parameters
    ----------
    scheme : Scheme
        How the layer is cut.
    channels : int
        Channels of x and of y.
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
        Prefix of the layers' names.

    Raises
    ------
    ShapeError
        If numbers do not fit together, on every rank.
    LayoutError
        In a pass, on every rank, if the scheme cuts a sample between the layers of a pair.

    Examples
    --------
    >>> def program(comm):
    ...     scheme = pdla.nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
    ...     block = pdla.nn.ResidualBlock(scheme, 4, groups=2, height=4, width=4)
    ...     return block.forward(scheme.shard(np.ones((2 * 16, 4)))).shape
    >>> pdla.run(2, program)
    [(32, 4), (32, 4)]
    """

    channels: int
    inner: Sequential

    def __init__(
        self, scheme: Scheme, channels: int, *, groups: int, height: int, width: int, kernel: int = 3,
        activation: type[Layer] = ReLU, seed: int = 0, dtype: Any = np.float64, name: str = "block",
    ) -> None:
        with agree_on_arguments("ResidualBlock", scheme, f"{channels}, {height} x {width}, kernel={kernel}, seed={seed}"):
            check_parts("ResidualBlock", activation, seed)
            if not is_count(kernel) or kernel % 2 == 0:
                raise ShapeError(f"ResidualBlock adds x to a y of its size: kernel={kernel} must be an odd number")
            if not (is_count(height) and is_count(width)):
                raise ShapeError(f"ResidualBlock of samples of {height} x {width}: whole numbers, at least 1")
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
        self.channels, self.inner = channels, Sequential(scheme, parts)
        super().__init__(scheme, [[self.inner]])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, {self.sequence} pixels) on {self.scheme!r}"


class UNetBlock(Block):
    """A level of a residual U-Net: y = block(x), then y + up(inner(down(y))). Collective to make.

    * down: a pair of convolutions to twice the channels, at half the height and width;
    * inner: the next level where levels > 1, else a ResidualBlock;
    * up: each pixel repeated as 2 x 2, then a pair of convolutions back to the channels.

    Parameters
    ----------
    scheme : Scheme
        How the layer is cut.
    channels : int
        Channels of x and of y.
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
        Prefix of the layers' names.

    Raises
    ------
    ShapeError
        If numbers do not fit together, on every rank.

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
        with agree_on_arguments("UNetBlock", scheme, f"{channels}, {height} x {width}, levels={levels}, seed={seed}"):
            check_parts("UNetBlock", activation, seed)
            if not all(map(is_count, (levels, height, width))) or height % 2 or width % 2:
                raise ShapeError(f"UNetBlock of {levels} levels halves samples of {height} x {width}: give levels >= 1, even sizes")
        high: dict[str, Any] = {"height": height, "width": width}
        low: dict[str, Any] = {"height": height // 2, "width": width // 2}
        same: dict[str, Any] = {"kernel": kernel, "dtype": dtype}
        block: dict[str, Any] = {"groups": groups, "activation": activation, **same}
        self.block: ResidualBlock = ResidualBlock(scheme, channels, seed=seed, name=f"{name} block", **high, **block)
        self.down: Sequential = Sequential(
            scheme, _make_pair(scheme, channels, 2 * channels, stride=2, seed=seed + 2, name=f"{name} down", **high, **same)
        )
        level: Any = partial(UNetBlock, levels=levels - 1) if levels > 1 else ResidualBlock
        self.inner: Layer = level(scheme, 2 * channels, seed=seed + 6, name=f"{name} inner", **low, **block)
        back = _make_pair(scheme, 2 * channels, channels, seed=seed + 4, name=f"{name} up", **high, **same)
        self.up: Sequential = Sequential(scheme, [Upsample(scheme, **low), *back])
        self.channels = channels
        super().__init__(scheme, [[self.down, self.inner, self.up]])

    __repr__ = ResidualBlock.__repr__

    def check_input(self, x: Any) -> None:
        """Raise unless the block's layers take x. Local; `forward` raises on all ranks.

        Parameters
        ----------
        x : object
            The argument of `forward`.

        Raises
        ------
        ShapeError, LayoutError
            If the layer does not take x.
        """
        self.block.check_input(x)

    async def forward_async(self, x: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Compute y + up(inner(down(y))), y = block(x). Collective.

        Parameters
        ----------
        x, batch : DistMatrix, MicroBatch
            As `Layer.forward_async`'s.

        Returns
        -------
        DistMatrix
            The micro-batch's part of y.
        """
        return await super().forward_async(await self.block.forward_async(x, batch), batch)

    async def backward_async(self, dy: DistMatrix, batch: MicroBatch) -> DistMatrix:
        """Compute the gradient with regard to x. Collective.

        Parameters
        ----------
        dy, batch : DistMatrix, MicroBatch
            As `Layer.backward_async`'s.

        Returns
        -------
        DistMatrix
            In x's layout.
        """
        return await self.block.backward_async(await super().backward_async(dy, batch), batch)


def _make_pair(
    scheme: Scheme, inputs: int, outputs: int, *, kernel: int, height: int, width: int, stride: int = 1, seed: int, dtype: Any,
    name: str,
) -> list[Layer]:
    """Make two convolutions: inputs to outputs with the stride, then outputs to outputs."""
    first = Conv2d(
        scheme, inputs, outputs, kernel, height=height, width=width, stride=stride, seed=seed, dtype=dtype, name=f"{name}1"
    )
    second = Conv2d(
        scheme, outputs, outputs, kernel, height=first.height_out, width=first.width_out, kind="second", seed=seed + 1,
        dtype=dtype, name=f"{name}2",
    )
    return [first, second]


def check_parts(kind: str, activation: Any, seed: Any) -> None:
    """ShapeError unless a block's layers take these, before some of the layers are made."""
    check_kind(kind, activation)
    if not isinstance(seed, Integral):
        raise ShapeError(f"{kind}: seed={seed!r}: a whole number, as its convolutions use this seed and the next ones")
