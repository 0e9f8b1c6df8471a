"""An all-gather around the nodes: over the link of each node every piece goes once.

ring  the nodes lie in a circle: a piece goes from its rank to one of the next node, from that one to one of the node after
fan   it goes from its rank to one of every other node at once, which takes one step instead of many

On its own node a piece goes to all ranks, on another one from the rank that it came to. These carry the pieces in turns, by a
piece's place on its own node. Sent to every rank directly, it would go over a node's link once for each of its ranks.

Either way a rank receives each other rank's piece once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from pdla.comm.broadcast import Messages

LONG = 256 << 10  # bytes of all pieces together from which it is faster than sending directly
CALM = 512 << 10  # up to which it is a fan where nodes have several ranks: more at once overflows the queues of links


def way(nbytes: int, ranks: int, nodes: int) -> str:
    """How so many bytes, all pieces together, are gathered, by bench/exchanges.py: empty: every rank sends to every other."""
    if nodes == 1 or ranks == 2 or nbytes < LONG:
        return ""
    return "fan" if nodes < ranks and nbytes <= CALM else "ring"


class Hop(NamedTuple):
    """A piece's way by a rank: whose it is, who sends it here, whether from another node, and to which of those it goes on."""

    owner: int
    source: int
    far: bool
    onward: Sequence[int]


class Route(NamedTuple):
    """What a rank does: to whom on other nodes its own piece goes, to whom on its own, as all that comes from far, and the
    others' pieces in the order in which they come.
    """

    to: Sequence[int]
    near: Sequence[int]
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

    @cached_property
    def in_order(self) -> bool:
        """Whether all nodes have as many ranks, the first ones the first node's, and so on."""
        return len(set(map(len, self.ranks))) == 1 and self.node == sorted(self.node)

    def column(self, rank: int) -> list[int]:
        """The ranks at this one's place of every node; of nodes with as many ranks."""
        return [there[self.place[rank]] for there in self.ranks]

    def carrier(self, owner: int, node: int) -> int:
        """Who brings a rank's piece to a node; to its own it does itself."""
        there = self.ranks[node % len(self.ranks)]
        return there[self.place[owner] % len(there)]

    def carried(self, rank: int) -> int:
        """How many pieces from other nodes come directly to this rank."""
        own = self.node[rank]
        step = len(self.ranks[own])
        return sum(len(range(self.place[rank], len(there), step)) for node, there in enumerate(self.ranks) if node != own)

    def route(self, rank: int, way: str) -> Route:
        """Pieces from nodes so many steps back are sent on in the order in which they come: so messages keep theirs."""
        node, count = self.node[rank], len(self.ranks)
        reach = count - 1 if way == "fan" else 1  # how many nodes on a rank sends
        hops = []
        for steps in range(count):
            for owner in self.ranks[(node - steps) % count]:
                carrier = self.carrier(owner, node)
                if carrier != rank:
                    hops.append(Hop(owner, carrier, False, ()))
                elif owner != rank:
                    onward = [self.carrier(owner, node + 1)] if reach <= steps < count - 1 else []
                    hops.append(Hop(owner, self.carrier(owner, node - min(steps, reach)), True, onward))
        to = [self.carrier(rank, node + steps) for steps in range(1, min(reach, count - 1) + 1)]
        return Route(to, [r for r in self.ranks[node] if r != rank], hops)


def messages(route: Route, x: Any, hops: Sequence[Hop], outs: Sequence[Any]) -> Messages:
    """A rank's part in gathering x of each rank r into outs[r], by messages alone; of the route, the hops that bring any."""
    onward = {i: there for i, hop in enumerate(hops) if hop.far and (there := [*hop.onward, *route.near])}
    sends = [(r, x) for r in (*route.to, *route.near)] if x.size else []
    return Messages(sends, [(hop.source, outs[hop.owner]) for hop in hops], onward)


def landings(route: Route, x: Any, hops: Sequence[Hop], outs: Sequence[Any]) -> Messages:
    """The same where outs lie in memory that the ranks of a node share: what comes from other nodes, and goes there."""
    ours = [hop for hop in hops if hop.far]
    sends = [(r, x) for r in route.to] if x.size else []
    return Messages(sends, [(hop.source, outs[hop.owner]) for hop in ours], {i: hop.onward for i, hop in enumerate(ours)})
