"""Ranks as threads of one process: for notebooks, tests and studies; no MPI needed.

A message is copied once, from the sender's array into the receiver's, by the receiver; the sender's wait ends when that
is done. The world sees every rank, so it knows when all of them wait (DeadlockError, naming each rank's call) and when
ranks disagree on which verb comes next (AgreementError, naming both).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from pdla.array import blas, numpy
from pdla.comm import current_world
from pdla.comm.base import Array, Communicator, Pending
from pdla.errors import AgreementError, DeadlockError, PdlaError, RemoteError


@dataclass
class Message:
    """An array on its way: what it belongs to, and whether the receiver has copied it."""

    call: str
    value: Any
    copied: bool = False


class World:
    """What P threads share: the messages under way, who waits for what, and the first failure."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lock = threading.Lock()
        self.wake = [threading.Condition(self.lock) for _ in range(size)]
        self.messages: dict[tuple, Message] = {}
        self.waiting: dict[int, str] = {}
        self.alive = set(range(size))
        self.failure: BaseException | None = None
        self.failed_rank = -1
        self.elements_copied = [0] * size  # by receivers, between ranks: a count that the ledger has no part in
        self.bytes_copied = [0] * size

    def wait_until(self, rank: int, ready: Callable[[], bool], call: Callable[[], str]) -> None:
        """Block a rank; call with the lock held. A rank that is notified is no longer counted as waiting."""
        while not ready():
            if self.failure is not None:
                text = f"rank {self.failed_rank} failed: {type(self.failure).__name__}: {self.failure}"
                raise self.failure if isinstance(self.failure, DeadlockError) else RemoteError(text)
            self.waiting[rank] = call()
            self.check_deadlock()
            if self.failure is None:
                self.wake[rank].wait()
            self.waiting.pop(rank, None)

    def notify(self, rank: int) -> None:
        if self.waiting.pop(rank, None) is not None:
            self.wake[rank].notify()

    def check_deadlock(self) -> None:
        if not self.waiting or len(self.waiting) < len(self.alive) or self.failure is not None:
            return
        calls = "\n".join(f"  rank {rank} waits in {call}" for rank, call in sorted(self.waiting.items()))
        gone = sorted(set(range(self.size)) - self.alive)
        note = f"\n  ended: ranks {gone}" if gone else ""
        self.fail(min(self.waiting), DeadlockError(f"all ranks wait, none can go on:\n{calls}{note}"))

    def fail(self, rank: int, failure: BaseException) -> None:
        """Keep the first failure and wake everybody."""
        if self.failure is None:
            self.failure, self.failed_rank = failure, rank
            for condition in self.wake:
                condition.notify()

    def end(self, rank: int) -> None:
        """A rank's program has ended: nobody may have left it a message, and the others may now all be waiting."""
        with self.lock:
            self.alive.discard(rank)
            self.check_deadlock()


class ThreadComm(Communicator):
    """One rank's handle of a group of threads."""

    xp = numpy

    def __init__(self, world: World, name: tuple, ranks: Sequence[int], rank: int, axis: str = "all") -> None:
        super().__init__(rank, len(ranks), axis)
        self.world, self.name, self.ranks = world, name, tuple(ranks)
        self.me = self.ranks[rank]
        self._tags: dict[tuple, Iterator[int]] = defaultdict(count)

    @property
    def identity(self) -> Any:
        return (id(self.world), self.name)

    def _describe(self, call: str, number: int, awaited: Sequence[int]) -> str:
        whom = f" for rank {awaited[0]}" if len(awaited) == 1 else f" for ranks {list(awaited)[:8]}" if awaited else ""
        return f"{call} (call {number} on {self.axis!r}, {self.size} ranks){whom}"

    def _exchange(self, call: str, sends: Mapping[int, Array], recvs: Mapping[int, Array]) -> Iterator[int]:
        return self._post(call, ("verb", next(self._calls)), sends, recvs)

    def _post(
        self, call: str, key: tuple, sends: Mapping[int, Array], recvs: Mapping[int, Array]
    ) -> Iterator[int]:
        sent = {}
        with self.world.lock:
            for to, x in sends.items():
                sent[to] = Message(call, x)
                self.world.messages[self.name, key, self.rank, to] = sent[to]
                self.world.notify(self.ranks[to])
        return self._complete(call, key, sent, recvs)

    def _complete(self, call: str, key: tuple, sent: dict[int, Message], recvs: Mapping[int, Array]) -> Iterator[int]:
        for source, out in self._in_turn(recvs):
            message = self._fetch(call, key, source)
            self._copy(out, message, source, call)
            yield source
        world = self.world
        with world.lock:
            for to, message in sent.items():
                self._await_copy(message, call, key[-1], to)

    def _await_copy(self, message: Message, call: str, number: int, to: int) -> None:
        self.world.wait_until(self.me, lambda: message.copied, lambda: self._describe(call, number, [self.ranks[to]]))

    def _in_turn(self, recvs: Mapping[int, Array]) -> list[tuple[int, Array]]:
        """Sources in ring order from this rank on, so that not all ranks read from rank 0 at once."""
        return sorted(recvs.items(), key=lambda item: (item[0] - self.rank) % self.size)

    def _fetch(self, call: str, key: tuple, source: int) -> Message:
        slot = (self.name, key, source, self.rank)
        messages = self.world.messages
        with self.world.lock:
            self.world.wait_until(
                self.me, lambda: slot in messages, lambda: self._describe(call, key[-1], [self.ranks[source]])
            )
            message = messages.pop(slot)
        if message.call != call and key[0] == "verb":
            raise AgreementError(
                f"ranks disagree on call {key[-1]} on {self.axis!r}: "
                f"rank {self.me} calls {call}, rank {self.ranks[source]} calls {message.call}"
            )
        return message

    def _copy(self, out: Array, message: Message, source: int, call: str) -> None:
        x = message.value
        if x.shape != out.shape or x.dtype != out.dtype:
            raise AgreementError(
                f"{call} on {self.axis!r}: rank {self.ranks[source]} sends {x.dtype} {x.shape}, "
                f"rank {self.me} expects {out.dtype} {out.shape}"
            )
        numpy.copy(out, x)
        with self.world.lock:
            message.copied = True
            self.world.elements_copied[self.me] += x.size
            self.world.bytes_copied[self.me] += x.nbytes
            self.world.notify(self.ranks[source])

    def _message(self, call: str, sends: Mapping[int, Array], recvs: Mapping[int, Array], result: Array) -> Pending:
        """Matched by tag and by count between the two ranks, not by the order of collective calls."""
        tag = call.partition("(")[2]
        (peer,) = [*sends, *recvs]
        number = next(self._tags[(tag, peer, bool(sends))])
        arrivals = self._post(call, (tag, number), sends, recvs)
        size = sum(x.nbytes for x in recvs.values())
        return Pending(arrivals, lambda: result, (call.partition("(")[0], self.axis, size, len(recvs)))

    def share(self, value: Any) -> list[Any]:
        key, world = (self.name, "share", next(self._calls)), self.world
        with world.lock:
            slot = world.messages.setdefault(key, Message("share", {}))
            slot.value[self.rank] = value
            if len(slot.value) == self.size:
                slot.copied = True
                del world.messages[key]
                for rank in self.ranks:
                    world.notify(rank)
            missing = [r for i, r in enumerate(self.ranks) if i not in slot.value]
            world.wait_until(self.me, lambda: slot.copied, lambda: self._describe("agree", key[-1], missing))
        return [slot.value[r] for r in range(self.size)]

    def same(self, text: str) -> bool:
        return len(set(self.share(text))) == 1

    def split(self, ranks: Sequence[int] | None, axis: str) -> ThreadComm | None:
        number = next(self._calls)
        if ranks is None:
            return None
        group = [self.ranks[r] for r in ranks]
        return ThreadComm(self.world, (*self.name, number, group[0]), group, list(ranks).index(self.rank), axis)


def run(size: int, program: Callable[..., Any], *args: Any) -> list[Any]:
    """Run program(comm, *args) on `size` ranks as threads; gives their results by rank.

    Inside, comm=None means this world. Every BLAS is held to one thread a rank meanwhile. The first rank that raises ends
    all of them, and its error is raised here; ranks that all wait raise DeadlockError.
    """
    if size < 1:
        raise PdlaError(f"pdla.run needs at least one rank, not {size}")
    world, results = World(size), [None] * size

    def rank_main(rank: int) -> None:
        comm = ThreadComm(world, (), range(size), rank)
        current_world.set(comm)
        try:
            results[rank] = program(comm, *args)
        except BaseException as error:
            with world.lock:
                world.fail(rank, error)
        world.end(rank)

    threads = [threading.Thread(target=rank_main, args=(r,), name=f"rank {r}", daemon=True) for r in range(size)]
    with blas.held(1 if size > 1 else blas.share_cores(1)):
        _join(world, threads)
    if world.failure is not None:
        world.failure.add_note(f"raised on rank {world.failed_rank} of {size}")
        raise world.failure
    if world.messages:
        calls = sorted({message.call for message in world.messages.values()})
        raise PdlaError(f"the program ended with messages nobody received: {', '.join(calls)}")
    return results


def _join(world: World, threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt as stop:
        with world.lock:
            world.fail(0, stop)
        raise
