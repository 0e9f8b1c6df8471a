"""Cannon: panels are shifted from neighbour to neighbour; while two are multiplied, the next ones are on their way.

On a pr x pc grid k is cut into L = lcm(pr, pc) pieces. At step t rank (i, j) multiplies piece j
L/pc + i L/pr + t (mod L). Then all ranks of a grid row hold different parts of A and shift them
together; grid columns shift B. On a square grid this is Cannon's algorithm: a skew, then one shift
in each step. If m or n is walked, ranks pass on C's partial sums, and send them to their owners at
the end. On a square grid a rank receives at most pc (mk/P) + pr (kn/P) words: SUMMA's, and a block
of A and one of B for the skew. `matmul_words` has the formula for rectangles. All shifts are between
neighbours, except the skew and the last one of C. Cannon 1969; Lee, Robertson, Fortes 1997 for
rectangles.

Wide parts go round in slices, each with its own skew. A rank then needs two panels of A and of B,
not two blocks. Only the first slice's skew has no product to hide behind.

If the cuts of two operands do not line up (ragged sizes on a rectangle), one is gathered first: A,
or B if n is walked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import lcm, prod
from typing import Any

from pdla.comm.ledger import take
from pdla.comm.pending import Pending, to_pending
from pdla.cuts import block_bounds
from pdla.indices import IndexSet, Selection, count, find_overlaps, join
from pdla.layout import axes_of, points, shares
from pdla.matmul.schedules.base import Planned, Schedule, make_sink, run_walk
from pdla.matmul.schedules.streams import ALL, Meeting, PlanCache, Sink, Stream, list_meetings, multiply
from pdla.matmul.schedules.walk import Walk, make_streams
from pdla.matrix.core import DistMatrix

BUFFERS = 2  # panels of each operand: the one that is multiplied, and the next


@lru_cache(256)  # all ranks that are run dry, and those that are threads, ask the same
def is_in_step(walked: Walk, n: int, sides: tuple[tuple[str, int], ...]) -> bool:
    """Whether the two matrices that have the walked dimension, of n indices, can move in step on all ranks.

    They can if any two parts with common indices meet at a step of `list_part_pairs`. Their rings
    share no axis: A moves along axes that carry n, B along those that carry m, C along those that
    carry k. sides: the grid's axes and their sizes.
    """
    sizes = dict(sides)
    (x, along_x), (y, along_y) = walked.sides
    if not (along_x and along_y):
        return True
    gx, gy = (prod(sizes[axis] for axis in along) for along in (along_x, along_y))
    steps = lcm(gx, gy)
    planned = {(s * gx // steps, s * gy // steps) for s in range(steps)}
    others = dict.fromkeys(axis for nest, along in ((x, along_x), (y, along_y)) for axis in axes_of(nest) if axis not in along)
    for coords in points(sizes, tuple(others), {}):
        parts = [shares(n, nest, sizes, along, coords) for nest, along in ((x, along_x), (y, along_y))]
        if not planned.issuperset((meeting.x, meeting.y) for meeting in list_meetings(*parts)):
            return False
    return True


@dataclass(frozen=True)
class Share:
    """A stream in a slice: the share of each part, and the positions of this rank's share in its own block."""

    parts: list[IndexSet]
    mine: Selection

    @staticmethod
    def of(stream: Stream, indices: IndexSet) -> Share:
        """Find the share of a stream in a slice of these indices. A stream that does not move is not cut."""
        if not stream.moves:
            return Share(stream.parts, ALL)
        places = [indices.locate_in(part) for part in stream.parts]
        parts = [part.select(place) for part, place in zip(stream.parts, places, strict=True)]
        return Share(parts, places[stream.own_part].selection)


def list_shares(x: Stream, y: Stream, width: int) -> Iterator[tuple[Share, Share]]:
    """List the shares of x and y in each slice.

    The slices are equally wide. Their number is that of the panels of at most `width` indices in
    the widest common part.
    """
    common = [x.parts[p].select(y.parts[q].locate_in(x.parts[p])) for p, q in find_overlaps(x.parts, y.parts)]
    slices = -(-max(map(len, common), default=0) // width) if x.moves or y.moves else 1
    if slices <= 1:
        yield Share(x.parts, ALL), Share(y.parts, ALL)
        return
    for s in range(slices):
        cuts = [IndexSet.interval(*block_bounds(len(part), slices, s)) for part in common]
        indices = join([part.select(cut) for part, cut in zip(common, cuts, strict=True)])
        yield Share.of(x, indices), Share.of(y, indices)


def list_part_pairs(x: Stream, y: Stream) -> list[tuple[int, int]]:
    """List the parts of x and y, by number, that this rank holds at each step of a slice."""
    gx, gy = len(x.parts), len(y.parts)
    steps = lcm(gx, gy)
    first = x.own_part * steps // gx + y.own_part * steps // gy
    return [(s % steps * gx // steps, s % steps * gy // steps) for s in range(first, first + steps)]


@dataclass(frozen=True)
class Step:
    """A slice, a part of x and one of y, by number; and their meeting (None: they have nothing in common, or have met before)."""

    slice: int
    x: int
    y: int
    meeting: Meeting | None


@dataclass(frozen=True)
class Tour:
    """How two streams go round: their shares of each slice, and all steps."""

    x: list[Share]
    y: list[Share]
    steps: list[Step]

    @staticmethod
    def of(x: Stream, y: Stream, width: int) -> Tour:
        tour, order = Tour([], [], []), list_part_pairs(x, y)
        for number, (of_x, of_y) in enumerate(list_shares(x, y, width)):
            meetings = {(meeting.x, meeting.y): meeting for meeting in list_meetings(of_x.parts, of_y.parts)}
            tour.x.append(of_x)
            tour.y.append(of_y)
            tour.steps.extend(Step(number, *pair, meetings.pop(pair, None)) for pair in order)
        return tour

    def pair_steps(self) -> Iterator[tuple[Step | None, Step | None]]:
        """Pair each step with the next one, whose parts are sent meanwhile; the first pair is None and the first step."""
        return zip([None, *self.steps], [*self.steps, None], strict=True)


class Ring:
    """One operand on its ring of ranks: the slice and the part that this rank holds, by number, and its elements as stored."""

    stream: Stream
    shares: list[Share]
    slice: int
    part: int
    stored: Any

    def __init__(self, stream: Stream, shares: list[Share]) -> None:
        self.stream, self.shares = stream, shares
        widest = max(len(part) for share in shares for part in share.parts)
        self.buffers: list[Any] = [stream.allocate_panel(widest) for _ in range(BUFFERS)] if stream.moves else []
        self.slice, self.part, self.stored = -1, stream.own_part, stream.X.base
        self.coming: tuple[Pending, int, int] | None = None

    def start_shift(self, number: int, part: int) -> None:
        """Start the shift that brings a part of a slice; a new slice comes from the ranks' own blocks.

        The current part is valid until `finish_shift`.
        """
        if (number, part) == (self.slice, self.part):
            return
        stream, share = self.stream, self.shares[number]
        current, stored = (self.part, self.stored) if number == self.slice else (stream.own_part, stream.cut(share.mine))
        pending = to_pending(stored)
        if part != current:
            assert stream.comm is not None
            panel = stream.view_panel(self.buffers[0], len(share.parts[part]))
            pending = stream.comm.shift(stored, panel, (current - part) % stream.comm.size)
            self.buffers.reverse()
        self.coming = pending, number, part

    def finish_shift(self) -> None:
        if self.coming is not None:
            pending, self.slice, self.part = self.coming
            self.stored, self.coming = pending.wait(), None

    def panel(self, positions: Selection) -> Any:
        return self.stream.take_part(self.stored, positions)


class SumRing:
    """C on its ring of ranks: sums of a part of a slice pass from rank to rank, and return to their owner after the slice.

    The sums are sent while the next product is computed.
    """

    stream: Stream
    shares: list[Share]
    xp: Any
    product: Any
    buffers: list[Any]
    slice: int
    part: int
    sums: Any

    def __init__(self, stream: Stream, shares: list[Share]) -> None:
        self.stream, self.shares, self.xp = stream, shares, stream.X.xp
        widest = max(len(part) for share in shares for part in share.parts)
        self.product, *self.buffers = (stream.allocate_panel(widest) for _ in range(3))
        self.slice, self.part = -1, stream.own_part
        self.coming: Callable[[], Any] | None = None

    def pass_on(self, number: int, part: int) -> None:
        """Pass the sums on, and receive those of another part. Sums of a new slice start as zeros."""
        if (number, part) == (self.slice, self.part):
            return
        self.buffers.reverse()
        sums = self.stream.view_panel(self.buffers[0], len(self.shares[number].parts[part]))
        if number == self.slice:
            self.coming = self._start_shift(part, sums).wait
        else:
            self.return_sums()
            self.xp.scale(sums, 0)
        self.slice, self.part, self.sums = number, part, sums

    def return_sums(self) -> None:
        """Send the sums to the owner of their part. After `finish_shift` this rank's own sums are in C."""
        if self.slice < 0:
            return
        block, place = self.stream.X.stored, self.stream.place(self.shares[self.slice].mine)
        own = take(self.xp, block, *place)
        pending = self._start_shift(self.stream.own_part, own)

        def put() -> None:
            pending.wait()
            if not all(isinstance(positions, slice) for positions in place):
                self.xp.put(block, *place, own)

        self.coming = put

    def _start_shift(self, part: int, out: Any) -> Pending:
        """Start the shift that passes the sums on, and brings those of a part."""
        self.finish_shift()
        comm = self.stream.comm
        assert comm is not None
        return comm.shift(self.sums, out, (self.part - part) % comm.size)

    def finish_shift(self) -> None:
        if self.coming is not None:
            self.coming()
            self.coming = None

    def add(self, a: Any, b: Any, positions: Selection, alpha: complex) -> None:
        """Compute `sums += alpha a b` at these positions of the part."""
        product = self.stream.view_panel(self.product, count(positions))
        multiply(self.xp, a, b, product, alpha, 0)
        self.finish_shift()
        place = self.stream.place(positions)
        target = take(self.xp, self.sums, *place)
        self.xp.add(target, product)
        if not isinstance(positions, slice):
            self.xp.put(self.sums, *place, target)


def walk_k(a: Stream, b: Stream, sink: Sink, width: int, memo: PlanCache) -> None:
    """Compute `sink += a b`, part by part of k."""
    tour = memo.find_or_make("tour", lambda: Tour.of(a, b, width))
    ring_a, ring_b = Ring(a, tour.x), Ring(b, tour.y)
    for step, after in tour.pair_steps():
        if after is not None:
            ring_a.start_shift(after.slice, after.x)
            ring_b.start_shift(after.slice, after.y)
        if step is not None and step.meeting is not None:
            sink.add(ring_a.panel(step.meeting.in_x), ring_b.panel(step.meeting.in_y))
        ring_a.finish_shift()
        ring_b.finish_shift()
    sink.end()


def walk_mn(moving: Stream, other: Any, c: Stream, sink: Sink, width: int, memo: PlanCache) -> None:
    """Compute C = a b, part by part of m (moving is A, other B's block) or of n (moving is B, other A's block)."""
    tour = memo.find_or_make("tour", lambda: Tour.of(moving, c, width))
    ring, sum_ring = Ring(moving, tour.x), SumRing(c, tour.y) if c.moves else None
    for step, after in tour.pair_steps():
        if after is not None:
            ring.start_shift(after.slice, after.x)
        if step is not None and step.meeting is not None:
            panel = ring.panel(step.meeting.in_x)
            factors = (panel, other) if c.dimension == 0 else (other, panel)
            if sum_ring is not None:
                sum_ring.add(*factors, step.meeting.in_y, sink.alpha)
            else:
                sink.add(*factors, *c.place(step.meeting.in_y), part=(step.slice, step.x, step.y))
        ring.finish_shift()
        if sum_ring is not None and after is not None:
            sum_ring.pass_on(after.slice, after.y)
    if sum_ring is not None:
        sum_ring.return_sums()
        sum_ring.finish_shift()


def _count_visits(ring: int, across: int) -> int:
    """Count the most parts that come to a rank on a ring of `ring` ranks, if the other operand's ring has `across`."""
    steps = lcm(ring, across)
    own, other = steps // ring, steps // across
    unaligned = ((other * i // own % ring > 0) + (other * i % own > 0) for i in range(across))
    return ring - 1 + max(unaligned) if ring > 1 else 0


class Cannon(Schedule):
    """The schedule "cannon" of the registry."""

    name = "cannon"
    is_algorithm = walks = True
    keeps_copies = splits_sums = False  # each rank adds in its own order; each dimension has one ring
    in_panels = "summa"

    def run(self, plan: Planned, a: DistMatrix, b: DistMatrix, c: DistMatrix, alpha: complex, beta: complex) -> None:
        streams = make_streams(a, b, c, plan.walk, plan.memo)
        if not is_in_step(plan.walk, plan.walk.length(plan.mnk), tuple(plan.grid.sizes.items())):
            streams = self._gather(plan, streams, a, b)
        run_walk(walk_k, walk_mn, plan, streams, make_sink(plan, c, alpha, beta))

    def _gather(self, plan: Planned, streams: Any, a: DistMatrix, b: DistMatrix) -> Any:
        """Collective: make the streams with one operand gathered first, since parts do not line up on some rank."""
        walk, roles = plan.walk, plan.roles
        fixed = replace(walk, axes_b=(), B=roles.B) if walk.dimension == "n" else replace(walk, axes_a=(), A=roles.A)
        c = streams[2].X if streams is not None else DistMatrix(a.xp.empty((0, 0), a.dtype), (0, 0), plan.grid, walk.C)
        return make_streams(a, b, c, fixed, plan.memo)

    def words(self, m: int, n: int, k: int, pr: int, pc: int) -> float:
        return (m * k * _count_visits(pc, pr) + k * n * _count_visits(pr, pc)) / (pr * pc)

    def count_width_under_way(self, plan: Planned, common: int) -> int:
        return BUFFERS * min(common, plan.panel // 2 + 1)  # a slightly wider part may be cut in two
