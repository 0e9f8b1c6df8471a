"""A shared buffer: memory that all ranks of a communicator on one node write to and read from, in turns.

    memory = buffer.open(size)       # collective: start a turn, in `size` bytes that no rank still reads
    ...                              # each rank writes its own part
    buffer.seal()                    # collective: wait until all ranks have written; then all may read
    buffer.publish(3)                # or, instead of `seal`: the others may read this rank's first 3 pieces
    buffer.count_published(1)        # the number of pieces that rank 1 has published
    buffer.wait_until(call, ready)   # wait for counts that others publish
    buffer.leave()                   # end this rank's reading, without waiting
    buffer.finish()                  # or, instead of `leave`, collective: wait until all have read
    buffer.trim(most)                # collective: free the memory if it is more than `most` bytes a rank

A rank that opens a turn must seal it or, if ranks publish pieces, leave it. If a rank fails while
it writes, the others wait for it, and its next `open` raises an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from pdla.errors import PdlaError

LANES = 3  # independent counts that a rank publishes
GONE = 2**32 - 1  # the count of a rank that has left this turn by an error
HALF = 2**20  # bytes up to which turns alternate between two halves of memory, without waiting for earlier readers


class SharedBuffer(ABC):
    """Memory that the ranks of a communicator write to and read from in turns."""

    place: Any = None  # identifies this turn's memory: turns of equal places have the same; None: each turn has new memory

    @abstractmethod
    def open(self, size: int) -> Any:
        """Collective: start a turn, and return its raw memory, of at least `size` bytes."""

    @abstractmethod
    def seal(self) -> None:
        """Collective: wait until all ranks have written."""

    @abstractmethod
    def publish(self, pieces: int, lane: int = 0) -> None:
        """Publish that others may read this rank's first `pieces` pieces of this turn; the count only grows."""

    @abstractmethod
    def count_published(self, rank: int, lane: int = 0) -> int:
        """Count the pieces that a rank has published in this turn; below 0: the rank has not come to it."""

    @abstractmethod
    def may_have_left(self, lane: int = 0) -> bool:
        """Whether some rank may have left this turn by an error (GONE), or is in a later turn; `count_published` tells which."""

    @abstractmethod
    def wait_until(self, call: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready` is true, which depends on counts that others publish. call: the call in words."""

    @abstractmethod
    def leave(self) -> None:
        """End this rank's reading, without waiting for others."""

    def finish(self) -> None:
        """Collective: wait until all ranks have read; the barrier is that of `seal`."""
        self.seal()

    @abstractmethod
    def trim(self, most: int) -> None:
        """Collective, between turns: free the memory if it is more than `most` bytes a rank."""


class Turns(SharedBuffer):
    """A shared buffer over the same memory from turn to turn.

    `_grow` allocates the memory; `_arrive` and `_await` are the halves of a barrier.
    """

    size: int
    half: int
    place: Any
    small: bool
    is_open: bool

    def __init__(self) -> None:
        self.memory: Any = None
        self.size, self.half, self.small, self.is_open = 0, 0, False, False
        self.grown: int = 0

    @abstractmethod
    def _grow(self, size: int) -> Any:
        """Collective: allocate memory of this size; no rank uses the old memory any more."""

    @abstractmethod
    def _arrive(self) -> None:
        """Enter a barrier: show the others that this rank has arrived."""

    @abstractmethod
    def _await(self) -> None:
        """Wait until all ranks have arrived at the barrier that this rank entered last."""

    def open(self, size: int) -> Any:
        if self.is_open:
            raise PdlaError("this rank failed in a product while others waited for its blocks: end the job")
        small, was_small = size <= HALF, self.small
        self.small = small
        if self.memory is None or size > self.size:
            allocated, self.size = max(size, 2 * HALF), 0  # size 0: if this fails, the next turn allocates again
            self.memory = self._grow(allocated)
            self.size, self.grown = allocated, self.grown + 1
        elif not (small and was_small):
            if was_small:
                self._arrive()
            self._await()
        self.half = HALF - self.half if small else 0
        self.place, self.is_open = (self.grown, self.half), True
        return self.memory[self.half : self.half + size]

    def seal(self) -> None:
        self.is_open = False
        self._arrive()
        self._await()

    def leave(self) -> None:
        self.is_open = False
        if not self.small:  # after a small turn, the next large one enters this barrier: see open
            self._arrive()
