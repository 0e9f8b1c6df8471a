"""Block reflectors I - V T V^H: make them of a panel, and apply them to rows; both may be cut over a grid column.

V is m x w, with ones on its diagonal and zeros above it, T upper triangular. A tree of small
factorizations factors a panel that is cut over a grid column. Its Q is then written as one block
reflector, as of a panel on one rank. Ballard et al., IPDPS 2014 (UCB/EECS-2013-175).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from pdla.comm.ledger import buffer
from pdla.linalg.panels import kernels
from pdla.linalg.panels.blocks import Dimension
from pdla.linalg.panels.tournament import plan_rounds
from pdla.matmul.schedules.streams import multiply


@lru_cache(maxsize=64)
def list_upper(w: int) -> tuple[np.ndarray, np.ndarray]:
    """The places of a w x w block on and above its diagonal."""
    return np.triu_indices(w)


def clear(xp: Any, V: Any) -> None:
    """Local: overwrite R on top of V with ones on the diagonal and zeros above it."""
    at = np.arange(V.shape[1])
    xp.place(V, *list_upper(len(at)), 0)
    xp.place(V, at, at, 1)


def copy_upper(xp: Any, V: Any) -> Any:
    """Local: copy R from the top of V."""
    w = V.shape[1]
    R, places = buffer(xp, (w, w), V.dtype), list_upper(w)
    xp.scale(R, 0)
    xp.place(R, *places, xp.pick(V, *places))
    return R


def apply(xp: Any, V: Any, T: Any, C: Any, adjoint: bool, rows: Dimension | None = None) -> None:
    """Collective along the grid column: C = (I - V T V^H) C, or with T^H in place of T.

    V, C  this rank's rows
    rows  their distribution; None: this rank has all rows
    """
    shape = V.shape[1], C.shape[1]
    if not C.shape[1]:
        return
    W, Z = buffer(xp, shape, C.dtype), buffer(xp, shape, C.dtype)
    # W = V^H C
    multiply(xp, xp.reinterpret(V, True).T, C, W, 1, 0)
    if rows is not None and rows.comm is not None:
        rows.comm.allreduce(W).wait()
    # C -= V T W
    multiply(xp, xp.reinterpret(T, True).T if adjoint else T, W, Z, 1, 0)
    multiply(xp, V, Z, C, -1, 1)


@dataclass(frozen=True)
class Node:
    """One factorization in the tree: V and T of stacked rows; None if there are fewer rows than columns, which are passed on.

    sources  the ranks that have sent the rows, this one first
    ends     where each rank's rows end, after a 0
    """

    V: Any
    T: Any
    sources: Sequence[int]
    ends: Sequence[int]

    @staticmethod
    def of(xp: Any, V: Any, sources: Sequence[int], ends: Sequence[int]) -> tuple[Node, Any]:
        """Local: factor V in place; returns the node and R."""
        if len(V) < V.shape[1]:
            return Node(None, None, sources, ends), V
        T, R = factor(xp, V)
        return Node(V, T, sources, ends), R

    def expand(self, xp: Any, C: Any) -> Any:
        """Local: Q times C, where C has as many rows as R."""
        if self.V is None:
            return C
        Q = buffer(xp, self.V.shape[::-1], C.dtype).T
        xp.copy(Q[: len(C)], C)
        xp.scale(Q[len(C) :], 0)
        apply(xp, self.V, self.T, Q, False)
        return Q


def factor(xp: Any, V: Any) -> tuple[Any, Any]:
    """Local: factor a panel on this rank, and overwrite it by V; returns T and R."""
    T, R = kernels.geqrt(xp, V), copy_upper(xp, V)
    clear(xp, V)
    return T, R


def factor_local(xp: Any, V: Any) -> tuple[Any, Any, Any]:
    """Local: as `factor`; returns T, the least and the largest absolute value on R's diagonal, and R."""
    T, R = factor(xp, V)
    return T, xp.asarray(np.array(kernels.find_pivot_range(xp, R), V.dtype)), R


def factor_distributed(xp: Any, rows: Dimension, root: int, V: Any, heights: Sequence[int]) -> tuple[Any, Any, Any]:
    """Collective along the grid column: as `factor_local` for a panel that is cut. V overwrites its rows; R is on `root` alone.

    heights  how many rows each rank has
    root     the rank with the first rows; it has at least as many rows as there are columns
    """
    return _reconstruct(xp, rows, root, *factor_tree(xp, rows, root, V, heights), V)


def factor_tree(xp: Any, rows: Dimension, root: int, x: Any, heights: Sequence[int]) -> tuple[Any, Any]:
    """Collective along the grid column: factor a matrix, x this rank's rows. Returns its rows of Q, and on `root` R.

    Other ranks return the R that they have sent.
    """
    w = x.shape[1]
    rounds, parent = plan_rounds(rows, root, w, heights)
    panel = buffer(xp, x.shape[::-1], x.dtype).T
    xp.copy(panel, x)
    node, R = Node.of(xp, panel, [rows.rank], [0, len(panel)])
    nodes = [node]
    for senders in rounds:  # the first of FAN ranks factors their stacked R
        ends = np.cumsum([0, len(R), *(count for _, count in senders)]).tolist()
        stack = buffer(xp, (w, ends[-1]), x.dtype).T
        boxes = [buffer(xp, (count, w), x.dtype) for _, count in senders]
        arriving = [rows.comm.recv(box, rank) for box, (rank, _) in zip(boxes, senders, strict=True)]  # type: ignore[union-attr]
        xp.copy(stack[: len(R)], R)
        for pending, box, (lo, hi) in zip(arriving, boxes, list(pairwise(ends))[1:], strict=True):
            pending.wait()
            xp.copy(stack[lo:hi], box)
        node, R = Node.of(xp, stack, [rows.rank, *(rank for rank, _ in senders)], ends)
        nodes.append(node)
    if parent is not None and len(R):
        rows.comm.send(R, parent).wait()  # type: ignore[union-attr]
    return _descend(xp, rows, nodes, parent, len(R), w, x.dtype), R


def _descend(xp: Any, rows: Dimension, nodes: list[Node], parent: int | None, height: int, w: int, dtype: np.dtype) -> Any:
    """Collective along the grid column: compute this rank's rows of Q, from the identity down the tree."""
    C = buffer(xp, (height, w), dtype)
    if parent is None:
        at = np.arange(w)
        xp.scale(C, 0)
        xp.place(C, at, at, 1)
    elif height:
        rows.comm.recv(C, parent).wait()  # type: ignore[union-attr]
    for node in reversed(nodes):
        Q = node.expand(xp, C)
        for rank, (lo, hi) in zip(node.sources[1:], list(pairwise(node.ends))[1:], strict=True):
            box = buffer(xp, (hi - lo, w), dtype)
            xp.copy(box, Q[lo:hi])
            rows.comm.send(box, rank).wait()  # type: ignore[union-attr]
        C = Q[: node.ends[1]]
    return C


def _reconstruct(xp: Any, rows: Dimension, root: int, Q: Any, R: Any, V: Any) -> tuple[Any, Any, Any]:
    """Collective along the grid column: V = (Q - S) U^-1 in place; returns T, R's pivot range, and on `root` S R."""
    w, top = V.shape[1], 0
    message = buffer(xp, (2 * w * w + 2,), V.dtype)
    (U, T), sizes = message[: 2 * w * w].reshape(2, w, w), message[2 * w * w :]
    if rows.rank == root:
        # Q1 - S = V1 U, T = -U S^H V1^-H
        top, (V1, U1, T1, S) = w, kernels.orhr_col(xp, Q[:w])
        xp.copy_all(((V[:w], V1), (U, U1), (T, T1)))
        R *= S[:, None]
        xp.copy(sizes, xp.asarray(np.array(kernels.find_pivot_range(xp, R), V.dtype)))
    rows.bcast(message, root).wait()
    # V2 = Q2 U^-1
    xp.copy(V[top:], Q[top:])
    kernels.trsm(xp, U.T, V[top:].T, True)
    return T, sizes, R
