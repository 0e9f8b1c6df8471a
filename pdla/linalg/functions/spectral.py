"""Functions of Hermitian matrices, by their eigenvalues: f(A) = V diag(f(w)) V^H."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pdla.checks import digest
from pdla.comm.agreement import agree, agreed
from pdla.errors import LinAlgError, ShapeError
from pdla.linalg.eigen.eigh import eigh
from pdla.linalg.functions.operand import prepare_square, scale_columns
from pdla.matmul import matmul
from pdla.matmul.images import Part
from pdla.matrix.core import DistMatrix


def funm(A: DistMatrix, func: Callable[[np.ndarray], Any]) -> DistMatrix:
    """Compute a function of a Hermitian matrix. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, Hermitian or real symmetric, in any layout. The lower triangle is read; the other
        may hold anything, NaN too.
    func : callable
        Takes the array of eigenvalues, real and ascending; returns an array of as many numbers,
        real ones for a result of A's dtype. Every rank calls func.

    Returns
    -------
    DistMatrix
        In A's layout; Hermitian where func's values are real.

    Raises
    ------
    LinAlgError
        For NaN and infinity in A, and in func's values.
    ShapeError, AgreementError
        If A is no square matrix, or func returns another number of values, on every rank.

    See Also
    --------
    expm : Of any square matrix.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.array([[5., 4], [4, 5]]))
    ...     return pdla.linalg.funm(A, lambda w: 1 / w).gather().round(4)
    >>> pdla.run(2, program)[0]
    array([[ 0.5556, -0.4444],
           [-0.4444,  0.5556]])
    """
    return _apply_to_spectrum("funm", A, func)


def logm(A: DistMatrix) -> DistMatrix:
    """Compute the logarithm of a positive definite matrix. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, Hermitian and positive definite, in any layout. The lower triangle is read; the other
        may hold anything, NaN too.

    Returns
    -------
    DistMatrix
        Hermitian, in A's layout.

    Raises
    ------
    LinAlgError
        For NaN and infinity, and a matrix that is not positive definite.
    ShapeError, AgreementError
        If A is no square matrix, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.diag([1., np.e]))
    ...     return pdla.linalg.logm(A).gather().round(12) + 0.0
    >>> pdla.run(2, program)[0]
    array([[0., 0.],
           [0., 1.]])
    """

    def log(w: np.ndarray) -> np.ndarray:
        if len(w) and w[0] <= 0:
            raise LinAlgError(f"logm: A is not positive definite: its least eigenvalue is {w[0]:.3g}")
        return np.log(w)

    return _apply_to_spectrum("logm", A, log)


def sqrtm(A: DistMatrix) -> DistMatrix:
    """Compute the square root of a positive semidefinite matrix. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, Hermitian and positive semidefinite, in any layout. The lower triangle is read; the
        other may hold anything, NaN too.

    Returns
    -------
    DistMatrix
        Hermitian, positive semidefinite, in A's layout.

    Raises
    ------
    LinAlgError
        For NaN and infinity, and for a negative eigenvalue. Negative eigenvalues of at least -n eps
        times the largest eigenvalue count as 0.
    ShapeError, AgreementError
        If A is no square matrix, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.array([[5., 4], [4, 5]]))
    ...     return pdla.linalg.sqrtm(A).gather().round(12)
    >>> pdla.run(2, program)[0]
    array([[2., 1.],
           [1., 2.]])
    """

    def root(w: np.ndarray) -> np.ndarray:
        if len(w) and w[0] < -len(w) * float(np.finfo(w.dtype).eps) * w[-1]:
            raise LinAlgError(f"sqrtm: A is not positive semidefinite: its least eigenvalue is {w[0]:.3g}")
        return np.sqrt(np.maximum(w, 0))

    return _apply_to_spectrum("sqrtm", A, root)


def _apply_to_spectrum(name: str, A: DistMatrix, func: Callable[[np.ndarray], Any]) -> DistMatrix:
    """Collective: V diag(func(w)) V^H."""
    A = prepare_square(name, A, part=Part(True, "real"))
    w, V = eigh(A, check_finite=False)
    with agreed(A.grid.comm, f"{name}: func's values"):
        with np.errstate(all="ignore"):
            values = np.asarray(func(w))
        if values.shape != w.shape:
            raise ShapeError(f"{name}: func gave an array of shape {values.shape}, of {len(w)} eigenvalues")
        if len(bad := np.flatnonzero(~np.isfinite(values))):
            raise LinAlgError(f"{name}: func is {values[bad[0]]} at the eigenvalue {w[bad[0]]:.6g}")
    agree(A.grid.comm, f"{name}: func's values, {digest(values)}")
    # (V diag(f)) V^H
    turning = values.dtype.kind == "c"
    kind = np.result_type(V.dtype, np.complex64) if turning else V.dtype
    result = matmul(scale_columns(V, values.astype(kind)), V.H, layout=A.layout)
    return result if turning else (result + result.H) * 0.5
