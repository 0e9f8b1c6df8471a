"""A round of messages under way, and the thread that lets MPI work on it while this rank computes."""

from __future__ import annotations

import atexit
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from pdla import config
from pdla.comm.libmpi import MPI
from pdla.comm.node import Node

_CHUNK = 1 << 20
_INT_MAX = 2**31 - 1  # bytes in one message of an MPI older than 4
_PIECE, _PIECES = 512 << 10, 16  # bytes of a message's pieces between nodes, longer ones where these would be more than so many
Send = Callable[[], MPI.Request]


@lru_cache(maxsize=64)
def _large(size: int) -> MPI.Datatype:
    """So many bytes as one datatype, for MPIs whose counts are 32 bits."""
    chunks, rest = divmod(size, _CHUNK)
    parts = [MPI.BYTE.Create_contiguous(_CHUNK).Create_contiguous(chunks), MPI.BYTE.Create_contiguous(rest)]
    return MPI.Datatype.Create_struct([1, 1], [0, chunks * _CHUNK], parts).Commit()


def spec(x: np.ndarray) -> list[Any]:
    """A C-contiguous array as mpi4py takes it: bytes, since some dtypes have no buffer format and no MPI type."""
    (raw,) = pieces(x, False)
    if raw.size > _INT_MAX and MPI.Get_version() < (4, 0):
        return [raw, 1, _large(raw.size)]
    return [raw, raw.size, MPI.BYTE]


def pieces(x: np.ndarray, far: bool) -> list[np.ndarray]:
    """The pieces in which a C-contiguous array travels; the last is shorter than the others, so that no two lengths fit.

    Between nodes both directions of a pair would wait for each other's whole messages: MPI asks for a long one's data by a
    word that queues behind the data that go the other way.
    """
    raw = x.reshape(-1).view(np.uint8) if x.size else np.empty(0, np.uint8)
    if not far or raw.size < _PIECE:
        return [raw]
    step = max(_PIECE, raw.size // _PIECES)
    return [raw[lo : lo + step] for lo in range(0, raw.size + 1, step)]


class Round:
    """Messages under way: what has come, and what is to be sent on. Both the rank's own thread and `progress` advance it.

    It holds the memory that MPI reads and writes: a Pending dropped half-way must not free it.
    """

    def __init__(
        self, requests: list[MPI.Request], expected: Sequence[tuple[int, int]], onward: Mapping[int, list[Send]]
    ) -> None:
        """The first requests are receives, `expected`: of which message a piece, and its bytes (-1: not to be checked)."""
        self.requests, self.expected, self.onward = requests, expected, onward
        self.missing = Counter(message for message, _ in expected)
        self.turns = deque(onward)
        self.lock = threading.Lock()
        self.left = len(requests)
        self.come: deque[int] = deque()
        self.fault = ""

    def advance(self) -> bool:
        """Let MPI work; whether anything is here that has not been taken, or all is done, or a rank sent another length."""
        with self.lock:
            if self.left and not self.fault:
                statuses: list[MPI.Status] = []
                try:
                    self._note(MPI.Request.Testsome(self.requests, statuses) or [], statuses)
                except MPI.Exception:
                    self.fault = next((f"rank {s.source} sends more" for s in statuses if _truncated(s)), "")
                    if not self.fault:
                        raise
            return bool(self.come or self.fault) or not self.left

    def _note(self, ended: list[int], statuses: list[MPI.Status]) -> None:
        for i, status in zip(ended, statuses, strict=True):
            if i < len(self.expected):
                message, size = self.expected[i]
                self._check(size, status)
                self.missing[message] -= 1
                if not self.missing[message]:
                    self.come.append(message)
        sent: list[MPI.Request] = []
        while self.turns and not self.missing[self.turns[0]] and not self.fault:
            sent += [send() for send in self.onward[self.turns.popleft()]]
        self.requests += sent
        self.left += len(sent) - len(ended)  # last: who reads 0 finds all that has come

    def _check(self, expected: int, status: MPI.Status) -> None:
        count = status.Get_count(MPI.BYTE)
        if expected >= 0 and count not in (expected, MPI.UNDEFINED):  # undefined: beyond an old MPI's 32 bits
            self.fault = f"rank {status.source} sends less ({count} bytes, not {expected})"


def _truncated(status: MPI.Status) -> bool:
    return MPI.Get_error_class(status.error) == MPI.ERR_TRUNCATE


class Progress:
    """A thread that calls MPI while this rank computes: between calls MPI moves nothing over a network.

    It looks every PDLA_PROGRESS seconds, and less often where ranks share a core, while rounds are under way; on one node
    it does not run, since there a message is a copy, which takes a core whoever makes it.
    """

    def __init__(self, here: Node) -> None:
        self.nap = config.settings.progress * max(1.0, here.ranks / here.cores)
        self.rounds: dict[int, Round] = {}
        self.wanted, self.ended = threading.Event(), False
        self.thread = threading.Thread(target=self._look, name="pdla progress", daemon=True)
        self.thread.start()
        atexit.register(self.end)

    def _look(self) -> None:
        while self.wanted.wait() and not self.ended:
            for round_ in list(self.rounds.values()):
                round_.advance()
            time.sleep(self.nap)

    def begin(self, round_: Round) -> None:
        self.rounds[id(round_)] = round_
        self.wanted.set()

    def finish(self, round_: Round) -> None:
        del self.rounds[id(round_)]
        if not self.rounds:
            self.wanted.clear()

    def end(self) -> None:
        """No MPI call after this."""
        self.ended = True
        self.wanted.set()
        self.thread.join()


@cache
def progress(here: Node) -> Progress | None:
    """The one of this process; None where it is not wanted or MPI is not to be called by two threads."""
    threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    return Progress(here) if config.settings.progress and threads else None
