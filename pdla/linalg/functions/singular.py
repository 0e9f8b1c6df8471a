"""Singular values, A = U diag(s) V^H, and what follows from them: pseudo-inverses, ranks, null spaces.

Few columns: A = Q R, and the first rank decomposes R by LAPACK. Many: A = W H, the polar decomposition, and H = V diag(s) V^H, so
that U = W V (Higham and Papadimitriou, Parallel Comput. 20 (1994); Nakatsukasa and Higham, SIAM J. Sci. Comput. 35 (2013)).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.array import composed
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.eigen.eigh import eigh, eigvalsh
from pdla.linalg.functions.operand import prepare_operand, scale_columns
from pdla.linalg.functions.polar import polar
from pdla.linalg.orthogonal.factors import compute_svd, replicate
from pdla.linalg.orthogonal.qr import FACTOR, check_rcond, find_rank_limit
from pdla.linalg.panels.blocks import cut_layout, to_layout
from pdla.matmul import matmul
from pdla.matrix.core import DistMatrix

SMALL = 1024  # columns up to which LAPACK on one rank is as fast as all ranks


def svd(A: DistMatrix, *, layout: Layout | None = None) -> tuple[DistMatrix, np.ndarray, DistMatrix]:
    """Decompose a matrix: A = U diag(s) V^H. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout.
    layout : Layout, optional
        U's layout; by default A's, if it fits U.

    Returns
    -------
    U : DistMatrix
        m x k, with orthonormal columns; k = min(m, n).
    s : numpy.ndarray
        The k singular values, the largest first, on every rank.
    Vh : DistMatrix
        k x n, with orthonormal rows. The first of the large elements of each row is positive.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    ShapeError, LayoutError, AgreementError
        For arguments that do not go together, on every rank.

    See Also
    --------
    svdvals : The singular values alone.
    polar, eigh : The steps for many ranks.

    Notes
    -----
    scipy.linalg.svd with full_matrices=False. Up to 1024 columns (rows of a wide A), and on one
    rank: A = Q R, and LAPACK decomposes R on the first rank. Otherwise A = W H by `polar`, and V, s
    by `eigh` of H: backward stable, and no rank has a whole matrix.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.array([[0., -2], [3, 0], [0, 0]]))
    ...     U, s, Vh = pdla.linalg.svd(A)
    ...     return s.round(12), Vh.gather().round(12) + 0.0
    >>> pdla.run(2, program)[0]
    (array([3., 2.]), array([[1., 0.],
           [0., 1.]]))
    """
    U, s, V = _decompose(_prepare("svd", A, lambda m, n: (m, min(m, n)), layout=layout))
    (m, n), k = A.shape, len(s)
    return to_layout(U, layout or cut_layout(A, (m, k)), A.grid), s, to_layout(V.H, cut_layout(A, (k, n)), A.grid)


def svdvals(A: DistMatrix) -> np.ndarray:
    """Compute the singular values. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout.

    Returns
    -------
    numpy.ndarray
        min(m, n) numbers, the largest first, on every rank.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    ShapeError, AgreementError
        For arguments that do not go together, on every rank.

    See Also
    --------
    svd : The vectors, too.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.array([[0., -2], [3, 0], [0, 0]]))
    ...     return pdla.linalg.svdvals(A).round(12)
    >>> pdla.run(2, program)[0]
    array([3., 2.])
    """
    return _find_values(_prepare("svdvals", A))


def pinv(A: DistMatrix, *, rcond: float | None = None, layout: Layout | None = None) -> DistMatrix:
    """Compute the Moore-Penrose pseudo-inverse. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout.
    rcond : float, optional
        As for `lstsq`.
    layout : Layout, optional
        The result's layout; by default A's transposed.

    Returns
    -------
    DistMatrix
        n x m.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    ShapeError, LayoutError, GridError, AgreementError
        For arguments that do not go together, on every rank.

    Notes
    -----
    V diag(1 / s) U^H of the singular values above the limit; see `svd`.

    Examples
    --------
    >>> def program(comm):
    ...     return pdla.linalg.pinv(pdla.ones((4, 2))).gather()
    >>> pdla.run(2, program)[0].round(12)
    array([[0.125, 0.125, 0.125, 0.125],
           [0.125, 0.125, 0.125, 0.125]])
    """
    X = _prepare("pinv", A, lambda m, n: (n, m), rcond=rcond, layout=layout)
    U, s, V = _decompose(X)
    rank = _count_rank(X, s, rcond)
    # V S^-1 U^H
    inverse = matmul(scale_columns(V[:, :rank], 1 / s[:rank]), U[:, :rank].H)
    return to_layout(inverse, layout or cut_layout(A.T, A.shape[::-1]), A.grid)


def matrix_rank(A: DistMatrix, *, tol: float | None = None, rtol: float | None = None) -> int:
    """Count the singular values above a limit. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout.
    tol : float, optional
        The limit; by default rtol times the largest singular value.
    rtol : float, optional
        By default max(m, n) eps.

    Returns
    -------
    int
        The rank, the same on every rank.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    ShapeError, PlanError, AgreementError
        For arguments that do not go together, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     return pdla.linalg.matrix_rank(pdla.ones((4, 3)))
    >>> pdla.run(2, program)[0]
    1
    """
    X = _prepare("matrix_rank", A, rcond=rtol, tol=tol)
    s = _find_values(X)
    return _count_rank(X, s, rtol) if tol is None else int((s > tol).sum())


def null_space(A: DistMatrix, *, rcond: float | None = None, layout: Layout | None = None) -> DistMatrix:
    """Compute an orthonormal basis of the x for which A x is 0. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout. n x n numbers must fit on each rank.
    rcond : float, optional
        As for `lstsq`.
    layout : Layout, optional
        The basis's layout; by default its rows are cut as A's columns are.

    Returns
    -------
    DistMatrix
        n x (n - rank).

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    ShapeError, LayoutError, GridError, AgreementError
        For arguments that do not go together, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     return pdla.linalg.null_space(pdla.ones((4, 2))).gather()
    >>> abs(pdla.run(2, program)[0]).round(4)
    array([[0.7071],
           [0.7071]])
    """
    X = _prepare("null_space", A, lambda m, n: (n, n), rcond=rcond, layout=layout)
    R = FACTOR(X, check_finite=False).R
    _, s, vh = compute_svd(R, full=True)
    basis = replicate(vh[_count_rank(X, s, rcond) :].conj().T, R)
    return to_layout(basis, layout or Layout.trust(A.T.layout.summed.rows, ()), A.grid)


# ---------------------------------------------------------------------------------------------- the work


def _prepare(
    name: str, A: DistMatrix, result: Any = None, rcond: Any = None, layout: Any = None, tol: Any = None
) -> DistMatrix:
    """Collective: A, finite, in the dtype to work in. result: the result's shape, as a function of m and n."""

    def check(dtype: np.dtype) -> None:
        check_rcond(name, rcond)
        if result is not None:
            checks.check_result(A, result(*A.shape), dtype, None, layout)

    return prepare_operand(name, A, check, rcond=rcond, tol=tol, layout=layout)


def _count_rank(A: DistMatrix, s: np.ndarray, rcond: float | None) -> int:
    """Count the singular values above the limit."""
    return int((s > find_rank_limit(A, rcond, A.dtype) * s.max(initial=0)).sum())


def _is_for_one_rank(A: DistMatrix) -> bool:
    return A.shape[1] <= SMALL or A.grid.comm.size == 1


def _decompose(A: DistMatrix) -> tuple[DistMatrix, np.ndarray, DistMatrix]:
    """Collective: U, s and V."""
    if A.shape[0] < A.shape[1]:
        V, s, U = _decompose(A.H)
        return U, s, V
    if _is_for_one_rank(A):
        factors = FACTOR(A, check_finite=False)
        u, s, vh = compute_svd(factors.R)
        v = vh.conj().T
        phases = composed.conjugate_phases(np, v) if v.size else np.ones(0, v.dtype)
        return factors.multiply(replicate(u * phases, factors.R), False), s, replicate(v * phases, factors.R)
    # A = W H, H = V diag(s) V^H, U = W V
    W, H = polar(A, check_finite=False)
    w, V = eigh(-H, check_finite=False)
    return matmul(W, V), np.maximum(-w, 0), V


def _find_values(A: DistMatrix) -> np.ndarray:
    """Collective: the singular values."""
    if A.shape[0] < A.shape[1]:
        return _find_values(A.H)
    if _is_for_one_rank(A):
        return compute_svd(FACTOR(A, check_finite=False).R, vectors=False)
    R = FACTOR(A, check_finite=False).R if A.shape[0] > A.shape[1] else A
    _, H = polar(R, check_finite=False)
    return np.maximum(-eigvalsh(-H, check_finite=False), 0)
