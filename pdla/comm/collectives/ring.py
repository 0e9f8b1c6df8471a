"""An all-gather around the nodes: over the link of each node every piece goes once.

The nodes lie in a circle: a piece goes from its owner to one rank of the next node, from there to
one of the node after, ... On its own node the owner sends its piece to all ranks; on another node
the rank to which it came, its *carrier*, does. A node's ranks carry pieces in turn, by the place of
the owner on its node. If a piece were sent to every rank directly, it would go over a node's link
once for each of its ranks. A rank receives every other rank's piece once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from pdla.comm.collectives.broadcast import Messages

LONG = 256 << 10  # bytes of all pieces together from which this is faster than sending them directly


def pays(nbytes: int, ranks: int, nodes: int) -> bool:
    """Whether pieces of `nbytes` in all are gathered in this way, and not sent by every rank to every other."""
    return nodes > 1 and ranks > 2 and nbytes >= LONG


class Hop(NamedTuple):
    """A piece's stop at a rank.

    It has the piece's owner, the rank that sends it here, whether that is on another node, and the
    ranks of other nodes to which it is sent on.
    """

    owner: int
    source: int
    far: bool
    forwards: Sequence[int]


class Route(NamedTuple):
    """A rank's part: where its own piece goes, and the others' pieces in the order in which they come.

    `to` is the rank of the next node to which it sends its own piece; `near` the other ranks of its
    node, to which it sends that and every piece that comes from another node; `hops` the others'
    pieces.
    """

    to: int
    near: Sequence[int]
    hops: Sequence[Hop]


class Nodes:
    """The circle of nodes, in the order of their first ranks.

    ranks[i] are those of node i; rank r is number place[r] of the ranks of node node[r].
    """

    ranks: list[list[int]]
    node: list[int]

    def __init__(self, homes: Sequence[int]) -> None:
        ranks: dict[int, list[int]] = {}
        self.place: list[int] = []
        for rank, home in enumerate(homes):
            mates = ranks.setdefault(home, [])
            self.place.append(len(mates))
            mates.append(rank)
        number = {home: i for i, home in enumerate(ranks)}
        self.ranks, self.node = [*ranks.values()], [number[home] for home in homes]

    @cached_property
    def in_order(self) -> bool:
        """Whether all nodes have the same number of ranks, and rank numbers ascend from node to node."""
        return len(set(map(len, self.ranks))) == 1 and self.node == sorted(self.node)

    def column(self, rank: int) -> list[int]:
        """The rank of every node that has this one's place there; for nodes with the same number of ranks."""
        return [ranks[self.place[rank]] for ranks in self.ranks]

    def carrier(self, owner: int, node: int) -> int:
        """The rank of a node to which a piece comes first; on the owner's node that is the owner."""
        ranks = self.ranks[node % len(self.ranks)]
        return ranks[self.place[owner] % len(ranks)]

    def count_carried(self, rank: int) -> int:
        """How many pieces of other nodes' ranks have this rank as their carrier on its node."""
        own = self.node[rank]
        step = len(self.ranks[own])
        return sum(len(range(self.place[rank], len(ranks), step)) for node, ranks in enumerate(self.ranks) if node != own)

    def route(self, rank: int) -> Route:
        """The part of a rank.

        Hops are ordered by how many nodes back the owner is, and pieces are sent on in the order in
        which they come: so any two ranks agree on the order of the messages between them.
        """
        node, count = self.node[rank], len(self.ranks)
        hops = []
        for steps in range(count):
            for owner in self.ranks[(node - steps) % count]:
                carrier = self.carrier(owner, node)
                if carrier != rank:
                    hops.append(Hop(owner, carrier, False, ()))
                elif owner != rank:
                    forwards = [self.carrier(owner, node + 1)] if steps < count - 1 else []
                    hops.append(Hop(owner, self.carrier(owner, node - 1), True, forwards))
        return Route(self.carrier(rank, node + 1), [r for r in self.ranks[node] if r != rank], hops)


def messages(route: Route, x: Any, hops: Sequence[Hop], outs: Mapping[int, Any]) -> Messages:
    """A rank's part in gathering x of each rank r into outs[r], by messages alone.

    hops: those of the route whose pieces have elements.
    """
    forwards = {i: to for i, hop in enumerate(hops) if hop.far and (to := [*hop.forwards, *route.near])}
    sends = [(r, x) for r in (route.to, *route.near)] if x.size else []
    return Messages(sends, [(hop.source, outs[hop.owner]) for hop in hops], forwards)


def messages_between_nodes(route: Route, x: Any, hops: Sequence[Hop], outs: Mapping[int, Any]) -> Messages:
    """The same where outs lie in memory that the ranks of a node share: then only messages between nodes are needed."""
    far = [hop for hop in hops if hop.far]
    sends = [(route.to, x)] if x.size else []
    return Messages(sends, [(hop.source, outs[hop.owner]) for hop in far], {i: hop.forwards for i, hop in enumerate(far)})
