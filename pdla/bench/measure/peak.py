"""The local GEMM peak: all ranks multiply blocks of their own at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pdla
from pdla.model.machine import operations

REPEATS = 6
LARGEST, SMALLEST = 1024, 128  # sides of a block, the first that is tried
SHORTEST = 1e-3  # seconds of a product: blocks that a device multiplies sooner do not show what it can do, and are made larger
FLOPS = 8e9  # by all ranks together in one repeat: a tenth of a second on two cores


def time_once(comm: pdla.Communicator, work: Callable[[], Any]) -> float:
    """Collective: seconds from the moment when all ranks are ready until the last one has done the work."""
    comm.xp.finish()
    comm.barrier()
    start = time.perf_counter()
    work()
    comm.xp.finish()
    return max(comm.share(time.perf_counter() - start))


def measure_peak(comm: pdla.Communicator, dtype: Any) -> float:
    """Collective: FLOP/s of all ranks together, each multiplying square blocks of its own; the best of a few repeats."""
    side = int(min(LARGEST, max(SMALLEST, (FLOPS / operations(1, 1, 1, dtype) / comm.size) ** (1 / 3))))
    while (seconds := _time_product(comm, side, dtype)) < SHORTEST:
        side *= 2
    return comm.size * operations(side, side, side, dtype) / seconds


def _time_product(comm: pdla.Communicator, side: int, dtype: Any) -> float:
    """Collective: seconds of a product of square blocks on every rank at the same time, the same on all ranks."""
    xp = comm.xp
    a, b, c = (xp.asarray(np.ones((side, side), dtype)) for _ in range(3))
    return min([time_once(comm, lambda: xp.gemm(a, b, c)) for _ in range(REPEATS + 1)][1:])


class Peaks:
    """The peak of each dtype, measured when it is first asked for (collectively), in FLOP/s."""

    def __init__(self, comm: pdla.Communicator) -> None:
        self.comm = comm
        self.measured: dict[str, float] = {}

    def __getitem__(self, dtype: str) -> float | None:
        """None for dtypes that BLAS does not know."""
        if np.dtype(dtype).char not in "fdFD":
            return None
        if dtype not in self.measured:
            self.measured[dtype] = measure_peak(self.comm, dtype)
        return self.measured[dtype]
