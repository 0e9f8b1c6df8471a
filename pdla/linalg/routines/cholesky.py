"""Cholesky factors of positive definite matrices, A = L L^H.

The error of a product with L11^-1 grows with the condition of L11. If L11 is ill-conditioned, its
owner broadcasts L11 instead, and the panel is solved by substitution, which takes twice as long.
"""

from __future__ import annotations

from functools import partial
from math import ceil, prod
from typing import Any

import numpy as np

from pdla.errors import LinAlgError
from pdla.linalg import checks
from pdla.linalg.panels import kernels
from pdla.linalg.panels.factors import Factors, find_pivot_ratio
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.routine import GridShape
from pdla.linalg.routines.right_looking import HEADER, HermitianFactorization, RightLooking
from pdla.linalg.verify import Claim
from pdla.matmul.images import Images, Part
from pdla.matrix.core import DistMatrix


class CholeskyFactorization(HermitianFactorization):
    """A = L L^H of the lower triangle of A, Hermitian and positive definite."""

    name, what, layered = "cholesky", "a Cholesky factorization", True
    about = "factor a random positive definite matrix"

    def words(self, m: int, n: int, shape: GridShape, block: int) -> float:
        return cholesky_words(n, shape, block)

    def numbers(self, m: int, n: int) -> int:
        return HEADER

    def factor(self, X: DistMatrix) -> np.ndarray:
        return Cholesky(X).run()

    def result(self, X: DistMatrix, numbers: np.ndarray) -> tuple[DistMatrix, float]:
        """Return L, and the quotient of the least and the largest element of its diagonal."""
        info, pivot, least, largest = numbers.tolist()
        if info:
            raise LinAlgError(f"the leading minor of order {info:.0f} is not positive definite (pivot {pivot:.3g})")
        return X, find_pivot_ratio(least, largest)

    def claim(self, A: DistMatrix, part: Part | None, images: Images, lost: str) -> Claim:
        n = A.shape[0]
        return Claim(
            n, 4 * n, lambda x: images.multiply_reflected(A, x, True),
            lambda result: (
                partial(images.multiply, result[0].H, part=Part(False)), partial(images.multiply, result[0], part=Part(True))
            ),
            matrices=lambda result: result[:1], zeros=lambda result: ((result[0], Part(False, "none")),), lost=lost,
        )


    def factor_to_solve(self, plan: FactorPlan, A: DistMatrix, dtype: np.dtype, overwrite: bool) -> Factors:
        """Collective: factor the triangle that the plan reads."""
        reads, place = (A, plan.place) if plan.options.lower else (A.H, plan.adjoint_place)
        return Factors.of_cholesky(*self(reads, place, dtype, overwrite))


CHOLESKY = CholeskyFactorization()


class Cholesky(RightLooking):
    """One rank's work: L in place of the lower triangle of A.

    The second number of a panel's header is the failed pivot. Without a failure it is 1 if L1 is L11, and 0 if L1 is the inverse.
    """

    def factor_block(self, A11: Any, L1: Any) -> list[float]:
        info, number = kernels.potrf(self.xp, A11)
        if L1.size:
            self.xp.copy(L1, A11)
            if not info and not kernels.trtri(self.xp, L1) <= kernels.MAX_CONDITION:
                number = 1
                self.xp.copy(L1, A11)
        return [info, number, *kernels.find_pivot_range(self.xp, A11)]

    def solve_panel(self, L1: Any, header: np.ndarray, A21: Any, L21: Any) -> None:
        if header[1]:
            self.xp.copy(L21, A21)
            kernels.trsm(self.xp, L1, L21.T, True, conjugate=True)
            return
        kernels.multiply_by_inverse(self.xp, A21, L1, L21)


def cholesky_words(n: int, grid: tuple[int, ...], block: int) -> float:
    """Words that a rank receives, in the mean, for a Cholesky factor on a pr x pc grid.

    Parameters
    ----------
    n : int
        Rows and columns.
    grid : tuple of int
        pr and pc; with c layers of pr x pc ranks also c.
    block : int
        Columns of a panel; on one layer also the rows of a square block.

    Returns
    -------
    float
        Exact if blocks divide n.

    Raises
    ------
    ShapeError
        For a negative size, and a grid or a block of none.

    Notes
    -----
    P = pr pc, K = n / block: ((pr + pc - 2) (n^2 - n block) / 2 + (pr - 1) block^2 (K - 1)) / P + 4
    K (1 - 1/P). The leading term is n^2 / 2 (1/pr + 1/pc - 2/P). Over c layers of pr x pc = P / c
    ranks it is n^2 / 2 P (pr + pc + c - 3), for panels and other layers' addends.

    Examples
    --------
    >>> pdla.linalg.cholesky_words(1024, (2, 2), 64)
    261168.0
    """
    checks.check_formula(grid, (2, 3), block, n=n)
    pr, pc, *depth = grid
    layer, c, steps = pr * pc, prod(depth), n / block
    panels = (pr + pc - 2) * (n * n - n * block) / 2 + (pr - 1) * block**2 * (steps - 1) + HEADER * steps * (layer - 1)
    sent = (min(k, c - 1) * ((n - k * block) * block + HEADER * pr) for k in range(ceil(steps)))
    addends = sum(sent) + HEADER * layer * (c - 1) if c > 1 else 0
    return (panels + addends) / (layer * c)
