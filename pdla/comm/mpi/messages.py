"""A round of messages on their way, and the thread that lets MPI work on it while this rank computes."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from pdla import config
from pdla.array import numpy
from pdla.comm.mpi.libmpi import MPI
from pdla.comm.mpi.node import Node

_CHUNK = 1 << 20
_INT_MAX = 2**31 - 1  # bytes in one message of an MPI older than 4
FAR_PIECE = 512 << 10  # least bytes of a piece of a message between nodes
_PIECES = 16  # of a message at most: those of long messages are longer
Send = Callable[[], MPI.Request]


@lru_cache(maxsize=64)
def _make_long_type(size: int) -> MPI.Datatype:
    """`size` bytes as one datatype, for MPIs whose counts have 32 bits."""
    chunks, rest = divmod(size, _CHUNK)
    parts = [MPI.BYTE.Create_contiguous(_CHUNK).Create_contiguous(chunks), MPI.BYTE.Create_contiguous(rest)]
    return MPI.Datatype.Create_struct([1, 1], [0, chunks * _CHUNK], parts).Commit()


def piece_length(nbytes: int, least: int) -> int:
    """Bytes of each piece but the last, at least `least`, of a message of nbytes; 0: it travels whole."""
    return max(least, nbytes // _PIECES) if 0 < least <= nbytes else 0


def pieces(x: Any, least: int) -> list[list[Any]]:
    """The bytes of a C-contiguous array, in the pieces in which it travels, as arguments of mpi4py's calls.

    The last piece is shorter than the others, and may be empty: so a receive for an array of
    another length does not fit the pieces that come.

    Why bytes: some dtypes have no MPI type or buffer format, mpi4py refuses an empty view whose
    rows lie apart on a device, and CuPy counts elements where it should count bytes, if
    CUPY_ENABLE_UMP lets it give buffers.

    Why pieces: between nodes MPI asks for a long message's data by a short message that queues
    behind the data going the other way, so that each direction of a pair would wait for a whole
    message of the other.
    """
    raw, made = x.reshape(-1).view(np.uint8), []
    length = least and piece_length(x.nbytes, least)
    for part in [raw[lo : lo + length] for lo in range(0, raw.size + 1, length)] if length else [raw]:
        large = part.nbytes > _INT_MAX and MPI.Get_version() < (4, 0)
        made.append([part, 1, _make_long_type(part.nbytes)] if large else [part, part.nbytes, MPI.BYTE])
    return made


class Round:
    """Messages on their way: what has come, and what is to be sent on. The rank's own thread and `progress` both advance it.

    It holds the memory that MPI reads and writes, so that a Pending that is dropped half-way does
    not free it. It drops a message's memory as soon as MPI is done with it, as `progress` may hold
    a round that has ended for a moment longer.
    """

    recvs: list[MPI.Request]
    expected: list[tuple[int, int, int]]
    sends: list[MPI.Request]
    forwards: deque[tuple[int, list[Send]]]
    packing: deque[tuple[Any, Send]]
    by_piece: Collection[int]
    on_arrival: Callable[[int], None] | None
    landings: int

    def __init__(
        self, recvs: list[MPI.Request], expected: list[tuple[int, int, int]], sends: list[MPI.Request],
        forwards: Mapping[int, list[Send]], packing: Sequence[tuple[Any, Send]] = (), by_piece: Collection[int] = (),
        on_arrival: Callable[[int], None] | None = None,
    ) -> None:
        """expected: for each of recvs (number of the message, number of the piece, its bytes; -1: not to be checked), in order.

        forwards  number of a message -> the sends to be made when it has come, in this order
        packing   (event of the device, the send to be made when it has passed), in this order, before all of forwards
        by_piece  messages of which each piece is put into `come`; of the others only the last piece to come is
        on_arrival  called with the number of the forwarded messages that have come so far, in order, before each is sent on
        """
        self.recvs, self.expected, self.sends, self.forwards = recvs, expected, sends, deque(forwards.items())
        self.missing: dict[int, int] = {}
        for message, number, _ in expected:
            self.missing[message] = number + 1  # as its last piece comes last: how many there are
        self.packing, self.by_piece = deque(packing), by_piece
        self.on_arrival, self.landings = on_arrival, 0
        self.lock: threading.Lock = threading.Lock()
        self.come: deque[tuple[int, int]] = deque()  # (message, piece) that have come, and are not yet taken
        self.fault: str = ""
        self.left: bool = bool(recvs or packing or forwards or sends)  # whether messages are under way; else `come` has all
        if packing or forwards:
            unsent[id(self)] = self

    def advance(self) -> bool:
        """Let MPI work; whether there is something in `come`, or a fault (a rank sent another length), or all is done.

        Sends are tested only when all receives have ended, as the round cannot end before.
        """
        with self.lock:
            if self.recvs and not self.fault:
                self._receive()
            if self.packing or self.forwards:
                self._go_on()
            if self.sends and not self.recvs and MPI.Request.Testall(self.sends):
                self.sends = []
            self.left = bool(self.recvs or self.packing or self.forwards or self.sends)
            return bool(self.come or self.fault) or not self.left

    def _receive(self) -> None:
        statuses = [MPI.Status()]  # mpi4py adds some where more than one message has ended, but takes longer to make one
        try:
            ended = MPI.Request.Testsome(self.recvs, statuses)
        except MPI.Exception:
            self.fault = next((f"rank {s.source} sends more" for s in statuses if _is_truncated(s)), "")
            if not self.fault:
                raise
            return
        if not ended:
            return
        for i, status in zip(ended, statuses, strict=True):
            message, number, size = self.expected[i]
            count = status.Get_count(MPI.BYTE)
            if count != size and size >= 0 and count != MPI.UNDEFINED:  # undefined: beyond an old MPI's 32 bits
                self.fault = f"rank {status.source} sends less ({count} bytes, not {size})"
            self.missing[message] -= 1
            if not self.missing[message] or message in self.by_piece:
                self.come.append((message, number))
        for i in sorted(ended, reverse=True):
            del self.expected[i], self.recvs[i]

    def _go_on(self) -> None:
        """Send what has been packed, then send on what has come, in forwards's order.

        An item is removed last, so that once forwards is empty all has been sent on, and `on_arrival`
        called.
        """
        while self.packing and self.packing[0][0].done:
            self.sends.append(self.packing[0][1]())
            self.packing.popleft()
        while self.forwards and not (self.packing or self.missing[self.forwards[0][0]] or self.fault):
            self.landings += 1
            if self.on_arrival is not None:
                self.on_arrival(self.landings)
            self.sends += [send() for send in self.forwards[0][1]]
            self.forwards.popleft()
        if self.fault or not (self.packing or self.forwards):
            unsent.pop(id(self), None)


unsent: dict[int, Round] = {}  # the rounds of this process that still have to send, after packing or when something has come


def send_on(but: Round | None = None) -> bool:
    """Advance all rounds but one, for whose messages other ranks may wait.

    It sends what a device has packed by now, or what has come and is to be sent on. Gives whether
    no device is packing any more.
    """
    for round_ in [*unsent.values()]:
        if round_ is not but:
            round_.advance()
    return not any(round_.packing for round_ in unsent.values())


def _is_truncated(status: MPI.Status) -> bool:
    return MPI.Get_error_class(status.error) == MPI.ERR_TRUNCATE


class Progress:
    """A thread that calls MPI while this rank computes: MPI moves data over a network only when it is called.

    It calls MPI every PDLA_PROGRESS seconds, less often where ranks share a core (each call takes
    the core, and its cache, from a rank that computes), while rounds are on their way and the rank
    does not wait, as it calls MPI itself then. On one node there is no such thread: there a message
    is a copy, which takes time on a core whichever thread makes it.

    resting   the rank waits. The thread is not woken when that changes: waits are many and short.
    """

    wanted: threading.Event
    ended: bool
    resting: bool

    def __init__(self, here: Node, xp: ModuleType = numpy) -> None:
        """xp: the module of the rounds' arrays, which are on the device of the thread that calls this."""
        self.nap: float = config.settings.progress * here.crowding
        self.rounds: dict[int, Round] = {}
        self.wanted, self.ended, self.resting = threading.Event(), False, False
        self.thread: threading.Thread = threading.Thread(target=self._look, args=[xp.joining()], name="pdla progress", daemon=True)
        self.thread.start()
        atexit.register(self.end)

    def _look(self, join: Callable[[], Any]) -> None:
        join()  # without it the thread would use the first device, make a context there, and MPI would not find the rank's own
        while self.wanted.wait() and not self.ended:
            time.sleep(self.nap)
            self._advance()

    def _advance(self) -> None:
        """Advance all rounds. In a function of its own no variable holds a round that has ended through the next nap."""
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
        """End the thread: it calls MPI no more after this."""
        self.ended = True
        self.wanted.set()
        self.thread.join()


@cache
def progress(here: Node, xp: ModuleType) -> Progress | None:
    """The process's thread for such arrays; None where PDLA_PROGRESS is 0, or MPI must not be called by two threads."""
    threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    return Progress(here, xp) if config.settings.progress and threads else None
