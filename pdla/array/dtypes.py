"""Dtypes: which numbers they can represent, and in which of them two meet."""

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
    import ml_dtypes  # noqa: F401 - NumPy knows "bfloat16" by name from here on, and not only after pdla has met the name

COMPLEX = (complex, np.complexfloating)


def restore_bfloat16(x: Any) -> Any:
    """x; in bfloat16 where x is an array as np.load gives one: NumPy's files keep bfloat16 as two raw bytes, |V2."""
    if isinstance(x, np.ndarray) and x.dtype == np.dtype("V2"):
        with suppress(TypeError):  # without ml_dtypes
            return x.view("bfloat16")
    return x


def is_numeric(dtype: np.dtype) -> bool:
    """Whether elements are numbers. ml_dtypes' numbers are of kind V, as are NumPy's records, which are none."""
    return dtype.kind in "biufcV" and dtype.type is not np.void


@lru_cache
def has_fractions(dtype: np.dtype) -> bool:
    """Whether elements are floats, real or complex. Of ml_dtypes' dtypes, all of kind V, some are integers."""
    return dtype.kind in "fc" or (dtype.kind == "V" and bool(np.array(0.5).astype(dtype)))


@lru_cache
def promote(*dtypes: np.dtype) -> np.dtype:
    """The dtype of a product of matrices of these dtypes, as NumPy promotes them; ShapeError where NumPy has none."""
    try:
        return reduce(np.result_type, sorted(dtypes, key=_widest_float_first))
    except TypeError:
        names = " and ".join(str(dtype) for dtype in dict.fromkeys(dtypes))
        raise ShapeError(f"matrices of {names}: NumPy has no dtype for them, so bring them to one by astype") from None


def near_one(sizes: Any, dtype: np.dtype) -> Any:
    """Powers of 2, real numbers of this dtype, that bring sizes near 1, the infinite ones too: as near as normal powers can."""
    kind = np.finfo(dtype)
    most = kind.maxexp - 24
    exponents = np.frexp(np.minimum(sizes, np.finfo(np.float64).max))[1]
    return np.ldexp(kind.dtype.type(1), -np.clip(exponents, -most, most))


def _widest_float_first(dtype: np.dtype) -> tuple[bool, int, str]:
    """A key to sort by: NumPy has no dtype for bfloat16 and int64, so it takes both beside a float64 only if that comes first."""
    return dtype.kind not in "fc", -dtype.itemsize, str(dtype)


def check_numbers(call: str, dtype: np.dtype, xp: ModuleType) -> None:
    """ShapeError unless elements of this dtype are numbers, and `xp`, a module of arrays, has arrays of them.

    CuPy has none of long doubles, of 8-bit floats, or in the other byte order. call: what the text
    begins with.
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
    """The largest number of one of NumPy's dtypes of floats, or the largest float64 if that is less; 0 for other dtypes."""
    return min(float(np.finfo(dtype).max), float_info.max) if dtype.kind in "fc" else 0.0


def has(dtype: np.dtype, number: Any) -> bool:
    """Whether a dtype can represent this number, floats by rounding it.

    Otherwise NumPy would drop imaginary parts and fractions, wrap integers around, and make
    infinity of what is too large for a float. Infinity itself and NaN floats have.
    """
    number = number.item() if isinstance(number, np.generic) else number
    if isinstance(number, COMPLEX) and dtype.kind != "c":
        return False
    if has_fractions(dtype):
        return all(_finite_in(dtype, part) for part in (number.real, number.imag))
    return bool(number % 1 == 0) and -(2**63) <= number < 2**64 and int(np.array(int(number)).astype(dtype)) == number


def _finite_in(dtype: np.dtype, real: Any) -> bool:
    """Whether a dtype of floats rounds a number to none that is infinite, unless it is so itself, or NaN."""
    if real != real or abs(real) in (0, inf):
        return True
    try:
        with np.errstate(all="ignore"):
            return bool(np.isfinite(np.array([real], dtype))[0])
    except OverflowError:  # an integer beyond all floats
        return False


def can_cast_addends(one: np.dtype, other: np.dtype) -> bool:
    """Whether addends can be cast from one dtype to the other before they are summed.

    Integers cannot: they wrap around at another number in another dtype, or not at all.
    """
    return one.newbyteorder("=") == other.newbyteorder("=") or (has_fractions(one) and has_fractions(other))
