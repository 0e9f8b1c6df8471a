"""y = A x: x is redistributed as A's columns are, and addends of y are summed along the axes that cut A's columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.array.composed import sum_dtype
from pdla.array.dtypes import can_cast_addends, promote
from pdla.checks import communicator, describe_call, matrix, same_grid
from pdla.comm.agreement import agree, collective_section
from pdla.comm.communicator import Communicator
from pdla.errors import LayoutError, ShapeError
from pdla.grid import ProcessGrid
from pdla.layout import Layout, axes_of
from pdla.linalg import checks
from pdla.matmul.schedules.streams import multiply
from pdla.matrix.core import DistMatrix, MatrixOrVector
from pdla.matrix.create import check_array
from pdla.matrix.redistribute import convert, sum_partials


def matvec(A: DistMatrix, x: MatrixOrVector, *, layout: Layout | None = None) -> MatrixOrVector:
    """Multiply a vector: y = A x. Collective over A's grid, idle ranks included.

    A.T and A.H are views; A is never redistributed.

    Parameters
    ----------
    A : DistMatrix
        m x k, in any layout.
    x : DistMatrix or array
        k x 1 on A's grid; or a vector of k numbers, equal on all ranks.
    layout : Layout, optional
        A distributed y's; by default A's row cuts, with copies along the other axes.

    Returns
    -------
    DistMatrix or array
        y, m x 1; or, for a vector x, a vector of m numbers on every rank. Dtypes promote as
        NumPy's.

    Raises
    ------
    ShapeError, LayoutError, GridError
        For arguments that do not fit each other.
    AgreementError
        For vectors that differ between ranks. All of these are raised on every rank.

    See Also
    --------
    matvec_words : The words that a rank receives.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 2], [3, 4]]), grid, pdla.Layout("row"))
    ...     return pdla.matvec(A, np.array([1, 10]))
    >>> pdla.run(2, program)[0]
    array([21, 43])
    """
    comm, distributed = communicator((A, x)), isinstance(x, DistMatrix)
    vector = _agree(comm, A, x, distributed, layout)
    dtype, result_layout = promote(A.dtype, vector.dtype), layout or Layout(A.layout.rows)
    with collective_section(comm, "matvec"):
        if A.layout.partial and not can_cast_addends(A.dtype, dtype):
            A = sum_partials(A, A.layout.summed)
        y: Any = _multiply_local(A, _align(A, vector) if distributed else vector, dtype)
        if distributed:
            y = convert(sum_partials(y, result_layout) if y.layout.partial else y, result_layout, A.grid)
            return y if y.dtype == dtype else y.astype(dtype)
        everyone = ProcessGrid.everyone(comm)
        array: Any = convert(y, Layout(), everyone).local
        return array.astype(dtype, copy=False).reshape(array.size)


def _agree(comm: Communicator, A: Any, x: Any, distributed: bool, layout: Any) -> Any:
    """Collective: check and compare the ranks' calls, vectors by a digest; returns x, a vector as an array."""
    call, error = "", None
    try:
        matrix(A)
        x = x if distributed else check_array("matvec", comm, x)
        _check(A, x, distributed, layout)
        call = describe_call("matvec", A, x, layout=layout)
    except Exception as raised:
        error = raised
    agree(comm, call, error)
    return x


def _check(A: DistMatrix, x: Any, distributed: bool, layout: Any) -> None:
    if distributed:
        same_grid(A, x, "x")
    shape = (A.shape[1], 1) if distributed else (A.shape[1],)
    if tuple(x.shape) != shape:
        raise ShapeError(f"A is {A.shape[0]} x {A.shape[1]}, x has shape {tuple(x.shape)}: it must be {shape}")
    if layout is None:
        return
    if not distributed:
        raise LayoutError(f"layout={layout!r}: y is whole on every rank, as x is; give a DistMatrix {A.shape[1]} x 1 for another")
    checks.check_result(A, (A.shape[0], 1), A.dtype, None, layout)


def _align(A: DistMatrix, x: DistMatrix) -> DistMatrix:
    """Collective: redistribute x to a layout whose rows are cut as A's columns are."""
    layout = Layout(rows=A.layout.cols)
    x = sum_partials(x, layout) if x.layout.partial else x
    return x if x.layout.same_cuts(layout, x.shape, A.grid.sizes) else convert(x, layout, A.grid)


def _multiply_local(A: DistMatrix, x: Any, dtype: np.dtype) -> DistMatrix:
    """Local: multiply blocks; y is partial along the axes that cut A's columns, and those along which A is.

    A conjugate A is not copied: conj(A) x is conj(A conj(x)).
    """
    xp, m = A.xp, A.shape[0]
    layout = Layout(A.layout.rows, None, (*axes_of(A.layout.cols), *A.layout.partial))
    if isinstance(x, DistMatrix):
        block = x.local
    else:
        block = xp.take(x.reshape(x.size, 1), A.indices[1].indices(), slice(None))
    y = xp.empty((A.stored.shape[0], block.shape[1]), sum_dtype(dtype))
    block = xp.reinterpret(block.astype(dtype, copy=False), A.conjugated)
    multiply(xp, A.stored.astype(dtype, copy=False), block, y, 1, 0)
    return DistMatrix(xp.reinterpret(y, A.conjugated), (m, 1), A.grid, layout)


def matvec_words(m: int, k: int, grid: tuple[int, int]) -> float:
    """Words that a rank receives for y = A x, A in two-dimensional blocks on a pr x pc grid.

    Parameters
    ----------
    m, k : int
        Rows and columns of A.
    grid : tuple of two int
        pr and pc.

    Returns
    -------
    float
        Exact if sizes divide evenly.

    Raises
    ------
    ShapeError
        For a negative size, and a grid or a block of none.

    Notes
    -----
    x is cut along col, then row. y has the default layout of `matvec`, cut along row with copies
    along col. The grid columns gather x. A reduce-scatter and an all-gather along the grid rows sum
    the addends of y.

    Examples
    --------
    >>> pdla.matvec_words(64, 64, (2, 2))
    48.0
    """
    checks.check_formula(grid, m=m, k=k)
    pr, pc = grid
    return k / pc * (1 - 1 / pr) + 2 * m / pr * (1 - 1 / pc)
