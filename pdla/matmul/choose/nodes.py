"""Grids over several nodes: orders in which ranks fill a grid, and a product's words that a rank gets from other nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import numpy as np

from pdla.grid import tiled_order
from pdla.layout import usual_order
from pdla.matmul.roles import Move


def list_orders(shape: tuple[int, ...], homes: np.ndarray | None) -> list[np.ndarray]:
    """List orders of ranks on a grid, each as the rank at each place in C order.

    The first is the usual order. On several nodes, ranks are also taken node by node, and put along
    the axes, each axis once the fastest. And they are put into tiles of the grid, in each shape of
    tile that has a node's number of places.

    homes  the node of each rank, numbered from 0; None: there is one node
    """
    found = [usual_order(shape).ravel()]
    if homes is None:
        return found
    by_node = np.argsort(homes, kind="stable")[: prod(shape)]
    axes = range(len(shape))
    ways = [(*(a for a in axes if a != fast), fast) for fast in axes if shape[fast] > 1]
    found += [by_node.reshape([shape[a] for a in way]).transpose(np.argsort(way)).ravel() for way in ways]
    found += [by_node[list(tiled_order(shape, tile))] for tile in _list_tiles(shape, int(np.bincount(homes).max()))]
    return found


def _list_tiles(shape: tuple[int, ...], ranks: int) -> Iterator[tuple[int, ...]]:
    """The shapes of tiles of `ranks` places whose sides divide the grid's."""
    if not shape:
        yield from [()] if ranks == 1 else []
        return
    for side in range(1, min(shape[0], ranks) + 1):
        if shape[0] % side == 0 and ranks % side == 0:
            yield from ((side, *rest) for rest in _list_tiles(shape[1:], ranks // side))


def weigh_far(moves: Iterable[Move], axes: Sequence[str], where: np.ndarray) -> float:
    """Words that come from other nodes to a rank: for each move, to a rank with the fewest peers on its own node.

    where  the node at each place of the grid
    """
    return sum(move.words * share_from_outside(where, [axes.index(axis) for axis in move.axes], move.addends) for move in moves)


def share_from_outside(where: np.ndarray, along: Sequence[int], addends: bool) -> float:
    """The share, of the words that a rank receives from its peers along these axes, that comes over its node's link.

    Without axes all ranks of the grid are peers. The rank is the one with the fewest peers on its
    own node.

    Addends come from each peer on another node separately. Other pieces come once for all peers on
    a node, which share the work.
    """
    rest = [axis for axis in range(where.ndim) if along and axis not in along]
    lines = where.transpose([*rest, *(axis for axis in range(where.ndim) if axis not in rest)])
    lines = lines.reshape(prod(where.shape[axis] for axis in rest), -1)
    p = lines.shape[1]
    same = _count_fewest_equal(lines)
    return (p - same) / max(1, p - 1) / (1 if addends else same)


def _count_fewest_equal(lines: np.ndarray) -> int:
    """Over all lines, the least number of equal elements in one."""
    ordered = np.sort(lines, axis=1)
    begins = np.ones(ordered.shape, bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return int(np.diff(np.flatnonzero(begins), append=ordered.size).min())
