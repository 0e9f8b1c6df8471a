"""ScaLAPACK's descriptors: integers for a matrix's distribution over a BLACS grid, and its leading dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdla import checks
from pdla.array import namespace
from pdla.comm.agreement import agreed
from pdla.cuts import Cut, Cyclic
from pdla.errors import GridError, LayoutError, ShapeError
from pdla.grid import ProcessGrid, balanced_shape
from pdla.indices import MOST
from pdla.layout import Layout, effective
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import from_local
from pdla.matrix.redistribute import local_shape

ACROSS, DOWN = 501, 502  # types of seven integers, for narrow-band solvers: columns over 1 x P processes, rows over P x 1
USUAL, SHORT = 1, 2  # types of nine integers, and of eleven, with the sizes of the first blocks


@dataclass(frozen=True)
class Descriptor:
    """DESC_(1:9) or DESC_(1:11) of a dense matrix, in Fortran's names.

    Parameters
    ----------
    context : int
        The BLACS context, which pdla ignores.
    m, n : int
        Rows and columns of the matrix.
    imb, inb : int
        Rows of the first block of rows, columns of the first block of columns: `mb` and `nb` unless
        they are shorter.
    mb, nb : int
        Rows and columns of the other blocks.
    rsrc, csrc : int
        The process row and column that have the first block.
    lld : int
        The leading dimension of this rank's block, which may differ from rank to rank.

    Examples
    --------
    >>> pdla.scalapack.Descriptor.read([1, 0, 100, 80, 16, 16, 0, 0, 64]).shape
    (100, 80)
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
        """Read a descriptor's integers.

        Parameters
        ----------
        desc : sequence of int
            Nine or eleven.

        Returns
        -------
        Descriptor
            The same, by name.

        Raises
        ------
        LayoutError
            For integers that describe no dense matrix. Types 501 and 502 leave out its other size:
            the error gives nine integers to use instead.
        """
        words = _read_integers(desc)
        if words[:1] in ([ACROSS], [DOWN]):
            raise LayoutError(f"desc={words}: {_describe_substitute(*words[:6])}")
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
        """Rows and columns of the matrix."""
        return self.m, self.n

    @property
    def words(self) -> np.ndarray:
        """The array of C integers: nine, or eleven if a first block is shorter."""
        short = (self.imb, self.inb) != (self.mb, self.nb)
        first = (SHORT, self.context, self.m, self.n, self.imb, self.inb) if short else (USUAL, self.context, self.m, self.n)
        words = [*first, self.mb, self.nb, self.rsrc, self.csrc, self.lld]
        ends = np.iinfo(np.intc)
        if min(words) < ends.min or max(words) > ends.max:
            raise LayoutError(f"desc={words}: a descriptor's integers are C's, from {ends.min} to {ends.max}")
        return np.array(words, np.intc)

    def layout(self, axes: Sequence[str]) -> Layout:
        """Give the layout of a matrix with this descriptor.

        Parameters
        ----------
        axes : sequence of str
            The grid's axes, the one along process rows first.

        Returns
        -------
        Layout
            Rows and columns are cut by `Cyclic`.
        """
        return Layout(Cyclic(axes[0], self.mb, self.rsrc, self.imb), Cyclic(axes[1], self.nb, self.csrc, self.inb))


def _describe_substitute(
    kind: int, context: int = 0, n: Any = "n", block: Any = "nb", source: Any = "src", lld: Any = "lld"
) -> str:
    """Describe the nine integers to give instead of a one-dimensional descriptor."""
    lies, left, grid = ("columns", "rows", "(1, P)") if kind == ACROSS else ("rows", "cols", "(P, 1)")
    sizes = (left, n, left, block, 0, source) if kind == ACROSS else (n, left, block, left, source, 0)
    nine = ", ".join(map(str, (USUAL, context, *sizes, lld)))
    return f"type {kind} cuts {lies} alone and does not say how many {left} there are; give [{nine}], on ProcessGrid({grid})"


def _read_integers(desc: Any) -> list[int]:
    """Read the integers of a descriptor; empty if it is no sequence of integers."""
    try:
        given = list(desc)
        words = [int(word) for word in given]
    except (TypeError, ValueError, OverflowError):
        return []
    return words if words == given else []


def from_descriptor(desc: Sequence[int], local: Any, grid: Any = None) -> DistMatrix:
    """Make a matrix over a ScaLAPACK code's own memory, without a copy.

    The code sees pdla's writes. Collective over the grid's communicator. The part
    sub(A) = A(ia:ia+m-1, ja:ja+n-1) is ``A[ia-1:ia-1+m, ja-1:ja-1+n]``.

    Parameters
    ----------
    desc : sequence of int
        The descriptor's nine or eleven integers. The context is ignored; `grid` replaces it.
    local : 1-D or 2-D array
        The rank's block. One-dimensional: its columns, lld elements apart. Two-dimensional: in any
        order, with at least as many rows and columns as the rank holds.
    grid : ProcessGrid or communicator, optional
        A grid has two axes, rows first. A communicator (None: the world) means its ranks in
        row-major order on the near-square grid of BLACS codes, ``balanced_shape(size)``.

    Returns
    -------
    DistMatrix
        Of the block's dtype.

    Raises
    ------
    LayoutError, GridError, ShapeError
        If descriptor, grid and block do not fit each other, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     block = np.ones((2, 4), order="F")
    ...     desc, grid = [1, 0, 4, 4, 2, 4, 0, 0, 2], pdla.ProcessGrid((2, 1))
    ...     A = pdla.scalapack.from_descriptor(desc, block, grid)
    ...     return A.shape, A.trace()
    >>> pdla.run(2, program)[0]
    ((4, 4), np.float64(4.0))
    """
    if not isinstance(grid, ProcessGrid):
        made = ProcessGrid(1, comm=grid)
        grid = ProcessGrid(balanced_shape(made.comm.size), comm=made.comm)
    words = _read_integers(desc)
    with agreed(grid.comm, f"from_descriptor({words[:1] + words[2:-1]} without context and lld, {grid!r})"):
        said = Descriptor.read(desc)
        if len(grid.axes) != 2:
            raise GridError(f"{grid!r}: a descriptor's grid has two axes, rows and columns")
        layout = said.layout(grid.axes)
        layout.check(said.shape, grid.sizes)
        block = _cut_block(local, said, local_shape(said.shape, layout, grid)) if grid.active else None
    return from_local(block, said.shape, grid, layout)


def _cut_block(local: Any, said: Descriptor, shape: tuple[int, int]) -> Any:
    """Cut the rank's rows and columns out of `local`, which may have more."""
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
    """Describe a matrix for ScaLAPACK routines that work on A.local. Not collective.

    Parameters
    ----------
    A : DistMatrix
        Its local block is stored by columns, as blocks of `from_descriptor` and ``order="F"``
        arrays are.
    context : int, optional
        The BLACS context.

    Returns
    -------
    numpy.ndarray of C int
        Nine; eleven for a part of a matrix that starts within a block.

    Raises
    ------
    LayoutError
        For a block with other strides, and for a layout that no descriptor can describe. Give
        `from_local` a copy of the block by columns, or `DistMatrix.redistribute` another layout.
    ShapeError
        For an argument that is no DistMatrix.

    Examples
    --------
    >>> def program(comm):
    ...     cyclic = pdla.Layout(pdla.Cyclic("row", 2), pdla.Cyclic("col", 2))
    ...     block, grid = np.ones((4, 8), order="F"), pdla.ProcessGrid((2, 1))
    ...     A = pdla.from_local(block, (8, 8), grid, cyclic)
    ...     return pdla.scalapack.to_descriptor(A).tolist()
    >>> pdla.run(2, program)[0]
    [1, 0, 8, 8, 2, 2, 0, 0, 4]
    """
    checks.matrix(A)
    if not isinstance(context, (int, np.integer)):
        raise LayoutError(f"context={context!r}: that of BLACS, an integer")
    if len(A.grid.axes) != 2:
        raise LayoutError(f"{A!r}: a descriptor's grid has two axes, rows and columns")
    if A.layout.partial or A.conjugated:
        raise LayoutError(f"{A!r}: a descriptor can describe neither partial sums nor conjugates")
    row, col = (_find_cyclic(A, *cuts) for cuts in zip(A.shape, (A.layout.rows, A.layout.cols), A.grid.axes, strict=True))
    rows, cols = A.stored.shape
    down, across = A.stored.strides
    size, apart = A.dtype.itemsize, cols > 1
    if A.stored.size and ((rows > 1 and down != size) or (apart and (across % size or across < rows * size))):
        instead = "give from_local(np.asfortranarray(A.local), A.shape, A.grid, A.layout)"
        raise LayoutError(f"{A!r}: its block must be stored by columns, not by strides {A.stored.strides}: {instead}")
    lld = max(1, across // A.dtype.itemsize if rows and cols > 1 else rows)
    imb, inb = row.first or row.block, col.first or col.block
    return Descriptor(context, *A.shape, imb, inb, row.block, col.block, row.source, col.source, lld).words


def _find_cyclic(A: DistMatrix, n: int, cuts: tuple[Cut, ...], axis: str) -> Cyclic:
    """Find the Cyclic cut of a dimension of n indices along an axis; raise LayoutError if its blocks are not equal."""
    ranks = A.grid.sizes[axis]
    # Along an axis of one rank the cut has no effect, except for the size of blocks.
    cuts = effective(cuts, A.grid.sizes) or tuple(cut for cut in cuts if cut.axis == axis)
    if ranks == 1 and not cuts:
        return Cyclic(axis, max(n, 1))
    if len(cuts) == 1 and cuts[0].axis == axis:
        same = cuts[0] if isinstance(cuts[0], Cyclic) else Cyclic(axis, max(1, -(-n // ranks)))
        if Layout(cuts[0]).same_cuts(Layout(same), (n, 1), A.grid.sizes):
            return same
    instead = f"redistribute to Cyclic({axis!r}, block) first"
    raise LayoutError(f"{A!r}: {n} indices cut by {cuts!r} are not distributed in equal blocks along {axis!r}; {instead}")
