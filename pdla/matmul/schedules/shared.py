"""Shared: ranks of one node write their blocks of A and B into memory that all of them read, and multiply there.

No element of A or B is sent. A rank copies its own block once; by messages each other rank would
copy it. A *face* is the part of a matrix that one rank multiplies. A and B may have any layouts on
any grids: their blocks are written to the faces that need them. The elements that a rank reads of
others' blocks count as received, as by messages. The workspace is the ranks' own blocks, on every
grid. A matrix in memory that all ranks see (DistMatrix.shared) is not copied. Its product starts
when all ranks have come to it, and ends when all have read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from pdla.comm.communicator import Communicator
from pdla.comm.ledger import held, note_read, take
from pdla.comm.shared_buffer import SharedBuffer
from pdla.comm.workspace import align
from pdla.cuts import Cut
from pdla.grid import ProcessGrid
from pdla.indices import Selection
from pdla.layout import Layout, Shape, axes_of, extra_axes, overlays_of_blocks, shares
from pdla.matmul.roles import Roles
from pdla.matmul.schedules.base import Planned, Schedule, Traffic
from pdla.matmul.schedules.streams import PlanCache, make_assembler, multiply, stored_shape
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import plan_receives

Place = tuple[Selection, Selection]
Views = tuple[Any, Any, list[Callable[[], None]]]  # the two factors, and functions that write this rank's pieces
MOST = 48 * 2**20  # the most bytes of A and B that a rank writes to shared memory; above, panels need less memory
KEPT = 2  # places of a shared buffer for which views are kept: small turns alternate between two


@dataclass(frozen=True)
class Piece:
    """A part of this rank's block, `source` (None: all of it), and its destination.

    The destination is the place `target` in a face of this shape, as stored, from byte `begin` of
    the shared buffer on.
    """

    begin: int
    shape: Shape
    target: Place
    source: Place | None


@dataclass(frozen=True)
class Read:
    """The reads of a rank from others' blocks: bytes, number of ranks, and the axes along which they differ from it."""

    size: int
    peers: int
    axes: str


@dataclass(frozen=True)
class Written:
    """An operand whose faces are written to the shared buffer.

    begin, shape  the first byte and the shape, as stored, of the face that this rank reads
    pieces        the pieces that this rank writes
    """

    begin: int
    shape: Shape
    pieces: tuple[Piece, ...]
    read: Read


@dataclass(frozen=True)
class Seen:
    """An operand that all ranks see in place: the rows and columns of this rank's face."""

    place: Place
    read: Read


Faces = Written | Seen


@dataclass(frozen=True)
class Script:
    """The faces of A and B, the bytes that they take on the shared buffer, and how they are read.

    Faces are None if each rank's face is its block, or a part of it. The functions `sources` give,
    for each operand, the matrix whose blocks are read: the operand itself, or parts of it.
    """

    A: Faces | None
    B: Faces | None
    size: int
    sources: tuple[Callable[[DistMatrix], DistMatrix], ...]

    @staticmethod
    def of(a: DistMatrix, b: DistMatrix, roles: Roles, grid: ProcessGrid, memo: PlanCache) -> Script:
        faces_a, size_a = _plan_faces(a, roles.A, grid, 0)
        faces_b, size_b = _plan_faces(b, roles.B, grid, size_a)
        own = _choose_source(faces_a, a, roles.A, memo), _choose_source(faces_b, b, roles.B, memo)
        return Script(faces_a, faces_b, size_b, own)

    @staticmethod
    def find_or_make(a: DistMatrix, b: DistMatrix, roles: Roles, grid: ProcessGrid, memo: PlanCache) -> Script:
        """Find the script that the plan keeps, or make it."""
        common = a.common is not None, b.common is not None
        return memo.find_or_make(("faces", *common), lambda: Script.of(a, b, roles, grid, memo))

    @cached_property
    def seen(self) -> bool:
        """Whether ranks read another rank's matrix in place: it must not change before all have read."""
        return any(isinstance(faces, Seen) for faces in (self.A, self.B))

    @cached_property
    def is_reusable(self) -> bool:
        """Whether the blocks of A and B themselves are read: later calls can read them again. Copies of parts serve one call."""
        return all(own is _keep for own in self.sources)


def _choose_source(faces: Faces | None, X: DistMatrix, layout: Layout, memo: PlanCache) -> Callable[[DistMatrix], DistMatrix]:
    whole = faces is not None or X.layout.same_cuts(layout, X.shape, X.grid.sizes)
    return _keep if whole else make_assembler(X, layout, memo)


def _keep(X: DistMatrix) -> DistMatrix:
    return X


def _plan_faces(X: DistMatrix, layout: Layout, grid: ProcessGrid, offset: int) -> tuple[Faces | None, int]:
    """Plan the faces of X in the layout in which it is multiplied; return them and the byte at which they end.

    Faces follow each other from byte `offset` of the shared buffer on, each with room for the
    largest.
    """
    if _is_local(X, layout, grid):
        return None, offset
    read = _count_read(X, layout, grid)
    rows, cols = layout.indices(X.shape, grid.sizes, grid.coords)
    if X.common is not None and layout.contiguous:
        return Seen((rows.selection, cols.selection), read), offset
    longest = [_find_longest(n, nest, grid) for n, nest in zip(X.shape, (layout.rows, layout.cols), strict=True)]
    size = align(prod(longest) * X.dtype.itemsize)

    def locate(where: Mapping[str, int]) -> int:
        number = 0
        for axis in layout.axes:
            number = number * grid.sizes[axis] + where[axis]
        return offset + number * size

    pieces = tuple(_list_pieces(X, layout, grid, locate))
    end = offset + size * prod(grid.sizes[axis] for axis in layout.axes)
    return Written(locate(grid.coords) if grid.coords else end, stored_shape(X, rows, cols), pieces, read), end


def _count_read(X: DistMatrix, layout: Layout, grid: ProcessGrid) -> Read:
    """Count the elements of its face that this rank reads from other ranks' blocks."""
    others = [p for p in plan_receives(X.shape, (X.layout, X.grid), (layout, grid)) if p.peer != grid.comm.rank]
    gathered = extra_axes(X.layout, layout, grid.sizes) if X.grid == grid else None
    axes = ",".join(gathered) if gathered else grid.comm.axis
    return Read(sum(prod(p.shape) for p in others) * X.dtype.itemsize, len(others), axes)


def _is_local(X: DistMatrix, layout: Layout, grid: ProcessGrid) -> bool:
    """Whether each rank's face of X is its own block, or a part of it."""
    if X.grid != grid:
        return False
    return X.layout.same_cuts(layout, X.shape, grid.sizes) or extra_axes(layout, X.layout, grid.sizes) is not None


def _find_longest(n: int, nest: tuple[Cut, ...], grid: ProcessGrid) -> int:
    return max(len(part) for part in shares(n, nest, grid.sizes, axes_of(nest), {}))


def _list_pieces(X: DistMatrix, layout: Layout, grid: ProcessGrid, locate: Callable[[Mapping[str, int]], int]) -> Iterator[Piece]:
    """List the pieces that this rank writes; of ranks with the same block only the first writes.

    locate: finds the first byte, in the shared buffer, of the face of the rank at given coordinates.
    """
    if not X.first:
        return
    rows, cols = X.indices
    for up, along in overlays_of_blocks(X.shape, layout, grid.sizes, X.indices):
        source = None if _selects_all(up.here, len(rows)) and _selects_all(along.here, len(cols)) else (up.here, along.here)
        face = stored_shape(X, up.share, along.share)
        yield Piece(locate(up.where | along.where), face, (up.there, along.there), source)


def _selects_all(selection: Selection, n: int) -> bool:
    """Whether all of n positions are selected."""
    return isinstance(selection, slice) and selection == slice(0, n)


@dataclass(frozen=True)
class LocalBlock:
    """A matrix's local block; the whole matrix, if all ranks see it (else None); and whether both are stored transposed.

    A turn keeps the block and not the matrix: so the matrix can be garbage-collected first.
    """

    xp: Any
    block: Any
    whole: Any
    transposed: bool

    @staticmethod
    def of(X: DistMatrix) -> LocalBlock:
        whole = X.common.T if X.transposed and X.common is not None else X.common
        return LocalBlock(X.xp, X.stored, whole, X.transposed)

    def face(self, faces: Faces | None, memory: Any, writes: list[Callable[[], None]]) -> Any:
        """Find the face that this rank multiplies.

        Functions that write this rank's pieces of all faces are appended to `writes`.
        """
        if faces is None:
            return self.block
        if isinstance(faces, Seen):
            return self.whole[faces.place]
        own = self._view(memory, faces.begin, faces.shape)
        for piece in faces.pieces:
            face = own if piece.begin == faces.begin else self._view(memory, piece.begin, piece.shape)
            writes.append(self._make_write(face, piece))
        return own

    def _make_write(self, face: Any, piece: Piece) -> Callable[[], None]:
        """Make the function that writes a piece, in each run again."""
        if all(isinstance(selection, slice) for selection in piece.source or ()):
            return self.xp.bind_put(face, *piece.target, self._cut(piece))
        return lambda: self.xp.put(face, *piece.target, self._cut(piece))

    def _cut(self, piece: Piece) -> Any:
        return self.block if piece.source is None else take(self.xp, self.block, *piece.source)

    def _view(self, memory: Any, begin: int, shape: Shape) -> Any:
        face = self.xp.view_at(memory, begin, shape, self.block.dtype)
        return face.T if self.transposed else face


class Turn:
    """The product of two given matrices at the shared buffer.

    A turn that runs again uses the same views of its memory. Only a reusable script allows that.
    """

    left: LocalBlock
    right: LocalBlock

    def __init__(self, a: DistMatrix, b: DistMatrix, roles: Roles, grid: ProcessGrid, memo: PlanCache) -> None:
        self.script: Script = Script.find_or_make(a, b, roles, grid, memo)
        self.shared_buffer: SharedBuffer = memo.find_or_make("shared buffer", grid.comm.shared_buffer)
        self.share: int = self.script.size // grid.comm.size
        factor_a, factor_b = self.script.sources[0](a), self.script.sources[1](b)
        self.left, self.right = LocalBlock.of(factor_a), LocalBlock.of(factor_b)
        self.views: dict[Any, Views] = {}

    def run(self, c: Any, alpha: complex, beta: complex) -> None:
        """Collective: compute c = alpha a b + beta c; a and b in any layouts, on any grids over the grid's communicator.

        c  this rank's block of C, in the roles' layout on the grid; None if the rank has no part in the product
        """
        script, shared_buffer = self.script, self.shared_buffer
        with held(self.share):
            memory = shared_buffer.open(script.size)
            left, right, writes = self.views.get(shared_buffer.place) or self._make_views(memory)
            for write in writes:
                write()
            try:
                shared_buffer.seal()
                for faces in (script.A, script.B):
                    if faces is not None and faces.read.peers:
                        note_read(faces.read.axes, faces.read.size, faces.read.peers)
                if c is not None:
                    multiply(self.left.xp, left, right, c, alpha, beta)
            finally:  # a rank that continues after a failure must not be a turn behind the others
                if script.seen:
                    shared_buffer.finish()
                else:
                    shared_buffer.leave()

    def _make_views(self, memory: Any) -> Views:
        writes: list[Callable[[], None]] = []
        left = self.left.face(self.script.A, memory, writes)
        right = self.right.face(self.script.B, memory, writes)
        if self.shared_buffer.place is not None:
            if len(self.views) == KEPT:
                self.views.clear()
            self.views[self.shared_buffer.place] = left, right, writes
        return left, right, writes


class Shared(Schedule):
    """The schedule "shared" of the registry."""

    name = "shared"
    takes_any_layout = reads_in_place = True
    in_panels = "summa"

    def suits(self, traffic: Traffic) -> bool:
        return traffic.shares and traffic.own <= MOST and traffic.comes

    def find_obstacle(self, comm: Communicator) -> str:
        if comm.shared_buffer() is not None:
            return ""
        why = "the ranks run on several nodes" if comm.nodes > 1 else "the blocks are in the memory of GPUs"
        return f"{why}, which share no memory: give schedule='gather', or none"

    def run(self, plan: Planned, a: DistMatrix, b: DistMatrix, c: DistMatrix, alpha: complex, beta: complex) -> None:
        block = c.stored if plan.grid.active else None
        Turn(a, b, plan.roles, plan.grid, plan.memo).run(block, alpha, beta)

    def trim(self, comm: Communicator, most: int) -> None:
        if (shared_buffer := comm.shared_buffer()) is not None:
            shared_buffer.trim(most)

    def gathers_in_common(self, nodes: int, ranks: int) -> bool:
        return True
