"""NumPy's .npy: every rank maps the file into memory, and reads or writes its own part."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np

from pdla.array import numpy as host
from pdla.grid import ProcessGrid
from pdla.indices import Selection, slice_selection
from pdla.io.files import PANEL, bfloat16, check_matrix, read_blocks, share_errors, write_block
from pdla.layout import Layout, Shape
from pdla.matrix.core import DistMatrix

READING = Lock()  # in several threads at once, Python's parser, by which NumPy reads a header, may fail with a SystemError
READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
READERS[3, 0] = READERS[2, 0]  # its header is UTF-8, not Latin-1: only names of fields differ


def _fields(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return fields(file)


def fields(file: IO[bytes]) -> dict[str, Any]:
    """Read the header at a file's place, as arguments of np.memmap, a vector as a column; ValueError if it is damaged."""
    version = np.lib.format.read_magic(file)
    if version not in READERS:
        raise ValueError(f"version {version} of the .npy format: those known are 1.0, 2.0 and 3.0")
    with READING:
        shape, fortran, dtype = READERS[version](file)
    if dtype == np.void(2).dtype:  # as np.save writes bfloat16
        dtype = bfloat16()
    shape = (*shape, 1) if len(shape) == 1 else shape
    return {"shape": shape, "order": "F" if fortran else "C", "dtype": dtype, "offset": file.tell()}


def header(path: Path, dataset: None) -> tuple[Shape, np.dtype]:
    fields = _fields(path)
    shape, dtype = check_matrix(fields["shape"], fields["dtype"])
    size, promised = path.stat().st_size, fields["offset"] + shape[0] * shape[1] * dtype.itemsize
    if size < promised:
        raise ValueError(f"truncated: it has {size} bytes, {shape} of {dtype} takes {promised}")
    return shape, dtype


def load(path: Path, dataset: None, shape: Shape, dtype: np.dtype, grid: ProcessGrid, layout: Layout) -> DistMatrix:
    def read(block: np.ndarray, rows: Selection, cols: Selection) -> None:
        read_part(np.memmap(path, mode="r", **_fields(path)), block, rows, cols)

    return read_blocks(path, shape, dtype, grid, layout, read)


def read_part(x: np.ndarray, block: np.ndarray, rows: Selection, cols: Selection) -> None:
    """Copy x[rows][:, cols] to block, for x in C or Fortran order."""
    if x.flags.c_contiguous:
        _read(x, block, rows, cols)
    else:
        _read(x.T, block.T, cols, rows)


def _read(x: np.ndarray, block: np.ndarray, rows: Selection, cols: Selection) -> None:
    """Copy x[rows][:, cols] to block, some rows at a time: NumPy first copies a selection by lists, which takes memory."""
    height = max(1, PANEL // (block.shape[1] * x.itemsize))
    for lo in range(0, len(block), height):
        some = slice_selection(rows, lo, lo + height)
        block[lo : lo + height] = x[some, cols] if isinstance(some, slice) or isinstance(cols, slice) else x[np.ix_(some, cols)]


def save(part: Path, path: Path, dataset: str, A: DistMatrix) -> None:
    comm = A.grid.comm

    def write(block: Any, rows: Selection, cols: Selection) -> None:
        x = np.memmap(part, mode="r+", **_fields(part))
        host.put(x, rows, cols, block)
        x.flush()

    with share_errors(comm, path):
        if comm.rank == 0:
            _create(part, A.shape, A.dtype.newbyteorder("="))
    with share_errors(comm, path):
        write_block(A, write)


def _create(path: Path, shape: Shape, dtype: np.dtype) -> None:
    """Create a file of full size, and reserve its disk space: a full disk is an error here, in a memory map a signal."""
    descr = np.lib.format.dtype_to_descr(dtype)
    with path.open("xb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
        file.flush()
        os.posix_fallocate(file.fileno(), 0, file.tell() + shape[0] * shape[1] * dtype.itemsize)
