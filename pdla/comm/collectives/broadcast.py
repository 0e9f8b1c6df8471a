"""Algorithms that broadcast x from one rank, the root, to all: each rank's sends, receives and forwards.

* mpi: the MPI library's own algorithm.
* flat: the root sends x to every rank, P - 1 times x through its link.
* chain: each rank forwards x to the next rank in chunks; every link carries x once, after a delay of P - 2 chunks.

In each of them every rank but the root receives x once, x.nbytes bytes in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

CHUNK = 64 << 10  # least bytes of a chain's chunk
LONG = 128 << 10  # bytes of x from which a chain is faster between nodes


def choose(nbytes: int, ranks: int, nodes: int, tree: bool) -> str:
    """Choose the fastest algorithm, by `python -m bench broadcasts`. tree: whether the world has an algorithm of its own."""
    if ranks > 2 and nodes > 1 and nbytes >= LONG:
        return "chain"
    return "mpi" if tree and ranks > 2 else "flat"


class Messages(NamedTuple):
    """One rank's part: pieces to send at once, as (receiver, piece), and pieces to receive, as (sender, piece).

    The rank forwards recvs[i] to the ranks forwards[i].
    """

    sends: Sequence[tuple[int, Any]]
    recvs: Sequence[tuple[int, Any]]
    forwards: Mapping[int, Sequence[int]]


def list_messages(way: str, x: Any, rank: int, size: int, root: int) -> Messages:
    """List the messages of `rank`, one of `size` ranks."""
    if size == 1 or not x.size:
        return Messages((), (), {})
    return WAYS[way](x if x.ndim else x.reshape(1), rank, size, root)


def _flat(x: Any, rank: int, size: int, root: int) -> Messages:
    if rank != root:
        return Messages((), [(root, x)], {})
    return Messages([*zip((*range(root), *range(root + 1, size)), repeat(x))], (), {})


def _chain(x: Any, rank: int, size: int, root: int) -> Messages:
    """Cut x into chunks along its first dimension, so short that the delay adds at most an eighth to the time of x."""
    chunk = max(CHUNK, x.nbytes // (8 * size))
    step = max(1, chunk * len(x) // x.nbytes)
    chunks = [x[lo : lo + step] for lo in range(0, len(x), step)]
    ahead, back = (rank + 1) % size, (rank - 1) % size
    if rank == root:
        return Messages([(ahead, piece) for piece in chunks], (), {})
    return Messages((), [(back, piece) for piece in chunks], dict.fromkeys(range(len(chunks)), (ahead,)) if ahead != root else {})


WAYS = {"mpi": _flat, "flat": _flat, "chain": _chain}  # "mpi": in a world without an algorithm of its own
