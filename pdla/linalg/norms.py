"""Norms and condition numbers: what users call."""

from __future__ import annotations

from math import inf, isfinite, sqrt
from typing import Any

import numpy as np

from pdla.array.dtypes import near_one
from pdla.checks import communicator, describe_call, matrix
from pdla.comm.agreement import agreed
from pdla.errors import LinAlgError
from pdla.linalg import checks
from pdla.linalg.condition import CONDITION, check_not_empty, check_order, measure
from pdla.linalg.eigen.eigh import eigvalsh
from pdla.linalg.products.rank_k import herk
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import cast
from pdla.matrix.reductions import check_no_partial_sums

ORDERS = (None, "fro", 1, 2, inf, "max")


def norm(A: DistMatrix, ord: Any = None) -> float:
    """Measure a matrix by a norm. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout without partial sums.
    ord : None, "fro", 1, 2, numpy.inf or "max", optional
        None or "fro": Frobenius, as ``A.norm()``. 1: the largest sum of a column's absolute values;
        numpy.inf: of a row's. 2: the largest singular value. "max": the largest absolute value,
        LAPACK's 'M'.

    Returns
    -------
    float
        In double precision, the same on every rank; copies count once. NaN for NaN, 0 for a matrix
        without elements.

    Raises
    ------
    PlanError
        For another norm.
    ShapeError, LayoutError, AgreementError
        If the matrix or its layout does not fit. All of these are raised on every rank.

    Notes
    -----
    A rank receives one number from each other rank for Frobenius, else about 2 n words (2 m for
    inf). The 2-norm takes the eigenvalues of A where A is Hermitian, else those of A^H A or A A^H,
    whichever is smaller.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[3, 0], [0, -4]]), grid, pdla.Layout("row"))
    ...     return [pdla.linalg.norm(A, ord) for ord in (None, 1, 2, np.inf, "max")]
    >>> pdla.run(2, program)[0]
    [5.0, 4.0, 4.0, 4.0, 4.0]
    """
    with agreed(communicator((A,)), describe_call("norm", A, ord=ord)):
        check_no_partial_sums(matrix(A), "norm")
        check_order("norm", "ord", ord, ORDERS)
        dtype = checks.find_working_dtype("norm", A.dtype) if ord == 2 else A.dtype
    return _find_two_norm(cast(A, dtype)) if ord == 2 else measure(A, ord)


def cond(
    A: DistMatrix | tuple[DistMatrix, np.ndarray | bool], p: float = 1, *, check_finite: bool = True,
    memory_limit: int | None = None, verify: bool | str | None = None,
) -> float:
    """Estimate the condition number: the norm of A times that of its inverse.

    Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix or tuple
        n x n, in any layout; or its factors, as `lu_factor` or `cho_factor` returns them. With
        factors, the norm of A is estimated, too.
    p : 1, 2 or numpy.inf, optional
        The norm; 2 only for a Hermitian matrix, not for factors.
    check_finite : bool, optional
        Whether to look for NaN and infinity first; otherwise NaN gives NaN.
    memory_limit : int, optional
        The most bytes of workspace a rank, with the working copy of A.
    verify : bool or "keep", optional
        Whether to check factors and solutions, as by `solve`.

    Returns
    -------
    float
        The same on every rank; infinite for a singular matrix. For p = 2 the quotient of the
        largest and the least absolute eigenvalue. Otherwise a lower bound, hardly ever less than a
        third of the condition number.

    Raises
    ------
    LinAlgError
        For NaN, infinity and a 0 x 0 matrix, and for p = 2 of a matrix that is not Hermitian.
    ShapeError, PlanError, AgreementError
        For a matrix that is not square, another p, or a memory_limit that cannot be kept. All of
        these are raised on every rank.

    Notes
    -----
    The cost is an LU factorization and, as a rule, four or five solutions with a vector. For p = 2,
    numpy.linalg.cond's default, it is that of the eigenvalues. Both condition numbers differ by a
    factor of n at most.

    Hager's method as in Higham, ACM Trans. Math. Softw. 14 (1988), 381-396, algorithm 4.1: LAPACK's
    xLACN2 and xGECON.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.diag([1., 2, 8]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.cond(A)
    >>> pdla.run(2, program)[0]
    8.0
    """
    if not (isinstance(A, DistMatrix) and isinstance(p, (int, float)) and p == 2):
        return CONDITION(A, p=p, check_finite=check_finite, memory_limit=memory_limit, verify=verify)
    named = {"p": p, "check_finite": check_finite, "memory_limit": memory_limit, "verify": verify}
    with agreed(communicator((A,)), describe_call("cond", A, **named)):
        checks.check_square("cond", A)
        check_not_empty(A)
        if check_finite:
            checks.check_finite(A)
    if not _is_hermitian(A):
        raise LinAlgError("cond: p=2 needs a Hermitian A, and A is not Hermitian: use p=1 or p=numpy.inf")
    w = np.abs(eigvalsh(A, check_finite=False, memory_limit=memory_limit, verify=verify))
    return float(w.max() / w.min()) if w.min() > 0 else inf


def _is_hermitian(A: DistMatrix) -> bool:
    """Collective: whether A is Hermitian, bit by bit; not with NaN."""
    return A.shape[0] == A.shape[1] and measure(A - A.H, "max") == 0


def _find_two_norm(A: DistMatrix) -> float:
    """Collective: the largest singular value."""
    size = measure(A, "max")
    if not isfinite(size) or size == 0:
        return size
    if _is_hermitian(A):
        return float(np.abs(eigvalsh(A)[[0, -1]]).max())
    scale = float(near_one(size, A.dtype))  # squares could overflow or underflow
    X = A * scale
    wide = A.shape[0] <= A.shape[1]
    # |A|^2 is the largest eigenvalue of A A^H; rounding spoils only the least eigenvalues.
    w = eigvalsh(herk(X if wide else X.H), subset_by_index=(min(A.shape) - 1,) * 2)
    return sqrt(max(0.0, float(w[0]))) / scale
