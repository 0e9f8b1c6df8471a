"""An all-gather around the nodes: over the link of each node every piece goes once.

The nodes lie in a circle. A piece goes from its rank to one of the next node, from that one to its neighbours and to one of
the node after, and so on; on its own node to all at once. The ranks of a node carry what comes from others in turns, by the
piece's place on its own node. Sent to every rank directly, each piece would go over a node's link once for each of its ranks.

Either way a rank receives each other rank's piece once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pdla.comm.broadcast import Messages

LONG = 256 << 10  # bytes of all pieces together from which it is faster than sending directly


def pays(nbytes: int, ranks: int, nodes: int) -> bool:
    """Whether so many bytes, all pieces together, are to be gathered around the nodes, by bench/exchanges.py."""
    return nodes > 1 and ranks > 2 and nbytes >= LONG


class Hop(NamedTuple):
    """A piece's way by a rank: whose it is, who sends it here, and to whom it goes on."""

    owner: int
    source: int
    onward: Sequence[int]


class Route(NamedTuple):
    """What a rank does: to whom its own piece goes, and the others', in the order in which they come."""

    to: Sequence[int]
    hops: Sequence[Hop]


class Nodes:
    """The circle: the ranks of each node, nodes in the order of their first ranks; of each rank, its node and its place there."""

    def __init__(self, homes: Sequence[int]) -> None:
        ranks: dict[int, list[int]] = {}
        self.place: list[int] = []
        for rank, home in enumerate(homes):
            there = ranks.setdefault(home, [])
            self.place.append(len(there))
            there.append(rank)
        number = {home: i for i, home in enumerate(ranks)}
        self.ranks, self.node = [*ranks.values()], [number[home] for home in homes]

    def carrier(self, owner: int, node: int) -> int:
        """Who brings a rank's piece to a node; to its own it does itself."""
        there = self.ranks[node % len(self.ranks)]
        return there[self.place[owner] % len(there)]

    def carried(self, rank: int) -> int:
        """How many pieces from other nodes come directly to this rank."""
        own = self.node[rank]
        step = len(self.ranks[own])
        return sum(len(range(self.place[rank], len(there), step)) for node, there in enumerate(self.ranks) if node != own)

    def route(self, rank: int) -> Route:
        """Pieces from nodes so many steps back are sent on in the order in which they come: so messages keep theirs."""
        node, count = self.node[rank], len(self.ranks)
        near, to, hops = [r for r in self.ranks[node] if r != rank], list[int](), list[Hop]()
        for steps in range(count):
            for owner in self.ranks[(node - steps) % count]:
                carrier = self.carrier(owner, node)
                onward = [*([self.carrier(owner, node + 1)] if steps + 1 < count else []), *near]
                if owner == rank:
                    to = onward
                elif carrier == rank:
                    hops.append(Hop(owner, self.carrier(owner, node - 1), onward))
                else:
                    hops.append(Hop(owner, carrier, ()))
        return Route(to, hops)


def messages(route: Route, x: Any, outs: Sequence[Any]) -> tuple[Messages, list[int]]:
    """A rank's part in gathering x of each rank r into outs[r], none for what is empty; and whose each of those received is."""
    hops = [hop for hop in route.hops if outs[hop.owner].size]
    recvs = [(hop.source, outs[hop.owner]) for hop in hops]
    onward = {i: hop.onward for i, hop in enumerate(hops) if hop.onward}
    return Messages([(r, x) for r in route.to if x.size], recvs, onward), [hop.owner for hop in hops]
