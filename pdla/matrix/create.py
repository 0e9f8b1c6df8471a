"""Functions that make distributed matrices: from arrays, from functions, and at random."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from math import prod
from numbers import Real
from sys import float_info
from types import ModuleType
from typing import Any

import numpy as np

from pdla.array import blas, namespace
from pdla.array.dlpack import view_foreign
from pdla.array.draw import TILE, Draw
from pdla.array.dtypes import check_numbers, has_fractions
from pdla.array.numpy import to_bytes
from pdla.comm.agreement import agree, agreed, collective_section, to_text
from pdla.comm.communicator import Communicator
from pdla.errors import ArgumentError, DeviceError, LayoutError, ShapeError, kind_of, list_choices, misfit
from pdla.grid import ProcessGrid, check_layout, place
from pdla.indices import MOST, IndexSet
from pdla.layout import Layout, Shape
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import check_root, convert, local_shape

DISTRIBUTIONS = ("uniform", "integers", "normal")
LARGEST = float_info.max
DIGESTED = 16 * 2**20  # bytes of an array whose digest ranks compare, in some 15 ms


def _check(shape: Any, grid: Any, layout: Any, dtype: Any, call: str) -> tuple[Shape, ProcessGrid, Layout, np.dtype]:
    """Collective: check that shape, grid, layout and dtype fit and agree, and return them."""
    grid, layout = place(call, grid, layout)
    with agreed(grid.comm, f"{call}(shape={to_text(shape)}, {grid!r}, {layout!r}, dtype={dtype!r})"):
        check_layout(call, layout, grid)
        whole = check_shape(call, shape)
        layout.check(whole, grid.sizes)
        checked = np.dtype(dtype)
        check_numbers(call, checked, grid.comm.xp)
        if grid.comm.xp.name != "meta":
            check_room(call, local_shape(whole, layout, grid), checked)
    return whole, grid, layout, checked


def check_shape(call: str, shape: Any) -> Shape:
    """Return the shape as two Python ints. Raise ShapeError or ArgumentError unless both are from 0 to 2^63 - 1."""
    sizes = isinstance(shape, (tuple, list)) and len(shape) == 2
    if not (sizes and all(isinstance(n, (int, np.integer)) and int(n) >= 0 for n in shape)):
        lengths = shape if isinstance(shape, (tuple, list)) else (shape,)
        raise misfit(ShapeError, *lengths)(f"{call}: a matrix has two dimensions of length 0 or more, not shape {shape!r}")
    if max(map(int, shape)) > MOST:
        raise ShapeError(f"{call}: the dimensions of shape {shape!r} are too long: 2^63 - 1 is the most")
    return int(shape[0]), int(shape[1])


def check_room(call: str, block: Shape, dtype: np.dtype) -> None:
    """Raise ShapeError for a block that is longer than any array, even if it has no elements."""
    if prod(max(n, 1) for n in block) * dtype.itemsize > MOST:  # NumPy leaves out lengths of 0, too
        raise ShapeError(f"{call}: no array has as many bytes as a block of {block[0]} x {block[1]} {dtype}: cut it further")


def _check_no_mask(call: str, array: Any) -> None:
    if np.ma.is_masked(array):
        raise ShapeError(f"{call}: an array with masked elements: give array.filled(...), as no matrix has a mask")


def _to_array(call: str, given: Any, asarray: Callable[[Any], Any]) -> Any:
    """Convert the argument to an array; ShapeError for lists that are none, such as rows of different lengths."""
    try:
        return asarray(given)
    except ValueError as error:
        raise ShapeError(f"{call}: {kind_of(given)} that is no array: {error}") from None


def from_local(local: Any, shape: Shape, grid: ProcessGrid | None = None, layout: Layout | None = None) -> DistMatrix:
    """Make a matrix over the caller's own blocks, without a copy.

    Matrix and caller share the memory. Collective over the grid's communicator.

    Parameters
    ----------
    local : 2-D array
        The block of this rank, with any strides. From NumPy, CuPy, or a library with `__dlpack__`,
        such as PyTorch and JAX. Idle ranks give size 0, or None. A dry run keeps its shape and
        dtype only.
    shape : tuple of int
        Rows and columns of the whole matrix.
    grid : ProcessGrid, optional
        The grid of the matrix; by default `ProcessGrid.default`.
    layout : Layout, optional
        How it is cut; by default the grid's `default_layout`.

    Returns
    -------
    DistMatrix
        Of the blocks' dtype.

    Raises
    ------
    ShapeError
        If a block has the wrong shape, or dtypes differ, on every rank.
    LayoutError
        If the layout does not fit, on every rank.
    DeviceError
        For a block that is not an array of the kind that PDLA_ARRAY names, or is on another GPU.

    Notes
    -----
    A read-only block, as JAX's are, may be multiplied, but not be written to.

    A block stored by columns is sent without a copy. All ranks should store their blocks in the
    same order and with similar gaps. Otherwise BLAS adds in different orders, and copies of
    products, or of `out`, may differ in their last bits.

    Examples
    --------
    >>> def program(comm):
    ...     block = np.full((2, 3), comm.rank)
    ...     grid = pdla.ProcessGrid(comm.size)
    ...     return pdla.from_local(block, (4, 3), grid, pdla.Layout("row")).gather()[:, 0]
    >>> pdla.run(2, program)[0]
    array([0, 0, 1, 1])
    """
    grid, layout = place("from_local", grid, layout)
    with agreed(grid.comm, f"from_local(shape={to_text(shape)}, {grid!r}, {layout!r})"):
        check_layout("from_local", layout, grid)
        shape = check_shape("from_local", shape)
        layout.check(shape, grid.sizes)
        expected = local_shape(shape, layout, grid)
        given = np.empty((0, 0)) if local is None else view_foreign("from_local", local, grid.comm.xp)
        block = namespace(given).asarray(given)
        check_numbers("from_local", block.dtype, namespace(block))
        _check_no_mask("from_local", local)
        if grid.active and block.shape != expected and (advice := _suggest_call(block.shape, shape, expected, grid)):
            raise ShapeError(f"from_local: {layout!r} on {grid!r} of {shape}: {advice}")
        if grid.active and block.shape != expected:
            raise ShapeError(
                f"the local block has shape {block.shape}; {layout!r} needs {expected} of {shape}: pdla.Cuts says which "
                "rows or columns each rank has, where they are not cut evenly"
            )
        if grid.active:
            _check_place(block, given, grid.comm.xp)
    own = (block.dtype, _find_order(block), (_find_gaps(block), _find_gaps(block.T))) if grid.active else None
    blocks = [described for described in grid.comm.share(own) if described is not None]
    if not blocks:
        raise ShapeError(f"from_local: a dry run as rank {grid.comm.rank}, an idle one, knows no dtype: give it another rank=")
    dtypes, orders, gaps = (set(values) for values in zip(*blocks, strict=True))
    if len(dtypes) > 1:
        raise ShapeError(f"from_local: blocks of different dtypes: {', '.join(sorted(map(str, dtypes)))}")
    if not grid.active:
        block = grid.comm.xp.empty((0, 0), dtypes.pop())
    by_columns = "F" in orders and "C" not in orders
    base = block.T if by_columns else block
    if grid.comm.xp.name == "meta":
        base = grid.comm.xp.asarray(base)
    return DistMatrix(base, shape, grid, layout, transposed=by_columns, gaps=max(values[by_columns] for values in gaps))


def _suggest_call(given: tuple[int, ...], shape: Shape, expected: Shape, grid: ProcessGrid) -> str:
    """Suggest the call for blocks that are whole rows, whole columns, or whole, the same on every rank; "" for others."""
    whole = [n == most != needed for n, most, needed in zip(given, shape, expected, strict=False)]
    if whole == [True, True]:
        return "the local block is the whole matrix: give pdla.from_global(array), or layout=pdla.Layout()"
    if any(whole):
        lines, layout = ("columns", "Layout(cols='row')") if whole[0] else ("rows", "Layout('row')")
        return f"the local blocks are whole {lines}: give pdla.ProcessGrid({grid.comm.size}) and pdla.{layout}"
    return ""


def _find_gaps(block: Any) -> int:
    """Find `DistMatrix.gaps` of this block: 0: none; 1: between rows only; 2: between elements of a row."""
    if not block.size or namespace(block).is_contiguous(block):
        return 0
    how, _ = blas.orientation(block) or (b"", 0)
    return 1 if how == b"N" else 2


def _check_place(block: Any, given: Any, xp: ModuleType) -> None:
    """Raise DeviceError unless a block is in the memory that matrices use.

    No kernel reads other memory, and `block` would be a mere copy of the caller's array on another
    device.
    """
    module = namespace(block)
    if xp.name not in (module.name, "meta"):
        raise DeviceError(
            f"from_local: the block is an array of {module.name}'s, matrices are made of {xp.name}'s (PDLA_ARRAY={xp.name}): "
            f"copy it there before, or set PDLA_ARRAY={module.name}"
        )
    if module.name == "cupy" and block is not given:
        raise DeviceError("from_local: the block is on another GPU than this rank's matrices: make it after the first grid")


def _find_order(block: Any) -> str:
    """Find the order of a block: "C" by rows, "F" by columns, "" if both."""
    down, across = block.strides if min(block.shape) > 1 else (0, 0)
    return "F" if abs(down) < abs(across) else "C" if down else ""


def from_global(
    array: Any, grid: ProcessGrid | None = None, layout: Layout | None = None, root: int | None = None
) -> DistMatrix:
    """Make a matrix of a whole array. Collective over the grid's communicator.

    Parameters
    ----------
    array : 2-D array
        The same on all ranks (which compare 16 MiB of it), or used on `root` only.
    grid : ProcessGrid, optional
        The grid of the matrix; by default `ProcessGrid.default`.
    layout : Layout, optional
        How it is cut, without partial sums; by default the grid's `default_layout`.
    root : int, optional
        The rank that has the array and sends the blocks; by default every rank has the array and
        copies its block.

    Returns
    -------
    DistMatrix
        Of the array's shape and dtype, in the byte order of this machine.

    Raises
    ------
    ShapeError
        For what is no 2-D array of numbers, on every rank.
    LayoutError, GridError
        If layout or root do not fit, on every rank.
    AgreementError
        If ranks give different arrays.

    Examples
    --------
    >>> def program(comm):
    ...     x = np.arange(12).reshape(4, 3)
    ...     grid = pdla.ProcessGrid(comm.size)
    ...     return pdla.from_global(x, grid, pdla.Layout("row")).local
    >>> pdla.run(2, program)[1]
    array([[ 6,  7,  8],
           [ 9, 10, 11]])
    """
    grid, layout = place("from_global", grid, layout)
    comm = grid.comm
    with agreed(comm, f"from_global({grid!r}, {layout!r}, root={root})"):
        check_layout("from_global", layout, grid)
        check_root(comm, root)
        if layout.partial:
            raise LayoutError(f"from_global: {layout!r} has partial sums; give a layout without")
        whole = check_array("from_global", comm, array) if root in (None, comm.rank) else None
        if whole is not None and whole.ndim != 2:
            raise ShapeError(f"from_global: a matrix has two dimensions, not shape {whole.shape}, as {kind_of(array)} has")
        if whole is not None:
            layout.check(whole.shape, grid.sizes)
    if root is None:
        return _copy_block(whole, grid, layout)
    with collective_section(comm, "from_global"):
        described = comm.share(None if whole is None else (whole.shape, whole.dtype))[root]
        if described is None:
            raise ShapeError(f"from_global: a dry run as rank {comm.rank} has no array from {root=}: give dry_run rank={root}")
        shape, dtype = described
        alone = ProcessGrid.trust((1,), comm, [root])
        base = whole if whole is not None else comm.xp.empty((0, 0), dtype)
        return convert(DistMatrix(base, shape, alone, Layout()), layout, grid)


def check_array(call: str, comm: Communicator, array: Any) -> Any:
    """Convert a user's array to this machine's byte order; ShapeError unless its elements are numbers."""
    _check_no_mask(call, array)
    whole = array if isinstance(array, np.ndarray) else _to_array(call, array, comm.xp.asarray)
    if isinstance(whole, np.ndarray):
        whole = whole.astype(whole.dtype.newbyteorder("="), copy=False)
    check_numbers(call, whole.dtype, comm.xp)  # of NumPy's arrays before the communicator's module refuses them in its own words
    return comm.xp.asarray(whole)


def _copy_block(whole: Any, grid: ProcessGrid, layout: Layout) -> DistMatrix:
    xp = namespace(whole)
    agree(grid.comm, f"from_global of shape {whole.shape}, {whole.dtype}{digest_array(whole)}")
    rows, cols = layout.indices(whole.shape, grid.sizes, grid.coords)
    block = xp.empty((len(rows), len(cols)), whole.dtype)
    xp.copy(block, xp.take(whole, rows.selection, cols.selection))
    return DistMatrix(block, whole.shape, grid, layout)


def digest_array(whole: Any) -> str:
    """Digest an array, as text, so that ranks can compare theirs: each may have drawn its own, or loaded its own file.

    The digest reads about DIGESTED bytes of a longer array, spread along its longest
    dimension.
    """
    xp = namespace(whole)
    if xp.name == "meta":
        return ""
    longest = int(np.argmax(whole.shape))
    sample = (*[slice(None)] * longest, slice(None, None, -(-whole.nbytes // DIGESTED) or 1))
    return f", digest {blake2b(to_bytes(xp.host(whole[sample])), digest_size=8).hexdigest()}"


def _fill(
    shape: Shape, grid: ProcessGrid, layout: Layout, dtype: np.dtype, fill: Callable[[np.ndarray, IndexSet, IndexSet], None]
) -> DistMatrix:
    """Local: make a matrix of which each rank fills its own block, from its global rows and columns."""

    def make(rows: IndexSet, cols: IndexSet) -> Any:
        return grid.comm.xp.create((len(rows), len(cols)), dtype, lambda x: fill(x, rows, cols))

    return _make(shape, grid, layout, dtype, make)


def _make(
    shape: Shape, grid: ProcessGrid, layout: Layout, dtype: np.dtype, make: Callable[[IndexSet, IndexSet], Any]
) -> DistMatrix:
    """Local: make a matrix of which each rank makes its own block. Along a partial axis all but the first rank have zeros."""
    rows, cols = layout.indices(shape, grid.sizes, grid.coords)
    if grid.coords is None or all(grid.coords[axis] == 0 for axis in layout.partial):
        block = make(rows, cols)
    else:
        block = grid.comm.xp.create((len(rows), len(cols)), dtype, lambda x: x.fill(0))
    return DistMatrix(block, shape, grid, layout)


def from_function(
    f: Callable[..., Any], shape: Shape, grid: ProcessGrid | None = None, layout: Layout | None = None, *, dtype: Any = np.float64
) -> DistMatrix:
    """Make a matrix whose element (i, j) is f(i, j). Collective over the grid's communicator.

    Parameters
    ----------
    f : callable
        Called for each tile of a rank's block, with a column of row indices and a row of column
        indices.
    shape : tuple of int
        Rows and columns.
    grid : ProcessGrid, optional
        The grid of the matrix; by default `ProcessGrid.default`.
    layout : Layout, optional
        How it is cut; by default the grid's `default_layout`.
    dtype : dtype, optional
        Of the matrix.

    Returns
    -------
    DistMatrix
        The matrix.

    Raises
    ------
    ShapeError
        If f returns anything but numbers, or numbers that the matrix cannot hold, on every rank. A
        matrix of real floats holds no complex numbers, one of integers no fractions.
    LayoutError
        If the layout does not fit, on every rank.
    Exception
        On every rank, if f raises one on any rank.

    Examples
    --------
    >>> def program(comm):
    ...     grid, layout = pdla.ProcessGrid(comm.size), pdla.Layout("row")
    ...     A = pdla.from_function(lambda i, j: 10 * i + j, (4, 3), grid, layout, dtype=int)
    ...     return A.local
    >>> pdla.run(2, program)[1]
    array([[20, 21, 22],
           [30, 31, 32]])
    """
    shape, grid, layout, kind = _check(shape, grid, layout, dtype, "from_function")

    def fill(block: np.ndarray, rows: IndexSet, cols: IndexSet) -> None:
        i, j = rows.indices()[:, None], cols.indices()[None, :]
        width = min(block.shape[1], TILE) or 1
        for top in range(0, block.shape[0], TILE // width):
            for left in range(0, block.shape[1], width):
                part = np.s_[top : top + TILE // width], np.s_[left : left + width]
                _put(block[part], _to_numbers(f(i[part[0]].copy(), j[:, part[1]].copy()), kind))  # f may write to its arguments

    with agreed(grid.comm, "from_function: f"):
        matrix = _fill(shape, grid, layout, kind, fill)
    return matrix


def _put(tile: np.ndarray, numbers: np.ndarray) -> None:
    try:
        tile[...] = numbers
    except ValueError:
        raise ShapeError(
            f"from_function: f gives an array of shape {numbers.shape} for {tile.shape[0]} rows and {tile.shape[1]} columns: "
            f"give one of shape {tile.shape}, as f(i, j) = i + j does, or one that NumPy broadcasts to it"
        ) from None


def _to_numbers(result: Any, dtype: np.dtype) -> np.ndarray:
    """Convert the result of f to an array. Raise ShapeError if the matrix cannot hold it.

    NumPy would make NaN of None, drop masks, imaginary parts and fractions, and wrap integers
    around.
    """
    _check_no_mask("from_function: f", result)
    numbers = _to_array("from_function: f", result, np.asarray)
    check_numbers("from_function: f", numbers.dtype, namespace(numbers))
    if numbers.dtype.kind == "c" and dtype.kind != "c":
        raise ShapeError(f"from_function: f gives {numbers.dtype}, the matrix has {dtype}: give dtype=complex, or f's .real")
    if not has_fractions(dtype) and not np.can_cast(numbers.dtype, dtype):
        with np.errstate(invalid="ignore"):
            lost = numbers[numbers.astype(dtype) != numbers]
        if lost.size:
            advice = "give another dtype=, or round what f gives"
            raise ShapeError(f"from_function: f gives {lost[0]}, the matrix has {dtype}: {advice}")
    return numbers


def zeros(
    shape: Shape, grid: ProcessGrid | None = None, layout: Layout | None = None, *, dtype: Any = np.float64
) -> DistMatrix:
    """Make a matrix of zeros. Collective over the grid's communicator.

    Parameters
    ----------
    shape : tuple of int
        Rows and columns.
    grid : ProcessGrid, optional
        The grid of the matrix; by default `ProcessGrid.default`.
    layout : Layout, optional
        How it is cut; by default the grid's `default_layout`.
    dtype : dtype, optional
        Of the matrix.

    Returns
    -------
    DistMatrix
        The matrix.

    Raises
    ------
    ShapeError, LayoutError
        For a shape or dtype that no matrix has, and a layout that does not fit, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid(comm.size)
    ...     return pdla.zeros((5, 3), grid, pdla.Layout("row")).local.shape
    >>> pdla.run(2, program)
    [(3, 3), (2, 3)]
    """
    shape, grid, layout, kind = _check(shape, grid, layout, dtype, "zeros")
    return _fill(shape, grid, layout, kind, lambda x, rows, cols: x.fill(0))


def ones(
    shape: Shape, grid: ProcessGrid | None = None, layout: Layout | None = None, *, dtype: Any = np.float64
) -> DistMatrix:
    """Make a matrix of ones. Collective over the grid's communicator.

    Parameters
    ----------
    shape : tuple of int
        Rows and columns.
    grid : ProcessGrid, optional
        The grid of the matrix; by default `ProcessGrid.default`.
    layout : Layout, optional
        How it is cut; by default the grid's `default_layout`.
    dtype : dtype, optional
        Of the matrix.

    Returns
    -------
    DistMatrix
        The matrix.

    Raises
    ------
    ShapeError, LayoutError
        For a shape or dtype that no matrix has, and a layout that does not fit, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid(comm.size)
    ...     return pdla.ones((2, 2), grid, pdla.Layout("row"), dtype=int).local
    >>> pdla.run(2, program)
    [array([[1, 1]]), array([[1, 1]])]
    """
    shape, grid, layout, kind = _check(shape, grid, layout, dtype, "ones")
    return _fill(shape, grid, layout, kind, lambda x, rows, cols: x.fill(1))


def eye(
    shape: Shape | int, grid: ProcessGrid | None = None, layout: Layout | None = None, *, dtype: Any = np.float64
) -> DistMatrix:
    """Make a matrix of ones on the diagonal, zeros elsewhere.

    Collective over the grid's communicator.

    Parameters
    ----------
    shape : tuple of int, or int
        Rows and columns; an int makes a square one.
    grid : ProcessGrid, optional
        The grid of the matrix; by default `ProcessGrid.default`.
    layout : Layout, optional
        How it is cut; by default the grid's `default_layout`.
    dtype : dtype, optional
        Of the matrix.

    Returns
    -------
    DistMatrix
        The matrix.

    Raises
    ------
    ShapeError, LayoutError
        For a shape or dtype that no matrix has, and a layout that does not fit, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid(comm.size)
    ...     return pdla.eye(2, grid, pdla.Layout("row"), dtype=int).local
    >>> pdla.run(2, program)
    [array([[1, 0]]), array([[0, 1]])]
    """
    square = (shape, shape) if isinstance(shape, (int, np.integer)) else shape
    square, grid, layout, kind = _check(square, grid, layout, dtype, "eye")

    def fill(block: np.ndarray, rows: IndexSet, cols: IndexSet) -> None:
        block.fill(0)
        block[rows.find_common(cols)] = 1

    return _fill(square, grid, layout, kind, fill)


# ---------------------------------------------------------------------------------------------- random


def random(
    shape: Shape,
    grid: ProcessGrid | None = None,
    layout: Layout | None = None,
    *,
    dtype: Any = np.float64,
    seed: int = 0,
    distribution: str = "uniform",
    low: float = 0,
    high: float = 1,
) -> DistMatrix:
    """Draw a matrix that depends on seed, shape and dtype only, not on grid and layout.

    Collective over the grid's communicator.

    Parameters
    ----------
    shape : tuple of int
        Rows and columns.
    grid : ProcessGrid, optional
        The grid of the matrix; by default `ProcessGrid.default`.
    layout : Layout, optional
        How it is cut; by default the grid's `default_layout`.
    dtype : dtype, optional
        Of the matrix. Complex numbers have both parts drawn.
    seed : int, optional
        Any integer. Seeds that differ by a multiple of 2^64 give the same matrix.
    distribution : {"uniform", "integers", "normal"}, optional
        * "uniform": on [low, high), then rounded to dtype, so that `high` may occur.
        * "integers": from `low` to high - 1, in any dtype that has all of them. Small ones make
          every product exact.
        * "normal": with mean 0 and standard deviation 1.
    low, high : float, optional
        Ends of "uniform" and "integers".

    Returns
    -------
    DistMatrix
        The matrix.

    Raises
    ------
    ShapeError, LayoutError
        For a shape or dtype that no matrix has, and a layout that does not fit, on every rank.
    ValueError
        For another distribution or seed, and for ends that the dtype does not have, on every rank.

    Notes
    -----
    Philox (Salmon, Moraes, Dror and Shaw 2011, SC). The counter of a cache-sized tile is its global
    position. Normal numbers are the quantiles of uniform ones.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.random((4, 4), pdla.ProcessGrid(comm.size), pdla.Layout("row"), seed=7)
    ...     return A.gather()
    >>> np.array_equal(pdla.run(1, program)[0], pdla.run(3, program)[0])
    True
    """
    shape, grid, layout, kind = _check(shape, grid, layout, dtype, "random")
    with agreed(grid.comm, f"random(seed={to_text(seed)}, {distribution!r}, {to_text(low)}, {to_text(high)})"):
        if not (isinstance(distribution, str) and distribution in DISTRIBUTIONS):
            raise ValueError(f"distribution={distribution!r}: {list_choices(distribution, DISTRIBUTIONS)}")
        if not isinstance(seed, (int, np.integer)):
            raise ArgumentError(f"seed={seed!r}: give an integer")
        low, high = (end.item() if isinstance(end, np.generic) else end for end in (low, high))  # NumPy's short ints wrap around
        real = all(isinstance(end, Real) for end in (low, high))
        if not (real and abs(low) <= LARGEST and abs(high) <= LARGEST and high - low <= LARGEST):
            raise ValueError(f"low={low!r}, high={high!r}: give finite real numbers, not so far apart")
        if distribution == "integers":
            _check_range(low, high, kind)
        elif not has_fractions(kind):
            raise ValueError(f"{distribution!r} numbers as {kind} would be cut off: give distribution='integers', low=, high=")
        if distribution == "uniform" and not _are_finite([low, high], kind):
            raise ValueError(f"low={low}, high={high}: {kind} has no such numbers")
    draw = Draw(shape[1], kind, seed, distribution, low, high)
    return _make(shape, grid, layout, kind, lambda rows, cols: grid.comm.xp.draw_part(rows, cols, draw))


def _are_finite(numbers: list[float], dtype: np.dtype) -> bool:
    """Whether all of these numbers are finite in a dtype of floats."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.array(numbers, np.longdouble).astype(dtype)).all())


def _check_range(low: float, high: float, dtype: np.dtype) -> None:
    """Raise ValueError unless low and high are whole numbers, low < high, and the dtype has every integer from low to high - 1."""
    if low != int(low) or high != int(high):
        raise ValueError(f"low={low}, high={high}: integers are drawn between whole numbers")
    low, high = int(low), int(high)
    if low >= high:
        raise ValueError(f"low={low}, high={high}: there are no integers from {low} to {high - 1}")
    drawn = np.iinfo(np.int64)
    least, most = drawn.min, drawn.max
    if dtype.kind == "b":
        least, most = 0, 1
    elif dtype.kind in "iu":
        least, most = max(np.iinfo(dtype).min, least), min(np.iinfo(dtype).max, most)
    if low < least or high - 1 > most:
        raise ValueError(f"low={low}, high={high}: integers as {dtype} can be from {least} to {most}")
    if dtype.kind not in "iub" and not _has_all_integers(low, high - 1, dtype):
        raise ValueError(f"low={low}, high={high}: {dtype} has no such numbers, or rounds those between")


def _has_all_integers(low: int, last: int, dtype: np.dtype) -> bool:
    """Whether a dtype of floats has every integer from low to last. The integer of largest magnitude and its neighbour decide."""
    largest = max(low, last, key=abs)
    numbers = [low, last, largest + (1 if largest < 0 else -1)]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(numbers, np.longdouble).astype(dtype).tolist() == numbers
