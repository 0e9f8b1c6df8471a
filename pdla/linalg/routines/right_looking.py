"""Factors of a Hermitian matrix by one triangle, A = L D L^H, right-looking with look-ahead: on one layer of ranks, or several.

Step k, with diagonal block k as A11, block column k below as A21, and all behind it as A22:

    A11  .      L11  .      D11  .      L11^H L21^H
    A21 A22  =  L21 L22  x   .  D22  x   .    L22^H

The owner of A11 factors it, and broadcasts L11, or its inverse, along its grid column. The ranks there solve L21 = A21 L11^-H
D11^-1, and broadcast L21 along the grid rows. Each rank receives the rows of L21 D11 that face its columns along its grid column.
Then A22 -= L21 D11 L21^H, block column k + 1 first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import gcd
from typing import Any

import numpy as np

from pdla.comm.cache import find_or_make
from pdla.comm.clock import begin_step
from pdla.grid import ProcessGrid
from pdla.layout import Layout
from pdla.linalg.panels.blocks import Dimension, find_dimensions
from pdla.linalg.panels.layers import Layers, merge
from pdla.linalg.panels.panel import Panel, Panels, Step, look_ahead
from pdla.linalg.plan import routine
from pdla.linalg.plan.routine import GridShape
from pdla.linalg.products.rank_k import LEAF, multiply_below
from pdla.linalg.routines.factorization import Factorization
from pdla.linalg.verify import is_checking
from pdla.matmul.schedules.streams import multiply
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import eye

HEADER = 4  # numbers sent after each panel: LAPACK's info, a number for `solve_panel`, the least and the largest pivot
NONE = np.array([0.0, 0, np.inf, 0])  # the header of no panels
NONE.setflags(write=False)


class HermitianFactorization(Factorization):
    """A factorization of the lower triangle of a Hermitian matrix. All such factorizations have this cost."""

    def multiplications(self, m: int, n: int) -> float:
        return min(m, n) ** 3 / 6

    def preference(self, shape: GridShape, block: int) -> Any:
        """Prefer nearly square grids, which send the fewest words; then more grid rows, as all owners of a panel work on it."""
        return -sum(shape), block, shape[0]

    def price(self, step: routine.StepCost) -> float:
        w, rows, cols, (pr, pc, *_) = step.width, step.rows, step.cols, step.shape
        alone = step.lapack(w, w, w**3 / 3) * (1 if step.last else 2)
        wire = step.transfer(0, w * w / pc) + step.transfer(1, rows * w) + step.transfer(0, cols * w)
        facing = pr // gcd(pr, pc)  # grid rows whose rows face a grid column, each of which broadcasts its part
        corner = step.next_arrival(0, w * w) * (0 if step.last else 2) + (facing - 1) * step.message(0, w * w)
        along = step.next_arrival(1, rows * w)
        if step.layers > 1:  # panels of one block go from layer to layer in a grid column, before the broadcast along the rows
            wire += (step.layers - 1) * step.addend((rows + w) * w) / pc
            along = step.addend((rows + w) * w) + (along + step.transfer(0, cols * w)) / step.layers
        rest = step.gemm(rows, (cols + min(cols, LEAF)) // 2, w) + step.touch(2 * cols * w) + step.calls((rows + cols) // w)
        ahead = step.gemm(rows, w, w)
        return step.seconds(alone, ahead + step.touch(2 * rows * w), ahead, rest, wire, corner + along)

    def draw(self, n: int, grid: ProcessGrid, layout: Layout, dtype: np.dtype) -> DistMatrix:
        A = super().draw(n, grid, layout, dtype)
        return (A + A.H.redistribute(layout)) * 0.5 + eye(n, grid, layout, dtype=dtype) * n


class LPanel(Step):
    """Panel k of L, as one rank reads it.

    row     from the grid row: L21 in this rank's rows, and the header
    col     from the grid column: conj(L21 D11) facing this rank's columns, L11 or its inverse, and the header
    faces   the first block column whose conj(L21 D11) is not sent yet
    """

    row: Panel
    col: Panel
    faces: int
    L21_rows: Callable[..., Any]
    L21_cols: Callable[..., Any]
    stop: bool

    def __init__(self, k: int, row: Panel, col: Panel, header: Callable[[], np.ndarray]) -> None:
        super().__init__(k, row, col)
        self.row, self.col, self.faces, self.L21_rows, self.L21_cols = row, col, k + 1, row.rows, col.rows
        self.unknown = header
        self.header: np.ndarray = NONE

    def wait(self) -> None:
        super().wait()
        self.header = self.row.read_header(self.unknown)
        self.stop = bool(self.header[0]) and not is_checking()  # a wrong header must not separate the ranks of a checked call


class RightLooking(ABC):
    """One rank's work: L in place of the lower triangle of A. A subclass has the local steps."""

    xp: Any
    rows: Dimension
    cols: Dimension
    counts: Any
    facing: Any
    more_numbers: np.ndarray

    def count_more(self, w: int) -> int:
        """Count the numbers that follow the header of a panel of w columns. All ranks receive them."""
        return 0

    @abstractmethod
    def factor_block(self, A11: Any, L1: Any) -> list[float]:
        """Local: factor a diagonal block in place. Return its header, and more numbers.

        The header's info counts from the block's first row.
        L1: receives L11, or its inverse, for the panel's solution; empty if there is no panel
        """

    @abstractmethod
    def solve_panel(self, L1: Any, header: np.ndarray, A21: Any, L21: Any) -> None:
        """Local: write A21 L11^-H D11^-1 to L21. header: the numbers sent after the panel, see HEADER."""

    def copy_faces(self, to: Any, L21: Any, header: np.ndarray) -> None:
        """Local: write conj(L21 D11)."""
        self.xp.copy(to, L21, True)

    def __init__(self, L: DistMatrix) -> None:
        self.xp, (self.rows, self.cols) = L.xp, find_dimensions(L)
        self.layers: Layers | None = Layers.of(L, self.rows, self.cols)
        self.a: Any = L.stored if self.layers is None else self.layers.a
        (height, width), block = self.a.shape, self.cols.block
        numbers = HEADER + self.count_more(block)
        self.row_panels: Panels = Panels(self.cols, self.xp, height * block + numbers, self.a.dtype)
        self.col_panels: Panels = Panels(self.rows, self.xp, (width + block) * block + numbers, self.a.dtype)
        self.counts, self.facing = find_or_make(L.grid, (RightLooking, L.shape, L.layout), lambda: (self.count_columns(), {}))

    def count_columns(self) -> np.ndarray:
        """Count, for each of this rank's rows, its columns in or before the row's block."""
        ends = [self.cols.tail[k + 1].start for k in self.rows.mine]
        return np.repeat(np.array(ends, np.int64), [self.rows.width[k] for k in self.rows.mine])

    def run(self) -> np.ndarray:
        """Collective: factor all panels; return their common header, and the numbers that follow the headers."""
        self.more_numbers = np.zeros(sum(map(self.count_more, self.cols.width)))  # zeros from a failed panel on
        with self.row_panels, self.col_panels:
            header = self.factor() if self.layers is None else self.factor_layers(self.layers)
        if not header[0]:
            self.clear_upper()
        return np.concatenate([header, self.more_numbers]) if self.layers is None else self.layers.write_back(header)

    def factor(self) -> np.ndarray:
        """Collective: factor all panels in turn."""
        header = NONE
        for panel in look_ahead(range(self.cols.count), self.factor_panel):
            header = panel.header[:HEADER]
            begin = panel.k * self.count_more(self.cols.block)
            self.more_numbers[begin : begin + len(panel.header) - HEADER] = panel.header[HEADER:]
            # A22 -= L21 D11 L21^H, behind the next panel
            if not panel.stop and panel.k + 2 < self.cols.count:
                self.update_trailing(panel, panel.k + 2)
        return header

    def factor_panel(self, k: int, last: LPanel | None) -> LPanel:
        """Collective: update block column k by the previous panel, L10 and L20, and factor it, the diagonal block first."""
        if last is not None:
            # A11 -= L10 D00 L10^H
            self.send_faces(last, k + 1).wait()
            self.update(last, self.rows.at[k], self.cols.at[k])
        # A11 = L11 D11 L11^H
        panel = self.factor_diagonal(k, NONE if last is None else last.header)
        if last is not None:
            # A21 -= L20 D00 L10^H
            self.send_faces(last, self.cols.count)
            self.update(last, self.rows.tail[k + 1], self.cols.at[k])
        # L21 = A21 L11^-H D11^-1
        self.send_panel(panel)
        return panel

    def factor_diagonal(self, k: int, previous: np.ndarray) -> LPanel:
        """Collective: factor A11, and start sending L11, or its inverse, along the grid column.

        previous: the header of the previous panels, which is kept if one of them failed
        """
        w, numbers = self.cols.width[k], HEADER + self.count_more(self.cols.width[k])
        extent = slice(0, w if k + 1 < self.cols.count else 0)
        row = self.row_panels.take(k, (self.rows.tail[k + 1], w), header=numbers)
        col = self.col_panels.take(k, (self.cols.tail[k + 1], w), (extent, w), header=numbers, writes=True)
        if row.mine and col.mine:
            info, *rest = self.factor_block(self.a[self.rows.at[k], self.cols.at[k]], col.blocks[1])
            header = np.array([info and k * self.cols.block + info, *rest])
            header[:HEADER] = previous[:HEADER] if previous[0] else merge(header[:HEADER], previous[:HEADER])
            self.xp.copy(col.header, self.xp.asarray(header.astype(self.a.dtype)))
        if row.mine:
            col.bcast(whole=False)
        return LPanel(k, row, col, lambda: np.array([0.0, 0, 1, 1, *np.ones(numbers - HEADER)]))

    def send_panel(self, panel: LPanel) -> None:
        """Collective: solve for L21, and start sending it along the grid rows."""
        row, col = panel.row, panel.col
        if row.mine:
            A21, L21 = self.a[self.rows.tail[panel.k + 1], self.cols.at[panel.k]], row.blocks[0]
            self.xp.copy(row.header, col.wait().header)
            if L21.size:
                panel.header = col.read_header(panel.unknown)
                self.solve_panel(col.blocks[1], panel.header, A21, L21)
        row.bcast()
        if self.cols.comm is None:
            self.send_faces(panel, self.cols.count)
        if row.mine:
            self.xp.copy(A21, L21)

    def send_faces(self, panel: LPanel, end: int) -> Panel:
        """Collective: the owners of conj(L21 D11) start sending it, up to block column `end`, along the grid columns."""
        first, panel.faces = panel.faces, max(end, panel.faces)
        if first >= end:
            return panel.col
        key = panel.k, first, end
        if key not in self.facing:
            self.facing[key] = self.find_faces(*key)
        parts, copies = self.facing[key]
        for cols, rows in copies:
            self.copy_faces(panel.L21_cols(cols), panel.L21_rows(rows), panel.header)
        panel.col.bcast_parts(parts)
        return panel.col

    def find_faces(self, k: int, first: int, end: int) -> tuple[dict[int, list[slice]], list[tuple[slice, slice]]]:
        """Local: find, for block columns `first` to `end`, the rows that each rank of the grid column sends, and own copies."""
        parts: dict[int, list[slice]] = {}
        copies, begin = [], self.cols.tail[k + 1].start
        for block in self.cols.list_after(first - 1):
            if block < end:
                owner, cols = self.rows.owner[block], self.cols.at[block]
                start, pieces = cols.start - begin, parts.setdefault(owner, [])
                if pieces and pieces[-1].stop == start:
                    start = pieces.pop().start  # one contiguous piece need not be packed
                pieces.append(slice(start, cols.stop - begin))
                if self.rows.rank == owner:
                    copies.append((cols, self.rows.at[block]))
        return parts, copies

    def update(self, panel: LPanel, rows: slice, cols: slice) -> None:
        """Local: A -= L21 D11 L21^H in some rows, and the columns of one block."""
        if cols.stop > cols.start and rows.stop > rows.start:
            multiply(self.xp, panel.L21_rows(rows), panel.L21_cols(cols).T, self.a[rows, cols], -1, 1)

    def update_trailing(self, panel: LPanel, first: int) -> None:
        """Local but for a wait: A22 -= L21 D11 L21^H from block column `first` on, up to the diagonal."""
        panel.col.wait()
        rows, cols = self.rows.tail[first], self.cols.tail[first]
        L21_rows, L21_cols, counts = panel.L21_rows(rows), panel.L21_cols(cols), self.counts[rows] - cols.start
        multiply_below(self.xp, L21_rows, L21_cols, self.a[rows, cols], counts, -1, beta=1, leaf=self.rows.block)

    def factor_layers(self, layers: Layers) -> np.ndarray:
        """Collective: factor this layer's panels.

        Block columns that other layers wait for are updated first, starting with the panel owners';
        this layer's other columns are last.
        """
        header, count = NONE, self.cols.count
        for k in layers.steps:
            if k >= count:
                break
            begin_step()
            is_owner = self.cols.rank == self.cols.owner[k]
            if is_owner:
                # A1 += the addends of other layers
                header = layers.add_all(self.view_addend(k), k, header)
            panel = self.factor_diagonal(k, header)
            self.send_panel(panel)
            layers.wait()
            near_end = min((k // layers.count + 1) * layers.count, self.cols.count)
            if is_owner:
                self.send_faces(panel, near_end).wait()
                self.send_addends(layers, panel, range(k + 1, near_end), panel.col.read_header(panel.unknown))
            panel.wait()
            header = panel.header
            count = layers.count_steps(count, header)
            self.send_faces(panel, self.cols.count).wait()
            self.send_addends(layers, panel, range(near_end, min(k + layers.count, count)), header)
            self.update_trailing(panel, min(k + layers.count, self.cols.count))
            panel.release()
        layers.wait()
        return header

    def send_addends(self, layers: Layers, panel: LPanel, blocks: range, header: np.ndarray) -> None:
        """Local: update block columns by a panel, and start sending the addends to the layers that wait for them."""
        for k in range(blocks.start, layers.count_steps(blocks.stop, header)):
            if self.cols.rank == self.cols.owner[k]:
                self.update(panel, self.rows.tail[k], self.cols.at[k])
                layers.send_addend(self.view_addend(k), k, header)

    def view_addend(self, k: int) -> Any:
        """View a layer's addend to panel k."""
        return self.a[self.rows.tail[k], self.cols.at[k]]

    def clear_upper(self) -> None:
        """Local: write zeros above the diagonal blocks. Diagonal blocks already have zeros above their diagonals."""
        for k in self.rows.mine:
            self.xp.scale(self.a[self.rows.at[k], self.cols.tail[k + 1]], 0)
