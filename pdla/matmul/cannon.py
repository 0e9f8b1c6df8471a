"""Cannon: panels are shifted from neighbour to neighbour; a rank holds one of each at a time.

On a pr x pc grid k is cut into L = lcm(pr, pc) fine pieces, and at step t rank (i, j) multiplies piece j L/pc + i L/pr + t
(mod L): then all ranks of a grid row hold different parts of A and shift them together, and so do the columns with B. On a
square grid this is Cannon's algorithm: a skew, then one shift in each step. Where m or n is walked instead, C's partial sums are
passed from rank to rank, and go to their owners at the end. On a square grid a rank receives at most pc (mk/P) + pr (kn/P)
words, one block of A and one of B more than SUMMA, for the skew; `matmul_words` has the formula for rectangles. All shifts but
the skew, and the last one of C, are between neighbours. Cannon 1969; Lee, Robertson, Fortes 1997 for rectangles.

Where the cuts of two operands do not line up (ragged sizes on a rectangle), one is gathered first: A, or B where n is walked.
"""

from __future__ import annotations

from functools import lru_cache
from math import lcm, prod
from typing import Any

from pdla.comm.ledger import take
from pdla.comm.pending import Pending
from pdla.indices import Selection
from pdla.layout import axes_of, points, shares
from pdla.matmul.operands import Meeting, Memo, Sink, Stream, meetings, multiply
from pdla.matmul.walk import Walk


class Ring:
    """One operand on its ring of ranks: `part` is the number of the part that is here now, `stored` its elements."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.part = stream, stream.here
        self.stored = stream.X.base
        self.rooms: list[Any] = []
        self.next: Pending | None = None

    def begin(self, part: int) -> None:
        """The skew: bring the part that this rank multiplies first."""
        widest = max(map(len, self.stream.parts))
        self.rooms = [self.stream.room(widest) for _ in range(2)] if self.stream.moves else []
        self.ask(part)

    def ask(self, part: int) -> None:
        """Start the shift that brings this part; the present one is valid until `arrive`."""
        comm = self.stream.comm
        if comm is None or part == self.part:
            return
        room = self.stream.fitted(self.rooms[0], len(self.stream.parts[part]))
        self.next = comm.shift(self.stored, room, (self.part - part) % comm.size)
        self.coming = part, room
        self.rooms.reverse()

    def arrive(self) -> None:
        if self.next is not None:
            self.next.wait()
            self.part, self.stored = self.coming
            self.next = None

    def panel(self, positions: Selection) -> Any:
        return self.stream.of(self.stored, positions)


class Carried:
    """C on its ring of ranks: partial sums of part `part`, which are passed from rank to rank."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.xp = stream, stream.X.xp
        widest = max(map(len, stream.parts))
        self.rooms = [stream.room(widest) for _ in range(2)]

    def begin(self, part: int) -> None:
        self.part = part
        self.sums = self.stream.fitted(self.rooms[0], len(self.stream.parts[part]))
        self.xp.scale(self.sums, 0)

    def go_to(self, part: int) -> None:
        """Pass these sums on, and receive those of another part."""
        comm = self.stream.comm
        if part != self.part and comm is not None:
            self.rooms.reverse()
            taken = self.stream.fitted(self.rooms[0], len(self.stream.parts[part]))
            comm.shift(self.sums, taken, (self.part - part) % comm.size).wait()
            self.part, self.sums = part, taken

    def add(self, a: Any, b: Any, positions: Selection, alpha: complex) -> None:
        place = self.stream.place(positions)
        target = take(self.xp, self.sums, *place)
        multiply(self.xp, a, b, target, alpha, 1)
        if not isinstance(positions, slice):
            self.xp.put(self.sums, *place, target)

    def end(self) -> None:
        comm = self.stream.comm
        assert comm is not None
        comm.shift(self.sums, self.stream.X.stored, (self.part - comm.rank) % comm.size).wait()


@lru_cache(256)  # all ranks that are run dry, and those that are threads, ask the same
def in_step(walked: Walk, n: int, sides: tuple[tuple[str, int], ...]) -> bool:
    """Whether the two matrices that have the walked dimension, of n indices, can move in step on all ranks: any two parts with
    indices in common meet at one of the steps of `schedule`. Their rings share no axis: A moves along axes that carry n, B along
    those that carry m, C along those that carry k. sides: of the grid.
    """
    sizes = dict(sides)
    (x, along_x), (y, along_y) = walked.sides
    if not (along_x and along_y):
        return True
    gx, gy = (prod(sizes[axis] for axis in along) for along in (along_x, along_y))
    steps = lcm(gx, gy)
    planned = {(s * gx // steps, s * gy // steps) for s in range(steps)}
    apart = dict.fromkeys(axis for nest, along in ((x, along_x), (y, along_y)) for axis in axes_of(nest) if axis not in along)
    for where in points(sizes, tuple(apart), {}):
        parts = [shares(n, nest, sizes, along, where) for nest, along in ((x, along_x), (y, along_y))]
        if not planned.issuperset((meeting.x, meeting.y) for meeting in meetings(*parts)):
            return False
    return True


def schedule(x: Stream, y: Stream) -> list[tuple[int, int]]:
    """The numbers of the parts of x and y that are here at each step. A pair may come again; it is multiplied the first time."""
    gx, gy = len(x.parts), len(y.parts)
    steps = lcm(gx, gy)
    first = x.here * steps // gx + y.here * steps // gy
    return [(s % steps * gx // steps, s % steps * gy // steps) for s in range(first, first + steps)]


def table_of(x: Stream, y: Stream, memo: Memo) -> tuple[dict[tuple[int, int], Meeting], list[tuple[int, int]]]:
    """The meetings of two streams by the numbers of their parts, in a dict that the caller may empty; and the schedule."""
    table = memo.once("meetings", lambda: {(meeting.x, meeting.y): meeting for meeting in meetings(x.parts, y.parts)})
    return dict(table), memo.once("steps", lambda: schedule(x, y))


def walk_k(a: Stream, b: Stream, sink: Sink, memo: Memo) -> None:
    """sink += a b, part by part of k."""
    table, steps = table_of(a, b, memo)
    rings = Ring(a), Ring(b)
    for ring, part in zip(rings, steps[0], strict=True):
        ring.begin(part)
    for ring in rings:
        ring.arrive()
    for step, after in zip(steps, [*steps[1:], steps[-1]], strict=True):
        for ring, part in zip(rings, after, strict=True):
            ring.ask(part)
        if (meeting := table.pop(step, None)) is not None:
            sink.add(rings[0].panel(meeting.in_x), rings[1].panel(meeting.in_y))
        for ring in rings:
            ring.arrive()
    sink.end()


def walk_mn(moving: Stream, other: Any, c: Stream, sink: Sink, memo: Memo) -> None:
    """C = a b, part by part of m (moving is A, other B's block) or of n (moving is B, other A's block)."""
    table, steps = table_of(moving, c, memo)
    ring, carried = Ring(moving), Carried(c) if c.moves else None
    ring.begin(steps[0][0])
    ring.arrive()
    if carried is not None:
        carried.begin(steps[0][1])
    for step, after in zip(steps, [*steps[1:], steps[-1]], strict=True):
        ring.ask(after[0])
        if (meeting := table.pop(step, None)) is not None:
            panel = ring.panel(meeting.in_x)
            factors = (panel, other) if c.dimension == 0 else (other, panel)
            if carried is not None:
                carried.add(*factors, meeting.in_y, sink.alpha)
            else:
                sink.add(*factors, *c.place(meeting.in_y), part=step)
        ring.arrive()
        if carried is not None:
            carried.go_to(after[1])
    if carried is not None:
        carried.end()
