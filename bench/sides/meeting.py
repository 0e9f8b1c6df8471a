"""Where the ranks of a timed product meet: a barrier, and the time between two of them, by a clock all ranks share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

LINK = Path("/sys/class/net/eth0/statistics/rx_bytes")  # of a host of bench/cluster.py
POLLS = 200  # of a rank that shares its core, before it sleeps between them
NAP, LONG = 50e-6, 1e-3  # how long, in seconds: where a product is to begin, so that all do at once; and where it has ended


def received() -> int:
    """Bytes that this host's link has received, as the kernel counts them; 0 where there is none."""
    return int(LINK.read_text()) if LINK.exists() else 0


class Meeting:
    """Ranks of one machine. Waiting here leaves the cores to ranks that still compute, whatever the MPI does."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm.Dup()
        self.crowded = comm.size > len(os.sched_getaffinity(0))

    def wait(self, request: MPI.Request, polls: int = POLLS, nap: float = NAP) -> None:
        while not request.Test():
            polls -= 1
            if polls < 0 and self.crowded:
                time.sleep(nap)
            else:
                os.sched_yield()

    def barrier(self) -> None:
        self.wait(self.comm.Ibarrier())

    def largest(self, values: list[float]) -> list[float]:
        """Collective: the greatest of each value over the ranks."""
        mine, most = np.array(values), np.empty(len(values))
        self.wait(self.comm.Iallreduce(mine, most, MPI.MAX), 0, LONG)
        return most.tolist()

    def seconds(self, work: Callable[[], Any]) -> float:
        """Collective: from the first rank that starts to the last that is done.

        One clock serves all ranks (perf_counter counts from boot), so that ranks which take turns on a core are not taken
        for ranks that run at once.
        """
        self.barrier()
        start = time.perf_counter()
        work()
        end, minus_start = self.largest([time.perf_counter(), -start])
        return end + minus_start
