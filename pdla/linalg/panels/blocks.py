"""Block-cyclic matrices as factorizations see them.

A `Dimension` lists the owner of each block of rows or columns, the block's place on that rank, and
the communicator along which panels travel.

Factorizations keep the layout of a matrix in square blocks, cut by at most one axis a dimension over
its whole grid. Any other matrix is redistributed to such a layout, and the result to the caller's
layout.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from math import isqrt, prod
from typing import Any

import numpy as np

from pdla.comm.agreement import collective_section
from pdla.comm.cache import find_or_make
from pdla.comm.communicator import Communicator
from pdla.comm.ledger import count, held
from pdla.comm.pending import Pending, to_pending
from pdla.cuts import Cut, Cuts, Cyclic
from pdla.grid import ProcessGrid, balanced_shape
from pdla.layout import Layout, effective
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import cast, convert, local_shape, move, sum_partials

NARROW = 4  # longer grids, for their width, send so many words that leaving ranks idle on a squarer grid is faster


@dataclass(frozen=True)
class Dimension:
    """One dimension of a block-cyclic matrix: n indices in blocks of `block`.

    Rank i of `parts` owns blocks i, i + parts, ...; `rank` is this rank's i. Lists by block number are
    computed once, as every step reads them.

    comm  the communicator of these ranks; None: there is one rank
    run   how many successive blocks a rank owns in each turn
    axis  the grid's axis along which these ranks are; None: there is one rank
    """

    n: int
    block: int
    parts: int = 1
    rank: int = 0
    comm: Communicator | None = None
    run: int = 1
    axis: str | None = None

    @cached_property
    def count(self) -> int:
        """The number of blocks."""
        return -(-self.n // self.block)

    @cached_property
    def width(self) -> list[int]:
        """The width of each block; the last one may be narrower."""
        return [min(self.block, self.n - k * self.block) for k in range(self.count)]

    @cached_property
    def owner(self) -> list[int]:
        """The rank that owns each block."""
        return [k // self.run % self.parts for k in range(self.count)]

    @cached_property
    def at(self) -> list[slice]:
        """The place of each block among this rank's indices; empty slices for other ranks' blocks."""
        return [slice(*ends) for ends in pairwise(self._starts)]

    @cached_property
    def tail(self) -> list[slice]:
        """The place of all blocks from each number on among this rank's indices; empty from `count` and `count` + 1 on."""
        return [slice(begin, self._starts[-1]) for begin in (*self._starts, self._starts[-1])]

    @cached_property
    def _starts(self) -> list[int]:
        turns, rest = np.divmod(np.minimum(np.arange(self.count + 1) * self.block, self.n), self._span * self.parts)
        return (turns * self._span + np.clip(rest - self.rank * self._span, 0, self._span)).tolist()

    @cached_property
    def mine(self) -> list[int]:
        """The numbers of this rank's blocks."""
        return [k for k in range(self.count) if self.owner[k] == self.rank]

    def list_after(self, k: int) -> list[int]:
        """The blocks of this rank after block k."""
        return self.mine[bisect_right(self.mine, k) :]

    def find_owners(self, indices: np.ndarray) -> np.ndarray:
        """The ranks that own these indices."""
        return indices // self._span % self.parts

    def find_places(self, indices: np.ndarray) -> np.ndarray:
        """The places of these indices among those of their owners."""
        return indices // (self._span * self.parts) * self._span + indices % self._span

    @property
    def _span(self) -> int:
        return self.block * self.run

    def bcast(self, x: Any, root: int) -> Pending:
        """Collective: start sending x from rank `root` to the others."""
        return to_pending(x) if self.comm is None or not x.size else self.comm.bcast(x, root)


def find_dimensions(X: DistMatrix) -> tuple[Dimension, Dimension]:
    """Collective: the rows and the columns of a matrix in square blocks.

    Each call gets their communicators from the grid, as a grid closes those that were not used for long.
    """

    def is_current(dimensions: tuple[Dimension, Dimension]) -> bool:
        return all(dimension.axis is None or X.grid[dimension.axis] is dimension.comm for dimension in dimensions)

    key = find_dimensions, X.shape, X.layout
    return find_or_make(X.grid, key, lambda: (_make_dimension(X, 0), _make_dimension(X, 1)), is_current)


def _make_dimension(X: DistMatrix, number: int) -> Dimension:
    n, grid, block = X.shape[number], X.grid, find_block(X)
    cuts = effective((X.layout.rows, X.layout.cols)[number], grid.sizes)
    if not cuts:
        return Dimension(n, block)
    axis, comm = cuts[0].axis, grid[cuts[0].axis]
    run = cuts[0].block // block  # type: ignore[union-attr]
    return Dimension(n, block, grid.sizes[axis], 0 if grid.coords is None else grid.coords[axis], comm, run, axis)


def find_block(X: DistMatrix) -> int:
    """The columns of a panel of a matrix in square blocks; the larger dimension if nothing is cut."""
    cuts = effective((*X.layout.rows, *X.layout.cols), X.grid.sizes)
    return cuts[-1].block if cuts else max(1, *X.shape)  # type: ignore[union-attr]


def is_in_square_blocks(X: Any) -> bool:
    """Whether factorizations can work in X's layout."""
    return find_or_make(X.grid, (is_in_square_blocks, X.layout), lambda: _is_in_square_blocks(X))


def _is_in_square_blocks(X: Any) -> bool:
    rows, cols = _list_cuts(X)
    return _covers_grid(X) and len(rows) < 2 and len(cols) < 2 and len({cut.block for cut in (*rows, *cols)}) < 2  # type: ignore[union-attr]


def find_depth_axis(X: DistMatrix) -> str | None:
    """The axis of the layers that own the panels of X's square blocks in turns; None if there are no layers."""
    rows, cols = _list_cuts(X)
    if not _covers_grid(X) or len(rows) != 1 or len(cols) != 2:
        return None
    square = rows[0].block == cols[0].block == cols[1].block * X.grid.sizes[cols[1].axis]  # type: ignore[union-attr]
    return cols[1].axis if square else None


def _list_cuts(X: DistMatrix) -> tuple[tuple[Cut, ...], tuple[Cut, ...]]:
    return effective(X.layout.rows, X.grid.sizes), effective(X.layout.cols, X.grid.sizes)


def _covers_grid(X: DistMatrix) -> bool:
    """Whether X is dealt out in turns from the first rank on, and every rank of its grid has a part of its own."""
    cuts = [*chain(*_list_cuts(X))]
    ranks = prod(X.grid.sizes[cut.axis] for cut in cuts)
    return all(map(_is_plain, cuts)) and not X.layout.partial and ranks == X.grid.size


def _is_plain(cut: Cut) -> bool:
    return isinstance(cut, Cyclic) and cut.source == 0 and not cut.first


def find_near_square(ranks: int) -> tuple[int, int]:
    """The shape of a grid for a factorization on so many ranks; a large prime number leaves some idle."""
    short = balanced_shape(ranks)[0]
    if ranks > 8 and ranks > NARROW * short * short:
        short = isqrt(ranks)
    return short, ranks // short


def place_in_blocks(X: Any, shape: tuple[int, ...], block: int) -> tuple[Layout, ProcessGrid]:
    """A block-cyclic layout and a grid of this shape, for X."""
    return cut_in_blocks(shape, block), ProcessGrid.trust(shape, X.grid.comm, None)


def cut_in_blocks(shape: tuple[int, ...], block: int) -> Layout:
    """The layout in square blocks on a grid of this shape; with c layers a block has c panels, one a layer.

    block  columns of a panel
    """
    if len(shape) == 2:
        return Layout(Cyclic("row", block), Cyclic("col", block))
    block_rows = block * shape[2]
    return Layout(Cyclic("row", block_rows), (Cyclic("col", block_rows), Cyclic("depth", block)))


def make_working_copy(X: DistMatrix, layout: Layout, grid: ProcessGrid, dtype: np.dtype, overwrite: bool = False) -> DistMatrix:
    """Collective: copy X to this layout and dtype, as workspace; with `overwrite` X itself, if it has both."""
    if X.dtype != dtype:
        X, overwrite = count_workspace(cast(X, dtype)), True
    if not _is_in_layout(X, layout, grid):
        with held(prod(local_shape(X.shape, layout, grid)) * dtype.itemsize):
            return count_workspace(convert(X, layout, grid))
    if overwrite:
        return X._like(X.base, layout=layout)
    block = X.xp.empty(X.stored.shape, dtype)
    X.xp.copy(block, X.stored)
    return count_workspace(DistMatrix(block, X.shape, grid, layout))


def count_workspace(X: DistMatrix) -> DistMatrix:
    """Local: count a new matrix as workspace for as long as its block lives."""
    count(X.base)
    return X


def cut_layout(A: Any, shape: tuple[int, int]) -> Layout:
    """Local: the layout of A, a matrix or a stack, for fewer rows or columns, with boundaries up to their ends."""
    layout, sizes = A.layout.summed, A.grid.sizes
    rows, cols = (
        tuple(cut.part(n, sizes[cut.axis], 0, end) if isinstance(cut, Cuts) else cut for cut in cuts)
        for cuts, n, end in zip((layout.rows, layout.cols), A.shape[-2:], shape, strict=True)
    )
    return Layout.trust(rows, cols)


def to_layout(X: DistMatrix, layout: Layout, grid: ProcessGrid) -> DistMatrix:
    """Collective: redistribute X to a layout and a grid; X itself, if it has these."""
    return X._like(X.base, layout=layout) if _is_in_layout(X, layout, grid) else convert(X, layout, grid)


def fill(out: DistMatrix, X: DistMatrix) -> None:
    """Collective: write X to `out`, which is no view."""
    with collective_section(out.grid.comm, "a redistribution"):
        X = sum_partials(X, out.layout) if X.layout.partial else X
        move(X, out.layout, out.grid, out.stored)


def _is_in_layout(X: DistMatrix, layout: Layout, grid: ProcessGrid) -> bool:
    if X.grid != grid or X.conjugated or layout.partial:
        return False
    return X.layout is layout or find_or_make(grid, (_is_in_layout, X.shape, X.layout, layout), lambda: X.matches_layout(layout))


def pick_diagonal(X: DistMatrix) -> tuple[np.ndarray, np.ndarray]:
    """The numbers and the values of this rank's elements of the diagonal; 1 for arrays without data."""
    rows, cols = X.indices
    i, j = rows.find_common(cols)
    return rows.indices()[i], X.xp.host_or(X.xp.pick(X.stored, i, j), np.ones(len(i)))


def share_numbers(grid: ProcessGrid, numbers: np.ndarray) -> np.ndarray:
    """Collective over the grid's communicator: send a few numbers, which all ranks of the grid have, to idle ranks."""
    comm = grid.comm
    if grid.size == comm.size:
        return numbers
    x, first = comm.xp.asarray(numbers), grid.order[0]
    idle = set(range(comm.size)).difference(grid.order)
    comm.alltoall(dict.fromkeys(idle, x) if comm.rank == first else {}, {first: x} if comm.rank in idle else {}).wait()
    return comm.xp.host_or(x, numbers)
