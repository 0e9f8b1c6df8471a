"""Parts that schedules share: operands in another layout, sums of products in C, and operands that move in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

from pdla.comm.collectives.shared_gather import GatherBuffer
from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffer, current, take, timed
from pdla.cuts import block_bounds
from pdla.grid import ProcessGrid
from pdla.indices import IndexSet, Selection, find_overlaps, slice_selection
from pdla.layout import Layout, Overlay, Shape, extra_axes, find_blocks, shares
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import Route, local_shape, start
from pdla.model.machine import operations

ALL = slice(None)


class PlanCache(dict[Any, Any]):
    """Results that a plan computes at its first run and keeps: index sets, panels and routes, which depend on layouts alone."""

    def find_or_make(self, key: Any, make: Callable[[], Any]) -> Any:
        """Find the value under a key, or make and keep it."""
        if key not in self:
            self[key] = make()
        return self[key]


# ---------------------------------------------------------------------------------------------- ways between layouts


def find_gather_axes(X: DistMatrix, layout: Layout) -> tuple[str, ...]:
    """Find the axes along which an all-gather gives X this layout; none if X has the layout, or no all-gather gives it."""
    return extra_axes(X.layout, layout, X.grid.sizes) or ()


def stored_shape(X: DistMatrix, rows: IndexSet, cols: IndexSet) -> Shape:
    """Find the shape in which a part of X with these rows and columns is stored and sent: transposed if X is a transpose."""
    return (len(cols), len(rows)) if X.transposed else (len(rows), len(cols))


def assemble(X: DistMatrix, layout: Layout, memo: PlanCache) -> DistMatrix:
    """Collective: give X another layout on its grid, by X itself, a part of each block, an all-gather, or a redistribution."""
    return memo.find_or_make((X.shape, X.layout, layout), lambda: make_assembler(X, layout, memo))(X)


def make_assembler(X: DistMatrix, layout: Layout, memo: PlanCache) -> Callable[[DistMatrix], DistMatrix]:
    """Make the function that assembles X and other matrices of its shape, grid and layout in another layout."""
    sizes = X.grid.sizes
    if X.layout.same_cuts(layout, X.shape, sizes):
        return lambda X: X
    if extra_axes(layout, X.layout, sizes) is not None:
        return lambda X: _take_part(X, layout)
    axes = extra_axes(X.layout, layout, sizes)
    return (lambda X: _redistribute(X, layout, memo)) if axes is None else (lambda X: _gather(X, layout, axes))


def _redistribute(X: DistMatrix, layout: Layout, memo: PlanCache) -> DistMatrix:
    out = buffer(X.xp, local_shape(X.shape, layout, X.grid), X.dtype)
    start(X, find_route(X, layout, X.grid, memo), X.grid.comm, out)()
    return DistMatrix(out, X.shape, X.grid, layout)


def find_route(X: DistMatrix, layout: Layout, grid: ProcessGrid, memo: PlanCache) -> Route:
    """Find this rank's part in redistributing X to a layout on a grid; computed once."""
    between = (X.layout, X.grid), (layout, grid)
    return memo.find_or_make((X.shape, *between), lambda: Route.between(X.shape, *between))


def _take_part(X: DistMatrix, layout: Layout) -> DistMatrix:
    target = layout.indices(X.shape, X.grid.sizes, X.grid.coords)
    rows, cols = (own.overlay(part)[0] for own, part in zip(X.indices, target, strict=True))
    return DistMatrix(take(X.xp, X.stored, rows, cols), X.shape, X.grid, layout)


def _gather(X: DistMatrix, layout: Layout, axes: tuple[str, ...]) -> DistMatrix:
    return start_gather(X, layout, axes)()


def start_gather(X: DistMatrix, layout: Layout, axes: tuple[str, ...]) -> Callable[[], DistMatrix]:
    """Collective: start gathering X along the axes, which gives it this layout. Return a function that waits for the matrix."""
    whole, arrivals = gather_in_parts(X, layout, axes)

    def finish() -> DistMatrix:
        for _ in arrivals:
            pass
        return whole

    return finish


def gather_in_parts(
    X: DistMatrix, layout: Layout, axes: tuple[str, ...], gather_buffer: GatherBuffer | None = None
) -> tuple[DistMatrix, Iterator[int]]:
    """Collective: start gathering X; return the matrix, still to be filled, and the ranks whose blocks arrive.

    The iterator yields each rank along the axes that has elements, once its block is in the matrix.

    gather_buffer  memory that ranks of the communicator along the axes share: it holds the whole matrix if no block has gaps in it,
    else each block
    """
    comm = X.grid[axes]
    if comm is None or X.grid.coords is None:
        return DistMatrix(X.base, X.shape, X.grid, layout, X.transposed), iter(())
    allocate = buffer if gather_buffer is None else gather_buffer.take
    assembly = _plan_assembly(X.shape, X.layout, layout, axes, tuple(X.grid.sizes.items()), tuple(X.grid.coords.items()))
    gapless = all(part.gapless for part in assembly.parts.values())
    whole = (allocate if gapless else buffer)(X.xp, assembly.shape, X.dtype)
    if not gapless and comm.goes_stepwise(whole.nbytes):  # pieces that come in steps are copied to their places anyway
        in_place = {r for r, part in assembly.parts.items() if part.sliced}
    else:
        in_place = {r for r, part in assembly.parts.items() if part.gapless and (gapless or gather_buffer is None)}
    outs = {}
    for r, part in assembly.parts.items():
        outs[r] = X.xp.take(whole, *part.place) if r in in_place else allocate(X.xp, part.shape, X.dtype)
    arrivals = comm.allgather(X.stored, outs, gather_buffer=gather_buffer)

    def receive() -> Iterator[int]:
        if comm.rank in outs:
            if comm.rank not in in_place:
                X.xp.put(whole, *assembly.parts[comm.rank].place, X.stored)
            yield comm.rank
        for r in arrivals:
            if r not in in_place:
                X.xp.put(whole, *assembly.parts[r].place, outs[r])
            yield r

    return DistMatrix(whole, X.shape, X.grid, layout), receive()


class Part(NamedTuple):
    """A part of a block: its place in the block, its shape, and whether the place is a slice, and contiguous memory."""

    place: tuple[Selection, Selection]
    shape: Shape
    sliced: bool
    gapless: bool


class Assembly(NamedTuple):
    """How a rank's block is assembled from the blocks of several ranks.

    An assembly has the block's shape and its parts, by number of the rank. Ranks without a part are
    left out.
    """

    shape: Shape
    parts: dict[int, Part]


@lru_cache(maxsize=128)
def _plan_assembly(
    shape: Shape, parts: Layout, whole: Layout, axes: tuple[str, ...], axis_sizes: tuple[Any, ...], axis_coords: tuple[Any, ...]
) -> Assembly:
    sizes, coords = dict(axis_sizes), dict(axis_coords)
    rows, cols = whole.indices(shape, sizes, coords)
    block = len(rows), len(cols)

    def part(up: Overlay, along: Overlay) -> Part:
        place = up.here, along.here
        sliced = all(isinstance(selection, slice) for selection in place)
        return Part(place, (up.size, along.size), sliced, _is_gapless(block, *place))

    return Assembly(block, {r: part(*overlaps) for r, overlaps in find_blocks(shape, parts, whole, axes, sizes, coords).items()})


def _is_gapless(whole: Shape, rows: Selection, cols: Selection) -> bool:
    """Whether a part of a C-ordered block is contiguous memory, so that it can be received in place, without a buffer."""
    if not (isinstance(rows, slice) and isinstance(cols, slice)):
        return False
    return rows.step in (None, 1) and len(range(whole[1])[cols]) == whole[1]


def list_blocks(X: DistMatrix, layout: Layout, axes: tuple[str, ...]) -> dict[int, tuple[IndexSet, IndexSet]]:
    """List the rows and columns of the blocks that are gathered along the axes to give X this layout.

    The keys are ranks along the axes; ranks with empty blocks are left out.
    """
    assert X.grid.coords is not None
    overlaps = find_blocks(X.shape, X.layout, layout, axes, X.grid.sizes, X.grid.coords)
    return {r: (rows.share, cols.share) for r, (rows, cols) in overlaps.items()}


# ---------------------------------------------------------------------------------------------- where local products are added up


class Sink:
    """A local block of C to which local products are added.

    Each part of the block is multiplied by beta when its first product comes.

    alike  whether other ranks have copies of the block, which gemm must compute with equal bits
    """

    xp: Any
    block: Any
    alpha: complex
    beta: complex
    alike: bool

    def __init__(self, xp: Any, block: Any, alpha: complex, beta: complex, alike: bool = False) -> None:
        self.xp, self.block, self.alpha, self.beta, self.alike = xp, block, alpha, beta, alike
        self.begun: set[Any] = set()

    def add(self, a: Any, b: Any, rows: Selection = ALL, cols: Selection = ALL, part: Any = None) -> None:
        """Compute block[rows, cols] += alpha a b.

        Products with the same `part` have the same rows and columns; no two parts overlap.
        """
        beta = 1 if part in self.begun else self.beta
        self.begun.add(part)
        if rows is ALL and cols is ALL:
            multiply(self.xp, a, b, self.block, self.alpha, beta, self.alike)
            return
        in_place = isinstance(rows, slice) and isinstance(cols, slice)
        target = take(self.xp, self.block, rows, cols)
        multiply(self.xp, a, b, target, self.alpha, beta, self.alike)
        if not in_place:
            self.xp.put(self.block, rows, cols, target)

    def end(self) -> None:
        """Multiply the block by beta if no product has come, as this rank's part of k is empty."""
        if not self.begun:
            self.xp.scale(self.block, self.beta)


def multiply(xp: Any, a: Any, b: Any, c: Any, alpha: complex, beta: complex, alike: bool = False) -> None:
    """Compute `c = alpha a b + beta c`, recorded in the ledger; its buffers are workspace. alike: see `Sink`."""
    allocate = partial(buffer, xp)
    if current() is None:
        xp.gemm(a, b, c, alpha, beta, allocate, alike)
        return
    with timed("gemm", flops=operations(a.shape[0], b.shape[1], a.shape[1], c.dtype)):
        xp.gemm(a, b, c, alpha, beta, allocate, alike)


# ---------------------------------------------------------------------------------------------- operands that move


@dataclass
class Stream:
    """A matrix that is cut along the walked dimension over the ranks of `comm`: parts[r] are the indices of rank r's block.

    Without a comm the stream has one part, and does not move.

    Panels are sent in the order in which the matrix is stored. `orient` transposes a panel of a
    transpose, for the product.
    """

    X: DistMatrix
    dimension: int
    axes: tuple[str, ...]
    comm: Communicator | None
    parts: list[IndexSet]

    @staticmethod
    def along(X: DistMatrix, dimension: int, axes: tuple[str, ...], parts: list[IndexSet]) -> Stream:
        """Make the stream of X whose dimension `dimension` (0: rows, 1: columns) is cut along the axes into these parts."""
        return Stream(X, dimension, axes, X.grid[axes] if axes else None, parts)

    @staticmethod
    def list_parts(X: DistMatrix, dimension: int, axes: tuple[str, ...]) -> list[IndexSet]:
        """List the indices along the dimension of each rank that differs from this one only along the axes."""
        grid, cuts = X.grid, (X.layout.rows, X.layout.cols)[dimension]
        assert grid.coords is not None
        return shares(X.shape[dimension], cuts, grid.sizes, axes, grid.coords)

    @property
    def own_part(self) -> int:
        """The number of this rank's own part."""
        return self.comm.rank if self.comm else 0

    @property
    def moves(self) -> bool:
        return self.comm is not None

    def shape(self, width: int) -> tuple[int, int]:
        """Find the shape, as stored, of a panel of `width` indices of the walked dimension."""
        across = self.X.stored.shape[1 - self.dimension]
        shape = (width, across) if self.dimension == 0 else (across, width)
        return shape[::-1] if self.X.transposed else shape

    def orient(self, stored: Any) -> Any:
        """Turn a panel as stored into one for the product, or back."""
        return stored.T if self.X.transposed else stored

    def cut(self, selection: Selection) -> Any:
        """Take positions of this rank's own block, as stored."""
        return self.orient(take(self.X.xp, self.X.stored, *self.place(selection)))

    def take_part(self, stored: Any, selection: Selection) -> Any:
        """Take positions of a received part, for the product."""
        return take(self.X.xp, self.orient(stored), *self.place(selection))

    def place(self, selection: Selection) -> tuple[Selection, Selection]:
        """Find the rows and columns at these positions of the walked dimension."""
        return (selection, ALL) if self.dimension == 0 else (ALL, selection)

    def allocate_panel(self, width: int) -> Any:
        """Allocate a flat buffer for a panel of up to `width` indices."""
        return buffer(self.X.xp, (prod(self.shape(width)),), self.X.dtype)

    def view_panel(self, memory: Any, width: int) -> Any:
        """View a panel of `width` indices, as stored, at the start of a buffer."""
        shape = self.shape(width)
        return memory[: prod(shape)].reshape(*shape)


@dataclass(frozen=True)
class Meeting:
    """The indices of the walked dimension that part x of one stream and part y of another have in common.

    in_x, in_y  the positions of these indices in each part
    width       the number of these indices
    """

    x: int
    y: int
    in_x: Selection
    in_y: Selection
    width: int

    def chop(self, width: int) -> list[Meeting]:
        """Cut the meeting into as few pieces of at most `width` indices as possible, all equally wide."""
        pieces = -(-self.width // width)
        cuts = [block_bounds(self.width, pieces, i) for i in range(pieces)]
        places = [(slice_selection(self.in_x, *cut), slice_selection(self.in_y, *cut)) for cut in cuts]
        return [Meeting(self.x, self.y, *place, stop - start) for place, (start, stop) in zip(places, cuts, strict=True)]


def list_meetings(xs: list[IndexSet], ys: list[IndexSet]) -> list[Meeting]:
    """List every pair of parts of two streams that has indices in common, in order of the first stream's parts."""
    return [Meeting(x, y, *xs[x].overlay(ys[y])) for x, y in find_overlaps(xs, ys)]
