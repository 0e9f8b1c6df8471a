"""The times of events: this machine's, or in a dry run the times that a `Machine` predicts.

A `Clock` belongs to one rank. Work advances it by the work's time; a wait advances it to a
message's arrival. Each link handles messages one after another. One latency later a message's bytes
occupy the link, while the next message is handled. Other ranks are assumed to do at each time what
this one does.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Any

from pdla.model.machine import Machine

current: ContextVar[Clock | None] = ContextVar("pdla_clock", default=None)


def now() -> float:
    """Read this rank's clock in a dry run on a machine, else time.perf_counter, in seconds."""
    clock = current.get()
    return time.perf_counter() if clock is None else clock.time


def begin_step() -> None:
    """Advance the clock, if there is one, by a factorization step's overhead: Python, headers, calls of few elements."""
    clock = current.get()
    if clock is not None:
        clock.step()


class Link:
    """A link's times: `handled`, when all messages so far are handled; `free`, when all their bytes have passed."""

    handled: float
    free: float

    def __init__(self) -> None:
        self.handled = self.free = 0.0


class Clock:
    """One rank's time on a machine, in seconds, and the times at which its links are free.

    The links' own time is `lag` behind the rank's. It stands still in the share of computing time in
    which messages do not move: 1 - machine.overlap.
    """

    time: float
    lag: float
    computed: float

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.time = self.lag = self.computed = 0.0
        self.inbound: dict[bool, Link] = {False: Link(), True: Link()}  # from ranks on this node; on others
        self.outbound: dict[bool, Link] = {False: Link(), True: Link()}

    @property
    def at_once(self) -> int:
        """Elements of a piece, where work is done in pieces."""
        return self.machine.at_once

    def gemm(self, m: int, n: int, k: int, dtype: Any, count: int = 1, out: Any = None) -> None:
        """Count `count` local products of these sizes, in one call, of factors of one dtype into another."""
        self._work(self.machine.gemm(m, n, k, dtype, count, out))

    def lapack(self, m: int, n: int, operations: float, dtype: Any) -> None:
        """Count real operations of LAPACK on an m x n block, at the price of `Machine.lapack`."""
        self._work(self.machine.lapack(m, n, operations, dtype))

    def step(self) -> None:
        """Count the overhead of a factorization step."""
        self._work(self.machine.step)

    def touch(self, size: int, steps: int = 1) -> None:
        """Count elementwise work that reads and writes `size` bytes in all, in this many steps."""
        self._work(self.machine.touch(size, steps))

    def erf(self, count: int, itemsize: int) -> None:
        """Count the error function of `count` elements."""
        self._work(self.machine.error_function(count, itemsize))

    def _work(self, seconds: float) -> None:
        self.time += seconds
        self.computed += seconds
        self.lag += (1 - self.machine.overlap) * seconds

    def receive(self, size: int, sharing: int, messages: int = 1) -> float:
        """Predict when messages sent to this rank now, of `size` bytes in all, arrive, in the links' time.

        sharing  ranks of this node that receive from other nodes meanwhile; 0: the messages are from this node
        """
        return self._transfer(self.inbound[sharing > 0], size, sharing, messages)

    def send(self, size: int, sharing: int, messages: int = 1) -> float:
        """Predict when messages that this rank sends now, `size` bytes in all, have left; see `receive`."""
        return self._transfer(self.outbound[sharing > 0], size, sharing, messages)

    def _transfer(self, link: Link, size: int, sharing: int, messages: int) -> float:
        gap, delay, bytes_ = self.machine.gap, self.machine.delay(sharing > 0), size / self.machine.rate(sharing)
        start = max(self.time - self.lag, link.handled)
        link.handled = start + messages * gap
        first, last = (handled + delay for handled in (start + gap, link.handled))
        link.free = max(max(first, link.free) + bytes_, last + bytes_ / max(1, messages))
        return link.free

    @property
    def reading(self) -> tuple[float, float, float]:
        """The rank's time, its links' lag, and its computing time."""
        return self.time, self.lag, self.computed

    def repeat(self, since: tuple[float, float, float], times: int) -> None:
        """Count the time since the reading `since` `times` times."""
        readings = zip(since, self.reading, strict=True)
        self.time, self.lag, self.computed = (before + times * (after - before) for before, after in readings)

    def wait(self, until: float) -> None:
        """Advance to this moment of the links' time."""
        self.time = max(self.time, until + self.lag)
