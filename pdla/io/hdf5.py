"""HDF5 through h5py: every rank reads its own block; all ranks write, or rank 0 alone if h5py is built without MPI."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pdla.errors import suggest
from pdla.grid import ProcessGrid
from pdla.indices import Selection
from pdla.io.bfloat16 import dtype_in, for_h5py, get, has_dtype, put
from pdla.io.elsewhere import check_sources
from pdla.io.files import PANEL, check_matrix, gather_panels, read_blocks, share_errors, write_block
from pdla.layout import Layout, Shape
from pdla.matrix.core import DistMatrix

HEADERS = 1 << 16  # bytes: at least those that HDF5 writes besides the elements


def _h5py() -> ModuleType:
    try:
        import h5py
    except ImportError as error:
        raise ValueError("HDF5 files need h5py: pip install h5py") from error
    return h5py


def header(path: Path, dataset: str | None, check: Callable[[Any], None] | None = None) -> tuple[Shape, np.dtype]:
    with _h5py().File(path, "r") as file:
        found = _dataset(file, dataset)
        check_sources(found)
        if check is not None:
            check(found)
        return check_matrix(found.shape or (), dtype_in(found))


def _dataset(file: Any, name: str | None) -> Any:
    """Find the dataset of this name, or for None the only one in the file; else ValueError, which lists all datasets."""
    kind = _h5py().Dataset
    names: list[str] = []
    if name is not None and isinstance(found := file.get(name), kind):
        return found
    file.visititems(lambda key, item: names.extend([key] if isinstance(item, kind) and not _is_scale(item) else []))
    if name is None and len(names) == 1:
        return file[names[0]]
    asked = "which dataset? Give dataset=name" if name is None else f"no dataset {name!r}"
    raise ValueError(f"{asked}; the file has {', '.join(names) or 'none'}{suggest(name, names)}")


def _is_scale(x: Any) -> bool:
    """Whether a dataset has only coordinates along a dimension of others, as netCDF writes them."""
    return x.attrs.get("CLASS") == b"DIMENSION_SCALE"


# ---------------------------------------------------------------------------------------------- reading


def load(path: Path, dataset: str | None, shape: Shape, dtype: np.dtype, grid: ProcessGrid, layout: Layout) -> DistMatrix:
    def read(block: np.ndarray, rows: Selection, cols: Selection) -> None:
        with _h5py().File(path, "r") as file:
            _read(_dataset(file, dataset), block, rows, cols)

    return read_blocks(path, shape, dtype, grid, layout, read)


def _read(x: Any, block: np.ndarray, rows: Selection, cols: Selection) -> None:
    """Read x[rows][:, cols] to block in few large reads: HDF5 is slow at small ones, and may unpack a chunk again for each.

    Scattered columns are selected from the whole stretch between the first and the last, scattered
    rows from the stretch of their chunks.
    """
    stretch: slice = cols if isinstance(cols, slice) else slice(int(cols[0]), int(cols[-1]) + 1)
    within = slice(None) if isinstance(cols, slice) else cols - cols[0]
    width = stretch.stop - stretch.start
    height = max(1, PANEL // (width * x.dtype.itemsize))
    for here, there, picked in _stretches(rows, height, x.chunks[0] if x.chunks else 1):
        block[here] = get(x, there, stretch)[picked][:, within]


def _stretches(rows: Selection, height: int, tall: int) -> Iterator[tuple[slice, slice, Selection]]:
    """Yield reads for these rows: (positions in the block, a stretch of at most `height` rows of the file, a selection of it).

    tall  rows of a chunk. Scattered rows are read together if they are neighbours, or in the same chunk
    """
    if isinstance(rows, slice):
        yield from ((here, there, slice(None)) for here, there in _strips(rows, height))
        return
    apart = (np.diff(rows) != 1) & (np.diff(rows // tall) != 0)
    for lo, end in pairwise([0, *(np.flatnonzero(apart) + 1).tolist(), len(rows)]):
        while lo < end:
            hi = min(end, int(np.searchsorted(rows, rows[lo] + height)))
            yield slice(lo, hi), slice(int(rows[lo]), int(rows[hi - 1]) + 1), rows[lo:hi] - rows[lo]
            lo = hi


def _strips(indices: Selection, height: int) -> Iterator[tuple[slice, slice]]:
    """Yield pairs of slices of at most `height`: positions in the block, and their indices in the file."""
    if isinstance(indices, slice):
        runs = [indices]
    else:
        pieces = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
        runs = [slice(int(piece[0]), int(piece[-1]) + 1) for piece in pieces]
    start = 0
    for run in runs:
        there = range(run.start, run.stop, run.step or 1)
        for lo in range(0, len(there), height):
            some = there[lo : lo + height]
            yield slice(start + lo, start + lo + len(some)), slice(some.start, some.stop, some.step)
        start += len(there)


# ---------------------------------------------------------------------------------------------- writing


def save(part: Path, path: Path, dataset: str, A: DistMatrix) -> None:
    comm = A.grid.comm
    with share_errors(comm, path):
        h5py = _h5py()
        if comm.rank == 0:
            _create(h5py, part, path, dataset, A)
    if h5py.get_config().mpi and hasattr(comm, "mpi"):
        with share_errors(comm, path), h5py.File(part, "r+", driver="mpio", comm=comm.mpi) as file:
            write_block(A, lambda block, rows, cols: _write(file[dataset], block, rows, cols))
        return
    for rows, panel in gather_panels(A):
        with share_errors(comm, path):
            if comm.rank == 0:
                with h5py.File(part, "r+") as file:
                    put(file[dataset], rows, slice(0, A.shape[1]), A.xp.host(panel))


def _create(h5py: ModuleType, part: Path, path: Path, dataset: str, A: DistMatrix) -> None:
    """Create a copy of the old file, or a new one, with the dataset.

    Disk space is reserved now: HDF5 would end the process if it found the disk full when it closes a
    file (h5py's issue 914).
    """
    old = path.exists()
    if old:
        shutil.copyfile(path, part)
    size = part.stat().st_size if old else 0
    _take(part, size + HEADERS)
    os.truncate(part, size)
    with h5py.File(part, "r+" if old else "w") as file:
        _check_links(file, dataset)
        found, dtype = file.get(dataset), A.dtype.newbyteorder("=")
        if not isinstance(found, h5py.Dataset):
            _make(file, dataset, A.shape, dtype)
        elif not (found.shape == A.shape and has_dtype(found, dtype) and _has_its_place(found)):
            attributes = dict(found.attrs)
            del file[dataset]
            _make(file, dataset, A.shape, dtype).attrs.update(attributes)
    _take(part, part.stat().st_size)


def _make(file: Any, dataset: str, shape: Shape, dtype: np.dtype) -> Any:
    h5p, h5d = _h5py().h5p, _h5py().h5d
    whole = h5p.create(h5p.DATASET_CREATE)
    whole.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    return file.require_dataset(dataset, shape, for_h5py(dtype), dcpl=whole)


def _check_links(file: Any, dataset: str) -> None:
    """ValueError if a link on the path to a dataset is dangling, or leads into another file.

    A save must not change another file before all has been written.
    """
    steps = [step for step in dataset.split("/") if step not in ("", ".")]
    for n in range(1, len(steps) + 1):
        way = "/".join(steps[:n])
        link, found = file.get(way, getlink=True), file.get(way)
        if found is None and hasattr(link, "path"):
            raise ValueError(f"dataset={dataset!r}: {way!r} is a link to {link.path!r}, which is not there; give another name")
        if found is not None and found.file.filename != file.filename:
            raise ValueError(f"dataset={dataset!r}: {way!r} is a link into the file {found.file.filename}; save to that one")


def _has_its_place(x: Any) -> bool:
    """Whether all space of a dataset has been reserved in its file.

    Not so for chunks, whose size depends on compression, for a dataset never written to, and for
    elements in other files.
    """
    layout, h5d, size = x.id.get_create_plist().get_layout(), _h5py().h5d, x.size * x.id.get_type().get_size()
    return layout in (h5d.CONTIGUOUS, h5d.COMPACT) and not x.external and x.id.get_storage_size() == size


def _take(path: Path, size: int) -> None:
    """Reserve disk space for the first `size` bytes of a file; OSError if the disk is full. On macOS do nothing."""
    with path.open("ab") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)


def _write(x: Any, block: np.ndarray, rows: Selection, cols: Selection) -> None:
    for here, there in _strips(rows, block.shape[0]):
        for across, columns in _strips(cols, block.shape[1]):
            put(x, there, columns, block[here, across])
