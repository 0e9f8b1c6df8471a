"""Dtypes in HDF5 that h5py does not read as numbers: bfloat16, and complex numbers as pairs named real and imag.

An HDF5 float of its form stores bfloat16: HDF5 converts it for any reader, for h5py to float32. The
two opaque bytes (|V2) that h5py itself stores are read, too. Elements move as bits, as HDF5 converts
only 10 million a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pdla.io.files import bfloat16

FORM = 15, 7, 8, 0, 7  # the places and the lengths of sign, exponent and fraction
BIAS = 127  # of the exponent


def is_bfloat16(x: Any) -> bool:
    """Whether a dataset is of bfloat16."""
    import h5py

    kind = x.id.get_type()
    if isinstance(kind, h5py.h5t.TypeFloatID):
        return (kind.get_size(), kind.get_fields(), kind.get_ebias()) == (2, FORM, BIAS)
    return isinstance(kind, h5py.h5t.TypeOpaqueID) and kind.get_size() == 2


def dtype_in(x: Any) -> np.dtype:
    return bfloat16() if is_bfloat16(x) else complex_in(x.dtype) or x.dtype


def complex_in(dtype: np.dtype) -> np.dtype | None:
    """The complex dtype of pairs named real and imag, as MATLAB, Julia and others write them; h5py knows only r and i."""
    parts = [dtype.fields[name][0] for name in dtype.names or ()] if dtype.fields else []
    if dtype.names != ("real", "imag") or parts[0] != parts[1] or parts[0].kind != "f" or parts[0].itemsize not in (4, 8):
        return None
    return np.result_type(parts[0], np.complex64) if dtype.itemsize == 2 * parts[0].itemsize else None


def has_dtype(x: Any, dtype: np.dtype) -> bool:
    return is_bfloat16(x) if dtype.name == "bfloat16" else x.dtype == dtype and not is_bfloat16(x)


def for_h5py(dtype: np.dtype) -> Any:
    """The type of a dataset of this dtype, for h5py."""
    import h5py

    if dtype.name != "bfloat16":
        return dtype
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(*FORM)
    kind.set_size(2)
    kind.set_ebias(BIAS)
    return h5py.Datatype(kind)


def get(x: Any, rows: slice, cols: slice) -> np.ndarray:
    """Read `x[rows, cols]`; of a vector its rows, as a column."""
    if x.ndim == 1:
        return _numbers(x[rows])[:, None] if not is_bfloat16(x) else _short(x, (rows,))[:, None]
    return _short(x, (rows, cols)) if is_bfloat16(x) else _numbers(x[rows, cols])


def _numbers(found: np.ndarray) -> np.ndarray:
    """Convert pairs named real and imag to complex numbers, and nothing else."""
    kind = complex_in(found.dtype)
    if kind is None:
        return found
    made = np.empty(found.shape, kind)
    made.real, made.imag = found["real"], found["imag"]
    return made


def _short(x: Any, some: tuple[slice, ...]) -> np.ndarray:
    """Read elements of bfloat16."""
    shape = tuple(len(range(part.start, part.stop, part.step or 1)) for part in some)
    bits = np.empty(shape, _bits(x))
    _move(x.id.read, x, some, bits)
    return bits.astype(np.uint16, copy=False).view(bfloat16())


def put(x: Any, rows: slice, cols: slice, block: np.ndarray) -> None:
    """Write `x[rows, cols] = block`."""
    if not is_bfloat16(x):
        x[rows, cols] = block
    elif block.size:
        _move(x.id.write, x, (rows, cols), np.ascontiguousarray(block).view(np.uint16).astype(_bits(x), copy=False))


def _bits(x: Any) -> np.dtype:
    """Integers as long as an element, in the dataset's byte order."""
    return np.dtype(np.uint16).newbyteorder(x.dtype.byteorder)


def _move(move: Callable[..., None], x: Any, some: tuple[slice, ...], bits: np.ndarray) -> None:
    import h5py

    there = x.id.get_space()
    there.select_hyperslab(tuple(part.start for part in some), bits.shape, tuple(part.step or 1 for part in some))
    move(h5py.h5s.create_simple(bits.shape), there, bits, mtype=x.id.get_type())
