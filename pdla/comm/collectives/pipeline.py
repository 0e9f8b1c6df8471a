"""A sum that goes from node to node: each node adds its ranks' addends, in rank order, to the sum of the nodes before it.

On each node one rank adds up a piece. Its place on the node is the owner's place on the owner's node.
On the last node this rank sends the sum to the owner. The sum has the bits of a sum in rank order, as
in any world. A node's link carries every piece once, and its own ranks' pieces once more. Direct
messages to the owner would come from every rank of the other nodes.

A piece goes in chunks, so that many nodes add at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from pdla.comm.collectives.ring import Nodes
from pdla.comm.ledger import buffer

CHUNK, CHUNKS = 64 << 10, 4  # the least bytes of a chunk; the number of chunks of a long piece
STEP = 192 << 10  # the bytes that a link carries during a node's overhead in a step: additions and starts of messages


def pays(nbytes: int, nodes: int, ranks: int, growth: int = 1) -> bool:
    """Whether a sum is faster from node to node than sent directly, by the bytes on the busiest link.

    nbytes  bytes of all pieces
    ranks   ranks on each node
    growth  the factor by which a piece grows from node to node
    """
    if ranks == 1:
        return False
    size = growth * nbytes
    piece = size // (nodes * ranks)
    chunk = min(piece, _find_chunk_size(piece))
    return ranks * (nodes - 1) * nbytes > (nodes + 1) * size + nodes * (nodes - 1) * (ranks * chunk + STEP)


def cut(rows: int, nbytes: int) -> list[slice]:
    """Cut a piece of `rows` rows and `nbytes` bytes into chunks; return the rows of each."""
    if not nbytes:
        return []
    step = -(-rows * _find_chunk_size(nbytes) // nbytes)
    return [slice(lo, lo + step) for lo in range(0, rows, step)]


def _find_chunk_size(nbytes: int) -> int:
    """Find the bytes of each chunk of a piece of `nbytes` bytes."""
    return max(CHUNK, -(-nbytes // CHUNKS))


class Figures(NamedTuple):
    """Bytes and messages that a rank receives; `far` and `far_messages` count those from other nodes."""

    bytes: int
    messages: int
    far: int
    far_messages: int


def count_received(circle: Nodes, rank: int, lengths: Sequence[int], itemsize: int) -> tuple[Figures, int]:
    """Count what a rank receives for a sum of vectors, of lengths[r] elements for rank r; also return the bytes of buffers."""
    node, others = circle.node[rank], len(circle.ranks[0]) - 1
    before, after = int(node > 0), int(node < len(circle.ranks) - 1)
    size, messages = _count([lengths[r] for r in circle.list_column(rank)], itemsize)
    own, in_messages = _count([lengths[rank]], itemsize)
    far, far_messages = before * size + after * own, before * messages + after * in_messages
    return Figures(others * size + far, others * messages + far_messages, far, far_messages), (others + before) * size


def _count(lengths: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Count the bytes and the chunks of pieces of these lengths."""
    return sum(lengths) * itemsize, sum(len(cut(length, length * itemsize)) for length in lengths)


class Chunk(NamedTuple):
    """A chunk of a piece that this rank adds up: it adds `addends` of its node to the received total."""

    rows: slice
    total: Any
    addends: Sequence[Any]


class Pipeline:
    """A rank's part in summing parts[r] of all ranks into the `out` of rank r.

    `_exchange` takes its `sends`, `recvs` and `forwards`, and `add_up` as `on_arrival`.
    """

    out: Any
    xp: ModuleType
    into: Any

    def __init__(self, circle: Nodes, rank: int, parts: Sequence[Any], out: Any, xp: ModuleType, op: str) -> None:
        node, last = circle.node[rank], len(circle.ranks) - 1
        node_ranks, column = circle.ranks[node], circle.list_column(rank)
        # The previous node sends the total. The first node starts with its first rank's addend; that
        # rank itself starts with the second's, as a sum of two has the same bits in either order.
        sender = column[node - 1] if node else next(r for r in node_ranks if r != rank)
        self.out, self.xp, self.into = out, xp, getattr(xp, op)
        others = [r for r in node_ranks if r != rank]
        self.sends: list[tuple[int, Any]] = [(r, x) for r in others for _, _, x in _list_chunks(parts, circle.list_column(r))]
        self.recvs: list[tuple[int, Any]] = []
        self.forwards: dict[int, Sequence[int]] = {}
        self.whole: dict[int, Chunk] = {}  # messages that have come -> the chunk that is now complete
        for owner, rows, piece in _list_chunks(parts, column):
            addends = {rank: piece} | {r: self._add_receive(r, piece) for r in node_ranks if r not in (rank, sender)}
            total = self._add_receive(sender, piece)
            to = column[node + 1] if node < last else owner
            self.forwards[len(self.recvs) - 1] = [to] if to != rank else []
            self.whole[len(self.recvs)] = Chunk(rows, total, [addends[r] for r in node_ranks if r in addends])
        if node < last:
            self.recvs += [(column[last], x) for *_, x in _list_chunks({rank: out}, [rank])]

    def _add_receive(self, source: int, like: Any) -> Any:
        box = buffer(self.xp, like.shape, like.dtype)
        self.forwards[len(self.recvs)] = []
        self.recvs.append((source, box))
        return box

    def add_up(self, arrived: int) -> None:
        """Add this node's addends to a chunk's total, if the last of `arrived` messages completes the chunk.

        `_exchange` calls it before it forwards that message.
        """
        if arrived not in self.whole:
            return
        rows, total, addends = self.whole.pop(arrived)
        for addend in addends:
            self.into(total, addend)
        if not self.forwards[arrived - 1]:  # the piece is this rank's own
            self.xp.copy(self.out[rows], total)


def _list_chunks(parts: Mapping[int, Any] | Sequence[Any], owners: Sequence[int]) -> Iterator[tuple[int, slice, Any]]:
    """List (owner, rows, elements) of each chunk of the parts of these owners."""
    return ((owner, rows, parts[owner][rows]) for owner in owners for rows in cut(len(parts[owner]), parts[owner].nbytes))
