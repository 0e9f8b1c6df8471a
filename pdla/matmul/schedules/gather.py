"""Gather: every rank gathers all blocks of A and B that it needs at once, and multiplies each when it has arrived.

On a pr x pc grid with 2-D blocks a rank receives (mk/P)(pc - 1) + (kn/P)(pr - 1) words in (pc - 1)
+ (pr - 1) messages. Its workspace has the same size. Joined thin tiles add the rank's own block
and, for A, the whole gathered part once more. Agarwal, Balle, Gustavson, Joshi, Palkar, IBM J. Res.
Dev. 39 (1995).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from pdla.comm.collectives import circulant
from pdla.comm.collectives.shared_gather import GatherBuffer
from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffers, take
from pdla.indices import IndexSet, Selection, join
from pdla.layout import Layout, axes_of
from pdla.matmul.roles import Roles
from pdla.matmul.schedules.base import Planned, Schedule, Traffic, make_sink
from pdla.matmul.schedules.streams import (
    ALL,
    PlanCache,
    Sink,
    assemble,
    find_gather_axes,
    gather_in_parts,
    list_blocks,
    stored_shape,
)
from pdla.matrix.core import DistMatrix
from pdla.model.machine import Machine

LITTLE = 16 * 2**20  # the most bytes that a rank gathers and sums at once; above, panels are faster, and need less memory
THIN, FEW = 128, 2  # more than FEW tiles of at most THIN indices of k are joined, as each product reads and writes all of C


class Product(NamedTuple):
    """A product of a tile of A and a tile of B: the positions of their common k in each, and its place in C.

    part  the first row and column, which name the part of C
    """

    in_a: Selection
    in_b: Selection
    rows: Selection
    cols: Selection
    part: tuple[int, int]


Blocks = dict[int, tuple[IndexSet, IndexSet]]
Tiles = dict[int, Any]
Groups = list[tuple[tuple[int, ...], IndexSet]]
Size = tuple[int, int]
Joined = tuple[tuple[tuple[int, ...], Selection], ...]


@dataclass(frozen=True)
class Script:
    """The products of a rank, and how its tiles come. In pairs the first is A's, the second B's.

    A tile's number is the rank from which it comes, or its group if tiles are joined. Empty tiles
    are left out.

    axes      the axes along which they are gathered; empty: they are not gathered
    shapes    the shapes of their tiles, as stored
    products  (number of A's tile, of B's) -> their product, where they have indices of k in common
    sizes     bytes and number of the blocks that are gathered, this rank's included
    joined    of tiles that are joined: for each group its ranks, and its place along k; empty: no tiles are joined
    """

    axes: tuple[tuple[str, ...], tuple[str, ...]]
    shapes: tuple[dict[int, tuple[int, int]], dict[int, tuple[int, int]]]
    products: dict[tuple[int, int], Product]
    sizes: tuple[Size, ...] = ((0, 0), (0, 0))
    joined: tuple[Joined, ...] = ((), ())

    @staticmethod
    def of(a: DistMatrix, b: DistMatrix, roles: Roles, axes: tuple[tuple[str, ...], tuple[str, ...]], machine: Machine) -> Script:
        grid = a.grid
        if grid.coords is None:
            return Script(axes, ({}, {}), {})
        shape = a.shape[0], b.shape[1]
        whole = [to.indices(X.shape, grid.sizes, grid.coords) for X, to in ((a, roles.A), (b, roles.B))]
        held = roles.C.indices(shape, grid.sizes, grid.coords)
        sides = zip((a, b), (roles.A, roles.B), axes, whole, strict=True)
        tiles = [list_blocks(X, to, along) if along else {0: all_} for X, to, along, all_ in sides]
        sizes = [(sum(len(r) * len(c) for r, c in blocks.values()) * a.dtype.itemsize, len(blocks)) for blocks in tiles]
        places: list[Joined] = [(), ()]
        for side, X in enumerate((a, b)):
            if axes[side] and (
                groups := _group_tiles(X, side, grid[axes[side]], sizes[side][0], tiles[side], whole[side], roles, shape, machine)
            ):
                along_k, own = 1 - side, whole[side][side]
                tiles[side] = {j: (own, part) if along_k else (part, own) for j, (_, part) in enumerate(groups)}
                places[side] = tuple((ranks, part.overlay(whole[side][along_k])[1]) for ranks, part in groups)
        shapes = [{i: stored_shape(X, *tile) for i, tile in blocks.items()} for X, blocks in zip((a, b), tiles, strict=True)]
        return Script(axes, (shapes[0], shapes[1]), _find_products(tiles[0], tiles[1], held), tuple(sizes), tuple(places))


def _group_tiles(
    X: DistMatrix, side: int, comm: Communicator | None, nbytes: int, tiles: Blocks, whole: tuple[IndexSet, IndexSet],
    roles: Roles, shape: tuple[int, int], machine: Machine,
) -> Groups:
    """Group the tiles of A (side 0) or B (side 1), gathered over comm, that are joined; empty: they are not joined.

    nbytes  of all tiles;  shape: C's
    """
    along_k, grid = 1 - side, X.grid  # A's tiles pass over columns of C, B's over its rows
    if comm is None or X.transposed or not tiles:
        return []
    parts = {r: tile[along_k] for r, tile in tiles.items()}
    if circulant.pays(nbytes, comm.size) and all(len(tile[side]) == len(whole[side]) for tile in tiles.values()):
        return _make_groups(parts, 1, inf)  # they come at once, and are copied to their places anyway
    # The decision depends on an even share of C, not on this rank's: all ranks that gather together
    # must decide the same, as they share the memory of a gather buffer.
    passes = shape[along_k] // prod(grid.sizes[axis] for axis in axes_of((roles.C.rows, roles.C.cols)[along_k]))
    # Copies of C are equal only if all ranks join the same tiles, on any number of nodes. With
    # copies all tiles come before any product (see run), so that one group loses nothing.
    nodes = 1 if roles.copies else comm.nodes
    # Columns of A take extra memory and a copy, which pays only if a network is slower.
    if not _are_thin(tiles, whole, along_k, passes) or (side == 0 and nodes == 1):
        return []
    rows, cols = roles.C.indices(shape, grid.sizes, grid.coords)
    pace = _estimate_pace(len(rows), len(cols), len(whole[side]), comm, X.dtype, machine)
    return _make_groups(parts, nodes, pace)


def _are_thin(tiles: Blocks, whole: tuple[IndexSet, IndexSet], along_k: int, passes: int) -> bool:
    """Whether there are many thin tiles: more than FEW, each as wide as `whole` across k, of at most THIN indices of k.

    `passes` bounds their indices of k, too: an even share of C's columns for tiles of A, of its
    rows for tiles of B.
    """
    across = len(whole[1 - along_k])
    are_thin = all(len(tile[along_k]) <= min(THIN, passes) and len(tile[1 - along_k]) == across for tile in tiles.values())
    return len(tiles) > FEW and len(whole[along_k]) > 0 and are_thin


def _estimate_pace(m: int, n: int, across: int, comm: Communicator, dtype: np.dtype, machine: Machine) -> float:
    """Estimate how many indices of k come from other nodes, in tiles of length `across`, while one updates an m x n part of C."""
    seconds = across * dtype.itemsize / (machine.rate(max(1, machine.node)) * comm.size / comm.nodes)
    return machine.gemm(m, n, THIN, dtype) / THIN / seconds if seconds else inf


def _make_groups(tiles: dict[int, IndexSet], nodes: int, pace: float) -> Groups:
    """Make groups of tiles to be joined, as (ranks, indices of k).

    One node has one group. Several nodes have several: one is multiplied while others come.

    The first group is thin, so that the first product starts early. Each other group is as wide as
    the part that comes during the product before it: fewer groups pass over C fewer times. If
    little comes meanwhile, groups are thin, and the last product is short.
    """
    in_order = sorted(tiles.items(), key=lambda tile: int(tile[1].starts[0]))
    remaining = sum(len(part) for _, part in in_order)
    width: float = THIN if nodes > 1 and all(len(part.starts) == 1 for _, part in in_order) else remaining
    groups: list[list[tuple[int, IndexSet]]] = [[]]
    size = 0
    for rank, part in in_order:
        if size >= width and remaining >= THIN:
            groups.append([])
            width, size = max(THIN, pace * size), 0
        groups[-1].append((rank, part))
        size, remaining = size + len(part), remaining - len(part)
    return [(tuple(r for r, _ in group), join([part for _, part in group])) for group in groups]


def _find_products(tiles_a: Blocks, tiles_b: Blocks, held: tuple[IndexSet, IndexSet]) -> dict[tuple[int, int], Product]:
    products = {}
    for i, a in tiles_a.items():
        for j, b in tiles_b.items():
            if not _are_apart(a[1], b[0]) and (product := _find_product(a, b, held)) is not None:
                products[i, j] = product
    return products


def _are_apart(cols: IndexSet, rows: IndexSet) -> bool:
    """Whether one is empty, or ends before the other starts: a quick test, true of most pairs of many tiles."""
    if not (len(cols.starts) and len(rows.starts)):
        return True
    return bool(cols.stops[-1] <= rows.starts[0] or rows.stops[-1] <= cols.starts[0])


def _find_product(a: tuple[IndexSet, IndexSet], b: tuple[IndexSet, IndexSet], held: tuple[IndexSet, IndexSet]) -> Product | None:
    in_a, in_b, width = a[1].overlay(b[0])
    if not (width and len(a[0]) and len(b[1])):
        return None
    rows, cols = held[0].overlay(a[0])[0], held[1].overlay(b[1])[0]
    return Product(in_a, in_b, rows, cols, (int(a[0].starts[0]), int(b[1].starts[0])))


def run(a: DistMatrix, b: DistMatrix, roles: Roles, into: Sink | None, memo: PlanCache, machine: Machine) -> None:
    """Collective: compute into += a b, with both moved to the roles' layouts. into=None on idle ranks."""

    def make_script() -> Script:
        return Script.of(a, b, roles, (find_gather_axes(a, roles.A), find_gather_axes(b, roles.B)), machine)

    script: Script = memo.find_or_make("script", make_script)
    along_a, along_b = script.axes
    a = a if along_a else assemble(a, roles.A, memo)
    b = b if along_b else assemble(b, roles.B, memo)
    # Idle ranks make them, too: that is collective.
    comms = [X.grid[along] if along else None for X, along in zip((a, b), script.axes, strict=True)]
    if into is None:
        return
    other = comms[1] if comms[1] is not comms[0] else None
    gather_buffers = [_open_buffer(comms[0], script.sizes[0]), _open_buffer(other, script.sizes[1])]
    try:
        tiles_a, arriving_a = _start_gather(a, roles.A, script, 0, comms[0], gather_buffers[0])
        tiles_b, arriving_b = _start_gather(b, roles.B, script, 1, comms[1], gather_buffers[1])
        if roles.copies:  # copies of C are equal only if all ranks add in the same order: so all tiles come first
            for _ in chain(arriving_a, arriving_b):
                pass
            tiles_a, tiles_b = dict(sorted(tiles_a.items())), dict(sorted(tiles_b.items()))
        _multiply(script, tiles_a, tiles_b, into)
        for i in arriving_a:
            _multiply(script, {i: tiles_a[i]}, tiles_b, into)
        for j in arriving_b:
            _multiply(script, tiles_a, {j: tiles_b[j]}, into)
        into.end()
    finally:
        for gather_buffer in gather_buffers:
            if gather_buffer is not None:
                gather_buffer.leave()


def _open_buffer(comm: Communicator | None, size: Size) -> GatherBuffer | None:
    """Open the memory that a node's ranks share for an operand gathered over comm; None: there is none."""
    return None if comm is None else comm.gather_buffer(*size)


def _start_gather(
    X: DistMatrix, layout: Layout, script: Script, side: int, comm: Communicator | None, gather_buffer: GatherBuffer | None
) -> tuple[Tiles, Iterator[int]]:
    """Start to gather an operand.

    Return the tiles that this rank has, by number, and an iterator. The iterator adds each tile that
    arrives, and yields its number.
    """
    if script.joined[side]:
        return _gather_joined(X, layout, script.axes[side], script.joined[side], 1 - side, gather_buffer)
    return _gather_tiles(X, comm, script.shapes[side], gather_buffer)


def _gather_tiles(
    X: DistMatrix, comm: Communicator | None, shapes: dict[int, tuple[int, int]], gather_buffer: GatherBuffer | None
) -> tuple[Tiles, Iterator[int]]:
    """Start to gather separate tiles: each is multiplied in the memory in which it arrives."""
    if comm is None:
        return {0: X.stored}, iter(())
    tiles = {comm.rank: X.stored}
    if gather_buffer is None:
        others = {r: shape for r, shape in shapes.items() if r != comm.rank}
        outs = dict(zip(others, buffers(X.xp, [*others.values()], X.dtype), strict=True))
    else:
        outs = {r: gather_buffer.take(X.xp, shape, X.dtype) for r, shape in shapes.items()}
    arrivals = comm.allgather(X.base, outs, gather_buffer=gather_buffer)

    def receive() -> Iterator[int]:
        for r in arrivals:
            arrived: Any = outs[r]
            tiles[r] = arrived.T if X.transposed else arrived
            yield r

    return tiles, receive()


def _gather_joined(
    X: DistMatrix, layout: Layout, along: tuple[str, ...], places: Joined, along_k: int, gather_buffer: GatherBuffer | None
) -> tuple[Tiles, Iterator[int]]:
    """Start to gather joined tiles: the iterator yields a group's number when its last tile has arrived."""
    whole, arrivals = gather_in_parts(X, layout, along, gather_buffer)
    group_of = {r: j for j, (ranks, _) in enumerate(places) for r in ranks}
    missing = [len(ranks) for ranks, _ in places]
    tiles: Tiles = {}

    def receive() -> Iterator[int]:
        for r in arrivals:
            j = group_of[r]
            missing[j] -= 1
            if not missing[j]:
                part = places[j][1]
                tiles[j] = take(X.xp, whole.stored, *((ALL, part) if along_k else (part, ALL)))
                yield j

    return tiles, receive()


def _multiply(script: Script, tiles_a: Tiles, tiles_b: Tiles, sink: Sink) -> None:
    for i, a in tiles_a.items():
        for j, b in tiles_b.items():
            if (p := script.products.get((i, j))) is not None:
                sink.add(take(sink.xp, a, ALL, p.in_a), take(sink.xp, b, p.in_b, ALL), p.rows, p.cols, p.part)


class Gather(Schedule):
    """The schedule "gather" of the registry."""

    name = "gather"
    is_algorithm = turns_faces = True
    to_faces, in_panels, in_panels_from_any_layout = "gather", "summa", "fetch"

    def suits(self, traffic: Traffic) -> bool:
        return traffic.in_panels <= LITTLE

    def run(self, plan: Planned, a: DistMatrix, b: DistMatrix, c: DistMatrix, alpha: complex, beta: complex) -> None:
        run(a, b, plan.roles, make_sink(plan, c, alpha, beta), plan.memo, plan.machine)

    def gathers_in_common(self, nodes: int, ranks: int) -> bool:
        return 1 < nodes < ranks
