"""Permutations of rows, and how rows that are dealt to the ranks of a grid column are moved by them.

A permutation is told as moves: row `to` gets what row `was` held, all at once. All exchanges of a panel are one permutation, in one
message a peer. LAPACK's pivots are exchanges, one after another.
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
GOLDEN = (sqrt(5) - 1) / 2  # multiples of which, less their whole parts, are spread evenly, however many
RARE, ANY = 3.0, 1e9  # standard deviations: what random pivots hardly ever exceed, and no pivots at all
extra_deviations: ContextVar[float] = ContextVar("pdla_extra_deviations", default=0.0)  # in dry runs


class Permutation(NamedTuple):
    """Row to[i] gets what row was[i] held; other rows stay."""

    to: np.ndarray
    was: np.ndarray

    @staticmethod
    def of_exchanges(exchanges: Iterable[tuple[int, int]]) -> Permutation:
        """Of exchanges of two rows, one after another."""
        held: dict[int, int] = {}
        for i, j in exchanges:
            if i != j:
                held[i], held[j] = held.get(j, j), held.get(i, i)
        return Permutation(np.array([*held], np.int64), np.array([*held.values()], np.int64))

    @staticmethod
    def of_pivots(pivots: np.ndarray, first: int = 0) -> Permutation:
        """Of exchanges of rows first, first + 1, ... with rows `pivots`."""
        return Permutation.of_exchanges(enumerate(pivots.tolist(), first))

    def rows(self, m: int) -> np.ndarray:
        """Which row of an A of m rows is row i of P A."""
        rows = np.arange(m)
        rows[self.to] = self.was
        return rows


def clip_numbers(numbers: np.ndarray, first: int, end: int) -> np.ndarray:
    """Numbers from first on, before end: what is none, as of a message that erred, becomes the nearest one."""
    if not first <= numbers.min(initial=first) <= numbers.max(initial=first) < end:
        numbers = np.clip(np.nan_to_num(numbers), first, end - 1)
    return numbers.astype(np.int64)


def to_pivots(winners: np.ndarray, first: int) -> np.ndarray:
    """The exchanges that bring these rows to first, first + 1, ...: the other way round."""
    place: dict[int, int] = {}  # of a row, and what lies at a place, where they have been exchanged
    there: dict[int, int] = {}
    pivots = np.zeros(len(winners), np.int64)
    for i, row in enumerate(winners.tolist(), first):
        pivots[i - first] = at = place.get(row, row)
        other = there.get(i, i)
        place[other], there[at] = at, other
    return pivots


def draw_pivot_rows(rows: np.ndarray, owners: np.ndarray, count: int, here: int, sign: int = 1) -> np.ndarray:
    """So many of these rows, each with the rank that has it, as pivot rows of random elements lie: for arrays without data.

    In the mean each rank has its share of them, rounded up in turns; all ranks take the same.

    sign  1: this rank exchanges more rows where more of them are its own; -1: where fewer are
    """
    by_rank, deviations = np.argsort(owners, kind="stable"), extra_deviations.get()
    mine, theirs = (rows[by_rank[there]] for there in (owners[by_rank] == here, owners[by_rank] != here))
    number = _count_in_part(count, len(mine), len(rows), sign * deviations)
    stay = _count_in_part(number, min(count, len(mine)), len(mine), -deviations)  # of the rows with which pivot rows are exchanged
    phase, apart = len(rows) * GOLDEN % 1, [(theirs, count - number), (mine[count:], number - stay), (mine[:count], stay)]
    if deviations:
        return np.concatenate([_spread(part, wanted, phase) for part, wanted in apart])[::-1]
    return np.random.default_rng(len(rows)).permutation(_spread(rows[by_rank], count, phase))


def _count_in_part(count: int, part: int, whole: int, deviations: float) -> int:
    """Of so many random ones those that are in a part, by so many standard deviations more than in the mean."""
    share = part / max(1, whole)
    variance = count * share * (1 - share) * (whole - count) / max(1, whole - 1)
    return min(max(ceil(count * share + deviations * sqrt(max(0.0, variance))), count - whole + part, 0), count, part)


def _spread(rows: np.ndarray, count: int, phase: float) -> np.ndarray:
    """One of each of so many equal parts of the rows, at this place in it."""
    return rows[((np.arange(count) + phase) * len(rows) / max(1, count)).astype(np.int64)]


class RowExchange:
    """One rank's part in a permutation of the rows of its grid column.

    sends, recvs  by peer: the positions of the rows that go there, or come from there
    own           positions of rows that are written, and of those that they get
    """

    comm: Communicator | None
    own: tuple[np.ndarray, np.ndarray]

    def __init__(self, rows: Dimension, to: np.ndarray, was: np.ndarray) -> None:
        self.sends: dict[int, np.ndarray] = {}
        self.recvs: dict[int, np.ndarray] = {}
        self.comm, self.own = rows.comm if len(to) else None, (to, was)
        if self.comm is None:
            return
        takers, givers, to, was = rows.find_owners(to), rows.find_owners(was), rows.find_places(to), rows.find_places(was)
        here = rows.rank
        gives, takes = givers == here, takers == here
        self.own = to[gives & takes], was[gives & takes]
        self.sends = {int(peer): was[gives & (takers == peer)] for peer in np.unique(takers[gives & ~takes])}
        self.recvs = {int(peer): to[takes & (givers == peer)] for peer in np.unique(givers[takes & ~gives])}

    @staticmethod
    def to_order(rows: Dimension, to: np.ndarray, was: np.ndarray) -> RowExchange:
        """Rows get what others had, some of them what they have; in a dry run for ANY pivots all that can come from other ranks."""
        if extra_deviations.get() == ANY:
            mine, theirs = to[rows.find_owners(to) == rows.rank], np.flatnonzero(rows.find_owners(np.arange(rows.n)) != rows.rank)
            pairs = [*zip(mine, theirs, strict=False)]
            to, was = np.array([*pairs, *((j, i) for i, j in pairs)], np.int64).reshape(-1, 2).T
        moved = to != was
        return RowExchange(rows, to[moved], was[moved])

    def run(self, xp: Any, x: Any) -> None:
        """Collective along the grid column: move the rows of a matrix, or of some of its columns."""
        if not x.shape[1]:
            return
        sends = {peer: take(xp, x, rows, ALL) for peer, rows in self.sends.items()}
        boxes = {peer: buffer(xp, (len(rows), x.shape[1]), x.dtype) for peer, rows in self.recvs.items()}
        coming = self.comm.alltoall(sends, boxes) if self.comm is not None else ()
        to, was = self.own
        if len(to):
            xp.put(x, to, ALL, take(xp, x, was, ALL))
        for peer in coming:
            xp.put(x, self.recvs[peer], ALL, boxes[peer])
