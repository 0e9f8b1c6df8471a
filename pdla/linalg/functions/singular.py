"""Singular values, A = U diag(s) V^H, and what follows from them: pseudo-inverses, ranks, null spaces.

Few columns: A = Q R, and the first rank decomposes R by LAPACK. Many: A = W H, the polar decomposition, and H = V diag(s) V^H, so
that U = W V (Higham and Papadimitriou, Parallel Comput. 20 (1994); Nakatsukasa and Higham, SIAM J. Sci. Comput. 35 (2013)).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.array import composed
from pdla.checks import communicator, describe_call, matrix
from pdla.comm.agreement import agreed
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.eigen.eigh import eigh, eigvalsh
from pdla.linalg.functions.operand import prepare
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
    wide, dtype = _check("svd", A, None, layout, lambda m, n: (m, min(m, n)))
    (m, n), k = A.shape, min(A.shape)
    U, s, V = _decompose(prepare(A.H if wide else A, dtype))
    if wide:
        U, V = V, U
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
    wide, dtype = _check("svdvals", A)
    return _find_values(prepare(A.H if wide else A, dtype))


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
    wide, dtype = _check("pinv", A, rcond, layout, lambda m, n: (n, m))
    U, s, V = _decompose(prepare(A.H if wide else A, dtype))
    kept = slice(0, int((s > find_rank_limit(A, rcond, dtype) * s.max(initial=0)).sum()))
    # V S^-1 U^H
    V = V[:, kept]
    inverse = V.xp.asarray((1 / s[kept])[V.indices[1].indices()])
    X = matmul(DistMatrix(V.stored * inverse, V.shape, V.grid, V.layout), U[:, kept].H)
    return to_layout(X.H if wide else X, layout or cut_layout(A.T, A.shape[::-1]), A.grid)


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
    wide, dtype = _check("matrix_rank", A, rtol, tol=tol)
    s = _find_values(prepare(A.H if wide else A, dtype))
    return int((s > (find_rank_limit(A, rtol, dtype) * s.max(initial=0) if tol is None else tol)).sum())


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
    _, dtype = _check("null_space", A, rcond, layout, lambda m, n: (n, n))
    R = FACTOR(prepare(A, dtype), check_finite=False).R
    _, s, vh = compute_svd(R, full=True)
    rank = int((s > find_rank_limit(A, rcond, dtype) * s.max(initial=0)).sum())
    basis = replicate(vh[rank:].conj().T, R)
    return to_layout(basis, layout or Layout.trust(A.T.layout.summed.rows, ()), A.grid)


# ---------------------------------------------------------------------------------------------- the work


def _check(
    name: str, A: DistMatrix, rcond: Any = None, layout: Any = None, result: Any = None, tol: Any = None
) -> tuple[bool, np.dtype]:
    """Collective: check the arguments; return whether A has fewer rows than columns, and the dtype to work in.

    result  the result's shape, as a function of m and n
    """
    with agreed(communicator((A,)), describe_call(name, A, rcond=rcond, tol=tol, layout=layout)):
        matrix(A)
        check_rcond(name, rcond)
        dtype = checks.find_working_dtype(name, A.dtype)
        if result is not None:
            checks.check_result(A, result(*A.shape), dtype, None, layout)
        checks.check_finite(A)
    return A.shape[0] < A.shape[1], dtype


def _is_for_one_rank(A: DistMatrix) -> bool:
    return A.shape[1] <= SMALL or A.grid.comm.size == 1


def _decompose(A: DistMatrix) -> tuple[DistMatrix, np.ndarray, DistMatrix]:
    """Collective: U, s and V of an m x n matrix, m >= n."""
    if _is_for_one_rank(A):
        made = FACTOR(A, check_finite=False)
        u, s, vh = compute_svd(made.R)
        v = vh.conj().T
        phases = composed.conjugate_phases(np, v) if v.size else np.ones(0, v.dtype)
        return made.multiply(replicate(u * phases, made.R), False), s, replicate(v * phases, made.R)
    # A = W H, H = V diag(s) V^H, U = W V
    W, H = polar(A, check_finite=False)
    w, V = eigh(-H, check_finite=False)
    return matmul(W, V), np.maximum(-w, 0), V


def _find_values(A: DistMatrix) -> np.ndarray:
    """Collective: the singular values of an m x n matrix, m >= n."""
    R = FACTOR(A, check_finite=False).R if _is_for_one_rank(A) or A.shape[0] > A.shape[1] else A
    if _is_for_one_rank(A):
        return compute_svd(R, vectors=False)
    _, H = polar(R, check_finite=False)
    return np.maximum(-eigvalsh(-H, check_finite=False), 0)
