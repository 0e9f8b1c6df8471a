"""Dtypes: the numbers that they can represent, and the common dtype of several."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache, reduce
from math import inf
from numbers import Number
from sys import float_info
from types import ModuleType
from typing import Any

import numpy as np

from pdla.errors import ShapeError

with suppress(ImportError):
    import ml_dtypes  # noqa: F401 - from here on NumPy knows "bfloat16" by name

COMPLEX = (complex, np.complexfloating)


def restore_bfloat16(x: Any) -> Any:
    """View x as bfloat16 if np.load read it from a file, as two raw bytes, |V2; else return x."""
    if isinstance(x, np.ndarray) and x.dtype == np.dtype("V2"):
        with suppress(TypeError):  # without ml_dtypes
            return x.view("bfloat16")
    return x


def is_numeric(dtype: np.dtype) -> bool:
    """Whether elements are numbers. Of kind V are ml_dtypes' numbers, and NumPy's records, which are none."""
    return dtype.kind in "biufcV" and dtype.type is not np.void


@lru_cache
def has_fractions(dtype: np.dtype) -> bool:
    """Whether elements are floats, real or complex. Some of ml_dtypes' dtypes, all of kind V, are integers."""
    return dtype.kind in "fc" or (dtype.kind == "V" and bool(np.array(0.5).astype(dtype)))


@lru_cache
def promote(*dtypes: np.dtype) -> np.dtype:
    """Promote dtypes to that of a product, as NumPy does; ShapeError if NumPy has none."""
    try:
        return reduce(np.result_type, sorted(dtypes, key=_widest_float_first))
    except TypeError:
        names = " and ".join(str(dtype) for dtype in dict.fromkeys(dtypes))
        raise ShapeError(f"matrices of {names}: NumPy has no common dtype: cast them to one by astype") from None


def near_one(sizes: Any, dtype: np.dtype) -> Any:
    """Powers of 2 of this dtype that scale sizes, also infinite ones, as near to 1 as normal powers can."""
    kind = np.finfo(dtype)
    most = kind.maxexp - 24
    exponents = np.frexp(np.minimum(sizes, np.finfo(np.float64).max))[1]
    return np.ldexp(kind.dtype.type(1), -np.clip(exponents, -most, most))


def _widest_float_first(dtype: np.dtype) -> tuple[bool, int, str]:
    """A sort key: NumPy has no dtype for bfloat16 and int64, and promotes both with a float64 only if that comes first."""
    return dtype.kind not in "fc", -dtype.itemsize, str(dtype)


def check_numbers(call: str, dtype: np.dtype, xp: ModuleType) -> None:
    """ShapeError unless elements of this dtype are numbers, and `xp`, a module of arrays, has arrays of them.

    CuPy has no arrays of long doubles, of 8-bit floats, or in the other byte order. call: the start
    of the text.
    """
    if not is_numeric(dtype):
        raise ShapeError(f"{call}: elements of dtype {dtype}: give booleans, integers, real or complex floats")
    try:
        xp.empty((0, 0), dtype)
    except ValueError:
        raise ShapeError(
            f"{call}: elements of dtype {dtype}, of which {xp.name} has no arrays: give float64, complex128, or another dtype "
            "of NumPy's in this byte order that is not of long doubles; or set PDLA_ARRAY=numpy"
        ) from None


def is_number(x: Any) -> bool:
    return is_numeric(x.dtype) if isinstance(x, np.generic) else isinstance(x, Number)  # a timedelta64 is a Number, too


@lru_cache
def find_largest(dtype: np.dtype) -> float:
    """The largest number of one of NumPy's float dtypes, at most the largest float64; 0 for other dtypes."""
    return min(float(np.finfo(dtype).max), float_info.max) if dtype.kind in "fc" else 0.0


def has(dtype: np.dtype, number: Any) -> bool:
    """Whether a dtype can represent this number, floats by rounding it; floats have infinity and NaN.

    Otherwise NumPy would drop imaginary parts and fractions, wrap integers around, and overflow to
    infinity.
    """
    number = number.item() if isinstance(number, np.generic) else number
    if isinstance(number, COMPLEX) and dtype.kind != "c":
        return False
    if has_fractions(dtype):
        return all(_finite_in(dtype, part) for part in (number.real, number.imag))
    return bool(number % 1 == 0) and -(2**63) <= number < 2**64 and int(np.array(int(number)).astype(dtype)) == number


def _finite_in(dtype: np.dtype, real: Any) -> bool:
    """Whether a dtype of floats does not round a finite number to infinity; True for infinity and NaN."""
    if real != real or abs(real) in (0, inf):
        return True
    try:
        with np.errstate(all="ignore"):
            return bool(np.isfinite(np.array([real], dtype))[0])
    except OverflowError:  # an integer beyond all floats
        return False


def can_cast_addends(one: np.dtype, other: np.dtype) -> bool:
    """Whether addends can be cast from one dtype to the other before they are summed.

    Integers cannot: the point at which they wrap around depends on the dtype.
    """
    return one.newbyteorder("=") == other.newbyteorder("=") or (has_fractions(one) and has_fractions(other))
