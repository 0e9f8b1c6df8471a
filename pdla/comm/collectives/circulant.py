"""Short pieces of many ranks: gathered, or summed, in ceil(log2 P) steps of one message each, instead of P - 1 messages at once.

Each rank puts the pieces of all ranks in a row: its own first, then that of the next rank around
the ring, and so on. To sum, a rank sends the addends at places `skip` to `skip + count - 1` of its
row to the rank `skip` further on, where they are those of places 0 to `count - 1`, and adds what
comes to these of its own row; after the last step its own piece, at place 0, is summed. To gather,
ranks take the steps backwards: the first `count` places go `skip` ranks back, and come to places
`skip` and so on there. Either way a rank receives P - 1 pieces, as it does directly, for any P.
Where only some ranks have pieces of a sum, these stand evenly between the others: then the first
steps bring half of the pieces, a quarter and so on, and the last ones one each.

Bruck, Ho, Kipnis, Upfal, Weathersby, IEEE Trans. Parallel Distrib. Syst. 8 (1997); Träff, arXiv
2410.14234 (2024).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import itemgetter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from pdla.array.composed import summed_in
from pdla.comm.collectives.broadcast import Messages
from pdla.comm.ledger import buffer

MANY = 32  # ranks from which this is faster, as `python -m bench exchanges` found
SHORT = 4 << 10  # bytes of a piece up to which it is: there 64 ranks take 85 ms instead of 96, but 32 ranks as many either way


def pays(nbytes: Any, ranks: Any) -> Any:
    """Whether pieces of `nbytes` in all go by these steps; elementwise for arrays."""
    return (ranks >= MANY) & (nbytes < SHORT * ranks)


def messages(nbytes: Any, ranks: Any) -> Any:
    """Messages in which a rank receives pieces of `nbytes` in all, in steps or at once; elementwise for arrays."""
    return np.where(pays(nbytes, ranks), np.ceil(np.log2(ranks)), ranks - 1)


def skips(ranks: Any) -> list[tuple[Any, Any]]:
    """(skip, count) of each step of a sum: each skip is half of the one before, rounded up; elementwise for arrays."""
    found, left = [], ranks
    for _ in range(int(np.max(ranks, initial=1) - 1).bit_length()):
        count = left // 2
        left = left - count
        found.append((left, count))
    return found


def most_addends(ranks: Any, holders: Any) -> Any:
    """The most pieces that a rank receives in a sum where only `holders` ranks have pieces; elementwise for arrays."""
    return sum([-(-count * holders // ranks) for _, count in skips(ranks)])


def spread(sizes: Sequence[int]) -> Sequence[int]:
    """The ranks in the order in which they stand around the ring of a sum of pieces of these sizes."""
    ranks, holders = len(sizes), [rank for rank, size in enumerate(sizes) if size]
    if len(holders) in (0, ranks):
        return range(ranks)
    places = {i * ranks // len(holders): rank for i, rank in enumerate(holders)}
    others = (rank for rank, size in enumerate(sizes) if not size)
    return [places[place] if place in places else next(others) for place in range(ranks)]


# ---------------------------------------------------------------------------------------------- a rank's part


class Step(NamedTuple):
    """A rank's part in a step: `sent` of its row goes to one rank, and what comes from another belongs to `into` of its row."""

    to: int
    sent: slice
    source: int
    into: slice


def sum_steps(ring: Sequence[int], here: int, at: Callable[[int], int]) -> list[Step]:
    """The steps of a rank in a sum.

    ring: the ranks in the order in which they stand around it, this one at `here`. at(place): where
    the piece at a place of its row begins; at(number of ranks): where the last one ends.
    """
    ranks = len(ring)
    return [
        Step(ring[(here + skip) % ranks], slice(at(skip), at(skip + count)), ring[(here - skip) % ranks], slice(0, at(count)))
        for skip, count in skips(ranks)
    ]


def gather_steps(ring: Sequence[int], here: int, at: Callable[[int], int]) -> list[Step]:
    """A rank's steps of an all-gather."""
    return [Step(source, into, to, sent) for to, sent, source, into in reversed(sum_steps(ring, here, at))]


@dataclass(frozen=True)
class Row:
    """A rank's row and its steps along it.

    end  called after the last step, to put what is in the row where it belongs
    op   "add" or "maximum": what comes is combined with what is there; empty: it takes its place
    """

    xp: ModuleType
    row: Any
    parts: Sequence[Step]
    end: Callable[[], Any]
    op: str = ""

    def steps(self) -> Iterator[Messages]:
        """The messages of each step; who asks for those of the next has brought these to their ends."""
        for to, sent, source, into in self.parts:
            mine, here = self.row[sent], self.row[into]
            theirs = buffer(self.xp, here.shape, here.dtype) if self.op else here
            yield Messages([(to, mine)] if mine.size else [], [(source, theirs)] if theirs.size else [], {})
            if self.op:
                getattr(self.xp, self.op)(here, theirs)
        self.end()

    @property
    def receives(self) -> list[tuple[int, int]]:
        """For each message that will be received the rank that it comes from, and its bytes."""
        return [(source, self.row[into].nbytes) for _, _, source, into in self.parts if self.row[into].size]


def allgather(xp: ModuleType, rank: int, ranks: int, x: Any, outs: Mapping[int, Any]) -> Row:
    """`x` of rank r goes to outs[r] of every rank, when all have come. outs: of the other ranks, those whose x is not empty."""
    there = sorted((((r - rank) % ranks, out) for r, out in outs.items()), key=itemgetter(0))
    places = [0, *(place for place, _ in there)]
    begins = [0, *accumulate((x.size, *(out.size for _, out in there)))]
    row = buffer(xp, (begins[-1],), x.dtype)
    xp.copy(row[: x.size].reshape(*x.shape), x)

    def at(place: int) -> int:
        return begins[bisect_left(places, place)]

    def end() -> None:
        for (_, out), (lo, hi) in zip(there, pairwise(begins[1:]), strict=True):
            xp.copy(out, row[lo:hi].reshape(*out.shape))

    return Row(xp, row, gather_steps(range(ranks), rank, at), end)


def reduce_scatter(xp: ModuleType, rank: int, parts: Sequence[Any], out: Any, op: str) -> Row:
    """The sum over ranks of parts[rank] goes to out."""
    ring = spread([part.size for part in parts])
    here = ring.index(rank)
    mine = [parts[r] for r in (*ring[here:], *ring[:here])]
    begins = [0, *accumulate(part.size for part in mine)]
    row = buffer(xp, (begins[-1],), summed_in(out.dtype, op))
    for part, (lo, hi) in zip(mine, pairwise(begins), strict=True):
        xp.copy(row[lo:hi].reshape(*part.shape), part)
    steps = sum_steps(ring, here, begins.__getitem__)
    return Row(xp, row, steps, lambda: xp.copy(out, row[: out.size].reshape(*out.shape)), op)


def allreduce(xp: ModuleType, rank: int, ranks: int, x: Any, out: Any, op: str) -> Iterator[Row]:
    """The two rows of steps by which the sum over ranks of x, which is flat, goes to out of every rank.

    Both are of out's dtype where the dtypes are the same. Ask for the second when the first has
    ended.
    """
    before = rank * x.size // ranks

    def at(place: int) -> int:
        return (rank + place) * x.size // ranks - before

    row = _rotate(xp, buffer(xp, x.shape, summed_in(x.dtype, op)), x, x.size - before)
    yield Row(xp, row, sum_steps(range(ranks), rank, at), lambda: None, op)
    whole = row if row.dtype == out.dtype else buffer(xp, x.shape, out.dtype)
    if whole is not row:
        xp.copy(whole[: at(1)], row[: at(1)])
    yield Row(xp, whole, gather_steps(range(ranks), rank, at), lambda: _rotate(xp, out, whole, before))


def _rotate(xp: ModuleType, out: Any, x: Any, first: int) -> Any:
    """`out`, with the last `first` elements of x in front, and the others behind them."""
    xp.copy(out[:first], x[x.size - first :])
    xp.copy(out[first:], x[: x.size - first])
    return out
