"""Seconds of a call that all ranks make, and of another package's on rank 0 alone."""

import time
from statistics import median


def time_median(comm, work, times=3):
    """Collective: work()'s value, and its seconds on the slowest rank, the median of `times`."""
    value, seconds = None, []
    for _ in range(times):
        comm.barrier()
        start = time.perf_counter()
        value = work()
        seconds.append(max(comm.share(time.perf_counter() - start)))
    return value, median(seconds)


def run_alone(comm, work):
    """Collective: run work() on rank 0 alone; every rank gets its value and its seconds."""
    start = time.perf_counter()
    value = work() if comm.rank == 0 else None
    return comm.share((value, time.perf_counter() - start))[0]
