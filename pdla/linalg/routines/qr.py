"""QR by Householder's reflections, A = Q R, right-looking with look-ahead.

Step k, with block k of the diagonal as A11:

      A11 A12             R11 R12
      A21 A22  = Q_k  x    .  A22     Q_k = I - V T V^H, of which V1 is unit lower triangular

The owners of block column k factor it, and broadcast V and T along the grid rows. All ranks
multiply their columns by Q_k^H, block column k + 1 first: C -= V T^H V^H C, where V^H C is summed
along the grid column. R is stored on and above the diagonal, V below it.

If several ranks own a panel, a tree factors it, and V is reconstructed (panels/reflectors.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil, log, prod
from typing import Any

import numpy as np

from pdla.comm.ledger import buffer
from pdla.grid import ProcessGrid
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.panels import kernels
from pdla.linalg.panels.blocks import Dimension, find_dimensions
from pdla.linalg.panels.panel import BlockColumns, Panel, Panels, Step, look_ahead
from pdla.linalg.panels.reflectors import apply, clear, factor_distributed, factor_local, list_upper
from pdla.linalg.panels.tournament import FAN
from pdla.linalg.plan import routine
from pdla.linalg.plan.routine import GridShape
from pdla.linalg.routines.factorization import Factorization
from pdla.linalg.verify import Claim
from pdla.matmul.images import Images, Pair, Part
from pdla.matmul.roles import READ
from pdla.matmul.schedules.streams import multiply
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import convert

WIDTH = 128  # of panels on one rank
HEADER = 2  # numbers sent after each panel: the least and the largest absolute value on R's diagonal


class QRFactorization(Factorization):
    """A = Q R, with Q as reflections below the diagonal."""

    name, what = "qr", "a QR factorization"
    about = "factor a random matrix by QR with Householder's reflections"

    def multiplications(self, m: int, n: int) -> float:
        k = min(m, n)
        return 2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3

    def words(self, m: int, n: int, shape: GridShape, block: int) -> float:
        return qr_words(m, n, shape, block)

    def preference(self, shape: GridShape, block: int) -> Any:
        """Prefer grids whose panels have one owner, as sums are few then."""
        return shape[0] == 1, block

    def price(self, step: routine.StepCost) -> float:
        w, rows, cols, (pr, _) = step.width, step.rows, step.cols, step.shape
        if step.shape == (1, 1):
            return step.lapack(step.task.m, step.task.n, 2 * step.task.multiplications)
        rounds = ceil(log(pr, FAN)) if pr > 1 else 0
        alone = rounds * 2 * (step.lapack(FAN * w, w, 3 * FAN * w**3) + step.message(0, w * w)) + 2 * rounds * step.calls(8)
        panel = step.lapack(rows + w, w, 3 * (rows + w) * w * w) + step.touch(3 * (rows + w) * w)
        wire = step.transfer(1, (rows + 2 * w) * w) + 2 * step.transfer(0, cols * w)
        update = step.gemm(w, cols, rows + w) + step.gemm(w, cols, w) + step.gemm(rows + w, cols, w)
        update += READ * step.touch(rows * cols)
        ahead = step.gemm(w, w, rows + w) + step.gemm(rows + w, w, w)
        delay = step.next_arrival(1, (rows + 2 * w) * w) + 2 * step.message(0, w * w) + (step.spread(0, 2 * w * w) if pr > 1 else 0)
        return step.seconds(alone, panel, ahead, update, wire, delay)

    def numbers(self, m: int, n: int) -> int:
        return HEADER + 2 * min(m, n)  # tau may be complex

    def factor(self, X: DistMatrix) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return FlatQR(X, *find_dimensions(X)).run()

    def result(self, X: DistMatrix, numbers: np.ndarray) -> tuple[DistMatrix, np.ndarray, float, float]:
        """Return R and reflections in one matrix, tau, and the least and the largest of R's diagonal."""
        (least, largest), tau = numbers[:HEADER].tolist(), numbers[HEADER:].view(complex)
        return X, (tau if X.dtype.kind == "c" else tau.real).astype(X.dtype), least, largest

    def claim(self, A: DistMatrix, part: Part | None, images: Images, lost: str) -> Claim:
        """Claim: A x = Q (R x)."""
        (m, n), k = A.shape, min(A.shape)
        return Claim(
            n, 8 * (m + n), partial(images.multiply, A),
            lambda result: (partial(images.multiply, result[0][:k, :], part=Part(False)), partial(reflect, result[0], result[1])),
            matrices=lambda result: result[:1], control=lambda result: result[1].tolist(), lost=lost,
        )


QR = QRFactorization()


class Forming(routine.Routine):
    """Form Q of n reflections as an m x n matrix."""

    name, what = "form_q", "Q"
    about = "form Q of reflections"

    def sizes(self, A: DistMatrix, B: Any = None) -> tuple[int, int]:
        return A.shape[0], min(A.shape)

    def multiplications(self, m: int, n: int) -> float:
        return m * n**2 - n**3 / 3

    def words(self, m: int, n: int, shape: GridShape, block: int) -> float:
        """Count panels as in QR, V^H V along one grid column, and V^H C along all."""
        (pr, pc), i = shape, np.arange(0, n, block)
        w = np.minimum(block, n - i)
        panels = (pc - 1) * ((m - i) * w + pr * (w * w + HEADER))
        return float((panels + 2 * (pr - 1) * w * (w + n - i)).sum() / prod(shape))

    def price(self, step: routine.StepCost) -> float:
        w, rows, cols = step.width, step.rows, step.cols
        if step.shape == (1, 1):
            return step.lapack(step.task.m, step.task.n, 2 * step.task.multiplications)
        panel = step.gemm(w, w, rows + w) + step.message(0, 2 * w * w) + step.touch(2 * (rows + w) * w)
        alone = step.lapack(w, w, w**3 / 3)
        wire = step.transfer(1, (rows + 2 * w) * w) + 2 * step.transfer(0, (cols + w) * w)
        update = step.gemm(w, cols + w, rows + w) + step.gemm(w, cols + w, w) + step.gemm(rows + w, cols + w, w)
        return step.seconds(alone, panel, 0.0, update + READ * step.touch(rows * cols), wire, step.message(0, 2 * cols * w))


FORMING = Forming()


class QRPanel(Step):
    """Panel k, as a grid row receives it: V, in this rank's rows, and T.

    next  this rank's first column that is not updated yet
    """

    row: Panel
    next: int
    sizes: Any

    def __init__(self, k: int, row: Panel, next: int) -> None:
        super().__init__(k, row)
        self.row, self.next, self.V = row, next, row.blocks[0].T
        w = self.V.shape[1]
        self.T, self.sizes = row.header[: w * w].reshape(w, w), row.header[w * w :]


class Reflectors(BlockColumns):
    """One rank's part of a matrix whose columns are panels of reflections."""

    def __init__(self, X: DistMatrix, rows: Dimension, cols: Dimension) -> None:
        if rows.comm is cols.comm is None:  # one rank has all of X: one block
            rows, cols = Dimension(rows.n, WIDTH), Dimension(cols.n, WIDTH)
        super().__init__(X, rows, cols)
        self.row_panels: Panels = Panels(cols, self.xp, (len(self.a) + self.block) * self.block + HEADER, self.a.dtype)

    def take(self, k: int, next: int = 0) -> QRPanel:
        """Local: take the next slot for panel k."""
        rows, w = self.rows.tail[k], self.width(k)
        return QRPanel(k, self.row_panels.take(k, (slice(0, w), rows.stop - rows.start), header=w * w + HEADER), next)


class FlatQR(Reflectors):
    """One rank's work: R and V in place of its blocks of A."""

    def run(self) -> np.ndarray:
        """Collective: the least and the largest of R's diagonal, and all tau."""
        sizes, taus = [np.array([np.inf, 0.0])], []
        with self.row_panels:
            for panel in look_ahead(range(self.count), self.factor_panel):
                # A2 = Q_k^H A2, behind the next panel
                self.update(panel, self.a.shape[1])
                at = np.arange(panel.V.shape[1])
                taus.append(self.xp.host_or(self.xp.pick(panel.T, at, at), np.ones(len(at))).copy())
                sizes.append(self.xp.host_or(panel.sizes, np.ones(HEADER)).real.copy())
        extremes = np.array(sizes)
        return np.concatenate([[extremes[:, 0].min(), extremes[:, 1].max()], *(tau.astype(complex).view(float) for tau in taus)])

    def factor_panel(self, k: int, last: QRPanel | None) -> QRPanel:
        """Collective: update block column k by the previous panel, factor it, and start sending V and T along the grid rows."""
        if last is not None:
            self.update(last, self.cols.at[k].stop)
        rows, cols = self.rows.tail[k], self.find_columns(k)
        panel = self.take(k, cols.stop)
        if panel.row.mine:
            A1 = self.a[rows, cols]
            self.xp.copy(panel.V, A1)
            if self.rows.comm is None:
                # A1 = Q_k R11
                T, sizes, R = factor_local(self.xp, panel.V)
            else:
                T, sizes, R = factor_distributed(self.xp, self.rows, self.rows.owner[k], panel.V, self.count_rows(k))
            self.xp.copy_all(((panel.T, T), (panel.sizes, sizes)))
        panel.row.bcast()
        if panel.row.mine:
            self.xp.copy(A1, panel.V)
            if self.rows.rank == self.rows.owner[k]:
                places = list_upper(R.shape[1])
                self.xp.place(A1, *places, self.xp.pick(R, *places))
        return panel

    def update(self, panel: QRPanel, end: int) -> None:
        """Collective along the grid column: A2 = Q_k^H A2, in this rank's columns from `next` to `end`."""
        i = self.rows.tail[panel.k].start
        A2, panel.next = self.a[i:, panel.next : end], max(end, panel.next)
        apply(self.xp, panel.V, panel.T, A2, True, self.rows)


class Product(Reflectors):
    """Q C or Q^H C, in place of C, whose rows are cut as those of the reflections are.

    lower  the number of X's rows above the first reflection; if it is not 0, X's rows are not cut, and C lacks these rows
    """

    def __init__(self, X: DistMatrix, tau: np.ndarray, lower: int = 0) -> None:
        rows, cols = find_dimensions(X)
        super().__init__(X, replace(rows, n=rows.n - lower) if lower else rows, cols)
        self.tau, self.a = tau, self.a[lower:]

    def run(self, c: Any, adjoint: bool, lower: bool = False) -> None:
        """Collective along the grid rows and columns. lower: C's columns are cut as panels are, with zeros above the diagonal."""
        steps = range(self.count) if adjoint else range(self.count)[::-1]
        with self.row_panels:
            for panel in look_ahead(steps, self.send_panel):
                C = c[self.rows.tail[panel.k].start :, self.cols.tail[panel.k].start if lower else 0 :]
                apply(self.xp, panel.V, panel.T, C, adjoint, self.rows)

    def send_panel(self, k: int, last: QRPanel | None) -> QRPanel:
        """Collective: start sending V and T along the grid rows."""
        panel, w = self.take(k), self.width(k)
        if panel.row.mine:
            self.xp.copy(panel.V, self.a[self.rows.tail[k], self.find_columns(k)])
            if self.rows.rank == self.rows.owner[k]:
                clear(self.xp, panel.V)
            # T^-1 is V^H V above the diagonal, and 1 / tau on it
            gram = buffer(self.xp, (w, w), self.a.dtype)
            multiply(self.xp, self.xp.reinterpret(panel.V, True).T, panel.V, gram, 1, 0)
            if self.rows.comm is not None:
                self.rows.comm.allreduce(gram).wait()
            self.xp.copy(panel.T, kernels.larft(self.xp, gram, self.tau[k * self.block : k * self.block + w]))
        panel.row.bcast()
        return panel


def reflect(X: DistMatrix, tau: np.ndarray, pair: Pair, adjoint: bool = False, lower: int = 0) -> Pair:
    """Collective: Q, or Q^H, times x, of which every rank has all k rows; the product is on every rank. lower: see `Product`.

    pair: x, and bounds of the sizes of its rows. The bound of every row of the product is the 2-norm of these bounds.
    """
    xp, shape = X.xp, (X.shape[0], pair[0].shape[1])
    x, sizes = map(xp.host, pair)
    padded = np.zeros(shape, X.dtype)
    padded[: len(x)] = x
    layout = Layout.trust(X.layout.rows, ())
    c = xp.asarray(np.ascontiguousarray(padded[layout.indices(shape, X.grid.sizes, X.grid.coords)[0].indices()]))
    product = Product(X, tau, lower)
    if X.grid.active:
        product.run(c[lower:], adjoint)
    image = convert(DistMatrix(c, shape, X.grid, layout), Layout(), ProcessGrid.everyone(X.grid.comm))
    return image.stored, xp.asarray(np.full((shape[0], 1), np.sqrt((sizes**2).sum()), sizes.dtype))


def qr_words(m: int, n: int, grid: tuple[int, ...], block: int) -> float:
    """Words that a rank receives, in the mean, for QR of an m x n matrix on a pr x pc grid.

    Parameters
    ----------
    m, n : int
        Rows and columns.
    grid : tuple of int
        pr and pc.
    block : int
        Columns of a panel, and rows of a square block.

    Returns
    -------
    float
        Exact if blocks divide m and n.

    Raises
    ------
    ShapeError
        For a negative size, and a grid or a block of none.

    Notes
    -----
    An n x n matrix takes about n^2 / 2 (1/pr - 1/P) words for panels, P = pr pc. Sums along grid
    columns take n^2 / P (pr - 1). If pr > 1, trees add 4 (pr - 1) w^2 for each panel of w columns.

    Examples
    --------
    >>> pdla.linalg.qr_words(1024, 1024, (1, 4), 64)
    466968.0
    """
    checks.check_formula(grid, (2,), block, m=m, n=n)
    pr, pc = grid
    i = np.arange(0, min(m, n), block)
    w = np.minimum(block, min(m, n) - i)
    panels = (pc - 1) * ((m - i) * w + pr * (w * w + HEADER))
    sums = 2 * (pr - 1) * w * (n - i - w)
    blocks = -(-(m - i) // block)
    tree = 2 * (np.minimum(pr, blocks) - 1) * w * w + (pr - 1) * (2 * w * w + HEADER) if pr > 1 else 0 * w
    return float((panels + sums + tree).sum() / prod(grid))
