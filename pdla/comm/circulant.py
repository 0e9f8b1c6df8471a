"""Short pieces of many ranks: gathered, or summed, in ceil(log2 P) steps of one message each, instead of P - 1 messages at once.

Each rank puts the pieces of all ranks in a row: its own first, then that of the next rank around the ring, and so on. To sum, a
rank sends the addends at places `skip` to `skip + count - 1` of its row to the rank `skip` further on, where they are those of
places 0 to `count - 1`, and adds what comes to these of its own row; after the last step its own piece, at place 0, is summed. To
gather, ranks take the steps backwards: the first `count` places go `skip` ranks back, and come to places `skip` and so on there.
Either way a rank receives P - 1 pieces, as it does directly, for any P.

Bruck, Ho, Kipnis, Upfal, Weathersby, IEEE Trans. Parallel Distrib. Syst. 8 (1997); Träff, arXiv 2410.14234 (2024).
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any, NamedTuple

import numpy as np

from pdla.cuts import block_bounds

MANY = 32  # ranks from which this is faster, as bench/exchanges.py found
SHORT = 256 << 10  # bytes of all pieces together up to which it is


class Step(NamedTuple):
    """A rank's part in a step: `sent` of its row goes to one rank, and what comes from another belongs to `into` of its row."""

    to: int
    sent: slice
    source: int
    into: slice


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


def summing(rank: int, ranks: int, at: Callable[[int], int]) -> list[Step]:
    """A rank's steps of a sum. at(place): where the piece at a place of its row begins; at(ranks): where the last one ends."""
    return [
        Step((rank + skip) % ranks, slice(at(skip), at(skip + count)), (rank - skip) % ranks, slice(0, at(count)))
        for skip, count in skips(ranks)
    ]


def gathering(rank: int, ranks: int, at: Callable[[int], int]) -> list[Step]:
    """A rank's steps of an all-gather."""
    return [Step(source, into, to, sent) for to, sent, source, into in reversed(summing(rank, ranks, at))]


def balanced(n: int, rank: int, ranks: int) -> Callable[[int], int]:
    """`at` for n elements that are cut into even pieces."""
    own = block_bounds(n, ranks, rank)[0]

    def at(place: int) -> int:
        around, owner = divmod(rank + place, ranks)
        return around * n + block_bounds(n, ranks, owner)[0] - own

    return at
