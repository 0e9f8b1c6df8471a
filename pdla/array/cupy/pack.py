"""Copies of rectangles by the kernels of cuda/pack.cu.

Strides are any, and so are dtypes within a family. Copies take listed rows and columns or all, may
conjugate, and may add to the target. One launch makes as many copies as fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from struct import Struct
from typing import Any, NamedTuple
from weakref import ref

import cupy
import numpy as np

from pdla.array.cupy.launch import blocks, launch
from pdla.errors import ShapeError

_BLOCK = (32, 8)  # as in pack.cu
_VECTOR = 16  # bytes that a thread reads or writes at once
_MOST = 32  # the most rectangles in a launch of pack.cu
WORDS = {1: "pack_1", 2: "pack_2", 4: "pack_float32_float32", 8: "pack_float64_float64", 16: "pack_complex128_complex128"}
_CASTS = ("float32", "float64"), ("complex64", "complex128")  # each to each, within a family
_FIELDS = 14  # numbers that describe a rectangle to pack.cu; the last: the tiles of all so far
_RECTANGLES = np.dtype([("all", np.int64, 5 + _FIELDS * _MOST)])  # one argument of a kernel
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


@cache
def kernel_for(to: np.dtype, source: np.dtype, computing: bool) -> str:
    """Find the kernel that copies from one dtype to another; "" if there is none. computing: it must conjugate or add."""
    if to == source and not computing:
        return WORDS.get(to.itemsize, "")
    return f"pack_{to}_{source}" if any(str(to) in family and str(source) in family for family in _CASTS) else ""


def pack(kernel: str, moves: Sequence[Move], conjugate: bool = False, beta: complex | None = None) -> None:
    """Copy rectangles between arrays of the kernel's dtypes; with beta, add each to beta times its target."""
    if not moves:
        return
    lists = _bring_lists(moves)
    side = _find_side(moves[0].source.itemsize)
    straight: list[Rectangle] = []
    turned: list[Rectangle] = []
    for move in moves:
        _describe(move, lists, side, straight, turned)
    how = conjugate, beta is not None, *((beta.real, beta.imag) if beta else (0, 0))
    for name, rectangles in ((kernel, straight), (f"{kernel}_turned", turned)):
        for at in range(0, len(rectangles), _MOST):
            tiles, told = 0, []
            for values in rectangles[at : at + _MOST]:
                tiles += -(-values[2] // side) * -(-values[3] // side)
                told += [*values, tiles]
            argument: Any = np.empty(1, _RECTANGLES)
            count = len(told) // _FIELDS
            _layout(count).pack_into(argument, 0, count, *how, *told)
            launch("pack.cu", name, blocks(tiles), _BLOCK, argument)
    del lists  # what is not kept is freed for later work on this stream only


@cache
def _layout(count: int) -> Struct:
    """How so many rectangles, and what to do with them, lie in a kernel's argument."""
    return Struct(f"3q2d{_FIELDS * count}q")


class Positions:
    """A list of positions on the device.

    address  of the first
    memory   what holds them
    """

    def __init__(self, given: np.ndarray, address: int, memory: Any) -> None:
        self.given, self.address, self.memory = ref(given), address, memory

    @cached_property
    def run(self) -> int:
        """The largest divisor of a vector's bytes that divides where these positions break, and the positions there."""
        given = self.given()
        assert given is not None
        breaks = np.flatnonzero(np.diff(given, prepend=-2) != 1)
        return int(np.gcd.reduce(np.concatenate(([_VECTOR], breaks, given[breaks]))))


class _All:
    """No list: all positions."""

    address, run = 0, _VECTOR


Lists = dict[int, Positions | type[_All]]  # by their ids; None's, too
_kept: dict[tuple[int, int, int], tuple[Any, Positions]] = {}  # by a list's id, the device, and the stream of the memory


def _bring_lists(moves: Iterable[Move]) -> Lists:
    """Bring the moves' lists to the device, all that are not there yet together.

    Those that nothing can write to, such as a plan's, are kept there as long as they live. They serve one stream, since their
    memory is freed for later work on this stream only.
    """
    found: Lists = {id(None): _All}
    given = {id(at): at for move in moves for at in (*move.at, *move.to)}
    if len(given) == 1:
        return found
    here = cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr
    found |= {key: kept[1] for key in given if (kept := _kept.get((key, *here))) is not None}
    missing = {key: at for key, at in given.items() if key not in found}
    if missing:
        memory = cupy.asarray(np.concatenate([*missing.values()], dtype=np.int64))
        begins = memory.data.ptr + 8 * np.cumsum([0, *map(len, missing.values())])
        for (key, at), begin in zip(missing.items(), begins.tolist(), strict=False):
            found[key] = brought = Positions(at, begin, memory)
            if not at.flags.writeable and (at.base is None or not at.base.flags.writeable):
                _keep((key, *here), at, brought)
    return found


def _keep(key: tuple[int, int, int], at: np.ndarray, brought: Positions) -> None:
    _kept[key] = ref(at, lambda _: _kept.pop(key, None)), brought


def _describe(move: Move, lists: Lists, side: int, straight: list[Rectangle], turned: list[Rectangle]) -> None:
    """Add a move to those whose source is stored by rows, or to those where it is stored by columns.

    The rectangle is transposed if necessary, so that the target is stored by rows.
    """
    target, source, (to_rows, to_cols), (at_rows, at_cols) = move
    m, n = target.shape
    if to_rows is not None:
        m = len(to_rows)
    if to_cols is not None:
        n = len(to_cols)
    if not m or not n:
        return
    (to_row, to_col), size = target.strides, target.itemsize
    (from_row, from_col), width = source.strides, source.itemsize
    to_row, to_col, from_row, from_col = to_row // size, to_col // size, from_row // width, from_col // width
    begin, end = _address(source), _address(target)
    if _is_nearer(m, to_row, n, to_col):
        m, n, to_row, to_col, from_row, from_col = n, m, to_col, to_row, from_col, from_row
        to_rows, to_cols, at_rows, at_cols = to_cols, to_rows, at_cols, at_rows
    if len(lists) == 1 and to_col == from_col == 1 and n != side and (m == 1 or to_row == from_row == n):
        straight += _describe_gapless(begin, end, m * n, side, width, size)
        return
    is_turned = _is_nearer(m, from_row, n, from_col)
    a, b, c, d = lists[id(at_rows)], lists[id(at_cols)], lists[id(to_rows)], lists[id(to_cols)]
    run = min((a if is_turned else b).run, d.run)
    (turned if is_turned else straight).append(
        (begin, end, m, n, from_row, from_col, to_row, to_col, a.address, b.address, c.address, d.address, run)
    )


def _describe_gapless(source: int, target: int, count: int, side: int, width: int, size: int) -> list[Rectangle]:
    """The copy of so many elements without gaps: rows as long as a tile is wide, and the rest."""
    rows, rest = divmod(count, side)
    done = rows * side
    whole = source, target, rows, side, side, 1, side, 1, 0, 0, 0, 0, _VECTOR
    part = source + done * width, target + done * size, 1, rest, rest, 1, rest, 1, 0, 0, 0, 0, _VECTOR
    return [each for each in (whole, part) if each[2] * each[3]]


def _find_side(itemsize: int) -> int:
    """Rows and columns of a tile, as in pack.cu. itemsize: of the source."""
    return 32 if itemsize > 8 else 64 if itemsize > 2 else 128


def _is_nearer(m: int, row: int, n: int, col: int) -> bool:
    """Whether elements of a column are nearer to each other in memory than those of a row; one element alone is the farthest."""
    return abs(row) < abs(col) if (m == 1) == (n == 1) else n == 1


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

