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
    the axes, with each axis in turn as the fastest. They are also put into tiles of the grid, in each
    shape of tile that has as many places as a node has ranks.

    homes  the node of each rank, numbered from 0; None: there is one node
    """
    orders = [usual_order(shape).ravel()]
    if homes is None:
        return orders
    by_node = np.argsort(homes, kind="stable")[: prod(shape)]
    axes = range(len(shape))
    for fast in (axis for axis in axes if shape[axis] > 1):
        axis_order = [*(axis for axis in axes if axis != fast), fast]
        by_axis_order = by_node.reshape([shape[axis] for axis in axis_order])
        orders.append(by_axis_order.transpose(np.argsort(axis_order)).ravel())
    orders += [by_node[list(tiled_order(shape, tile))] for tile in _list_tiles(shape, int(np.bincount(homes).max()))]
    return orders


def _list_tiles(shape: tuple[int, ...], ranks: int) -> Iterator[tuple[int, ...]]:
    """List the shapes of tiles of `ranks` places whose sides divide the grid's."""
    if not shape:
        yield from [()] if ranks == 1 else []
        return
    for side in range(1, min(shape[0], ranks) + 1):
        if shape[0] % side == 0 and ranks % side == 0:
            yield from ((side, *rest) for rest in _list_tiles(shape[1:], ranks // side))


def weigh_far(moves: Iterable[Move], axes: Sequence[str], node_at: np.ndarray) -> float:
    """Count the words that come from other nodes to a rank: for each move, to a rank with the fewest peers on its own node.

    node_at  the node at each place of the grid
    """
    return sum(move.words * share_from_outside(node_at, [axes.index(axis) for axis in move.axes], move.addends) for move in moves)


def share_from_outside(node_at: np.ndarray, along: Sequence[int], addends: bool) -> float:
    """Compute which share of the words that a rank receives from its peers along these axes comes over its node's link.

    Without axes all ranks of the grid are peers. The rank is the one with the fewest peers on its
    own node.

    Addends come from each peer on another node separately. Other pieces come once for all peers on
    a node, which share the work.
    """
    rest = [axis for axis in range(node_at.ndim) if along and axis not in along]
    lines = node_at.transpose([*rest, *(axis for axis in range(node_at.ndim) if axis not in rest)])
    lines = lines.reshape(prod(node_at.shape[axis] for axis in rest), -1)
    p = lines.shape[1]
    same = _count_fewest_equal(lines)
    return (p - same) / max(1, p - 1) / (1 if addends else same)


def _count_fewest_equal(lines: np.ndarray) -> int:
    """Count the equal elements of a line, in the line with the fewest."""
    ordered = np.sort(lines, axis=1)
    starts = np.ones(ordered.shape, bool)
    starts[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return int(np.diff(np.flatnonzero(starts), append=ordered.size).min())
