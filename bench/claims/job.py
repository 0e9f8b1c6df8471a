"""Measure on the emulated cluster, on every rank: python -m bench.claims.job SPEC, under bench/cluster.py.

SPEC is a JSON object of cases (names), repeats, and results, a file. Rank 0 adds a line to the file for each finished case. A time
runs from the first rank's start to the last rank's end, between barriers, by a shared clock. A first pass does not count. Bytes
from other hosts are those of the ranks' ledgers, and those of the kernel.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

import pdla
from bench.claims.cases import CASES, Case
from bench.common import meeting
from pdla.bench.measure.peak import time_once
from pdla.comm.collectives import broadcast

PROBES = "probes"  # a name beside those of cases, for the network's own figures
TRIES, FEW, AT_ONCE = 20, 3, 16
MEGABYTE, PIECE = 1 << 20, 48 << 10  # bytes; PIECE is about the size of 1-D's pieces


def find_homes(comm: Any) -> list[int]:
    """Find, for each rank, the first rank on its host."""
    return list(comm.homes) or [0] * comm.size


def time_work(comm: Any, work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Collective: run work(); return its result and figures. The kernel's count includes two barriers."""
    comm.barrier()
    before = meeting.count_received()
    comm.barrier()
    start = time.perf_counter()
    with pdla.record() as ledger:
        result = work()
    end = time.perf_counter()
    comm.barrier()
    counts = ledger.bytes_received, ledger.bytes_from_far, ledger.messages, meeting.count_received() - before
    by_rank = comm.share((start, end, *counts))
    starts, ends, received, far, messages, links = zip(*by_rank, strict=True)
    kernel = sum(links[rank] for rank in set(find_homes(comm)))
    counted = {"bytes": max(received), "far": sum(far), "messages": max(messages), "kernel": kernel}
    return result, {"seconds": max(ends) - min(starts)} | counted


def measure_case(comm: Any, case: Case, repeats: int) -> dict[str, dict[str, Any]]:
    """Collective: measure a case by pass: the seconds of every repeat, the medians of all else."""
    layer, x = case.small.layer(comm)
    turns: dict[str, list[dict[str, float]]] = {"forward": [], "backward": []}
    for _ in range(repeats + 1):
        y, figures = time_work(comm, lambda: layer.forward(x))
        turns["forward"].append(figures)
        if case.backward:
            turns["backward"].append(time_work(comm, lambda y=y: layer.backward(y))[1])
    layer.scheme.grid.close()
    return {name: _summarize(figures_of_pass[1:]) for name, figures_of_pass in turns.items() if figures_of_pass}


def _summarize(turns: list[dict[str, float]]) -> dict[str, Any]:
    rest = {name: median(turn[name] for turn in turns) for name in turns[0] if name != "seconds"}
    return rest | {"seconds": [round(turn["seconds"], 5) for turn in turns]}


def measure_network(comm: Any) -> dict[str, float]:
    """Collective: measure the cluster's network with all ranks at once; figures are the slowest rank's.

    far_latency  seconds of 8 bytes to a rank of the next host
    latency      the same to a rank of this host
    gap          seconds of each further message
    one_to_one   bytes a second to a host: a megabyte a rank from the host before
    all_to_all   bytes a second to a host: a piece from every rank
    """
    host_of = find_homes(comm)
    host_comm = comm.split([rank for rank in range(comm.size) if host_of[rank] == host_of[comm.rank]], "host")
    word, box, piece = (np.zeros(size, np.uint8) for size in (8, MEGABYTE, PIECE))
    one, many = (_time_slowest(comm, lambda: comm.shift(word, box[:8], host_comm.size), TRIES, at_once) for at_once in (1, AT_ONCE))
    boxes = {rank: np.empty(PIECE, np.uint8) for rank in range(comm.size) if rank != comm.rank}
    bytes_to_others = host_comm.size * (comm.size - host_comm.size) * PIECE
    return {
        "far_latency": one,
        "gap": max(0.0, (many - one) / (AT_ONCE - 1)),
        "latency": _time_slowest(comm, lambda: host_comm.shift(word, box[:8]), TRIES),
        "one_to_one": host_comm.size * MEGABYTE / _time_slowest(comm, lambda: comm.shift(box, box.copy(), host_comm.size), FEW),
        "all_to_all": bytes_to_others / _time_slowest(comm, lambda: comm.alltoall(dict.fromkeys(boxes, piece), boxes), FEW),
    }


def _time_slowest(comm: Any, begin: Callable[[], Any], tries: int, at_once: int = 1) -> float:
    """Collective: seconds of `at_once` simultaneous verbs on the slowest rank, the median of all tries."""

    def work() -> None:
        for pending in [begin() for _ in range(at_once)]:
            pending.wait()

    return median(time_once(comm, work) for _ in range(tries))


def main(spec: str) -> None:
    pdla.abort_on_exception()
    comm, asked = pdla.world(), json.loads(spec)
    for name in asked["cases"]:
        start = time.perf_counter()
        trees = name in CASES and CASES[name].trees
        with patch.object(broadcast, "choose", lambda *_: "mpi") if trees else nullcontext():
            figures = measure_network(comm) if name == PROBES else measure_case(comm, CASES[name], asked["repeats"])
        if comm.rank == 0:
            with open(asked["results"], "a") as file:
                file.write(json.dumps({name: figures}) + "\n")
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
