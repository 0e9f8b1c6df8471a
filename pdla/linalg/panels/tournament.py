"""Tournament pivoting: w pivot rows of a panel that is cut over a grid column, in a few rounds of messages.

Each rank picks w of its rows, by LU with partial pivoting. In each round one rank of FAN picks w of
the rows that all of them have picked. The last to pick is the owner of the panel's diagonal block.
Grigori, Demmel, Xiang, CALU: SIAM J. Matrix Anal. Appl. 32 (2011), 1317-1350.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from pdla.comm.ledger import buffer
from pdla.linalg.panels import kernels
from pdla.linalg.panels.blocks import Dimension
from pdla.linalg.panels.rows import Permutation

FAN = 4  # ranks whose rows are compared in one round: a larger number makes rounds longer, a smaller number makes more rounds


@dataclass(frozen=True)
class Picked:
    """The rows that partial pivoting picks, in its order.

    offer     the picked rows: each is its number, then its elements
    factors   L and U of all rows, the picked ones first
    numbers   the numbers of the picked rows
    fault     the first faulty pivot: see lapack.find_fault
    """

    offer: Any
    factors: Any
    numbers: np.ndarray
    fault: int


def choose_pivots(xp: Any, rows: Dimension, root: int, x: Any, numbers: np.ndarray, heights: Sequence[int]) -> tuple[Any, Any]:
    """Collective along the grid column: choose the pivot rows of a panel, and factor them to L and U.

    x        this rank's rows of the panel
    numbers  their numbers in the matrix
    heights  how many rows each rank has
    root     the last rank to pick

    Returns 1 + w numbers: the first fault (see lapack.find_fault), and the numbers of the pivot rows. Also returns w x w elements
    of L and U.
    """
    w = x.shape[1]
    result = buffer(xp, (1 + w + w * w,), x.dtype)
    picked = run_tournament(xp, rows, root, x, numbers, heights)
    if picked is not None:
        finite = xp.is_finite(picked.offer)
        xp.copy(result[: 1 + w], xp.asarray(np.array([picked.fault or -int(not finite), *picked.numbers], x.dtype)))
        xp.copy(result[1 + w :].reshape(w, w), picked.factors[:w])
        if not finite:  # OpenBLAS may choose a row with NaN as a pivot, and not move it
            xp.scale(result[1 + w :], np.nan)
    rows.bcast(result, root).wait()
    return result[: 1 + w], result[1 + w :].reshape(w, w)


def solve_l(xp: Any, factors: Any, x: Any) -> None:
    """Local: overwrite the rows x of a panel with rows of L, by U in `factors`.

    A zero pivot counts as 1: only rounding errors are below it, and L must not magnify them.
    """
    at = np.arange(len(factors))
    zeros = at[xp.host_or(xp.pick(factors, at, at), at + 1) == 0]
    if len(zeros):
        xp.place(factors, zeros, zeros, 1)
    kernels.trsm(xp, factors.T, x.T, True)


def plan_rounds(rows: Dimension, root: int, limit: int, heights: Sequence[int]) -> tuple[list[list[tuple[int, int]]], int | None]:
    """Local: plan the rounds of a tree with `root` on top.

    Returns for each round the ranks that send rows to this rank, and how many, at most `limit`. Then the rank to which this rank
    sends its rows after its rounds; None on the root.
    """
    parts, place, span = rows.parts, (rows.rank - root) % rows.parts, 1
    rounds = []
    while span < parts and not place % (span * FAN):
        peers = range(place + span, min(place + span * FAN, parts), span)
        counts = [min(limit, sum(heights[(root + p) % parts] for p in range(q, min(q + span, parts)))) for q in peers]
        if any(counts):
            rounds.append([((root + q) % parts, count) for q, count in zip(peers, counts, strict=True) if count])
        span *= FAN
    return rounds, (root + place - place % (span * FAN)) % parts if span < parts else None


def run_tournament(xp: Any, rows: Dimension, root: int, x: Any, numbers: np.ndarray, heights: Sequence[int]) -> Picked | None:
    """Collective along the grid column: run all rounds. Returns the pivot rows on the last rank to pick, None on others."""
    assert rows.comm is not None
    rounds, winner = plan_rounds(rows, root, x.shape[1], heights)
    picked = _pick(xp, x, numbers)
    for senders in rounds:
        picked = _pick_among(xp, rows, picked, senders)
    if winner is None:
        return picked
    if len(picked.offer):
        rows.comm.send(picked.offer, winner).wait()
    return None


def _pick_among(xp: Any, rows: Dimension, picked: Picked, senders: list[tuple[int, int]]) -> Picked:
    """Receive the rows that senders have picked, and pick among them and this rank's. senders: rank and number of rows."""
    ends = np.cumsum([len(picked.offer), *(count for _, count in senders)]).tolist()
    stack = buffer(xp, (ends[-1], picked.offer.shape[1]), picked.offer.dtype)
    parts = [stack[lo:hi] for lo, hi in pairwise(ends)]
    receives = [rows.comm.recv(part, rank) for part, (rank, _) in zip(parts, senders, strict=True)]  # type: ignore[union-attr]
    xp.copy(stack[: ends[0]], picked.offer)
    for pending in receives:
        pending.wait()
    return _pick(xp, stack[:, 1:], xp.host_or(stack[:, 0], np.arange(ends[-1])).real.astype(np.int64))


def _pick(xp: Any, x: Any, numbers: np.ndarray) -> Picked:
    factors = buffer(xp, x.shape[::-1], x.dtype).T
    xp.copy(factors, x)
    pivots, fault = kernels.getrf(xp, factors, x)
    chosen = Permutation.of_pivots(pivots).rows(len(x))[: len(pivots)]
    offer = buffer(xp, (len(chosen), 1 + x.shape[1]), x.dtype)
    xp.copy(offer[:, 0], xp.asarray(numbers[chosen].astype(x.dtype)))
    xp.copy(offer[:, 1:], xp.take(x, chosen, slice(None)))
    return Picked(offer, factors, numbers[chosen], fault)
