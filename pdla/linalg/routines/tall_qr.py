"""QR of a tall matrix, A = Q R, whose rows are cut over all ranks. R is small, and on every rank.

CholeskyQR2 (Yamamoto et al., ETNA 44 (2015)): G = A^H A, summed over the ranks; G = L L^H, R = L^H, Q = A R^-1. If A is not
well-conditioned, these steps are repeated with Q in place of A. If R is so ill-conditioned that G has lost A's digits, a tree of
Householder factorizations factors A instead (Demmel et al., SIAM J. Sci. Comput. 34 (2012)). The tree is backward stable.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2, prod
from typing import Any

import numpy as np

from pdla.comm.agreement import collective_section
from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffer, count, timed
from pdla.comm.workspace import Workspace, find_workspace, within
from pdla.layout import Layout, axes_of, effective
from pdla.linalg.panels import kernels
from pdla.linalg.panels.blocks import Dimension, make_working_copy, share_numbers
from pdla.linalg.panels.reflectors import factor_tree
from pdla.linalg.plan import routine
from pdla.linalg.plan.blocking import Place
from pdla.linalg.plan.routine import GridShape, Routine
from pdla.linalg.verify import settle
from pdla.matmul.schedules.streams import multiply
from pdla.matrix.core import DistMatrix

TALL, WIDEST = 8, 2048  # the least rows for each column of a tall matrix; the most columns, as each rank has R
ORTHOGONAL = 1.1  # the largest mean condition of R for which Q needs no second pass
LOST = 0.1  # the share of the condition at which G has no digit of A's least singular value; above it the tree factors A


class TallQR(Routine):
    """A = Q R of a tall A."""

    name = "tall_qr"
    about = "factor a random tall matrix by Cholesky factors of its Gram matrix"
    algorithm = "CholeskyQR2"

    def multiplications(self, m: int, n: int) -> float:
        return 2 * m * n * n

    def words(self, m: int, n: int, shape: GridShape, block: int) -> float:
        ranks = prod(shape)
        return 4 * n * n * (1 - 1 / ranks)

    def bound(self, m: int, n: int, shape: GridShape) -> float:
        return n * n / 2 if prod(shape) > 1 else 0.0

    def price(self, step: routine.StepCost) -> float:
        n, ranks = step.task.n, prod(step.shape)
        rows, half = ceil(step.task.m / ranks), n // 2
        gram = step.gemm(n, (n + 1) // 2, rows) + 2 * step.lapack(n, n, n**3 / 3)
        divide = step.gemm(rows, half, half) + step.gemm(rows, n - half, n)
        # G is summed, and L's condition, in rounds of doubling distance
        sums = step.message(0, 2 * n * n * (1 - 1 / ranks)) + 4 * ceil(log2(ranks)) * step.message(0)
        return 2 * (gram + divide + sums)

    def keeps_layout(self, A: Any) -> bool:
        """Whether rows are cut over all ranks of A's grid, and columns are not cut."""
        rows, cols = (effective(cuts, A.grid.sizes) for cuts in (A.layout.rows, A.layout.cols))
        ranks = prod(A.grid.sizes[cut.axis] for cut in rows)
        return not cols and not A.layout.partial and not A.transposed and ranks == A.grid.size

    def find_blocking(self, A: Any) -> tuple[GridShape, int]:
        return self.list_blockings(A.shape[0], A.grid.size)[0]

    def list_blockings(self, m: int, ranks: int) -> Sequence[tuple[GridShape, int]]:
        """List one blocking: one block of rows for each rank."""
        return (((ranks, 1), max(1, ceil(m / ranks))),)

    def factor(self, A: DistMatrix, place: Place, dtype: np.dtype) -> tuple[DistMatrix, DistMatrix | None, DistMatrix]:
        """Collective: factor A = Q R. Returns X, L^-1 and R: Q = X L^-H, or Q = X if L^-1 is None.

        X is in the layout of the algorithm, and may be A. L^-1 and R are on every rank of X's grid.
        """
        comm = A.grid.comm
        with collective_section(comm, "a QR factorization"), within(find_workspace() or Workspace()):
            X, n = make_working_copy(A, *place, dtype, overwrite=True), A.shape[1]
            axes = axes_of(effective(X.layout.rows, X.grid.sizes))
            group = X.grid[axes] if axes else None
            if X.grid.active:
                with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                    x, inverse, R = _factor(X.xp, X.stored, group)
            else:
                x, inverse, R = X.stored, *(X.xp.empty((0, 0), dtype) for _ in range(2))
            is_formed = bool(share_numbers(X.grid, np.array([float(inverse is None)]))[0])
        matrix, R = DistMatrix(x, X.shape, X.grid, X.layout), DistMatrix(R, (n, n), X.grid, Layout())
        return matrix, None if is_formed else DistMatrix(inverse, (n, n), X.grid, Layout()), R


TALL_QR = TallQR()


def is_tall(m: int, n: int) -> bool:
    """Whether TallQR factors an m x n matrix."""
    return 0 < n <= WIDEST and m >= TALL * n


def _factor(xp: Any, x: Any, comm: Communicator | None) -> tuple[Any, Any, Any]:
    """Collective: factor A, of which x is this rank's rows. Returns its rows of X, L^-1 (None after a tree) and R."""
    n, limit = x.shape[1], LOST / np.sqrt(np.finfo(x.dtype).eps)
    # R1 = chol(A^H A), Q1 = A R1^-1
    L, inverse, condition = _factor_gram(xp, x, comm)
    if not n * condition <= limit:
        Q, R = _factor_tree(xp, x, comm)
        return Q, None, R
    if condition <= ORTHOGONAL:
        return x, inverse.copy(), xp.reinterpret(L, True).T.copy()
    # R2 = chol(Q1^H Q1), Q = Q1 R2^-1, R = R2 R1
    Q, R = _divide(xp, x, L, inverse, condition), xp.empty((n, n), x.dtype)
    L2, inverse, _ = _factor_gram(xp, Q, comm)
    multiply(xp, xp.reinterpret(L2, True).T, xp.reinterpret(L, True).T, R, 1, 0)
    return Q, inverse.copy(), R


def _factor_gram(xp: Any, x: Any, comm: Communicator | None) -> tuple[Any, Any, float]:
    """Collective: factor the sum of x^H x over all ranks, L L^H. Returns L, L^-1 and L's mean condition, inf if there is no L."""
    n = x.shape[1]
    G, inverse = buffer(xp, (n, n), x.dtype), buffer(xp, (n, n), x.dtype)
    if x.dtype.kind != "c" and xp.can_square(x.T, G):
        with timed("syrk", flops=len(x) * n * (n + 1)):
            xp.square(x.T, G, 1)
    else:
        multiply(xp, xp.reinterpret(x, True).T, x, G, 1, 0)
    if comm is not None:
        comm.allreduce(G).wait()
    info, _ = kernels.potrf(xp, G)
    if info:
        return G, inverse, np.inf
    xp.copy(inverse, G)
    condition = settle(comm, np.array([kernels.trtri(xp, inverse)]))
    return G, inverse, float(condition[0])


def _divide(xp: Any, x: Any, L: Any, inverse: Any, condition: float) -> Any:
    """Local: x L^-H, by the inverse if L is well-conditioned."""
    Q = xp.empty(x.shape, x.dtype)  # no buffer, as it outlives the workspace
    count(Q)
    if condition <= kernels.MAX_CONDITION:
        kernels.multiply_by_inverse(xp, x, inverse, Q)
    else:
        xp.copy(Q, x)
        kernels.trsm(xp, L, Q.T, True, conjugate=True)
    return Q


def _factor_tree(xp: Any, x: Any, comm: Communicator | None) -> tuple[Any, Any]:
    """Collective: Q and R of all ranks' rows x, by a tree of Householder factorizations."""
    n, Q = x.shape[1], xp.empty(x.shape, x.dtype)
    rows = Dimension(len(x), 1) if comm is None else Dimension(len(x), 1, comm.size, comm.rank, comm)
    heights = [len(x)] if comm is None else comm.share(len(x))
    q, r = factor_tree(xp, rows, 0, x, heights)
    xp.copy(Q, q)
    R = xp.empty((n, n), x.dtype)
    xp.scale(R, 0)
    if rows.rank == 0:
        xp.copy(R[: len(r)], r)
    return Q, rows.bcast(R, 0).wait()
