"""The sign of a matrix, and roots of positive definite ones, by iterations of products and inverses."""

from __future__ import annotations

from math import sqrt

import numpy as np

from pdla.checks import communicator, describe_call
from pdla.comm.agreement import agreed
from pdla.errors import LinAlgError, PlanError
from pdla.linalg import checks
from pdla.linalg.condition import norm
from pdla.linalg.inverse import inv, matrix_power
from pdla.matmul import matmul
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import eye

MOST = 100  # steps
NEAR = 1e-2  # relative change below which Newton's steps are not scaled any more, and converge quadratically


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
        For what is no square matrix, on every rank.

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
    X, eps = _checked("signm", A)
    near = not A.shape[0]
    for _ in range(MOST):
        Y = inv(X).redistribute(X.layout)
        scale = 1.0 if near else sqrt(norm(Y) / norm(X))
        # X = (scale X + (scale X)^-1) / 2
        last, X = X, X * (scale / 2) + Y * (0.5 / scale)
        change = norm(X - last) / max(norm(X), float(np.finfo(X.dtype).tiny))
        if near and change <= sqrt(eps):  # of which the square is left
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
    A, eps = _checked("inverse_root", A, p)
    n, layout = A.shape[0], A.layout
    if not n:
        return A
    # M = A / c, X = I / c^(1/p), eigenvalues of M in (0, 1]: c = |A|; X^p A = M, in the end 1
    c = float(norm(A))
    unit = eye(n, A.grid, layout, dtype=A.dtype)
    X, M = unit * c ** (-1 / p), A * (1 / c)
    for _ in range(MOST):
        step = (unit * (p + 1) - M) * (1 / p)
        X, M = matmul(X, step, layout=layout), matmul(matrix_power(step, p).redistribute(layout), M, layout=layout)
        X, M = ((Y + Y.H.redistribute(layout)) * 0.5 for Y in (X, M))
        left = norm(M - unit)
        if left <= 10 * n * eps:
            return X
        if not np.isfinite(left):
            break
    raise LinAlgError("inverse_root: no convergence: A is not positive definite, or too ill-conditioned")


def sqrtm(A: DistMatrix) -> DistMatrix:
    """Give the square root of a positive definite matrix. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, Hermitian and positive definite, in any layout.

    Returns
    -------
    DistMatrix
        Hermitian, positive definite, in A's layout.

    Raises
    ------
    LinAlgError
        As by `inverse_root`.
    ShapeError, AgreementError
        For what is no square matrix, on every rank.

    Notes
    -----
    A times its inverse root.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.array([[5., 4], [4, 5]]))
    ...     return pdla.linalg.sqrtm(A).gather().round(12)
    >>> pdla.run(2, program)[0]
    array([[2., 1.],
           [1., 2.]])
    """
    given, _ = _checked("sqrtm", A)
    root = matmul(given, inverse_root(given, 2), layout=given.layout)
    return (root + root.H.redistribute(root.layout)) * 0.5


def _checked(name: str, A: DistMatrix, p: int = 1) -> tuple[DistMatrix, float]:
    """Collective: A in a dtype of LAPACK's, and its eps."""
    with agreed(communicator((A,)), describe_call(name, A, p=p)):
        dtype = checks.working_dtype(name, A.dtype)
        checks.square(name, A)
        if not isinstance(p, int) or p < 1:
            raise PlanError(f"{name}: p={p!r}: a whole number, 1 or more")
        checks.finite(A)
    return A.astype(dtype).redistribute(A.layout.summed), float(np.finfo(dtype).eps)
