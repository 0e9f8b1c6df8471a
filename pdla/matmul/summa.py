"""SUMMA: panels are broadcast along the grid rows and columns, and the next one travels while this one is multiplied.

Walking k (C stays) a rank of a pr x pc grid receives (mk/P)(pc - 1) + (kn/P)(pr - 1) words and needs two panels of A and of B.
For A B^T and A^T B the same loop walks n or m: panels of one operand are broadcast, panels of C reduced to their owners.
Van de Geijn and Watts, Concurrency: Practice and Experience 9 (1997).
"""

from __future__ import annotations

from typing import Any

from pdla.comm.base import Pending, done
from pdla.comm.ledger import buffer
from pdla.indices import Selection
from pdla.matmul.operands import ALL, Meeting, Memo, Sink, Stream, meetings, multiply


class Feed:
    """Panels of one operand, two of them in flight."""

    def __init__(self, stream: Stream, width: int) -> None:
        self.stream = stream
        self.rooms = [stream.room(width) for _ in range(2)] if stream.moves else []

    def start(self, number: int, owner: int, positions: Selection, width: int) -> tuple[Pending, Any]:
        """Send or receive a panel; afterwards it is there, as seen."""
        stream, comm = self.stream, self.stream.comm
        if comm is None:
            panel = stream.cut(positions)
            return done(panel), stream.seen(panel)
        panel = stream.fitted(self.rooms[number % 2], width)
        if comm.rank == owner:
            stream.X.xp.copy(panel, stream.cut(positions))
        return comm.bcast(panel, owner), stream.seen(panel)


class Drain:
    """Panels of C: addends that are summed at their owner, two in flight."""

    def __init__(self, stream: Stream, width: int) -> None:
        self.stream = stream
        self.rooms = [stream.room(width) for _ in range(2)]
        self.under_way: list[Any] = [None, None]

    def panel(self, number: int, width: int) -> Any:
        self.finish(number)
        return self.stream.fitted(self.rooms[number % 2], width)

    def start(self, number: int, owner: int, positions: Selection, panel: Any) -> None:
        comm, X = self.stream.comm, self.stream.X
        assert comm is not None
        mine = comm.rank == owner
        out = buffer(X.xp, panel.shape, panel.dtype) if mine else None
        self.under_way[number % 2] = (comm.reduce(panel, owner, out), out, positions)

    def finish(self, number: int) -> None:
        """End what was started two panels ago, and put the sum in its place."""
        if self.under_way[number % 2] is None:
            return
        pending, out, positions = self.under_way[number % 2]
        pending.wait()
        if out is not None:
            rows, cols = (positions, ALL) if self.stream.dimension == 0 else (ALL, positions)
            self.stream.X.xp.put(self.stream.X.stored, rows, cols, out)
        self.under_way[number % 2] = None


def panels_of(x: Stream, y: Stream, width: int, memo: Memo) -> tuple[list[Meeting], int]:
    """The panels of two streams, and the width of the widest."""
    panels = memo.once("panels", lambda: [piece for meeting in meetings(x, y) for piece in meeting.chopped(width)])
    return panels, max((panel.width for panel in panels), default=0)


def walk_k(a: Stream, b: Stream, sink: Sink, width: int, memo: Memo) -> None:
    """sink += a b, panel by panel of k."""
    panels, widest = panels_of(a, b, width, memo)
    feeds = Feed(a, widest), Feed(b, widest)

    def start(number: int) -> list[tuple[Pending, Any]]:
        if number >= len(panels):
            return []
        p = panels[number]
        return [feeds[0].start(number, p.x, p.in_x, p.width), feeds[1].start(number, p.y, p.in_y, p.width)]

    coming = start(0)
    for number in range(len(panels)):
        here, coming = coming, start(number + 1)
        for pending, _ in here:
            pending.wait()
        sink.add(here[0][1], here[1][1])
    sink.end()


def walk_mn(moving: Stream, other: Any, c: Stream, sink: Sink, width: int, memo: Memo) -> None:
    """C = a b, panel by panel of m (moving is A, other B's block) or of n (moving is B, other A's block)."""
    panels, widest = panels_of(moving, c, width, memo)
    feed = Feed(moving, widest)
    drain = Drain(c, widest) if c.moves else None
    by_rows = c.dimension == 0

    def start(number: int) -> tuple[Pending, Any] | None:
        if number >= len(panels):
            return None
        p = panels[number]
        return feed.start(number, p.x, p.in_x, p.width)

    coming = start(0)
    for number, p in enumerate(panels):
        here, coming = coming, start(number + 1)
        assert here is not None
        here[0].wait()
        factors = (here[1], other) if by_rows else (other, here[1])
        if drain is None:
            _place(sink, *factors, p, by_rows)
        else:
            panel = drain.panel(number, p.width)
            multiply(sink.xp, *factors, panel, sink.alpha, 0)
            drain.start(number, p.y, p.in_y, panel)
    for number in range(len(panels), len(panels) + 2):
        if drain is not None:
            drain.finish(number)


def _place(sink: Sink, a: Any, b: Any, p: Meeting, by_rows: bool) -> None:
    rows, cols = (p.in_y, ALL) if by_rows else (ALL, p.in_y)
    sink.add(a, b, rows, cols, part=(p.x, p.y, str(p.in_y)))
