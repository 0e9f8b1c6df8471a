"""Send blocks, or their parts on or below the diagonal, from source ranks to target ranks.

Each peer receives one message. Ranks of one node write to shared memory instead, and read there, in
rounds. Redistribution is less general. Here a rank may have several source blocks, and a target block
of no layout. Half a block can be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import numpy as np

from pdla.array.composed import sum_dtype
from pdla.comm import workspace
from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffer, buffers, held, note_read
from pdla.grid import ProcessGrid
from pdla.layout import Layout, Shape, find_shares
from pdla.linalg.products.trapezoid import Block, Trapezoid, intersect, pack, unpack
from pdla.matrix.redistribute import ROUND

WORD = 16  # the most bytes of a word
Sends = dict[int, list[tuple[int, Trapezoid]]]
Recvs = dict[int, list[Trapezoid]]
Round = tuple[Sends, Recvs]
Arrivals = Iterator[tuple[list[Trapezoid], Any]]  # the places of received elements, and the elements in one dimension
Near = Callable[[Block], Iterable[int]]  # finds candidates: every rank that has, or receives, some of a block is among them


@dataclass(frozen=True)
class Sources:
    """The ranks' source blocks.

    list_blocks  (sender, receiver) -> the numbered blocks that the sender has for the receiver
    list_all     rank -> blocks that contain all that the rank sends
    """

    list_blocks: Callable[[int, int], Sequence[tuple[int, Block]]]
    list_all: Callable[[int], Sequence[Block]]
    near: Near


@dataclass(frozen=True)
class Targets:
    """The ranks' target blocks.

    block  rank -> its target block; None: it receives nothing
    """

    block: Callable[[int], Block | None]
    near: Near


def find_sources(layout: Layout, shape: Shape, grid: ProcessGrid) -> Sources:
    """The blocks of a matrix as sources. If ranks hold copies, the rank whose number is nearest to the receiver's sends."""
    find_block = partial(_find_block, layout, shape, grid)

    def list_blocks(sender: int, receiver: int) -> Sequence[tuple[int, Block]]:
        coords = grid.coords_of(sender)
        if coords is None:
            return ()
        copies = grid.holders({axis: coords[axis] for axis in layout.axes}).tolist()
        if min(copies, key=lambda rank: (abs(rank - receiver), rank)) != sender:
            return ()
        return ((0, Block(*layout.indices(shape, grid.sizes, coords))),)

    def list_all(rank: int) -> Sequence[Block]:
        block = find_block(rank)
        return () if block is None else (block,)

    return Sources(list_blocks, list_all, partial(_find_near, layout, shape, grid))


def find_targets(layout: Layout, shape: Shape, grid: ProcessGrid) -> Targets:
    """The blocks of a matrix as targets; every rank that holds a copy receives it."""
    return Targets(partial(_find_block, layout, shape, grid), partial(_find_near, layout, shape, grid))


def _find_block(layout: Layout, shape: Shape, grid: ProcessGrid, rank: int) -> Block | None:
    coords = grid.coords_of(rank)
    return None if coords is None else Block(*layout.indices(shape, grid.sizes, coords))


def _find_near(layout: Layout, shape: Shape, grid: ProcessGrid, block: Block) -> Iterator[int]:
    """The ranks that hold some of the rows and some of the columns of a block."""
    col_places = [place for place, _ in find_shares(shape[1], layout.cols, grid.sizes, block.cols)]
    for row_place, _ in find_shares(shape[0], layout.rows, grid.sizes, block.rows):
        for col_place in col_places:
            yield from grid.holders(row_place | col_place).tolist()


@dataclass(frozen=True)
class BlockExchange:
    """The elements that a rank sends, keeps and receives, as trapezoids: positions in its source blocks or its target block.

    sends   by peer: the numbers of source blocks, and the part of each that is sent
    own     parts that the rank keeps: the number of the source block, the part, its place in the target block
    recvs   by peer: the places of received parts in the target block
    rounds  the sends and recvs of each round on the shared buffer; empty if ranks do not share memory
    starts  (sender, receiver), one of them this rank -> the first word of their part of the shared buffer
    size    words of all ranks on the shared buffer
    """

    sends: Sends
    own: list[tuple[int, Trapezoid, Trapezoid]]
    recvs: Recvs
    rounds: list[Round]
    starts: dict[tuple[int, int], int]
    size: int

    @staticmethod
    def of(comm: Communicator, sources: Sources, targets: Targets, below: int | None = None) -> BlockExchange:
        """Collective: find the parts. below: send only elements (i, j) of the matrix with i - j >= below; None for all elements."""
        me, target = comm.rank, targets.block(comm.rank)
        receivers = sorted({peer for block in sources.list_all(me) for peer in targets.near(block)} - {me})
        senders = sorted(set(() if target is None else sources.near(target)) - {me})
        sends, recvs = {}, {}
        for peer in receivers:
            if parts := _intersect(sources.list_blocks(me, peer), targets.block(peer), below):
                sends[peer] = [(number, part) for number, part, _ in parts]
        for peer in senders:
            if parts := _intersect(sources.list_blocks(peer, me), target, below):
                recvs[peer] = [place for _, _, place in parts]
        shared = comm.publishes and comm.shared_limit and comm.shared_buffer() is not None
        rounds, starts, size = _plan_rounds(comm, sends, recvs) if shared else ([], {}, 0)
        own = _intersect(sources.list_blocks(me, me), target, below)
        return BlockExchange(sends, own, recvs, rounds, starts, size)

    @property
    def words(self) -> int:
        """How many words this rank receives."""
        return sum(map(_count_words, self.recvs.values()))

    def run(
        self, xp: Any, comm: Communicator, arrays: Sequence[Any], target: Any, beta: complex = 0, conjugate: bool = False,
        own: bool = True,
    ) -> None:
        """Collective: target = beta target + received elements, at their places alone.

        With beta != 0 elements are sent in the dtype of the sum. All copies of the target, also the
        sender's own, are thus rounded equally.

        arrays     this rank's source blocks, by number
        target     the array of the target block
        conjugate  whether received elements are conjugated
        own        whether this rank's own part of the target block is written, too
        """
        dtype = np.dtype(target.dtype if beta == 0 else sum_dtype(target.dtype))
        shared = 0 < self.size * dtype.itemsize <= comm.shared_limit
        arrivals = (self._exchange_in_memory if shared else self._exchange_messages)(xp, comm, arrays, dtype)
        for i, part, place in self.own if own else ():
            for piece, to in zip(part.pieces(), place.pieces(), strict=True):
                to.write(xp, target, beta, xp.reinterpret(piece.read(xp, arrays[i]), conjugate))
        for received, flat in arrivals:
            rest = xp.reinterpret(flat, conjugate)
            for trapezoid in received:
                rest = unpack(xp, rest, target, trapezoid, beta)

    def _exchange_messages(self, xp: Any, comm: Communicator, arrays: Sequence[Any], dtype: np.dtype) -> Arrivals:
        """Collective: exchange by messages; yields parts in order of arrival."""
        sends = _pack(xp, arrays, self.sends, lambda peer, count: buffer(xp, (count,), dtype))
        flats = buffers(xp, [(_count_words(received),) for received in self.recvs.values()], dtype)
        flat_by_peer = dict(zip(self.recvs, flats, strict=True))
        pending = comm.alltoall(sends, flat_by_peer)
        return ((self.recvs[peer], flat_by_peer.pop(peer)) for peer in pending)

    def _exchange_in_memory(self, xp: Any, comm: Communicator, arrays: Sequence[Any], dtype: np.dtype) -> Arrivals:
        """Collective: exchange without messages. Each rank writes its sends to the shared buffer, and others read them there."""
        shared_buffer = comm.shared_buffer()
        assert shared_buffer is not None
        with held(self.size * dtype.itemsize // comm.size):
            for sends, recvs in self.rounds:
                memory = shared_buffer.open(self.size * dtype.itemsize)

                def buffer_of(sender: int, receiver: int, count: int, memory: Any = memory) -> Any:
                    begin = self.starts[sender, receiver] * dtype.itemsize
                    return xp.view_at(memory, begin, (count,), dtype)

                _pack(xp, arrays, sends, partial(buffer_of, comm.rank))
                try:
                    shared_buffer.seal()
                    for peer, received in recvs.items():
                        yield received, buffer_of(peer, comm.rank, _count_words(received))
                finally:
                    shared_buffer.leave()
        if self.recvs:
            note_read(comm.axis, self.words * dtype.itemsize, len(self.recvs))
        shared_buffer.trim(workspace.KEPT)


def _plan_rounds(
    comm: Communicator, sends: Sends, recvs: Recvs
) -> tuple[list[Round], dict[tuple[int, int], int], int]:
    """Collective: rounds, starts and size of a BlockExchange.

    A round is small enough that its memory is kept for the next call.
    """
    me, words_by_rank = comm.rank, comm.share({peer: _count_send_words(parts) for peer, parts in sends.items()})
    count = max(1, ceil(sum(sum(words.values()) for words in words_by_rank) * WORD / (ROUND * comm.size)))
    rounds = [_cut_round(sends, recvs, i, count) for i in range(count)]
    if count > 1:
        words_by_rank = comm.share({peer: max(_count_send_words(round_sends[peer]) for round_sends, _ in rounds) for peer in sends})
    starts, size = {}, 0
    for sender, words in enumerate(words_by_rank):
        for receiver, part_words in words.items():
            if me in (sender, receiver):
                starts[sender, receiver] = size
            size += part_words
    for sender in recvs:
        starts.setdefault((sender, me), 0)  # a dry rank knows its own words alone
    return rounds, starts, size


def _cut_round(sends: Sends, recvs: Recvs, i: int, count: int) -> Round:
    return (
        {peer: [(n, part.share(i, count)) for n, part in parts] for peer, parts in sends.items()},
        {peer: [part.share(i, count) for part in received] for peer, received in recvs.items()},
    )


def _pack(
    xp: Any, arrays: Sequence[Any], sends: Sends, buffer_of: Callable[[int, int], Any]
) -> dict[int, Any]:
    """Pack each peer's part into the memory buffer_of(peer, words)."""
    packed = {}
    for peer, parts in sends.items():
        packed[peer] = buffer_of(peer, _count_send_words(parts))
        pack(xp, [(arrays[i], trapezoid) for i, trapezoid in parts], packed[peer])
    return packed


def _count_words(trapezoids: Iterable[Trapezoid]) -> int:
    return sum(trapezoid.size for trapezoid in trapezoids)


def _count_send_words(parts: Sequence[tuple[int, Trapezoid]]) -> int:
    return _count_words(trapezoid for _, trapezoid in parts)


def _intersect(
    blocks: Sequence[tuple[int, Block]], target: Block | None, below: int | None
) -> list[tuple[int, Trapezoid, Trapezoid]]:
    """Intersect numbered blocks with a target: each block's number, positions in it, and positions in the target."""
    if target is None:
        return []
    common = ((number, intersect(block, target, below)) for number, block in blocks)
    return [(number, *both) for number, both in common if both is not None]
