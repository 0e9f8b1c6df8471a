"""LU over layers: 2.5-D, by tournaments; rows keep their owners until the end.

Layer k mod c does step k. Block column k is summed over layers, factored, and sent along the grid
rows. All layers receive the numbers of the pivot rows, and each rank moves its pivot rows before
the remaining rows. Pivot rows, right of the panel, are summed over layers, and sent along the grid
columns; each rank there solves for rows of U. The rows of U are sent to the layers that own their
columns. Each layer subtracts its own L U from the remaining rows, an equal share in each of c
steps, while others factor. If another layer needs an addend earlier, that share is subtracted at
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
HEADER = 3  # numbers after each panel, before its pivot rows: the first fault (lapack.find_fault), the least and the largest pivot


class RowPlaces:
    """The places of a matrix's rows on the ranks of a grid column; each rank stores its pivot rows first.

    places  the index at which each row is stored
    rows    the row at each index
    pivots  by rank, its number of pivot rows
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
        """The number of each rank's remaining rows; in a dry run for any pivots the number of all its rows."""
        if extra_deviations.get() == ANY:
            return [len(indices) for indices in self.indices]
        return [len(indices) - pivots for indices, pivots in zip(self.indices, self.pivots, strict=True)]

    @property
    def remaining(self) -> np.ndarray:
        """The remaining rows of this rank, as stored."""
        rank = self.dimension.rank
        return self.rows[self.indices[rank][self.pivots[rank] :]]

    def draw_pivot_rows(self, count: int) -> np.ndarray:
        """Draw `count` of the remaining rows, as pivots of random elements.

        A dry run for any pivots draws other ranks' rows, as remaining rows are sent in all later
        panels.
        """
        remaining = [indices[pivots:] for indices, pivots in zip(self.indices, self.pivots, strict=True)]
        places, sign = np.concatenate(remaining), -1 if extra_deviations.get() == ANY else 1
        return draw_pivot_rows(self.rows[places], self.ranks[places], count, self.dimension.rank, sign)

    def keep_valid(self, rows: np.ndarray) -> np.ndarray:
        """Return these rows if all of them remain. Otherwise a message was wrong: return as many remaining rows."""
        numbers = clip_numbers(rows, 0, self.dimension.n)
        places = self.places[numbers]
        remain = self.dimension.find_places(places) >= np.array(self.pivots)[self.ranks[places]]
        return numbers if remain.all() and len(np.unique(numbers)) == len(numbers) else self.draw_pivot_rows(len(rows))

    def take(self, rows: np.ndarray) -> Permutation:
        """Make these rows the next pivots; return the permutation of this rank's own rows."""
        to, was = Permutation.of_exchanges([self._exchange_next(row) for row in rows.tolist()])
        is_own = self.ranks[to] == self.dimension.rank
        return Permutation(self.dimension.find_places(to[is_own]), self.dimension.find_places(was[is_own]))

    def _exchange_next(self, row: int) -> tuple[int, int]:
        was = int(self.places[row])
        rank = self.ranks[was]
        to = int(self.indices[rank][self.pivots[rank]])
        self.pivots[rank] += 1
        displaced = self.rows[to]
        self.places[row], self.places[displaced], self.rows[to], self.rows[was] = to, was, row, displaced
        return to, was


@dataclass
class Update:
    """The product L U of panel k, which its layer has yet to subtract from block columns `next` on.

    lower  L, in all of this rank's rows
    upper  U, in the columns after block column k
    """

    k: int
    lower: Any
    upper: Any
    next: int


PanelHeader = tuple[np.ndarray, Permutation]  # a panel's header, and the permutation of this rank's rows


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
        self.places, self.first = RowPlaces(rows), 0  # first: the index of this rank's first remaining row
        # Row panels have the remaining rows of L, L11 and U11; column panels the pivot rows.
        self.row_panels: Panels = Panels(cols, self.xp, (height + block + 1) * block + HEADER, self.a.dtype)
        self.col_panels: Panels = Panels(rows, self.xp, block * width, self.a.dtype)
        self.update: Update | None = None
        self.header, self.winners = np.array([0.0, np.inf, 0]), np.zeros(self.size, np.int64)
        self.receives: list[tuple[Pending, Any]] = []  # of rows of U, with their places
        self.broadcasts: list[Pending] = []  # of headers, over depth
        numbers = np.repeat(cols.mine, [cols.width[k] for k in cols.mine])
        # Of each layer: this rank's columns in the layer's panels.
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
        panel, received = None, None
        if k % self.layers.count == self.layers.number:
            self._receive_upper()
            panel, received = self._factor_panel(k)
        self._continue_update(self._find_due(k))
        header, moves = received or self._receive_header(k, panel)
        rows = header[HEADER:].astype(np.int64)
        self.header, self.winners[k * self.cols.block :][: self._count_columns(k)] = merge(self.header, header[:HEADER]), rows
        first = self._move_pivots(*moves)
        self._subtract(slice(first, self.first), self.cols.count)
        if panel is not None:
            self._start_update(k, panel, first)
        ranks, addend = self.places.ranks[rows], self.a[first : self.first, self._find_after(k) :]
        if panel is None:
            self._send_rows(k, addend)
        elif addend.shape[1]:
            self._solve_upper(k, addend, ranks, panel.blocks[1])
        self._update_and_send(k + 1)
        for pending in self.broadcasts:
            pending.wait()
        self.broadcasts.clear()
        if panel is not None:
            panel.wait()
            panel.release()

    def _start_update(self, k: int, panel: Panel, first: int) -> None:
        """Store a received panel in its place, and make it this layer's next update."""
        rows = panel.blocks[0].T
        if panel.mine:
            self.xp.copy(self._view_column(k, first), rows)
        lower = buffer(self.xp, (len(self.a), self._count_columns(k)), self.a.dtype)
        upper = buffer(self.xp, (self._count_columns(k), self.a.shape[1] - self._find_after(k)), self.a.dtype)
        self.xp.copy(lower[self.first :], rows[self.first - first :])
        self.update = Update(k, lower, upper, k + 1)

    def _count_columns(self, k: int) -> int:
        """Count the columns of panel k; the last panel of a wide matrix may be narrower than its block."""
        return min(self.cols.block, self.size - k * self.cols.block)

    def _find_after(self, k: int) -> int:
        """Find this rank's first column after panel k."""
        return self.cols.at[k].start + (self._count_columns(k) if self.cols.rank == self.cols.owner[k] else 0)

    def _view_column(self, k: int, first: int | None = None) -> Any:
        """View panel k, from row `first` on; by default its remaining rows."""
        j = self.cols.at[k].start
        return self.a[self.first if first is None else first :, j : j + self._count_columns(k)]

    def _find_due(self, k: int) -> int:
        """Find the block column up to which this layer must update in step k, to finish before its next turn."""
        if self.update is None:
            return 0
        steps = self.update.k + self.layers.count + 1 - k
        return self.update.next - (self.update.next - self.cols.count) // steps

    def _continue_update(self, end: int) -> None:
        """Continue the update up to this block column."""
        if self.update is not None and end > self.update.next:
            self._subtract(slice(self.first, None), end)
            self.update.next = end

    def _subtract(self, rows: slice, end: int) -> None:
        """Update some rows in the block columns up to this one."""
        u = self.update
        if u is None:
            return
        begin, lo, hi = self._find_after(u.k), self.cols.tail[u.next].start, self.cols.tail[end].start
        x = self.a[rows, lo:hi]
        if x.size:
            multiply(self.xp, u.lower[rows], u.upper[:, lo - begin : hi - begin], x, -1, 1)

    def _update_and_send(self, k: int) -> None:
        """Update block column k, and send this layer's addend to it."""
        self._continue_update(k + 1)
        if k < self.count and self.cols.rank == self.cols.owner[k]:
            self._send_addend(self._view_column(k), k, self.layers.list_earlier(k))

    def _send_addend(self, x: Any, k: int, layers: list[int]) -> None:
        """Start sending x to the layer of panel k, if this layer is one of `layers`."""
        if x.size and self.layers.number in layers:
            self.layers.send_addend(x, k)

    def _add_addends(self, x: Any, layers: list[int]) -> None:
        """Add these layers' addends to x."""
        if x.size:
            for addend, _ in self.layers.receive_addends(x, layers):
                self.xp.add(x, addend)

    def _factor_panel(self, k: int) -> tuple[Panel, PanelHeader | None]:
        """Collective: factor block column k; start sending it along the grid rows, and its header over depth.

        Returns the panel and, on its owners, the header and the permutation.
        """
        w, height = self._count_columns(k), len(self.a) - self.first
        panel = self.row_panels.take(k, (slice(0, w), height), (slice(0, w), w), header=HEADER + w)
        if not panel.mine:
            panel.bcast()
            return panel, None
        x, rows = self._view_column(k), panel.blocks[0].T
        self._add_addends(x, self.layers.list_earlier(k))
        choice, factors = choose_pivots(self.xp, self.rows, self.rows.owner[k], x, self.places.remaining, self.places.heights)
        choice = settle(self.rows.comm, to_host(self.xp, choice, lambda: self._draw_rows(k)), self.rows.owner[k])
        fault, *winners = self._make_valid(choice)
        fault += np.sign(fault) * k * self.cols.block
        header = np.array([fault, *kernels.find_pivot_range(self.xp, factors), *winners])
        self.xp.copy(panel.header, self.xp.asarray(header.astype(x.dtype)))
        self.broadcasts.append(self.layers.comm.bcast(panel.header, self.layers.number))
        numbers = np.array(winners, np.int64)
        own, moves = np.flatnonzero(self.places.ranks[numbers] == self.rows.rank), self.places.take(numbers)
        order = np.arange(height)
        order[moves.to - self.first] = moves.was - self.first
        self.xp.copy(rows, self.xp.take(x, order, ALL))
        self.xp.copy(rows[: len(own)], self.xp.take(factors, own, ALL))
        self.xp.copy(panel.blocks[1], factors)
        solve_l(self.xp, factors, rows[len(own) :])
        panel.bcast()
        return panel, (self._agree_on_header(header, k), moves)

    def _draw_rows(self, k: int) -> np.ndarray:
        """Local: draw a fault and pivot rows as for random elements, for arrays without data."""
        return np.array([0.0, *self.places.draw_pivot_rows(self._count_columns(k))])

    def _make_valid(self, choice: np.ndarray) -> np.ndarray:
        """Local: replace an invalid fault and invalid pivot rows by valid ones, if results are checked."""
        if not is_checking():
            return choice
        return np.array([*clip_numbers(choice[:1], -self.size, self.size + 1), *self.places.keep_valid(choice[1:])], float)

    def _agree_on_header(self, header: np.ndarray, k: int) -> np.ndarray:
        """Collective over all layers, if results are checked: agree on the header on which all ranks act."""
        return settle(self.layers.everyone, header, self.layers.find_root(k))

    def _receive_header(self, k: int, panel: Panel | None) -> PanelHeader:
        """Collective: receive panel k's header, along the grid row or from the panel's layer, and take its pivot rows."""
        w, comm = self._count_columns(k), self.layers.comm
        message = buffer(self.xp, (HEADER + w,), self.a.dtype) if panel is None else panel.wait().header
        pending = comm.bcast(message, k % self.layers.count)
        self.broadcasts.append(pending)
        if panel is None:
            message = pending.wait()
        header = self._agree_on_header(to_host(self.xp, message, lambda: self._draw_header(k)), k)
        return header, self.places.take(header[HEADER:].astype(np.int64))

    def _draw_header(self, k: int) -> np.ndarray:
        """Local: draw a header as for random elements."""
        return np.array([0.0, 1.0, 1.0, *self.places.draw_pivot_rows(self._count_columns(k))])

    def _move_pivots(self, to: np.ndarray, was: np.ndarray) -> int:
        """Move the new pivot rows before the remaining rows; return the first one's index."""
        for x in (self.a, *([] if self.update is None else [self.update.lower])):
            if len(to):
                self.xp.put(x, to, ALL, self.xp.take(x, was, ALL))
        first, self.first = self.first, self.places.pivots[self.rows.rank]
        return first

    def _solve_upper(self, k: int, addend: Any, ranks: np.ndarray, factors: Any) -> None:
        """Solve for rows of U, after panel k, on all ranks of the grid column; send other layers the rows of their columns.

        addend  the layer's addend to this rank's pivot rows
        ranks   each pivot row's owner
        """
        self._add_addends(addend, self.layers.list_others(k))  # of all others: one has the elements that no layer has changed yet
        ends = np.cumsum([0, *np.bincount(ranks, minlength=self.rows.parts)]).tolist()
        panel = self.col_panels.take(k, (slice(0, len(ranks)), addend.shape[1]), writes=len(addend) > 0)
        self.xp.copy(panel.blocks[0][ends[self.rows.rank] : ends[self.rows.rank + 1]], addend)
        panel.bcast_parts({rank: (slice(ends[rank], ends[rank + 1]),) for rank in set(ranks.tolist())})
        upper = self.update.upper  # type: ignore[union-attr]
        self.xp.put(upper, np.argsort(ranks, kind="stable"), ALL, panel.wait().blocks[0])
        panel.release()
        kernels.trsm(self.xp, factors, upper, True, True)
        for layer in range(self.layers.count) if self.rows.rank == self.rows.owner[k] else ():
            columns = self._find_columns(layer, k)
            is_own = layer == self.layers.number
            piece = self._view_row(k, columns) if is_own else buffer(self.xp, (len(upper), len(columns)), upper.dtype)
            self.xp.copy(piece, self.xp.take(upper, ALL, columns - self._find_after(k)))
            if len(columns) and not is_own:
                self.layers.send(piece, layer)

    def _send_rows(self, k: int, addend: Any) -> None:
        """In a layer other than panel k's: send the addend to the pivot rows, and start receiving rows of U in its own columns."""
        self._send_addend(addend, k, self.layers.list_others(k))
        columns = self._find_columns(self.layers.number, k)
        if self.rows.rank == self.rows.owner[k] and len(columns):
            piece = buffer(self.xp, (self._count_columns(k), len(columns)), self.a.dtype)
            self.receives.append((self.layers.comm.recv(piece, k % self.layers.count), self._view_row(k, columns)))

    def _find_columns(self, layer: int, k: int) -> np.ndarray:
        """Find this rank's columns after panel k that belong to a layer."""
        columns = self.columns[layer]
        return columns[np.searchsorted(columns, self._find_after(k)) :]

    def _view_row(self, k: int, columns: np.ndarray) -> Any:
        """View block row k of the matrix, in this layer's last columns."""
        i = self.rows.at[k].start
        return self.stored[i : i + self._count_columns(k), self.stored.shape[1] - len(columns) :]

    def _finish(self, rows: np.ndarray) -> None:
        """Collective along the grid column: move the rows of L to this order, and receive rows of U."""
        for k, in_matrix, in_layer in self.layers.list_panels():
            if k < self.count:
                to = np.arange(k * self.cols.block, self.rows.n)
                was, w, i = self.places.places[rows[to]], self._count_columns(k), self.rows.at[k].start
                RowExchange.to_order(self.rows, to, was).run(self.xp, in_layer[:, :w])
                self.xp.copy(in_matrix[i:, :w], in_layer[i:, :w])
        self._receive_upper()

    def _receive_upper(self) -> None:
        """Wait for rows of U under way, to this layer and to others."""
        for pending, place in self.receives:
            self.xp.copy(place, pending.wait())
        self.receives.clear()
        self.layers.wait()
