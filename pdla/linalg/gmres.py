"""GMRES with factors of a lower precision, where classical refinement by them stalls.

Flexible: the factors are applied in their own precision, and need not do the same in each step, as
products with A and what is left are computed in A's. Each column has a Krylov space of its own; all
take their steps together. Saad, SIAM J. Sci. Comput. 14 (1993); as refinement: Carson, Higham, SIAM
J. Sci. Comput. 40 (2018).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pdla.matmul import matmul
from pdla.matrix.core import DistMatrix

STEPS = 30  # at most: what has not converged by then is not going to, or takes as long as factors in full precision
KEPT = 2 * STEPS + 3  # matrices like R that it holds at most: two a step, and three that are made of them
WORTH = 4096  # rows for each column from which on so many steps take less than these factors


def find_correction(
    A: DistMatrix, R: DistMatrix, solve: Callable[[DistMatrix], DistMatrix], limits: np.ndarray
) -> tuple[DistMatrix, int]:
    """Collective: D of A D = R, and the steps.

    solve   by the low factors, in R's dtype
    limits  of each column the 2-norm of R - A D at which it may end
    """
    sizes = _compute_norms(R)
    spaces, solved = [scale_columns(R, _invert_sizes(sizes))], []
    H = np.zeros((R.shape[1], STEPS + 1, STEPS), R.dtype)
    for j in range(STEPS):
        solved.append(solve(spaces[j]))
        W = matmul(A, solved[j], out=R.copy(), verify=False)
        for i, V in [*enumerate(spaces)] * 2:  # twice, as rounding errors leave W not quite orthogonal
            parts = (V.conj() * W).sum(axis=0)
            H[:, i, j] += parts
            W -= scale_columns(V, parts)
        H[:, j + 1, j] = _compute_norms(W)
        first = R.grid.comm.rank == 0  # which decides: LAPACK may differ from host to host in the last bits
        y, left = R.grid.comm.share(_solve_least_squares(H[:, : j + 2, : j + 1], sizes) if first else None)[0]
        if not (left > limits).any() or j + 1 == STEPS:
            break
        spaces.append(scale_columns(W, _invert_sizes(H[:, j + 1, j].real)))
    D = scale_columns(solved[0], y[:, 0])
    for i, Z in enumerate(solved[1:], 1):
        D += scale_columns(Z, y[:, i])
    return D, len(solved)


def scale_columns(X: DistMatrix, factors: np.ndarray) -> DistMatrix:
    """Local: each column times a number."""
    mine = X.xp.asarray(factors[X.indices[1].indices()])
    return DistMatrix(X.stored * mine, X.shape, X.grid, X.layout)


def _compute_norms(X: DistMatrix) -> np.ndarray:
    return np.sqrt((abs(X) ** 2).sum(axis=0))


def _invert_sizes(sizes: np.ndarray) -> np.ndarray:
    """0 for 0: a space that is exhausted is not extended."""
    return np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes != 0)


def _solve_least_squares(H: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each column the y for which H y comes nearest to its size times the first unit vector, and how near that is.

    NaN where the low factors have left the range of their precision.
    """
    y, left = np.full((len(H), H.shape[2]), np.nan, H.dtype), np.full(len(H), np.nan)
    for c in np.flatnonzero(np.isfinite(H).all(axis=(1, 2))):
        h, size = H[c], sizes[c]
        b = np.array([size, *np.zeros(len(h) - 1)])
        y[c] = np.linalg.lstsq(h, b, rcond=None)[0]
        left[c] = np.linalg.norm(b - h @ y[c])
    return y, left
