"""SUMMA: panels are broadcast along the grid's rows and columns; while one is multiplied, the next three are on their way.

When k is walked, a rank of a pr x pc grid receives (mk/P)(pc - 1) + (kn/P)(pr - 1) words and needs
four panels of A and of B. For A B^T and A^T B the loop walks n or m. Then panels of one operand are
broadcast, and panels of C are reduced to their owners. Van de Geijn and Watts, Concurrency:
Practice and Experience 9 (1997).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import cycle
from typing import Any, TypeVar

from pdla.comm.ledger import buffer
from pdla.comm.pending import Pending, to_pending
from pdla.indices import Selection
from pdla.matmul.schedules import walk
from pdla.matmul.schedules.base import AHEAD, Planned, Schedule, Traffic, count_at_once, make_sink, run_walk
from pdla.matmul.schedules.streams import Meeting, PlanCache, Sink, Stream, list_meetings, multiply
from pdla.matrix.core import DistMatrix

Panel = TypeVar("Panel")

class Feed:
    """Panels of one operand: the one that is multiplied, and those under way."""

    def __init__(self, stream: Stream, width: int, panels: int) -> None:
        self.stream = stream
        buffers = [stream.allocate_panel(width) for _ in range(count_at_once(panels))] if stream.moves else []
        # By width, of which there are few for thousands of panels.
        self.panels: cycle[Callable[[int], Any]] = cycle([cache(partial(stream.view_panel, memory)) for memory in buffers])

    def start(self, owner: int, positions: Selection, width: int) -> tuple[Pending, Any]:
        """Start sending or receiving a panel. Return the Pending, and the panel for the product, valid after the wait."""
        stream, comm = self.stream, self.stream.comm
        if comm is None:
            panel = stream.cut(positions)
            return to_pending(panel), stream.orient(panel)
        panel = next(self.panels)(width)
        if comm.rank == owner:
            stream.X.xp.copy(panel, stream.cut(positions))
        return comm.bcast(panel, owner), stream.orient(panel)


class Drain:
    """Panels of C: the one that is computed, and those that are being summed at their owners."""

    def __init__(self, stream: Stream, width: int, panels: int) -> None:
        self.stream = stream
        self.buffers: cycle[Any] = cycle([stream.allocate_panel(width) for _ in range(count_at_once(panels))])
        self.under_way: deque[tuple[Pending, Any, Selection]] = deque()

    def panel(self, width: int) -> Any:
        if len(self.under_way) > AHEAD:
            self.finish()
        return self.stream.view_panel(next(self.buffers), width)

    def start(self, owner: int, positions: Selection, panel: Any) -> None:
        comm, X = self.stream.comm, self.stream.X
        assert comm is not None
        mine = comm.rank == owner
        out = buffer(X.xp, panel.shape, panel.dtype) if mine else None
        self.under_way.append((comm.reduce(panel, owner, out), out, positions))

    def finish(self) -> None:
        """Wait for the oldest sum under way; on the panel's owner, put it into C."""
        pending, out, positions = self.under_way.popleft()
        pending.wait()
        if out is not None:
            self.stream.X.xp.put(self.stream.X.stored, *self.stream.place(positions), out)


def list_panels(x: Stream, y: Stream, width: int, memo: PlanCache) -> tuple[list[Meeting], int]:
    """List the panels of two streams; also return the width of the widest."""
    meetings = partial(list_meetings, x.parts, y.parts)
    panels = memo.find_or_make("panels", lambda: [piece for meeting in meetings() for piece in meeting.chop(width)])
    return panels, max((panel.width for panel in panels), default=0)


def start_ahead(start: Callable[[Panel], Any], panels: Iterable[Panel]) -> Iterator[tuple[Panel, Any]]:
    """Yield each panel with the result of `start`; the next AHEAD panels have been started before."""
    coming: deque[tuple[Panel, Any]] = deque()
    for panel in panels:
        coming.append((panel, start(panel)))
        if len(coming) > AHEAD:
            yield coming.popleft()
    while coming:
        yield coming.popleft()


def walk_k(a: Stream, b: Stream, sink: Sink, width: int, memo: PlanCache) -> None:
    """Compute `sink += a b`, panel by panel of k."""
    panels, widest = list_panels(a, b, width, memo)
    feed_a, feed_b = (Feed(stream, widest, len(panels)) for stream in (a, b))

    def start(p: Meeting) -> tuple[tuple[Pending, Any], tuple[Pending, Any]]:
        return feed_a.start(p.x, p.in_x, p.width), feed_b.start(p.y, p.in_y, p.width)

    for _, ((coming_a, x), (coming_b, y)) in start_ahead(start, panels):
        coming_a.wait()
        coming_b.wait()
        sink.add(x, y)
    sink.end()


def walk_mn(moving: Stream, other: Any, c: Stream, sink: Sink, width: int, memo: PlanCache) -> None:
    """Compute C = a b, panel by panel of m (moving is A, other B's block) or of n (moving is B, other A's block)."""
    panels, widest = list_panels(moving, c, width, memo)
    feed = Feed(moving, widest, len(panels))
    drain = Drain(c, widest, len(panels)) if c.moves else None
    for number, (p, (coming, x)) in enumerate(start_ahead(lambda p: feed.start(p.x, p.in_x, p.width), panels)):
        coming.wait()
        factors = (x, other) if c.dimension == 0 else (other, x)
        if drain is None:
            sink.add(*factors, *c.place(p.in_y), part=number)
        else:
            panel = drain.panel(p.width)
            multiply(sink.xp, *factors, panel, sink.alpha, 0)
            drain.start(p.y, p.in_y, panel)
    while drain is not None and drain.under_way:
        drain.finish()


class Summa(Schedule):
    """The schedule "summa" of the registry."""

    name = "summa"
    is_algorithm = walks = True
    to_faces, in_panels = "fetch", "summa"

    def suits(self, traffic: Traffic) -> bool:
        return True

    def run(self, plan: Planned, a: DistMatrix, b: DistMatrix, c: DistMatrix, alpha: complex, beta: complex) -> None:
        streams = walk.make_streams(a, b, c, plan.walk, plan.memo)
        run_walk(walk_k, walk_mn, plan, streams, make_sink(plan, c, alpha, beta))
