"""Fill one triangle of an n x n matrix from the other one, transposed: n^2 / 2 P words a rank."""

from __future__ import annotations

from typing import Any

from pdla.array import namespace
from pdla.comm.cache import find_or_make
from pdla.indices import IndexSet
from pdla.linalg.products.block_exchange import BlockExchange, Targets, find_sources, find_targets
from pdla.linalg.products.trapezoid import Block
from pdla.matrix.core import DistMatrix


def reflect(X: DistMatrix, lower: bool, hermitian: bool) -> None:
    """Collective: fill one triangle of X from the other; the diagonal of a Hermitian X becomes real.

    lower  whether the lower triangle is read

    X must not be a conjugate view.
    """
    symmetrize(X if lower else X.T, hermitian)
    if hermitian and X.dtype.kind == "c":
        make_real(X.stored, *X.indices)


def symmetrize(C: DistMatrix, hermitian: bool, beta: complex = 0) -> None:
    """Collective: set the elements above C's diagonal to beta times these plus those below, conjugated if `hermitian`.

    C must not be a conjugate view.
    """
    exchange: BlockExchange = find_or_make(C.grid.comm, ("mirror", C.grid, C.shape, C.layout), lambda: _plan_exchange(C))
    exchange.run(C.xp, C.grid.comm, [C.stored], C.stored.T, beta, conjugate=hermitian)


def _plan_exchange(C: DistMatrix) -> BlockExchange:
    targets = find_targets(C.layout, C.shape, C.grid)

    def block(rank: int) -> Block | None:
        source = targets.block(rank)
        return None if source is None else source.T

    transposed = Targets(block, lambda block: targets.near(block.T))
    return BlockExchange.of(C.grid.comm, find_sources(C.layout, C.shape, C.grid), transposed, below=1)


def make_real(x: Any, rows: IndexSet, cols: IndexSet) -> None:
    """Local: set the imaginary part of the diagonal to 0, even NaN, in a block x of these rows and columns.

    BLAS does the same in Hermitian matrices.
    """
    namespace(x).place(x.imag, *rows.find_common(cols), 0)
