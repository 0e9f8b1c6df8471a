"""The work of neural networks' layers on CuPy's arrays, each by one launch of a kernel of cuda/.

The functions are those of pdla/array/composed.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from pdla.array import composed, numpy
from pdla.array.cupy.launch import THREADS, blocks, launch

_WARP = 32
_ROWS = 256  # rows of a tile of columns.cu, in which each thread of a warp has 16 bytes of a row
_FLOATS = ("float16", "bfloat16", "float32", "float64")  # of which there are kernels
_SUMS = ("float32", "float64")  # the dtypes of their sums
_SHORT = 4096  # bytes of a row up to which one warp takes it; a longer row takes a block


def _prepare(stored: Sequence[Any], sums: Sequence[Any] = (), into: Any = None) -> list[Any]:
    """The arrays `stored` and `sums`, copied if they have gaps, and None for None.

    An empty list if no kernel takes their dtypes, or if `into`, the one that is written, has gaps.
    """
    dtype = stored[0].dtype
    kinds = [(x, dtype) for x in stored] + [(x, composed.sum_dtype(dtype)) for x in sums]
    if str(dtype) not in _FLOATS or any(x is not None and x.dtype != kind for x, kind in kinds):
        return []
    if into is not None and not into.flags.c_contiguous:
        return []
    return [None if x is None else cupy.ascontiguousarray(x) for x, _ in kinds]


def _number(x: Any) -> Any:
    """The type of a kernel's numbers where arrays like x are stored."""
    return composed.sum_dtype(x.dtype).type


def _by_rows(kernel: str, x: Any, *args: Any) -> None:
    """Launch a kernel that takes a matrix by its rows."""
    m, n = x.shape
    if m:
        wide = _WARP if n * x.itemsize <= _SHORT else THREADS
        block = wide, THREADS // wide
        launch("rows.cu", f"{kernel}_{x.dtype}", blocks(-(-m // block[1])), block, *args, np.int64(m), np.int64(n))


# ---------------------------------------------------------------------------------------------- element by element


def erf(x: Any) -> Any:
    """The error function of each element."""
    from cupyx.scipy.special import erf

    return erf(x)


def gelu(x: Any, slope: bool, bias: Any = None) -> tuple[Any, Any]:
    """GeLU of each element of x + bias, and its derivative if `slope`, else None. With a bias x is spent."""
    ready = _prepare([x, bias])
    if not ready:
        return composed.gelu(x, slope, bias, erf)
    x, bias = ready
    y, turned = cupy.empty(x.shape, x.dtype), cupy.empty(x.shape, x.dtype) if slope else None
    if x.size:
        args = x, bias, y, turned, np.int64(x.size), np.int64(x.shape[-1])
        launch("gelu.cu", f"gelu_{x.dtype}", blocks(-(-x.nbytes // (16 * THREADS))), (THREADS,), *args)
    return y, turned


def uniform(rows: np.ndarray, cols: np.ndarray, key: int) -> Any:
    """Draw a number from [0, 1) for each row and column, bit for bit as pdla/array/numpy.py's `uniform`."""
    m, n = len(rows), len(cols)
    made = cupy.empty((m, n), np.float64)
    if made.size:
        at = [cupy.asarray(np.asarray(x, np.int64)) for x in (rows, cols)]
        grid = blocks(-(-made.size // (2 * THREADS)))
        launch("uniform.cu", "uniform", grid, (THREADS,), *at, numpy.mix_key(key), made, np.int64(m), np.int64(n))
    return made


# ---------------------------------------------------------------------------------------------- sums over rows


def product_sums(x: Any, y: Any) -> tuple[Any, Any]:
    ready = _prepare([x, y])
    if not ready:
        return composed.product_sums(x, y)
    x, y = ready
    product = cupy.empty(x.shape, x.dtype)
    return product, _sum_columns(x, y, product, False)


def column_sums(x: Any, y: Any) -> tuple[Any, Any]:
    ready = _prepare([x, y])
    if not ready:
        return composed.column_sums(x, y)
    (x, y), n = ready, x.shape[1]
    sums = _sum_columns(x, y, None, True)
    return sums[:, :n], sums[:, n:]


def sum_columns(x: Any) -> Any:
    ready = _prepare([x])
    return _sum_columns(ready[0], None, None, False) if ready else composed.sum_columns(x)


def _sum_columns(x: Any, y: Any, product: Any, both: bool) -> Any:
    """Sum x y over the rows, and, if `both`, append the sums of x: first within tiles, then of the tiles' sums."""
    m, n = x.shape
    parts = max(1, -(-m // _ROWS))
    sums = cupy.empty((parts, n * (1 + both)), composed.sum_dtype(x.dtype))
    if n:
        grid, block = blocks(-(-n * x.itemsize // (16 * _WARP)) * parts), (_WARP, THREADS // _WARP)
        args = x, y, product, sums, np.bool_(both), np.int64(m), np.int64(n)
        launch("columns.cu", f"columns_{x.dtype}", grid, block, *args)
    return sums if len(sums) == 1 else _sum_columns(sums, None, None, False)


def add_at(target: Any, rows: np.ndarray, source: Any) -> None:
    """target[rows[i]] += source[i] for each i, where rows may repeat, in this order, so that copies on ranks remain equal."""
    if str(target.dtype) not in _SUMS:
        added = target.get()
        numpy.add_at(added, rows, source.get())
        target[...] = cupy.asarray(added)
    elif target.size and len(rows):
        source = source.astype(target.dtype, copy=False)
        order = np.argsort(rows, kind="stable")
        begins = np.flatnonzero(np.diff(rows[order], prepend=-1))
        listed = cupy.asarray(np.concatenate([rows[order][begins], begins, [len(rows)], order]))
        count, n, size = len(begins), target.shape[1], target.itemsize
        lists = listed[:count], listed[count : 2 * count + 1], listed[2 * count + 1 :]
        sides = [arg for x in (source, target) for arg in (x, *(np.int64(stride // size) for stride in x.strides))]
        grid = blocks(count * -(-n // THREADS))
        launch("scatter.cu", f"scatter_{target.dtype}", grid, (THREADS,), *sides, *lists, np.int64(count), np.int64(n))


# ---------------------------------------------------------------------------------------------- row by row


def moments(x: Any) -> tuple[Any, Any]:
    ready = _prepare([x])
    if not ready:
        return composed.moments(x)
    sums, squares = (cupy.empty((x.shape[0], 1), composed.sum_dtype(x.dtype)) for _ in range(2))
    _by_rows("moments", x, *ready, sums, squares)
    return sums, squares


def recentre(squares: Any, own: Any, sums: Any, n: int, count: int) -> None:
    ready = _prepare([squares, own, sums], into=squares)
    if not ready:
        composed.recentre(squares, own, sums, n, count)
    elif n and squares.size:
        grid, number = blocks(-(-squares.size // THREADS)), squares.dtype.type
        args = *ready, number(n), number(count), np.int64(squares.size)
        launch("rows.cu", f"recentre_{squares.dtype}", grid, (THREADS,), *args)


def normalise(x: Any, sums: Any, squares: Any, count: int, eps: float, gain: Any, offset: Any, keep: bool) -> tuple[Any, Any, Any]:
    ready = _prepare([x, gain, offset], [sums, squares])
    if not ready:
        return composed.normalise(x, sums, squares, count, eps, gain, offset, keep)
    x, gain, offset, sums, squares = ready
    y, normal = cupy.empty(x.shape, x.dtype), cupy.empty(x.shape, x.dtype) if keep else None
    scale, number = cupy.empty(squares.shape, squares.dtype), _number(x)
    _by_rows("normalise", x, x, sums, squares, number(count), number(eps), gain, offset, y, normal, scale)
    return y, normal, scale


def row_sums(x: Any, y: Any, gain: Any, out: Any) -> None:
    ready = _prepare([x, y, gain], [out], into=out)
    if ready:
        _by_rows("row_sums", x, *ready[:3], out[0] if len(out) == 2 else None, out[-1])
    else:
        composed.row_sums(x, y, gain, out)


def norm_gradient(dy: Any, normal: Any, scale: Any, gain: Any, sums: Any, count: int) -> Any:
    ready = _prepare([dy, normal, gain], [scale, sums])
    if not ready:
        return composed.norm_gradient(dy, normal, scale, gain, sums, count)
    dy, normal, gain, scale, sums = ready
    dx = cupy.empty(dy.shape, dy.dtype)
    _by_rows("norm_gradient", dy, dy, normal, scale, gain, sums[0] if len(sums) == 2 else None, sums[-1], _number(dy)(count), dx)
    return dx


def exponentials(x: Any, top: Any, places: np.ndarray, sums: Any) -> Any:
    ready = _prepare([x, top], [sums], into=sums)
    if not ready:
        return composed.exponentials(x, top, places, sums)
    powers = cupy.empty(x.shape, x.dtype)
    _by_rows("exponentials", x, *ready[:2], cupy.asarray(places), powers, sums)
    return powers


def softmax_gradient(powers: Any, sums: Any, places: np.ndarray, ignored: np.ndarray, count: int) -> None:
    ready = _prepare([powers], [sums], into=powers)
    if ready:
        at = cupy.asarray(places), cupy.asarray(ignored)
        _by_rows("softmax_gradient", powers, *ready, *at, _number(powers)(count))
    else:
        composed.softmax_gradient(powers, sums, places, ignored, count)


def softmax(scores: Any, seen: int, dtype: Any) -> Any:
    return softmax_backward(scores, None, seen, dtype)[0]


def softmax_backward(scores: Any, slopes: Any, seen: int, dtype: Any) -> tuple[Any, Any]:
    """The weights and, if there are slopes, the gradient of the scores: in the places of both if they have this dtype."""
    weights, gradient = (x if x is None or x.dtype == dtype else cupy.empty(x.shape, dtype) for x in (scores, slopes))
    if scores.size:
        args = scores, slopes, weights, gradient, np.int64(scores.shape[-2]), np.int64(seen)
        _by_rows("softmax", weights.reshape(-1, weights.shape[-1]), *args)
    return weights, gradient
