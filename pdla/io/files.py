"""Functions of all formats: errors on every rank, blocks that are read from a file, and blocks that are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pdla.comm.agreement import group_ranks, name_ranks
from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffer
from pdla.errors import FileError, PdlaError
from pdla.grid import ProcessGrid
from pdla.indices import IndexSet, Selection
from pdla.layout import Layout, Shape
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import local_shape

PANEL = 1 << 26  # bytes that are read or written at a time, in memory besides the matrix


@contextmanager
def share_errors(comm: Communicator, path: Path) -> Iterator[None]:
    """Collective: a with-block of each rank's own work on a file, at whose end ranks wait for one another.

    An error on one rank becomes an error on all: FileError, or pdla's own. PDLA_CHECK=0 does not
    turn this off: a full disk is not the caller's mistake.
    """
    failure: PdlaError | None = None
    cause: Exception | None = None
    try:
        yield
    except PdlaError as raised:
        failure = raised
    except Exception as raised:
        failure, cause = FileError(f"{path}: {_words(raised)}"), raised
    said = comm.share(failure)
    if failures := group_ranks([None if other is None else str(other) for other in said]):
        kind = next(type(other) for other in said if other is not None)
        texts = (text if len(ranks) == comm.size else f"{name_ranks(ranks)}: {text}" for text, ranks in failures.items())
        raise kind("; ".join(texts)) from cause


def _words(error: Exception) -> str:
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return said or type(error).__name__


def check_regular(path: Path) -> None:
    """ValueError for a path to something other than a file: opening a pipe would wait, and a save would replace it."""
    if path.exists() and not path.is_file():
        raise ValueError("Is a directory" if path.is_dir() else "no file, but a pipe, a socket or a device")


def check_dtype(dtype: np.dtype) -> None:
    """ValueError unless elements are numbers or booleans, in a dtype of NumPy's own or bfloat16."""
    if dtype.kind not in "biufc" and dtype.name != "bfloat16":
        raise ValueError(f"elements of dtype {dtype} are not supported: bool, integers, real and complex numbers are")


def bfloat16() -> np.dtype:
    try:
        return np.dtype("bfloat16")
    except TypeError:
        raise ValueError("elements of bfloat16, to NumPy |V2, need ml_dtypes: pip install ml_dtypes") from None


def check_matrix(shape: tuple[int, ...], dtype: np.dtype) -> tuple[Shape, np.dtype]:
    """Check that a header describes a matrix of numbers; return its shape, and its dtype in this machine's byte order.

    A vector is a column, as for matvec and solve.
    """
    check_dtype(dtype)
    shape = (*shape, 1) if len(shape) == 1 else shape
    if len(shape) != 2:
        raise ValueError(f"the array has shape {shape}; a matrix has two dimensions, a vector one")
    if min(shape) < 0:
        raise ValueError(f"the array has shape {shape}; sizes are 0 or more")
    return (int(shape[0]), int(shape[1])), dtype.newbyteorder("=")


def read_blocks(
    path: Path,
    shape: Shape,
    dtype: np.dtype,
    grid: ProcessGrid,
    layout: Layout,
    read: Callable[[np.ndarray, Selection, Selection], None],
) -> DistMatrix:
    """Collective: make a matrix, of which each rank reads its own block: read(block, rows, columns in the file)."""

    def fill(block: np.ndarray) -> None:
        if block.size and grid.coords is not None:
            rows, cols = layout.indices(shape, grid.sizes, grid.coords)
            read(block, rows.selection, cols.selection)

    with share_errors(grid.comm, path):
        block = grid.comm.xp.create(local_shape(shape, layout, grid), dtype, fill)
    return DistMatrix(block, shape, grid, layout)


def to_write(A: DistMatrix, coords: Mapping[str, int] | None) -> tuple[IndexSet, IndexSet] | None:
    """The rows and columns that the rank at these coordinates writes: its block's, unless empty or not the first copy."""
    if coords is None or any(coords[axis] for axis in A.grid.axes if axis not in A.layout.axes):
        return None
    rows, cols = A.layout.indices(A.shape, A.grid.sizes, coords)
    return (rows, cols) if len(rows) and len(cols) else None


def write_block(A: DistMatrix, write: Callable[[Any, Selection, Selection], None]) -> None:
    """Call write(block, rows, columns in the file) with this rank's block, if it is this rank's `to_write`."""
    mine = to_write(A, A.grid.coords)
    if mine is not None:
        write(A.xp.host(A.local), mine[0].selection, mine[1].selection)


def gather_panels(A: DistMatrix) -> Iterator[tuple[slice, Any]]:
    """Collective: gather A on rank 0, a few whole rows at a time: (which rows, their elements, None on other ranks)."""
    (m, n), grid = A.shape, A.grid
    if grid.comm.rank == 0:
        places = (dict(zip(grid.axes, place, strict=True)) for place in np.ndindex(grid.shape))
        known = {grid.rank_of(coords): to_write(A, coords) for coords in places}
    else:
        known = {grid.comm.rank: to_write(A, grid.coords)}
    held = {rank: share for rank, share in known.items() if share}
    height = max(1, PANEL // max(1, n * A.dtype.itemsize))
    for lo in range(0, m, height):
        rows = IndexSet.interval(lo, min(lo + height, m))
        yield slice(lo, lo + len(rows)), _panel(A, held, rows)


def _panel(A: DistMatrix, held: dict[int, tuple[IndexSet, IndexSet]], rows: IndexSet) -> Any:
    """Collective: gather these rows of A on rank 0. held: on rank 0 the part that each rank sends; elsewhere this rank's own."""
    comm, xp = A.grid.comm, A.xp
    meetings = {rank: (*mine.overlay(rows), cols) for rank, (mine, cols) in held.items()}
    here, _, count, _ = meetings.get(comm.rank, (slice(0, 0), None, 0, None))
    own = {0: xp.reinterpret(xp.take(A.stored, here, slice(None)), A.conjugated)} if count else {}
    if comm.rank:
        comm.alltoall(own, {}).wait()
        return None
    pieces = {r: buffer(xp, (k, len(cols)), A.dtype) for r, (_, _, k, cols) in meetings.items() if k and r}
    comm.alltoall({}, pieces).wait()
    panel = buffer(xp, (len(rows), A.shape[1]), A.dtype)
    for rank, piece in (own | pieces).items():
        _, there, _, cols = meetings[rank]
        xp.put(panel, there, cols.selection, piece)
    return panel
