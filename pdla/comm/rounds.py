"""A round of messages under way, and the thread that lets MPI work on it while this rank computes."""

from __future__ import annotations

import atexit
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from pdla import config
from pdla.array import numpy
from pdla.comm.libmpi import MPI
from pdla.comm.node import Node

_CHUNK = 1 << 20
_INT_MAX = 2**31 - 1  # bytes in one message of an MPI older than 4
FAR_PIECE = 512 << 10  # bytes of a message's pieces between nodes
_PIECES = 16  # of a message; they are longer where they would be more
Send = Callable[[], MPI.Request]


@lru_cache(maxsize=64)
def _large(size: int) -> MPI.Datatype:
    """So many bytes as one datatype, for MPIs whose counts are 32 bits."""
    chunks, rest = divmod(size, _CHUNK)
    parts = [MPI.BYTE.Create_contiguous(_CHUNK).Create_contiguous(chunks), MPI.BYTE.Create_contiguous(rest)]
    return MPI.Datatype.Create_struct([1, 1], [0, chunks * _CHUNK], parts).Commit()


def spec(raw: np.ndarray) -> list[Any]:
    """Bytes as mpi4py takes them: some dtypes have no buffer format and no MPI type."""
    if raw.size > _INT_MAX and MPI.Get_version() < (4, 0):
        return [raw, 1, _large(raw.size)]
    return [raw, raw.size, MPI.BYTE]


def step(nbytes: int, least: int) -> int:
    """Bytes of each piece but the last in which so many travel, of which none is shorter than `least`; 0: they travel whole."""
    return max(least, nbytes // _PIECES) if 0 < least <= nbytes else 0


def pieces(x: np.ndarray, least: int) -> list[np.ndarray]:
    """The bytes of a C-contiguous array, in the pieces in which it travels; the last is shorter than the others, so that no two
    lengths fit.

    Between nodes both directions of a pair would wait for each other's whole messages: MPI asks for a long one's data by a
    word that queues behind the data that go the other way.
    """
    raw = x.reshape(-1).view(np.uint8) if x.size else np.empty(0, np.uint8)
    length = step(raw.size, least)
    return [raw[lo : lo + length] for lo in range(0, raw.size + 1, length)] if length else [raw]


class Round:
    """Messages under way: what has come, and what is to be sent on. Both the rank's own thread and `progress` advance it.

    It holds the memory that MPI reads and writes: a Pending dropped half-way must not free it. It lets go of each message's as soon
    as MPI has: `progress` may look at a round that has ended a moment longer.
    """

    def __init__(
        self, recvs: list[MPI.Request], expected: list[tuple[int, int, int]], sends: list[MPI.Request],
        onward: Mapping[int, list[Send]], packing: Sequence[tuple[Any, Send]] = (), by_piece: Collection[int] = (),
        landed: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        """expected: of each receive, which message, which piece, and its bytes (-1: not to be checked).

        packing   what a device still packs: an event, and what is to be sent when that is done; in order, before all of onward.
        by_piece  the messages of which `come` tells piece by piece, not only when all is there.
        landed    is told how many of onward's have come, in order, as soon as MPI is looked at, before the last is sent on.
        """
        self.recvs, self.expected, self.sends, self.onward = recvs, expected, sends, deque(onward.items())
        self.missing = Counter(message for message, _, _ in expected)
        self.packing, self.by_piece = deque(packing), by_piece
        self.landed, self.landings = landed, 0
        self.lock = threading.Lock()
        self.come: deque[tuple[int, int]] = deque()  # the message, and its last piece to come, or each
        self.fault = ""
        if packing or onward:
            _owing[id(self)] = self

    @property
    def left(self) -> bool:
        """Whether anything is under way; who then finds nothing left finds all that has come."""
        return bool(self.recvs or self.packing or self.onward or self.sends)

    def advance(self) -> bool:
        """Let MPI work; whether anything is here that has not been taken, or all is done, or a rank sent another length.

        Sends are looked at when all has come: that they end is nothing to wait for before.
        """
        with self.lock:
            while self.packing and self.packing[0][0].done:
                self.sends.append(self.packing[0][1]())
                self.packing.popleft()
            if self.recvs and not self.fault:
                self._receive()
            elif self.sends and MPI.Request.Testall(self.sends):
                self.sends = []
            self._go_on()
            if self.fault or not (self.packing or self.onward):
                _owing.pop(id(self), None)
            return bool(self.come or self.fault) or not self.left

    def _receive(self) -> None:
        statuses: list[MPI.Status] = []
        try:
            ended = MPI.Request.Testsome(self.recvs, statuses) or []
        except MPI.Exception:
            self.fault = next((f"rank {s.source} sends more" for s in statuses if _truncated(s)), "")
            if not self.fault:
                raise
            return
        if not ended:
            return
        for i, status in zip(ended, statuses, strict=True):
            message, number, size = self.expected[i]
            self._check(size, status)
            self.missing[message] -= 1
            if not self.missing[message] or message in self.by_piece:
                self.come.append((message, number))
        for i in sorted(ended, reverse=True):
            del self.expected[i], self.recvs[i]  # last: who finds none left finds all that has come

    def _go_on(self) -> None:
        """Send on what has come, in its turn. A turn ends last: who finds none left finds all sent on, and told of."""
        while self.onward and not (self.packing or self.missing[self.onward[0][0]] or self.fault):
            self.landings += 1
            if self.landed is not None:
                self.landed(self.landings)
            self.sends += [send() for send in self.onward[0][1]]
            self.onward.popleft()

    def _check(self, expected: int, status: MPI.Status) -> None:
        count = status.Get_count(MPI.BYTE)
        if expected >= 0 and count not in (expected, MPI.UNDEFINED):  # undefined: beyond an old MPI's 32 bits
            self.fault = f"rank {status.source} sends less ({count} bytes, not {expected})"


_owing: dict[int, Round] = {}  # of this process: what is packed, or comes, is to be sent, by whoever waits


def send_on(but: Round | None = None) -> bool:
    """Give MPI what other ranks may wait for: what a device has packed meanwhile, or has come to be sent on; of any other round.

    Whether no device packs any more.
    """
    for round_ in [*_owing.values()]:
        if round_ is not but:
            round_.advance()
    return not any(round_.packing for round_ in _owing.values())


def _truncated(status: MPI.Status) -> bool:
    return MPI.Get_error_class(status.error) == MPI.ERR_TRUNCATE


class Progress:
    """A thread that calls MPI while this rank computes: between calls MPI moves nothing over a network.

    It looks every PDLA_PROGRESS seconds, less often where ranks share a core (a look takes it, and its cache, from one that
    computes), while rounds are under way and the rank does not wait, which is to call MPI itself. On one node it does not run:
    there a message is a copy, which takes a core whoever makes it.

    resting   the rank waits. That wakes nobody, neither when it begins nor when it ends: waits are many and short.
    """

    def __init__(self, here: Node, xp: ModuleType = numpy) -> None:
        """xp: what its rounds' arrays are made of, on the device of the thread that calls this."""
        self.nap = config.settings.progress * here.crowding
        self.rounds: dict[int, Round] = {}
        self.wanted, self.ended, self.resting = threading.Event(), False, False
        self.thread = threading.Thread(target=self._look, args=[xp.joining()], name="pdla progress", daemon=True)
        self.thread.start()
        atexit.register(self.end)

    def _look(self, join: Callable[[], Any]) -> None:
        join()  # who is on no device is on the first one: it would make a context there, and an MPI would miss its own
        while self.wanted.wait() and not self.ended:
            time.sleep(self.nap)
            self._advance()

    def _advance(self) -> None:
        """No name of it outlives this: a round that has ended is not held through the next nap."""
        for round_ in list(self.rounds.values()):
            if self.resting:
                break
            round_.advance()

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
def progress(here: Node, xp: ModuleType) -> Progress | None:
    """The one of this process for such arrays; None where it is not wanted or MPI is not to be called by two threads."""
    threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    return Progress(here, xp) if config.settings.progress and threads else None
