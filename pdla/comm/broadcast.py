"""Ways to broadcast x from one rank to all: who sends which piece to whom, and who sends it on.

mpi      the MPI library's own way; in the other worlds: flat
flat     the root sends x to every rank: P - 1 times x through its link
scatter  the root sends each rank a piece, and the ranks exchange pieces: 2 x through every link (van de Geijn 1991)
chain    the ranks in a row, each sends chunk after chunk on: x through every link, after P - 2 chunks of delay

Whichever it is, every rank but the root receives x once, in all x.nbytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pdla.cuts import block_bounds

LONG = 128 << 10  # bytes from which a chain is faster between nodes


def best(nbytes: int, ranks: int, nodes: int) -> str:
    """The fastest way for so many bytes to so many ranks on so many nodes, by bench/broadcasts.py."""
    if ranks == 2:
        return "flat"
    return "chain" if nodes > 1 and nbytes >= LONG else "mpi"


class Messages(NamedTuple):
    """One rank's part: what it sends at once and receives, by rank, in order; recvs[i] is sent on to the ranks onward[i]."""

    sends: Sequence[tuple[int, Any]]
    recvs: Sequence[tuple[int, Any]]
    onward: Mapping[int, Sequence[int]]


def messages(way: str, x: Any, rank: int, size: int, root: int, chunk: int) -> Messages:
    """The part of `rank` of `size`. Pieces, and chunks of so many bytes, are cut along the first dimension of x.

    chunk = 0: so long that the row of ranks costs at most an eighth more than a single link, and at least 64 KiB.
    """
    if size == 1 or not x.size:
        return Messages((), (), {})
    x = x if x.ndim else x.reshape(1)
    if way == "scatter":
        return _scatter(x, rank, size, root)
    return _chain(x, rank, size, root, chunk) if way == "chain" else _flat(x, rank, size, root)


def _flat(x: Any, rank: int, size: int, root: int) -> Messages:
    if rank != root:
        return Messages((), [(root, x)], {})
    return Messages([(r, x) for r in range(size) if r != root], (), {})


def _scatter(x: Any, rank: int, size: int, root: int) -> Messages:
    """The root keeps one piece, which it sends to all; the others send the piece that they were sent to all others."""
    pieces = [x[slice(*block_bounds(len(x), size, r))] for r in range(size)]
    others = [r for r in range(size) if r not in (rank, root)]
    if rank == root:
        return Messages(_full([*((r, pieces[r]) for r in others), *((r, pieces[root]) for r in others)]), (), {})
    recvs = [(root, pieces[rank]), (root, pieces[root]), *((r, pieces[r]) for r in others)]
    return Messages((), _full(recvs), {0: others} if pieces[rank].size else {})


def _full(pieces: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]]:
    return [(r, piece) for r, piece in pieces if piece.size]


def _chain(x: Any, rank: int, size: int, root: int, chunk: int) -> Messages:
    chunk = chunk or max(64 << 10, x.nbytes // (8 * size))
    rows = max(1, chunk * len(x) // x.nbytes)
    chunks = [x[lo : lo + rows] for lo in range(0, len(x), rows)]
    ahead, back = (rank + 1) % size, (rank - 1) % size
    if rank == root:
        return Messages([(ahead, part) for part in chunks], (), {})
    return Messages((), [(back, part) for part in chunks], dict.fromkeys(range(len(chunks)), (ahead,)) if ahead != root else {})
