"""Blocks, or their parts on one side of the diagonal, from the ranks that hold them to those that want them.

One message to each peer. What redistribution cannot say: a rank may hold several blocks, want one that no layout names, and
triangles travel without their other half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pdla.array.composed import summing
from pdla.comm.base import Communicator
from pdla.comm.ledger import buffer
from pdla.grid import ProcessGrid
from pdla.layout import Layout, Shape
from pdla.linalg.stairs import Block, meeting, packed, unpack

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


def travel(
    xp: Any, comm: Communicator, held: Holding, arrays: Sequence[Any], wanted: Wanting, target: Any,
    below: int | None = None, beta: complex = 0, conjugate: bool = False,
) -> None:  # fmt: skip
    """Collective: target = beta target + what comes, where something comes. What is added travels as it is added up: copies of
    a target, one of them where it comes from, are rounded alike.

    arrays  this rank's blocks, as `held` numbers them;  target: the array of the block that it wants
    below   of all elements (i, j) only those with i - j >= below;  conjugate: on the way
    """
    me, mine = comm.rank, wanted(comm.rank)
    dtype = target.dtype if beta == 0 else summing(target.dtype)
    sends, recvs, own = {}, {}, []
    for peer in range(comm.size):
        theirs = wanted(peer)
        going = _stairs(held(me, peer), theirs, below, arrays)
        if peer == me:
            own = going
        elif going:
            sends[peer] = packed(xp, [(x, here) for here, _, x in going], dtype)
        if coming := [there for _, there, _ in _stairs(held(peer, me), mine, below)] if peer != me else []:
            recvs[peer] = coming
    rooms = {peer: buffer(xp, (sum(s.size for s in coming),), dtype) for peer, coming in recvs.items()}
    pending = comm.alltoall(sends, rooms)
    for here, there, x in own:
        for piece, to in zip(here.pieces(), there.pieces(), strict=True):
            to.write(xp, target, beta, xp.reinterpret(piece.of(xp, x), conjugate))
    for peer in pending:
        rest = xp.reinterpret(rooms.pop(peer), conjugate)
        for stairs in recvs[peer]:
            rest = unpack(xp, rest, target, stairs, beta)


def _stairs(blocks: Sequence[tuple[int, Block]], wanted: Block | None, below: int | None, arrays: Sequence[Any] | None = None):
    """Where blocks meet one that is wanted: positions here and there, and the array."""
    if wanted is None:
        return []
    met = ((meeting(block, wanted, below), arrays[number] if arrays else None) for number, block in blocks)
    return [(*both, x) for both, x in met if both is not None]
