"""What the last rank waited for: the path of work and messages that leads, without a gap, from a run's start to its end.

Each rank's `Lane` keeps its work, and what ended each of its waits. From the end of the last rank back: its work; the message
that it had waited for before that, through the link that was slower; whoever was last to ask for that message; his work; and
so on (Yang and Miller, ICDCS 1988). Whatever is not on this path could be slower, a little, without making the run longer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from pdla.comm.clock import Clock
from pdla.comm.ledger import tag
from pdla.model.machine import Machine


@dataclass(eq=False, slots=True)
class Letter:
    """A message between two ranks (of the world), from when one of them asks for it.

    order      which of those that set out at one moment comes first;  set_out: when both ranks had asked for it, seconds
    cause      the rank that asked last, or the message that was sent on as this one
    slower     its time on whichever of the two links kept it longer;  done: when it was there, inf before
    left, came what is to be done then on the sender's side, and on the receiver's
    """

    call: str
    value: Any
    sender: int
    receiver: int
    far: bool
    order: tuple[int, ...] = ()
    tag: str = ""
    set_out: float = 0.0
    cause: int | Letter = 0
    slower: Passage | None = None
    done: float = inf
    left: Callable[[Letter], None] | None = None
    came: Callable[[Letter], None] | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Passage:
    """A message's time with a rank that handles it, or on a link, in the links' seconds; `behind` what it came, if it waited.

    A message on a link has come behind another one there, or behind its own handling.
    """

    letter: Letter
    lane: Lane
    kind: str
    begins: float
    ends: float
    behind: Passage | None


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank's wait and what ended it: a message, or the last rank to come to a meeting; `lag` of its links meanwhile."""

    start: float
    end: float
    cause: int | Letter
    lag: float


@dataclass(frozen=True)
class Step:
    """A piece of the path, in seconds from the start.

    kind    "computing"; "handling": of a message; "latency": it is about to move; "near" or "far": it moves, within a node or
            between nodes
    what    of work: "gemm", "elementwise" or "erf"; else the verb
    rank    whose work it is; of a message, who receives it;  source: who sends it, else -1
    """

    kind: str
    rank: int
    what: str
    tag: str
    start: float
    end: float
    source: int = -1


class Lane(Clock):
    """One rank's clock, which keeps what moved it on: `work`, and `waits` in between."""

    def __init__(self, machine: Machine, rank: int) -> None:
        super().__init__(machine)
        self.rank, self.doing = rank, ""
        self.work: list[Step] = []
        self.waits: list[Wait] = []
        self.last: dict[tuple[bool, bool], tuple[Passage, Passage]] = {}

    def gemm(self, m: int, n: int, k: int, dtype: Any, count: int = 1) -> None:
        self.doing = "gemm"
        super().gemm(m, n, k, dtype, count)

    def touch(self, size: int, steps: int = 1) -> None:
        self.doing = "elementwise"
        super().touch(size, steps)

    def erf(self, count: int, itemsize: int) -> None:
        self.doing = "erf"
        super().erf(count, itemsize)

    def _work(self, seconds: float) -> None:
        start, name = self.time, tag()
        super()._work(seconds)
        last = self.work[-1] if self.work else None
        if last is not None and (last.what, last.tag, last.end) == (self.doing, name, start):
            start = self.work.pop().start
        self.work.append(Step("computing", self.rank, self.doing, name, start, self.time))

    def rest(self, until: float, cause: int | Letter) -> None:
        """Wait for a moment that `cause` brought, if it is still to come."""
        if until > self.time:
            self.waits.append(Wait(self.time, until, cause, self.lag))
            self.time = until

    # ------------------------------------------------------------------ links: their time is this rank's without its lag

    def links(self, at: float) -> float:
        """The links' time at a moment since the last wait."""
        return at - self.lag + (1 - self.machine.overlap) * max(0.0, self.time - at)

    def moment(self, time: float) -> float:
        """When the links' time is `time`, if this rank works no more from now on."""
        overlap = self.machine.overlap
        if overlap == 1:
            return time
        i = bisect_left(self.waits, time, key=lambda wait: wait.end - wait.lag)
        start, lag = (self.waits[i].start, self.waits[i].lag) if i < len(self.waits) else (self.time, self.lag)
        if time + lag >= start or not overlap:
            return max(start, time + lag)
        return start - (start - lag - time) / overlap

    def carry(self, letter: Letter, inbound: bool) -> Passage:
        """The message's time on one of the links, behind those that are on it, when it has been handled."""
        far, asked = letter.far, self.links(letter.set_out)
        link = (self.inbound if inbound else self.outbound)[far]
        handled_before, moved_before = self.last.get((inbound, far), (None, None))
        start = max(asked, link.handled)
        link.handled = start + self.machine.gap
        handling = Passage(letter, self, "handling", start, link.handled, handled_before if start > asked else None)
        there = link.handled + self.machine.delay(far)
        begins = max(there, link.free)
        link.free = begins + letter.value.nbytes / self.machine.rate(far)
        behind = moved_before if begins > there else handling
        moving = Passage(letter, self, "far" if far else "near", begins, link.free, behind)
        self.last[inbound, far] = handling, moving
        return moving

    # ------------------------------------------------------------------ what it did

    def wait_before(self, at: float) -> Wait | None:
        """The last wait that was over by then."""
        i = bisect_right(self.waits, at, key=lambda wait: wait.end)
        return self.waits[i - 1] if i else None

    def worked(self, start: float, end: float) -> Iterator[Step]:
        """The work between two moments, last first; a step is cut where one of them falls into it."""
        for i in range(bisect_left(self.work, end, key=lambda step: step.start) - 1, -1, -1):
            one = self.work[i]
            if one.end <= start:
                return
            yield replace(one, start=max(start, one.start), end=min(end, one.end))


@dataclass(frozen=True)
class Path:
    """Steps, each begun when the one before it had ended: the first at the start of the run, the last ends with it."""

    steps: tuple[Step, ...]

    @property
    def seconds(self) -> float:
        """From start to end."""
        return self.steps[-1].end if self.steps else 0.0

    def by_kind(self) -> dict[str, float]:
        """Seconds computing, in messages near and far, and of latency."""
        return self._sums("kind")

    def by_tag(self) -> dict[str, float]:
        """Seconds under each tag."""
        return self._sums("tag")

    def by_rank(self) -> dict[int, float]:
        """Seconds on each rank: of its work, and of messages to it."""
        return self._sums("rank")

    def _sums(self, key: str) -> dict[Any, float]:
        sums: dict[Any, float] = {}
        for step in self.steps:
            sums[getattr(step, key)] = sums.get(getattr(step, key), 0.0) + step.end - step.start
        return sums

    def __str__(self) -> str:
        """The sums, and a line a step; steps of one kind in a row are one line."""
        sums = ", ".join(f"{kind} {seconds / (self.seconds or 1):.0%}" for kind, seconds in self.by_kind().items())
        head = f"{'start':>11}{'seconds':>11}  {'':<10}{'rank':>9}"
        return "\n".join([f"{self.seconds:.4g} s: {sums}", head, *map(_line, _merged(self.steps))])


def _merged(steps: Sequence[Step]) -> list[Step]:
    made: list[Step] = []
    for step in steps:
        last = made[-1] if made else None
        if last is not None and all(getattr(last, key) == getattr(step, key) for key in ("kind", "rank", "what", "tag", "source")):
            made.pop()
            step = replace(step, start=last.start)
        made.append(step)
    return made


def _line(step: Step) -> str:
    where = f"{step.rank}" if step.source < 0 else f"{step.source} > {step.rank}"
    line = f"{step.start:11.4g}{step.end - step.start:11.4g}  {step.kind:<10}{where:>9}  {step.what:<15}{step.tag}"
    return line.rstrip()


def path(lanes: Sequence[Lane]) -> Path:
    """The critical path of a run whose ranks have these clocks."""
    last = max(lanes, key=lambda lane: lane.time)
    rank, at, steps = last.rank, last.time, list[Step]()
    while (wait := lanes[rank].wait_before(at)) is not None:
        steps += lanes[rank].worked(wait.end, at)
        cause, at = wait.cause, wait.end
        while isinstance(cause, Letter):
            steps += _carried(cause, at)
            first = _first(cause)
            cause, at = first.cause, first.set_out
        rank = cause
    steps += lanes[rank].worked(0.0, at)
    return Path(tuple(step for step in reversed(steps) if step.end > step.start))


def _queue(letter: Letter) -> Iterator[Passage]:
    """A message's time on the link that kept it, and that of all it came behind."""
    passage = letter.slower
    while passage is not None:
        yield passage
        passage = passage.behind


def _first(letter: Letter) -> Letter:
    """Of those that the message queued behind, itself among them, the first."""
    *_, passage = _queue(letter)
    return passage.letter


def _carried(letter: Letter, until: float) -> Iterator[Step]:
    """What a message that is there at a moment took, last first."""
    moves = True
    for passage in _queue(letter):
        one, lane = passage.letter, passage.lane
        if moves and passage.kind == "handling":
            moves, handled = False, max(one.set_out, min(until, lane.moment(passage.ends)))
            yield from _moved("latency", one, lane, handled, until)
            until = handled
        begins = max(one.set_out, min(until, lane.moment(passage.begins)))
        yield from _moved(passage.kind, one, lane, begins, until)
        until = begins
    yield from _moved("latency", one, lane, one.set_out, until)


def _moved(kind: str, letter: Letter, lane: Lane, start: float, end: float) -> Iterator[Step]:
    """A message's step, last first; the share of a rank's work in which its links stand still is that work's."""
    step = Step(kind, letter.receiver, letter.call, letter.tag, start, end, letter.sender)
    if lane.machine.overlap < 1:
        for work in lane.worked(start, end):
            moves = work.start + (1 - lane.machine.overlap) * (work.end - work.start)
            yield replace(step, start=moves)
            yield replace(work, end=moves)
            step = replace(step, end=work.start)
    yield step
