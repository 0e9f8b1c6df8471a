"""A gather buffer: memory that a node's ranks share for an all-gather around the nodes.

A piece from another node is put there once.

The rank that receives it tells the others, which read it in place: they need no message for it, and
no memory of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

from pdla.comm.collectives.ring import Hop
from pdla.comm.ledger import held
from pdla.comm.shared_buffer import SharedBuffer
from pdla.comm.workspace import align


class GatherBuffer:
    """`size` bytes in which arrays lie one after another. Collective over the ranks of this node.

    ranks  how many ranks run on this node
    """

    shared_buffer: SharedBuffer
    holding: held
    memory: Any
    taken: int
    counts: list[int]

    def __init__(self, shared_buffer: SharedBuffer, ranks: int, size: int) -> None:
        self.shared_buffer, self.holding = shared_buffer, held(size // ranks)
        self.holding.__enter__()
        self.memory, self.taken, self.counts = shared_buffer.open(size), 0, [-1] * ranks

    def take(self, xp: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """The next array; all ranks of the node take the same ones in the same order."""
        x = xp.look(self.memory, self.taken, shape, dtype)
        self.taken += align(x.nbytes)
        return x

    def publish(self, pieces: int) -> None:
        """Tell the other ranks that the first `pieces` of the pieces that this rank brings are there."""
        self.shared_buffer.publish(pieces)

    def _has(self, place: int, pieces: int) -> bool:
        """Whether the rank at that place on the node has told of `pieces` pieces or more: then these may be read."""
        if self.counts[place] < pieces:
            self.counts[place] = self.shared_buffer.count_published(place)
        return self.counts[place] >= pieces

    def arrivals(
        self, hops: Sequence[Hop], place: Sequence[int], ours: Iterator[int], until: Callable[[Callable[[], bool]], None]
    ) -> Iterator[int]:
        """Wait for each hop's piece in turn.

        All ranks of a node have the pieces of the other nodes in the same order, so that no two
        wait for each other.

        place  by rank, its place on its node
        ours   the numbers of those pieces that come to this rank from other nodes, as they come
        until  waits until what it is given is true
        """
        expected, came, mine = [0] * len(self.counts), set[int](), count()
        for i, hop in enumerate(hops):
            if hop.far:
                number = next(mine)
                while number not in came:
                    came.add(next(ours))
            else:
                bringer = place[hop.source]
                expected[bringer] += 1
                until(partial(self._has, bringer, expected[bringer]))
            yield i
        for _ in ours:
            pass
        for bringer in range(len(self.counts)):
            until(partial(self._has, bringer, 0))

    def leave(self) -> None:
        """End this rank's reading, without waiting for others."""
        self.shared_buffer.leave()
        self.holding.__exit__()
