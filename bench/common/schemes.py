"""Training in every scheme, each on a small grid of its own, or in one scheme on a job's ranks; and how far their losses differ."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

import pdla
from bench.common.given import parser
from pdla import nn
from pdla.bench.arguments import positive, to_write
from pdla.bench.leave import write_json

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
DTYPES = ("float64", "float32", "float16", "bfloat16")
AXES: dict[str, tuple[Callable[..., nn.Scheme], tuple[str, ...]]] = {
    "serial": (nn.Serial, ROW), "megatron1d": (nn.Megatron1D, ROW), "summa2d": (nn.Summa2D, SQUARE),
    "tesseract": (nn.Tesseract, CUBE), "cube3d": (nn.Cube3D, CUBE), "tensor3d": (nn.Tensor3D, SQUARE),
}


def fitting(name: str, comm: Any) -> nn.Scheme:
    """Collective: a scheme over all ranks of a communicator."""
    scheme, axes = AXES[name]
    return scheme(pdla.ProcessGrid(pdla.balanced_shape(comm.size, len(axes)), axes, comm))


def compare(about: str, train: Callable[[nn.Scheme, int, str], dict]) -> None:
    """The command line of a training script: train(scheme, steps, dtype) gives "losses" and one more figure."""
    told = parser(about)
    told.add_argument("--steps", type=positive, default=50, help="steps of AdamW (default 50)")
    told.add_argument("--dtype", choices=DTYPES, default="float64", help="dtype of all matrices (default float64)")
    told.add_argument("--scheme", choices=AXES, help="this scheme alone, on the ranks of this job")
    told.add_argument("--json", type=to_write, metavar="FILE", help="write the curves to FILE")
    asked = told.parse_args()
    results: dict[str, dict] = {}
    if asked.scheme:
        scheme = fitting(asked.scheme, pdla.world())
        results[repr(scheme)] = train(scheme, asked.steps, asked.dtype)
        if pdla.world().rank:
            return
    for name, (ranks, make) in SHOWN.items() if not asked.scheme else ():
        results[name] = pdla.run(ranks, lambda comm, make=make: train(make(comm), asked.steps, asked.dtype))[0]
        show(name, results)
    if asked.scheme:
        show(repr(scheme), results)
    if asked.json:
        write_json(asked.json, results)


def show(name: str, results: dict[str, dict]) -> None:
    """Print a line: first and last loss, the figure, and, where Serial has run, the largest relative distance from its losses at a
    step."""
    losses = np.array(results[name]["losses"])
    figure, value = next((key, value) for key, value in results[name].items() if key != "losses")
    line = f"{name:30} loss {losses[0]:.6f} -> {losses[-1]:.6f}, {figure} {value:.4f}"
    if "Serial" in results:
        serial = np.array(results["Serial"]["losses"])
        line += f", from Serial {np.max(np.abs(losses - serial) / np.abs(serial)):.0e}"
    print(line, flush=True)
