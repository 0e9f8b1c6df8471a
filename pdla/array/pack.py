"""Copies of rectangles by the kernels of cuda/pack.cu: between any strides and, within a family, dtypes; at listed rows and columns
or at all; conjugated, or added to what is there. As many go in one launch as fit."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import cupy
import numpy as np

from pdla.array.launch import blocks, launch

_TILE, _BLOCK = 32, (32, 8)  # as in pack.cu
_MOST = 32  # the most rectangles in a launch of pack.cu
WORDS = {1: "pack_1", 2: "pack_2", 4: "pack_float32_float32", 8: "pack_float64_float64", 16: "pack_complex128_complex128"}
_CASTS = ("float32", "float64"), ("complex64", "complex128")  # each to each, within a family
_FIELDS = ("from", "to", "rows", "cols", "from_row", "from_col", "to_row", "to_col",
           "from_rows", "from_cols", "to_rows", "to_cols", "turned", "tiles")
_RECTANGLES = np.dtype([("of", [(field, np.int64) for field in _FIELDS], _MOST), ("count", np.int64)])


class Move(NamedTuple):
    """The copy of a rectangle: target[to] = source[at], each (rows, cols), None for all. Arrays may be in pinned host memory."""

    target: Any
    source: Any
    to: tuple[Any, Any] = (None, None)
    at: tuple[Any, Any] = (None, None)


def rectangle(target: Any, source: Any) -> Move | None:
    """The copy of one array into another as the copy of a matrix; None where it cannot be one."""
    if target.shape != source.shape:
        return None
    if target.ndim == 2:
        return Move(target, source)
    if target.flags.c_contiguous and source.flags.c_contiguous:
        return Move(target.reshape(1, -1), source.reshape(1, -1))
    return Move(target[None], source[None]) if target.ndim == 1 else None


def kernel_for(to: np.dtype, source: np.dtype, computing: bool) -> str:
    """The kernel that copies from one dtype to another; "" where there is none. computing: it must conjugate or add."""
    if to == source and not computing:
        return WORDS.get(to.itemsize, "")
    return f"pack_{to}_{source}" if any(str(to) in family and str(source) in family for family in _CASTS) else ""


def pack(kernel: str, moves: Sequence[Move], conjugate: bool = False, beta: complex | None = None) -> None:
    """Copy rectangles between arrays of the kernel's dtypes; with beta, add each to beta times its target."""
    full = [move for move in moves if prod(_size(move))]
    for group in (full[at : at + _MOST] for at in range(0, len(full), _MOST)):
        memory, lists = _uploaded(group)
        rectangles, tiles = np.zeros(1, _RECTANGLES), 0
        for number, move in enumerate(group):
            row = _described(move, lists[4 * number : 4 * number + 4])
            width = _TILE if row["turned"] else _TILE * (16 // max(move.target.dtype.itemsize, move.source.dtype.itemsize))
            tiles += -(-row["rows"] // _TILE) * -(-row["cols"] // width)
            rectangles["of"][0, number] = (*row.values(), tiles)
        rectangles["count"] = len(group)
        how = np.bool_(conjugate), np.bool_(beta is not None), _scalar(kernel)(beta or 0)
        launch("pack.cu", kernel, blocks(tiles), _BLOCK, rectangles, *how)
        del memory  # freed for later work on this stream only


def _size(move: Move) -> tuple[int, int]:
    m, n = (length if at is None else len(at) for length, at in zip(move.target.shape, move.to, strict=True))
    return m, n


def _uploaded(group: Sequence[Move]) -> tuple[Any, list[int]]:
    """Bring all moves' lists of positions to the device at once: the memory, and by list its address, 0 for None."""
    given = [None if at is None else np.asarray(at, np.int64) for move in group for at in (*move.at, *move.to)]
    lists = [at for at in given if at is not None]
    if not lists:
        return None, [0] * len(given)
    memory = cupy.asarray(np.concatenate(lists))
    begins = iter((memory.data.ptr + 8 * np.cumsum([0, *map(len, lists)])).tolist())
    return memory, [0 if at is None else next(begins) for at in given]


def _described(move: Move, lists: Sequence[int]) -> dict[str, int]:
    """A move as the kernel takes it, transposed if need be, so that neighbours in a row of the target are neighbours in memory."""
    (m, n), (target, source) = _size(move), (move.target, move.source)
    to = [stride // target.dtype.itemsize for stride in target.strides]
    at = [stride // source.dtype.itemsize for stride in source.strides]
    if _neighbours(m, to[0]) < _neighbours(n, to[1]):
        m, n, to, at = n, m, to[::-1], at[::-1]
        lists = [lists[1], lists[0], lists[3], lists[2]]
    turned = _neighbours(m, at[0]) < _neighbours(n, at[1])
    values = (_address(source), _address(target), m, n, *at, *to, *lists, int(turned))
    return dict(zip(_FIELDS[:-1], values, strict=True))


def _neighbours(length: int, stride: int) -> tuple[bool, int]:
    """A key by which dimensions are compared: how far apart in memory the elements of one are; of length 1: the farthest."""
    return length == 1, abs(stride)


def _address(x: Any) -> int:
    return x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr


def _scalar(kernel: str) -> Any:
    """The type of a kernel's beta."""
    return {"pack_1": np.uint8, "pack_2": np.uint16}.get(kernel) or np.dtype(kernel.rpartition("_")[2]).type
