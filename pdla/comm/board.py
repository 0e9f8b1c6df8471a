"""A board: memory that all ranks of a communicator write to and read from, in turns; where they run on one node.

memory = board.open(size)    collective: so many bytes, the same on every rank, that nobody reads any more
...                          each rank writes what is its own
board.seal()                 collective: all have written; now all may read
board.tell(3)                or, without sealing: so many pieces that this rank writes are there to be read
board.told(1)                how many of its pieces rank 1 has told of
board.leave()                this rank reads no more; it does not wait
board.finish()               collective: nor does any other, so that all may write to what they have shown
board.trim(most)             collective: no more memory than so many bytes a rank is kept

What opens is sealed, or left where pieces are told of: a rank that fails while it writes has others wait for it, and uses the
board no more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from pdla.errors import PdlaError

HALF = 2**20  # bytes up to which turns alternate between two halves, so that nobody waits for the readers of the last one


class Board(ABC):
    """place  names this turn's memory, which is the same at each turn of one name; None: it is new at every turn"""

    place: Any = None

    @abstractmethod
    def open(self, size: int) -> Any:
        """Collective: raw memory of at least `size` bytes for this turn."""

    @abstractmethod
    def seal(self) -> None:
        """Collective: ends the writing."""

    @abstractmethod
    def tell(self, pieces: int) -> None:
        """So many of this rank's pieces are there, of this turn; all before have been told of."""

    @abstractmethod
    def told(self, rank: int) -> int:
        """Of how many a rank has told; below 0: it has not come to this turn."""

    @abstractmethod
    def leave(self) -> None:
        """Ends this rank's reading."""

    def finish(self) -> None:
        """Collective: ends the reading of all, by a meeting as the one that ends the writing."""
        self.seal()

    @abstractmethod
    def trim(self, most: int) -> None:
        """Collective, between turns: keeps no memory of more than `most` bytes a rank."""


class Turns(Board):
    """A board over memory that is kept from turn to turn: `_grow` provides it, `_come` and `_await` make a barrier in two."""

    def __init__(self) -> None:
        self.memory: Any = None
        self.size, self.half, self.small, self.open_still = 0, 0, False, False
        self.grown = 0

    @abstractmethod
    def _grow(self, size: int) -> Any:
        """Collective: other memory of this size; nobody uses the old."""

    @abstractmethod
    def _come(self) -> None:
        """Tell the others that this rank has come as far as here."""

    @abstractmethod
    def _await(self) -> None:
        """Wait until all have come as far as this rank has told them."""

    def open(self, size: int) -> Any:
        if self.open_still:
            raise PdlaError("this rank failed in a product while others waited for its blocks: end the job")
        small, before = size <= HALF, self.small
        self.small = small
        if self.memory is None or size > self.size:
            wanted, self.size = max(size, 2 * HALF), 0  # where it fails it is asked for again
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
        if not self.small:  # who needs to know that small turns are over asks for it
            self._come()
