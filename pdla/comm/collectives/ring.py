"""An all-gather around the nodes: every piece goes once over the link of each node.

The nodes form a ring. A piece goes from its owner to one rank of the next node, its *carrier* there,
and from carrier to carrier around the ring. On each node the owner or the carrier sends the piece to
the node's other ranks. The owner's place on its node decides which rank carries a piece, so that the
ranks of a node share the load. A rank receives every other rank's piece once. Sent directly, a piece
would go over a node's link once for each of the node's ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from pdla.comm.collectives.broadcast import Messages

LONG = 256 << 10  # bytes of all pieces from which the ring is faster than direct messages


def pays(nbytes: int, ranks: int, nodes: int) -> bool:
    """Whether pieces of `nbytes` in all go around the nodes, instead of from every rank to every other."""
    return nodes > 1 and ranks > 2 and nbytes >= LONG


class Hop(NamedTuple):
    """A piece's stop at a rank."""

    owner: int
    source: int  # the rank that sends the piece here
    far: bool  # whether `source` is on another node
    forwards: Sequence[int]  # the ranks of other nodes to which this rank forwards the piece


class Route(NamedTuple):
    """A rank's part in the all-gather."""

    to: int  # the rank of the next node that receives this rank's own piece
    near: Sequence[int]  # the other ranks of its node, which receive its own piece and those that it carries
    hops: Sequence[Hop]  # the other ranks' pieces, in the order of their arrival


class Nodes:
    """The ring of nodes, in the order of their first ranks.

    ranks[i] are the ranks of node i; rank r is number place[r] of the ranks of node node[r].
    """

    ranks: list[list[int]]
    node: list[int]

    def __init__(self, homes: Sequence[int]) -> None:
        ranks: dict[int, list[int]] = {}
        self.place: list[int] = []
        for rank, home in enumerate(homes):
            node_ranks = ranks.setdefault(home, [])
            self.place.append(len(node_ranks))
            node_ranks.append(rank)
        number = {home: i for i, home in enumerate(ranks)}
        self.ranks, self.node = [*ranks.values()], [number[home] for home in homes]

    @cached_property
    def in_order(self) -> bool:
        """Whether all nodes have the same number of ranks, and rank numbers ascend from node to node."""
        return len(set(map(len, self.ranks))) == 1 and self.node == sorted(self.node)

    def list_column(self, rank: int) -> list[int]:
        """List the rank of every node with this rank's place, for nodes with the same number of ranks."""
        return [ranks[self.place[rank]] for ranks in self.ranks]

    def find_carrier(self, owner: int, node: int) -> int:
        """Find the rank of a node that receives a piece first; on the owner's node it is the owner."""
        ranks = self.ranks[node % len(self.ranks)]
        return ranks[self.place[owner] % len(ranks)]

    def count_carried(self, rank: int) -> int:
        """Count the pieces of other nodes' ranks that this rank carries."""
        own = self.node[rank]
        step = len(self.ranks[own])
        return sum(len(range(self.place[rank], len(ranks), step)) for node, ranks in enumerate(self.ranks) if node != own)

    def make_route(self, rank: int) -> Route:
        """Make the part of a rank.

        Hops are ordered by the owner's distance in nodes, and a rank forwards pieces in the order of
        their arrival. Any two ranks thus agree on the order of the messages between them.
        """
        node, count = self.node[rank], len(self.ranks)
        hops = []
        for steps in range(count):
            for owner in self.ranks[(node - steps) % count]:
                carrier = self.find_carrier(owner, node)
                if carrier != rank:
                    hops.append(Hop(owner, carrier, False, ()))
                elif owner != rank:
                    forwards = [self.find_carrier(owner, node + 1)] if steps < count - 1 else []
                    hops.append(Hop(owner, self.find_carrier(owner, node - 1), True, forwards))
        return Route(self.find_carrier(rank, node + 1), [r for r in self.ranks[node] if r != rank], hops)


def list_messages(route: Route, x: Any, hops: Sequence[Hop], outs: Mapping[int, Any]) -> Messages:
    """List a rank's messages to gather x of each rank r into outs[r].

    hops: the hops of the route whose pieces are not empty.
    """
    forwards = {i: to for i, hop in enumerate(hops) if hop.far and (to := [*hop.forwards, *route.near])}
    sends = [(r, x) for r in (route.to, *route.near)] if x.size else []
    return Messages(sends, [(hop.source, outs[hop.owner]) for hop in hops], forwards)


def list_messages_between_nodes(route: Route, x: Any, hops: Sequence[Hop], outs: Mapping[int, Any]) -> Messages:
    """List the messages between nodes alone, as the ranks of a node share the memory of outs."""
    far = [hop for hop in hops if hop.far]
    sends = [(route.to, x)] if x.size else []
    return Messages(sends, [(hop.source, outs[hop.owner]) for hop in far], {i: hop.forwards for i, hop in enumerate(far)})
