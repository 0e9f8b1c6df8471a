"""The critical path: the work and messages that lead, without a gap, from the start of a run to its end.

Each rank's `Lane` records its work, and what ended each of its waits. `path` goes backwards from the
end of the last rank (Yang and Miller, ICDCS 1988), in a cycle of three:

1. the rank's work, back to its last wait;
2. the message that ended the wait, on the slower of its two links;
3. the sender or the receiver of that message, whichever called later.

Work and messages off the path could take a little longer without delaying the run.
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
class Message:
    """A message between two ranks, numbered as in the world. The sender or the receiver makes it, whichever calls first.

    sharing      the number of ranks that share their node's links; 0: sender and receiver are on one node
    order        a key that orders messages of the same set_out
    set_out      the time at which both ranks have called, in seconds
    cause        the rank that called last, or the message that this message forwards
    slower       its passage on the slower of its two links
    done         the time at which it has arrived; inf before
    on_sent      called when it arrives, for the sender
    on_received  called when it arrives, for the receiver
    """

    call: str
    value: Any
    sender: int
    receiver: int
    sharing: int
    order: tuple[int, ...] = ()
    tag: str = ""
    set_out: float = 0.0
    cause: int | Message = 0
    slower: Passage | None = None
    done: float = inf
    on_sent: Callable[[Message], None] | None = None
    on_received: Callable[[Message], None] | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Passage:
    """A rank's handling of a message, or the move of its bytes on a link (`kind`), in seconds of link time.

    behind  the passage that had to end first: another message's, or this message's handling; or None
    """

    message: Message
    lane: Lane
    kind: str
    start: float
    end: float
    behind: Passage | None


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank's wait. cause: a message, or the last rank of a barrier or an agreement. lag: the lag of the rank's links."""

    start: float
    end: float
    cause: int | Message
    lag: float


@dataclass(frozen=True)
class Step:
    """A piece of the critical path.

    Parameters
    ----------
    kind : str
        "computing", or a message's "handling", "latency" (before its bytes move), "near" (bytes
        within a node) or "far" (bytes between nodes).
    rank : int
        The rank that computes, or receives the message.
    what : str
        For computing "gemm", "elementwise" or "erf"; for a message the verb.
    tag : str
        The name that `tagged` gave it.
    start, end : float
        Seconds from the start of the run.
    source : int
        The rank that sends the message; -1 for computing.
    """

    kind: str
    rank: int
    what: str
    tag: str
    start: float
    end: float
    source: int = -1


class Lane(Clock):
    """One rank's clock, with a record of its `work` and the `waits` in between.

    last  (inbound, far) -> the last message's handling, and the move of its bytes, on that link
    """

    rank: int
    operation: str

    def __init__(self, machine: Machine, rank: int) -> None:
        super().__init__(machine)
        self.rank, self.operation = rank, ""
        self.work: list[Step] = []
        self.waits: list[Wait] = []
        self.last: dict[tuple[bool, bool], tuple[Passage, Passage]] = {}

    def gemm(self, m: int, n: int, k: int, dtype: Any, count: int = 1, out: Any = None) -> None:
        self.operation = "gemm"
        super().gemm(m, n, k, dtype, count, out)

    def touch(self, size: int, steps: int = 1) -> None:
        self.operation = "elementwise"
        super().touch(size, steps)

    def erf(self, count: int, itemsize: int) -> None:
        self.operation = "erf"
        super().erf(count, itemsize)

    def _work(self, seconds: float) -> None:
        start, name = self.time, tag()
        super()._work(seconds)
        last = self.work[-1] if self.work else None
        if last is not None and (last.what, last.tag, last.end) == (self.operation, name, start):
            start = self.work.pop().start
        self.work.append(Step("computing", self.rank, self.operation, name, start, self.time))

    def wait_for(self, until: float, cause: int | Message) -> None:
        """Wait until a moment, unless it is past; `cause` ends the wait."""
        if until > self.time:
            self.waits.append(Wait(self.time, until, cause, self.lag))
            self.time = until

    # ------------------------------------------------------------------ links: link time is rank time less the lag

    def link_time(self, at: float) -> float:
        """Link time at a moment of rank time; a past moment must be within the work since the last wait."""
        return at - self.lag + (1 - self.machine.overlap) * max(0.0, self.time - at)

    def rank_time(self, time: float) -> float:
        """Rank time when link time is `time`, if the rank does no more work."""
        overlap = self.machine.overlap
        if overlap == 1:
            return time
        i = bisect_left(self.waits, time, key=lambda wait: wait.end - wait.lag)
        start, lag = (self.waits[i].start, self.waits[i].lag) if i < len(self.waits) else (self.time, self.lag)
        if time + lag >= start or not overlap:
            return max(start, time + lag)
        return start - (start - lag - time) / overlap

    def carry(self, message: Message, inbound: bool) -> Passage:
        """Queue a message on one of this rank's links; return the passage of its bytes."""
        far, ready = message.sharing > 0, self.link_time(message.set_out)
        link = (self.inbound if inbound else self.outbound)[far]
        previous_handling, previous_move = self.last.get((inbound, far), (None, None))
        start = max(ready, link.handled)
        link.handled = start + self.machine.gap
        handling = Passage(message, self, "handling", start, link.handled, previous_handling if start > ready else None)
        latency_end = link.handled + self.machine.delay(far)
        move_start = max(latency_end, link.free)
        link.free = move_start + message.value.nbytes / self.machine.rate(message.sharing)
        behind = previous_move if move_start > latency_end else handling
        moving = Passage(message, self, "far" if far else "near", move_start, link.free, behind)
        self.last[inbound, far] = handling, moving
        return moving

    # ------------------------------------------------------------------ recorded work and waits

    def wait_before(self, at: float) -> Wait | None:
        """The last wait that ended by this moment."""
        i = bisect_right(self.waits, at, key=lambda wait: wait.end)
        return self.waits[i - 1] if i else None

    def work_between(self, start: float, end: float) -> Iterator[Step]:
        """The work between two moments, the last step first. A step that reaches beyond a moment is cut there."""
        for i in range(bisect_left(self.work, end, key=lambda step: step.start) - 1, -1, -1):
            step = self.work[i]
            if step.end <= start:
                return
            yield replace(step, start=max(start, step.start), end=min(end, step.end))


@dataclass(frozen=True, repr=False)
class Path:
    """The critical path of a dry run: steps without a gap, from its start to its end.

    `print` shows them.

    Parameters
    ----------
    steps : tuple of Step
        In order.
    """

    steps: tuple[Step, ...]

    @property
    def seconds(self) -> float:
        """Seconds of the run."""
        return self.steps[-1].end if self.steps else 0.0

    def by_kind(self) -> dict[str, float]:
        """Add up the seconds of each kind of step.

        Returns
        -------
        dict of str to float
            Seconds of computing, handling, latency, near and far.
        """
        return self._sums("kind")

    def by_tag(self) -> dict[str, float]:
        """Add up the seconds under each tag.

        Returns
        -------
        dict of str to float
            Seconds by tag.
        """
        return self._sums("tag")

    def by_rank(self) -> dict[int, float]:
        """Add up the seconds of each rank.

        Returns
        -------
        dict of int to float
            Seconds of a rank's work, and of messages to it.
        """
        return self._sums("rank")

    def _sums(self, key: str) -> dict[Any, float]:
        sums: dict[Any, float] = {}
        for step in self.steps:
            sums[getattr(step, key)] = sums.get(getattr(step, key), 0.0) + step.end - step.start
        return sums

    def __repr__(self) -> str:
        return f"Path({len(self.steps)} steps, {self._shares()})"

    def __str__(self) -> str:
        """The shares of the kinds, and a line for each step; consecutive steps that differ only in time share a line."""
        head = f"{'start':>11}{'seconds':>11}  {'':<10}{'rank':>9}"
        return "\n".join([self._shares(), head, *map(_line, _merge(self.steps))])

    def _shares(self) -> str:
        sums = ", ".join(f"{kind} {seconds / (self.seconds or 1):.0%}" for kind, seconds in self.by_kind().items())
        return f"{self.seconds:.4g} s: {sums}"


def _merge(steps: Sequence[Step]) -> list[Step]:
    merged: list[Step] = []
    for step in steps:
        last = merged[-1] if merged else None
        if last is not None and all(getattr(last, key) == getattr(step, key) for key in ("kind", "rank", "what", "tag", "source")):
            merged.pop()
            step = replace(step, start=last.start)
        merged.append(step)
    return merged


def _line(step: Step) -> str:
    ranks = f"{step.rank}" if step.source < 0 else f"{step.source} > {step.rank}"
    line = f"{step.start:11.4g}{step.end - step.start:11.4g}  {step.kind:<10}{ranks:>9}  {step.what:<15}{step.tag}"
    return line.rstrip()


def path(lanes: Sequence[Lane]) -> Path:
    """The critical path of a run whose ranks have these clocks."""
    slowest = max(lanes, key=lambda lane: lane.time)
    rank, at, steps = slowest.rank, slowest.time, list[Step]()
    while (wait := lanes[rank].wait_before(at)) is not None:
        steps += lanes[rank].work_between(wait.end, at)
        cause, at = wait.cause, wait.end
        while isinstance(cause, Message):
            steps += _trace_message(cause, at)
            first = _find_first(cause)
            cause, at = first.cause, first.set_out
        rank = cause
    steps += lanes[rank].work_between(0.0, at)
    return Path(tuple(step for step in reversed(steps) if step.end > step.start))


def _queue(message: Message) -> Iterator[Passage]:
    """A message's passage on its slower link, then the passages before it in the queue, back to the first."""
    passage = message.slower
    while passage is not None:
        yield passage
        passage = passage.behind


def _find_first(message: Message) -> Message:
    """The first message in the queue before a message; the message itself if it waited for no other."""
    *_, passage = _queue(message)
    return passage.message


def _trace_message(message: Message, end: float) -> Iterator[Step]:
    """The steps of a message that arrives at `end`, and of the messages before it in the queue, last first."""
    moving = True
    for passage in _queue(message):
        queued, lane = passage.message, passage.lane
        if moving and passage.kind == "handling":
            moving, handling_end = False, max(queued.set_out, min(end, lane.rank_time(passage.end)))
            yield from _trace_link("latency", queued, lane, handling_end, end)
            end = handling_end
        start = max(queued.set_out, min(end, lane.rank_time(passage.start)))
        yield from _trace_link(passage.kind, queued, lane, start, end)
        end = start
    yield from _trace_link("latency", queued, lane, queued.set_out, end)


def _trace_link(kind: str, message: Message, lane: Lane, start: float, end: float) -> Iterator[Step]:
    """A message's step on a rank's link, in parts, last first.

    While work of the rank halts the link, the path has that work.
    """
    step = Step(kind, message.receiver, message.call, message.tag, start, end, message.sender)
    if lane.machine.overlap < 1:
        for work in lane.work_between(start, end):
            restart = work.start + (1 - lane.machine.overlap) * (work.end - work.start)
            yield replace(step, start=restart)
            yield replace(work, end=restart)
            step = replace(step, end=work.start)
    yield step
