"""A sum that goes from node to node: each node adds its ranks' addends, in rank order, to the sum of the nodes before it.

On each node a piece is added up by the rank whose place on that node is the one that the piece's
owner has on its own; on the last node this rank sends the sum to the owner. So the bits are those
of a sum in rank order, as in any world. Over a node's link every piece comes once, and those of its
own ranks once more. If addends were sent to the owner directly, they would come over its node's
link from every rank of the other nodes.

A piece goes in chunks, so that many nodes have something to add at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from pdla.comm.collectives.ring import Nodes
from pdla.comm.ledger import buffer

CHUNK, CHUNKS = 64 << 10, 4  # the least bytes of a chunk; into how many a piece is cut that is long enough
STEP = 192 << 10  # what a node's step takes, beyond its transfer, in bytes that a link brings meanwhile: adding, and setting out


def pays(nbytes: int, nodes: int, ranks: int, growth: int = 1) -> bool:
    """Whether a sum of so many bytes is there sooner from node to node than sent directly.

    By the bytes on the busiest link; pieces have `nbytes` in all, nodes `ranks` ranks each. growth:
    from node to node a piece has so many times as many bytes.
    """
    if ranks == 1:
        return False
    size = growth * nbytes
    piece = size // (nodes * ranks)
    chunk = min(piece, _chunk_size(piece))
    return ranks * (nodes - 1) * nbytes > (nodes + 1) * size + nodes * (nodes - 1) * (ranks * chunk + STEP)


def cut(rows: int, nbytes: int) -> list[slice]:
    """The rows of each chunk of a piece of `rows` rows and `nbytes` bytes."""
    if not nbytes:
        return []
    step = -(-rows * _chunk_size(nbytes) // nbytes)
    return [slice(lo, lo + step) for lo in range(0, rows, step)]


def _chunk_size(nbytes: int) -> int:
    """Bytes of each chunk of a piece of `nbytes` bytes."""
    return max(CHUNK, -(-nbytes // CHUNKS))


class Figures(NamedTuple):
    """Bytes and messages that a rank receives; `far` and `far_messages`: how many of them come from other nodes."""

    bytes: int
    messages: int
    far: int
    far_messages: int


def count_received(circle: Nodes, rank: int, lengths: Sequence[int], itemsize: int) -> tuple[Figures, int]:
    """What a rank receives for such a sum of vectors, of lengths[r] elements for rank r; and how many bytes of buffers it needs."""
    node, mates = circle.node[rank], len(circle.ranks[0]) - 1
    before, after = int(node > 0), int(node < len(circle.ranks) - 1)
    size, messages = _size([lengths[r] for r in circle.column(rank)], itemsize)
    own, in_messages = _size([lengths[rank]], itemsize)
    far, far_messages = before * size + after * own, before * messages + after * in_messages
    return Figures(mates * size + far, mates * messages + far_messages, far, far_messages), (mates + before) * size


def _size(lengths: Sequence[int], itemsize: int) -> tuple[int, int]:
    """The bytes, and the number of chunks, of pieces of these lengths."""
    return sum(lengths) * itemsize, sum(len(cut(length, length * itemsize)) for length in lengths)


class Chunk(NamedTuple):
    """A chunk of a piece that this rank adds up: `addends` of its node are added to the total that has come."""

    rows: slice
    total: Any
    addends: Sequence[Any]


class Pipeline:
    """A rank's part in summing parts[r] of all ranks into the `out` of rank r.

    It is what to pass to `_exchange`, with `add_up`, which adds.
    """

    out: Any
    xp: ModuleType
    into: Any

    def __init__(self, circle: Nodes, rank: int, parts: Sequence[Any], out: Any, xp: ModuleType, op: str) -> None:
        node, last = circle.node[rank], len(circle.ranks) - 1
        mates, column = circle.ranks[node], circle.column(rank)
        # The total comes from the node before. On the first node the first rank's addend stands for
        # it; on that rank itself the second's, as a sum of two has the same bits in either order.
        giver = column[node - 1] if node else next(r for r in mates if r != rank)
        self.out, self.xp, self.into = out, xp, getattr(xp, op)
        self.sends: list[tuple[int, Any]] = [(r, x) for r in mates if r != rank for _, _, x in _chunks(parts, circle.column(r))]
        self.recvs: list[tuple[int, Any]] = []
        self.forwards: dict[int, Sequence[int]] = {}
        self.whole: dict[int, Chunk] = {}  # the chunk that can be added up once so many messages have come
        for owner, rows, mine in _chunks(parts, column):
            here = {rank: mine} | {r: self._add_receive(r, mine) for r in mates if r not in (rank, giver)}
            total = self._add_receive(giver, mine)
            to = column[node + 1] if node < last else owner
            self.forwards[len(self.recvs) - 1] = [to] if to != rank else []
            self.whole[len(self.recvs)] = Chunk(rows, total, [here[r] for r in mates if r in here])
        if node < last:
            self.recvs += [(column[last], x) for *_, x in _chunks({rank: out}, [rank])]

    def _add_receive(self, source: int, like: Any) -> Any:
        made = buffer(self.xp, like.shape, like.dtype)
        self.forwards[len(self.recvs)] = []
        self.recvs.append((source, made))
        return made

    def add_up(self, come: int) -> None:
        """`come` messages of `forwards` are here, and the last of them is about to be sent on.

        If it is a chunk's total, this node's addends are added to it first.
        """
        if come not in self.whole:
            return
        rows, total, addends = self.whole.pop(come)
        for addend in addends:
            self.into(total, addend)
        if not self.forwards[come - 1]:  # it is this rank's own
            self.xp.copy(self.out[rows], total)


def _chunks(parts: Mapping[int, Any] | Sequence[Any], owners: Sequence[int]) -> Iterator[tuple[int, slice, Any]]:
    """(owner, rows, elements) of each chunk of the parts of these owners."""
    return ((owner, rows, parts[owner][rows]) for owner in owners for rows in cut(len(parts[owner]), parts[owner].nbytes))
