"""A machine in five figures: what a plan must know of it to weigh work, words and messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Figures of one rank; the defaults are one core of a desktop processor under MPICH, rounded.

    flops      a second, of a large float64 product; float32 runs at twice that, complex at the rate of its real parts
    bandwidth  bytes a second received from a rank on the same node;  network: from one on another node
    latency    seconds until a message begins to arrive
    """

    flops: float = 5e10
    bandwidth: float = 5e9
    network: float = 1.25e9
    latency: float = 2e-6

    @property
    def message(self) -> float:
        """Words of 8 bytes that could be received in the time in which a message begins."""
        return self.latency * self.bandwidth / 8

    @property
    def distance(self) -> float:
        """Words received within a node in the time of one from another node."""
        return self.bandwidth / self.network

    def seconds(self, flops: float, received: float, messages: float, itemsize: int = 8) -> float:
        """Time of so many flops of float64 or complex128 (itemsize a real part), bytes and messages, nothing overlapped."""
        return flops * itemsize / 8 / self.flops + received / self.bandwidth + messages * self.latency
