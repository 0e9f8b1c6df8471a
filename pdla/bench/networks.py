"""Which scheme, on which grid: a transformer's training step on a described machine, by dry runs of its layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any

import numpy as np

import pdla
from pdla import nn
from pdla.comm.ledger import Ledger
from pdla.model.machine import Machine


@dataclass(frozen=True)
class Net:
    """A transformer to train: its layers' sizes, and the sequences of a step."""

    hidden: int
    heads: int
    sequence: int
    batch: int
    layers: int
    dtype: str = "float32"


@dataclass(frozen=True)
class Choice:
    """A scheme on a grid."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    options: tuple[tuple[str, Any], ...] = ()

    def scheme(self, comm: Any) -> nn.Scheme:
        return getattr(nn, self.name)(pdla.ProcessGrid(self.shape, self.axes, comm), **dict(self.options))

    def __str__(self) -> str:
        grid = " ".join(f"{axis}={n}" for axis, n in zip(self.axes, self.shape, strict=True) if n > 1) or "1 rank"
        return f"{self.name} {grid}" + "".join(f", {key}={value}" for key, value in self.options)


@dataclass(frozen=True)
class Step:
    """What a step costs the first rank: seconds, of them computing; bytes received and kept, bytes of parameters."""

    choice: Choice
    seconds: float
    computing: float
    received: int
    parameters: int
    kept: int


def choices(ranks: int, net: Net) -> Iterator[Choice]:
    """Every scheme on every grid of all ranks that cuts no more heads and sequences than there are."""
    for data in _divisors(ranks):
        rest = ranks // data
        if data > net.batch:
            continue
        if rest <= net.heads:
            for options in ((), (("sequence_parallel", True),)):
                yield Choice("Megatron1D", (data, rest), ("data", "row"), options)
        q = isqrt(rest)
        if q * q == rest:
            yield Choice("Summa2D", (data, q, q), ("data", "row", "col"))
        cube = round(rest ** (1 / 3))
        if cube**3 == rest:
            yield Choice("Cube3D", (data, cube, cube, cube), ("data", "row", "col", "depth"))
        for depth in _divisors(rest):
            yield from _with_depth(data, depth, rest // depth, net)


def _with_depth(data: int, depth: int, flat: int, net: Net) -> Iterator[Choice]:
    if data * depth > net.batch:
        return
    q = isqrt(flat)
    if q * q == flat and depth > 1 and q <= net.heads:
        for options in ((), (("cut_weights", True),)):
            yield Choice("Tesseract", (data, q, q, depth), ("data", "row", "col", "depth"), options)
    for row in _divisors(flat):
        if row <= net.heads:
            yield Choice("Tensor3D", (data, row, flat // row, depth), ("data", "row", "col", "depth"))


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def step(choice: Choice, net: Net, machine: Machine) -> Step:
    """A dry run of one layer, forward and backward, taken as many times as there are layers."""
    (parameters, kept), ledger = _dry(choice, net, machine)
    return Step(
        choice, net.layers * ledger.seconds, net.layers * ledger.computed, net.layers * ledger.bytes_received,
        net.layers * parameters, net.layers * kept,
    )  # fmt: skip


def _dry(choice: Choice, net: Net, machine: Machine) -> tuple[tuple[int, int], Ledger]:
    def program(comm: Any) -> tuple[int, int]:
        scheme = choice.scheme(comm)
        layer = nn.TransformerLayer(scheme, net.hidden, net.heads, sequence=net.sequence, dtype=net.dtype)
        shape = net.batch * net.sequence, net.hidden
        y = layer.forward(pdla.zeros(shape, scheme.grid, scheme.residual(net.sequence), dtype=net.dtype))
        kept = layer.kept_bytes()
        layer.backward(y)
        return sum(value.stored.nbytes for value in layer.parameters().values()), kept

    return pdla.dry_run(prod(choice.shape), program, machine=machine)


def best(ranks: int, net: Net, machine: Machine, count: int) -> list[Step]:
    """The fastest schemes and grids, at most so many of them."""
    return sorted((step(choice, net, machine) for choice in choices(ranks, net)), key=lambda step: step.seconds)[:count]


def table(steps: list[Step], net: Net, machine: Machine, ranks: int) -> str:
    """In words, a line each."""
    size = np.dtype(net.dtype).itemsize
    head = (
        f"{net.layers} layers of {net.hidden} features, {net.heads} heads, {net.batch} sequences of {net.sequence}, "
        f"{8 * size}-bit floats, forward and backward on {ranks} ranks\nof {machine.name or 'the default machine'}\n"
        f"{'':58}{'s':>9}{'computing':>11}{'GB received':>13}{'GB of weights':>15}{'GB kept':>9}"
    )
    rows = [
        f"{step.choice!s:58}{step.seconds:9.3g}{step.computing / step.seconds:11.0%}{step.received / 1e9:13.3g}"
        f"{step.parameters / 1e9:15.3g}{step.kept / 1e9:9.3g}"
        for step in steps
    ]
    return "\n".join([head, *rows])
