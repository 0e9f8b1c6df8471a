"""What work costs on a machine, before it is done: counts, and the seconds that follow from them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pdla.model.machine import Machine


@dataclass(frozen=True)
class Cost:
    """What work costs: of each figure the most that any of the ranks that were run dry has.

    Parameters
    ----------
    bytes_received : int
        Bytes received from other ranks.
    messages : int
        Messages received from other ranks.
    peak_workspace : int
        Bytes of buffers at any moment.
    flops : int
        Operations of local products and factorizations, in real arithmetic.
    seconds : float
        On the machine that the work was planned for.
    computing : float
        Of these seconds, those in which the rank that computes longest computes.
    """

    bytes_received: int
    messages: int
    peak_workspace: int
    flops: int = 0
    seconds: float = 0.0
    computing: float = 0.0

    @staticmethod
    def of(ledgers: Collection[Any]) -> Cost:
        """Find the most of each figure. Local.

        Parameters
        ----------
        ledgers : collection of Ledger
            Of ranks that were run dry.

        Returns
        -------
        Cost
            The largest of their figures.
        """
        names = ("bytes_received", "messages", "peak_workspace", "flops", "seconds", "computed")
        return Cost(*(max(map(attrgetter(name), ledgers)) for name in names))


def in_words(cost: Cost, machine: Machine, ranks: int) -> str:
    """The seconds, and on what: one line."""
    nodes = f"{-(-ranks // machine.node)} nodes of {machine.node} ranks" if 0 < machine.node < ranks else "one node"
    return f"{cost.seconds:.3g} s on {machine.title}, {nodes}, overlap {machine.overlap:g}"
