"""Exchanges of rows, told as pivots, as moves or as an order; and moves of rows that lie in turns on the ranks of a grid column.

All exchanges of a panel are one move: each row that is written gets what another row had before, in
one message a peer.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from pdla.comm.ledger import buffer
from pdla.linalg.factorizations.block_cyclic import Dimension

ALL = slice(None)


def moves(pivots: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Exchanges of rows first, first + 1, ... with rows `pivots`, one after another, as one move of rows.

    They are told as the rows that are written, and those whose contents they get.
    """
    return moves_by(enumerate(pivots.tolist(), first))


def moves_by(exchanges: Iterable[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Any exchanges, one after another, as one move of rows."""
    lying: dict[int, int] = {}
    for i, j in exchanges:
        if i != j:
            lying[i], lying[j] = lying.get(j, j), lying.get(i, i)
    return np.array([*lying], np.int64), np.array([*lying.values()], np.int64)


def possible(numbers: np.ndarray, first: int, end: int) -> np.ndarray:
    """Numbers from first on, before end: what is none, as of a message that erred, becomes the nearest one."""
    return np.clip(np.nan_to_num(numbers), first, end - 1).astype(np.int64)


def order(pivots: np.ndarray, m: int) -> np.ndarray:
    """Which row of an A of m rows is row i of P A."""
    rows = list(range(m))
    for i, j in enumerate(pivots.tolist()):
        rows[i], rows[j] = rows[j], rows[i]
    return np.array(rows, np.int64)


def pivots_of(winners: np.ndarray, first: int) -> np.ndarray:
    """The exchanges that bring these rows to first, first + 1, ...: the other way round."""
    place: dict[int, int] = {}  # of a row, and what lies at a place, where they have been exchanged
    there: dict[int, int] = {}
    pivots = np.zeros(len(winners), np.int64)
    for i, row in enumerate(winners.tolist(), first):
        pivots[i - first] = at = place.get(row, row)
        other = there.get(i, i)
        place[other], there[at] = at, other
    return pivots


def spread(count: int, n: int) -> np.ndarray:
    """So many of n rows, each in the middle of its share: as pivots of random elements lie, in the mean."""
    return (2 * np.arange(count) + 1) * n // (2 * count)


class RowExchange:
    """One rank's part in a move of rows along its grid column.

    sends, recvs  by peer: the positions of the rows that go there, or come from there
    own           positions of rows that are written, and of those that they get
    """

    def __init__(self, rows: Dimension, to: np.ndarray, was: np.ndarray) -> None:
        self.sends: dict[int, np.ndarray] = {}
        self.recvs: dict[int, np.ndarray] = {}
        self.comm, self.own = rows.comm if len(to) else None, (to, was)
        if self.comm is None:
            return
        takers, givers, to, was = rows.owners(to), rows.owners(was), rows.places(to), rows.places(was)
        here = rows.here
        gives, takes = givers == here, takers == here
        self.own = to[gives & takes], was[gives & takes]
        self.sends = {int(peer): was[gives & (takers == peer)] for peer in np.unique(takers[gives & ~takes])}
        self.recvs = {int(peer): to[takes & (givers == peer)] for peer in np.unique(givers[takes & ~gives])}

    def run(self, xp: Any, *parts: Any) -> None:
        """Collective along the grid column: move the rows of several parts of a matrix, each of some columns."""
        parts = tuple(x for x in parts if x.shape[1])
        if self.comm is None or not parts:
            self._own(xp, parts)
            return
        sends = {peer: _box(xp, len(rows), parts) for peer, rows in self.sends.items()}
        boxes = {peer: _box(xp, len(rows), parts) for peer, rows in self.recvs.items()}
        for peer, rows in self.sends.items():
            for x, piece in zip(parts, _pieces(sends[peer], parts), strict=True):
                xp.copy(piece, xp.take(x, rows, ALL))
        coming = self.comm.alltoall(sends, boxes)
        self._own(xp, parts)
        for peer in coming:
            for x, piece in zip(parts, _pieces(boxes[peer], parts), strict=True):
                xp.put(x, self.recvs[peer], ALL, piece)

    def _own(self, xp: Any, parts: tuple[Any, ...]) -> None:
        to, was = self.own
        for x in parts if len(to) else ():
            xp.put(x, to, ALL, xp.take(x, was, ALL))


def _box(xp: Any, count: int, parts: tuple[Any, ...]) -> Any:
    """Room for so many rows of all parts."""
    return buffer(xp, (count * sum(x.shape[1] for x in parts),), parts[0].dtype)


def _pieces(box: Any, parts: tuple[Any, ...]) -> list[Any]:
    """What of it is of each part."""
    count, ends = box.size // sum(x.shape[1] for x in parts), np.cumsum([0, *(x.shape[1] for x in parts)]).tolist()
    return [box[count * lo : count * hi].reshape(count, hi - lo) for lo, hi in pairwise(ends)]
