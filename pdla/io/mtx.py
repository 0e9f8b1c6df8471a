"""Matrix Market, on rank 0: no rank can find its own block in a text. scipy reads files that are not dense, and writes."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from io import BufferedIOBase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pdla.array.dtypes import has_fractions
from pdla.grid import ProcessGrid
from pdla.indices import Selection
from pdla.io.faults import find_fault
from pdla.io.files import read_blocks, share_errors
from pdla.io.lines import Lines
from pdla.layout import Layout, Shape
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import convert

# The dtype in which scipy reads each field.
DTYPES: dict[str, type[Any]] = {
    "real": np.float64,
    "double": np.float64,
    "pattern": np.float64,
    "integer": np.int64,
    "unsigned-integer": np.uint64,
    "complex": np.complex128,
}
PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
FIELDS = {"b": "integer", "i": "integer", "u": "unsigned-integer", "f": "real", "c": "complex"}  # by the kind of a dtype


def header(path: Path, dataset: None) -> tuple[Shape, np.dtype]:
    with _open(path) as file:
        lines = Lines(file)
        while not (lines.rows and lines.cols) and lines.read(0):
            pass  # of an empty matrix nothing is loaded: its lines are checked here
    return (lines.rows, lines.cols), np.dtype(DTYPES[lines.field])


def _open(path: Path) -> BufferedIOBase:
    """Open the file's text, unpacked: scipy unpacks a file only if its ending is in lower case."""
    return _opener(path)(path, "rb")


def _opener(path: Path) -> Callable[..., Any]:
    """Find the function that opens a file of this ending, packed or not."""
    return PACKED.get(path.suffix.lower(), open)


def load(path: Path, dataset: None, shape: Shape, dtype: np.dtype, grid: ProcessGrid, layout: Layout) -> DistMatrix:
    def read(block: np.ndarray, rows: Selection, cols: Selection) -> None:
        with _open(path) as file:
            lines = Lines(file)
            found = _dense(lines) if lines.form == "array" and lines.field != "pattern" else _sparse(lines)
        if isinstance(found, np.ndarray):
            block[...] = found
        else:
            found.toarray(out=block)
        if wrong := find_fault(block, found, lines.entries, lines.symmetry):
            with _open(path) as file:
                line = Lines(file).line_of(*wrong[:2])
            raise ValueError(f"line {line}: row {wrong[0] + 1}, column {wrong[1] + 1}: {wrong[2]}")

    alone = ProcessGrid.trust((1,), grid.comm, [0])
    return convert(read_blocks(path, shape, dtype, alone, Layout(), read), layout, grid)


def _dense(lines: Lines) -> np.ndarray:
    """Read the matrix of a dense file. One with a symmetry has the lower triangle only, column by column."""
    numbers = lines.numbers(DTYPES[lines.field])
    if lines.symmetry == "general":
        return numbers.reshape(lines.cols, lines.rows).T
    found = np.zeros((lines.rows, lines.cols), numbers.dtype)
    col, row = np.triu_indices(lines.rows, int(lines.symmetry == "skew-symmetric"))
    found[col, row] = {"symmetric": numbers, "skew-symmetric": -numbers, "hermitian": numbers.conj()}[lines.symmetry]
    found[row, col] = numbers
    return found


def _sparse(lines: Lines) -> Any:
    from scipy.io import mmread

    return mmread(lines)


def save(part: Path, path: Path, dataset: str, A: DistMatrix) -> None:
    comm = A.grid.comm
    with share_errors(comm, path):
        if A.dtype.char in "gG":
            raise ValueError(f"elements of dtype {A.dtype}: Matrix Market's are read as double precision; .npy keeps all digits")
    whole = A.gather(root=0)
    with share_errors(comm, path):
        if comm.rank == 0:
            _write(part, path, A.xp.host(whole))


def _write(part: Path, path: Path, whole: Any) -> None:
    from scipy.io import mmwrite

    # In double precision, as they will be read: scipy writes only the digits of a shorter dtype, and
    # cannot write float16.
    numbers = whole.astype(np.promote_types(whole.dtype, np.float64), copy=False) if has_fractions(whole.dtype) else whole
    with _opener(path)(part, "xb") as file:
        if numbers.size:
            plain = SimpleNamespace(write=file.write, flush=file.flush)  # no seek: some packed files cannot
            mmwrite(plain, numbers, symmetry="general")
        else:  # scipy never returns from a complex matrix without rows
            rows, cols = numbers.shape
            file.write(f"%%MatrixMarket matrix array {FIELDS[numbers.dtype.kind]} general\n{rows} {cols}\n".encode())
