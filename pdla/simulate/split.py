"""Split a run's seconds into computing, communicating and waiting, measured and predicted by one rule.

Computing: the rank does recorded local work (an event without an axis). Communicating: a message
of its own is under way, and the rank does not compute. Waiting: the rest, from the first rank's
start to the last rank's end. A rank waits for late ranks, or does what no event records, such as
copies of panels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from math import inf
from operator import itemgetter
from statistics import fmean, median
from typing import NamedTuple

from pdla.comm.agreement import name_ranks
from pdla.comm.clock import now
from pdla.comm.communicator import Communicator
from pdla.comm.ledger import Event, Ledger, record
from pdla.errors import plural

RANKS, SPANS = 64, 2000  # the most ranks and spans of a timeline
BARRIERS = 5  # a barrier ends at about the same moment on all ranks, so its end compares their clocks


class Span(NamedTuple):
    """An event of a rank. start, end: seconds from the start of the run. bytes: bytes received."""

    rank: int
    what: str
    tag: str
    axis: str
    start: float
    end: float
    bytes: int


@dataclass(frozen=True)
class Timeline:
    """The longest events of the first ranks, by rank and start. `left_out` describes the events and ranks that are not in it."""

    spans: tuple[Span, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Split:
    """Seconds from the first rank's start to the last rank's end, and their parts, the mean over ranks.

    computing + communicating + waiting = seconds;  busiest: the longest computing of any rank
    """

    seconds: float
    computing: float
    communicating: float
    waiting: float
    busiest: float
    timeline: Timeline = Timeline()


@dataclass(frozen=True)
class Part:
    """One rank's run: times by its own clock, and the longest of its `count` events as spans."""

    rank: int
    begin: float
    end: float
    computing: float
    communicating: float
    count: int
    spans: tuple[Span, ...]

    @staticmethod
    def of(rank: int, events: Sequence[Event], begin: float, end: float, count: int) -> Part:
        local, under_way = ([(e.start, e.end) for e in events if bool(e.axis) == is_message] for is_message in (False, True))
        computing = measure_union(local)
        spans = [Span(rank, e.what, e.tag, e.axis, e.start, e.end, e.bytes) for e in events] if rank < RANKS else []
        longest = tuple(nlargest(count, spans, key=_length))
        return Part(rank, begin, end, computing, measure_union(local + under_way) - computing, len(events), longest)

    def shift(self, seconds: float) -> Part:
        """The same part in the times of a clock that is `seconds` ahead."""
        spans = tuple(s._replace(start=s.start + seconds, end=s.end + seconds) for s in self.spans)
        return replace(self, begin=self.begin + seconds, end=self.end + seconds, spans=spans)


def _length(span: Span) -> float:
    return span.end - span.start


def measure_union(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of a union of intervals."""
    total, reach = 0.0, -inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def combine(parts: Sequence[Part], ranks: int) -> Split:
    """Combine the parts of all ranks of a run, or of some, whose times are by one clock. `ranks` counts all ranks."""
    origin = min(part.begin for part in parts)
    seconds = max(part.end for part in parts) - origin
    computing, communicating = fmean(part.computing for part in parts), fmean(part.communicating for part in parts)
    timeline = _timeline([part.shift(-origin) for part in parts], ranks)
    return Split(
        seconds, computing, communicating, seconds - computing - communicating, max(part.computing for part in parts), timeline
    )


def _timeline(parts: Sequence[Part], ranks: int) -> Timeline:
    shown = [part for part in parts if part.rank < RANKS]
    spans = [span for part in shown for span in part.spans]
    longest = nlargest(SPANS, spans, key=_length)
    left_out = []
    if len(shown) < ranks:
        left_out.append(f"of {ranks} ranks all but {name_ranks([part.rank for part in shown])}")
    if (missing := sum(part.count for part in shown) - len(longest)) > 0:
        left_out.append(f"{missing} {plural(missing, 'span')}, none longer than {_length(min(longest, key=_length)):.3g} s")
    return Timeline(tuple(sorted(longest, key=itemgetter(0, 4))), tuple(left_out))


# ---------------------------------------------------------------------------------------------- runs

Work = Callable[[], object]


def measure_split(comm: Communicator, work: Work) -> tuple[Ledger, Split]:
    """Collective: run work() once; return this rank's ledger, and the split of all ranks' time."""
    ledger, part = _run(comm, work, SPANS // min(comm.size, RANKS))
    parts = zip(comm.share(part), _measure_skew(comm), strict=True)
    return ledger, combine([part.shift(-skew) for part, skew in parts], comm.size)


def split_ledgers(ledgers: Mapping[int, Ledger], ranks: int) -> Split:
    """The split of a dry run on `ranks` ranks, from the ledgers of some. In a dry run no rank waits for a late one."""
    count = SPANS // len(ledgers)
    return combine([Part.of(rank, ledger.events, 0.0, ledger.seconds, count) for rank, ledger in ledgers.items()], ranks)


def _run(comm: Communicator, work: Work, count: int) -> tuple[Ledger, Part]:
    with record() as ledger:
        comm.xp.finish()
        comm.barrier()
        begin = now()
        work()
        comm.xp.finish()
        end = now()
    return ledger, Part.of(comm.rank, ledger.events, begin, end, count)


def _measure_skew(comm: Communicator) -> list[float]:
    """Collective: the differences of the ranks' clocks from rank 0's, in seconds. The ranks of a node share a clock."""
    if comm.nodes == 1:
        return [0.0] * comm.size
    marks = []
    for _ in range(BARRIERS):
        comm.barrier()
        marks.append(now())
    times = comm.share(marks)
    node_marks = [times[list(comm.homes).index(home)] for home in comm.homes]
    return [median(own - reference for own, reference in zip(marks, times[0], strict=True)) for marks in node_marks]
