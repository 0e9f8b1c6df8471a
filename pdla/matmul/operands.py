"""What the schedules share: bringing an operand to its layout, operands that move along one dimension, and the sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

from pdla.comm.base import Communicator
from pdla.comm.hall import Hall
from pdla.comm.ledger import buffer, take, timed
from pdla.grid import ProcessGrid
from pdla.indices import IndexSet, Selection, counted, overlapping, some_of
from pdla.layout import Layout, Shape, extra_axes, places_of, share, shares
from pdla.matrix import DistMatrix
from pdla.redistribute import Route, local_shape, start

ALL = slice(None)


class Memo(dict):
    """What a plan has worked out at its first run: index sets, panels, routes. They depend on layouts alone."""

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value of a key, made when it is asked for first."""
        if key not in self:
            self[key] = make()
        return self[key]


# ---------------------------------------------------------------------------------------------- ways between layouts


def gathered_axes(X: DistMatrix, layout: Layout) -> tuple[str, ...]:
    """The axes over which X is gathered into this layout; none where it need not or cannot be."""
    return extra_axes(X.layout, layout, X.grid.sizes) or ()


def as_stored(X: DistMatrix, rows: IndexSet, cols: IndexSet) -> Shape:
    """The shape in which such a part of X is stored and travels."""
    return (len(cols), len(rows)) if X.transposed else (len(rows), len(cols))


def assemble(X: DistMatrix, layout: Layout, memo: Memo) -> DistMatrix:
    """Collective: X in another layout on its grid: as it is, a view of a part, an all-gather, or a redistribution."""
    return memo.once((X.shape, X.layout, layout), lambda: assembler(X, layout, memo))(X)


def assembler(X: DistMatrix, layout: Layout, memo: Memo) -> Callable[[DistMatrix], DistMatrix]:
    """What does that for matrices that lie as X does."""
    sizes = X.grid.sizes
    if X.layout.same_cuts(layout, X.shape, sizes):
        return lambda X: X
    if extra_axes(layout, X.layout, sizes) is not None:
        return lambda X: _part(X, layout)
    axes = extra_axes(X.layout, layout, sizes)
    return (lambda X: _moved(X, layout, memo)) if axes is None else (lambda X: _gathered(X, layout, axes))


def _moved(X: DistMatrix, layout: Layout, memo: Memo) -> DistMatrix:
    out = buffer(X.xp, local_shape(X.shape, layout, X.grid), X.dtype)
    start(X, route(X, layout, X.grid, memo), X.grid.comm, out)()
    return DistMatrix(out, X.shape, X.grid, layout)


def route(X: DistMatrix, layout: Layout, grid: ProcessGrid, memo: Memo) -> Route:
    """The way of X to a layout on a grid, worked out once."""
    between = (X.layout, X.grid), (layout, grid)
    return memo.once((X.shape, *between), lambda: Route.between(X.shape, *between))


def _part(X: DistMatrix, layout: Layout) -> DistMatrix:
    if X.grid.coords is None:
        return DistMatrix(X.base, X.shape, X.grid, layout, X.transposed)
    new = layout.indices(X.shape, X.grid.sizes, X.grid.coords)
    rows, cols = (mine.overlay(part)[0] for mine, part in zip(X.indices, new, strict=True))
    return DistMatrix(take(X.xp, X.stored, rows, cols), X.shape, X.grid, layout)


def _gathered(X: DistMatrix, layout: Layout, axes: tuple[str, ...]) -> DistMatrix:
    return gathering(X, layout, axes)()


def gathering(X: DistMatrix, layout: Layout, axes: tuple[str, ...]) -> Callable[[], DistMatrix]:
    """Collective: start gathering X over the axes, which gives it this layout; gives what ends it."""
    whole, arrivals = arriving(X, layout, axes)

    def end() -> DistMatrix:
        for _ in arrivals:
            pass
        return whole

    return end


def arriving(
    X: DistMatrix, layout: Layout, axes: tuple[str, ...], hall: Hall | None = None
) -> tuple[DistMatrix, Iterator[int]]:
    """Collective: the same, as the matrix to be, and the ranks whose blocks are in it, as they come, those that have any.

    hall  of the communicator along the axes: what has no gaps lies there, all of the matrix or each block
    """
    comm = X.grid[axes]
    if comm is None or X.grid.coords is None:
        return DistMatrix(X.base, X.shape, X.grid, layout, X.transposed), iter(())
    room = buffer if hall is None else hall.take
    to = _assembly(X.shape, X.layout, layout, axes, tuple(X.grid.sizes.items()), tuple(X.grid.coords.items()))
    in_place = to.gapless if hall is None or all(to.gapless) else [False] * len(to.places)
    whole = (room if all(in_place) else buffer)(X.xp, to.shape, X.dtype)
    outs = [
        X.xp.take(whole, *place) if direct else room(X.xp, shape, X.dtype)
        for place, shape, direct in zip(to.places, to.shapes, in_place, strict=True)
    ]
    arrivals = comm.allgather(X.stored, outs, hall=hall)

    def coming() -> Iterator[int]:
        if not in_place[comm.rank]:
            X.xp.put(whole, *to.places[comm.rank], X.stored)
        if X.stored.size:
            yield comm.rank
        for r in arrivals:
            if not in_place[r]:
                X.xp.put(whole, *to.places[r], outs[r])
            yield r

    return DistMatrix(whole, X.shape, X.grid, layout), coming()


class Assembly(NamedTuple):
    """A rank's block of a matrix, put together of others': its shape, and of each part its place there, shape, and whether
    that has no gaps.
    """

    shape: Shape
    places: list[tuple[Selection, Selection]]
    shapes: list[Shape]
    gapless: list[bool]


@lru_cache(maxsize=128)
def _assembly(shape: Shape, parts: Layout, whole: Layout, axes: tuple[str, ...], sized: tuple, placed: tuple) -> Assembly:
    sizes, coords = dict(sized), dict(placed)
    places = places_of(shape, parts, whole, axes, sizes, coords)
    rows, cols = whole.indices(shape, sizes, coords)
    here, shapes = (len(rows), len(cols)), [(counted(their_rows), counted(their_cols)) for their_rows, their_cols in places]
    return Assembly(here, places, shapes, [_gapless(here, *place) for place in places])


def _gapless(whole: Shape, rows: Selection, cols: Selection) -> bool:
    """Whether a part of a matrix has no gaps, so that messages need no memory besides."""
    if not (isinstance(rows, slice) and isinstance(cols, slice)):
        return False
    return rows.step in (None, 1) and len(range(whole[1])[cols]) == whole[1]


def blocks(X: DistMatrix, axes: tuple[str, ...]) -> list[tuple[IndexSet, IndexSet]]:
    """Rows and columns of the blocks of the ranks that differ from this one along the axes, in that communicator's order."""
    assert X.grid.coords is not None
    return [X.layout.indices(X.shape, X.grid.sizes, where) for where, _ in shares(0, (), X.grid.sizes, axes, X.grid.coords)]


# ---------------------------------------------------------------------------------------------- where products go


class Sink:
    """A local block of C that collects products: beta times what was there enters each part once, at its first product."""

    def __init__(self, xp: Any, block: Any, alpha: complex, beta: complex) -> None:
        self.xp, self.block, self.alpha, self.beta = xp, block, alpha, beta
        self.begun: set[Any] = set()

    def add(self, a: Any, b: Any, rows: Selection = ALL, cols: Selection = ALL, part: Any = None) -> None:
        """block[rows, cols] += alpha a b; `part` names the part of the block, which all its products fill wholly."""
        beta = 1 if part in self.begun else self.beta
        self.begun.add(part)
        if rows is ALL and cols is ALL:
            multiply(self.xp, a, b, self.block, self.alpha, beta)
            return
        in_place = isinstance(rows, slice) and isinstance(cols, slice)
        target = take(self.xp, self.block, rows, cols)
        multiply(self.xp, a, b, target, self.alpha, beta)
        if not in_place:
            self.xp.put(self.block, rows, cols, target)

    def end(self) -> None:
        """Without products (k is empty here) beta is still owed."""
        if not self.begun:
            self.xp.scale(self.block, self.beta)


def multiply(xp: Any, a: Any, b: Any, c: Any, alpha: complex, beta: complex) -> None:
    """c = alpha a b + beta c, recorded; what it needs besides is workspace."""
    with timed("gemm", flops=(8 if c.dtype.kind == "c" else 2) * a.shape[0] * a.shape[1] * b.shape[1]):
        xp.gemm(a, b, c, alpha, beta, partial(buffer, xp))


# ---------------------------------------------------------------------------------------------- operands that move


@dataclass
class Stream:
    """A matrix along the walked dimension: `parts` are the indices of each rank of `comm`; one part and no comm: static.

    Panels travel as the matrix is stored (transposed where it is a transpose), and are looked at the other way round.
    """

    X: DistMatrix
    dimension: int
    axes: tuple[str, ...]
    comm: Communicator | None
    parts: list[IndexSet]

    @staticmethod
    def along(X: DistMatrix, dimension: int, axes: tuple[str, ...], parts: list[IndexSet]) -> Stream:
        """X, whose block lies along `dimension` with the ranks that differ along the axes."""
        return Stream(X, dimension, axes, X.grid[axes] if axes else None, parts)

    @staticmethod
    def parts_of(X: DistMatrix, dimension: int, axes: tuple[str, ...]) -> list[IndexSet]:
        """The indices of the dimension that each of those ranks holds."""
        grid, cuts = X.grid, (X.layout.rows, X.layout.cols)[dimension]
        assert grid.coords is not None
        there = shares(0, (), grid.sizes, axes, grid.coords)
        return [share(X.shape[dimension], cuts, grid.sizes, where) for where, _ in there]

    @property
    def here(self) -> int:
        return self.comm.rank if self.comm else 0

    @property
    def moves(self) -> bool:
        return self.comm is not None

    def shape(self, width: int) -> tuple[int, int]:
        """Shape, as stored, of `width` indices of the walked dimension."""
        across = self.X.stored.shape[1 - self.dimension]
        seen = (width, across) if self.dimension == 0 else (across, width)
        return seen[::-1] if self.X.transposed else seen

    def seen(self, stored: Any) -> Any:
        return stored.T if self.X.transposed else stored

    def cut(self, selection: Selection) -> Any:
        """These positions of this rank's own block, as stored."""
        return self.seen(take(self.X.xp, self.X.stored, *self._across(selection)))

    def of(self, stored: Any, selection: Selection) -> Any:
        """Some positions of a received part, as seen."""
        return take(self.X.xp, self.seen(stored), *self._across(selection))

    def _across(self, selection: Selection) -> tuple[Selection, Selection]:
        return (selection, ALL) if self.dimension == 0 else (ALL, selection)

    def room(self, width: int) -> Any:
        """Buffer space for a panel of up to `width`."""
        return buffer(self.X.xp, (prod(self.shape(width)),), self.X.dtype)

    def fitted(self, room: Any, width: int) -> Any:
        shape = self.shape(width)
        return room[: prod(shape)].reshape(*shape)


@dataclass(frozen=True)
class Meeting:
    """Indices of the walked dimension that part x of one stream and part y of the other share, as positions in each."""

    x: int
    y: int
    in_x: Selection
    in_y: Selection
    width: int

    def chopped(self, width: int) -> list[Meeting]:
        pieces = []
        for lo in range(0, self.width, width):
            hi = min(lo + width, self.width)
            pieces.append(Meeting(self.x, self.y, some_of(self.in_x, lo, hi), some_of(self.in_y, lo, hi), hi - lo))
        return pieces


def meetings(xs: list[IndexSet], ys: list[IndexSet]) -> list[Meeting]:
    """The overlay of two streams' parts: every pair with indices in common, in order of the first."""
    met_by = overlapping(ys)
    return [Meeting(x, y, *part.overlay(ys[y])) for x, part in enumerate(xs) for y in met_by(part)]
