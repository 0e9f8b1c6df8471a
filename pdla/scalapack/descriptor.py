"""ScaLAPACK's descriptors: integers that say how a matrix is dealt out over a BLACS grid, and its leading dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdla.array import namespace
from pdla.comm.agreement import agreed
from pdla.cuts import Cut, Cyclic
from pdla.errors import GridError, LayoutError, ShapeError
from pdla.grid import ProcessGrid, balanced_shape
from pdla.indices import MOST
from pdla.layout import Layout, effective
from pdla.matmul import checks
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import from_local
from pdla.matrix.redistribute import local_shape

USUAL, SHORT = 1, 2  # types of descriptors: of nine integers; of eleven, where the sizes of the first blocks are given, too


@dataclass(frozen=True)
class Descriptor:
    """DESC_(1:9) or DESC_(1:11), in Fortran's names; the leading dimension lld may differ from rank to rank.

    imb, inb  rows of the first block of rows, columns of the first block of columns; mb and nb unless they are shorter
    """

    context: int
    m: int
    n: int
    imb: int
    inb: int
    mb: int
    nb: int
    rsrc: int
    csrc: int
    lld: int

    @staticmethod
    def read(desc: Sequence[int]) -> Descriptor:
        """A descriptor from its nine or eleven integers. LayoutError for integers that describe no dense matrix."""
        words = _integers(desc)
        if (words[:1], len(words)) not in (([USUAL], 9), ([SHORT], 11)):
            said = words or desc
            raise LayoutError(f"desc={said!r}: a dense matrix has nine integers, the first {USUAL}, or eleven, the first {SHORT}")
        made = Descriptor(*words[1:4], *words[4:6], *words[4:]) if len(words) == 9 else Descriptor(*words[1:])
        if min(made.m, made.n, made.rsrc, made.csrc) < 0 or min(made.imb, made.inb, made.mb, made.nb, made.lld) < 1:
            raise LayoutError(f"desc={words}: m, n, rsrc and csrc are at least 0, blocks and lld at least 1")
        if max(words) > MOST:
            raise LayoutError(f"desc={words}: integers beyond 2^63 - 1, the most that indices are")
        return made

    @property
    def shape(self) -> tuple[int, int]:
        return self.m, self.n

    @property
    def words(self) -> np.ndarray:
        """As C integers: nine, or eleven where a first block is shorter."""
        short = (self.imb, self.inb) != (self.mb, self.nb)
        first = (SHORT, self.context, self.m, self.n, self.imb, self.inb) if short else (USUAL, self.context, self.m, self.n)
        words = [*first, self.mb, self.nb, self.rsrc, self.csrc, self.lld]
        ends = np.iinfo(np.intc)
        if min(words) < ends.min or max(words) > ends.max:
            raise LayoutError(f"desc={words}: a descriptor's integers are C's, from {ends.min} to {ends.max}")
        return np.array(words, np.intc)

    def layout(self, axes: Sequence[str]) -> Layout:
        """The layout, on a grid with these two axes, of a matrix with this descriptor."""
        return Layout(Cyclic(axes[0], self.mb, self.rsrc, self.imb), Cyclic(axes[1], self.nb, self.csrc, self.inb))


def _integers(desc: Any) -> list[int]:
    """The integers of a descriptor; empty if it is no sequence of integers."""
    try:
        given = list(desc)
        words = [int(word) for word in given]
    except (TypeError, ValueError, OverflowError):
        return []
    return words if words == given else []


def from_descriptor(desc: Sequence[int], local: Any, grid: Any = None) -> DistMatrix:
    """A matrix over a ScaLAPACK code's own memory, without a copy: the code sees what pdla writes to it. Collective.

    desc   the descriptor's nine or eleven integers; the context is ignored, `grid` stands for it
    local  this rank's block: one-dimensional, column after column, lld elements apart; or two-dimensional, in any order, with
           at least as many rows and columns as the rank holds
    grid   a ProcessGrid of two axes, rows first; or a communicator (None: the world), which stands for its ranks in row-major
           order on the near-square grid of BLACS codes, balanced_shape(size)

    The part sub(A) = A(ia:ia+m-1, ja:ja+n-1) of it is A[ia-1:ia-1+m, ja-1:ja-1+n]. Raises LayoutError, GridError or ShapeError, on
    every rank.
    """
    if not isinstance(grid, ProcessGrid):
        made = ProcessGrid(1, comm=grid)
        grid = ProcessGrid(balanced_shape(made.comm.size), comm=made.comm)
    words = _integers(desc)
    with agreed(grid.comm, f"from_descriptor({words[:1] + words[2:-1]} without context and lld, {grid!r})"):
        said = Descriptor.read(desc)
        if len(grid.axes) != 2:
            raise GridError(f"{grid!r}: a descriptor's grid has two axes, rows and columns")
        layout = said.layout(grid.axes)
        layout.check(said.shape, grid.sizes)
        block = _block(local, said, local_shape(said.shape, layout, grid)) if grid.active else None
    return from_local(block, said.shape, grid, layout)


def _block(local: Any, said: Descriptor, shape: tuple[int, int]) -> Any:
    """The rank's rows and columns of `local`, which may have more."""
    rows, cols = shape
    block = namespace(local).asarray(local)
    if block.ndim == 1:
        if said.lld < rows or block.size < said.lld * cols:
            raise ShapeError(f"{block.size} elements, lld={said.lld}: this rank's {rows} x {cols} need lld x {cols}, lld >= {rows}")
        return block[: said.lld * cols].reshape(cols, said.lld)[:, :rows].T
    if block.ndim != 2 or block.shape[0] < rows or block.shape[1] < cols:
        raise ShapeError(f"the local array has shape {block.shape}; this rank holds {rows} x {cols} of {said.shape}")
    return block[:rows, :cols]


def to_descriptor(A: DistMatrix, context: int = 0) -> np.ndarray:
    """The descriptor of A, as C integers, for ScaLAPACK routines that are to work on A.local. Not collective.

    Nine integers; eleven for a part of a matrix that begins within a block. A's local block must lie column by column, as those
    of from_descriptor and any `order="F"` array do. LayoutError for a block that lies otherwise, and for a layout that no
    descriptor can describe; `A.redistribute` brings A into another layout. ShapeError if A is no DistMatrix.
    """
    checks.matrix(A)
    if not isinstance(context, (int, np.integer)):
        raise LayoutError(f"context={context!r}: that of BLACS, an integer")
    if len(A.grid.axes) != 2:
        raise LayoutError(f"{A!r}: a descriptor's grid has two axes, rows and columns")
    if A.layout.partial or A.conjugated:
        raise LayoutError(f"{A!r}: a descriptor can say neither partial sums nor conjugates")
    row, col = (_dealt(A, *cuts) for cuts in zip(A.shape, (A.layout.rows, A.layout.cols), A.grid.axes, strict=True))
    rows, cols = A.stored.shape
    down, across = A.stored.strides
    size, apart = A.dtype.itemsize, cols > 1
    if A.stored.size and ((rows > 1 and down != size) or (apart and (across % size or across < rows * size))):
        raise LayoutError(f"{A!r}: its block must lie column by column (order='F'): strides {A.stored.strides}")
    lld = max(1, across // A.dtype.itemsize if rows and cols > 1 else rows)
    imb, inb = row.first or row.block, col.first or col.block
    return Descriptor(context, *A.shape, imb, inb, row.block, col.block, row.source, col.source, lld).words


def _dealt(A: DistMatrix, n: int, cuts: tuple[Cut, ...], axis: str) -> Cyclic:
    """How a dimension of n indices is dealt out along an axis, as Cyclic; LayoutError if it is not in equal blocks."""
    ranks = A.grid.sizes[axis]
    # Along an axis of one rank the cut has no effect, but tells the size of blocks.
    cuts = effective(cuts, A.grid.sizes) or tuple(cut for cut in cuts if cut.axis == axis)
    if ranks == 1 and not cuts:
        return Cyclic(axis, max(n, 1))
    if len(cuts) == 1 and cuts[0].axis == axis:
        same = cuts[0] if isinstance(cuts[0], Cyclic) else Cyclic(axis, max(1, -(-n // ranks)))
        if Layout(cuts[0]).same_cuts(Layout(same), (n, 1), A.grid.sizes):
            return same
    raise LayoutError(f"{A!r}: {n} indices cut by {cuts!r} are not dealt out in equal blocks along {axis!r}; redistribute first")
