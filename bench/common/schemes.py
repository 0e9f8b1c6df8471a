"""Every scheme, each on a small grid of its own, or on a job's ranks."""

from collections.abc import Callable
from math import prod
from typing import Any

import pdla
from pdla import nn

Make = Callable[[Any], nn.Scheme]


def _on(shape: tuple[int, ...], axes: tuple[str, ...], scheme: Callable[..., nn.Scheme], **options: Any) -> tuple[int, Make]:
    return prod(shape), lambda comm: scheme(pdla.ProcessGrid(shape, axes, comm), **options)


ROW, SQUARE, CUBE = ("row",), ("row", "col"), ("row", "col", "depth")
SHOWN: dict[str, tuple[int, Make]] = {
    "Serial": _on((1,), ROW, nn.Serial),
    "Megatron1D 4": _on((4,), ROW, nn.Megatron1D),
    "Megatron1D 4, sequence cut": _on((4,), ROW, nn.Megatron1D, sequence_parallel=True),
    "Summa2D 2x2": _on((2, 2), SQUARE, nn.Summa2D),
    "Summa2D 2x2, in panels": _on((2, 2), SQUARE, nn.Summa2D, panel=16),
    "Tesseract 2x2x2": _on((2, 2, 2), CUBE, nn.Tesseract),
    "Tesseract 2x2x2, weights cut": _on((2, 2, 2), CUBE, nn.Tesseract, cut_weights=True),
    "Cube3D 2x2x2": _on((2, 2, 2), CUBE, nn.Cube3D),
    "Tensor3D 2x2x2": _on((2, 2, 2), CUBE, nn.Tensor3D),
    "Tensor3D 2x2x2, 2 shards": _on((2, 2, 2), CUBE, nn.Tensor3D, shards=2),
    "Tensor3D 2x(2x2)": _on((2, 2, 2), ("data", "row", "col"), nn.Tensor3D),
}
AXES: dict[str, tuple[Callable[..., nn.Scheme], tuple[str, ...]]] = {
    "serial": (nn.Serial, ROW), "megatron1d": (nn.Megatron1D, ROW), "summa2d": (nn.Summa2D, SQUARE),
    "tesseract": (nn.Tesseract, CUBE), "cube3d": (nn.Cube3D, CUBE), "tensor3d": (nn.Tensor3D, SQUARE),
}


def make_scheme(name: str, comm: Any) -> nn.Scheme:
    """Collective: a scheme over all ranks of a communicator."""
    scheme, axes = AXES[name]
    return scheme(pdla.ProcessGrid(pdla.balanced_shape(comm.size, len(axes)), axes, comm))
