"""Calibration: a machine's figures, measured by the ranks of a job, all at once as they will compute."""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from pdla.bench.arguments import Parser
from pdla.bench.leave import leave
from pdla.comm.base import Communicator
from pdla.model.machine import Machine

TURNS = 7
LARGE = 1024  # of a product at full rate
MESSAGE = 4 << 20  # bytes of a message at full rate
STREAM = 4 << 20  # elements of a sum that no cache holds


def add(to: Parser) -> None:
    """Its arguments."""
    to.add_argument("--out", metavar="FILE", help="write it to FILE, as TOML")


def program(comm: Communicator, arguments: argparse.Namespace, words: list[str]) -> int:
    """Collective: print the machine, and write it where that is asked for; gives the exit status."""
    machine = measured(comm)
    if comm.rank == 0:
        print(machine.text(), end="")
    leave(arguments.out, lambda path: Path(path).write_text(machine.text()), "--out", comm)
    return 0


def measured(comm: Communicator) -> Machine:
    """Collective: this job's machine. Of each figure the median of a few turns, of the slowest rank."""
    double, single = (_product(comm, LARGE, dtype) for dtype in ("float64", "float32"))
    work = 2.0 * LARGE**3
    near, far = _peer(comm, False), _peer(comm, True)
    latency, bandwidth = _link(comm, near) if near else (Machine.latency, Machine.bandwidth)
    far_latency, network = _link(comm, far) if far else (Machine.far_latency, Machine.network)
    ranks = comm.size // comm.nodes
    return Machine(
        flops=work / double, single=double / single, half=double / single, call=_product(comm, 4, "float64"),
        memory=_stream(comm), erf=_erf(comm), bandwidth=bandwidth, latency=latency, network=network, far_latency=far_latency,
        node=ranks if comm.nodes > 1 else 0, overlap=_overlap(comm, far or near, double),
        name=f"{platform.node()}, {comm.size} ranks on {comm.nodes} nodes", source="python -m pdla.bench calibrate",
    )  # fmt: skip


def _timed(comm: Communicator, work: Callable[[], object], repeats: int = 1) -> float:
    """Collective: seconds of the slowest rank, a repetition."""
    seconds = []
    for _ in range(TURNS):
        comm.barrier()
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        seconds.append(max(comm.share((time.perf_counter() - start) / repeats)))
    return median(seconds)


def _product(comm: Communicator, n: int, dtype: str) -> float:
    a, b, c = (np.ones((n, n), dtype) for _ in range(3))
    comm.xp.gemm(a, b, c)
    return _timed(comm, lambda: comm.xp.gemm(a, b, c), max(1, 256 // n))


def _stream(comm: Communicator) -> float:
    """Bytes a second of x + y, written over x."""
    x, y = np.ones(STREAM), np.ones(STREAM)
    return 3 * x.nbytes / _timed(comm, lambda: comm.xp.add(x, y))


def _erf(comm: Communicator) -> float:
    x = np.linspace(-4, 4, LARGE * 256)
    return x.size / _timed(comm, lambda: comm.xp.erf(x))


def _peer(comm: Communicator, far: bool) -> int | None:
    """The step to another rank that is, for every rank, on its own node (on another); None where there is none."""
    homes = list(comm.homes) or [0] * comm.size
    for step in range(1, comm.size):
        if all((homes[r] != homes[(r + step) % comm.size]) == far for r in range(comm.size)):
            return step
    return None


def _link(comm: Communicator, step: int) -> tuple[float, float]:
    """Latency, and bytes a second that a rank receives while all send to their peer."""
    small, large = (np.ones(size, np.uint8) for size in (8, MESSAGE))
    into = np.empty_like(small), np.empty_like(large)
    latency = _timed(comm, lambda: comm.shift(small, into[0], step).wait(), 50)
    return latency, MESSAGE / (max(1e-9, _timed(comm, lambda: comm.shift(large, into[1], step).wait()) - latency))


def _overlap(comm: Communicator, step: int | None, product: float) -> float:
    """The share of a message that is hidden behind products that take as long."""
    if step is None:
        return 1.0
    x = np.ones(4 * MESSAGE, np.uint8)
    out = np.empty_like(x)
    alone = _timed(comm, lambda: comm.shift(x, out, step).wait())
    a, b, c = (np.ones((LARGE, LARGE)) for _ in range(3))
    count = max(1, round(alone / product))

    def both() -> None:
        pending = comm.shift(x, out, step)
        for _ in range(count):
            comm.xp.gemm(a, b, c)
        pending.wait()

    hidden = (count * product + alone - _timed(comm, both)) / alone
    return float(min(1.0, max(0.0, hidden)))
