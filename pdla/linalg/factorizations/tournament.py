"""Tournament pivoting: w pivot rows of a panel that is cut over a grid column, in a few rounds of messages.

Each rank picks w of its rows, by LU with partial pivoting; of the rows of up to FAN ranks one of
them picks w again, and so on, up to the rank that has the panel's diagonal block. Grigori, Demmel,
Xiang, CALU: SIAM J. Matrix Anal. Appl. 32 (2011), 1317-1350.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from pdla.comm.ledger import buffer
from pdla.linalg.factorizations import kernels
from pdla.linalg.factorizations.block_cyclic import Dimension
from pdla.linalg.factorizations.row_exchange import order

FAN = 4  # ranks whose rows meet in one round: more make a round longer, fewer make more rounds


@dataclass(frozen=True)
class Picked:
    """Of some rows those that partial pivoting takes, in its order.

    offer     a row each: its number, and what it holds
    factors   L and U of all these rows, in that order
    numbers   the rows' numbers
    singular  the number of the first pivot that is 0 or NaN, from 1 on; 0: none is
    """

    offer: Any
    factors: Any
    numbers: np.ndarray
    singular: int


def winners(xp: Any, rows: Dimension, k: int, x: Any, numbers: np.ndarray) -> Picked | None:
    """Collective along the grid column: of all ranks' rows x of panel k, on the rank that has block k; None on the others.

    numbers: of the rows x in the matrix.
    """
    assert rows.comm is not None
    place, span, width = (rows.here - rows.owner(k)) % rows.parts, 1, x.shape[1]
    picked = _picked(xp, x, numbers)
    while span < rows.parts:
        if place % (span * FAN):
            if len(picked.offer):
                rows.comm.send(picked.offer, rows.owner(k + place - place % (span * FAN))).wait()
            return None
        others = range(place + span, min(place + span * FAN, rows.parts), span)
        counts = [min(width, sum(_height(rows, k + p) for p in range(q, min(q + span, rows.parts)))) for q in others]
        if any(counts):
            picked = _met(xp, rows, picked, [(rows.owner(k + q), count) for q, count in zip(others, counts, strict=True) if count])
        span *= FAN
    return picked


def _height(rows: Dimension, k: int) -> int:
    """How many rows the rank that has block k has of this one and later ones."""
    theirs = replace(rows, here=rows.owner(k))
    return theirs.begins(rows.count) - theirs.begins(k)


def _met(xp: Any, rows: Dimension, picked: Picked, coming: list[tuple[int, int]]) -> Picked:
    """Pick among the rows that this rank has picked and those that come, so many from each rank."""
    ends = np.cumsum([len(picked.offer), *(count for _, count in coming)]).tolist()
    stack = buffer(xp, (ends[-1], picked.offer.shape[1]), picked.offer.dtype)
    parts = [stack[lo:hi] for lo, hi in pairwise(ends)]
    arriving = [rows.comm.recv(part, rank) for part, (rank, _) in zip(parts, coming, strict=True)]  # type: ignore[union-attr]
    xp.copy(stack[: ends[0]], picked.offer)
    for pending in arriving:
        pending.wait()
    return _picked(xp, stack[:, 1:], xp.host_or(stack[:, 0], np.arange(ends[-1])).real.astype(np.int64))


def _picked(xp: Any, x: Any, numbers: np.ndarray) -> Picked:
    factors = buffer(xp, x.shape[::-1], x.dtype).T
    xp.copy(factors, x)
    pivots, singular = kernels.getrf(xp, factors)
    chosen = order(pivots, len(x))[: len(pivots)]
    offer = buffer(xp, (len(chosen), 1 + x.shape[1]), x.dtype)
    xp.copy(offer[:, 0], xp.asarray(numbers[chosen].astype(x.dtype)))
    xp.copy(offer[:, 1:], xp.take(x, chosen, slice(None)))
    return Picked(offer, factors, numbers[chosen], singular)
