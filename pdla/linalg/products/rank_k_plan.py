"""Plan C = alpha A A^T from layouts alone: each rank's tiles, the parts of A that they need, and their redistribution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from pdla.cuts import block_bounds
from pdla.grid import ProcessGrid
from pdla.indices import IndexSet, Selection
from pdla.layout import Layout, Shape, axes_of, effective, shares
from pdla.linalg.products.block_exchange import BlockExchange, Sources, Targets, find_sources, find_targets
from pdla.linalg.products.difference_cover import DifferenceCover, list_covers
from pdla.linalg.products.stationary import Stationary
from pdla.linalg.products.strips import Strips
from pdla.linalg.products.trapezoid import Block, Trapezoid, find_triangle
from pdla.matrix.core import DistMatrix

FLOPS = 200  # operations of a core while one word arrives: 25 GFLOP/s against 1 GB/s
Distribution = DifferenceCover | Stationary | Strips


@lru_cache(maxsize=1024)
def choose(n: int, k: int, layout: Layout, sizes: tuple[tuple[str, int], ...]) -> Distribution:
    """Choose the cheapest distribution of the work.

    The price is in words: all that a rank receives, of A and of C's redistribution, plus the words
    that could arrive during its operations.
    """
    stationary = Stationary(layout, sizes)
    redistribution, ranks = stationary.part(n), prod(size for _, size in sizes)
    prices = {cover: cover.words(n, k) + redistribution + cover.flops(n, k) / FLOPS for cover in list_covers(ranks)}
    best = min(prices, key=lambda cover: prices[cover])
    return stationary if stationary.words(n, k) + stationary.flops(n, k) / FLOPS < prices[best] else best


@lru_cache(maxsize=1024)
def choose_together(n: int, k: int, layout: Layout, sizes: tuple[tuple[str, int], ...]) -> Distribution:
    """Choose the cheapest distribution if all ranks read A in place, so that no words of A are sent."""
    stationary, strips = Stationary(layout, sizes), Strips(prod(size for _, size in sizes))
    return strips if stationary.part(n) + strips.flops(n, k) / FLOPS < stationary.flops(n, k) / FLOPS else stationary


class Tile(NamedTuple):
    """A block of C that a rank multiplies; row i keeps its first counts[i] columns, those on or below the diagonal.

    rows, cols  the places of A's rows for the block's rows and columns, among this rank's rows of A
    diagonal    the first column of the block's square on the diagonal, which has all its rows; None without such a square
    """

    block: Block
    rows: Selection
    cols: Selection
    counts: np.ndarray
    diagonal: int | None


@dataclass(frozen=True)
class RankKPlan:
    """One rank's part in C = alpha A A^T + beta C.

    in_place    whether all ranks read A in place
    shape       of the part of A that this rank needs
    own         the place of that part in this rank's block of A; None unless it holds all of the part
    fetch       the exchange by which that part is fetched
    stationary  whether each rank computes its own block of C, also of copies
    tiles       this rank's tiles
    layers      the grid of v x c ranks, with the parts of k along its axis "col"; None: k is not cut
    turns       for each part of k the trapezoids of tiles that its rank sums; empty: k is not cut
    delivery    the exchange by which the triangle is redistributed to C's layout
    """

    in_place: bool
    shape: Shape
    own: tuple[Selection, Selection] | None
    fetch: BlockExchange
    stationary: bool
    tiles: list[Tile]
    layers: ProcessGrid | None
    turns: list[list[Trapezoid]]
    delivery: BlockExchange

    @staticmethod
    def of(A: DistMatrix, C: DistMatrix, in_place: bool) -> RankKPlan:
        n, grid = A.shape[0], A.grid
        distribution = (choose_together if in_place else choose)(*A.shape, C.layout, tuple(grid.sizes.items()))
        places = {rank: place for place, rank in enumerate(grid.order)}
        place, parts = places.get(grid.comm.rank), _cut_k(A, distribution.c)

        def find_rows(rank: int) -> Block | None:
            at = places.get(rank)
            return None if at is None else Block(distribution.rows(n, at), parts[at % distribution.c])

        own_part = find_rows(grid.comm.rank) or Block(*A.indices)
        overlays = zip(A.indices, (own_part.rows, own_part.cols), strict=True)
        rows, cols = (held.overlay(needed) for held, needed in overlays)
        shape = len(own_part.rows), len(own_part.cols)
        source = Block(*(IndexSet.interval(0, size) for size in A.shape)) if in_place else own_part
        targets = find_targets(C.layout, C.shape, grid)

        def find_receivers(block: Block) -> Iterator[int]:
            parts_needed = [part for part in range(distribution.c) if parts[part].overlay(block.cols)[2]]
            return (grid.order[at + part] for at in distribution.find_receivers(n, block.rows) for part in parts_needed)

        def list_blocks(sender: int, receiver: int) -> list[tuple[int, Block]]:
            block = targets.block(receiver) if sender in places else None
            return [] if block is None else distribution.list_blocks(n, places[sender], places[receiver], block)

        def list_tiles(rank: int) -> list[Block]:
            return distribution.tiles(n, places[rank]) if rank in places else []

        def find_senders(block: Block) -> Iterator[int]:
            return (grid.order[at + part] for at in distribution.find_senders(n, block) for part in range(distribution.c))

        fetch = BlockExchange.of(grid.comm, find_sources(A.layout, A.shape, grid), Targets(find_rows, find_receivers))
        delivery = BlockExchange.of(grid.comm, Sources(list_blocks, list_tiles, find_senders), targets, below=0)
        return RankKPlan(
            in_place, shape, (rows[0], cols[0]) if (rows[2], cols[2]) == shape else None, fetch,
            isinstance(distribution, Stationary),
            [] if place is None else [_make_tile(source, block) for block in distribution.tiles(n, place)],
            *_find_sums(n, distribution, grid, place), delivery,
        )


def _make_tile(source: Block, block: Block) -> Tile:
    i, j = block.rows.indices(), block.cols.indices()
    offset = len(j) - len(i)
    square = offset if len(i) and offset >= 0 and np.array_equal(j[offset:], i) else None
    return Tile(block, source.rows.overlay(block.rows)[0], source.rows.overlay(block.cols)[0], find_triangle(block).counts, square)


def _find_sums(
    n: int, distribution: Distribution, grid: ProcessGrid, place: int | None
) -> tuple[ProcessGrid | None, list[list[Trapezoid]]]:
    """`layers` and `turns` of a plan."""
    if not isinstance(distribution, DifferenceCover) or distribution.c == 1:
        return None, []
    layers = ProcessGrid.trust((distribution.v, distribution.c), grid.comm, grid.order)
    if place is None:
        return layers, []
    first = place - place % distribution.c
    return layers, [[find_triangle(block) for block in distribution.sums(n, first + part)] for part in range(distribution.c)]


def _cut_k(A: DistMatrix, c: int) -> list[IndexSet]:
    """Cut k in c parts: as A's columns are, if the last axes of the grid cut them into c parts; else in blocks."""
    cuts = effective(A.layout.cols, A.grid.sizes)
    axes = axes_of(cuts)
    last_axes = tuple(axis for axis in A.grid.axes if A.grid.sizes[axis] > 1)[-len(axes) :]
    if axes == last_axes and prod(A.grid.sizes[axis] for axis in axes) == c:
        return shares(A.shape[1], cuts, A.grid.sizes, axes, {})
    return [IndexSet.interval(*block_bounds(A.shape[1], c, l)) for l in range(c)]
