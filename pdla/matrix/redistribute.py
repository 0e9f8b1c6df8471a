"""Redistribution from any layout to any other: one packed message to each peer, receives posted first, unpacked on arrival.

Ranks of one node read pieces of large matrices in shared memory instead, in rounds.

Volume: a rank receives the elements of its new block that it does not hold yet. The nearest of the
ranks that hold a copy, by rank number, sends it. A rank that holds a copy itself receives nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod
from typing import Any

import numpy as np

from pdla.array.composed import sum_dtype
from pdla.array.dtypes import can_cast_addends
from pdla.comm.agreement import agree, agreed, collective_section
from pdla.comm.cache import find_or_make
from pdla.comm.collectives import circulant
from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffer, buffers, held, note_read, take, take_all
from pdla.comm.shared_buffer import SharedBuffer
from pdla.comm.workspace import KEPT
from pdla.cuts import Cuts
from pdla.errors import GridError, LayoutError, PdlaError, misfit
from pdla.grid import ProcessGrid, check_grid, check_layout, check_same_communicator
from pdla.indices import IndexSet, Selection, search_sorted, slice_selection
from pdla.layout import Layout, Shape, axes_of, overlays_of_blocks, places_of
from pdla.matrix.core import DistMatrix

SHOWN = 2**20  # bytes of a matrix from which ranks of one node read pieces in shared memory
ROUND = KEPT // 2  # bytes of shared memory for each rank: so much is kept between calls, and new memory takes longer


@dataclass(frozen=True)
class Piece:
    """A message: a part of a block, its shape, and the peer, which may be this rank."""

    peer: int
    rows: Selection
    cols: Selection
    shape: Shape

    def share(self, i: int, count: int) -> Piece:
        """Take the i-th of `count` shares of its rows, or of its columns if there are few rows; perhaps empty."""
        m, n = self.shape
        if m >= min(n, count):
            lo, hi = m * i // count, m * (i + 1) // count
            return replace(self, rows=slice_selection(self.rows, lo, hi), shape=(hi - lo, n))
        lo, hi = n * i // count, n * (i + 1) // count
        return replace(self, cols=slice_selection(self.cols, lo, hi), shape=(m, hi - lo))


Side = tuple[Layout, ProcessGrid]


def _find_nearest(holders: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Find the holder nearest to each rank in rank number, the lower one of two equally near."""
    after = np.minimum(search_sorted(holders, ranks, "left"), len(holders) - 1)
    before = np.maximum(after - 1, 0)
    closer = np.abs(holders[after] - ranks) < np.abs(ranks - holders[before])
    return np.where(closer, holders[after], holders[before])


def plan_receives(shape: Shape, source: Side, target: Side) -> list[Piece]:
    """List the pieces that this rank receives, also from itself, by their places in its new block."""
    layout, grid = target
    return find_receives(shape, source, layout.indices(shape, grid.sizes, grid.coords))


def find_receives(shape: Shape, source: Side, held: tuple[IndexSet, IndexSet]) -> list[Piece]:
    """List the pieces of the rows and columns `held` that this rank receives, also from itself, by their places in these."""
    layout, grid = source
    me = np.array([grid.comm.rank])
    return [
        Piece(int(_find_nearest(grid.holders(up.where | along.where), me)[0]), up.here, along.here, (up.size, along.size))
        for up, along in overlays_of_blocks(shape, layout, grid.sizes, held)
    ]


def plan_sends(shape: Shape, source: Side, target: Side) -> list[Piece]:
    """List the pieces that this rank sends, also to itself, by their places in its present block."""
    return [piece for piece, _ in find_sends(shape, source, *target, target[1].sizes)]


def find_sends(
    shape: Shape, source: Side, layout: Layout, to: ProcessGrid, sizes: Mapping[str, int]
) -> Iterator[tuple[Piece, Mapping[str, int]]]:
    """List the pieces that this rank sends, each with the coordinates of the target's share that contains it.

    sizes  of the axes of the grid `to`, and of others that cut the target's layout
    """
    present, grid = source
    if grid.coords is None:
        return
    me = grid.comm.rank
    copies = grid.holders({axis: grid.coords[axis] for axis in present.axes})
    held = present.indices(shape, grid.sizes, grid.coords)
    for up, along in overlays_of_blocks(shape, layout, sizes, held):
        coords = up.where | along.where
        receivers = to.holders(coords)
        for rank in receivers[_find_nearest(copies, receivers) == me]:
            yield Piece(int(rank), up.here, along.here, (up.size, along.size)), coords


@dataclass(frozen=True)
class Route:
    """The messages of this rank in the redistribution of a matrix."""

    sends: list[Piece]
    recvs: list[Piece]

    @staticmethod
    def between(shape: Shape, source: Side, target: Side) -> Route:
        return Route(plan_sends(shape, source, target), plan_receives(shape, source, target))

    def share(self, i: int, count: int) -> Route:
        """Make the route of the i-th of `count` shares of each piece."""
        sends, recvs = ([p.share(i, count) for p in pieces] for pieces in (self.sends, self.recvs))
        return Route([p for p in sends if prod(p.shape)], [p for p in recvs if prod(p.shape)])


def start(A: DistMatrix, route: Route, comm: Communicator, out: Any) -> Callable[[], None]:
    """Collective: start to move A along its route into `out`, this rank's new block; return a function that ends the move."""
    xp, me = A.xp, comm.rank
    sends = [p for p in route.sends if p.peer != me]
    parts = dict(zip([p.peer for p in sends], take_all(xp, A.stored, [(p.rows, p.cols) for p in sends]), strict=True))
    places = {p.peer: p for p in route.recvs}
    # A piece that is one rectangle of `out` is received there; others are unpacked from a buffer.
    direct = {p.peer: isinstance(p.rows, slice) and isinstance(p.cols, slice) for p in route.recvs}
    others = {peer: p for peer, p in places.items() if peer != me}
    boxes = iter(buffers(xp, [p.shape for peer, p in others.items() if not direct[peer]], A.dtype))
    arrivals = {peer: xp.take(out, p.rows, p.cols) if direct[peer] else next(boxes) for peer, p in others.items()}
    pending = comm.alltoall(parts, arrivals)

    _copy_own(A, route, me, out)

    def end() -> None:
        for peer in pending:
            if not direct[peer]:
                xp.put(out, places[peer].rows, places[peer].cols, arrivals.pop(peer))
        if A.conjugated:
            xp.copy(out, out, conjugate=True)

    return end


def move(A: DistMatrix, layout: Layout, grid: ProcessGrid, out: Any) -> None:
    """Collective: fill `out`, this rank's block in the new layout, from A, whose layout has no partial sums."""
    start_move(A, layout, grid, out)()


def start_move(A: DistMatrix, layout: Layout, grid: ProcessGrid, out: Any) -> Callable[[], None]:
    """Collective: start the same; return a function that completes it. Pieces in memory that ranks share are moved at once."""
    comm, between = grid.comm, (A.shape, (A.layout, A.grid), (layout, grid))
    route = find_or_make(comm, ("route", *between), lambda: Route.between(*between))
    size, room = prod(A.shape) * A.dtype.itemsize, min(ROUND * comm.size, comm.shared_limit)
    sees = comm.publishes and comm.size > 1 and min(size, room) >= SHOWN
    if sees and comm.shared_buffer() is not None:

        def places() -> Places:
            copies = grid.size // prod(grid.sizes[axis] for axis in layout.axes)
            return Places.of(comm, route, ceil(size * copies / room))

        _move_by_shared_memory(A, route, find_or_make(comm, ("places", *between, size, room), places), comm, out)
        return lambda: None
    return start(A, route, comm, out)


@dataclass(frozen=True)
class Places:
    """Places of pieces in shared memory, one after another, a share of each in a round.

    shares  the routes of the rounds
    starts  (sender, receiver) -> the first word of their piece
    words   the words of all pieces in a round
    """

    shares: Sequence[Route]
    starts: Mapping[tuple[int, int], int]
    words: int

    @staticmethod
    def of(comm: Communicator, route: Route, rounds: int) -> Places:
        """Collective: place the pieces that any rank sends to another."""
        shares = [route.share(i, rounds) for i in range(rounds)]
        starts, words = {}, 0
        own = {p.peer: _count_largest_share(p, rounds) for p in route.sends if p.peer != comm.rank}
        for sender, sizes in enumerate(comm.share(own)):
            for receiver, size in sizes.items():
                starts[sender, receiver], words = words, words + size
        for p in route.recvs:
            starts.setdefault((p.peer, comm.rank), 0)  # a dry rank knows its own pieces only
        return Places(shares, starts, words)


def _count_largest_share(piece: Piece, rounds: int) -> int:
    """Count the words of the largest of a piece's shares, one for each round."""
    return max(prod(piece.share(i, rounds).shape) for i in range(rounds))


def _move_by_shared_memory(A: DistMatrix, route: Route, places: Places, comm: Communicator, out: Any) -> None:
    """Collective: move A by shared memory, to which each rank writes the pieces of others.

    Two copies of each piece replace its message.
    """
    shared_buffer = comm.shared_buffer()
    assert shared_buffer is not None
    with held(places.words * A.dtype.itemsize // comm.size):
        for share in places.shares:
            _move_share(A, share, places, comm, shared_buffer, out)
    shared_buffer.trim(KEPT)
    received = [prod(p.shape) for p in route.recvs if p.peer != comm.rank]
    if received:
        note_read(comm.axis, sum(received) * A.dtype.itemsize, len(received))
    if A.conjugated:
        A.xp.copy(out, out, conjugate=True)


def _move_share(
    A: DistMatrix, share: Route, places: Places, comm: Communicator, shared_buffer: SharedBuffer, out: Any
) -> None:
    """Collective: move one share of each piece, in one round."""
    xp, me, itemsize = A.xp, comm.rank, A.dtype.itemsize
    memory = shared_buffer.open(places.words * itemsize)

    def buffer_of(sender: int, receiver: int, shape: Shape) -> Any:
        return xp.view_at(memory, places.starts[sender, receiver] * itemsize, shape, A.dtype)

    for p in share.sends:
        if p.peer != me:
            xp.extract(A.stored, p.rows, p.cols, buffer_of(me, p.peer, p.shape))
    try:
        shared_buffer.seal()
        for p in share.recvs:
            if p.peer != me:
                xp.put(out, p.rows, p.cols, buffer_of(p.peer, me, p.shape))
    finally:
        shared_buffer.leave()
    _copy_own(A, share, me, out)


def _copy_own(A: DistMatrix, route: Route, me: int, out: Any) -> None:
    """Copy the piece that this rank holds already."""
    sent = next((p for p in route.sends if p.peer == me), None)
    received = next((p for p in route.recvs if p.peer == me), None)
    if sent is None or received is None:
        return
    if isinstance(received.rows, slice) and isinstance(received.cols, slice):
        A.xp.extract(A.stored, sent.rows, sent.cols, out[received.rows, received.cols])
    else:
        A.xp.put(out, received.rows, received.cols, take(A.xp, A.stored, sent.rows, sent.cols))


def sum_partials(A: DistMatrix, target: Layout) -> DistMatrix:
    """Collective: add up A's partial sums, by a reduce-scatter over each partial axis.

    Each scatters the dimension that its axis cuts in `target`. An axis that cuts neither scatters
    A's longer dimension, innermost. (A redistribution to `target` then completes an all-reduce.)
    The last step rounds 16-bit floats, once.
    """
    layout, block = A.layout.summed, A.stored
    by_columns = A.transposed and not A.gaps  # not by the block's own strides: from_local takes other ones on each rank
    for axis, by_rows, layout in trace_sums(A.shape, A.layout, target, tuple(A.grid.sizes.items())):
        by_columns = by_columns and not by_rows
        block = scatter(A, block, layout, axis, by_rows, by_columns)
    if block.dtype != A.dtype:
        total, block = block, buffer(A.xp, block.shape, A.dtype)
        A.xp.copy(block, total)
    return DistMatrix(block, A.shape, A.grid, layout, conjugated=A.conjugated)


def cast(X: DistMatrix, dtype: np.dtype) -> DistMatrix:
    """Collective: cast X to this dtype, after a sum of its partial sums if casting addends would change the sum."""
    if X.dtype == dtype:
        return X
    return (X if can_cast_addends(X.dtype, dtype) or not X.layout.partial else convert(X, X.layout.summed, X.grid)).astype(dtype)


def trace_sums(
    shape: Shape, layout: Layout, target: Layout, axis_sizes: tuple[tuple[str, int], ...]
) -> Iterator[tuple[str, bool, Layout]]:
    """Yield the steps of `order_sums`, each with the layout of its result."""
    reached = layout.summed
    for axis, by_rows in order_sums(shape, layout, target, axis_sizes):
        cut = next((c for c in (*target.rows, *target.cols) if c.axis == axis and not isinstance(c, Cuts)), axis)
        reached = Layout((*reached.rows, cut), reached.cols) if by_rows else Layout(reached.rows, (*reached.cols, cut))
        yield axis, by_rows, reached


@lru_cache(maxsize=256)
def order_sums(
    shape: Shape, layout: Layout, target: Layout, axis_sizes: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, bool], ...]:
    """Order the partial axes, each with whether it cuts rows: rows first or columns first, whichever moves fewer words.

    axis_sizes  the grid's axes and their sizes
    """
    sizes = dict(axis_sizes)
    nests = (target.rows, True), (target.cols, False)
    rows, cols = ([(axis, by_rows) for axis in axes_of(nest) if axis in layout.partial] for nest, by_rows in nests)
    rest = [(axis, shape[0] >= shape[1]) for axis in layout.partial if axis not in target.axes]
    block = layout.local_shape(shape, sizes, dict.fromkeys(sizes, 0))
    orders = [*rows, *cols, *rest], [*cols, *rows, *rest]
    return tuple(min(orders, key=lambda order: count_addends(block, [(by_rows, sizes[axis]) for axis, by_rows in order])))


def count_addends(block: Shape, axes: Iterable[tuple[bool, int]]) -> int:
    """Count the most words that a rank receives when addends of a block are summed along axes in turn.

    axes  of each axis whether it cuts rows, and its number of ranks
    """
    words, share = 0, [*block]
    for by_rows, ranks in axes:
        in_steps, dimension = circulant.pays(8 * prod(share), ranks), 0 if by_rows else 1
        holders = min(ranks, share[dimension])
        share[dimension] = ceil(share[dimension] / ranks)
        words += prod(share) * (circulant.count_most_addends(ranks, holders) if in_steps else ranks - 1)
    return words


def scatter(A: DistMatrix, block: Any, layout: Layout, axis: str, by_rows: bool, by_columns: bool) -> Any:
    """Collective: reduce-scatter the addends in `block` along an axis, to each rank's share in `layout`; not rounded yet.

    by_columns  all ranks store `block` by columns, and the axis cuts columns: the transposes of parts have no gaps
    """
    grid, xp = A.grid, A.xp
    comm = grid[axis]
    if comm is None or grid.coords is None:
        return xp.empty((0, 0), sum_dtype(A.dtype))
    before = Layout(layout.rows[:-1], layout.cols) if by_rows else Layout(layout.rows, layout.cols[:-1])
    parts = take_all(xp, block, places_of(A.shape, layout, before, (axis,), grid.sizes, grid.coords))
    parts = [part.T for part in parts] if by_columns else parts
    total = comm.reduce_scatter(parts, buffer(xp, parts[comm.rank].shape, sum_dtype(A.dtype))).wait()
    return total.T if by_columns else total


def convert(A: DistMatrix, layout: Layout, grid: ProcessGrid) -> DistMatrix:
    """Collective, unchecked: redistribute A, to new memory unless the layout has partial sums."""
    if layout.partial:  # A has the same partial sums and cuts: the block is unchanged
        return A._like(A.base, layout=layout)
    with collective_section(grid.comm, "a redistribution"):
        A = sum_partials(A, layout) if A.layout.partial else A
        out = A.xp.empty(local_shape(A.shape, layout, grid), A.dtype)
        move(A, layout, grid, out)
    return DistMatrix(out, A.shape, grid, layout)


def local_shape(shape: Shape, layout: Layout, grid: ProcessGrid) -> Shape:
    """Find the shape of this rank's block; (0, 0) on an idle rank."""
    return find_or_make(grid, (local_shape, shape, layout), lambda: layout.local_shape(shape, grid.sizes, grid.coords))


def redistribute(A: DistMatrix, layout: Layout, grid: ProcessGrid | None = None) -> DistMatrix:
    """Collective: see DistMatrix.redistribute."""
    target = A.grid if grid is None else grid
    error: PdlaError | None = None
    try:
        check_grid("redistribute", target)
        check_layout("redistribute", layout)
        check_same_communicator(A.grid, target, "the grid")
        layout.check(A.shape, target.sizes)
        if layout.partial and (target != A.grid or not A.matches_layout(layout)):
            raise LayoutError(f"cannot make partial sums {layout!r} from {A.layout!r}")
    except PdlaError as raised:
        error = raised
    agree(A.grid.comm, f"redistribute {A.description} to {layout!r} on {target!r}", error)
    converted = convert(A, layout, target)
    return converted.copy() if layout.partial else converted


def check_root(comm: Communicator, root: Any) -> None:
    """Raise GridError unless `root` is a rank of the communicator, or None."""
    if root is not None and not (isinstance(root, (int, np.integer)) and 0 <= root < comm.size):
        raise misfit(GridError, root)(f"root={root!r}: the communicator has ranks 0 to {comm.size - 1}")


def gather(A: DistMatrix, root: int | None = None) -> Any:
    """Collective: gather A, C-ordered, on every rank or on `root`; None on the others."""
    comm = A.grid.comm
    with agreed(comm, f"gather {A.description} to root={root}"):
        check_root(comm, root)
    everyone = ProcessGrid.everyone(comm) if root is None else ProcessGrid.trust((1,), comm, [root])
    whole = convert(A, Layout(), everyone)
    return whole.local if everyone.active else None
