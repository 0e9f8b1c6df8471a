"""Ranks as threads of one process: for notebooks, tests and studies; no MPI needed.

The receiver copies a message once, from the sender's array into its own; the sender's wait ends
then. The world sees every rank. If all of them wait, it raises DeadlockError, which names each
rank's call. If two ranks are in different verbs, it raises AgreementError, which names both.

In a chain, or around nodes, ranks forward what they receive. Here a rank forwards only while it
waits for that very verb; over MPI, while it waits for any. All ranks must wait for such verbs in
the same order.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from itertools import count, repeat
from math import inf
from numbers import Integral
from operator import itemgetter
from types import ModuleType
from typing import Any, TypeVar, overload

from pdla import config
from pdla.array import blas, choose, cores, namespace, numpy
from pdla.comm import current_world
from pdla.comm.agreement import known_ranks
from pdla.comm.communicator import Communicator
from pdla.comm.group import Array, Forwards, OnArrival, Pieces, sections
from pdla.comm.shared_buffer import GONE, LANES, SharedBuffer
from pdla.errors import AgreementError, ArgumentError, DeadlockError, GridError, PdlaError, RemoteError

ENDED = (
    "the run that made this communicator has ended, with all of its ranks: call what is collective within the program of pdla.run, "
    "pdla.dry_run or pdla.dry_run_all, and return arrays, as A.gather() and A.local are, instead of matrices"
)
Result = TypeVar("Result")  # what a program returns on each rank
_RANK = itemgetter(0)
MOST = 10_000  # ranks: more threads take minutes to start, or are more than the system allows


@dataclass
class Message:
    """An array under way: its call, the time of its arrival, and whether the receiver has copied it."""

    call: str
    value: Any
    due: float = 0.0  # seconds on time.perf_counter's clock
    copied: bool = False


class World:
    """The state that the threads of all ranks share: messages under way, waiting ranks with their calls, the first failure."""

    size: int
    delay: float
    bandwidth: float

    def __init__(self, size: int, delay: float = 0.0, bandwidth: float = inf) -> None:
        self.size, self.delay, self.bandwidth = size, delay, bandwidth
        self.lock: threading.Lock = threading.Lock()
        self.wake: list[threading.Condition] = [threading.Condition(self.lock) for _ in range(size)]
        self.mail: dict[tuple[Any, ...], deque[Any]] = defaultdict(deque)  # from one rank to another, in order
        self.shared: dict[tuple[Any, ...], Message] = {}
        # Waiting ranks, each with its waiting threads and functions that describe their calls.
        self.waiting: dict[int, dict[threading.Thread, Callable[[], str]]] = {}
        self.running: list[set[threading.Thread]] = [set() for _ in range(size)]  # by rank: known threads that do not wait
        self.alive: set[int] = set(range(size))
        self.failure: BaseException | None = None
        self.failed_rank: int = -1
        self.stopped: bool = False  # a rank has failed, or none runs any more: `check_failure` raises
        self.elements_copied: list[int] = [0] * size  # by receiving rank: tests compare the ledger's counts with these
        self.bytes_copied: list[int] = [0] * size

    def begin(self, rank: int) -> None:
        """Note that a rank's program starts in this thread."""
        self.running[rank].add(threading.current_thread())

    def wait_until(self, rank: int, ready: Callable[[], bool], call: Callable[[], str]) -> None:
        """Block a thread of a rank until `ready`; the caller holds the lock.

        A notified rank no longer counts as waiting. After PDLA_TIMEOUT seconds it checks whether all
        ranks wait, whatever their other threads do.
        """
        thread, patience = threading.current_thread(), min(config.settings.timeout, threading.TIMEOUT_MAX) or None
        while not ready():
            if self.stopped:
                self.check_failure()
            self.running[rank].discard(thread)
            self.waiting.setdefault(rank, {})[thread] = call
            if len(self.waiting) >= len(self.alive):
                self.check_deadlock()
            if self.failure is None and not self.wake[rank].wait(patience):
                self.check_deadlock(late=True)

    def check_failure(self) -> None:
        """Raise the first failure, on a rank that has not raised it yet; GridError if no rank runs any more."""
        if not self.alive:
            raise GridError(ENDED)
        if self.failure is not None:
            text = f"rank {self.failed_rank} failed: {type(self.failure).__name__}: {self.failure}"
            raise self.failure if isinstance(self.failure, DeadlockError) else RemoteError(text)

    def notify(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if threads := self.waiting.pop(rank, None):
                self.running[rank].update(threads)
                self.wake[rank].notify_all()

    def check_deadlock(self, late: bool = False) -> None:
        """Fail if all ranks wait and no known thread of theirs could still wake one; late: even if one could."""
        if not self.waiting or len(self.waiting) < len(self.alive) or self.failure is not None:
            return
        if late or not any(thread.is_alive() for threads in self.running for thread in threads):
            self.fail_in_deadlock([(rank, call) for rank in sorted(self.waiting) for call in self.waiting[rank].values()])

    def fail_in_deadlock(self, waits: Sequence[tuple[int, Callable[[], str]]]) -> None:
        """Fail with a DeadlockError. waits: for each rank a function that describes its call."""
        calls = "\n".join(f"  rank {rank} waits in {call()}" for rank, call in waits)
        ended = sorted(set(range(self.size)) - self.alive)
        note = f"\n  ended: ranks {ended}" if ended else ""
        self.fail(waits[0][0], DeadlockError(f"all ranks wait, none can go on:\n{calls}{note}"))

    def fail(self, rank: int, failure: BaseException) -> None:
        """Keep the first failure and wake all ranks."""
        if self.failure is None:
            self.failure, self.failed_rank, self.stopped = failure, rank, True
            for condition in self.wake:
                condition.notify_all()

    def end(self, rank: int) -> None:
        """Note that a rank's program has ended; if all other ranks wait, that is a deadlock."""
        with self.lock:
            self.leave(rank)
            self.running[rank].discard(threading.current_thread())
            self.check_deadlock()

    def leave(self, rank: int) -> None:
        """Note that a rank no longer runs."""
        self.alive.discard(rank)
        self.stopped = self.stopped or not self.alive


class ThreadComm(Communicator):
    """One rank's communicator, of ranks that are threads. ranks: their numbers in the world, in the communicator's order.

    Ranks read and write each other's arrays. On a device each thread may have a stream of its own,
    unknown to the others. A rank therefore waits for all its device work before it notifies others.
    """

    xp: ModuleType = numpy
    world: World
    name: tuple[Any, ...]
    ranks: tuple[int, ...]

    def __init__(self, world: World, name: tuple[Any, ...], ranks: Sequence[int], rank: int, axis: str = "all") -> None:
        super().__init__(rank, len(ranks), axis)
        self.world, self.name, self.ranks = world, name, tuple(ranks)
        self.me: int = self.ranks[rank]
        self._tags: dict[tuple[Any, ...], Iterator[int]] = defaultdict(count)

    @property
    def identity(self) -> Any:
        return (id(self.world), self.name)

    def _check_open(self) -> None:
        """Also end, after Ctrl-C, a rank that waits for no other."""
        if self.world.stopped:
            self.world.check_failure()

    def _describe(self, call: str, number: int, awaited: Sequence[int]) -> str:
        suffix = f" for rank {awaited[0]}" if len(awaited) == 1 else f" for ranks {list(awaited)[:8]}" if awaited else ""
        return f"{call} (call {number} on {self.axis!r}, {self.size} ranks){suffix}"

    def _exchange(
        self, call: str, sends: Pieces, recvs: Pieces, forwards: Forwards, on_arrival: OnArrival | None = None
    ) -> Iterator[int]:
        return self._post(call, ("verb", self._number()), sends, recvs, forwards, on_arrival)

    def _post(
        self, call: str, key: tuple[Any, ...], sends: Pieces, recvs: Pieces, forwards: Forwards, on_arrival: OnArrival | None = None
    ) -> Iterator[int]:
        return self._complete(call, key, recvs, forwards, on_arrival, self._send(call, key, sends) if sends else [])

    def _send(self, call: str, key: tuple[Any, ...], sends: Pieces) -> list[tuple[int, Message]]:
        """Send messages now. While one is delayed, its sender does not wait and no core works."""
        if self.xp is not numpy:
            self.xp.finish()
        world, leaves, sent = self.world, time.perf_counter() + self.world.delay, []
        with world.lock:
            for to, x in sends:
                message = Message(call, x, leaves + x.nbytes / world.bandwidth)
                world.mail[self.name, key, self.rank, to].append(message)
                sent.append((to, message))
            world.notify(map(self.ranks.__getitem__, map(_RANK, sends)))
        return sent

    def _complete(
        self, call: str, key: tuple[Any, ...], recvs: Pieces, forwards: Forwards, on_arrival: OnArrival | None,
        sent: list[tuple[int, Message]],
    ) -> Iterator[int]:
        for number, i in enumerate(self._order_by_ring(recvs, forwards), 1):
            source, out = recvs[i]
            self._copy(out, call, key, source)
            if i in forwards:
                if on_arrival is not None:
                    on_arrival(number)
                if forwards[i]:
                    sent += self._send(call, key, [*zip(forwards[i], repeat(out))])
            yield i
        with self.world.lock:
            for to, message in sent:
                if not message.copied:
                    copied, describe = partial(getattr, message, "copied"), partial(self._describe, call, key[-1], [self.ranks[to]])
                    self.world.wait_until(self.me, copied, describe)

    def _copy(self, out: Array, call: str, key: tuple[Any, ...], source: int) -> None:
        """Wait for a message and copy it to `out`."""
        world, slot = self.world, (self.name, key, source, self.rank)
        with world.lock:
            if slot not in world.mail:
                describe = partial(self._describe, call, key[-1], [self.ranks[source]])
                world.wait_until(self.me, partial(world.mail.__contains__, slot), describe)
            message = world.mail[slot].popleft()
            if not world.mail[slot]:
                del world.mail[slot]
        x = message.value
        if message.call != call or x.shape != out.shape or x.dtype != out.dtype:
            self._check(call, key, source, message.call)
            self._check_fit(call, source, x, self.rank, out)
        if (delay := message.due - time.perf_counter()) > 0:
            time.sleep(delay)  # no wait in the sense of a deadlock: this rank goes on by itself
        namespace(out).copy(out, x)
        if self.xp is not numpy:
            self.xp.finish()
        with world.lock:
            message.copied = True
            world.elements_copied[self.me] += x.size
            world.bytes_copied[self.me] += x.nbytes
            world.notify((self.ranks[source],))

    def _check(self, call: str, key: tuple[Any, ...], other: int, other_call: str) -> None:
        """Raise AgreementError unless the other rank is in the same call; send and recv are matched by tags alone."""
        if other_call != call and key[0] == "verb":
            raise AgreementError(
                f"ranks disagree on call {key[-1]} on {self.axis!r}: "
                f"rank {self.me} calls {call}, rank {self.ranks[other]} calls {other_call}"
            )

    def _check_fit(self, call: str, source: int, x: Array, to: int, out: Array) -> None:
        """Raise AgreementError unless the array sent has the shape and dtype of the array expected."""
        if x.shape != out.shape or x.dtype != out.dtype:
            raise AgreementError(
                f"{call} on {self.axis!r}: rank {self.ranks[source]} sends {x.dtype} {x.shape}, "
                f"rank {self.ranks[to]} expects {out.dtype} {out.shape}"
            )

    def _exchange_tagged(self, verb: str, tag: int, sends: Pieces, recvs: Pieces) -> Iterator[int]:
        """Match the n-th send with a tag to a rank with that rank's n-th recv with it, whatever verbs come between."""
        self._check_open()
        ((peer, _),) = [*sends, *recvs]
        return self._post(f"{verb}(tag={tag})", (tag, next(self._tags[verb, tag, peer])), sends, recvs, {})

    def share(self, value: Any) -> list[Any]:
        return self._share("share", value, "share")

    def _share(self, verb: str, value: Any, call: str) -> list[Any]:
        """Collective: share every rank's value; return them by rank. call: the text for a DeadlockError."""
        self.check_in_step()
        if sections.get():
            self.count_meeting()
        if self.xp is not numpy:
            self.xp.finish()
        key, world = (self.name, verb, next(self._calls)), self.world
        with world.lock:
            slot = world.shared.setdefault(key, Message(verb, {}))
            slot.value[self.rank] = value
            if len(slot.value) == self.size:
                slot.value = [*map(slot.value.__getitem__, range(self.size))]
                slot.copied = True
                del world.shared[key]
                world.notify(self.ranks)
            else:
                ready = partial(getattr, slot, "copied")
                world.wait_until(self.me, ready, lambda: self._describe(call, key[-1], self._find_missing(slot.value)))
        return [*slot.value]

    def _find_missing(self, arrived: Mapping[int, Any]) -> list[int]:
        """Find the ranks that have not arrived yet, by their numbers in the world."""
        return [r for i, r in enumerate(self.ranks) if i not in arrived]

    def _end_waits(self) -> None:
        with self.world.lock:
            self.world.fail(self.me, AgreementError(self.clash))

    def _wait_until(self, call: str, ready: Callable[[], bool]) -> None:
        with self.world.lock:
            self.world.wait_until(self.me, ready, lambda: f"{call} on {self.axis!r}, {self.size} ranks")

    def shared_buffer(self) -> SharedBuffer | None:
        return ThreadBuffer(self) if self.nodes == 1 else None

    def common(self, size: int) -> Any:
        if self.nodes > 1:
            return None
        return self.share(self.xp.memory(size) if self.rank == 0 else None)[0]

    def same(self, text: str) -> bool:
        return len(set(self._share("same", text, text))) == 1

    def split(self, ranks: Sequence[int] | None, axis: str) -> ThreadComm | None:
        self.check_in_step()
        number = next(self._calls)
        if ranks is None:
            return None
        group = [self.ranks[r] for r in ranks]
        comm = type(self)(self.world, (*self.name, number, group[0]), group, list(ranks).index(self.rank), axis)
        comm.homes = [self.homes[r] for r in ranks] if self.homes else ()
        comm.xp, comm.shared_limit = self.xp, self.shared_limit
        return comm


class ThreadBuffer(SharedBuffer):
    """A shared buffer in the memory of the process, allocated anew for each turn."""

    def __init__(self, comm: ThreadComm) -> None:
        self.comm = comm
        self.counts: list[list[int]] = []

    def open(self, size: int) -> Any:
        new = (self.comm.xp.memory(size), [[0] * self.comm.size for _ in range(LANES)]) if self.comm.rank == 0 else None
        memory, self.counts = self.comm.share(new)[0]
        return memory

    def seal(self) -> None:
        self.comm.share(None)

    def publish(self, pieces: int, lane: int = 0) -> None:
        self.comm.xp.finish()
        with self.comm.world.lock:
            self.counts[lane][self.comm.rank] = pieces
            self.comm.world.notify(self.comm.ranks)

    def count_published(self, rank: int, lane: int = 0) -> int:
        return self.counts[lane][rank]

    def may_have_left(self, lane: int = 0) -> bool:
        return GONE in self.counts[lane]

    def wait_until(self, call: str, ready: Callable[[], bool]) -> None:
        self.comm._wait_until(call, ready)

    def leave(self) -> None:
        self.comm.xp.finish()  # another thread may now free the memory and use it again

    def trim(self, most: int) -> None:
        pass


@overload
def run(size: int, program: Callable[[Communicator], Result], *, delay: float = 0.0, bandwidth: float = inf) -> list[Result]: ...
@overload
def run(
    size: int, program: Callable[..., Result], *args: Any, delay: float = 0.0, bandwidth: float = inf, **named: Any
) -> list[Result]: ...
def run(
    size: int, program: Callable[..., Result], *args: Any, delay: float = 0.0, bandwidth: float = inf, **named: Any
) -> list[Result]:
    """Run a program on ranks that are threads of this process, and return their results.

    Inside, `comm=None` means this world. Meanwhile every BLAS has one thread a rank.

    Parameters
    ----------
    size : int
        Ranks, at most 10,000.
    program : callable
        Each rank calls ``program(comm, *args, **named)``.
    *args
        Further arguments of `program`, the same on every rank.
    delay : float, optional
        Seconds by which a simulated network delays each array; agreements take no time.
    bandwidth : float, optional
        Bytes a second of that network, for each array by itself.
    **named
        Further arguments of `program`, by name.

    Returns
    -------
    list
        The results of `program`, by rank.

    Raises
    ------
    PdlaError
        For an impossible number of ranks, delay or bandwidth.
    DeadlockError
        If all ranks wait; the text names each rank's call.
    Exception
        The exception of the first rank that raises; it ends the others.

    Notes
    -----
    Ctrl-C is raised at once, and ends each rank at its next collective call. Once all ranks have
    ended, a collective call raises GridError, also one of a matrix that the program returned.

    Examples
    --------
    >>> pdla.run(3, lambda comm, more: comm.rank + more, 10)
    [10, 11, 12]
    """
    check_run("run", size, program, args, delay=delay != 0, bandwidth=bandwidth != inf)
    if size > MOST:
        raise PdlaError(f"pdla.run of {size} ranks: at most {MOST}, each a thread here; pdla.dry_run counts what more would send")
    if not (delay >= 0 and bandwidth > 0):
        raise PdlaError(f"delay={delay}, bandwidth={bandwidth}: at least 0 seconds, more than 0 bytes a second")
    world = World(size, delay, bandwidth)

    def main(rank: int) -> Any:
        comm = ThreadComm(world, (), range(size), rank)
        comm.xp = choose()
        current_world.set(comm)
        known_ranks.set(())
        return program(comm, *args, **named)

    with blas.with_threads(1 if size > 1 else cores.share(1)):
        return run_ranks(world, main)


def check_run(name: str, size: int, program: Callable[..., Any], args: Sequence[Any], **own: bool) -> None:
    """Raise PdlaError unless `size` is a number of ranks, at least 1, and `program` can be called.

    name  the name of the calling function, for messages
    own   by name, whether the user gave that keyword of the caller; PdlaError if the program has an argument of the same name
    """
    if not isinstance(size, Integral):
        raise ArgumentError(f"pdla.{name}({size!r}, ...): give the number of ranks first, as pdla.{name}(4, program)")
    if size < 1:
        raise PdlaError(f"pdla.{name} needs at least one rank, not {size}")
    if not callable(program):
        raise ArgumentError(f"pdla.{name}({size}, {program!r}): give a function of the communicator, as pdla.{name}(4, program)")
    for argument in _find_unbound(program, 1 + len(args)):
        if argument.name in own and (own[argument.name] or argument.default is argument.empty):
            raise PdlaError(
                f"{argument.name}= is pdla.{name}'s own, and an argument of {program!r}, too: give the program its own by place, "
                f"or by functools.partial(program, {argument.name}=...)"
            )


def _find_unbound(program: Callable[..., Any], positions: int) -> list[Parameter]:
    """Find the arguments that a function still takes by keyword, once this many are given by position.

    Arguments that functools.partial gives are left out.
    """
    try:
        parameters = [*signature(program).parameters.values()]
    except (TypeError, ValueError):  # some functions of C have none that Python knows
        return []
    either = Parameter.POSITIONAL_OR_KEYWORD
    positional = [parameter for parameter in parameters if parameter.kind in (Parameter.POSITIONAL_ONLY, either)]
    by_keyword = [parameter for parameter in parameters if parameter.kind in (either, Parameter.KEYWORD_ONLY)]
    given = {*(parameter.name for parameter in positional[:positions]), *getattr(program, "keywords", ())}
    return [parameter for parameter in by_keyword if parameter.name not in given]


def run_ranks(world: World, main: Callable[[int], Any]) -> list[Any]:
    """Run main(rank) for each rank of a world, in a thread each. Return the results, or raise as `run` does."""
    size, results = world.size, [None] * world.size

    def rank_main(rank: int) -> None:
        try:
            world.begin(rank)
            results[rank] = main(rank)
        except BaseException as error:
            with world.lock:
                world.fail(rank, error)
        world.end(rank)

    _join(world, [threading.Thread(target=rank_main, args=(r,), name=f"rank {r}", daemon=True) for r in range(size)])
    if world.failure is not None:
        world.failure.add_note(f"raised on rank {world.failed_rank} of {size}")
        raise world.failure
    if world.mail:
        calls = sorted({message.call for queue in world.mail.values() for message in queue})
        raise PdlaError(f"the program ended with messages that no rank received: {', '.join(calls)}")
    return results


def _join(world: World, threads: Sequence[threading.Thread]) -> None:
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as stop:  # Ctrl-C, or no more threads: running ranks must not wait for those that never started
        with world.lock:
            world.fail(0, stop)
        raise
