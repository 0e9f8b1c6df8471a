"""The other triangle of a matrix, from the one that is there: n^2 / 2 P words a rank, transposed on the way."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.array import namespace
from pdla.comm.kept import kept
from pdla.indices import IndexSet
from pdla.linalg.stairs import Block
from pdla.linalg.travel import Way, held_by, wanted_by
from pdla.matrix import DistMatrix


def reflect(C: DistMatrix, hermitian: bool) -> None:
    """Collective: what is below the diagonal of C is written above it, conjugated where `hermitian`. C is no conjugate view."""
    way: Way = kept(C.grid.comm, ("mirror", C.grid, C.shape, C.layout), lambda: _way(C))
    way.run(C.xp, C.grid.comm, [C.stored], C.stored.T, conjugate=hermitian)


def _way(C: DistMatrix) -> Way:
    blocks = wanted_by(C.layout, C.shape, C.grid)

    def transposed(rank: int) -> Block | None:
        block = blocks(rank)
        return None if block is None else Block(block.cols, block.rows)

    return Way.of(C.grid.comm, held_by(C.layout, C.shape, C.grid), transposed, below=1)


def make_real(x: Any, rows: IndexSet, cols: IndexSet) -> None:
    """The diagonal of a block of these rows and columns loses its imaginary part, NaN or not, as BLAS's Hermitian matrices do."""
    here, there, _ = rows.overlay(cols)
    namespace(x).place(x.imag, np.arange(x.shape[0])[here], np.arange(x.shape[1])[there], 0)
