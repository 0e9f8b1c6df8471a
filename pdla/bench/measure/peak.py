"""Measure the local GEMM peak: all ranks multiply their own blocks at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pdla
from pdla.model.machine import operations

REPEATS = 6
LARGEST, SMALLEST = 1024, 128  # sides of a first block
SHORTEST = 1e-3  # seconds of a product; shorter ones do not reach a device's peak, so that their blocks grow
FLOPS = 8e9  # by all ranks together in one repeat: a tenth of a second on two cores


def time_once(comm: pdla.Communicator, work: Callable[[], Any]) -> float:
    """Collective: seconds from a barrier until the last rank has done the work."""
    comm.xp.finish()
    comm.barrier()
    start = time.perf_counter()
    work()
    comm.xp.finish()
    return max(comm.share(time.perf_counter() - start))


def measure_peak(comm: pdla.Communicator, dtype: Any) -> float:
    """Collective: FLOP/s of all ranks together on their own square blocks, the best of a few repeats."""
    side = int(min(LARGEST, max(SMALLEST, (FLOPS / operations(1, 1, 1, dtype) / comm.size) ** (1 / 3))))
    while (seconds := _time_product(comm, side, dtype)) < SHORTEST:
        side *= 2
    return comm.size * operations(side, side, side, dtype) / seconds


def _time_product(comm: pdla.Communicator, side: int, dtype: Any) -> float:
    """Collective: seconds of a product of square blocks on every rank at once, equal on all ranks."""
    xp = comm.xp
    a, b, c = (xp.asarray(np.ones((side, side), dtype)) for _ in range(3))
    return min([time_once(comm, lambda: xp.gemm(a, b, c)) for _ in range(REPEATS + 1)][1:])


class Peaks:
    """The peak of each dtype in FLOP/s; the first access to a dtype measures it, collectively."""

    def __init__(self, comm: pdla.Communicator) -> None:
        self.comm = comm
        self.measured: dict[str, float] = {}

    def __getitem__(self, dtype: str) -> float | None:
        """Collective: the peak of a dtype; None for dtypes without BLAS."""
        if np.dtype(dtype).char not in "fdFD":
            return None
        if dtype not in self.measured:
            self.measured[dtype] = measure_peak(self.comm, dtype)
        return self.measured[dtype]
