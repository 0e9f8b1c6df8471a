"""A gather buffer: memory that a node's ranks share for an all-gather around the nodes.

One rank of the node receives a piece from another node into the buffer, and publishes that. The
others read the piece in place, without a message and without memory of their own.
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
    """`size` bytes for arrays one after another. Collective over the ranks of this node.

    ranks  the number of ranks on this node
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
        """Take the next array; all ranks of the node take the same arrays in the same order."""
        x = xp.view_at(self.memory, self.taken, shape, dtype)
        self.taken += align(x.nbytes)
        return x

    def publish(self, pieces: int) -> None:
        """Publish that the first `pieces` pieces that this rank receives for the node have come."""
        self.shared_buffer.publish(pieces)

    def _has(self, place: int, pieces: int) -> bool:
        """Whether the rank at this place on the node has published at least `pieces` pieces."""
        if self.counts[place] < pieces:
            self.counts[place] = self.shared_buffer.count_published(place)
        return self.counts[place] >= pieces

    def arrivals(
        self, hops: Sequence[Hop], place: Sequence[int], received: Iterator[int], wait_until: Callable[[Callable[[], bool]], None]
    ) -> Iterator[int]:
        """Wait for each hop's piece in turn.

        All ranks of a node wait for the pieces of other nodes in the same order, so that no two wait
        for each other.

        * place: by rank, its place on its node.
        * received: yields the numbers of pieces from other nodes as this rank receives them.
        * wait_until: waits until its argument returns true.
        """
        expected, arrived, numbers = [0] * len(self.counts), set[int](), count()
        for i, hop in enumerate(hops):
            if hop.far:
                number = next(numbers)
                while number not in arrived:
                    arrived.add(next(received))
            else:
                receiver = place[hop.source]
                expected[receiver] += 1
                wait_until(partial(self._has, receiver, expected[receiver]))
            yield i
        for _ in received:
            pass
        for receiver in range(len(self.counts)):
            wait_until(partial(self._has, receiver, 0))

    def leave(self) -> None:
        """End this rank's reading, without waiting for others."""
        self.shared_buffer.leave()
        self.holding.__exit__()
