"""A round of messages under way, and the progress thread, which lets MPI work on it while this rank computes."""

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
_PIECES = 16  # pieces of a message at most
Send = Callable[[], MPI.Request]


@lru_cache(maxsize=64)
def _make_long_type(size: int) -> MPI.Datatype:
    """Make a datatype of `size` bytes, for MPIs whose counts have 32 bits."""
    chunks, rest = divmod(size, _CHUNK)
    parts = [MPI.BYTE.Create_contiguous(_CHUNK).Create_contiguous(chunks), MPI.BYTE.Create_contiguous(rest)]
    return MPI.Datatype.Create_struct([1, 1], [0, chunks * _CHUNK], parts).Commit()


def piece_length(nbytes: int, least: int) -> int:
    """Find the bytes of each piece but the last, at least `least`, of a message of nbytes; 0: the message travels whole."""
    return max(least, nbytes // _PIECES) if 0 < least <= nbytes else 0


def pieces(x: Any, least: int) -> list[list[Any]]:
    """Cut the bytes of a C-contiguous array into a message's pieces, as arguments of mpi4py's calls.

    The last piece is shorter than the others, and may be empty. A receive for an array of another
    length thus does not fit the pieces.

    Messages are bytes for three reasons. Some dtypes have no MPI type or buffer format. mpi4py
    refuses an empty view with a row stride on a device. CuPy counts elements instead of bytes, if
    CUPY_ENABLE_UMP lets it give buffers.

    Messages have pieces since MPI requests a long message's data, between nodes, by a short message.
    The request queues behind data in its own direction. Each direction of a pair would wait for a
    whole message of the other.
    """
    flat, arguments = x.reshape(-1).view(np.uint8), []
    length = least and piece_length(x.nbytes, least)
    for part in [flat[lo : lo + length] for lo in range(0, flat.size + 1, length)] if length else [flat]:
        large = part.nbytes > _INT_MAX and MPI.Get_version() < (4, 0)
        arguments.append([part, 1, _make_long_type(part.nbytes)] if large else [part, part.nbytes, MPI.BYTE])
    return arguments


class Round:
    """Messages under way: those that have come, and those to forward. The rank's own thread and `progress` advance it.

    A round holds the memory that MPI reads and writes, so that dropping a Pending does not free the
    memory. The round drops a message's memory when MPI has finished with it, as `progress` may keep
    the round itself longer.
    """

    recvs: list[MPI.Request]
    expected: list[tuple[int, int, int]]
    sends: list[MPI.Request]
    forwards: deque[tuple[int, list[Send]]]
    packing: deque[tuple[Any, Send]]
    by_piece: Collection[int]
    on_arrival: Callable[[int], None] | None
    forwarded: int

    def __init__(
        self, recvs: list[MPI.Request], expected: list[tuple[int, int, int]], sends: list[MPI.Request],
        forwards: Mapping[int, list[Send]], packing: Sequence[tuple[Any, Send]] = (), by_piece: Collection[int] = (),
        on_arrival: Callable[[int], None] | None = None,
    ) -> None:
        """Hold the requests of a round that has been posted.

        * expected: for each of recvs (number of the message, number of the piece, its bytes or -1 for any).
        * forwards: number of a message -> the sends to make when it has come, in this order.
        * packing: (event of the device, the send to make after it), in this order, before all of forwards.
        * by_piece: messages of which `come` gets each piece; of the others it gets only the last.
        * on_arrival: called, before each forward, with the number of forwarded messages that have come.
        """
        self.recvs, self.expected, self.sends, self.forwards = recvs, expected, sends, deque(forwards.items())
        self.missing: dict[int, int] = {}  # by message: its pieces that have not come
        for message, number, _ in expected:
            self.missing[message] = number + 1  # all pieces, as the last one is also the last in expected
        self.packing, self.by_piece = deque(packing), by_piece
        self.on_arrival, self.forwarded = on_arrival, 0
        self.lock: threading.Lock = threading.Lock()
        self.come: deque[tuple[int, int]] = deque()  # (message, piece) that have come, and that no caller has taken yet
        self.fault: str = ""
        self.left: bool = bool(recvs or packing or forwards or sends)  # whether messages are under way; else `come` has all
        if packing or forwards:
            unsent[id(self)] = self

    def advance(self) -> bool:
        """Let MPI work. Return whether a piece is in `come`, a rank sent another length, or the round has ended.

        The round tests sends only when all receives have ended, as it cannot end before.
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
        statuses = [MPI.Status()]  # mpi4py adds more as needed, but takes longer to make the first
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
        """Send what has been packed, then forward what has come, in the order of `forwards`.

        An item is removed last: once `forwards` is empty, all is forwarded and `on_arrival` called.
        """
        while self.packing and self.packing[0][0].done:
            self.sends.append(self.packing[0][1]())
            self.packing.popleft()
        while self.forwards and not (self.packing or self.missing[self.forwards[0][0]] or self.fault):
            self.forwarded += 1
            if self.on_arrival is not None:
                self.on_arrival(self.forwarded)
            self.sends += [send() for send in self.forwards[0][1]]
            self.forwards.popleft()
        if self.fault or not (self.packing or self.forwards):
            unsent.pop(id(self), None)


unsent: dict[int, Round] = {}  # rounds of this process that still have to send, after packing or after a receive


def send_on(but: Round | None = None) -> bool:
    """Advance all rounds but one, as other ranks may wait for their messages.

    A round sends what a device has packed by now, and forwards what has come. Return whether no
    device is packing any more.
    """
    for round_ in [*unsent.values()]:
        if round_ is not but:
            round_.advance()
    return not any(round_.packing for round_ in unsent.values())


def _is_truncated(status: MPI.Status) -> bool:
    return MPI.Get_error_class(status.error) == MPI.ERR_TRUNCATE


class Progress:
    """A thread that calls MPI while this rank computes: MPI moves data over a network only when it is called.

    While rounds are under way the thread calls MPI every PDLA_PROGRESS seconds, but not while the
    rank waits, as the rank then calls MPI itself. If ranks share a core, the thread calls less often:
    each call takes the core, and its cache, from a rank that computes. On one node there is no such
    thread, as a message is a copy there, and costs a core's time in any thread.

    busy      set while rounds are under way
    resting   whether the rank waits; a change does not wake the thread, as waits are many and short
    """

    busy: threading.Event
    ended: bool
    resting: bool

    def __init__(self, node: Node, xp: ModuleType = numpy) -> None:
        """Start the thread. xp: the module of the rounds' arrays, on the device of the calling thread."""
        self.nap: float = config.settings.progress * node.crowding
        self.rounds: dict[int, Round] = {}
        self.busy, self.ended, self.resting = threading.Event(), False, False
        args = [xp.bind_device()]
        self.thread: threading.Thread = threading.Thread(target=self._run, args=args, name="pdla progress", daemon=True)
        self.thread.start()
        atexit.register(self.end)

    def _run(self, join: Callable[[], Any]) -> None:
        join()  # else the thread would make a context on the first device, and MPI would not find the rank's own
        while self.busy.wait() and not self.ended:
            time.sleep(self.nap)
            self._advance()

    def _advance(self) -> None:
        """Advance all rounds; after this function no variable holds an ended round during the next nap."""
        for round_ in list(self.rounds.values()):
            if self.resting:
                break
            round_.advance()

    def begin(self, round_: Round) -> None:
        self.rounds[id(round_)] = round_
        self.busy.set()

    def finish(self, round_: Round) -> None:
        del self.rounds[id(round_)]
        if not self.rounds:
            self.busy.clear()

    def end(self) -> None:
        """End the thread; afterwards it calls MPI no more."""
        self.ended = True
        self.busy.set()
        self.thread.join()


@cache
def start_progress(node: Node, xp: ModuleType) -> Progress | None:
    """Start the process's thread for arrays of this module, once; None if PDLA_PROGRESS is 0, or MPI forbids two threads."""
    threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    return Progress(node, xp) if config.settings.progress and threads else None
