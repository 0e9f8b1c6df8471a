"""Gather or sum short pieces of many ranks in ceil(log2 P) steps of one message each, instead of P - 1 messages at once.

Each rank keeps the pieces of all ranks in a row: place i has the piece of rank + i around the ring.

A step of a sum sends the addends at places [skip, skip + count) to rank + skip. The receiver adds
them to its places [0, count). After the last step place 0 has the sum of the rank's own piece.

A step of a gather is the reverse. It sends places [0, count) to rank - skip, which stores them at
places [skip, skip + count).

A rank receives P - 1 pieces in all, for any P, as it does directly. If only some ranks have pieces
of a sum, they are spaced evenly around the ring. The first steps then receive a half, a quarter, ...
of the pieces, and the last steps one each.

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

from pdla.array.composed import reduction_dtype
from pdla.comm.collectives.broadcast import Messages
from pdla.comm.ledger import buffer

# Steps are faster than P - 1 messages at once for at least MANY ranks and pieces of less than SHORT
# bytes, by `python -m bench exchanges`: at this length 64 ranks take 85 ms instead of 96.
MANY = 32
SHORT = 4 << 10


def pays(nbytes: Any, ranks: Any) -> Any:
    """Whether pieces of `nbytes` in all are sent in steps; elementwise for arrays."""
    return (ranks >= MANY) & (nbytes < SHORT * ranks)


def count_messages(nbytes: Any, ranks: Any) -> Any:
    """Count the messages that a rank receives for pieces of `nbytes` in all, in steps or at once; elementwise for arrays."""
    return np.where(pays(nbytes, ranks), np.ceil(np.log2(ranks)), ranks - 1)


def list_skips(ranks: Any) -> list[tuple[Any, Any]]:
    """List (skip, count) of each step of a sum: each skip is half of the one before, rounded up; elementwise for arrays."""
    steps, skip = [], ranks
    for _ in range(int(np.max(ranks, initial=1) - 1).bit_length()):
        count = skip // 2
        skip = skip - count
        steps.append((skip, count))
    return steps


def count_most_addends(ranks: Any, holders: Any) -> Any:
    """Count the most pieces that a rank receives in a sum if only `holders` ranks have pieces; elementwise for arrays."""
    return sum([-(-count * holders // ranks) for _, count in list_skips(ranks)])


def spread(sizes: Sequence[int]) -> Sequence[int]:
    """Order the ranks around the ring of a sum of pieces of these sizes."""
    ranks, holders = len(sizes), [rank for rank, size in enumerate(sizes) if size]
    if len(holders) in (0, ranks):
        return range(ranks)
    places = {i * ranks // len(holders): rank for i, rank in enumerate(holders)}
    others = (rank for rank, size in enumerate(sizes) if not size)
    return [places[place] if place in places else next(others) for place in range(ranks)]


# ---------------------------------------------------------------------------------------------- a rank's part


class Step(NamedTuple):
    """A rank's part in a step: it sends `sent` of its row to rank `to`, and receives `into` of its row from rank `source`."""

    to: int
    sent: slice
    source: int
    into: slice


def list_sum_steps(ring: Sequence[int], position: int, start: Callable[[int], int]) -> list[Step]:
    """List a rank's steps of a sum.

    * ring: the ranks in their order around it, this one at `position`.
    * start(place): the start of the piece at this place of the row; start(ranks) is the end of the last piece.
    """
    ranks = len(ring)
    steps = []
    for skip, count in list_skips(ranks):
        to, source = ring[(position + skip) % ranks], ring[(position - skip) % ranks]
        steps.append(Step(to, slice(start(skip), start(skip + count)), source, slice(0, start(count))))
    return steps


def list_gather_steps(ring: Sequence[int], position: int, start: Callable[[int], int]) -> list[Step]:
    """List a rank's steps of an all-gather."""
    return [Step(source, into, to, sent) for to, sent, source, into in reversed(list_sum_steps(ring, position, start))]


@dataclass(frozen=True)
class Row:
    """A rank's row and its steps along it."""

    xp: ModuleType
    row: Any
    parts: Sequence[Step]
    end: Callable[[], Any]  # called after the last step, to copy the row's pieces to their arrays
    op: str = ""  # "add" or "maximum" combines received pieces with those of the row; "" replaces them

    def steps(self) -> Iterator[Messages]:
        """Yield the messages of each step; the caller completes them before it asks for the next."""
        for to, sent, source, into in self.parts:
            outgoing, own = self.row[sent], self.row[into]
            received = buffer(self.xp, own.shape, own.dtype) if self.op else own
            yield Messages([(to, outgoing)] if outgoing.size else [], [(source, received)] if received.size else [], {})
            if self.op:
                getattr(self.xp, self.op)(own, received)
        self.end()

    @property
    def receives(self) -> list[tuple[int, int]]:
        """The sender and the bytes of each message that the rank receives."""
        return [(source, self.row[into].nbytes) for _, _, source, into in self.parts if self.row[into].size]


def allgather(xp: ModuleType, rank: int, ranks: int, x: Any, outs: Mapping[int, Any]) -> Row:
    """Copy `x` of rank r to outs[r] of every rank, after the last step. outs: of the other ranks whose x is not empty."""
    pieces = sorted((((r - rank) % ranks, out) for r, out in outs.items()), key=itemgetter(0))
    places = [0, *(place for place, _ in pieces)]
    starts = [0, *accumulate((x.size, *(out.size for _, out in pieces)))]
    row = buffer(xp, (starts[-1],), x.dtype)
    xp.copy(row[: x.size].reshape(*x.shape), x)

    def start(place: int) -> int:
        return starts[bisect_left(places, place)]

    def end() -> None:
        for (_, out), (lo, hi) in zip(pieces, pairwise(starts[1:]), strict=True):
            xp.copy(out, row[lo:hi].reshape(*out.shape))

    return Row(xp, row, list_gather_steps(range(ranks), rank, start), end)


def reduce_scatter(xp: ModuleType, rank: int, parts: Sequence[Any], out: Any, op: str) -> Row:
    """Write the sum over ranks of parts[rank] to `out`."""
    ring = spread([part.size for part in parts])
    position = ring.index(rank)
    ordered = [parts[r] for r in (*ring[position:], *ring[:position])]
    starts = [0, *accumulate(part.size for part in ordered)]
    row = buffer(xp, (starts[-1],), reduction_dtype(out.dtype, op))
    for part, (lo, hi) in zip(ordered, pairwise(starts), strict=True):
        xp.copy(row[lo:hi].reshape(*part.shape), part)
    steps = list_sum_steps(ring, position, starts.__getitem__)
    return Row(xp, row, steps, lambda: xp.copy(out, row[: out.size].reshape(*out.shape)), op)


def allreduce(xp: ModuleType, rank: int, ranks: int, x: Any, out: Any, op: str) -> Iterator[Row]:
    """Yield the two rows of steps that write the sum over ranks of x, which is flat, to `out` of every rank.

    The caller asks for the second row when the first has ended. Both rows have the dtype of `out` if
    sums have that dtype.
    """
    before = rank * x.size // ranks

    def start(place: int) -> int:
        return (rank + place) * x.size // ranks - before

    row = _rotate(xp, buffer(xp, x.shape, reduction_dtype(x.dtype, op)), x, x.size - before)
    yield Row(xp, row, list_sum_steps(range(ranks), rank, start), lambda: None, op)
    whole = row if row.dtype == out.dtype else buffer(xp, x.shape, out.dtype)
    if whole is not row:
        xp.copy(whole[: start(1)], row[: start(1)])
    yield Row(xp, whole, list_gather_steps(range(ranks), rank, start), lambda: _rotate(xp, out, whole, before))


def _rotate(xp: ModuleType, out: Any, x: Any, first: int) -> Any:
    """Rotate x into `out`: its last `first` elements go to the front."""
    xp.copy(out[:first], x[x.size - first :])
    xp.copy(out[first:], x[: x.size - first])
    return out
