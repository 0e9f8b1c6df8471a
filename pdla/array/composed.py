"""The layers' work on whole arrays, composed of NumPy's functions: for arrays of any kind, and what kernels are compared with.

Arrays are (m, n): tokens, and this rank's part of the features or of the vocabulary. Sums over a row, which other ranks have
parts of, are (m, 1). What is said to be spent may be written to. Sums are of the dtype `summing`: in bfloat16 1 added to 256 is
256, and a square that float16 has no number for is soon come by.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import numpy as np


def summing(dtype: np.dtype) -> np.dtype:
    """The dtype in which numbers are added up: float32 for the 16-bit floats, which only store."""
    return np.dtype(np.float32) if dtype.kind in "fV" and dtype.itemsize == 2 else dtype


def widened(x: Any) -> Any:
    """x as it is added up: a copy where it is of 16-bit floats, else x itself."""
    return x.astype(summing(x.dtype), copy=False)


def gelu(x: Any, slope: bool, bias: Any, erf: Callable[[Any], Any]) -> tuple[Any, Any]:
    """GeLU of each element of x + bias (1, n), x times the normal distribution's integral up to x; and its slope, where it is
    wanted, else None. bias=None: of x; else x is spent."""
    if bias is not None:
        x += bias
    dtype, x = x.dtype, widened(x)  # in 16 bits what is left of 1 where x is below 0 would be rounding
    number = x.dtype.type
    integral = number(0.5) + number(0.5) * erf(x * number(sqrt(0.5)))
    density = x * np.exp(x * x * number(-0.5)) * number(1 / sqrt(2 * pi)) if slope else None
    if density is not None:
        density += integral
        density = density.astype(dtype, copy=False)
    integral *= x
    return integral.astype(dtype, copy=False), density


def product_sums(x: Any, y: Any) -> tuple[Any, Any]:
    """x times y, element by element, and the sums (1, n) of that over the rows."""
    product = x * y
    return product, widened(product).sum(axis=0, keepdims=True)


def column_sums(x: Any, y: Any) -> tuple[Any, Any]:
    """The sums (1, n) over the rows of x times y, and of x."""
    x = widened(x)
    return (x * y).sum(axis=0, keepdims=True), x.sum(axis=0, keepdims=True)


# ---------------------------------------------------------------------------------------------- normalisation


def moments(x: Any) -> tuple[Any, Any]:
    """Each row's sum, and the sum of the squares of what is left of it without its own mean: no digits are lost."""
    x = widened(x)
    sums = x.sum(axis=1, keepdims=True)
    left = x - sums / max(x.shape[1], 1)
    left *= left
    return sums, left.sum(axis=1, keepdims=True)


def recentre(squares: Any, own: Any, sums: Any, n: int, count: int) -> None:
    """Turn squares about the mean of this rank's n features, of sum `own`, into those about the mean of all, of sum `sums`.

    Chan, Golub, LeVeque, Algorithms for computing the sample variance, 1983, (2.1): added over ranks they are the squares of all.
    """
    apart = own / max(n, 1) - sums / count
    apart *= apart
    apart *= n
    squares += apart


def normalise(
    x: Any, sums: Any, squares: Any, count: int, eps: float, gain: Any, offset: Any, keep: bool
) -> tuple[Any, Any, Any]:
    """(x - sums / count) scale gain + offset, where scale = 1 / sqrt(squares / count + eps); what gain multiplies, where it is to
    be kept, else None; and scale. sums=None and offset=None: 0."""
    scale = 1 / np.sqrt(squares / count + eps)
    normal = x * scale if sums is None else x - sums / count
    if sums is not None:
        normal *= scale
    normal = normal.astype(x.dtype, copy=False)
    y = normal * gain
    if offset is not None:
        y += offset
    return y, normal if keep else None, scale


def row_sums(x: Any, y: Any, gain: Any, out: Any) -> None:
    """The sums over each row of x gain y into out[-1], and, where out is (2, m, 1), of x gain into out[0]. gain=None: 1."""
    part = widened(x) if gain is None else widened(x) * gain
    if len(out) == 2:
        out[0] = part.sum(axis=1, keepdims=True)
    out[-1] = (part * y).sum(axis=1, keepdims=True)


def norm_gradient(dy: Any, normal: Any, scale: Any, gain: Any, sums: Any, count: int) -> Any:
    """(dy gain - (sums[0] + normal sums[-1]) / count) scale: what `normalise` passes back, given what `row_sums` made and ranks
    summed; of one sum the first is 0."""
    means = sums / count
    less = normal * means[-1]
    if len(sums) == 2:
        less += means[0]
    dx = widened(dy) * gain
    dx -= less
    dx *= scale
    return dx.astype(dy.dtype, copy=False)


# ---------------------------------------------------------------------------------------------- cross-entropy


def exponentials(x: Any, top: Any, places: np.ndarray, sums: Any) -> Any:
    """exp(x - top). Its sum over each row into sums[0], and into sums[1] (x - top) at the row's place, 0 where that is not in
    0 ... n - 1."""
    powers = x - top
    np.exp(powers, out=powers)
    sums[0] = widened(powers).sum(axis=1)
    sums[1] = 0
    rows = _there(places, x)
    sums[1, rows] = widened(x[rows, places[rows]]) - widened(top[rows, 0])
    return powers


def softmax_gradient(powers: Any, sums: Any, places: np.ndarray, ignored: np.ndarray, count: int) -> None:
    """Turn the exponentials into (powers / sums - 1 at the row's place) / count, and rows that are ignored into 0; sums (m,)."""
    powers *= (1 / count / sums).reshape(-1, 1)
    rows = _there(places, powers)
    powers[rows, places[rows]] -= 1 / count
    powers[np.flatnonzero(ignored)] = 0


def _there(places: np.ndarray, x: Any) -> np.ndarray:
    """The rows whose places are columns of x."""
    return np.flatnonzero((places >= 0) & (places < x.shape[1]))
