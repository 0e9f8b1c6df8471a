"""All ranks of a dry run, each with a clock: a rank that is late delays those that wait for it.

Ranks are threads, of which one runs at a time: the one that is least far. So what reaches a link first by the clocks is first
there in fact, and every run gives the same times. A message sets out when its sender has sent it and its receiver has
asked for it (as MPI's long ones do), and is there when both the sender's link out and the receiver's link in, each taking one
message after another, have had the time for its bytes: LogGP (Alexandrov, Ionescu, Schauser, Scheiman, SPAA 1995).
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import count
from math import inf
from types import ModuleType
from typing import Any

from pdla.array import meta
from pdla.comm import critical, trace
from pdla.comm.base import Array, Landed, Onward, Pieces
from pdla.comm.critical import Lane, Letter, Path
from pdla.comm.dry import as_rank
from pdla.comm.ledger import Ledger, tag
from pdla.comm.threads import ThreadComm, World, check_run, together
from pdla.errors import AgreementError
from pdla.model.machine import Machine

ARRIVAL, TURN, START = range(3)  # so ordered at equal moments: ranks act on all arrivals, links see all that was asked for


class VirtualWorld(World):
    """Ranks that take turns, and what is to happen when."""

    def __init__(self, size: int, machine: Machine) -> None:
        super().__init__(size)
        self.machine, self.now = machine, 0.0
        self.lanes = [Lane(machine, rank) for rank in range(size)]
        self.rounds = [count() for _ in range(size)]
        self.asked: dict[tuple, deque[Letter]] = defaultdict(deque)  # what receivers wait for, as `mail` is what senders sent
        self.asleep: dict[int, tuple[Callable[[], bool], Callable[[], str]]] = {}
        self.numbers = count()
        self.agenda: list[tuple[float, int, tuple, int, Any]] = []
        self.gates = [threading.Lock() for _ in range(size)]
        for rank in range(1, size):
            self.gates[rank].acquire()
            self._plan(0.0, TURN, (rank,), rank)

    def _plan(self, at: float, kind: int, order: tuple, what: Any) -> None:
        heappush(self.agenda, (at, kind, order, next(self.numbers), what))

    # ------------------------------------------------------------------ turns

    def begin(self, rank: int) -> None:
        """Wait for a rank's first turn."""
        self.gates[rank].acquire()

    def end(self, rank: int) -> None:
        with self.lock:
            self.alive.discard(rank)
        if self.alive:
            self.gates[self._next()].release()

    def _next(self) -> int:
        """Let happen what comes before the next turn; gives whose it is. After a failure all go, to learn of it."""
        while self.agenda and self.failure is None:
            at, kind, _, _, what = heappop(self.agenda)
            self.now = max(self.now, at)
            if kind == TURN:
                return what
            if kind == START:
                self._start(what)
            else:
                self._arrive(*what)
        self.waiting = {rank: call for rank, (_, call) in self.asleep.items()} if self.failure is None else {}
        self.check_deadlock()
        return min(self.alive)

    def _give_way(self, rank: int) -> None:
        following = self._next()
        if following != rank:
            self.gates[following].release()
            self.gates[rank].acquire()
        self.check_failure()

    def reach(self, rank: int, at: float) -> None:
        """Go on when nobody can do anything before that moment any more."""
        if self.agenda and self.agenda[0][:3] < (at, TURN, (rank,)):
            self._plan(at, TURN, (rank,), rank)
            self._give_way(rank)
        self.now = max(self.now, at)

    def wait_until(self, rank: int, ready: Callable[[], bool], call: Callable[[], str]) -> None:
        while not ready():
            self.check_failure()
            self.asleep[rank] = ready, call
            self.lock.release()
            try:
                self._give_way(rank)
            finally:
                self.lock.acquire()

    def notify(self, rank: int) -> None:
        if rank in self.asleep and self.asleep[rank][0]():
            del self.asleep[rank]
            self._plan(self.now, TURN, (rank,), rank)

    def fail(self, rank: int, failure: BaseException) -> None:
        if self.failure is None:
            self.failure, self.failed_rank = failure, rank

    # ------------------------------------------------------------------ messages

    def paired(self, letter: Letter, cause: int | Letter) -> None:
        """Both ranks have asked for a message."""
        letter.set_out, letter.cause = self.now, cause
        self._plan(self.now, START, letter.order, letter)

    def _start(self, letter: Letter) -> None:
        self._expect(self.lanes[letter.sender].carry(letter, False), self.lanes[letter.receiver].carry(letter, True))

    def _expect(self, out: critical.Passage, into: critical.Passage) -> None:
        """When it will be there, unless a rank works meanwhile and its links stand still."""
        gone, here = (passage.lane.moment(passage.ends) for passage in (out, into))
        out.letter.slower = into if here >= gone else out
        lags = out.lane.lag, into.lane.lag
        self._plan(max(gone, here, self.now), ARRIVAL, out.letter.order, (out, into, lags))

    def _arrive(self, out: critical.Passage, into: critical.Passage, lags: tuple[float, float]) -> None:
        if lags != (out.lane.lag, into.lane.lag):
            self._expect(out, into)
            return
        letter = out.letter
        letter.done = self.now
        assert letter.left is not None and letter.came is not None
        letter.left(letter)
        letter.came(letter)
        letter.value = letter.left = letter.came = None  # the path keeps letters: with their arrays these would count as in use
        self.notify(letter.sender)
        self.notify(letter.receiver)


class Round:
    """One rank's part of an exchange: what it awaits, by turns, what has come, what it has sent and what is to be sent on."""

    def __init__(self, comm: VirtualComm, call: str, key: tuple, recvs: Pieces, onward: Onward) -> None:
        self.comm, self.call, self.key, self.recvs, self.onward = comm, call, key, recvs, onward
        self.number, self.tag = next(comm.world.rounds[comm.me]), tag()
        self.came: deque[tuple[int, Letter]] = deque()
        self.turns = deque(onward)
        self.sent: list[Letter] = []
        self.gone: list[Letter] = []
        self.awaited = {i: (source, self._ask(i, source, out)) for i, source, out in comm._in_turn(recvs, onward)}

    def _ask(self, i: int, source: int, out: Array) -> Letter:
        letter, both = self._letter(source, self.comm.rank, out, False)
        letter.call, letter.came = self.call.partition("(")[0], lambda letter: self._arrived(i, letter)
        if both:
            self.comm.world.paired(letter, self.comm.me)
        return letter

    def send(self, to: int, x: Array, nth: int, cause: int | Letter) -> None:
        """Put a message on its way, the nth of this exchange to that rank; ranks send around the ring, each to another."""
        comm = self.comm
        letter, both = self._letter(comm.rank, to, x, True)
        letter.order, letter.tag, letter.left = (self.number, nth, (comm.rank - to) % comm.size), self.tag, self.gone.append
        self.sent.append(letter)
        if both:
            comm.world.paired(letter, cause)

    def _letter(self, source: int, to: int, x: Array, sending: bool) -> tuple[Letter, bool]:
        """A message as the first of its two ranks asks for it, or as the second finds it, and whether that is so."""
        comm, slot = self.comm, (self.comm.name, self.key, source, to)
        mine, theirs = (comm.world.mail, comm.world.asked) if sending else (comm.world.asked, comm.world.mail)
        other = to if sending else source
        if slot not in theirs:
            letter = Letter(self.call, x, comm.ranks[source], comm.ranks[to], comm._far(other))
            mine[slot].append(letter)
            return letter, False
        letter = theirs[slot].popleft()
        if not theirs[slot]:
            del theirs[slot]
        comm._check(self.call, self.key, other, letter.call)
        comm._check_fit(self.call, source, x if sending else letter.value, to, letter.value if sending else x)
        return letter, True

    def _arrived(self, i: int, letter: Letter) -> None:
        self.came.append((i, letter))
        while self.turns and self.awaited[self.turns[0]][1].done < inf:
            self._send_on(self.turns.popleft())

    def _send_on(self, i: int) -> None:
        """Whoever's turn it is: an error is this rank's."""
        try:
            for to in self.onward[i]:
                self.send(to, self.recvs[i][1], i, self.awaited[i][1])
        except AgreementError as error:
            self.comm.world.fail(self.comm.me, error)

    def arrivals(self) -> Iterator[int]:
        """The number of each message that is there, in order of arrival; then this rank's own must be where they go."""
        lane = self.comm.lane
        for _ in self.recvs:
            self._wait(lambda: bool(self.came), lambda: (one for one, letter in self.awaited.values() if letter.done == inf))
            i, letter = self.came.popleft()
            lane.rest(letter.done, letter)
            yield i
        self._wait(
            lambda: len(self.gone) == len(self.sent),
            lambda: (self.comm.ranks.index(letter.receiver) for letter in self.sent if letter.done == inf),
        )
        if self.gone:
            lane.rest(self.gone[-1].done, self.gone[-1])

    def _wait(self, ready: Callable[[], bool], missing: Callable[[], Iterator[int]]) -> None:
        comm = self.comm
        comm.world.reach(comm.me, comm.lane.time)
        with comm.world.lock:
            comm.world.wait_until(
                comm.me, ready, lambda: comm._describe(self.call, self.key[-1], [comm.ranks[next(missing())]])
            )


class VirtualComm(ThreadComm):
    """One rank's handle of a group of ranks whose clocks are kept."""

    xp: ModuleType = meta
    world: VirtualWorld

    def __init__(self, world: VirtualWorld, name: tuple, ranks: Sequence[int], rank: int, axis: str = "all") -> None:
        super().__init__(world, name, ranks, rank, axis)
        self.lane = world.lanes[self.me]
        self.homes = [world.machine.home(r) for r in self.ranks] if world.machine.node else ()

    def _post(
        self, call: str, key: tuple, sends: Pieces, recvs: Pieces, onward: Onward, landed: Landed | None = None
    ) -> Iterator[int]:
        if not sends and not recvs:
            return iter(())
        self.world.reach(self.me, self.lane.time)
        round_, nth = Round(self, call, key, recvs, onward), Counter[int]()
        for to, x in sends:
            round_.send(to, x, nth[to], self.me)
            nth[to] += 1
        return round_.arrivals() if landed is None else _telling(round_.arrivals(), onward, landed)

    def _shared(self, verb: str, value: Any, call: str) -> list[Any]:
        """Nobody goes on before the last has come; the words themselves take no time, as in a dry run of one rank."""
        told = super()._shared(verb, (self.lane.time, value), call)
        latest = max(at for at, _ in told)
        self.world.reach(self.me, latest)
        self.lane.rest(latest, next(rank for rank, (at, _) in zip(self.ranks, told, strict=True) if at == latest))
        return [said for _, said in told]


def _telling(arrivals: Iterator[int], onward: Onward, landed: Landed) -> Iterator[int]:
    """The same; `landed` is told when the rank takes them, so that what it does then is its work."""
    come, turns, told = set[int](), [*onward], 0
    for i in arrivals:
        come.add(i)
        while told < len(turns) and turns[told] in come:
            told += 1
            landed(told)
        yield i


@dataclass(frozen=True)
class AllRanks:
    """What became of each rank in a dry run of all: by rank, what it returned and its ledger.

    A ledger's `seconds` are when the rank had ended, `computed` how much of that it computed; its events' times are its clock's.
    """

    results: list[Any]
    ledgers: list[Ledger]
    lanes: list[Lane]

    @property
    def seconds(self) -> float:
        """When the last rank had ended."""
        return max(ledger.seconds for ledger in self.ledgers)

    @cached_property
    def path(self) -> Path:
        """What the last rank waited for, back to the start: `path.steps`, `path.by_kind()`, `print(path)`."""
        return critical.path(self.lanes)

    def save_trace(self, path: str) -> None:
        """Write all ranks' events as a Chrome/Perfetto trace, a process each."""
        trace.write(path, {rank: ledger.events for rank, ledger in enumerate(self.ledgers)})


def dry_run_all(size: int, program: Callable[..., Any], *args: Any, machine: Machine | str) -> AllRanks:
    """Run program(comm, *args) as each of `size` ranks on a described machine, without data; for up to a few hundred of them.

    Unlike in `dry_run`, where every rank is taken to be as far as the one that is run, a rank that is late delays those who
    wait for it: ranks may have unequal work. Agreements and barriers take no time but that until the last has come.
    Errors are those of pdla.run: the first rank's that raises; DeadlockError, naming each rank's call; AgreementError.
    """
    check_run("dry_run_all", size, program)
    world = VirtualWorld(size, Machine.of(machine))

    def main(rank: int) -> tuple[Any, Ledger]:
        world.begin(rank)
        return as_rank(VirtualComm(world, (), range(size), rank), world.lanes[rank], program, args)

    told = together(world, main)
    return AllRanks([result for result, _ in told], [ledger for _, ledger in told], world.lanes)
