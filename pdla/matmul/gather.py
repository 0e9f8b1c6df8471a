"""All at once: every rank gathers the blocks of A and B that it needs, and multiplies each where it arrives.

On a pr x pc grid with A, B and C in 2-D blocks a rank receives (mk/P)(pc - 1) + (kn/P)(pr - 1) words in (pc - 1) + (pr - 1)
messages, and needs as much workspace. Agarwal, Balle, Gustavson, Joshi, Palkar, IBM J. Res. Dev. 39 (1995).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pdla.comm.ledger import buffer
from pdla.layout import IndexSet, Layout
from pdla.matmul.operands import Sink, assemble, blocks, extra_axes
from pdla.matmul.roles import Roles
from pdla.matrix import DistMatrix


@dataclass(frozen=True)
class Tile:
    """A block of an operand that lies here: its global rows and columns, and its elements."""

    rows: IndexSet
    cols: IndexSet
    x: Any

    def apart(self, other: Tile) -> bool:
        """Whether this one's columns all lie before or behind the other's rows; most do where many tiles meet."""
        mine, theirs = self.cols, other.rows
        if not (len(mine.starts) and len(theirs.starts)):
            return True
        return bool(mine.stops[-1] <= theirs.starts[0] or theirs.stops[-1] <= mine.starts[0])


def run(a: DistMatrix, b: DistMatrix, roles: Roles, sink: Sink | None) -> None:
    """Collective: sink += a b in the roles' layouts."""
    tiles_a, coming_a = _tiles(a, roles.A)
    tiles_b, coming_b = _tiles(b, roles.B)
    if sink is None:
        return
    held = roles.C.indices((a.shape[0], b.shape[1]), a.grid.sizes, a.grid.coords or {})
    for tile_a in tiles_a:
        for tile_b in tiles_b:
            _multiply(tile_a, tile_b, held, sink)
    for tile_a in coming_a:
        tiles_a.append(tile_a)
        for tile_b in tiles_b:
            _multiply(tile_a, tile_b, held, sink)
    for tile_b in coming_b:
        for tile_a in tiles_a:
            _multiply(tile_a, tile_b, held, sink)
    sink.end()


def _tiles(X: DistMatrix, layout: Layout) -> tuple[list[Tile], Iterator[Tile]]:
    """The tiles of an operand that are here, and those that come, in order of arrival; all have been asked for."""
    axes = extra_axes(X.layout, layout, X.grid.sizes)
    if not axes:
        X = assemble(X, layout)
        return ([Tile(*X.indices, X.stored)] if X.grid.active else []), iter(())
    comm = X.grid[axes]
    if comm is None:
        return [], iter(())
    held = blocks(X, axes)
    stored = [(len(c), len(r)) if X.transposed else (len(r), len(c)) for r, c in held]
    outs: list[Any] = [None if r == comm.rank else buffer(X.xp, shape, X.dtype) for r, shape in enumerate(stored)]
    arrivals = comm.allgather(X.base, outs)

    def coming() -> Iterator[Tile]:
        for r in arrivals:
            yield Tile(*held[r], outs[r].T if X.transposed else outs[r])

    return [Tile(*held[comm.rank], X.stored)], coming()


def _multiply(a: Tile, b: Tile, held: tuple[IndexSet, IndexSet], sink: Sink) -> None:
    if a.apart(b):
        return
    in_a, in_b, width = a.cols.overlay(b.rows)
    if not (width and len(a.rows) and len(b.cols)):
        return
    rows, cols = held[0].overlay(a.rows)[0], held[1].overlay(b.cols)[0]
    part = (int(a.rows.starts[0]), int(b.cols.starts[0]))
    sink.add(sink.xp.take(a.x, slice(None), in_a), sink.xp.take(b.x, in_b, slice(None)), rows, cols, part)
