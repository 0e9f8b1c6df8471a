"""A shared buffer: memory that all ranks of a communicator on one node write to and read from, in turns.

memory = buffer.open(size)   collective: begins a turn; `size` bytes that all ranks see, and that no rank reads any more
...                          each rank writes its own part
buffer.seal()                collective: waits until all have written; then all may read
buffer.publish(3)            or, instead of `seal`: the first 3 pieces that this rank writes can be read
buffer.count_published(1)    how many of its pieces rank 1 has published
buffer.wait_until(call, ready)  waits for what others tell
buffer.leave()               ends this rank's reading, without waiting
buffer.finish()              or, instead of `leave`, collective: waits until all have read; then what they read may be changed
buffer.trim(most)            collective: frees the memory if it is more than `most` bytes a rank

A turn that is opened has to be sealed, or left where pieces are told of. If a rank fails while it
writes, the others wait for it, and its next `open` is an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from pdla.errors import PdlaError

LANES = 3  # numbers that a rank can tell of, independent of each other
GONE = 2**32 - 1  # instead of a number of pieces: the rank has left this turn by an error
HALF = 2**20  # bytes up to which turns alternate between two halves of memory: so none waits for the readers of the one before


class SharedBuffer(ABC):
    """Memory that the ranks of a communicator write to and read from in turns."""

    place: Any = None  # a name for the memory of this turn: at turns with equal names it is the same; None: new at every turn

    @abstractmethod
    def open(self, size: int) -> Any:
        """Collective: raw memory of at least `size` bytes for this turn."""

    @abstractmethod
    def seal(self) -> None:
        """Collective: wait until all ranks have written."""

    @abstractmethod
    def publish(self, pieces: int, lane: int = 0) -> None:
        """The first `pieces` of this rank's pieces of this turn can be read; the number only grows."""

    @abstractmethod
    def count_published(self, rank: int, lane: int = 0) -> int:
        """Of how many of its pieces a rank has told in this turn; below 0: it has not come to this turn."""

    @abstractmethod
    def may_have_left(self, lane: int = 0) -> bool:
        """Whether some rank may have left this turn by an error (GONE), or is in a later one: then ask `count_published`."""

    @abstractmethod
    def wait_until(self, call: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready` is true, which depends on what others tell. call: what for, in words."""

    @abstractmethod
    def leave(self) -> None:
        """End this rank's reading, without waiting for others."""

    def finish(self) -> None:
        """Collective: wait until all ranks have read: the same barrier as `seal`."""
        self.seal()

    @abstractmethod
    def trim(self, most: int) -> None:
        """Collective, between turns: free the memory if it is more than `most` bytes a rank."""


class Turns(SharedBuffer):
    """A shared buffer over memory that is kept from turn to turn.

    `_grow` provides it; `_come` and `_await` are the halves of a barrier.
    """

    size: int
    half: int
    place: Any
    small: bool
    open_still: bool

    def __init__(self) -> None:
        self.memory: Any = None
        self.size, self.half, self.small, self.open_still = 0, 0, False, False
        self.grown: int = 0

    @abstractmethod
    def _grow(self, size: int) -> Any:
        """Collective: new memory of this size; no rank uses the old any more."""

    @abstractmethod
    def _come(self) -> None:
        """The first half of a barrier: tell the others that this rank has come to it."""

    @abstractmethod
    def _await(self) -> None:
        """The second half: wait until all ranks have come to the barrier to which this one came last."""

    def open(self, size: int) -> Any:
        if self.open_still:
            raise PdlaError("this rank failed in a product while others waited for its blocks: end the job")
        small, before = size <= HALF, self.small
        self.small = small
        if self.memory is None or size > self.size:
            wanted, self.size = max(size, 2 * HALF), 0  # so that, if this fails, the next turn asks for memory again
            self.memory = self._grow(wanted)
            self.size, self.grown = wanted, self.grown + 1
        elif not (small and before):
            if before:
                self._come()
            self._await()
        self.half = HALF - self.half if small else 0
        self.place, self.open_still = (self.grown, self.half), True
        return self.memory[self.half : self.half + size]

    def seal(self) -> None:
        self.open_still = False
        self._come()
        self._await()

    def leave(self) -> None:
        self.open_still = False
        if not self.small:  # after a small turn, a large one comes to this barrier itself: see open
            self._come()
