"""The work of neural networks' layers in NumPy's functions: for arrays of any kind, and as a reference for kernels.

Arrays are (m, n): m tokens, and this rank's n features or words of the vocabulary. Sums over a row
are (m, 1), this rank's addends. A function may write to an argument that is called spent. Sums have
the dtype `sum_dtype`: in bfloat16 256 + 1 is 256, and in float16 squares soon overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import pi, sqrt
from typing import Any

import numpy as np


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype of sums: float32 for 16-bit floats, else the same."""
    return np.dtype(np.float32) if dtype.kind in "fV" and dtype.itemsize == 2 else dtype


@lru_cache(maxsize=64)
def reduction_dtype(dtype: Any, op: str) -> Any:
    """The dtype of sums (op "add"), or of maxima."""
    return sum_dtype(dtype) if op == "add" else dtype


def widen(x: Any) -> Any:
    """`x` in the dtype of sums: a copy of 16-bit floats, else x itself."""
    return x.astype(sum_dtype(x.dtype), copy=False)


def gelu(x: Any, slope: bool, bias: Any, erf: Callable[[Any], Any]) -> tuple[Any, Any]:
    """GeLU of each element of x + bias, and its derivative if `slope`, else None.

    GeLU(t) is t times the normal distribution function at t. bias is (1, n), and then x is spent;
    None: 0.
    """
    if bias is not None:
        x += bias
    dtype, x = x.dtype, widen(x)  # in 16 bits 1 + erf would be mere rounding error for negative x
    number = x.dtype.type
    integral = number(0.5) + number(0.5) * erf(x * number(sqrt(0.5)))
    density = x * np.exp(x * x * number(-0.5)) * number(1 / sqrt(2 * pi)) if slope else None
    if density is not None:
        density += integral
        density = density.astype(dtype, copy=False)
    integral *= x
    return integral.astype(dtype, copy=False), density


def product_sums(x: Any, y: Any) -> tuple[Any, Any]:
    """`x` times `y`, element by element, and the sums (1, n) of that over the rows."""
    product = x * y
    return product, widen(product).sum(axis=0, keepdims=True)


def column_sums(x: Any, y: Any) -> tuple[Any, Any]:
    """The sums (1, n) over the rows of x times y, and of x."""
    x = widen(x)
    return (x * y).sum(axis=0, keepdims=True), x.sum(axis=0, keepdims=True)


def sum_columns(x: Any) -> Any:
    """The sums (1, n) over the rows of x."""
    return widen(x).sum(axis=0, keepdims=True)


# ---------------------------------------------------------------------------------------------- normalisation


def moments(x: Any) -> tuple[Any, Any]:
    """Each row's sum, and the sum of squares about the row's own mean, in which no digits cancel."""
    x = widen(x)
    sums = x.sum(axis=1, keepdims=True)
    left = x - sums / max(x.shape[1], 1)
    left *= left
    return sums, left.sum(axis=1, keepdims=True)


def recentre(squares: Any, own: Any, sums: Any, n: int, count: int) -> None:
    """Turn sums of squares about the mean of this rank's n features into those about all ranks' mean.

    The new sums, about the mean of all `count` features, can be added over ranks. own, sums: the
    sum of this rank's features, and of all. Chan, Golub, LeVeque, Algorithms for computing the
    sample variance, 1983, (2.1).
    """
    apart = own / max(n, 1) - sums / count
    apart *= apart
    apart *= n
    squares += apart


def normalise(
    x: Any, sums: Any, squares: Any, count: int, eps: float, gain: Any, offset: Any, keep: bool
) -> tuple[Any, Any, Any]:
    """Normalise x: (y, normal, scale), of which the gradient needs the last two.

        scale  = 1 / sqrt(squares / count + eps)
        normal = (x - sums / count) scale
        y      = normal gain + offset

    sums=None, offset=None: 0. normal is None unless `keep`.
    """
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
    """Sum x gain y over each row into out[-1], and, if out is (2, m, 1), x gain into out[0]. gain=None: 1."""
    part = widen(x) if gain is None else widen(x) * gain
    if len(out) == 2:
        out[0] = part.sum(axis=1, keepdims=True)
    out[-1] = (part * y).sum(axis=1, keepdims=True)


def norm_gradient(dy: Any, normal: Any, scale: Any, gain: Any, sums: Any, count: int) -> Any:
    """The gradient of normalise's x, from that of its y.

        (dy gain - (sums[0] + normal sums[-1]) / count) scale

    sums: those of `row_sums`, added up over ranks; if there is only one, the first is 0.
    """
    means = sums / count
    less = normal * means[-1]
    if len(sums) == 2:
        less += means[0]
    dx = widen(dy) * gain
    dx -= less
    dx *= scale
    return dx.astype(dy.dtype, copy=False)


# ---------------------------------------------------------------------------------------------- cross-entropy


def exponentials(x: Any, top: Any, places: np.ndarray, sums: Any) -> Any:
    """The exponentials of x - top; writes their sums over each row to sums[0].

    Writes each row's x - top at column places[row] to sums[1], or 0 if there is no such column.
    """
    powers = x - top
    np.exp(powers, out=powers)
    sums[0] = widen(powers).sum(axis=1)
    sums[1] = 0
    rows = _find_places(places, x)
    sums[1, rows] = widen(x[rows, places[rows]]) - widen(top[rows, 0])
    return powers


def softmax_gradient(powers: Any, sums: Any, places: np.ndarray, ignored: np.ndarray, count: int) -> None:
    """Turn `exponentials` into (powers / sums - 1 at the row's place) / count, in place, and ignored rows into 0. sums is (m,)."""
    powers *= (1 / count / sums).reshape(-1, 1)
    rows = _find_places(places, powers)
    powers[rows, places[rows]] -= 1 / count
    powers[np.flatnonzero(ignored)] = 0


def _find_places(places: np.ndarray, x: Any) -> np.ndarray:
    """Find the rows whose places are columns of x."""
    return np.flatnonzero((places >= 0) & (places < x.shape[1]))


# ---------------------------------------------------------------------------------------------- attention


def softmax(scores: Any, seen: int, dtype: Any) -> Any:
    """The exponentials of scores over their sum in each row of a stack of matrices, in this dtype. The scores are spent.

    Row i of a matrix sees its first `seen` + i columns, and is 0 in the others.
    """
    powers, totals = _exponentiate(scores, seen)
    powers *= 1 / totals
    return powers.astype(dtype, copy=False)


def softmax_backward(scores: Any, slopes: Any, seen: int, dtype: Any) -> tuple[Any, Any]:
    """`softmax`, and the gradient with regard to the scores, given that with regard to the softmax, `slopes`, which are spent."""
    powers, totals = _exponentiate(scores, seen)
    slopes -= (slopes * powers).sum(axis=-1, keepdims=True) / totals  # exact for equal scores, unlike sums of rounded weights
    powers *= 1 / totals
    slopes *= powers
    return powers.astype(dtype, copy=False), slopes.astype(dtype, copy=False)


def _exponentiate(scores: Any, seen: int) -> tuple[Any, Any]:
    """Turn scores into exponentials, the greatest of each row into 1, and return them with their sums by row."""
    queries, keys = scores.shape[-2:]
    if seen < keys:
        scores[..., seen:] += _make_triangle(queries, keys - seen, scores.dtype)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    return scores, scores.sum(axis=-1, keepdims=True)


@lru_cache(maxsize=8)
def _make_triangle(m: int, n: int, dtype: np.dtype) -> np.ndarray:
    """Make an m x n matrix that is 0 below the diagonal, else -inf."""
    return np.triu(np.full((m, n), -np.inf, dtype))


LEADING = 0.6  # of the largest element of a column: the first as large decides the column's sign


def conjugate_phases(module: Any, x: Any) -> Any:
    """Find each column's factor of absolute value 1 that makes its first large element positive. module: numpy or cupy."""
    sizes = module.abs(x)
    first = (sizes >= LEADING * sizes.max(axis=0)).argmax(axis=0)
    leading = x[first, module.arange(x.shape[1])]
    if x.dtype.kind != "c":
        return module.where(leading < 0, x.dtype.type(-1), x.dtype.type(1))
    size = module.abs(leading)
    return module.where(size > 0, module.conj(leading) / module.where(size > 0, size, 1), 1).astype(x.dtype)
