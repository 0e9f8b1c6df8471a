"""GMRES with factors of a lower precision, where classical refinement by them stalls.

The flexible form lets the preconditioner change from step to step. Factors are applied in their own
precision; products with A and residuals are computed in A's. Each column has a Krylov space of its
own; all columns take their steps together. Saad, SIAM J. Sci. Comput. 14 (1993); as refinement:
Carson, Higham, SIAM J. Sci. Comput. 40 (2018).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pdla.matmul import matmul
from pdla.matrix.core import DistMatrix

STEPS = 30  # the most steps: later convergence is unlikely, or takes as long as factors in full precision
KEPT = 2 * STEPS + 3  # the most matrices like R in memory: two for each step, and three more
WORTH = 4096  # the least rows for each column for which STEPS steps cost less than factors in full precision


def find_correction(
    A: DistMatrix, R: DistMatrix, solve: Callable[[DistMatrix], DistMatrix], limits: np.ndarray
) -> tuple[DistMatrix, int]:
    """Collective: solve A D = R. Returns D and the number of steps.

    solve   solves by the low factors, in R's dtype
    limits  for each column the 2-norm of R - A D at which it has converged
    """
    sizes = _compute_norms(R)
    spaces, solved = [scale_columns(R, _invert_sizes(sizes))], []
    H = np.zeros((R.shape[1], STEPS + 1, STEPS), R.dtype)
    for j in range(STEPS):
        solved.append(solve(spaces[j]))
        W = matmul(A, solved[j], out=R.copy(), verify=False)
        for i, V in [*enumerate(spaces)] * 2:  # twice, as rounding leaves W not quite orthogonal
            components = (V.conj() * W).sum(axis=0)
            H[:, i, j] += components
            W -= scale_columns(V, components)
        H[:, j + 1, j] = _compute_norms(W)
        is_root = R.grid.comm.rank == 0  # rank 0 decides: LAPACK may differ from host to host in the last bits
        y, minima = R.grid.comm.share(_solve_least_squares(H[:, : j + 2, : j + 1], sizes) if is_root else None)[0]
        if not (minima > limits).any() or j + 1 == STEPS:
            break
        spaces.append(scale_columns(W, _invert_sizes(H[:, j + 1, j].real)))
    D = scale_columns(solved[0], y[:, 0])
    for i, Z in enumerate(solved[1:], 1):
        D += scale_columns(Z, y[:, i])
    return D, len(solved)


def scale_columns(X: DistMatrix, factors: np.ndarray) -> DistMatrix:
    """Local: multiply each column by a number."""
    own_factors = X.xp.asarray(factors[X.indices[1].indices()])
    return DistMatrix(X.stored * own_factors, X.shape, X.grid, X.layout)


def _compute_norms(X: DistMatrix) -> np.ndarray:
    return np.sqrt((abs(X) ** 2).sum(axis=0))


def _invert_sizes(sizes: np.ndarray) -> np.ndarray:
    """Invert sizes, with 0 for 0: an exhausted Krylov space is not extended."""
    return np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes != 0)


def _solve_least_squares(H: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each column minimize |size e_1 - H y|, and return y and the minimum.

    Both are NaN if numbers overflowed in the lower precision.
    """
    y, minima = np.full((len(H), H.shape[2]), np.nan, H.dtype), np.full(len(H), np.nan)
    for c in np.flatnonzero(np.isfinite(H).all(axis=(1, 2))):
        h, size = H[c], sizes[c]
        b = np.array([size, *np.zeros(len(h) - 1)])
        y[c] = np.linalg.lstsq(h, b, rcond=None)[0]
        minima[c] = np.linalg.norm(b - h @ y[c])
    return y, minima
