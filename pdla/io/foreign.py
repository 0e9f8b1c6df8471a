"""HDF5 files of other programs, read only: MATLAB's .mat since version 7.3, netCDF-4's .nc.

MATLAB stores matrices by columns, so HDF5 files hold their transposes. netCDF may pack numbers;
pdla refuses these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pdla.grid import ProcessGrid
from pdla.io import hdf5
from pdla.layout import Layout, Shape
from pdla.matrix.core import DistMatrix

SIGNATURE = b"\x89HDF\r\n\x1a\n"
PACKING = ("scale_factor", "add_offset")


def header(path: Path, dataset: str | None) -> tuple[Shape, np.dtype]:
    _check_hdf5(path)
    (m, n), dtype = hdf5.header(path, dataset, _check)
    return ((n, m) if _is_transposed(path) else (m, n)), dtype


def _is_transposed(path: Path) -> bool:
    return path.suffix.lower() == ".mat"


def _check_hdf5(path: Path) -> None:
    """ValueError for older forms of these files, which are not HDF5."""
    with path.open("rb") as file:
        begins = file.read(520)
    if SIGNATURE not in (begins[:8], begins[512:]):  # MATLAB writes 512 bytes of its own before it
        how = "save(..., '-v7.3'), or pass scipy.io.loadmat's array to from_global" if _is_transposed(path) else "write netCDF-4"
        raise ValueError(f"an older form, or none, of {path.suffix}, which is no HDF5 file: {how}")


def _check(x: Any) -> None:
    if packed := [name for name in PACKING if name in x.attrs]:
        raise ValueError(f"dataset {x.name!r} is packed: its attributes {' and '.join(packed)} change what the numbers mean")
    if x.attrs.get("MATLAB_empty", 0):
        raise ValueError(f"dataset {x.name!r} is empty: MATLAB has stored its sizes in its place")


def load(path: Path, dataset: str | None, shape: Shape, dtype: np.dtype, grid: ProcessGrid, layout: Layout) -> DistMatrix:
    if not _is_transposed(path):
        return hdf5.load(path, dataset, shape, dtype, grid, layout)
    return hdf5.load(path, dataset, shape[::-1], dtype, grid, layout.T).T
