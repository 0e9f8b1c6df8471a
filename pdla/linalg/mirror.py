"""The other triangle of a matrix, from the one that is there: n^2 / 2 P words a rank, transposed on the way."""

from __future__ import annotations

from pdla.linalg.stairs import Block
from pdla.linalg.travel import held_by, travel, wanted_by
from pdla.matrix import DistMatrix


def reflect(C: DistMatrix, hermitian: bool) -> None:
    """Collective: what is below the diagonal of C is written above it, conjugated where `hermitian`. C is no conjugate view."""
    blocks = wanted_by(C.layout, C.shape, C.grid)

    def transposed(rank: int) -> Block | None:
        block = blocks(rank)
        return None if block is None else Block(block.cols, block.rows)

    held = held_by(C.layout, C.shape, C.grid)
    travel(C.xp, C.grid.comm, held, [C.stored], transposed, C.stored.T, below=1, conjugate=hermitian)
