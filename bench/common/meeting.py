"""Start a timed product on all ranks together, wait, and time it by a clock that all ranks share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # its import starts MPI, which dry cases do not need
    from mpi4py import MPI

LINK = Path("/sys/class/net/eth0/statistics/rx_bytes")  # of a host of bench/cluster.py
NAP = 1e-3  # seconds between polls of a waiting rank that shares its core, at first
LONG = 3e-2  # and at most, while others may still compute, as many ranks' polls take a core from them
LEAD = 2e-3, 2e-4  # seconds until an agreed start: for each rank on a shared core, as sleepers wake late; with a core each


def count_received() -> int:
    """Bytes that this host's link has received, by the kernel; 0 without a link."""
    return int(LINK.read_text()) if LINK.exists() else 0


class Meeting:
    """The ranks of a job on one machine. Waiting ranks leave their cores to the others, however the MPI waits."""

    def __init__(self, comm: MPI.Comm) -> None:
        from mpi4py import MPI

        self.comm, self.most = comm.Dup(), MPI.MAX
        crowding = comm.size / len(os.sched_getaffinity(0))
        self.crowded = crowding > 1
        self.lead = LEAD[0] * crowding if self.crowded else LEAD[1]

    def wait(self, request: MPI.Request, longest: float = NAP) -> None:
        nap = NAP
        while not request.Test():
            if self.crowded:
                time.sleep(nap)
                nap = min(2 * nap, longest)
            else:
                os.sched_yield()

    def barrier(self) -> None:
        self.wait(self.comm.Ibarrier())

    def largest(self, values: list[float], nap: float = NAP) -> list[float]:
        """Collective: the maximum of each value over ranks. nap: the longest sleep between polls, in seconds."""
        own, maxima = np.array(values), np.empty(len(values))
        self.wait(self.comm.Iallreduce(own, maxima, self.most), nap)
        return maxima.tolist()

    def start(self) -> None:
        """Collective: wait for an agreed moment, as sleeping ranks would leave a barrier one by one."""
        moment = self.largest([time.perf_counter()])[0] + self.lead
        while (left := moment - time.perf_counter()) > 0:
            if self.crowded:
                time.sleep(left)

    def seconds(self, work: Callable[[], Any], count: int = 1) -> float:
        """Collective: seconds a call, of `count` back to back, from the first rank's start to the last rank's end.

        One clock serves all ranks (perf_counter counts from boot), so that the time of all ranks on a
        shared core counts.
        """
        self.start()
        start = time.perf_counter()
        for _ in range(count):
            work()
        end, minus_start = self.largest([time.perf_counter(), -start], LONG)
        return (end + minus_start) / count
