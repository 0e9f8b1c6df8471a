"""Brings blocks, or their parts on or below the diagonal, from the ranks that hold them to the ranks that want them.

There is one message to each peer; on one node ranks read what others have put into memory that all
share, some of it in each round. It does what redistribution cannot: a rank may hold several blocks,
may want one that no layout has, and of a block half may travel.
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
from pdla.linalg.products.trapezoid import Block, Trapezoid, meeting, pack, unpack
from pdla.matrix.redistribute import ROUND

WORD = 16  # bytes, at most
Sends = dict[int, list[tuple[int, Trapezoid]]]
Recvs = dict[int, list[Trapezoid]]
Round = tuple[Sends, Recvs]
Arrivals = Iterator[tuple[list[Trapezoid], Any]]  # where what came goes, and that, in one dimension
Near = Callable[[Block], Iterable[int]]  # ranks among which are all that have, or want, some of a block: no others are looked at


@dataclass(frozen=True)
class Holding:
    """Who has which blocks.

    gives  (giver, taker) -> the numbered blocks that the one has for the other
    of     rank -> blocks in which all lies that it gives to anyone
    """

    gives: Callable[[int, int], Sequence[tuple[int, Block]]]
    of: Callable[[int], Sequence[Block]]
    near: Near


@dataclass(frozen=True)
class Wanting:
    """Who wants which block. block: of a rank; None: nothing."""

    block: Callable[[int], Block | None]
    near: Near


def held_by(layout: Layout, shape: Shape, grid: ProcessGrid) -> Holding:
    """The blocks of a matrix; of the ranks that hold copies of one, the nearest to the taker in number gives it."""
    block = partial(_block_of, layout, shape, grid)

    def gives(giver: int, taker: int) -> Sequence[tuple[int, Block]]:
        coords = grid.coords_of(giver)
        if coords is None:
            return ()
        copies = grid.holders({axis: coords[axis] for axis in layout.axes}).tolist()
        if min(copies, key=lambda rank: (abs(rank - taker), rank)) != giver:
            return ()
        return ((0, Block(*layout.indices(shape, grid.sizes, coords))),)

    def of(rank: int) -> Sequence[Block]:
        held = block(rank)
        return () if held is None else (held,)

    return Holding(gives, of, partial(_near, layout, shape, grid))


def wanted_by(layout: Layout, shape: Shape, grid: ProcessGrid) -> Wanting:
    """The blocks of a matrix; each rank that holds a copy wants it."""
    return Wanting(partial(_block_of, layout, shape, grid), partial(_near, layout, shape, grid))


def _block_of(layout: Layout, shape: Shape, grid: ProcessGrid, rank: int) -> Block | None:
    coords = grid.coords_of(rank)
    return None if coords is None else Block(*layout.indices(shape, grid.sizes, coords))


def _near(layout: Layout, shape: Shape, grid: ProcessGrid, block: Block) -> Iterator[int]:
    """The ranks that hold some of the rows and some of the columns of a block."""
    across = [where for where, _ in find_shares(shape[1], layout.cols, grid.sizes, block.cols)]
    for up, _ in find_shares(shape[0], layout.rows, grid.sizes, block.rows):
        for along in across:
            yield from grid.holders(up | along).tolist()


@dataclass(frozen=True)
class BlockExchange:
    """What a rank sends, keeps and receives, as trapezoids: positions in its own blocks, or in the block that it wants.

    sends   by peer: the numbers of own blocks, and what of each is sent
    own     the number of an own block, what of it this rank keeps, and where that goes in the block that it wants
    recvs   by peer: where what is received goes in the block that it wants
    rounds  what it sends and receives in each round on the shared buffer, where one node's ranks
            share memory; otherwise empty
    begins  (giver, taker), one of them this rank -> the first word of what goes between them there
    size    words there, of all ranks
    """

    sends: Sends
    own: list[tuple[int, Trapezoid, Trapezoid]]
    recvs: Recvs
    rounds: list[Round]
    begins: dict[tuple[int, int], int]
    size: int

    @staticmethod
    def of(comm: Communicator, holding: Holding, wanted: Wanting, below: int | None = None) -> BlockExchange:
        """Collective. below: move only elements (i, j) of the matrix with i - j >= below; None: all."""
        me, mine = comm.rank, wanted.block(comm.rank)
        takers = sorted({peer for block in holding.of(me) for peer in wanted.near(block)} - {me})
        givers = sorted(set(() if mine is None else holding.near(mine)) - {me})
        going = {peer: [(i, here) for i, here, _ in _met(holding.gives(me, peer), wanted.block(peer), below)] for peer in takers}
        coming = {peer: [there for _, _, there in _met(holding.gives(peer, me), mine, below)] for peer in givers}
        sends = {peer: parts for peer, parts in going.items() if parts}
        recvs = {peer: parts for peer, parts in coming.items() if parts}
        shared = comm.publishes and comm.shared_limit and comm.shared_buffer() is not None
        rounds, begins, size = _in_rounds(comm, sends, recvs) if shared else ([], {}, 0)
        own = _met(holding.gives(me, me), mine, below)
        return BlockExchange(sends, own, recvs, rounds, begins, size)

    @property
    def words(self) -> int:
        """How many words this rank receives."""
        return sum(map(_words, self.recvs.values()))

    def run(
        self, xp: Any, comm: Communicator, arrays: Sequence[Any], target: Any, beta: complex = 0, conjugate: bool = False,
        own: bool = True,
    ) -> None:
        """Collective: target = beta target + what comes, where something comes.

        With beta != 0 elements travel in the dtype in which they are added: so copies of the
        target, one of which may be on the rank that gives, are rounded alike.

        arrays     this rank's blocks, by number
        target     the array of the block that it wants
        conjugate  whether what comes is conjugated
        own        whether what the rank itself has of the block is written to target, too
        """
        dtype = np.dtype(target.dtype if beta == 0 else sum_dtype(target.dtype))
        shared = 0 < self.size * dtype.itemsize <= comm.shared_limit
        arrivals = (self._shown if shared else self._sent)(xp, comm, arrays, dtype)
        for i, here, there in self.own if own else ():
            for piece, to in zip(here.pieces(), there.pieces(), strict=True):
                to.write(xp, target, beta, xp.reinterpret(piece.of(xp, arrays[i]), conjugate))
        for coming, flat in arrivals:
            rest = xp.reinterpret(flat, conjugate)
            for trapezoid in coming:
                rest = unpack(xp, rest, target, trapezoid, beta)

    def _sent(self, xp: Any, comm: Communicator, arrays: Sequence[Any], dtype: np.dtype) -> Arrivals:
        """By messages, in order of arrival."""
        sends = _packed(xp, arrays, self.sends, lambda peer, count: buffer(xp, (count,), dtype))
        flats = buffers(xp, [(_words(coming),) for coming in self.recvs.values()], dtype)
        landing = dict(zip(self.recvs, flats, strict=True))
        pending = comm.alltoall(sends, landing)
        return ((self.recvs[peer], landing.pop(peer)) for peer in pending)

    def _shown(self, xp: Any, comm: Communicator, arrays: Sequence[Any], dtype: np.dtype) -> Arrivals:
        """The same without messages: each rank puts what it gives on the shared buffer, and others read it there."""
        shared_buffer = comm.shared_buffer()
        assert shared_buffer is not None
        with held(self.size * dtype.itemsize // comm.size):
            for sends, recvs in self.rounds:
                memory = shared_buffer.open(self.size * dtype.itemsize)

                def buffer_of(giver: int, taker: int, count: int, memory: Any = memory) -> Any:
                    begin = self.begins[giver, taker] * dtype.itemsize
                    return xp.view_at(memory, begin, (count,), dtype)

                _packed(xp, arrays, sends, partial(buffer_of, comm.rank))
                try:
                    shared_buffer.seal()
                    for peer, coming in recvs.items():
                        yield coming, buffer_of(peer, comm.rank, _words(coming))
                finally:
                    shared_buffer.leave()
        if self.recvs:
            note_read(comm.axis, self.words * dtype.itemsize, len(self.recvs))
        shared_buffer.trim(workspace.KEPT)


def _in_rounds(
    comm: Communicator, sends: Sends, recvs: Recvs
) -> tuple[list[Round], dict[tuple[int, int], int], int]:
    """Collective: rounds, begins and size of a BlockExchange.

    There are so many rounds that the memory for one is kept for the next call.
    """
    me, told = comm.rank, comm.share({peer: _sent_words(going) for peer, going in sends.items()})
    count = max(1, ceil(sum(sum(words.values()) for words in told) * WORD / (ROUND * comm.size)))
    rounds = [_round(sends, recvs, i, count) for i in range(count)]
    if count > 1:
        told = comm.share({peer: max(_sent_words(some[peer]) for some, _ in rounds) for peer in sends})
    begins, size = {}, 0
    for giver, words in enumerate(told):
        for taker, most in words.items():
            if me in (giver, taker):
                begins[giver, taker] = size
            size += most
    for giver in recvs:
        begins.setdefault((giver, me), 0)  # a dry rank hears of its own words alone
    return rounds, begins, size


def _round(sends: Sends, recvs: Recvs, i: int, count: int) -> Round:
    return (
        {peer: [(n, part.share(i, count)) for n, part in going] for peer, going in sends.items()},
        {peer: [part.share(i, count) for part in coming] for peer, coming in recvs.items()},
    )


def _packed(
    xp: Any, arrays: Sequence[Any], sends: Sends, buffer_of: Callable[[int, int], Any]
) -> dict[int, Any]:
    """What goes to each peer, packed into the memory that buffer_of(peer, words) gives."""
    packed = {}
    for peer, going in sends.items():
        packed[peer] = buffer_of(peer, _sent_words(going))
        pack(xp, [(arrays[i], trapezoid) for i, trapezoid in going], packed[peer])
    return packed


def _words(several: Iterable[Trapezoid]) -> int:
    return sum(trapezoid.size for trapezoid in several)


def _sent_words(going: Sequence[tuple[int, Trapezoid]]) -> int:
    return _words(trapezoid for _, trapezoid in going)


def _met(blocks: Sequence[tuple[int, Block]], wanted: Block | None, below: int | None) -> list[tuple[int, Trapezoid, Trapezoid]]:
    """What numbered blocks have of a wanted one: each block's number, positions in it, and positions in the wanted one."""
    if wanted is None:
        return []
    met = ((number, meeting(block, wanted, below)) for number, block in blocks)
    return [(number, *both) for number, both in met if both is not None]
