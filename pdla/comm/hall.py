"""A hall: memory of a node's ranks for what is gathered around the nodes. A piece from another node lands there once.

Whoever it comes to tells the others, which read it where it lies: they need no message for it, and no memory of their own.
"""

from __future__ import annotations

from typing import Any

from pdla.comm.board import Board
from pdla.comm.ledger import held
from pdla.comm.workspace import aligned


class Hall:
    """Collective over the ranks of this node, of which there are so many: bytes for arrays, one after another."""

    def __init__(self, board: Board, ranks: int, size: int) -> None:
        self.board, self.holding = board, held(size // ranks)
        self.holding.__enter__()
        self.memory, self.taken, self.told = board.open(size), 0, [-1] * ranks

    def take(self, xp: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """The next array, the same one for all ranks."""
        x = xp.look(self.memory, self.taken, shape, dtype)
        self.taken += aligned(x.nbytes)
        return x

    def tell(self, pieces: int) -> None:
        """So many of the pieces that this rank brings are there."""
        self.board.tell(pieces)

    def has(self, place: int, pieces: int) -> bool:
        """Whether the rank at that place of the node has told of so many, which may then be read."""
        if self.told[place] < pieces:
            self.told[place] = self.board.told(place)
        return self.told[place] >= pieces

    def leave(self) -> None:
        """This rank reads no more; it does not wait."""
        self.board.leave()
        self.holding.__exit__()
