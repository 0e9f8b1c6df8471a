"""The time that events are given: the machine's own, or, in a dry run on a described machine, the time it would be there.

A `Clock` is one rank's. Work moves it on by what the work takes; a message is there when the link to it has been free for as
long as its bytes take; waiting moves the clock to that time. Other ranks are taken to do at each time what this one does.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Any

from pdla.model.machine import Machine

current: ContextVar[Clock | None] = ContextVar("pdla_clock", default=None)


def now() -> float:
    """Seconds: of this rank's clock in a dry run on a machine, else of time.perf_counter."""
    clock = current.get()
    return time.perf_counter() if clock is None else clock.time


class Clock:
    """One rank's time on a machine, in seconds, and until when its links are taken.

    Links keep a time of their own, which stands still while the rank computes and nobody moves its messages on: it is `lag`
    behind.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.time = self.lag = self.computed = 0.0
        self.inbound = {False: 0.0, True: 0.0}  # from ranks on this node; on others
        self.outbound = {False: 0.0, True: 0.0}

    def gemm(self, m: int, n: int, k: int, dtype: Any, count: int = 1) -> None:
        """So many local products of these sizes."""
        self._work(self.machine.gemm(m, n, k, dtype, count))

    def touch(self, size: int, steps: int = 1) -> None:
        """Elementwise work that reads and writes so many bytes, in so many steps."""
        self._work(self.machine.touch(size, steps))

    def erf(self, count: int, itemsize: int) -> None:
        """The error function of so many elements."""
        self._work(self.machine.error_function(count, itemsize))

    def _work(self, seconds: float) -> None:
        self.time += seconds
        self.computed += seconds
        self.lag += (1 - self.machine.overlap) * seconds

    def received(self, size: int, far: bool, messages: int = 1) -> float:
        """When messages that are sent now, of so many bytes together, will be here, in the links' time."""
        return self._through(self.inbound, size, far, messages)

    def sent(self, size: int, far: bool, messages: int = 1) -> float:
        """When messages that this rank sends now will have left, in the links' time."""
        return self._through(self.outbound, size, far, messages)

    def _through(self, link: dict[bool, float], size: int, far: bool, messages: int) -> float:
        begins = max(self.time - self.lag + self.machine.delay(far), link[far])
        link[far] = begins + self.machine.passage(size, far, messages)
        return link[far]

    def wait(self, until: float) -> None:
        """Until a moment of the links' time."""
        self.time = max(self.time, until + self.lag)
