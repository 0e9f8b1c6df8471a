"""Triangular systems T X = B, T in square blocks over a grid, by substitution in place in B.

Step k of a lower triangle, with diagonal block k as T11, and all that is solved for after it as T22:

    T11  .      X1     B1
    T21 T22  x  X2  =  B2

Many columns: T's panels are broadcast along the grid rows, each during the step before, and blocks
of X along the grid columns (right-looking). Few columns: T is not sent; addends of B's blocks are
summed along the grid rows. A transpose is a view, whose grid rows are T's grid columns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pdla.comm.agreement import collective_section
from pdla.comm.cache import find_or_make
from pdla.comm.clock import begin_step
from pdla.comm.ledger import buffer
from pdla.cuts import Block
from pdla.errors import LinAlgError
from pdla.grid import ProcessGrid
from pdla.layout import Layout, axes_of, effective
from pdla.linalg.panels import kernels
from pdla.linalg.panels.blocks import (
    Dimension,
    count_workspace,
    find_dimensions,
    is_in_square_blocks,
    make_working_copy,
    pick_diagonal,
)
from pdla.linalg.panels.factors import Factors, find_pivot_ratio
from pdla.linalg.panels.panel import Extent, Panel, Panels, Step, look_ahead
from pdla.linalg.plan import routine
from pdla.linalg.plan.blocking import Place, choose_place
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.routine import GridShape, Routine
from pdla.linalg.products.rank_k import multiply_below
from pdla.linalg.verify import settle
from pdla.matmul.schedules.streams import multiply
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import eye
from pdla.matrix.redistribute import local_shape, sum_partials

ALL = slice(None)
FEW = 32  # the most columns of right-hand sides for which sums are sent, and not the triangle


class TriangularSystem(Routine):
    """T X = B, T of m rows, B of n columns."""

    name = "trsm"
    about = "solve a random triangular system"

    def multiplications(self, m: int, n: int) -> float:
        return m * m * n / 2

    def size(self, m: int, n: int) -> int:
        return m

    def sizes(self, A: Any, B: Any = None) -> tuple[int, int]:
        return A.shape[0], A.shape[0] if B is None else count_columns(B)

    def columns(self, n: int, done: int, block: int, ranks: int) -> int:
        return n if n <= FEW else -(-n // ranks)

    def words(self, m: int, n: int, shape: GridShape, block: int) -> float:
        pr, pc = shape
        if n <= FEW:
            return m * n * (1 - 1 / pr + (1 - 1 / pc)) / pc
        return m * m / (2 * pr) * (1 - 1 / pc) + m * n / pc * (1 - 1 / pr)

    def bound(self, m: int, n: int, shape: GridShape) -> float:
        return 0.0

    def price(self, step: routine.StepCost) -> float:
        w, rows, cols, (pr, pc) = step.width, step.rows, step.cols, step.shape
        solved = step.lapack(w, cols, w * w * cols)
        if step.task.n <= FEW:
            wire, rest = step.transfer(0, w * cols) + step.transfer(1, w * cols / pr), step.gemm(rows, cols, w)
            return step.seconds(solved, rest, 0.0, 0.0, wire, step.delay(0) + step.delay(1))
        wire = step.transfer(1, (rows + w / pr) * w) + step.transfer(0, cols * w)
        # a rank solves in each pr-th step; in a factorization it works alone in each pc-th
        busy = step.gemm(rows, cols, w) + step.touch((rows + w) * w) + solved / pr - solved / pc
        ahead = step.gemm(min(rows, w), cols, w)
        delay = max(step.next_arrival(0, cols * w), step.next_arrival(1, (rows + w / pr) * w))
        return step.seconds(solved, 0.0, ahead, busy, wire, delay)

    def draw(self, n: int, grid: ProcessGrid, layout: Layout, dtype: np.dtype) -> DistMatrix:
        return super().draw(n, grid, layout, dtype) + eye(n, grid, layout, dtype=dtype) * n

    def factor_to_solve(self, plan: FactorPlan, A: DistMatrix, dtype: np.dtype, overwrite: bool) -> Factors:
        """Local: A is its own factor; the plan says which part is read."""
        assert plan.reads is not None
        return Factors(A, ((False, plan.reads),))


TRIANGULAR = TriangularSystem()


def count_columns(B: Any) -> int:
    """Count the columns of a right-hand side, a matrix or a vector."""
    return B.shape[1] if len(B.shape) > 1 else 1


def to_square_blocks(A: DistMatrix, dtype: np.dtype, place: Place | None = None) -> DistMatrix:
    """Collective: return A, if it has square blocks and this dtype, else a copy in `place`, by default the cheapest."""
    if is_in_square_blocks(A) and A.dtype == dtype:
        return A
    return make_working_copy(A, *(place or choose_place(TRIANGULAR, A, None, dtype)), dtype)


def check_diagonal(T: DistMatrix) -> float:
    """Collective: the quotient of the least and the largest absolute value on T's diagonal.

    The quotient is 1 without data, NaN for an infinite element. LinAlgError, on every rank, if the diagonal has a zero.
    """
    comm, n = T.grid.comm, T.shape[0]
    with collective_section(comm, "a diagonal"):
        T = sum_partials(T, T.layout.summed) if T.layout.partial else T
        numbers, elements = pick_diagonal(T)
        with np.errstate(over="ignore"):
            sizes = np.abs(elements.astype(complex))
        own = np.array([-numbers[sizes == 0].min(initial=n), -sizes.min(initial=np.inf), sizes.max(initial=0)], float)
        extremes = comm.xp.asarray(own)
        for half in comm.halves(extremes.copy(), extremes, "maximum"):
            half.wait()
    first, least, largest = np.abs(settle(comm, comm.xp.host_or(extremes, np.array([n, 1, 1])))).tolist()
    if first < n:
        raise LinAlgError(f"the triangular matrix is singular: element ({int(first)}, {int(first)}) of its diagonal is 0")
    return find_pivot_ratio(least, largest) if n else 1.0


def lay_out(T: DistMatrix, few: bool) -> Layout:
    """Local: the layout of B for substitution. All ranks of a grid row have few columns, and sum their addends of X."""
    return Layout.trust(T.layout.rows, () if few else tuple(map(Block, axes_of(effective(T.layout.cols, T.grid.sizes)))))


def substitute(T: DistMatrix, X: DistMatrix, lower: bool, unit: bool, at_diagonal: bool = False) -> DistMatrix:
    """Collective: X of T X = B in place of B, in the layout of `lay_out`; T in square blocks, without zeros on its diagonal.

    at_diagonal: for few columns; block k of B, and of X, is on the owner of T's diagonal block k, and 0 elsewhere
    """
    steps = Substitution(T, X, lower, unit)
    if X.shape[1] > FEW:
        steps.solve_many()
        return X
    steps.solve_few(at_diagonal)
    columns = axes_of(effective(T.layout.cols, T.grid.sizes))
    return X._like(X.base, layout=Layout.trust(X.layout.rows, (), columns)) if columns else X


def place_on_diagonal(T: DistMatrix, b: Any, dtype: np.dtype) -> DistMatrix:
    """Local: place few columns b on the owners of T's diagonal blocks, and 0 elsewhere.

    All ranks have all of b; or b is in the layout of T or T^H, whose diagonal blocks have the same owners.
    """
    if isinstance(b, DistMatrix) and b.layout.rows == T.layout.rows:
        return b
    (rows, cols), layout, shape = find_dimensions(T), Layout.trust(T.layout.rows, ()), b.shape
    x = T.xp.empty(local_shape(shape, layout, T.grid), dtype)
    T.xp.scale(x, 0)
    for k in rows.mine if T.grid.active else ():
        if cols.owner[k] == cols.rank:
            rows_of_b = b.stored[cols.at[k]] if isinstance(b, DistMatrix) else b[k * rows.block : k * rows.block + rows.width[k]]
            T.xp.copy(x[rows.at[k]], rows_of_b.astype(dtype, copy=False))
    return count_workspace(DistMatrix(x, shape, T.grid, layout))


def gather_diagonal(T: DistMatrix, X: DistMatrix) -> DistMatrix:
    """Collective: allgather X, of few columns, from the owners of T's diagonal blocks."""
    comm, xp, width = X.grid.comm, X.xp, X.shape[1]
    own, order, ends = find_or_make(T.grid, (gather_diagonal, T.shape, T.layout), lambda: locate_diagonal(T))
    x, result = buffer(xp, (ends[-1], width), X.dtype), xp.empty(X.shape, X.dtype)
    pieces = [x[lo:hi] for lo, hi in pairwise(ends)]
    if len(own):  # an idle rank's block has no columns
        xp.copy(pieces[comm.rank], xp.take(X.stored, own, ALL))
    comm.allgather(pieces[comm.rank], pieces).wait()
    xp.put(result, order, ALL, x)
    return DistMatrix(result, X.shape, ProcessGrid.everyone(comm), Layout())


def locate_diagonal(T: DistMatrix) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Local: find the rows of the diagonal blocks.

    Returns the indices of this rank's rows, the numbers of all rows ordered by rank, and where each rank's rows end in this order.
    """
    (rows, cols), n, grid = find_dimensions(T), np.arange(T.shape[0]), T.grid
    dimensions = ((rows, T.layout.rows), (cols, T.layout.cols))
    owners = {axes_of(effective(cuts, grid.sizes)): dimension.find_owners(n) for dimension, cuts in dimensions}
    ranks = grid.ranks[tuple(owners.get((axis,), np.zeros_like(n)) for axis in grid.axes)]
    own, counts = n[ranks == grid.comm.rank], np.bincount(ranks, minlength=grid.comm.size)
    return rows.find_places(own), np.argsort(ranks, kind="stable"), [0, *np.cumsum(counts).tolist()]


class XBlock(Step):
    """Block k of X, as a grid column receives it, and T's panel that it is solved by.

    cols  the columns to compute
    rest  the rows of B2 that are not updated yet
    """

    cols: slice
    rest: slice

    def __init__(self, k: int, T: Panel, X: Panel, cols: slice, rest: slice) -> None:
        super().__init__(k, T, X)
        self.T, self.X, self.cols, self.rest = T, X, cols, rest


class Substitution:
    """One rank's work: T X = B, in place in X's block, which is B at first."""

    xp: Any
    t: Any
    x: Any
    conjugated: bool
    lower: bool
    unit: bool
    rows: Dimension
    cols: Dimension
    panels: deque[Panel]
    later: Iterator[int]

    def __init__(self, T: DistMatrix, X: DistMatrix, lower: bool, unit: bool) -> None:
        self.xp, self.t, self.x = T.xp, T.stored, X.stored
        self.conjugated, self.lower, self.unit = T.conjugated, lower, unit
        self.rows, self.cols = find_dimensions(T)
        self.counts: np.ndarray | None = None  # the columns computed for each row, if they differ within a panel
        self.widths: Sequence[int] = [self.x.shape[1]] * self.rows.count  # the columns computed for each block
        steps = range(self.rows.count if T.grid.active else 0)
        self.steps: range = steps if lower else steps[::-1]
        block = self.cols.block
        self.row_panels: Panels = Panels(self.cols, self.xp, len(self.t) * block, self.t.dtype)  # of T
        self.col_panels: Panels = Panels(self.rows, self.xp, self.x.shape[1] * block, self.x.dtype)  # of X

    def solve_many(self, widths: Sequence[int] | None = None) -> None:
        """Collective along the grid rows and columns: solve for many columns.

        widths: for each block, how many of this rank's columns to compute, the first ones; ascending. None computes all columns.
        With an upper triangle, earlier blocks of rows are therefore updated in fewer columns.
        """
        if not self.steps:
            return
        if widths is not None:
            self.widths = widths
            if not self.lower:
                heights = [self.rows.width[k] for k in self.rows.mine]
                self.counts = np.repeat([widths[k] for k in self.rows.mine], heights)
        with self.row_panels, self.col_panels:
            self.panels, self.later = deque(map(self.send_panel, self.steps[:2])), iter(self.steps[2:])
            for block in look_ahead(self.steps, self.solve_block):
                if block.k != self.steps[-1]:
                    # B2 -= T21 X1, behind the next block
                    self.update(block, block.rest)

    def solve_block(self, k: int, last: XBlock | None) -> XBlock:
        """Collective: update block k of B by X0, the previous block of X; solve for X1; start sending a later panel of T."""
        if last is not None:
            # B1 -= T10 X0
            self.update(last, self.rows.at[k])
            last.rest = self.find_rest(k)
        # X1 = T11^-1 B1
        block = self.solve_diagonal(k, self.panels.popleft().wait())
        next_panel = None if last is None else next(self.later, None)
        if next_panel is not None:
            self.panels.append(self.send_panel(next_panel))
        return block

    def solve_diagonal(self, k: int, T: Panel) -> XBlock:
        """Solve T11 X1 = B1, and start sending X1 along the grid column."""
        rows, cols = self.rows.at[k], slice(0, self.widths[k])
        X1 = self.x[rows, cols]
        if self.rows.rank == self.rows.owner[k]:
            kernels.trsm(self.xp, T.rows(rows), X1, self.lower, self.unit)
        X = self.col_panels.send(k, (slice(0, self.rows.width[k]), cols.stop), X1)
        return XBlock(k, T, X, cols, self.find_rest(k))

    def update(self, block: XBlock, rows: slice) -> None:
        """Local: B2 -= T21 X1, in some rows."""
        T21, X1 = block.T.rows(rows), block.X.blocks[0]
        if self.counts is None:
            multiply(self.xp, T21, X1, self.x[rows, block.cols], -1, 1)
        else:
            multiply_below(self.xp, T21, X1.T, self.x[rows], self.counts[rows], -1, beta=1, leaf=self.rows.block)

    def find_rest(self, k: int) -> slice:
        """Find the rows of T21 on this rank."""
        return self.rows.tail[k + 1] if self.lower else slice(0, self.rows.at[k].start)

    def view_panel(self, k: int) -> tuple[Extent, Any]:
        """View T11 and T21 in this rank's rows: their rows and width, and the elements on their owners."""
        rows = self.rows.tail[k] if self.lower else slice(0, self.rows.at[k].stop)
        return (rows, self.cols.width[k]), self.t[rows, self.cols.at[k]]

    def send_panel(self, k: int) -> Panel:
        """Collective: start sending T11 and T21 along the grid rows."""
        return self.row_panels.send(k, *self.view_panel(k), self.conjugated)

    def solve_few(self, at_diagonal: bool) -> None:
        """Collective along the grid rows and columns: solve for few columns.

        The rank that solves a block sums its addends, and keeps the block of X. B starts on the first rank of a grid row or, with
        at_diagonal, on the rank that solves each block; the others have 0.
        """
        if self.cols.rank and not at_diagonal:
            self.xp.scale(self.x, 0)
        with self.col_panels:
            for k in self.steps:
                begin_step()
                if k != self.steps[0] or not at_diagonal:
                    self.sum_addends(k)
                if self.cols.rank == self.cols.owner[k]:
                    # X1 = T11^-1 B1
                    block = self.solve_diagonal(k, self.row_panels.view(*self.view_panel(k), self.conjugated))
                    block.wait()
                    # B2 -= T21 X1
                    self.update(block, block.rest)
                    block.X.release()

    def sum_addends(self, k: int) -> None:
        """Collective along the grid row: sum all addends of B1 on T11's owner; the other ranks set theirs to 0."""
        owner, x = self.cols.owner[k], self.x[self.rows.at[k]]
        if self.cols.comm is None or self.rows.rank != self.rows.owner[k] or not x.size:
            return
        self.cols.comm.reduce(x, owner).wait()
        if self.cols.rank != owner:
            self.xp.scale(x, 0)
