"""Random matrices in CuPy's arrays, by the kernels of cuda/philox.cu: bit by bit those of pdla/array/numpy.py's `draw_part`."""

from __future__ import annotations

from math import inf
from typing import Any

import cupy
import numpy as np

from pdla.array import numpy
from pdla.array.cupy.launch import THREADS, blocks, launch
from pdla.array.draw import TILE, Draw, tiles
from pdla.indices import IndexSet

_KINDS = "float32", "float64", "complex64", "complex128"
_DRAWS = {"uniform": 4, "normal": 4, "integers": 8}  # how many numbers one block of Philox's output gives


def draw_part(rows: IndexSet, cols: IndexSet, draw: Draw) -> Any:
    """Draw these rows and columns of a random matrix, on the host if no kernel can."""
    scalars = _scalars(draw)
    if not scalars:
        return cupy.asarray(numpy.draw_part(rows, cols, draw))
    made = cupy.empty((len(rows), len(cols)), draw.dtype)
    if made.size:
        at = _pack(rows, draw.height, draw.width), _pack(cols, draw.width, 1)
        grid = blocks(-(-made.size // (_DRAWS[draw.distribution] * THREADS)))
        args = *at, draw.key(0)[0], made, np.int64(made.size), np.int64(len(cols)), *scalars
        launch("philox.cu", f"{draw.distribution}_{draw.dtype}", grid, (THREADS,), *args)
        if draw.distribution == "integers" and 2**32 % int(scalars[1]):
            _redraw(made, rows, cols, draw, scalars[1])
    return made


def _scalars(draw: Draw) -> tuple[Any, ...]:
    """The lowest number that a kernel draws, and the length of the range; empty if no kernel can draw these numbers."""
    if str(draw.dtype) in _KINDS and draw.distribution == "normal":
        return np.float64(0), np.float64(1)
    if str(draw.dtype) in _KINDS and draw.distribution == "integers":
        low, high = int(draw.low), int(draw.high)
        if low >= -(2**63) and high <= 2**63 and high - low <= 2**32:
            return np.int64(low), np.uint64(high - low)
    elif str(draw.dtype) in _KINDS and draw.distribution == "uniform":
        plain = isinstance(draw.low, (int, float)) and isinstance(draw.high, (int, float))
        if plain and 0 <= draw.high - draw.low < inf:
            return np.float64(draw.low), np.float64(draw.high - draw.low)
    return ()


def _pack(held: IndexSet, size: int, step: int) -> Any:
    """For each index (its tile's number) * TILE + its offset in the tile, where `step` is the distance of neighbours."""
    indices = held.indices()
    return cupy.asarray(indices // size * TILE + indices % size * step)


def _redraw(made: Any, rows: IndexSet, cols: IndexSet, draw: Draw, count: np.uint64) -> None:
    """Draw on the host the tiles in which NumPy rejects some of the random bits, which shifts all numbers after them."""
    down, across = list(tiles(rows, draw.height)), list(tiles(cols, draw.width))
    numbers = [cupy.asarray(np.array([tile for tile, _, _ in held], np.int64)) for held in (down, across)]
    flags = cupy.empty(len(down) * len(across), np.uint8)
    flags.fill(0)
    sizes = np.int64(flags.size), np.int64(len(across)), count, np.int32(draw.parts), np.int32(draw.height * draw.width)
    launch("philox.cu", "passed_over", blocks(flags.size), (THREADS,), *numbers, draw.key(0)[0], flags, *sizes)
    for tile in np.flatnonzero(cupy.asnumpy(flags)).tolist():
        (i, here, within), (j, there, beside) = down[tile // len(across)], across[tile % len(across)]
        made[here, there] = cupy.asarray(draw.tile(i, j)[within][:, beside])
