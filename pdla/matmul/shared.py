"""Shared: ranks of one node write their blocks of A and B into memory that all of them read, and multiply there.

Nothing is sent: a rank copies its own block once, where by messages each of the others would. What it reads of the others'
is counted as received, and is what `gather` receives; the workspace is the ranks' own blocks, whatever the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from pdla.comm.ledger import held, note
from pdla.comm.workspace import aligned
from pdla.indices import Selection
from pdla.layout import Cut, Layout, axes_of, shares
from pdla.matmul.operands import Memo, Sink, as_stored, assembler, gathered_axes
from pdla.matmul.roles import Roles
from pdla.matrix import DistMatrix


@dataclass(frozen=True)
class Face:
    """An operand's face on the board: all faces of a size, this rank's shape as stored, and where its own block goes."""

    axes: tuple[str, ...]
    begin: int
    end: int
    shape: tuple[int, int]
    rows: Selection
    cols: Selection
    read: int
    peers: int


@dataclass(frozen=True)
class Script:
    """The faces of A and B (None: not gathered, but brought to its layout), and the bytes of the board."""

    A: Face | None
    B: Face | None
    size: int
    bring: tuple[Callable[[DistMatrix], DistMatrix], ...]

    @staticmethod
    def of(a: DistMatrix, b: DistMatrix, roles: Roles, memo: Memo) -> Script:
        face_a, size_a = _face(a, roles.A, 0)
        face_b, size_b = _face(b, roles.B, size_a)
        return Script(face_a, face_b, size_a + size_b, (assembler(a, roles.A, memo), assembler(b, roles.B, memo)))


def _face(X: DistMatrix, layout: Layout, offset: int) -> tuple[Face | None, int]:
    """This rank's face of X in the layout it is multiplied in, and the bytes of all such faces."""
    grid, axes = X.grid, gathered_axes(X, layout)
    if not axes:
        return None, 0
    others = [axis for axis in grid.axes if axis not in axes]
    longest = [_longest(n, nest, X) for n, nest in zip(X.shape, (layout.rows, layout.cols), strict=True)]
    one = aligned(prod(longest) * X.dtype.itemsize)
    size = one * prod(grid.sizes[axis] for axis in others)
    if grid.coords is None:
        return Face(axes, offset, offset, (0, 0), slice(0, 0), slice(0, 0), 0, 0), size
    number = 0
    for axis in others:
        number = number * grid.sizes[axis] + grid.coords[axis]
    rows, cols = layout.indices(X.shape, grid.sizes, grid.coords)
    mine = X.indices
    shape = as_stored(X, rows, cols)
    begin = offset + number * one
    end = begin + prod(shape) * X.dtype.itemsize
    read = (prod(shape) - prod(X.stored.shape)) * X.dtype.itemsize
    peers = prod(grid.sizes[axis] for axis in axes) - 1 if read else 0
    return Face(axes, begin, end, shape, rows.overlay(mine[0])[0], cols.overlay(mine[1])[0], read, peers), size


def _longest(n: int, nest: tuple[Cut, ...], X: DistMatrix) -> int:
    return max(len(part) for _, part in shares(n, nest, X.grid.sizes, axes_of(nest), {}))


def run(a: DistMatrix, b: DistMatrix, roles: Roles, sink: Sink | None, memo: Memo) -> None:
    """Collective: sink += a b in the roles' layouts."""
    script: Script = memo.once("faces", lambda: Script.of(a, b, roles, memo))
    a = a if script.A else script.bring[0](a)
    b = b if script.B else script.bring[1](b)
    board = memo.once("board", a.grid.comm.board)
    with held(script.size // a.grid.comm.size):
        memory = board.open(script.size)
        left = _written(a, script.A, memory)
        right = _written(b, script.B, memory)
        try:
            board.seal()
            for face in (script.A, script.B):
                if face is not None and face.peers:
                    note("read", ",".join(face.axes), face.read, face.peers)
            if sink is not None:
                sink.add(left, right)
                sink.end()
        finally:  # a rank that fails here and goes on must not be a turn behind the others
            board.leave()


def _written(X: DistMatrix, face: Face | None, memory: Any) -> Any:
    """X's face as seen, this rank's block of it put in its place."""
    if face is None:
        return X.stored
    whole = X.xp.look(memory, face.begin, face.shape, X.dtype)
    seen = whole.T if X.transposed else whole
    if X.base.size:
        X.xp.put(seen, face.rows, face.cols, X.stored)
    return seen
