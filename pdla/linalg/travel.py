"""Blocks, or their parts on one side of the diagonal, from the ranks that hold them to those that want them.

One message to each peer. What redistribution cannot say: a rank may hold several blocks, want one that no layout names, and
triangles travel without their other half.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from pdla import config
from pdla.array.composed import summing
from pdla.comm.base import Communicator
from pdla.comm.ledger import buffer
from pdla.grid import ProcessGrid
from pdla.layout import Layout, Shape
from pdla.linalg.stairs import Block, Stairs, meeting, packed, unpack

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
    """What a rank sends, keeps and receives: the stairs of its blocks, numbered as `held` does, and of the block that it wants."""

    sends: dict[int, list[tuple[int, Stairs]]]
    own: list[tuple[int, Stairs, Stairs]]
    recvs: dict[int, list[Stairs]]

    @staticmethod
    def of(comm: Communicator, held: Holding, wanted: Wanting, below: int | None = None) -> Way:
        """below  of all elements (i, j) only those with i - j >= below"""
        me, mine = comm.rank, wanted(comm.rank)
        others = [peer for peer in range(comm.size) if peer != me]
        going = {peer: [(i, here) for i, here, _ in _met(held(me, peer), wanted(peer), below)] for peer in others}
        coming = {peer: [there for _, _, there in _met(held(peer, me), mine, below)] for peer in others}
        full = ({peer: stairs for peer, stairs in side.items() if stairs} for side in (going, coming))
        return Way(next(full), _met(held(me, me), mine, below), next(full))  # type: ignore[arg-type]

    def run(
        self, xp: Any, comm: Communicator, arrays: Sequence[Any], target: Any, beta: complex = 0, conjugate: bool = False,
        own: bool = True,
    ) -> None:  # fmt: skip
        """Collective: target = beta target + what comes, where something comes. What is added travels as it is added up: copies of
        a target, one of them where it comes from, are rounded alike.

        arrays  this rank's blocks;  target: the array of the block that it wants;  conjugate: on the way
        own     whether what it has itself is wanted, too
        """
        dtype = target.dtype if beta == 0 else summing(target.dtype)
        sends = {peer: packed(xp, [(arrays[i], stairs) for i, stairs in going], dtype) for peer, going in self.sends.items()}
        rooms = {peer: buffer(xp, (sum(s.size for s in coming),), dtype) for peer, coming in self.recvs.items()}
        pending = comm.alltoall(sends, rooms)
        for i, here, there in self.own if own else ():
            for piece, to in zip(here.pieces(), there.pieces(), strict=True):
                to.write(xp, target, beta, xp.reinterpret(piece.of(xp, arrays[i]), conjugate))
        for peer in pending:
            rest = xp.reinterpret(rooms.pop(peer), conjugate)
            for stairs in self.recvs[peer]:
                rest = unpack(xp, rest, target, stairs, beta)


def _met(blocks: Sequence[tuple[int, Block]], wanted: Block | None, below: int | None) -> list[tuple[int, Stairs, Stairs]]:
    """Where numbered blocks meet one that is wanted: positions here and there."""
    if wanted is None:
        return []
    met = ((number, meeting(block, wanted, below)) for number, block in blocks)
    return [(number, *both) for number, both in met if both is not None]


def kept(comm: Communicator, key: Hashable, make: Callable[[], Any]) -> Any:
    """What was made of layouts alone at the first call of a kind, on this rank; it lives on the communicator, the latest last."""
    made = vars(comm).setdefault("_scripts", {})
    found = made.pop(key, None)
    made[key] = make() if found is None else found
    while len(made) > config.settings.plans:
        del made[next(iter(made))]
    return made[key]
