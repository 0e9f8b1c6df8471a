"""Copies of rectangles by the kernels of cuda/pack.cu.

Strides are any, and so are dtypes within a family. Copies take listed rows and columns or all, may
conjugate, and may add to the target. One launch makes as many copies as fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import cupy
import numpy as np

from pdla.array.cupy.launch import blocks, launch
from pdla.errors import ShapeError

_TILE, _BLOCK = 32, (32, 8)  # as in pack.cu
_VECTOR = 16  # bytes that a thread reads or writes at once
_MOST = 32  # the most rectangles in a launch of pack.cu
WORDS = {1: "pack_1", 2: "pack_2", 4: "pack_float32_float32", 8: "pack_float64_float64", 16: "pack_complex128_complex128"}
_CASTS = ("float32", "float64"), ("complex64", "complex128")  # each to each, within a family
_FIELDS = 13  # numbers that describe a rectangle to pack.cu; the last: the tiles of all so far
_LENGTH = _FIELDS * _MOST + 1
_RECTANGLES = np.dtype([("all", np.int64, _LENGTH)])  # one argument of a kernel
Rectangle = tuple[int, ...]  # those numbers without the last


class Move(NamedTuple):
    """The copy of a rectangle: target[to] = source[at], each (rows, cols), None for all. Arrays may be in pinned host memory."""

    target: Any
    source: Any
    to: tuple[Any, Any] = (None, None)
    at: tuple[Any, Any] = (None, None)


def rectangle(target: Any, source: Any) -> Move | None:
    """Describe the copy of one array to another as the copy of a matrix; None if it cannot be one."""
    if target.shape != source.shape:
        return None
    if target.ndim == 2:
        return Move(target, source)
    if target.flags.c_contiguous and source.flags.c_contiguous:
        return Move(target.reshape(1, -1), source.reshape(1, -1))
    return Move(target[None], source[None]) if target.ndim == 1 else None


def kernel_for(to: np.dtype, source: np.dtype, computing: bool) -> str:
    """Find the kernel that copies from one dtype to another; "" if there is none. computing: it must conjugate or add."""
    if to == source and not computing:
        return WORDS.get(to.itemsize, "")
    return f"pack_{to}_{source}" if any(str(to) in family and str(source) in family for family in _CASTS) else ""


def pack(kernel: str, moves: Sequence[Move], conjugate: bool = False, beta: complex | None = None) -> None:
    """Copy rectangles between arrays of the kernel's dtypes; with beta, add each to beta times its target."""
    memory, lists = _upload(moves)
    straight: list[Rectangle] = []
    turned: list[Rectangle] = []
    for number, move in enumerate(moves):
        m, n = _size(move)
        if m and n:
            rectangle, is_turned = _describe(move, m, n, lists[4 * number : 4 * number + 4])
            if is_turned:
                turned.append(rectangle)
            else:
                straight += _fold(move, rectangle)
    how = np.bool_(conjugate), np.bool_(beta is not None), _scalar(kernel)(beta or 0)
    for name, rectangles, height, width in (
        (kernel, straight, _TILE, _width(moves)), (f"{kernel}_turned", turned, _side(moves), _side(moves))
    ):
        for at in range(0, len(rectangles), _MOST):
            tiles, told = 0, []
            for values in rectangles[at : at + _MOST]:
                tiles += -(-values[2] // height) * -(-values[3] // width)
                told += [*values, tiles]
            argument = np.zeros(_LENGTH, np.int64)
            argument[: len(told)], argument[-1] = told, len(told) // _FIELDS
            launch("pack.cu", name, blocks(tiles), _BLOCK, argument.view(_RECTANGLES), *how)
    del memory  # freed for later work on this stream only


def _size(move: Move) -> tuple[int, int]:
    m, n = (length if at is None else len(at) for length, at in zip(move.target.shape, move.to, strict=True))
    return m, n


def _upload(moves: Sequence[Move]) -> tuple[Any, list[int]]:
    """Copy the moves' lists of positions to the device together, lists that several moves share once.

    Return the memory, and the address of each list, 0 for None.
    """
    given = [at for move in moves for at in (*move.at, *move.to)]
    lists = {id(at): at for at in given if at is not None}
    if not lists:
        return None, [0] * len(given)
    memory = cupy.asarray(np.concatenate([*lists.values()], dtype=np.int64))
    begins = memory.data.ptr + 8 * np.cumsum([0, *map(len, lists.values())])
    at_address = dict(zip(lists, begins.tolist(), strict=False))
    return memory, [at_address.get(id(at), 0) for at in given]


def _describe(move: Move, m: int, n: int, lists: Sequence[int]) -> tuple[Rectangle, bool]:
    """Describe a move of m rows of n, and whether the source is stored by columns.

    The rectangle is transposed if necessary, so that the target is stored by rows.
    """
    target, source = move.target, move.source
    to = [stride // target.itemsize for stride in target.strides]
    at = [stride // source.itemsize for stride in source.strides]
    if _neighbours(m, to[0]) < _neighbours(n, to[1]):
        m, n, to, at = n, m, to[::-1], at[::-1]
        lists = [lists[1], lists[0], lists[3], lists[2]]
    return (_address(source), _address(target), m, n, *at, *to, *lists), _neighbours(m, at[0]) < _neighbours(n, at[1])


def _fold(move: Move, rectangle: Rectangle) -> list[Rectangle]:
    """The rectangle; or, if both sides have no gaps, two: rows as long as a tile is wide, and the rest."""
    source, target, m, n, from_row, from_col, to_row, to_col, *lists = rectangle
    width = _width([move])
    if n == width or not from_col == to_col == 1 or any(lists) or not (m == 1 or from_row == to_row == n):
        return [rectangle]
    rows, left = divmod(m * n, width)
    end = source + rows * width * move.source.itemsize, target + rows * width * move.target.itemsize
    whole = source, target, rows, width, width, 1, width, 1, *lists
    rest = *end, 1, left, left, 1, left, 1, *lists
    return [part for part in (whole, rest) if part[2] * part[3]]


def _width(moves: Sequence[Move]) -> int:
    """Columns of a tile, as in pack.cu. moves: all of the kernel's dtypes."""
    return _TILE * (_VECTOR // max(moves[0].target.itemsize, moves[0].source.itemsize)) if moves else 0


def _side(moves: Sequence[Move]) -> int:
    """Rows and columns of a tile that is turned, as in pack.cu."""
    return _TILE if moves and moves[0].source.itemsize > 8 else 2 * _TILE


def _neighbours(length: int, stride: int) -> tuple[bool, int]:
    """A key that compares dimensions by the distance of their elements in memory; length 1 counts as the farthest."""
    return length == 1, abs(stride)


def _address(x: Any) -> int:
    """The address of an array. ShapeError for a host array that is not pinned: a kernel that touches one is fatal to the device."""
    if not isinstance(x, np.ndarray):
        return x.data.ptr
    memory: Any = x
    while isinstance(memory, np.ndarray):
        memory = memory.base
    if not isinstance(memory, cupy.cuda.PinnedMemoryPointer):
        what = f"an array of the host (NumPy's, {x.dtype}{list(x.shape)})"
        raise ShapeError(f"{what} where one of the device is needed: give it to xp.asarray")
    return x.ctypes.data


def _scalar(kernel: str) -> Any:
    """The type of a kernel's beta."""
    return {"pack_1": np.uint8, "pack_2": np.uint16}.get(kernel) or np.dtype(kernel.rpartition("_")[2]).type
