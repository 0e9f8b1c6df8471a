"""Predicted costs of work on a machine: counts, and the seconds that follow from them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pdla.model.machine import Machine


@dataclass(frozen=True)
class Cost:
    """The cost of some work: the most of each figure on any rank that was run dry.

    Parameters
    ----------
    bytes_received : int
        Bytes received from other ranks.
    messages : int
        Messages received from other ranks.
    peak_workspace : int
        The most bytes of buffers at one moment.
    flops : int
        Operations of local products and factorizations, in real arithmetic.
    seconds : float
        On the machine that the work was planned for.
    computing : float
        The computing time, among these seconds, of the rank that computes longest.
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
            The ledgers of ranks that were run dry.

        Returns
        -------
        Cost
            The largest of their figures.
        """
        names = ("bytes_received", "messages", "peak_workspace", "flops", "seconds", "computed")
        return Cost(*(max(map(attrgetter(name), ledgers)) for name in names))


def in_words(cost: Cost, machine: Machine, ranks: int) -> str:
    """Write the seconds and the machine in one line."""
    nodes = f"{-(-ranks // machine.node)} nodes of {machine.node} ranks" if 0 < machine.node < ranks else "one node"
    return f"{cost.seconds:.3g} s on {machine.title}, {nodes}, overlap {machine.overlap:g}"
