"""Dry runs of the cases on a described machine, and on machines without some of its costs."""

from __future__ import annotations

from dataclasses import replace
from math import log2, prod
from typing import Any

import pdla
from bench.claims.cases import Case, Run, Transformer
from pdla.comm.ledger import Ledger
from pdla.model.machine import Machine

PASSES = ("forward", "backward")
# By pass: seconds; bytes received, those of linears, those from other nodes, and those from other nodes by rings; messages.
Figures = dict[str, dict[str, float]]
STEPS = ("bandwidth", "latency", "placement", "computing")  # costs added to a machine, one after the other


def run_dry(run: Run, machine: Machine) -> Figures:
    """Run the first rank dry; return its figures, which all ranks have, as the grid divides all sizes."""

    def program(comm: Any) -> Figures:
        layer, x = run.layer(comm)
        start = comm.clock.time
        with pdla.record() as forward:
            y = layer.forward(x)
        middle = comm.clock.time
        with pdla.record() as backward:
            layer.backward(y)
        end, grid = comm.clock.time, layer.scheme.grid
        return {"forward": _to_figures(forward, grid, middle - start), "backward": _to_figures(backward, grid, end - middle)}

    return pdla.dry_run(run.way.ranks, program, machine=machine)[0]


def _to_figures(ledger: Ledger, grid: pdla.ProcessGrid, seconds: float) -> dict[str, float]:
    linears = sum(size for tag, size in ledger.by_tag().items() if tag.endswith("ward"))
    far = ledger.bytes_from_far
    rings = sum(event.bytes * _compute_ring_share(grid, event.axis) for event in ledger.events if event.bytes)
    received, messages = ledger.bytes_received, ledger.messages
    return {"seconds": seconds, "bytes": received, "linears": linears, "far": far, "rings": rings, "messages": messages}


def _compute_ring_share(grid: pdla.ProcessGrid, axis: str) -> float:
    """Compute the share of a collective's bytes from other nodes, for a ring that enters each node once."""
    comm = grid[tuple(axis.split(","))]
    assert comm is not None
    if comm.nodes == 1:
        return 0.0
    return 1 / sum(home == comm.homes[comm.rank] for home in comm.homes)


def sum_passes(figures: Figures, figure: str, pass_name: str) -> float:
    """Sum a figure over a pass, or over "both"."""
    return sum(figures[one][figure] for one in PASSES if pass_name in (one, "both") and one in figures)


def count_parameters(run: Run) -> int:
    """Count the parameters of a run's layer, each number once."""

    def program(comm: Any) -> int:
        return sum(prod(value.shape) for value in run.layer(comm)[0].parameters().values())

    return pdla.dry_run(run.way.ranks, program)[0]


# ---------------------------------------------------------------------------------------------- costs, one by one


def build_machines(machine: Machine) -> dict[str, Machine]:
    """Build a machine for each step: only equal bandwidth between all ranks; also latency; also nodes; also computing."""
    idle = replace(machine, flops=1e300, memory=1e300, erf=0.0, call=0.0, reached=())
    uniform = replace(idle, node=0, bandwidth=machine.rate(True), latency=machine.far_latency)
    return dict(zip(STEPS, (replace(uniform, latency=0.0, gap=0.0), uniform, idle, machine), strict=True))


def run_steps(run: Run, machine: Machine) -> dict[str, Figures]:
    """Run dry on each machine of `build_machines`; return the figures."""
    return {name: run_dry(run, part) for name, part in build_machines(machine).items()}


def count_by_trees(run: Run, figures: Figures, pass_name: str) -> float:
    """Count the bytes on the critical path of a pass of linears, with binomial trees for SUMMA's broadcasts and sums.

    A tree among q sends a panel log2(q) times in succession; optimal collectives receive (q - 1) / q of it. Words on [q, q, d]:
    forward q log2(q) (7mh/P + 12h^2/q^2), backward twice that and the all-reduce of weights' gradients over depth. Schemes
    without broadcasts have their recorded bytes.
    """
    way, problem = run.way, run.problem
    if way.scheme not in ("Summa2D", "Tesseract") or not isinstance(problem, Transformer):
        return sum_passes(figures, "linears", pass_name)
    q, d = way.sizes["row"], way.sizes.get("depth", 1)
    weights = 12 * problem.hidden**2 / q**2
    once = q * log2(q) * (7 * problem.tokens * problem.hidden / way.ranks + weights)
    backward = 2 * once + 2 * (d - 1) / d * weights
    return 4 * {"forward": once, "backward": backward, "both": once + backward}[pass_name]


def run_placements(case: Case, machine: Machine) -> dict[str, Figures]:
    """Run the full size dry with each box of axes inside a node of the machine; return the figures by box."""
    by_box = {}
    for tile in _list_tiles(case.full.way.shape, machine.node):
        name = " x ".join(f"{n} {axis}" for axis, n in zip(case.full.way.axes, tile, strict=True) if n > 1)
        by_box[name] = run_dry(replace(case.full, way=replace(case.full.way, tile=tile)), machine)
    return by_box


def _list_tiles(shape: tuple[int, ...], node: int) -> list[tuple[int, ...]]:
    """List the boxes of ranks that fill a node."""
    if not shape:
        return [()] if node == 1 else []
    sides = [side for side in range(1, node + 1) if node % side == 0 and shape[0] % side == 0]
    return [(side, *rest) for side in sides for rest in _list_tiles(shape[1:], node // side)]
