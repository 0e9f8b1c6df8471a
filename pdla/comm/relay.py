"""A sum that goes from node to node: each adds its ranks' addends, in rank order, to the sum of the nodes before it.

On each node a piece is added up by the rank at the place that its owner has on its own node; the last node's sends it to the
owner. So the bits are those of a sum in rank order, as anywhere, and over the link of a node every piece goes once, and its own
ranks' once more. Sent to a piece's owner directly, addends would go over it from every rank elsewhere.

A piece goes in chunks, so that many nodes have something to add at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from pdla.comm.ledger import buffer
from pdla.comm.ring import Nodes

CHUNK, CHUNKS = 64 << 10, 4  # bytes of a chunk at least; chunks of a piece that is long enough
STEP = 192 << 10  # bytes that a link would bring while a chunk is added to and sets out


def pays(nbytes: int, nodes: int, ranks: int, growth: int = 1) -> bool:
    """Whether a sum of so many bytes, all pieces together, over nodes of so many ranks, is there sooner than one sent directly:
    by the bytes on the busiest link. growth: this way they become so many times as many.
    """
    if ranks == 1:
        return False
    size = growth * nbytes
    piece = size // (nodes * ranks)
    chunk = min(piece, _chunk(piece))
    return ranks * (nodes - 1) * nbytes > (nodes + 1) * size + nodes * (nodes - 1) * (ranks * chunk + STEP)


def cut(rows: int, nbytes: int) -> list[slice]:
    """The rows of each chunk of a piece that has so many, and so many bytes."""
    if not nbytes:
        return []
    step = -(-rows * _chunk(nbytes) // nbytes)
    return [slice(lo, lo + step) for lo in range(0, rows, step)]


def _chunk(nbytes: int) -> int:
    """Bytes of each chunk of a piece of so many."""
    return max(CHUNK, -(-nbytes // CHUNKS))


class Figures(NamedTuple):
    """Bytes and messages that a rank receives, and those of them from other nodes."""

    bytes: int
    messages: int
    far: int
    far_messages: int


def received(circle: Nodes, rank: int, lengths: Sequence[int], itemsize: int) -> tuple[Figures, int]:
    """Of a sum of one-dimensional pieces, of so many elements each; and the bytes of buffers for it."""
    node, mates = circle.node[rank], len(circle.ranks[0]) - 1
    before, after = int(node > 0), int(node < len(circle.ranks) - 1)
    size, messages = _size([lengths[r] for r in circle.column(rank)], itemsize)
    own, in_messages = _size([lengths[rank]], itemsize)
    far, far_messages = before * size + after * own, before * messages + after * in_messages
    return Figures(mates * size + far, mates * messages + far_messages, far, far_messages), (mates + before) * size


def _size(lengths: Sequence[int], itemsize: int) -> tuple[int, int]:
    """Bytes and chunks of such pieces."""
    return sum(lengths) * itemsize, sum(len(cut(length, length * itemsize)) for length in lengths)


class Chunk(NamedTuple):
    """What this rank adds up: to the total that came the addends of its node that are not in it."""

    owner: int
    rows: slice
    total: Any
    addends: Sequence[Any]


class Relay:
    """A rank's part in summing parts[r] of all ranks into out of each rank r: messages as `_exchange` takes them, and `landed`."""

    def __init__(self, circle: Nodes, rank: int, parts: Sequence[Any], out: Any, xp: ModuleType, op: str) -> None:
        node, last = circle.node[rank], len(circle.ranks) - 1
        mates, column = circle.ranks[node], circle.column(rank)
        # The total comes from the node before; on the first it is an addend, the first or the second: two may change places.
        giver = column[node - 1] if node else next(r for r in mates if r != rank)
        self.rank, self.out, self.xp, self.into = rank, out, xp, getattr(xp, op)
        self.sends = [(r, x) for r in mates if r != rank for _, _, x in _chunks(parts, circle.column(r))]
        self.recvs: list[tuple[int, Any]] = []
        self.onward: dict[int, Sequence[int]] = {}
        self.whole: dict[int, Chunk] = {}  # by how many messages must have come
        for owner, rows, mine in _chunks(parts, column):
            here = {rank: mine} | {r: self._received(r, mine) for r in mates if r not in (rank, giver)}
            total = self._received(giver, mine)
            to = column[node + 1] if node < last else owner
            self.onward[len(self.recvs) - 1] = [to] if to != rank else []
            self.whole[len(self.recvs)] = Chunk(owner, rows, total, [here[r] for r in mates if r in here])
        if node < last:
            self.recvs += [(column[last], x) for *_, x in _chunks({rank: out}, [rank])]

    def _received(self, source: int, like: Any) -> Any:
        made = buffer(self.xp, like.shape, like.dtype)
        self.onward[len(self.recvs)] = []
        self.recvs.append((source, made))
        return made

    def landed(self, come: int) -> None:
        """So many of `onward` have come, and the last is about to be sent on: if it is a total, with this node's addends."""
        if come not in self.whole:
            return
        owner, rows, total, addends = self.whole.pop(come)
        for addend in addends:
            self.into(total, addend)
        if owner == self.rank and not self.onward[come - 1]:
            self.xp.copy(self.out[rows], total)


def _chunks(parts: Mapping[int, Any] | Sequence[Any], owners: Sequence[int]) -> Iterator[tuple[int, slice, Any]]:
    return ((owner, rows, parts[owner][rows]) for owner in owners for rows in cut(len(parts[owner]), parts[owner].nbytes))
