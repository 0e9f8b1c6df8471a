"""Where the ranks of a timed product meet, and the time from the moment when all start, by a clock all ranks share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

LINK = Path("/sys/class/net/eth0/statistics/rx_bytes")  # of a host of bench/cluster.py
NAP = 1e-3  # seconds, of a rank that shares its core, between two looks whether others have come
LONG = 3e-2  # and of one that others may still compute beside, after some looks: those of many ranks take a core from them
LEAD = 2e-3, 2e-4  # until all start, in seconds: for each rank that shares a core, which all are told of after some naps; else


def received() -> int:
    """Bytes that this host's link has received, as the kernel counts them; 0 where there is none."""
    return int(LINK.read_text()) if LINK.exists() else 0


class Meeting:
    """Ranks of one machine. Waiting here leaves the cores to ranks that still compute, whatever the MPI does."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm.Dup()
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
        """Collective: the greatest of each value over the ranks. nap: the longest, in seconds."""
        mine, most = np.array(values), np.empty(len(values))
        self.wait(self.comm.Iallreduce(mine, most, MPI.MAX), nap)
        return most.tolist()

    def start(self) -> None:
        """Collective: until a moment that all have been told of. A barrier's end one rank learns after another, by naps."""
        moment = self.largest([time.perf_counter()])[0] + self.lead
        while (left := moment - time.perf_counter()) > 0:
            if self.crowded:
                time.sleep(left)

    def seconds(self, work: Callable[[], Any], count: int = 1) -> float:
        """Collective: of a call, so many back to back as in a program's loop: from the first rank that starts to the last done.

        One clock serves all ranks (perf_counter counts from boot), so that ranks which take turns on a core are not taken
        for ranks that run at once.
        """
        self.start()
        start = time.perf_counter()
        for _ in range(count):
            work()
        end, minus_start = self.largest([time.perf_counter(), -start], LONG)
        return (end + minus_start) / count
