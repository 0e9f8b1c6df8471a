"""LU over layers: 2.5-D, by tournaments, with rows that stay on the ranks where they lie until the end.

Step k, of the layer whose turn it is. Its block column k is summed over layers, and factored, and
sent along the grid rows; which rows are pivots is told to all layers, whose ranks put theirs before
the rows that are left. What is right of the pivot rows is summed over layers, sent along the grid
columns, where each rank solves for rows of U, and from there to the layers in which these rows of U
lie. What they change below is a layer's own affair: it has c steps of time for it, and does as much
in each, while others factor. Where another layer needs an addend earlier, it does that part at
once. Rows of L go to their places at the end. Kwasniewski et al.: SC 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pdla.comm.ledger import buffer
from pdla.comm.pending import Pending
from pdla.comm.slots import Slots
from pdla.linalg.factorizations import kernels
from pdla.linalg.factorizations.block_cyclic import Dimension
from pdla.linalg.factorizations.layers import Layers
from pdla.linalg.factorizations.row_exchange import RowExchange, moves_by, order, pivots_of
from pdla.linalg.factorizations.tournament import corner, rows_of_l
from pdla.matmul.schedules.streams import multiply
from pdla.matrix.core import DistMatrix

ALL = slice(None)


class RowPlaces:
    """Where the rows of a matrix lie on the ranks of a grid column: those that are pivots first, as each rank has them.

    places  by row, the index at which it lies;  rows: the other way round
    pivots  by rank, how many of its rows are pivots
    """

    def __init__(self, dimension: Dimension) -> None:
        self.dimension = dimension
        self.places, self.rows = np.arange(dimension.n), np.arange(dimension.n)
        self.ranks = dimension.owners(self.rows)
        self.indices = [np.flatnonzero(self.ranks == rank) for rank in range(dimension.parts)]
        self.pivots = [0] * dimension.parts

    @property
    def heights(self) -> list[int]:
        """How many rows of each rank are left."""
        return [len(indices) - pivots for indices, pivots in zip(self.indices, self.pivots, strict=True)]

    @property
    def left(self) -> np.ndarray:
        """This rank's rows that are left, as they lie."""
        here = self.dimension.here
        return self.rows[self.indices[here][self.pivots[here] :]]

    def spread(self, count: int) -> np.ndarray:
        """So many rows of those that are left, evenly spread over all ranks."""
        rows = np.concatenate([self.rows[indices[pivots:]] for indices, pivots in zip(self.indices, self.pivots, strict=True)])
        return rows[np.arange(count) * len(rows) // count]

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Make these rows the next pivots; gives this rank's moves: positions that are written, and those that they get."""
        to, was = moves_by([self._exchange(row) for row in rows.tolist()])
        mine = self.ranks[to] == self.dimension.here
        return self.dimension.places(to[mine]), self.dimension.places(was[mine])

    def _exchange(self, row: int) -> tuple[int, int]:
        was = int(self.places[row])
        rank = self.ranks[was]
        to = int(self.indices[rank][self.pivots[rank]])
        self.pivots[rank] += 1
        other = self.rows[to]
        self.places[row], self.places[other], self.rows[to], self.rows[was] = to, was, row, other
        return to, was


@dataclass
class Update:
    """What a layer has still to subtract: of its panel k, L times U, in the block columns from `next` on.

    lower  L, of all of this rank's rows;  upper: U, in the columns after block column k
    """

    k: int
    lower: Any
    upper: Any
    next: int


@dataclass(frozen=True)
class Panel:
    """A panel as it comes along a grid row.

    rows     L of this rank's rows that are left, pivot rows first
    factors  L and U of the pivot rows;  header: of the first pivot that is 0 or NaN, from 1 on, or 0; and their numbers
    """

    rows: Any
    factors: Any
    header: Any

    @staticmethod
    def of(message: Any, height: int, w: int) -> Panel:
        rows, factors, header = message[: height * w], message[height * w : -1 - w], message[-1 - w :]
        return Panel(rows.reshape(w, height).T, factors.reshape(w, w), header)


class LayeredLU:
    """One rank's work: L and U in place of its blocks of A."""

    def __init__(self, X: DistMatrix, layers: Layers) -> None:
        self.xp, self.stored, self.a, self.layers = X.xp, X.stored, layers.a, layers
        self.rows, self.cols, self.order = layers.rows, layers.cols, min(X.shape)
        (height, width), block, rows, cols = self.a.shape, layers.cols.block, layers.rows, layers.cols
        self.count = -(-self.order // block)
        self.places, self.first = RowPlaces(rows), 0  # first: of this rank's rows that are left
        self.along = Slots(cols.comm, self.xp, (height + block + 1) * block + 1, self.a.dtype)  # panels, of the grid row
        self.down = Slots(rows.comm, self.xp, block * width, self.a.dtype)  # pivot rows, of the grid column
        self.update: Update | None = None
        self.numbers = np.zeros(1 + self.order)
        self.coming: list[tuple[Pending, Any]] = []  # rows of U, and where they belong
        numbers = np.repeat(cols.mine, [cols.width(k) for k in cols.mine])
        self.columns = [np.flatnonzero(numbers % layers.count == layer) for layer in range(layers.count)]  # which lie in it

    def run(self) -> np.ndarray:
        """The number of the first pivot that is 0 or NaN, 0 for none; and the pivots."""
        with self.along, self.down:
            for k in range(self.count):
                self._step(k)
            pivots = pivots_of(self.numbers[1:].astype(np.int64), 0)
            self._finish(order(pivots, self.rows.n))
        return np.array([self.numbers[0], *pivots])

    def _step(self, k: int) -> None:
        turn, w = k % self.layers.count == self.layers.here, self._width(k)
        if turn:
            self._land()
        self._continue(k + 1)
        if self.cols.here == self.cols.owner(k):
            self._sum(self._column(k), k, turn, range(max(0, k - self.layers.count + 1), k))
        coming, header, moved = self._panel(k) if turn else (None, None, None)
        self._continue(self._due(k))
        panel, header = self._told(coming, header, k)
        self.numbers[0], self.numbers[1 + k * self.cols.block :][:w] = self.numbers[0] or header[0], header[1:]
        pivot_rows = header[1:].astype(np.int64)
        first = self._move(*(moved or self.places.take(pivot_rows)))
        upper = self._upper(k, pivot_rows, slice(first, self.first), panel)
        if panel is not None:
            if self.cols.here == self.cols.owner(k):
                self.xp.copy(self._column(k, first), panel.rows)
            lower = buffer(self.xp, (len(self.a), w), self.a.dtype)
            self.xp.copy(lower[self.first :], panel.rows[self.first - first :])
            self.update = Update(k, lower, upper, k + 1)
            self.along.release()

    def _width(self, k: int) -> int:
        """The columns of panel k: of a matrix with fewer rows than columns the last may be narrower than its block."""
        return min(self.cols.block, self.order - k * self.cols.block)

    def _after(self, k: int) -> int:
        """Where this rank's columns after panel k begin."""
        return self.cols.begins(k) + (self._width(k) if self.cols.here == self.cols.owner(k) else 0)

    def _column(self, k: int, first: int | None = None) -> Any:
        """Panel k, of rows from `first` on; by default of those that are left."""
        j = self.cols.begins(k)
        return self.a[self.first if first is None else first :, j : j + self._width(k)]

    def _due(self, k: int) -> int:
        """The block column up to which this layer's update is to have come in step k: it is done when its turn comes again."""
        if self.update is None:
            return 0
        steps = self.update.k + self.layers.count + 1 - k
        return self.update.next - (self.update.next - self.cols.count) // steps

    def _continue(self, end: int) -> None:
        """Go on with the update up to this block column."""
        if self.update is not None and end > self.update.next:
            self._subtract(slice(self.first, None), end)
            self.update.next = end

    def _subtract(self, rows: slice, end: int) -> None:
        """Bring some rows up to date in the block columns up to this one."""
        u = self.update
        if u is None:
            return
        begin, lo, hi = self.cols.begins(u.k + 1), self.cols.begins(u.next), self.cols.begins(end)
        x = self.a[rows, lo:hi]
        if x.size:
            multiply(self.xp, u.lower[rows], u.upper[:, lo - begin : hi - begin], x, -1, 1)

    def _sum(self, x: Any, k: int, turn: bool, steps: range) -> None:
        """Add to x, in the layer whose turn it is, what the layers of these steps have there."""
        layers = [step % self.layers.count for step in steps]
        if x.size and turn:
            for addend, _ in self.layers.given(x, layers):
                self.xp.add(x, addend)
        elif x.size and self.layers.here in layers:
            self.layers.give(x, k)

    def _panel(self, k: int) -> tuple[Pending, Any, Any]:
        """Factor block column k, and start sending it along the grid rows; gives its ranks the header and the rows' moves, too."""
        w, owner, height = self._width(k), self.cols.owner(k), len(self.a) - self.first
        message = self.along.take((height + w + 1) * w + 1, self.cols.here == owner)
        if self.cols.here != owner:
            return self.along.bcast(message, {owner: (ALL,)}), None, None
        x, panel = self._column(k), Panel.of(message, height, w)
        won, factors = corner(self.xp, self.rows, self.rows.owner(k), x, self.places.left, self.places.heights)
        header = self._host(won, k)
        to, was = moved = self.places.take(header[1:].astype(np.int64))
        lying = np.arange(height)
        lying[to - self.first] = was - self.first
        self.xp.copy(panel.rows, self.xp.take(x, lying, ALL))
        self.xp.copy(panel.factors, factors)
        if header[0]:
            header[0] += k * self.cols.block
        self.xp.copy(panel.header, self.xp.asarray(header.astype(x.dtype)))
        mine = np.flatnonzero(self.places.ranks[header[1:].astype(np.int64)] == self.rows.here)
        self.xp.copy(panel.rows[: len(mine)], self.xp.take(factors, mine, ALL))
        rows_of_l(self.xp, factors, panel.rows[len(mine) :])
        return self.along.bcast(message, {owner: (ALL,)}), header, moved

    def _host(self, header: Any, k: int) -> np.ndarray:
        """The header; of arrays without data as of random elements."""
        return self.xp.host_or(header, np.array([0, *self.places.spread(self._width(k))])).real.astype(float)

    def _told(self, coming: Pending | None, known: np.ndarray | None, k: int) -> tuple[Panel | None, np.ndarray]:
        """Collective over depth: panel k, in its layer, and its header, which some ranks know."""
        w, panel = self._width(k), None
        if coming is not None:
            panel = Panel.of(coming.wait(), len(self.a) - self.first, w)
        header = buffer(self.xp, (1 + w,), self.a.dtype) if panel is None else panel.header
        self.layers.comm.bcast(header, k % self.layers.count).wait()
        return panel, self._host(header, k) if known is None else known

    def _move(self, to: np.ndarray, was: np.ndarray) -> int:
        """Put the new pivot rows before those that are left; gives where they begin."""
        for x in (self.a, *([] if self.update is None else [self.update.lower])):
            if len(to):
                self.xp.put(x, to, ALL, self.xp.take(x, was, ALL))
        first, self.first = self.first, self.places.pivots[self.rows.here]
        return first

    def _upper(self, k: int, pivot_rows: np.ndarray, mine: slice, panel: Panel | None) -> Any:
        """The rows of U, in the columns after panel k; to other layers go those of their columns."""
        self._subtract(mine, self.cols.count)
        after, w = self._after(k), self._width(k)
        x = self.a[mine, after:]
        self._sum(x, k, panel is not None, range(k - self.layers.count + 1, k))  # what has not changed yet is in one layer
        if panel is None or not self.a.shape[1] - after:
            self._receive(k, after)
            return None
        ranks = self.places.ranks[pivot_rows]
        ends = np.cumsum([0, *np.bincount(ranks, minlength=self.rows.parts)]).tolist()
        message = self.down.take(w * x.shape[1], len(x) > 0).reshape(w, x.shape[1])
        self.xp.copy(message[ends[self.rows.here] : ends[self.rows.here + 1]], x)
        parts = {rank: (slice(ends[rank], ends[rank + 1]),) for rank in np.unique(ranks).tolist()}
        self.down.bcast(message, parts).wait()
        upper = buffer(self.xp, message.shape, x.dtype)
        self.xp.put(upper, np.argsort(ranks, kind="stable"), ALL, message)
        self.down.release()
        kernels.trsm(self.xp, panel.factors, upper, True, True)
        self._deal(k, upper, after)
        return upper

    def _deal(self, k: int, upper: Any, after: int) -> None:
        """From the rank that is to have rows of U: put them where they lie, in this layer and others."""
        if self.rows.here != self.rows.owner(k):
            return
        for layer, columns in enumerate(self.columns):
            chosen = columns[np.searchsorted(columns, after) :] - after
            if len(chosen) and layer == self.layers.here:
                self.xp.copy(self._row(k, len(chosen)), self.xp.take(upper, ALL, chosen))
            elif len(chosen):
                piece = buffer(self.xp, (len(upper), len(chosen)), upper.dtype)
                self.xp.copy(piece, self.xp.take(upper, ALL, chosen))
                self.layers.send(piece, layer)

    def _receive(self, k: int, after: int) -> None:
        """The other side of it."""
        count = len(columns := self.columns[self.layers.here]) - int(np.searchsorted(columns, after))
        if self.rows.here == self.rows.owner(k) and count and k % self.layers.count != self.layers.here:
            piece = buffer(self.xp, (self._width(k), count), self.a.dtype)
            self.coming.append((self.layers.comm.recv(piece, k % self.layers.count), self._row(k, count)))

    def _row(self, k: int, count: int) -> Any:
        """Of the matrix, block row k, its last columns."""
        i = self.rows.begins(k)
        return self.stored[i : i + self._width(k), self.stored.shape[1] - count :]

    def _finish(self, rows: np.ndarray) -> None:
        """Collective along the grid column: bring rows of L to their places, in this order; and await rows of U."""
        for k, here, there in self.layers.own():
            if k < self.count:
                to = np.arange(k * self.cols.block, self.rows.n)
                was, w, i = self.places.places[rows[to]], self._width(k), self.rows.begins(k)
                RowExchange(self.rows, to[to != was], was[to != was]).run(self.xp, there[:, :w])
                self.xp.copy(here[i:, :w], there[i:, :w])
        self._land()

    def _land(self) -> None:
        """Await the rows of U that are on their way, here and to other layers."""
        for pending, place in self.coming:
            self.xp.copy(place, pending.wait())
        self.coming.clear()
        self.layers.sent()
