"""Blocks, or their parts on one side of the diagonal, from the ranks that hold them to those that want them.

One message to each peer; on one node each reads what others have put into memory that all share. What redistribution cannot say: a
rank may hold several blocks, want one that no layout names, and triangles travel without their other half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pdla import config
from pdla.array.composed import summing
from pdla.comm.base import Communicator
from pdla.comm.ledger import buffer, buffers, held, note
from pdla.grid import ProcessGrid
from pdla.layout import Layout, Shape
from pdla.linalg.stairs import Block, Stairs, meeting, pack, unpack

Holding = Callable[[int, int], Sequence[tuple[int, Block]]]  # (giver, taker): blocks that a rank has to give to another, numbered
Wanting = Callable[[int], Block | None]


def held_by(layout: Layout, shape: Shape, grid: ProcessGrid) -> Holding:
    """A matrix's blocks; where ranks hold copies, the nearest in rank number gives."""

    def blocks(giver: int, taker: int) -> Sequence[tuple[int, Block]]:
        coords = grid.coords_of(giver)
        if coords is None:
            return ()
        copies = grid.holders({axis: coords[axis] for axis in layout.axes}).tolist()
        if min(copies, key=lambda rank: (abs(rank - taker), rank)) != giver:
            return ()
        return ((0, Block(*layout.indices(shape, grid.sizes, coords))),)

    return blocks


def wanted_by(layout: Layout, shape: Shape, grid: ProcessGrid) -> Wanting:
    """A matrix's blocks, copies each for itself."""

    def block(rank: int) -> Block | None:
        coords = grid.coords_of(rank)
        return None if coords is None else Block(*layout.indices(shape, grid.sizes, coords))

    return block


@dataclass(frozen=True)
class Way:
    """What a rank sends, keeps and receives: stairs of its blocks, by their numbers, and of the block that it wants.

    begins  of what it has for each other rank, and each for it, the first word on a board, where one node's ranks share memory
    size    words of that board
    """

    sends: dict[int, list[tuple[int, Stairs]]]
    own: list[tuple[int, Stairs, Stairs]]
    recvs: dict[int, list[Stairs]]
    begins: dict[tuple[int, int], int]
    size: int

    @staticmethod
    def of(comm: Communicator, holding: Holding, wanted: Wanting, below: int | None = None) -> Way:
        """Collective.  below  of all elements (i, j) only those with i - j >= below"""
        me, mine = comm.rank, wanted(comm.rank)
        others = [peer for peer in range(comm.size) if peer != me]
        going = {peer: [(i, here) for i, here, _ in _met(holding(me, peer), wanted(peer), below)] for peer in others}
        coming = {peer: [there for _, _, there in _met(holding(peer, me), mine, below)] for peer in others}
        sends = {peer: stairs for peer, stairs in going.items() if stairs}
        recvs = {peer: stairs for peer, stairs in coming.items() if stairs}
        begins, size = {}, 0
        if comm.shared_limit and comm.board() is not None:
            for giver, words in enumerate(comm.share({peer: _sent_words(going) for peer, going in sends.items()})):
                for taker, count in words.items():
                    if me in (giver, taker):
                        begins[giver, taker] = size
                    size += count
        return Way(sends, _met(holding(me, me), mine, below), recvs, begins, size)

    @property
    def words(self) -> int:
        """That it receives."""
        return sum(map(_words, self.recvs.values()))

    def run(
        self, xp: Any, comm: Communicator, arrays: Sequence[Any], target: Any, beta: complex = 0, conjugate: bool = False,
        own: bool = True,
    ) -> None:  # fmt: skip
        """Collective: target = beta target + what comes, where something comes. What is added travels as it is added up: copies of
        a target, one of them where it comes from, are rounded alike.

        arrays  this rank's blocks;  target: the array of the block that it wants;  conjugate: on the way
        own     whether what it has itself is wanted, too
        """
        dtype = np.dtype(target.dtype if beta == 0 else summing(target.dtype))
        shared = 0 < self.size * dtype.itemsize <= comm.shared_limit
        arrivals = (self._shown if shared else self._sent)(xp, comm, arrays, dtype)
        for i, here, there in self.own if own else ():
            for piece, to in zip(here.pieces(), there.pieces(), strict=True):
                to.write(xp, target, beta, xp.reinterpret(piece.of(xp, arrays[i]), conjugate))
        for peer, flat in arrivals:
            rest = xp.reinterpret(flat, conjugate)
            for stairs in self.recvs[peer]:
                rest = unpack(xp, rest, target, stairs, beta)

    def _sent(self, xp: Any, comm: Communicator, arrays: Sequence[Any], dtype: np.dtype) -> Iterator[tuple[int, Any]]:
        """What comes, from whom: by messages."""
        sends = self._packed(xp, arrays, lambda peer, count: buffer(xp, (count,), dtype))
        flats = buffers(xp, [(_words(coming),) for coming in self.recvs.values()], dtype)
        rooms = dict(zip(self.recvs, flats, strict=True))
        pending = comm.alltoall(sends, rooms)
        return ((peer, rooms.pop(peer)) for peer in pending)

    def _shown(self, xp: Any, comm: Communicator, arrays: Sequence[Any], dtype: np.dtype) -> Iterator[tuple[int, Any]]:
        """The same, read where others have put it: on a board."""
        board = comm.board()
        assert board is not None
        with held(self.size * dtype.itemsize // comm.size):
            memory = board.open(self.size * dtype.itemsize)

            def room(giver: int, taker: int, count: int) -> Any:
                return xp.look(memory, self.begins[giver, taker] * dtype.itemsize, (count,), dtype)

            self._packed(xp, arrays, partial(room, comm.rank))
            try:
                board.seal()
                if self.recvs:
                    note("read", comm.axis, self.words * dtype.itemsize, len(self.recvs))
                for peer, coming in self.recvs.items():
                    yield peer, room(peer, comm.rank, _words(coming))
            finally:
                board.leave()
        board.trim(config.settings.keep)

    def _packed(self, xp: Any, arrays: Sequence[Any], room: Callable[[int, int], Any]) -> dict[int, Any]:
        """What goes to each other rank, put where there is room for so many words."""
        packed = {}
        for peer, going in self.sends.items():
            packed[peer] = room(peer, _sent_words(going))
            pack(xp, [(arrays[i], stairs) for i, stairs in going], packed[peer])
        return packed


def _words(several: Iterable[Stairs]) -> int:
    return sum(stairs.size for stairs in several)


def _sent_words(going: Sequence[tuple[int, Stairs]]) -> int:
    return _words(stairs for _, stairs in going)


def _met(blocks: Sequence[tuple[int, Block]], wanted: Block | None, below: int | None) -> list[tuple[int, Stairs, Stairs]]:
    """Where numbered blocks meet one that is wanted: positions here and there."""
    if wanted is None:
        return []
    met = ((number, meeting(block, wanted, below)) for number, block in blocks)
    return [(number, *both) for number, both in met if both is not None]
