"""Ways to broadcast x from one rank, the root, to all: which rank sends which piece to whom, and who sends it on.

mpi      the MPI library's own way
flat     the root sends x to every rank: P - 1 times x through its link
chain    the ranks stand in a row, and each sends x on in chunks: once x through every link, after a delay of P - 2 chunks

In every way each rank but the root receives x once, x.nbytes bytes in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

CHUNK = 64 << 10  # bytes of a chain's chunk, at least
LONG = 128 << 10  # bytes of x from which on a chain is faster between nodes


def best(nbytes: int, ranks: int, nodes: int, tree: bool) -> str:
    """The fastest way for so many bytes, ranks and nodes, by `python -m bench broadcasts`; tree: MPI has one of its own."""
    if ranks > 2 and nodes > 1 and nbytes >= LONG:
        return "chain"
    return "mpi" if tree and ranks > 2 else "flat"


class Messages(NamedTuple):
    """One rank's part: the pieces that it sends at once, as (to, piece), and those that it receives, as (from, piece).

    recvs[i] is sent on to the ranks forwards[i].
    """

    sends: Sequence[tuple[int, Any]]
    recvs: Sequence[tuple[int, Any]]
    forwards: Mapping[int, Sequence[int]]


def messages(way: str, x: Any, rank: int, size: int, root: int) -> Messages:
    """The part of `rank` of `size` ranks."""
    if size == 1 or not x.size:
        return Messages((), (), {})
    return WAYS[way](x if x.ndim else x.reshape(1), rank, size, root)


def _flat(x: Any, rank: int, size: int, root: int) -> Messages:
    if rank != root:
        return Messages((), [(root, x)], {})
    return Messages([*zip((*range(root), *range(root + 1, size)), repeat(x))], (), {})


def _chain(x: Any, rank: int, size: int, root: int) -> Messages:
    """Chunks of x along its first dimension, so long that the delay adds at most an eighth to the time of x on one link."""
    chunk = max(CHUNK, x.nbytes // (8 * size))
    rows = max(1, chunk * len(x) // x.nbytes)
    chunks = [x[lo : lo + rows] for lo in range(0, len(x), rows)]
    ahead, back = (rank + 1) % size, (rank - 1) % size
    if rank == root:
        return Messages([(ahead, part) for part in chunks], (), {})
    return Messages((), [(back, part) for part in chunks], dict.fromkeys(range(len(chunks)), (ahead,)) if ahead != root else {})


WAYS = {"mpi": _flat, "flat": _flat, "chain": _chain}  # "mpi" so where a world has no way of its own
