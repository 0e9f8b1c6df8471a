"""Which rank computes which tiles of C = alpha A A^T, what it needs of A for them, and where they go.

This is what depends on layouts alone.
"""

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

FLOPS = 200  # operations of a core in the time in which a word arrives: 25 GFLOP/s against 1 GB/s
Distribution = DifferenceCover | Stationary | Strips


@lru_cache(maxsize=1024)
def choose(n: int, k: int, layout: Layout, sizes: tuple[tuple[str, int], ...]) -> Distribution:
    """The cheapest way to deal out the work.

    Its price is in words: those that a rank receives, C's on their way to its layout included, and
    the time of its operations, in words that could arrive meanwhile.
    """
    stay = Stationary(layout, sizes)
    way = stay.part(n)
    prices = {cover: cover.words(n, k) + way + cover.flops(n, k) / FLOPS for cover in list_covers(prod(size for _, size in sizes))}
    best = min(prices, key=lambda cover: prices[cover])
    return stay if stay.words(n, k) + stay.flops(n, k) / FLOPS < prices[best] else best


@lru_cache(maxsize=1024)
def choose_together(n: int, k: int, layout: Layout, sizes: tuple[tuple[str, int], ...]) -> Distribution:
    """The same where all ranks read A in place, so that nothing of A moves."""
    stay, strips = Stationary(layout, sizes), Strips(prod(size for _, size in sizes))
    return strips if stay.part(n) + strips.flops(n, k) / FLOPS < stay.flops(n, k) / FLOPS else stay


class Tile(NamedTuple):
    """A block of C that a rank multiplies, of which row i keeps its first counts[i] columns: those on or below the diagonal.

    rows, cols  where A's rows for the block's rows and columns are, among those that the rank has
    diagonal    the column of the block at which its square on the diagonal begins, as wide as the block has rows; None: it has none
    """

    block: Block
    rows: Selection
    cols: Selection
    counts: np.ndarray
    diagonal: int | None


@dataclass(frozen=True)
class RankKPlan:
    """What a rank will do.

    together  whether all ranks read A in place
    shape     of the part of A that it needs
    own       where that part is in its block of A, if it holds all of it; else None
    fetch     how that part comes from the ranks that hold it
    stationary  whether each rank computes what it holds of C, copies each by itself
    layers    the grid of v x c ranks, along whose axis "col" the parts of k are; None: k is not cut
    turns     for each part of k, what its rank sums: the trapezoids of its tiles; empty: k is not cut
    home      how the triangle goes to C's layout
    """

    together: bool
    shape: Shape
    own: tuple[Selection, Selection] | None
    fetch: BlockExchange
    stationary: bool
    tiles: list[Tile]
    layers: ProcessGrid | None
    turns: list[list[Trapezoid]]
    home: BlockExchange

    @staticmethod
    def of(A: DistMatrix, C: DistMatrix, together: bool) -> RankKPlan:
        n, grid = A.shape[0], A.grid
        deal = (choose_together if together else choose)(*A.shape, C.layout, tuple(grid.sizes.items()))
        places = {rank: place for place, rank in enumerate(grid.order)}
        place, parts = places.get(grid.comm.rank), _cut_k(A, deal.c)

        def find_rows(rank: int) -> Block | None:
            at = places.get(rank)
            return None if at is None else Block(deal.rows(n, at), parts[at % deal.c])

        mine = find_rows(grid.comm.rank) or Block(*A.indices)
        rows, cols = (have.overlay(want) for have, want in zip(A.indices, (mine.rows, mine.cols), strict=True))
        shape = len(mine.rows), len(mine.cols)
        there = Block(*(IndexSet.interval(0, size) for size in A.shape)) if together else mine
        wanted = find_targets(C.layout, C.shape, grid)

        def find_receivers(block: Block) -> Iterator[int]:
            meeting = [part for part in range(deal.c) if parts[part].overlay(block.cols)[2]]
            return (grid.order[at + part] for at in deal.find_receivers(n, block.rows) for part in meeting)

        def list_blocks(sender: int, receiver: int) -> list[tuple[int, Block]]:
            block = wanted.block(receiver) if sender in places else None
            return [] if block is None else deal.list_blocks(n, places[sender], places[receiver], block)

        def list_tiles(rank: int) -> list[Block]:
            return deal.tiles(n, places[rank]) if rank in places else []

        def find_senders(block: Block) -> Iterator[int]:
            return (grid.order[at + part] for at in deal.find_senders(n, block) for part in range(deal.c))

        fetch = BlockExchange.of(grid.comm, find_sources(A.layout, A.shape, grid), Targets(find_rows, find_receivers))
        home = BlockExchange.of(grid.comm, Sources(list_blocks, list_tiles, find_senders), wanted, below=0)
        return RankKPlan(
            together, shape, (rows[0], cols[0]) if (rows[2], cols[2]) == shape else None, fetch, isinstance(deal, Stationary),
            [] if place is None else [_make_tile(there, block) for block in deal.tiles(n, place)],
            *_find_sums(n, deal, grid, place), home,
        )


def _make_tile(held: Block, block: Block) -> Tile:
    i, j = block.rows.indices(), block.cols.indices()
    before = len(j) - len(i)
    square = before if len(i) and before >= 0 and np.array_equal(j[before:], i) else None
    return Tile(block, held.rows.overlay(block.rows)[0], held.rows.overlay(block.cols)[0], find_triangle(block).counts, square)


def _find_sums(
    n: int, deal: Distribution, grid: ProcessGrid, place: int | None
) -> tuple[ProcessGrid | None, list[list[Trapezoid]]]:
    """`layers` and `turns` of a plan."""
    if not isinstance(deal, DifferenceCover) or deal.c == 1:
        return None, []
    layers = ProcessGrid.trust((deal.v, deal.c), grid.comm, grid.order)
    if place is None:
        return layers, []
    first = place - place % deal.c
    return layers, [[find_triangle(block) for block in deal.sums(n, first + part)] for part in range(deal.c)]


def _cut_k(A: DistMatrix, c: int) -> list[IndexSet]:
    """Cut k in c parts.

    These are the parts in which A's columns lie already, if they are cut into c along the last axes
    of the grid; else blocks.
    """
    cuts = effective(A.layout.cols, A.grid.sizes)
    axes = axes_of(cuts)
    last = tuple(axis for axis in A.grid.axes if A.grid.sizes[axis] > 1)[-len(axes) :]
    if axes == last and prod(A.grid.sizes[axis] for axis in axes) == c:
        return shares(A.shape[1], cuts, A.grid.sizes, axes, {})
    return [IndexSet.interval(*block_bounds(A.shape[1], c, l)) for l in range(c)]
