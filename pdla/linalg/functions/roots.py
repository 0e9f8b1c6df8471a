"""The sign of a matrix, and inverse roots of positive definite ones, by iterations of products and inverses."""

from __future__ import annotations

from math import sqrt

import numpy as np

from pdla.errors import LinAlgError, PlanError
from pdla.linalg.functions.operand import prepare_square
from pdla.linalg.inverse import inv, matrix_power
from pdla.linalg.norms import norm
from pdla.matmul import matmul
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import eye

MOST = 100  # the most steps
NEAR = 1e-2  # the relative change below which Newton's steps are no longer scaled, and converge quadratically


def signm(A: DistMatrix) -> DistMatrix:
    """Give the sign of a matrix. Collective over A's grid, idle ranks included.

    A has no purely imaginary eigenvalues. Its sign has A's eigenvectors, and 1 in place of
    eigenvalues with a positive real part, -1 in place of others.

    Parameters
    ----------
    A : DistMatrix
        n x n, in any layout.

    Returns
    -------
    DistMatrix
        In A's layout.

    Raises
    ------
    LinAlgError
        For NaN and infinity, and a matrix that has no sign.
    ShapeError, AgreementError
        If A is no square matrix, on every rank.

    Notes
    -----
    Newton's iteration, X = (c X + (c X)^-1) / 2, scaled by norms: Higham, Functions of Matrices
    (2008), section 5.3 to 5.5.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.array([[2., 5], [0, -3]]))
    ...     return pdla.linalg.signm(A).gather().round(12) + 0.0
    >>> pdla.run(2, program)[0]
    array([[ 1.,  2.],
           [ 0., -1.]])
    """
    X = prepare_square("signm", A)
    eps, near = float(np.finfo(X.dtype).eps), not A.shape[0]
    for _ in range(MOST):
        Y = inv(X)
        scale = 1.0 if near else sqrt(norm(Y) / norm(X))
        # X = (scale X + (scale X)^-1) / 2
        last, X = X, X * (scale / 2) + Y * (0.5 / scale)
        change = norm(X - last) / max(norm(X), float(np.finfo(X.dtype).tiny))
        if near and change <= sqrt(eps):  # the error is about the square of the change
            return X
        near = near or change <= NEAR
    raise LinAlgError(f"signm: no convergence in {MOST} steps: A has eigenvalues on, or near, the imaginary axis")


def inverse_root(A: DistMatrix, p: int) -> DistMatrix:
    """Give A^(-1/p) of a positive definite matrix. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, Hermitian and positive definite, in any layout.
    p : int
        1 or more; 4 is Shampoo's, for a matrix of two dimensions.

    Returns
    -------
    DistMatrix
        Hermitian, in A's layout.

    Raises
    ------
    LinAlgError
        For NaN and infinity, and where the iteration does not converge, as of a matrix that is not
        positive definite.
    PlanError, ShapeError, AgreementError
        For another p, and what is no square matrix, on every rank.

    Notes
    -----
    The coupled Newton iteration of Guo and Higham, SIAM J. Matrix Anal. Appl. 28 (2006): products
    alone. The steps grow with the logarithm of the condition number.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.diag([16., 81]))
    ...     return pdla.linalg.inverse_root(A, 4).gather().round(12)
    >>> pdla.run(2, program)[0]
    array([[0.5       , 0.        ],
           [0.        , 0.33333333]])
    """
    def check() -> None:
        if not isinstance(p, int) or p < 1:
            raise PlanError(f"inverse_root: p={p!r}: a whole number, 1 or more")

    A = prepare_square("inverse_root", A, check, p=p)
    n, layout, eps = A.shape[0], A.layout, float(np.finfo(A.dtype).eps)
    if not n:
        return A
    # M = A / c and X = I / c^(1/p), with c = |A|: eigenvalues of M are in (0, 1]. X^p A = M, which converges to 1.
    c = float(norm(A))
    unit = eye(n, A.grid, layout, dtype=A.dtype)
    with np.errstate(all="ignore"):  # if A is not positive definite, M grows until it overflows
        X, M = unit * (c or 1.0) ** (-1 / p), A * (1 / (c or 1.0))
        for _ in range(MOST):
            step = (unit * (p + 1) - M) * (1 / p)
            X, M = matmul(X, step, layout=layout), matmul(matrix_power(step, p), M, layout=layout)
            X, M = ((Y + Y.H) * 0.5 for Y in (X, M))
            left = norm(M - unit)
            if left <= 10 * n * eps:
                return X
            if not np.isfinite(left):
                break
    raise LinAlgError("inverse_root: no convergence: A is not positive definite, or too ill-conditioned")
