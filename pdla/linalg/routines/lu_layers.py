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

from pdla.comm.clock import begin_step
from pdla.comm.ledger import buffer
from pdla.comm.pending import Pending
from pdla.linalg.panels import kernels
from pdla.linalg.panels.blocks import Dimension
from pdla.linalg.panels.layers import Layers, merge
from pdla.linalg.panels.panel import Panel, Panels, to_host
from pdla.linalg.panels.rows import ANY, Permutation, RowExchange, clip_numbers, draw_pivot_rows, extra_deviations, to_pivots
from pdla.linalg.panels.tournament import choose_pivots, solve_l
from pdla.linalg.verify import is_checking, settle
from pdla.matmul.schedules.streams import multiply
from pdla.matrix.core import DistMatrix

ALL = slice(None)
HEADER = 3  # numbers behind each panel, before its pivot rows: the first fault (lapack.find_fault); the least and the largest pivot


class RowPlaces:
    """Where the rows of a matrix lie on the ranks of a grid column: those that are pivots first, as each rank has them.

    places  by row, the index at which it lies;  rows: the other way round
    pivots  by rank, how many of its rows are pivots
    """

    places: np.ndarray
    rows: np.ndarray

    def __init__(self, dimension: Dimension) -> None:
        self.dimension = dimension
        self.places, self.rows = np.arange(dimension.n), np.arange(dimension.n)
        self.ranks: np.ndarray = dimension.find_owners(self.rows)
        self.indices: list[np.ndarray] = [np.flatnonzero(self.ranks == rank) for rank in range(dimension.parts)]
        self.pivots: list[int] = [0] * dimension.parts

    @property
    def heights(self) -> list[int]:
        """How many rows of each rank are left; in a dry run for any pivots at most."""
        if extra_deviations.get() == ANY:
            return [len(indices) for indices in self.indices]
        return [len(indices) - pivots for indices, pivots in zip(self.indices, self.pivots, strict=True)]

    @property
    def left(self) -> np.ndarray:
        """The rows that this rank has left, as they lie."""
        here = self.dimension.rank
        return self.rows[self.indices[here][self.pivots[here] :]]

    def draw_pivot_rows(self, count: int) -> np.ndarray:
        """So many rows of those that are left, as pivots of random elements lie.

        In a dry run for any pivots those of other ranks: rows that are left travel in all later
        panels.
        """
        left = [indices[pivots:] for indices, pivots in zip(self.indices, self.pivots, strict=True)]
        places, sign = np.concatenate(left), -1 if extra_deviations.get() == ANY else 1
        return draw_pivot_rows(self.rows[places], self.ranks[places], count, self.dimension.rank, sign)

    def possible(self, rows: np.ndarray) -> np.ndarray:
        """These rows if they are some of those that are left; else, as of a message that erred, as many of those."""
        numbers = clip_numbers(rows, 0, self.dimension.n)
        places = self.places[numbers]
        left = self.dimension.find_places(places) >= np.array(self.pivots)[self.ranks[places]]
        return numbers if left.all() and len(np.unique(numbers)) == len(numbers) else self.draw_pivot_rows(len(rows))

    def take(self, rows: np.ndarray) -> Permutation:
        """Make these rows the next pivots; gives the permutation of this rank's own rows."""
        to, was = Permutation.of_exchanges([self._exchange_next(row) for row in rows.tolist()])
        mine = self.ranks[to] == self.dimension.rank
        return Permutation(self.dimension.find_places(to[mine]), self.dimension.find_places(was[mine]))

    def _exchange_next(self, row: int) -> tuple[int, int]:
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


Known = tuple[np.ndarray, Permutation]  # of a panel: its header, and the permutation of this rank's rows


class LayeredLU:
    """One rank's work: L and U in place of its blocks of A."""

    xp: Any
    stored: Any
    a: Any
    layers: Layers
    rows: Dimension
    cols: Dimension
    size: int
    places: RowPlaces
    first: int
    header: np.ndarray
    winners: np.ndarray

    def __init__(self, X: DistMatrix, layers: Layers) -> None:
        self.xp, self.stored, self.a, self.layers = X.xp, X.stored, layers.a, layers
        self.rows, self.cols, self.size = layers.rows, layers.cols, min(X.shape)
        (height, width), block, rows, cols = self.a.shape, layers.cols.block, layers.rows, layers.cols
        self.count: int = -(-self.size // block)
        self.places, self.first = RowPlaces(rows), 0  # first: of this rank's rows that are left
        # Of L the rows that are left, with L11 and U11; and pivot rows.
        self.row_panels: Panels = Panels(cols, self.xp, (height + block + 1) * block + HEADER, self.a.dtype)
        self.col_panels: Panels = Panels(rows, self.xp, block * width, self.a.dtype)
        self.update: Update | None = None
        self.header, self.winners = np.array([0.0, np.inf, 0]), np.zeros(self.size, np.int64)
        self.coming: list[tuple[Pending, Any]] = []  # rows of U, and where they belong
        self.going: list[Pending] = []  # headers, over depth
        numbers = np.repeat(cols.mine, [cols.width[k] for k in cols.mine])
        # By layer, which columns lie in it.
        self.columns: list[np.ndarray] = [np.flatnonzero(numbers % layers.count == layer) for layer in range(layers.count)]

    def run(self) -> np.ndarray:
        """Collective: the header of all panels, and all pivots."""
        with self.row_panels, self.col_panels:
            for k in range(self.count):
                begin_step()
                self._run_step(k)
            pivots = to_pivots(self.winners, 0)
            self._finish(Permutation.of_pivots(pivots).rows(self.rows.n))
        return np.concatenate([self.header, pivots])

    def _run_step(self, k: int) -> None:
        panel, known = None, None
        if k % self.layers.count == self.layers.number:
            self._receive_upper()
            panel, known = self._factor_panel(k)
        self._continue_update(self._find_due(k))
        header, moves = known or self._receive_header(k, panel)
        rows = header[HEADER:].astype(np.int64)
        self.header, self.winners[k * self.cols.block :][: self._count_columns(k)] = merge(self.header, header[:HEADER]), rows
        first = self._move_pivots(*moves)
        self._subtract(slice(first, self.first), self.cols.count)
        if panel is not None:
            self._start_update(k, panel, first)
        ranks, mine = self.places.ranks[rows], self.a[first : self.first, self._find_after(k) :]
        if panel is None:
            self._send_rows(k, mine)
        elif mine.shape[1]:
            self._solve_upper(k, mine, ranks, panel.blocks[1])
        self._update_and_send(k + 1)
        for pending in self.going:
            pending.wait()
        self.going.clear()
        if panel is not None:
            panel.wait()
            panel.release()

    def _start_update(self, k: int, panel: Panel, first: int) -> None:
        """Of a panel that has come: put it in its place, and make it this layer's next update."""
        rows = panel.blocks[0].T
        if panel.mine:
            self.xp.copy(self._view_column(k, first), rows)
        lower = buffer(self.xp, (len(self.a), self._count_columns(k)), self.a.dtype)
        upper = buffer(self.xp, (self._count_columns(k), self.a.shape[1] - self._find_after(k)), self.a.dtype)
        self.xp.copy(lower[self.first :], rows[self.first - first :])
        self.update = Update(k, lower, upper, k + 1)

    def _count_columns(self, k: int) -> int:
        """The columns of panel k: of a matrix with fewer rows than columns the last may be narrower than its block."""
        return min(self.cols.block, self.size - k * self.cols.block)

    def _find_after(self, k: int) -> int:
        """Where this rank's columns after panel k begin."""
        return self.cols.at[k].start + (self._count_columns(k) if self.cols.rank == self.cols.owner[k] else 0)

    def _view_column(self, k: int, first: int | None = None) -> Any:
        """Panel k, of rows from `first` on; by default of those that are left."""
        j = self.cols.at[k].start
        return self.a[self.first if first is None else first :, j : j + self._count_columns(k)]

    def _find_due(self, k: int) -> int:
        """The block column up to which this layer's update is to have come in step k: it is done when its turn comes again."""
        if self.update is None:
            return 0
        steps = self.update.k + self.layers.count + 1 - k
        return self.update.next - (self.update.next - self.cols.count) // steps

    def _continue_update(self, end: int) -> None:
        """Go on with the update up to this block column."""
        if self.update is not None and end > self.update.next:
            self._subtract(slice(self.first, None), end)
            self.update.next = end

    def _subtract(self, rows: slice, end: int) -> None:
        """Bring some rows up to date in the block columns up to this one."""
        u = self.update
        if u is None:
            return
        begin, lo, hi = self._find_after(u.k), self.cols.tail[u.next].start, self.cols.tail[end].start
        x = self.a[rows, lo:hi]
        if x.size:
            multiply(self.xp, u.lower[rows], u.upper[:, lo - begin : hi - begin], x, -1, 1)

    def _update_and_send(self, k: int) -> None:
        """Bring block column k up to date, and give what this layer adds to it."""
        self._continue_update(k + 1)
        if k < self.count and self.cols.rank == self.cols.owner[k]:
            self._send_addend(self._view_column(k), k, self.layers.list_earlier(k))

    def _send_addend(self, x: Any, k: int, layers: list[int]) -> None:
        """Start sending x to the layer of panel k, if this is one of the layers that do."""
        if x.size and self.layers.number in layers:
            self.layers.send_addend(x, k)

    def _add_addends(self, x: Any, layers: list[int]) -> None:
        """Add to x what these layers have there."""
        if x.size:
            for addend, _ in self.layers.receive_addends(x, layers):
                self.xp.add(x, addend)

    def _factor_panel(self, k: int) -> tuple[Panel, Known | None]:
        """Collective: factor block column k, start sending it along the grid rows, its header over depth. None: it is to come."""
        w, height = self._count_columns(k), len(self.a) - self.first
        panel = self.row_panels.take(k, (slice(0, w), height), (slice(0, w), w), header=HEADER + w)
        if not panel.mine:
            panel.bcast()
            return panel, None
        x, rows = self._view_column(k), panel.blocks[0].T
        self._add_addends(x, self.layers.list_earlier(k))
        won, factors = choose_pivots(self.xp, self.rows, self.rows.owner[k], x, self.places.left, self.places.heights)
        won = settle(self.rows.comm, to_host(self.xp, won, lambda: self._draw_rows(k)), self.rows.owner[k])
        fault, *winners = self._make_possible(won)
        fault += np.sign(fault) * k * self.cols.block
        header = np.array([fault, *kernels.find_pivot_range(self.xp, factors), *winners])
        self.xp.copy(panel.header, self.xp.asarray(header.astype(x.dtype)))
        self.going.append(self.layers.comm.bcast(panel.header, self.layers.number))
        numbers = np.array(winners, np.int64)
        mine, moves = np.flatnonzero(self.places.ranks[numbers] == self.rows.rank), self.places.take(numbers)
        order = np.arange(height)
        order[moves.to - self.first] = moves.was - self.first
        self.xp.copy(rows, self.xp.take(x, order, ALL))
        self.xp.copy(rows[: len(mine)], self.xp.take(factors, mine, ALL))
        self.xp.copy(panel.blocks[1], factors)
        solve_l(self.xp, factors, rows[len(mine) :])
        panel.bcast()
        return panel, (self._agree_on_header(header, k), moves)

    def _draw_rows(self, k: int) -> np.ndarray:
        """Local: a fault and pivot rows as of random elements, for arrays without data."""
        return np.array([0.0, *self.places.draw_pivot_rows(self._count_columns(k))])

    def _make_possible(self, won: np.ndarray) -> np.ndarray:
        """Local: a fault and pivot rows that can be, where results are checked."""
        if not is_checking():
            return won
        return np.array([*clip_numbers(won[:1], -self.size, self.size + 1), *self.places.possible(won[1:])], float)

    def _agree_on_header(self, header: np.ndarray, k: int) -> np.ndarray:
        """Collective over all layers, where results are checked: the header on which all ranks act."""
        return settle(self.layers.everyone, header, self.layers.find_root(k))

    def _receive_header(self, k: int, panel: Panel | None) -> Known:
        """Collective: the header of panel k, in its layer from along the grid row, in others from that layer; take its rows."""
        w, comm = self._count_columns(k), self.layers.comm
        message = buffer(self.xp, (HEADER + w,), self.a.dtype) if panel is None else panel.wait().header
        coming = comm.bcast(message, k % self.layers.count)
        self.going.append(coming)
        if panel is None:
            message = coming.wait()
        header = self._agree_on_header(to_host(self.xp, message, lambda: self._draw_header(k)), k)
        return header, self.places.take(header[HEADER:].astype(np.int64))

    def _draw_header(self, k: int) -> np.ndarray:
        """Local: a header as of random elements."""
        return np.array([0.0, 1.0, 1.0, *self.places.draw_pivot_rows(self._count_columns(k))])

    def _move_pivots(self, to: np.ndarray, was: np.ndarray) -> int:
        """Put the new pivot rows before those that are left; gives where they begin."""
        for x in (self.a, *([] if self.update is None else [self.update.lower])):
            if len(to):
                self.xp.put(x, to, ALL, self.xp.take(x, was, ALL))
        first, self.first = self.first, self.places.pivots[self.rows.rank]
        return first

    def _solve_upper(self, k: int, mine: Any, ranks: np.ndarray, factors: Any) -> None:
        """Rows of U, in the columns after panel k, on all ranks of the grid column; and for other layers those of their columns.

        mine: what the layer has of this rank's pivot rows;  ranks: which have the pivot rows, each
        """
        self._add_addends(mine, self.layers.list_others(k))  # all, as what no layer has changed yet lies in one of them
        ends = np.cumsum([0, *np.bincount(ranks, minlength=self.rows.parts)]).tolist()
        panel = self.col_panels.take(k, (slice(0, len(ranks)), mine.shape[1]), writes=len(mine) > 0)
        self.xp.copy(panel.blocks[0][ends[self.rows.rank] : ends[self.rows.rank + 1]], mine)
        panel.bcast_parts({rank: (slice(ends[rank], ends[rank + 1]),) for rank in set(ranks.tolist())})
        upper = self.update.upper  # type: ignore[union-attr]
        self.xp.put(upper, np.argsort(ranks, kind="stable"), ALL, panel.wait().blocks[0])
        panel.release()
        kernels.trsm(self.xp, factors, upper, True, True)
        for layer in range(self.layers.count) if self.rows.rank == self.rows.owner[k] else ():
            columns = self._find_columns(layer, k)
            own = layer == self.layers.number
            piece = self._view_row(k, columns) if own else buffer(self.xp, (len(upper), len(columns)), upper.dtype)
            self.xp.copy(piece, self.xp.take(upper, ALL, columns - self._find_after(k)))
            if len(columns) and not own:
                self.layers.send(piece, layer)

    def _send_rows(self, k: int, mine: Any) -> None:
        """In another layer than panel k's: give what this one has of the pivot rows, and await rows of U in its own columns."""
        self._send_addend(mine, k, self.layers.list_others(k))
        columns = self._find_columns(self.layers.number, k)
        if self.rows.rank == self.rows.owner[k] and len(columns):
            piece = buffer(self.xp, (self._count_columns(k), len(columns)), self.a.dtype)
            self.coming.append((self.layers.comm.recv(piece, k % self.layers.count), self._view_row(k, columns)))

    def _find_columns(self, layer: int, k: int) -> np.ndarray:
        """Of this rank's columns those after panel k that lie in a layer."""
        columns = self.columns[layer]
        return columns[np.searchsorted(columns, self._find_after(k)) :]

    def _view_row(self, k: int, columns: np.ndarray) -> Any:
        """Block row k of the matrix, in this layer's last columns."""
        i = self.rows.at[k].start
        return self.stored[i : i + self._count_columns(k), self.stored.shape[1] - len(columns) :]

    def _finish(self, rows: np.ndarray) -> None:
        """Collective along the grid column: bring rows of L to their places, in this order; and await rows of U."""
        for k, here, there in self.layers.list_panels():
            if k < self.count:
                to = np.arange(k * self.cols.block, self.rows.n)
                was, w, i = self.places.places[rows[to]], self._count_columns(k), self.rows.at[k].start
                RowExchange.to_order(self.rows, to, was).run(self.xp, there[:, :w])
                self.xp.copy(here[i:, :w], there[i:, :w])
        self._receive_upper()

    def _receive_upper(self) -> None:
        """Await the rows of U that are on their way, here and to other layers."""
        for pending, place in self.coming:
            self.xp.copy(place, pending.wait())
        self.coming.clear()
        self.layers.wait()
