"""Short pieces of many ranks: gathered, or summed, in ceil(log2 P) steps of one message each, instead of P - 1 messages at once.

Each rank puts the pieces of all ranks in a row: its own first, then that of the next rank around the ring, and so on. To sum, a
rank sends the addends at places `skip` to `skip + count - 1` of its row to the rank `skip` further on, where they are those of
places 0 to `count - 1`, and adds what comes to these of its own row; after the last step its own piece, at place 0, is summed. To
gather, ranks take the steps backwards: the first `count` places go `skip` ranks back, and come to places `skip` and so on there.
Either way a rank receives P - 1 pieces, as it does directly, for any P.

Bruck, Ho, Kipnis, Upfal, Weathersby, IEEE Trans. Parallel Distrib. Syst. 8 (1997); Träff, arXiv 2410.14234 (2024).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import log2
from operator import itemgetter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from pdla.array.composed import summed_in
from pdla.comm.broadcast import Messages
from pdla.comm.ledger import buffer
from pdla.cuts import block_bounds

MANY = 32  # ranks from which this is faster, as bench/exchanges.py found
SHORT = 256 << 10  # bytes of all pieces together up to which it is


def pays(nbytes: int, ranks: int) -> bool:
    """Whether pieces of `nbytes` in all go by these steps."""
    return ranks >= MANY and nbytes < SHORT


def weight(nbytes: Any, ranks: Any) -> Any:
    """How long pieces of `nbytes` in all take, in messages that are sent at once; elementwise for arrays. A step counts as so many
    that MANY ranks take as long either way."""
    step = (MANY - 1) / log2(MANY)
    return np.where((ranks >= MANY) & (nbytes < SHORT), np.log2(ranks) * step, ranks - 1)


def skips(ranks: int) -> list[tuple[int, int]]:
    """(skip, count) of each step of a sum: each skip is half of the one before, rounded up."""
    found, left = [], ranks
    while left > 1:
        skip = -(-left // 2)
        found.append((skip, left - skip))
        left = skip
    return found


def most_addends(ranks: int, holders: int) -> int:
    """The most pieces that a rank receives in a sum where only the first `holders` ranks have pieces."""
    return sum(min(count, holders) for _, count in skips(ranks))


def balanced(n: int, rank: int, ranks: int) -> Callable[[int], int]:
    """`at` for n elements that are cut into even pieces."""
    own = block_bounds(n, ranks, rank)[0]

    def at(place: int) -> int:
        around, owner = divmod(rank + place, ranks)
        return around * n + block_bounds(n, ranks, owner)[0] - own

    return at


# ---------------------------------------------------------------------------------------------- a rank's part


class Step(NamedTuple):
    """A rank's part in a step: `sent` of its row goes to one rank, and what comes from another belongs to `into` of its row."""

    to: int
    sent: slice
    source: int
    into: slice


def summing(rank: int, ranks: int, at: Callable[[int], int]) -> list[Step]:
    """A rank's steps of a sum. at(place): where the piece at a place of its row begins; at(ranks): where the last one ends."""
    return [
        Step((rank + skip) % ranks, slice(at(skip), at(skip + count)), (rank - skip) % ranks, slice(0, at(count)))
        for skip, count in skips(ranks)
    ]


def gathering(rank: int, ranks: int, at: Callable[[int], int]) -> list[Step]:
    """A rank's steps of an all-gather."""
    return [Step(source, into, to, sent) for to, sent, source, into in reversed(summing(rank, ranks, at))]


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
    def coming(self) -> list[tuple[int, int]]:
        """For each message that will be received the rank that it comes from, and its bytes."""
        return [(source, self.row[into].nbytes) for _, _, source, into in self.parts if self.row[into].size]


def gathered(xp: ModuleType, rank: int, ranks: int, x: Any, outs: Mapping[int, Any]) -> Row:
    """x of rank r goes to outs[r] of every rank, when all have come. outs: of the other ranks, those whose x is not empty."""
    there = sorted((((r - rank) % ranks, out) for r, out in outs.items()), key=itemgetter(0))
    places = [place for place, _ in there]
    begins = [*accumulate((x.size, *(out.size for _, out in there)))]
    row = buffer(xp, (begins[-1],), x.dtype)
    xp.copy(row[: x.size].reshape(*x.shape), x)

    def at(place: int) -> int:
        return begins[bisect_left(places, place)] if place else 0

    def end() -> None:
        for (_, out), (lo, hi) in zip(there, pairwise(begins), strict=True):
            xp.copy(out, row[lo:hi].reshape(*out.shape))

    return Row(xp, row, gathering(rank, ranks, at), end)


def summed(xp: ModuleType, rank: int, parts: Sequence[Any], out: Any, op: str) -> Row:
    """The sum over ranks of parts[rank] goes to out."""
    ranks, parts = len(parts), [*parts[rank:], *parts[:rank]]
    begins = [0, *accumulate(part.size for part in parts)]
    row = buffer(xp, (begins[-1],), summed_in(out.dtype, op))
    for part, (lo, hi) in zip(parts, pairwise(begins), strict=True):
        xp.copy(row[lo:hi].reshape(*part.shape), part)
    steps = summing(rank, ranks, begins.__getitem__)
    return Row(xp, row, steps, lambda: xp.copy(out, row[: out.size].reshape(*out.shape)), op)


def summed_everywhere(xp: ModuleType, rank: int, ranks: int, x: Any, out: Any, op: str) -> Iterator[Row]:
    """The sum over ranks of x, which is flat, goes to out of every rank: first along one row, then along another, of out's dtype,
    which is the same one where the dtypes are. Ask for the second when the first has ended."""
    at, before = balanced(x.size, rank, ranks), block_bounds(x.size, ranks, rank)[0]
    row = _turned(xp, buffer(xp, x.shape, summed_in(x.dtype, op)), x, x.size - before)
    yield Row(xp, row, summing(rank, ranks, at), lambda: None, op)
    whole = row if row.dtype == out.dtype else buffer(xp, x.shape, out.dtype)
    if whole is not row:
        xp.copy(whole[: at(1)], row[: at(1)])
    yield Row(xp, whole, gathering(rank, ranks, at), lambda: _turned(xp, out, whole, before))


def _turned(xp: ModuleType, out: Any, x: Any, first: int) -> Any:
    """`out`, with the last `first` elements of x in front, and the others behind them."""
    xp.copy(out[:first], x[x.size - first :])
    xp.copy(out[first:], x[: x.size - first])
    return out
