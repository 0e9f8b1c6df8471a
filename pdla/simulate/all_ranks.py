"""Run all ranks dry, each with a clock: a late rank delays the ranks that wait for it.

Ranks are threads, and the rank of least clock runs, alone. Messages therefore reach a link in
clock order, and every run gives the same times. A message sets out once its sender has sent it and
its receiver has posted the receive, as MPI's long messages do. Its path has two links, the sender's
outbound and the receiver's inbound one. Each link carries one message after another, as in LogGP
(Alexandrov, Ionescu, Schauser, Scheiman, SPAA 1995). The message arrives when the slower link ends.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from types import ModuleType
from typing import Any

from pdla.array import meta
from pdla.comm import trace
from pdla.comm.dry import run_as_rank
from pdla.comm.group import Array, Forwards, OnArrival, Pieces
from pdla.comm.ledger import Ledger, tag
from pdla.comm.threads import ThreadComm, World, check_run, run_ranks
from pdla.errors import AgreementError
from pdla.model.machine import Machine
from pdla.simulate import critical_path
from pdla.simulate.critical_path import Lane, Message, Path

# The kinds of entry on the agenda, in their order at equal times. A rank's turn follows all arrivals,
# so that the rank can use what has arrived. Messages start after all turns: then a link can put all
# messages of that time in their order.
ARRIVAL, TURN, START = range(3)


class VirtualWorld(World):
    """A world whose ranks take turns, by an agenda of arrivals, turns and starts."""

    machine: Machine
    now: float
    failed_rank: int
    stopped: bool

    def __init__(self, size: int, machine: Machine) -> None:
        super().__init__(size)
        self.machine, self.now = machine, 0.0
        self.lanes: list[Lane] = [Lane(machine, rank) for rank in range(size)]
        self.rounds: list[count[int]] = [count() for _ in range(size)]
        self.receives: dict[tuple[Any, ...], deque[Message]] = defaultdict(deque)  # posted receives; `mail` has what was sent
        self.asleep: dict[int, tuple[Callable[[], bool], Callable[[], str]]] = {}
        self.numbers: count[int] = count()
        self.agenda: list[tuple[float, int, tuple[Any, ...], int, Any]] = []
        self.gates: list[threading.Lock] = [threading.Lock() for _ in range(size)]
        for rank in range(1, size):
            self.gates[rank].acquire()
            self._plan(0.0, TURN, (rank,), rank)

    def _plan(self, at: float, kind: int, order: tuple[Any, ...], argument: Any) -> None:
        heappush(self.agenda, (at, kind, order, next(self.numbers), argument))

    # ------------------------------------------------------------------ turns

    def begin(self, rank: int) -> None:
        """Wait for a rank's first turn."""
        self.gates[rank].acquire()

    def end(self, rank: int) -> None:
        with self.lock:
            self.leave(rank)
        if self.alive:
            self.gates[self._next()].release()

    def _next(self) -> int:
        """Carry out the agenda up to the next turn; return the rank whose turn it is.

        After a failure the first live rank has the turn, so that one rank after another raises the error.
        """
        while self.agenda and self.failure is None:
            at, kind, _, _, argument = heappop(self.agenda)
            self.now = max(self.now, at)
            if kind == TURN:
                return argument
            if kind == START:
                self._start(argument)
            else:
                self._arrive(*argument)
        if self.asleep and self.failure is None:
            self.fail_in_deadlock([(rank, call) for rank, (_, call) in sorted(self.asleep.items())])
        return min(self.alive)

    def _yield_turn(self, rank: int) -> None:
        next_rank = self._next()
        if next_rank != rank:
            self.gates[next_rank].release()
            self.gates[rank].acquire()
        self.check_failure()

    def reach(self, rank: int, at: float) -> None:
        """Let a rank go on at the time `at`, after all earlier entries of the agenda."""
        if self.agenda and self.agenda[0][:3] < (at, TURN, (rank,)):
            self._plan(at, TURN, (rank,), rank)
            self._yield_turn(rank)
        self.now = max(self.now, at)

    def wait_until(self, rank: int, ready: Callable[[], bool], call: Callable[[], str]) -> None:
        while not ready():
            if self.stopped:
                self.check_failure()
            self.asleep[rank] = ready, call
            self.lock.release()
            try:
                self._yield_turn(rank)
            finally:
                self.lock.acquire()

    def notify(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if rank in self.asleep and self.asleep[rank][0]():
                del self.asleep[rank]
                self._plan(self.now, TURN, (rank,), rank)

    def fail(self, rank: int, failure: BaseException) -> None:
        if self.failure is None:
            self.failure, self.failed_rank, self.stopped = failure, rank, True

    # ------------------------------------------------------------------ messages

    def match(self, message: Message, cause: int | Message) -> None:
        """Start a message that is sent and whose receive is posted.

        cause: the rank that called last, or the message that this message forwards
        """
        message.set_out, message.cause = self.now, cause
        self._plan(self.now, START, message.order, message)

    def _start(self, message: Message) -> None:
        self._expect(self.lanes[message.sender].carry(message, False), self.lanes[message.receiver].carry(message, True))

    def _expect(self, outbound: critical_path.Passage, inbound: critical_path.Passage) -> None:
        """Plan a message's arrival from its passages on the sender's and on the receiver's link.

        Work of the sender or the receiver halts its links. `_arrive` then plans the arrival again.
        """
        out_end, in_end = (passage.lane.rank_time(passage.end) for passage in (outbound, inbound))
        outbound.message.slower = inbound if in_end >= out_end else outbound
        lags = outbound.lane.lag, inbound.lane.lag
        self._plan(max(out_end, in_end, self.now), ARRIVAL, outbound.message.order, (outbound, inbound, lags))

    def _arrive(self, outbound: critical_path.Passage, inbound: critical_path.Passage, lags: tuple[float, float]) -> None:
        if lags != (outbound.lane.lag, inbound.lane.lag):
            self._expect(outbound, inbound)
            return
        message = outbound.message
        message.done = self.now
        assert message.on_sent is not None and message.on_received is not None
        message.on_sent(message)
        message.on_received(message)
        message.value = message.on_sent = message.on_received = None  # the critical path keeps messages, not arrays
        self.notify((message.sender, message.receiver))


class Round:
    """One rank's part of an exchange: the messages that it awaits, has received, has sent and will forward."""

    comm: VirtualComm
    call: str
    key: tuple[Any, ...]
    recvs: Pieces
    forwards: Forwards
    number: int
    tag: str

    def __init__(self, comm: VirtualComm, call: str, key: tuple[Any, ...], recvs: Pieces, forwards: Forwards) -> None:
        self.comm, self.call, self.key, self.recvs, self.forwards = comm, call, key, recvs, forwards
        self.number, self.tag = next(comm.world.rounds[comm.me]), tag()
        self.arrived: deque[tuple[int, Message]] = deque()
        self.unforwarded: deque[int] = deque(forwards)
        self.sent: list[Message] = []
        self.delivered: list[Message] = []
        order = comm._order_by_ring(recvs, forwards)
        self.awaited: dict[int, tuple[int, Message]] = {i: (recvs[i][0], self._ask(i, *recvs[i])) for i in order}

    def _ask(self, i: int, source: int, out: Array) -> Message:
        message, both = self._pair(source, self.comm.rank, out, False)
        message.call, message.on_received = self.call.partition("(")[0], lambda message: self._receive(i, message)
        if both:
            self.comm.world.match(message, self.comm.me)
        return message

    def send(self, to: int, x: Array, nth: int, cause: int | Message) -> None:
        """Send a message, the nth of this exchange to that rank.

        Messages that set out at the same time go first to the rank before this one in the ring.
        Thus ranks do not all send to the same rank first.
        """
        comm = self.comm
        message, both = self._pair(comm.rank, to, x, True)
        message.order, message.tag = (self.number, nth, (comm.rank - to) % comm.size), self.tag
        message.on_sent = self.delivered.append
        self.sent.append(message)
        if both:
            comm.world.match(message, cause)

    def _pair(self, source: int, to: int, x: Array, sending: bool) -> tuple[Message, bool]:
        """Make the message between two ranks, or find the one that the other rank has made; and whether both have called."""
        comm, slot = self.comm, (self.comm.name, self.key, source, to)
        own_queues, peer_queues = (comm.world.mail, comm.world.receives) if sending else (comm.world.receives, comm.world.mail)
        peer = to if sending else source
        if slot not in peer_queues:
            message = Message(self.call, x, comm.ranks[source], comm.ranks[to], comm._count_sharing(peer, comm.world.machine.node))
            own_queues[slot].append(message)
            return message, False
        message = peer_queues[slot].popleft()
        if not peer_queues[slot]:
            del peer_queues[slot]
        comm._check(self.call, self.key, peer, message.call)
        comm._check_fit(self.call, source, x if sending else message.value, to, message.value if sending else x)
        return message, True

    def _receive(self, i: int, message: Message) -> None:
        self.arrived.append((i, message))
        while self.unforwarded and self.awaited[self.unforwarded[0]][1].done < inf:
            self._send_on(self.unforwarded.popleft())

    def _send_on(self, i: int) -> None:
        """Forward the message recvs[i]. This may run in another rank's turn; an error is recorded as this rank's."""
        try:
            for to in self.forwards[i]:
                self.send(to, self.recvs[i][1], i, self.awaited[i][1])
        except AgreementError as error:
            self.comm.world.fail(self.comm.me, error)

    def arrivals(self) -> Iterator[int]:
        """Yield the number of each message as it arrives; then wait until the messages that this rank sent have arrived."""
        lane = self.comm.lane
        for _ in self.recvs:
            self._wait(
                lambda: bool(self.arrived),
                lambda: (source for source, message in self.awaited.values() if message.done == inf),
            )
            i, message = self.arrived.popleft()
            lane.wait_for(message.done, message)
            yield i
        self._wait(
            lambda: len(self.delivered) == len(self.sent),
            lambda: (self.comm.ranks.index(message.receiver) for message in self.sent if message.done == inf),
        )
        if self.delivered:
            lane.wait_for(self.delivered[-1].done, self.delivered[-1])

    def _wait(self, ready: Callable[[], bool], missing: Callable[[], Iterator[int]]) -> None:
        comm = self.comm
        comm.world.reach(comm.me, comm.lane.time)
        with comm.world.lock:
            comm.world.wait_until(
                comm.me, ready, lambda: comm._describe(self.call, self.key[-1], [comm.ranks[next(missing())]])
            )


class VirtualComm(ThreadComm):
    """One rank's communicator, in a group of ranks with clocks."""

    xp: ModuleType = meta
    publishes = False
    world: VirtualWorld

    def __init__(self, world: VirtualWorld, name: tuple[Any, ...], ranks: Sequence[int], rank: int, axis: str = "all") -> None:
        super().__init__(world, name, ranks, rank, axis)
        self.lane: Lane = world.lanes[self.me]
        self.homes = [world.machine.home(r) for r in self.ranks] if world.machine.node else ()

    def _post(
        self, call: str, key: tuple[Any, ...], sends: Pieces, recvs: Pieces, forwards: Forwards, on_arrival: OnArrival | None = None
    ) -> Iterator[int]:
        if not sends and not recvs:
            return iter(())
        self.world.reach(self.me, self.lane.time)
        round_, nth = Round(self, call, key, recvs, forwards), Counter[int]()
        for to, x in sends:
            round_.send(to, x, nth[to], self.me)
            nth[to] += 1
        return round_.arrivals() if on_arrival is None else _call_on_arrival(round_.arrivals(), forwards, on_arrival)

    def _share(self, verb: str, value: Any, call: str) -> list[Any]:
        """Collective: every rank waits for the last rank. The exchange itself takes no time, as in a dry run of one rank."""
        gathered = super()._share(verb, (self.lane.time, value), call)
        latest = max(at for at, _ in gathered)
        self.world.reach(self.me, latest)
        self.lane.wait_for(latest, next(rank for rank, (at, _) in zip(self.ranks, gathered, strict=True) if at == latest))
        return [shared for _, shared in gathered]


def _call_on_arrival(arrivals: Iterator[int], forwards: Forwards, on_arrival: OnArrival) -> Iterator[int]:
    """Yield the arrivals; call `on_arrival` as this rank takes them, so that the work in it counts as this rank's."""
    arrived, order, number = set[int](), [*forwards], 0
    for i in arrivals:
        arrived.add(i)
        while number < len(order) and order[number] in arrived:
            number += 1
            on_arrival(number)
        yield i


@dataclass(frozen=True, repr=False)
class AllRanks:
    """The results, ledgers and critical path of a dry run of all ranks.

    A ledger's `seconds` is the time at which its rank ended; `computed` is how long it computed.
    Times of events are by the rank's clock.

    Parameters
    ----------
    results : list
        The program's return values, by rank.
    ledgers : list of Ledger
        The ledger of each rank.
    lanes : list
        Each rank's work and waits, from which `path` is made.
    """

    results: list[Any]
    ledgers: list[Ledger]
    lanes: list[Lane]

    def __repr__(self) -> str:
        return f"AllRanks({len(self.ledgers)} ranks, {self.seconds:.4g} s)"

    @property
    def seconds(self) -> float:
        """The time at which the last rank ended."""
        return max(ledger.seconds for ledger in self.ledgers)

    @cached_property
    def path(self) -> Path:
        """The critical path, from the last rank's end back through its waits to the start.

        `print(path)` shows it; `path.steps` and `path.by_kind()` hold its figures.
        """
        return critical_path.path(self.lanes)

    def save_trace(self, path: str) -> None:
        """Write all ranks' events as a Chrome/Perfetto trace, a process each.

        Parameters
        ----------
        path : str
            The JSON file.
        """
        trace.write(path, {rank: ledger.events for rank, ledger in enumerate(self.ledgers)})


def dry_run_all(size: int, program: Callable[..., Any], *args: Any, machine: Machine | str, **named: Any) -> AllRanks:
    """Run a program dry as each of many ranks on a described machine, each with a clock.

    `dry_run` runs one rank and assumes that all others keep pace. Here a late rank delays the ranks
    that wait for it, so ranks may have unequal work. For up to a few hundred ranks.

    Parameters
    ----------
    size : int
        The number of ranks.
    program : callable
        Each rank calls ``program(comm, *args, **named)``, without data.
    *args
        Further arguments of `program`.
    machine : Machine or str
        A machine, its name or its TOML file.
    **named
        Further arguments of `program`, by name.

    Returns
    -------
    AllRanks
        Results and ledgers by rank, and the critical path.

    Raises
    ------
    PdlaError
        For a number of ranks below 1 or beyond the largest.
    DeadlockError
        If all ranks wait; it names each rank's call.
    AgreementError
        If ranks make different calls.
    Exception
        The exception of the first rank that raises.

    Notes
    -----
    Agreements and barriers end when the last rank comes, and take no further time.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2, 2))
    ...     A = pdla.zeros((400, 400), grid, pdla.Layout("row", "col"))
    ...     A @ A
    >>> seen = pdla.dry_run_all(4, program, machine="laptop")
    >>> len(seen.ledgers), seen.seconds > 0
    (4, True)
    """
    check_run("dry_run_all", size, program, args, machine=True)
    world = VirtualWorld(size, Machine.of(machine))

    def main(rank: int) -> tuple[Any, Ledger]:
        comm = VirtualComm(world, (), range(size), rank)
        return run_as_rank(comm, world.lanes[rank], partial(program, comm, *args, **named))

    outcomes = run_ranks(world, main)
    return AllRanks([result for result, _ in outcomes], [ledger for _, ledger in outcomes], world.lanes)
