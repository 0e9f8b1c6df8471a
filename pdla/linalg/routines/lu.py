"""LU with row pivoting, P A = L U, right-looking with look-ahead.

Step k, with block k of the diagonal as A11, and all behind it as A22:

      A11 A12     L11  .      U11 U12
    P A21 A22  =  L21 L22  x   .  U22

The owners of block column k factor it, and broadcast L11, U11, L21 and the pivots along the grid
rows. All ranks exchange the rows right of it along the grid columns. The owners of block row k
solve for U12, and broadcast U12 along the grid columns. Then A22 -= L21 U12, block column k + 1
first. Rows of L are exchanged at the end, each once.

On a grid of one row each panel has one owner, and pivots are LAPACK's, on any number of ranks. If
several ranks own a panel, a tournament chooses the pivots.
"""

from __future__ import annotations

from functools import partial
from math import ceil, log2, prod
from typing import Any

import numpy as np

from pdla.comm.ledger import buffer
from pdla.linalg import checks
from pdla.linalg.panels import kernels
from pdla.linalg.panels.blocks import Dimension, count_workspace, find_dimensions
from pdla.linalg.panels.factors import Factors, find_pivot_ratio
from pdla.linalg.panels.layers import Layers, merge
from pdla.linalg.panels.panel import BlockColumns, Panel, Panels, Step, look_ahead, to_host
from pdla.linalg.panels.rows import Permutation, RowExchange, clip_numbers, draw_pivot_rows, to_pivots
from pdla.linalg.panels.tournament import choose_pivots, solve_l
from pdla.linalg.plan import routine
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.routine import GridShape
from pdla.linalg.routines.factorization import Factorization
from pdla.linalg.routines.lu_layers import HEADER, LayeredLU
from pdla.linalg.verify import Claim, is_checking, settle
from pdla.matmul.images import Images, Pair, Part
from pdla.matmul.roles import READ
from pdla.matmul.schedules.streams import multiply
from pdla.matrix.core import DistMatrix

SMALLER = 2.0**-32  # scales A if U overflows: the growth of elements is smaller but for contrived A
OVERWRITTEN = ", or U overflows: without overwrite_a a smaller multiple of A is factored then"


class LUFactorization(Factorization):
    """P A = L U, with partial pivoting, or by tournaments."""

    name, what, layered = "lu", "an LU factorization", True
    about = "factor a random matrix by LU with row pivoting"

    def multiplications(self, m: int, n: int) -> float:
        k = min(m, n)
        return m * n * k - (m + n) * k**2 / 2 + k**3 / 3

    def words(self, m: int, n: int, shape: GridShape, block: int) -> float:
        return lu_words(m, n, shape, block)

    def preference(self, shape: GridShape, block: int) -> Any:
        """Prefer grids whose panels have one owner, as their pivots are LAPACK's."""
        return shape[0] == 1, -sum(shape), block

    def price(self, step: routine.StepCost) -> float:
        w, rows, cols, (pr, pc, *_) = step.width, step.rows, step.cols, step.shape
        rounds = ceil(log2(pr))
        alone = rounds * (step.lapack(2 * w, w, 5 * w**3 / 3) + step.transfer(0, w * w))
        panel = step.lapack(rows + w, w, (rows + 2 * w / 3) * w * w) + step.touch(3 * (rows + w) * w)
        below = step.lapack(w, cols, w * w * cols) / pr + step.touch(4 * w * cols)
        wire = step.transfer(1, (rows + w) * w) + step.transfer(0, 2 * cols * w)
        update = step.gemm(rows, cols, w) + READ * step.touch(rows * cols)  # all of A22 once a step: wide panels reduce that
        ahead = step.gemm(rows, w, w)
        # the tournament; pivots, then the rows exchanged; L11 and the next block of U; the panel
        delay = rounds * step.message(0) + 2 * step.delay(0) + 2 * step.spread(0, w * w) + step.next_arrival(1, (rows + w) * w)
        if step.layers > 1:  # a panel and its pivot rows are summed over layers, and sent, before the next layer's turn
            delay += (step.layers - 1) * step.addend(w * (rows + cols / pr))
            delay += step.transfer(1, ceil(log2(pc)) * rows * w) + step.transfer(0, w * cols)
        return step.seconds(alone, panel, ahead, update + below, wire, delay)

    def numbers(self, m: int, n: int) -> int:
        return HEADER + min(m, n)

    def factor(self, X: DistMatrix) -> np.ndarray:
        rows, cols = find_dimensions(X)
        layers = Layers.of(X, rows, cols)
        with np.errstate(over="ignore", invalid="ignore"):  # the header reports overflow in U as a fault
            return FlatLU(X, rows, cols).run() if layers is None else LayeredLU(X, layers).run()

    def result(self, X: DistMatrix, numbers: np.ndarray) -> tuple[DistMatrix, np.ndarray, int, float]:
        """Return L and U in one matrix, the pivots, U's first fault (lapack.find_fault), and U's least pivot over its largest."""
        fault, least, largest = numbers[:HEADER].tolist()
        return X, numbers[HEADER:].astype(np.int64), int(fault), find_pivot_ratio(least, largest)

    def claim(self, A: DistMatrix, part: Part | None, images: Images, lost: str) -> Claim:
        (m, n), k = A.shape, min(A.shape)
        triangles = ((slice(0, k), slice(None)), Part(False)), ((slice(None), slice(0, k)), Part(True, "one"))
        return Claim(
            n, 2 * (n + k), partial(multiply_by_part, images, A, part),
            lambda result: tuple(partial(images.multiply, result[0][place], part=part) for place, part in triangles),
            matrices=lambda result: result[:1], rows=lambda result: Permutation.of_pivots(result[1]).rows(m), lost=lost,
            control=lambda result: (result[1].tolist(), *result[2:]),
        )

    def factor_to_solve(self, plan: FactorPlan, A: DistMatrix, dtype: np.dtype, overwrite: bool) -> Factors:
        """Collective: factor A. If U overflows and A was not overwritten, factor a power of 2 times A."""
        power, (X, pivots, fault, ratio) = 1.0, self(A, plan.place, dtype, overwrite, plan.reads)
        if fault < 0 and not overwrite:
            del X  # else there would be three copies of A
            power, (X, pivots, fault, ratio) = SMALLER, self(count_workspace(A * SMALLER), plan.place, dtype, True, plan.reads)
        error = describe_fault(fault)
        if fault < 0:
            error += f": A has NaN or infinity{OVERWRITTEN if overwrite else ''}"
        return Factors.of_lu(X, pivots, power, ratio, fault, error)


LU = LUFactorization()


def describe_fault(fault: int) -> str:
    """Describe a fault of U's diagonal."""
    i = abs(fault) - 1
    return f"element ({i}, {i}) of U is {'0' if fault > 0 else 'not finite'}"


def multiply_by_part(images: Images, A: DistMatrix, part: Part | None, x: Pair) -> Pair:
    """Collective: A x, where `part` of A is read and mirrored; None: all of A is read."""
    if part is None:
        return images.multiply(A, x)
    view = A if part.lower else A.H if part.hermitian else A.T
    return images.multiply_reflected(view, x, part.hermitian)


class LUPanel(Step):
    """Panel k of L and U, as a grid row receives it.

    L1           L11, U11 and L21, in this rank's rows
    next         this rank's first column that is not updated yet
    header       the first fault, the least and the largest pivot, and the pivots
    permutation  of rows
    exchange     this rank's part of the permutation
    """

    row: Panel
    next: int
    walk: FlatLU
    header: np.ndarray
    permutation: Permutation
    exchange: RowExchange

    def __init__(self, k: int, row: Panel, next: int, walk: FlatLU) -> None:
        super().__init__(k, row)
        self.row, self.next, self.walk, self.L1 = row, next, walk, row.blocks[0].T

    def wait(self) -> None:
        super().wait()
        self.header = self.walk.agree_on_header(self.row.read_header(lambda: self.walk.draw_header(self.k)), self.k)
        self.permutation = Permutation.of_pivots(self.header[HEADER:].astype(np.int64), self.k * self.walk.block)
        self.exchange = RowExchange(self.walk.rows, *self.permutation)


class FlatLU(BlockColumns):
    """One rank's work on one layer: L and U in place of its blocks of A."""

    def __init__(self, X: DistMatrix, rows: Dimension, cols: Dimension) -> None:
        super().__init__(X, rows, cols)
        self.row_numbers: np.ndarray = X.indices[0].indices()
        self.row_panels: Panels = Panels(self.cols, self.xp, (len(self.a) + 1) * self.block + HEADER, self.a.dtype)

    def run(self) -> np.ndarray:
        """Collective: the header of all panels, and all pivots."""
        header, pivots, permutations = np.array([0.0, np.inf, 0]), [], []
        with self.row_panels:
            for panel in look_ahead(range(self.count), self.factor_panel):
                # U12 = L11^-1 P A12, A22 = P A22 - L21 U12, behind the next panel
                self.update(panel, self.a.shape[1])
                header = merge(header, panel.header[:HEADER])
                pivots.append(panel.header[HEADER:])
                permutations.append(panel.permutation)
            self.exchange_left(permutations)
        return np.concatenate([header, *pivots])

    def factor_panel(self, k: int, last: LUPanel | None) -> LUPanel:
        """Collective: update block column k by the previous panel, factor it, and start sending L1 along the grid rows."""
        if last is not None:
            self.update(last, self.cols.at[k].stop)
        rows, cols = self.rows.tail[k], self.find_columns(k)
        row = self.row_panels.take(k, (slice(0, self.width(k)), rows.stop - rows.start), header=HEADER + self.width(k))
        panel = LUPanel(k, row, cols.stop, self)
        if row.mine:
            # P A1 = L1 U11
            factor = self.factor_locally if self.rows.comm is None else self.factor_by_tournament
            self.xp.copy(row.header, factor(panel.L1, self.a[:, cols], k))
        row.bcast()
        if row.mine:
            self.xp.copy(self.a[rows, cols], panel.L1)
        return panel

    def factor_locally(self, L1: Any, A1: Any, k: int) -> Any:
        """Local: factor block column k, which this rank owns alone, into L1. Return the header."""
        first = k * self.block
        self.xp.copy(L1, A1[first:])
        pivots, fault = kernels.getrf(self.xp, L1, A1[first:])
        return self.header(k, fault, L1, first + pivots)

    def factor_by_tournament(self, L1: Any, A1: Any, k: int) -> Any:
        """Collective along the grid column: factor a block column of several owners by a tournament. Return the header."""
        i, first, root = self.rows.tail[k].start, k * self.block, self.rows.owner[k]
        choice, factors = choose_pivots(self.xp, self.rows, root, A1[i:], self.row_numbers[i:], self.count_rows(k))
        fault, *winners = self.agree_on_rows(to_host(self.xp, choice, lambda: np.array([0, *self.draw_rows(k)])), k)
        pivots = to_pivots(np.array(winners, np.int64), first)
        RowExchange(self.rows, *Permutation.of_pivots(pivots, first)).run(self.xp, A1)
        below = self.find_below(k)
        self.xp.copy(L1[below - i :], A1[below:])
        if self.rows.rank == root:
            self.xp.copy(L1[: len(factors)], factors)
        # L21 = A21 U11^-1
        solve_l(self.xp, factors, L1[below - i :])
        return self.header(k, int(fault), factors, pivots)

    def header(self, k: int, fault: int, U11: Any, pivots: np.ndarray) -> Any:
        """Local: make panel k's header. `fault` counts from the panel's first row."""
        sizes = kernels.find_pivot_range(self.xp, U11)
        return self.xp.asarray(np.array([fault + np.sign(fault) * k * self.block, *sizes, *pivots], self.a.dtype))

    def update(self, panel: LUPanel, end: int) -> None:
        """Collective along the grid column: update A12 and A22 by a panel, in this rank's columns from `next` to `end`."""
        A, panel.next = self.a[:, panel.next : end], max(end, panel.next)
        if not A.shape[1]:
            return
        k, w, i, below = panel.k, panel.L1.shape[1], self.rows.tail[panel.k].start, self.find_below(panel.k)
        # A = P A
        panel.exchange.run(self.xp, A)
        # U12 = L11^-1 A12
        if self.rows.rank == self.rows.owner[k]:
            U12 = A[i : i + w]
            kernels.trsm(self.xp, panel.L1[:w], U12, True, True)
        else:
            U12 = buffer(self.xp, (w, A.shape[1]), A.dtype)
        if k * self.block + w < self.rows.n:
            U12 = self.rows.bcast(U12, self.rows.owner[k]).wait()
        # A22 -= L21 U12
        multiply(self.xp, panel.L1[below - i :], U12, A[below:], -1, 1)

    def exchange_left(self, permutations: list[Permutation]) -> None:
        """Collective along the grid column: move the rows of L. Each block column moves once, for all panels after it."""
        was = np.arange(self.rows.n)  # row i of the final L is row was[i] of block column k as panel k left it
        for k in reversed(range(self.count)):
            if self.cols.rank == self.cols.owner[k]:
                rows = np.arange((k + 1) * self.block, self.rows.n)
                RowExchange.to_order(self.rows, rows, was[(k + 1) * self.block :]).run(self.xp, self.a[:, self.find_columns(k)])
            was = permutations[k].rows(self.rows.n)[was]

    def find_below(self, k: int) -> int:
        """Find this rank's first row below panel k's square."""
        rows = self.rows.at[k]
        return min(rows.stop, rows.start + self.width(k))

    def agree_on_header(self, header: np.ndarray, k: int) -> np.ndarray:
        """Collective along the grid column, if results are checked: agree on a header of valid numbers, on which ranks act."""
        if not is_checking():
            return header
        header = settle(self.rows.comm, header, self.rows.owner[k])
        fault = clip_numbers(header[:1], -self.size, self.size + 1)
        return np.array([*fault, *header[1:HEADER], *clip_numbers(header[HEADER:], k * self.block, self.rows.n)])

    def agree_on_rows(self, choice: np.ndarray, k: int) -> np.ndarray:
        """Collective along the grid column, if results are checked: agree on the fault and the winners of a tournament."""
        if not is_checking():
            return choice.astype(np.int64)
        choice = settle(self.rows.comm, choice, self.rows.owner[k])
        fault, winners = clip_numbers(choice[:1], -self.size, self.size + 1), clip_numbers(choice[1:], k * self.block, self.rows.n)
        return np.array([*fault, *winners])

    def draw_rows(self, k: int) -> np.ndarray:
        """Local: draw pivot rows of panel k as for random elements, for arrays without data."""
        remaining = np.arange(k * self.block, self.rows.n)
        sign = -1 if self.rows.rank == self.rows.owner[k] else 1
        return draw_pivot_rows(remaining, self.rows.find_owners(remaining), self.width(k), self.rows.rank, sign)

    def draw_header(self, k: int) -> np.ndarray:
        """Local: draw the header of panel k as for random elements."""
        return np.array([0, 1, 1, *to_pivots(self.draw_rows(k), k * self.block)], float)


def lu_words(m: int, n: int, grid: tuple[int, ...], block: int) -> float:
    """Words that a rank receives, in the mean, for LU of an m x n matrix on a pr x pc grid.

    Parameters
    ----------
    m, n : int
        Rows and columns.
    grid : tuple of int
        pr and pc; with c layers of pr x pc ranks also c.
    block : int
        Columns of a panel; on one layer also the rows of a square block.

    Returns
    -------
    float
        Exact for pr = 1 if blocks divide m and n. Otherwise row exchanges depend on A; the count is
        that of random matrices.

    Raises
    ------
    ShapeError
        For a negative size, and a grid or a block of none.

    Notes
    -----
    An n x n matrix takes about n^2 / 2 (1/pr + 1/pc - 2/P) words for panels of L and rows of U, P =
    pr pc. Row exchanges add 3/2 n^2 / P (1 - 1/pr). Over c layers of pr x pc = P / c ranks it takes
    about n^2 / 2 P (pr + pc - 2 + 2 (c - 1) + (c - 1) / c + 1 - 1/pr). The terms are, in this
    order: panels and rows of U, other layers' addends, rows of U for other layers, rows of L.

    Examples
    --------
    >>> pdla.linalg.lu_words(1024, 1024, (1, 4), 64)
    418596.0
    """
    checks.check_formula(grid, (2, 3), block, m=m, n=n)
    pr, pc, *depth = grid
    c = prod(depth)
    i = np.arange(0, min(m, n), block)
    w, blocks = np.minimum(block, min(m, n) - i), -(-(m - i) // (block * c))
    tournament = (np.minimum(pr, blocks) - 1) * w * (1 + w) + (pr - 1) * (1 + w + w * w)  # the rows that ranks send, and the result
    cols_after, share = n - i - w, 1 - -(-blocks // pr) / blocks  # the share of the remaining rows that the pivots' owner lacks
    tournament = tournament if pr > 1 else 0 * tournament
    if c > 1:
        panels = (pc - 1) * ((m - i) * w + pr * (HEADER + w + w * w)) + (pr - 1) * w * cols_after
        addends = np.minimum(np.arange(len(i)), c - 1) * (m - i) * w + (c - 1) * w * cols_after
        headers, rows_of_u = pr * pc * (c - 1) * (HEADER + w), w * cols_after * (c - 1) / c
        return float((panels + tournament + addends + headers + rows_of_u + w * (m - i) * share).sum() / (pr * pc * c))
    panels = (pc - 1) * ((m - i) * w + pr * (HEADER + w)) + (pr - 1) * w * np.where(m > i + w, cols_after, 0)
    rows_after, blocks_after = m - i - w, -(-(m - i - w) // block)
    rows_of_l = (min(m, n) - i - w) * (2 - (min(m, n) - i - w) / np.maximum(rows_after, 1))  # rows of L, at the end
    exchanged = 2 * (n - i) * w * share + w * rows_of_l * (1 - -(-blocks_after // pr) / np.maximum(blocks_after, 1))
    return float((panels + tournament + exchanged).sum() / (pr * pc))
