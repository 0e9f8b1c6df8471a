"""Dry runs of the cases: what a pass takes on a described machine, and on machines that lack some of what takes time."""

from __future__ import annotations

from dataclasses import replace
from math import log2, prod
from typing import Any

import pdla
from bench.claims.cases import Case, Run, Transformer
from pdla.comm.ledger import Ledger
from pdla.model.machine import Machine

PASSES = ("forward", "backward")
# By pass: seconds; bytes received, and of them those of linears, those from other nodes, and those that rings would bring from
# other nodes; messages.
Figures = dict[str, dict[str, float]]
STEPS = ("bandwidth", "latency", "placement", "computing")  # what is added to a machine, one after the other


def figures(run: Run, machine: Machine) -> Figures:
    """The first rank's figures; all ranks have the same, as the grid divides all sizes."""

    def program(comm: Any) -> Figures:
        layer, x = run.layer(comm)
        start = comm.clock.time
        with pdla.record() as forward:
            y = layer.forward(x)
        turned = comm.clock.time
        with pdla.record() as backward:
            layer.backward(y)
        ended, grid = comm.clock.time, layer.scheme.grid
        return {"forward": _told(forward, grid, turned - start), "backward": _told(backward, grid, ended - turned)}

    return pdla.dry_run(run.way.ranks, program, machine=machine)[0]


def _told(ledger: Ledger, grid: pdla.ProcessGrid, seconds: float) -> dict[str, float]:
    linears = sum(size for tag, size in ledger.by_tag().items() if tag.endswith("ward"))
    far, rings = ledger.bytes_from_far, sum(event.bytes * _ring_share(grid, event.axis) for event in ledger.events if event.bytes)
    received, messages = ledger.bytes_received, ledger.messages
    return {"seconds": seconds, "bytes": received, "linears": linears, "far": far, "rings": rings, "messages": messages}


def _ring_share(grid: pdla.ProcessGrid, axis: str) -> float:
    """The share of a collective's bytes that would come from other nodes, were it a ring that enters each node once."""
    comm = grid[tuple(axis.split(","))]
    assert comm is not None
    if comm.nodes == 1:
        return 0.0
    return 1 / sum(home == comm.homes[comm.rank] for home in comm.homes)


def of(told: Figures, what: str, which: str) -> float:
    """One figure of a pass, or of "both"."""
    return sum(told[one][what] for one in PASSES if which in (one, "both") and one in told)


def parameters(run: Run) -> int:
    """How many numbers a run's layer learns, each counted once."""

    def program(comm: Any) -> int:
        return sum(prod(value.shape) for value in run.layer(comm)[0].parameters().values())

    return pdla.dry_run(run.way.ranks, program)[0]


# ---------------------------------------------------------------------------------------------- what takes the time


def without(machine: Machine) -> dict[str, Machine]:
    """The machine built up: only the links' bandwidth, the same between all ranks; with latency; with nodes; with computing."""
    idle = replace(machine, flops=1e300, memory=1e300, erf=0.0, call=0.0, reached=())
    alike = replace(idle, node=0, bandwidth=machine.rate(True), latency=machine.far_latency)
    return dict(zip(STEPS, (replace(alike, latency=0.0, gap=0.0), alike, idle, machine), strict=True))


def steps(run: Run, machine: Machine) -> dict[str, Figures]:
    """The figures of a run on each machine of `without`."""
    return {name: figures(run, part) for name, part in without(machine).items()}


def by_trees(run: Run, told: Figures, which: str) -> float:
    """Bytes on the critical path of a pass of linears, with binomial trees for SUMMA's broadcasts and sums.

    A tree among q sends a panel log2(q) times one after the other, where optimal collectives receive (q - 1) / q of it: on
    [q, q, d] forward q log2(q) (7mh/P + 12h^2/q^2) words, backward twice that, and the weights' gradients all-reduced over depth.
    Schemes without broadcasts are as recorded.
    """
    way, problem = run.way, run.problem
    if way.scheme not in ("Summa2D", "Tesseract") or not isinstance(problem, Transformer):
        return of(told, "linears", which)
    q, d = way.sizes["row"], way.sizes.get("depth", 1)
    weights = 12 * problem.hidden**2 / q**2
    once = q * log2(q) * (7 * problem.tokens * problem.hidden / way.ranks + weights)
    backward = 2 * once + 2 * (d - 1) / d * weights
    return 4 * {"forward": once, "backward": backward, "both": once + backward}[which]


def placements(case: Case, machine: Machine) -> dict[str, Figures]:
    """Figures of the full-size run with each axis, or two of them, inside a node of the machine, by what lies in the node."""
    found = {}
    for tile in _tiles(case.full.way.shape, machine.node):
        name = " x ".join(f"{n} {axis}" for axis, n in zip(case.full.way.axes, tile, strict=True) if n > 1)
        found[name] = figures(replace(case.full, way=replace(case.full.way, tile=tile)), machine)
    return found


def _tiles(shape: tuple[int, ...], node: int) -> list[tuple[int, ...]]:
    """The ways to fill a node with a box of ranks."""
    if not shape:
        return [()] if node == 1 else []
    sides = [side for side in range(1, node + 1) if node % side == 0 and shape[0] % side == 0]
    return [(side, *rest) for side in sides for rest in _tiles(shape[1:], node // side)]
