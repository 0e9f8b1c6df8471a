"""The time that events are given: the machine's own, or, in a dry run on a described machine, the time it would be there.

A `Clock` is one rank's. Work moves it on by what the work takes; waiting moves it to when a message is there. Messages are
handled one after another on each of a rank's links; a latency later a message's bytes take the link, while the next one is
handled. Other ranks are taken to do at each time what this one does.
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


class Link:
    """Until when its messages are being handled, and until when their bytes take it."""

    def __init__(self) -> None:
        self.handled = self.free = 0.0


class Clock:
    """One rank's time on a machine, in seconds, and until when its links are taken.

    Links keep a time of their own, which stands still while the rank computes and nobody moves its messages on: it is `lag`
    behind.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.time = self.lag = self.computed = 0.0
        self.inbound = {False: Link(), True: Link()}  # from ranks on this node; on others
        self.outbound = {False: Link(), True: Link()}

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
        return self._through(self.inbound[far], size, far, messages)

    def sent(self, size: int, far: bool, messages: int = 1) -> float:
        """When messages that this rank sends now will have left, in the links' time."""
        return self._through(self.outbound[far], size, far, messages)

    def _through(self, link: Link, size: int, far: bool, messages: int) -> float:
        gap, delay, bytes_ = self.machine.gap, self.machine.delay(far), size / self.machine.rate(far)
        start = max(self.time - self.lag, link.handled)
        link.handled = start + messages * gap
        first, last = (handled + delay for handled in (start + gap, link.handled))
        link.free = max(max(first, link.free) + bytes_, last + bytes_ / max(1, messages))
        return link.free

    def wait(self, until: float) -> None:
        """Until a moment of the links' time."""
        self.time = max(self.time, until + self.lag)
