"""Permutations of rows, and their messages between the ranks of a grid column, which own rows in turns.

A permutation is a set of moves, all at once: row `to` receives the elements of row `was`. A panel's exchanges form one permutation,
sent in one message a peer. LAPACK's pivots are exchanges, one after another.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from math import ceil, sqrt
from typing import Any, NamedTuple

import numpy as np

from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffer, take
from pdla.linalg.panels.blocks import Dimension

ALL = slice(None)
GOLDEN = (sqrt(5) - 1) / 2  # its multiples have evenly spread fractional parts
RARE, ANY = 3.0, 1e9  # standard deviations that random pivots hardly ever exceed, and that no pivots exceed
extra_deviations: ContextVar[float] = ContextVar("pdla_extra_deviations", default=0.0)  # in dry runs


class Permutation(NamedTuple):
    """Row to[i] receives the elements of row was[i]; other rows do not change."""

    to: np.ndarray
    was: np.ndarray

    @staticmethod
    def of_exchanges(exchanges: Iterable[tuple[int, int]]) -> Permutation:
        """The permutation of exchanges of two rows, one after another."""
        source: dict[int, int] = {}
        for i, j in exchanges:
            if i != j:
                source[i], source[j] = source.get(j, j), source.get(i, i)
        return Permutation(np.array([*source], np.int64), np.array([*source.values()], np.int64))

    @staticmethod
    def of_pivots(pivots: np.ndarray, first: int = 0) -> Permutation:
        """The permutation that exchanges rows first, first + 1, ... with rows `pivots`."""
        return Permutation.of_exchanges(enumerate(pivots.tolist(), first))

    def rows(self, m: int) -> np.ndarray:
        """For each row of P A, the number of that row in A, which has m rows."""
        rows = np.arange(m)
        rows[self.to] = self.was
        return rows


def clip_numbers(numbers: np.ndarray, first: int, end: int) -> np.ndarray:
    """Clip numbers to first ... end - 1: a faulty message may have numbers out of range, or NaN."""
    if not first <= numbers.min(initial=first) <= numbers.max(initial=first) < end:
        numbers = np.clip(np.nan_to_num(numbers), first, end - 1)
    return numbers.astype(np.int64)


def to_pivots(winners: np.ndarray, first: int) -> np.ndarray:
    """LAPACK's pivots that move these rows to first, first + 1, ...: the inverse of `Permutation.of_pivots`."""
    places: dict[int, int] = {}  # the current place of each exchanged row; `rows`: the row at each place
    rows: dict[int, int] = {}
    pivots = np.zeros(len(winners), np.int64)
    for i, row in enumerate(winners.tolist(), first):
        pivots[i - first] = at = places.get(row, row)
        displaced = rows.get(i, i)
        places[displaced], rows[at] = at, displaced
    return pivots


def draw_pivot_rows(rows: np.ndarray, owners: np.ndarray, count: int, rank: int, sign: int = 1) -> np.ndarray:
    """Draw `count` of these rows, for arrays without data, distributed as pivot rows of random elements are.

    In the mean each rank has its share of them, rounded up in turns; all ranks draw the same rows.

    owners  the rank that owns each row
    sign    1 if this rank exchanges more rows when it owns more pivot rows; -1 when it owns fewer
    """
    by_rank, deviations = np.argsort(owners, kind="stable"), extra_deviations.get()
    own_rows, other_rows = (rows[by_rank[selected]] for selected in (owners[by_rank] == rank, owners[by_rank] != rank))
    own_count = _count_in_part(count, len(own_rows), len(rows), sign * deviations)
    # The first `count` rows are exchanged with the pivot rows: how many of these rows are pivot rows themselves.
    top_count = _count_in_part(own_count, min(count, len(own_rows)), len(own_rows), -deviations)
    phase = len(rows) * GOLDEN % 1
    groups = [(other_rows, count - own_count), (own_rows[count:], own_count - top_count), (own_rows[:count], top_count)]
    if deviations:
        return np.concatenate([_spread(group, size, phase) for group, size in groups])[::-1]
    return np.random.default_rng(len(rows)).permutation(_spread(rows[by_rank], count, phase))


def _count_in_part(count: int, part: int, total: int, deviations: float) -> int:
    """Count the rows of a part among `count` random rows of a total: so many standard deviations above the mean."""
    share = part / max(1, total)
    variance = count * share * (1 - share) * (total - count) / max(1, total - 1)
    return min(max(ceil(count * share + deviations * sqrt(max(0.0, variance))), count - total + part, 0), count, part)


def _spread(rows: np.ndarray, count: int, phase: float) -> np.ndarray:
    """Pick one row from each of `count` equal parts, at the place `phase` in the part."""
    return rows[((np.arange(count) + phase) * len(rows) / max(1, count)).astype(np.int64)]


class RowExchange:
    """One rank's part in a permutation of the rows of its grid column.

    sends, recvs  by peer: the positions of rows sent to it, or received from it
    own           the target and source positions of rows that move within this rank
    """

    comm: Communicator | None
    own: tuple[np.ndarray, np.ndarray]

    def __init__(self, rows: Dimension, to: np.ndarray, was: np.ndarray) -> None:
        self.sends: dict[int, np.ndarray] = {}
        self.recvs: dict[int, np.ndarray] = {}
        self.comm, self.own = rows.comm if len(to) else None, (to, was)
        if self.comm is None:
            return
        receivers, senders, to, was = rows.find_owners(to), rows.find_owners(was), rows.find_places(to), rows.find_places(was)
        rank = rows.rank
        sends, receives = senders == rank, receivers == rank
        self.own = to[sends & receives], was[sends & receives]
        self.sends = {int(peer): was[sends & (receivers == peer)] for peer in np.unique(receivers[sends & ~receives])}
        self.recvs = {int(peer): to[receives & (senders == peer)] for peer in np.unique(senders[receives & ~sends])}

    @staticmethod
    def to_order(rows: Dimension, to: np.ndarray, was: np.ndarray) -> RowExchange:
        """The exchange by which rows `to` receive rows `was`. In a dry run for ANY pivots, other ranks send as many as they can."""
        if extra_deviations.get() == ANY:
            own_rows = to[rows.find_owners(to) == rows.rank]
            other_rows = np.flatnonzero(rows.find_owners(np.arange(rows.n)) != rows.rank)
            pairs = [*zip(own_rows, other_rows, strict=False)]
            to, was = np.array([*pairs, *((j, i) for i, j in pairs)], np.int64).reshape(-1, 2).T
        moved = to != was
        return RowExchange(rows, to[moved], was[moved])

    def run(self, xp: Any, x: Any) -> None:
        """Collective along the grid column: move the rows of a matrix, or of some of its columns."""
        if not x.shape[1]:
            return
        sends = {peer: take(xp, x, rows, ALL) for peer, rows in self.sends.items()}
        received = {peer: buffer(xp, (len(rows), x.shape[1]), x.dtype) for peer, rows in self.recvs.items()}
        arrivals = self.comm.alltoall(sends, received) if self.comm is not None else ()
        to, was = self.own
        if len(to):
            xp.put(x, to, ALL, take(xp, x, was, ALL))
        for peer in arrivals:
            xp.put(x, self.recvs[peer], ALL, received[peer])
