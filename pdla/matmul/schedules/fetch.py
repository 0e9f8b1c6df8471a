"""Fetch: panels of A and B come directly from any layouts on any grids, while others are multiplied.

A rank of a pm x pn x pk box receives the elements of its faces of A and B that it does not hold. A
conversion to the box's own layouts may move more: words that a rank held at first, and sent away.
No redistribution precedes the first product, and no block of another layout takes memory. Ranks
that need the same panel start with different panels, as by Cannon's skew. So no rank sends to all of
them at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffer
from pdla.cuts import Block
from pdla.grid import ProcessGrid
from pdla.layout import Layout, Shape, share_length
from pdla.matmul.roles import Roles
from pdla.matmul.schedules import walk
from pdla.matmul.schedules.base import Planned, Schedule, count_at_once, make_sink
from pdla.matmul.schedules.streams import PlanCache, Sink
from pdla.matmul.schedules.summa import start_ahead
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import Piece, Route, find_receives, find_sends, start

PANEL = "panel"  # an axis for panels: they cut the faces along k as ranks along one more axis would


class Step(NamedTuple):
    """One panel of A and one of B: the routes by which they come and others are sent, and their shapes."""

    routes: tuple[Route, Route]
    shapes: tuple[Shape, Shape]


def run(A: DistMatrix, B: DistMatrix, roles: Roles, grid: ProcessGrid, into: Sink | None, width: int, memo: PlanCache) -> None:
    """Collective: into += A B for this rank's faces by the roles on the grid, in panels of at most `width` indices of k.

    into=None on idle ranks, which may have parts of A and B to send.
    """
    steps: list[Step] = memo.find_or_make("steps", lambda: [*list_steps(A, B, roles, grid, width)])
    sizes = [max(prod(step.shapes[i]) for step in steps) for i in (0, 1)]
    feeds = [Feed(X, grid.comm, size, len(steps)) for X, size in zip((A, B), sizes, strict=True)]

    def start_step(step: Step) -> list[tuple[Any, Any]]:
        return [feed.start(route, shape) for feed, route, shape in zip(feeds, step.routes, step.shapes, strict=True)]

    for _, panels in start_ahead(start_step, steps):
        for end, _ in panels:
            end()
        (_, a), (_, b) = panels
        if into is not None and a.shape[1]:
            into.add(a, b)
    if into is not None:
        into.end()


class Feed:
    """Panels of one operand: the one that is multiplied, and those under way."""

    comm: Communicator

    def __init__(self, X: DistMatrix, comm: Communicator, size: int, panels: int) -> None:
        self.X, self.comm = X, comm
        self.buffers: cycle[Any] = cycle([buffer(X.xp, (size,), X.dtype) for _ in range(count_at_once(panels))])

    def start(self, route: Route, shape: Shape) -> tuple[Any, Any]:
        """Start sending and receiving panels. Return a function that waits for this rank's panel, and the panel."""
        panel = next(self.buffers)[: prod(shape)].reshape(*shape)
        return start(self.X, route, self.comm, panel), panel


def list_steps(A: DistMatrix, B: DistMatrix, roles: Roles, grid: ProcessGrid, width: int) -> Iterator[Step]:
    """List this rank's steps. All ranks have equally many; a rank with a small face has no panel in some."""
    longest = share_length(A.shape[1], roles.A.cols, grid.sizes, dict.fromkeys(grid.axes, 0))
    panels = max(1, -(-longest // width))
    sizes, first = {**grid.sizes, PANEL: panels}, find_first_panels(roles, grid, panels)
    faces = Layout(roles.A.rows, (*roles.A.cols, Block(PANEL))), Layout((*roles.B.rows, Block(PANEL)), roles.B.cols)
    sides = list(zip((A, B), faces, strict=True))
    sends = [_list_sends(X, face, grid, sizes, first) for X, face in sides]
    for step in range(panels):
        panel = (first[grid.comm.rank] + step) % panels
        coords = None if grid.coords is None else {**grid.coords, PANEL: panel}
        held = [face.indices(X.shape, sizes, coords) for X, face in sides]
        routes = [
            Route(pieces[step], find_receives(X.shape, (X.layout, X.grid), part))
            for (X, _), pieces, part in zip(sides, sends, held, strict=True)
        ]
        shapes = [(len(rows), len(cols)) for rows, cols in held]
        yield Step((routes[0], routes[1]), (shapes[0], shapes[1]))


def find_first_panels(roles: Roles, grid: ProcessGrid, panels: int) -> np.ndarray:
    """Find the number of each rank's first panel: ranks that need the same panels of A, or of B, start evenly apart."""
    coords = np.indices(grid.shape).reshape(len(grid.shape), -1)
    first = np.zeros(coords.shape[1], np.int64)
    for axis, role in roles.carries:
        if role in "mn":
            first += panels * coords[grid.axes.index(axis)] // grid.sizes[axis]
    by_rank = np.zeros(grid.comm.size, np.int64)
    by_rank[grid.ranks.ravel()] = first % panels
    return by_rank


def _list_sends(X: DistMatrix, face: Layout, grid: ProcessGrid, sizes: dict[str, int], first: np.ndarray) -> list[list[Piece]]:
    """List the pieces of X that this rank sends in each step: those of a panel when the receiver multiplies it."""
    steps: list[list[Piece]] = [[] for _ in range(sizes[PANEL])]
    for piece, coords in find_sends(X.shape, (X.layout, X.grid), face, grid, sizes):
        steps[(coords[PANEL] - first[piece.peer]) % len(steps)].append(piece)
    return steps


class Fetch(Schedule):
    """The schedule "fetch" of the registry."""

    name = "fetch"
    walks = takes_any_layout = True
    needs_box = True  # other grids may have copies of C: ranks start with different panels, and would sum in different orders

    def run(self, plan: Planned, a: DistMatrix, b: DistMatrix, c: DistMatrix, alpha: complex, beta: complex) -> None:
        """Collective: `c = alpha a b + beta c`, in panels of at most `plan.panel` indices of k."""
        run(a, b, plan.roles, plan.grid, make_sink(plan, c, alpha, beta), plan.panel, plan.memo)

    def count_panels(self, plan: Planned, width: int) -> int:
        return -(-walk.count_first_common(plan.walk, plan.mnk, plan.grid.sizes) // width)
