"""Least squares, pseudo-inverses, ranks and null spaces: what follows from the small factor R of A = Q R, or of A^H = Q R."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.checks import communicator, describe_call, matrix
from pdla.comm.agreement import agreed
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.condition import estimate_reciprocal_condition
from pdla.linalg.orthogonal.factors import Factored, factor_qr, replicate, run_on_first_rank
from pdla.linalg.orthogonal.qr import FACTOR, check_rcond, find_rank_limit, read_all, routines_of
from pdla.linalg.panels.blocks import cut_layout, to_layout
from pdla.linalg.panels.factors import Factors
from pdla.linalg.plan.call import Call
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.predict import FactorPrediction, predict
from pdla.linalg.plan.right_side import RightSide
from pdla.linalg.plan.routine import Routine
from pdla.linalg.routines.tall_qr import is_tall
from pdla.linalg.solutions import solve_by
from pdla.matmul import matmul
from pdla.matmul.images import Part
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import cast
from pdla.model.machine import Machine

SURE = 100.0  # times rcond: an estimated reciprocal condition above that is one of full rank


def lstsq(
    A: DistMatrix, B: Any, *, rcond: float | None = None, overwrite_a: bool = False, check_finite: bool = True,
    layout: Layout | None = None, memory_limit: int | None = None,
) -> tuple[Any, np.ndarray, int, np.ndarray | None]:
    """Find the X that minimizes the norms of A X - B. Collective, idle ranks included.

    If several X minimize them, the result is the least one.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout, of more rows than columns or of fewer.
    B : DistMatrix or array
        m x c, on A's communicator; or a vector of m numbers, the same on every rank.
    rcond : float, optional
        Singular values below rcond times the largest count as 0; by default max(m, n) eps.
    overwrite_a : bool, optional
        Whether A may be written to. No copy is made then, if A is stored as the algorithm needs it.
        For m > n, residuals are computed from A, which is not written to.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    layout : Layout, optional
        The layout of a matrix X; by default B's, if it fits X.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, the copy of A that is worked on included, of an A of
        full rank.

    Returns
    -------
    X : DistMatrix or array
        n x c, or n numbers, as B is.
    residuals : array
        The squared norm of each column of A X - B, on every rank. As by NumPy, empty if the rank is
        below n, or m is at most n.
    rank : int
        Of A.
    s : array or None
        A's singular values, on every rank. None if A's condition shows full rank, as they are not
        computed then.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    ShapeError, PlanError, LayoutError, GridError, AgreementError
        For arguments that do not go together, and for a memory_limit that cannot be kept, on every
        rank, as all of these.

    See Also
    --------
    numpy.linalg.lstsq : The same on one rank.

    Notes
    -----
    By QR of A: X = R^-1 Q^H B; or of A^H if A has fewer rows: X = Q R^-H B. If R is
    ill-conditioned, its singular values decide; the first rank computes them, and R must fit on
    each rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.array([[1., 0], [1, 1], [1, 2]]))
    ...     x, residuals, rank, _ = pdla.linalg.lstsq(A, np.array([1., 3, 5]))
    ...     return x.round(12), rank
    >>> pdla.run(2, program)[0]
    (array([1., 2.]), 2)
    """
    return LSTSQ(
        A, B, rcond=rcond, overwrite_a=overwrite_a, check_finite=check_finite, layout=layout, memory_limit=memory_limit
    )


def plan_lstsq(
    A: DistMatrix, B: Any, *, rcond: float | None = None, overwrite_a: bool = False, check_finite: bool = True,
    layout: Layout | None = None, memory_limit: int | None = None,
) -> FactorPlan:
    """Plan how `lstsq` will fit systems like A X = B. Collective, idle ranks included.

    Parameters
    ----------
    A, B : DistMatrix
        As for `lstsq`, as all arguments are; B may be a vector. Their elements do not matter.
    rcond : float, optional
        From which quotient on singular values count as 0.
    overwrite_a : bool, optional
        Whether A may be written to.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    layout : Layout, optional
        Of X.
    memory_limit : int, optional
        Bytes of workspace a rank, at most.

    Returns
    -------
    FactorPlan
        It says what it will cost, and fits systems like this one.

    Raises
    ------
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        As by `lstsq`, on every rank.

    See Also
    --------
    predict_lstsq : What it costs, from A's sizes alone.

    Notes
    -----
    The cost is that of an A of full rank. To estimate R's condition takes some products with R and
    R^H, and solutions by them, more than are counted: of one column, mostly one each.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.random((64, 8))
    ...     x, _, rank, _ = pdla.linalg.plan_lstsq(A, np.ones(64))(A, np.ones(64))
    ...     return x.shape, rank
    >>> pdla.run(4, program)[0]
    ((8,), 8)
    """
    return LSTSQ.plan(
        A, B, rcond=rcond, overwrite_a=overwrite_a, check_finite=check_finite, layout=layout, memory_limit=memory_limit
    )


def predict_lstsq(
    m: int, n: int, P: int, *, dtype: Any = "float64", machine: Machine | str | None = None
) -> FactorPrediction:
    """Find the best grid and blocks for least squares of one right-hand side, and what they cost.

    No communicator is needed.

    Parameters
    ----------
    m, n : int
        Rows and columns.
    P : int
        Ranks, at most.
    dtype : dtype, optional
        Of the matrix.
    machine : Machine or str, optional
        As for `predict_cholesky`.

    Returns
    -------
    FactorPrediction
        The grid, the block, and what they cost. Bytes and the bound are those of the factorization
        of A, or of A^H if A has fewer rows.

    Raises
    ------
    PlanError, ShapeError
        As by `predict_cholesky`.

    Examples
    --------
    >>> pdla.linalg.predict_lstsq(200_000, 512, 64).ranks_used
    64
    """
    are_sizes = isinstance(m, int) and isinstance(n, int)
    if are_sizes and m < n:
        m, n = n, m
    (routine,) = routines_of("r", are_sizes and is_tall(m, n))
    return predict(LSTSQ, routine, m, n, P, dtype, machine)


def pinv(A: DistMatrix, *, rcond: float | None = None, layout: Layout | None = None) -> DistMatrix:
    """Give the Moore-Penrose pseudo-inverse. Collective, idle ranks included.

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
    A = Q R, and pinv(A) = pinv(R) Q^H. For an A of fewer rows, pinv(A) = pinv(A^H)^H. Each rank has
    the pseudo-inverse of R, where R must fit.

    Examples
    --------
    >>> def program(comm):
    ...     return pdla.linalg.pinv(pdla.ones((4, 2))).gather()
    >>> pdla.run(2, program)[0].round(12)
    array([[0.125, 0.125, 0.125, 0.125],
           [0.125, 0.125, 0.125, 0.125]])
    """
    (m, n), wide, dtype = _agree("pinv", A, rcond, layout, lambda shape: (shape[1], shape[0]))
    made = FACTOR(A.H if wide else A, check_finite=True)
    R = made.R
    u, s, vh = _compute_svd(R, True)
    kept = s > find_rank_limit(A, rcond, dtype) * s.max(initial=0)
    P = replicate(vh[kept].conj().T / s[kept] @ u[:, kept].conj().T, R)
    result = matmul(P, made.form_q().H)
    result = result.H if wide else result
    return to_layout(result, layout or cut_layout(A.T, (n, m)), A.grid)


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
    (_m, _n), wide, dtype = _agree("matrix_rank", A, rtol, None, lambda shape: shape, tol)
    s = _compute_svd(FACTOR(A.H if wide else A, check_finite=True).R, False)
    return int((s > (find_rank_limit(A, rtol, dtype) * s.max(initial=0) if tol is None else tol)).sum())


def null_space(A: DistMatrix, *, rcond: float | None = None, layout: Layout | None = None) -> DistMatrix:
    """Give an orthonormal basis of the x for which A x is 0. Collective, idle ranks included.

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
    (_m, _n), _, dtype = _agree("null_space", A, rcond, layout, lambda shape: (shape[1], shape[1]))
    R = FACTOR(A, check_finite=True).R
    _, s, vh = _compute_svd(R, True, full=True)
    rank = int((s > find_rank_limit(A, rcond, dtype) * s.max(initial=0)).sum())
    basis = replicate(vh[rank:].conj().T, R)
    return to_layout(basis, layout or Layout.trust(A.T.layout.summed.rows, ()), A.grid)


# ---------------------------------------------------------------------------------------------- steps


def _check(options: Options, dtype: np.dtype, A: DistMatrix, B: Any) -> None:
    check_rcond("lstsq", options.rcond)


def _is_wide(options: Options, A: DistMatrix) -> bool:
    return A.shape[0] < A.shape[1]


def _choose_routines(options: Options, A: DistMatrix) -> tuple[Routine, ...]:
    return routines_of("r", is_tall(*A.shape))


def _lstsq(plan: FactorPlan, A: DistMatrix, B: Any) -> tuple[Any, np.ndarray, int, np.ndarray | None]:
    """Collective, unchecked: X in B's form, residuals, rank and singular values."""
    (m, n), wide, vector = A.shape, plan.adjoint, not isinstance(B, DistMatrix)
    # what is left of m > n is computed from A
    made = factor_qr(plan, A.H if wide else A, keep=m > n)
    side = RightSide(B, plan.options.layout if vector else plan.options.layout or cut_layout(B, (n, B.shape[1])), plan.dtype)
    # a vector as one column, cut as A's rows are
    Y = side.make_working_copy(Layout.trust(A.layout.summed.rows, ()), A.grid) if vector else cast(B, plan.dtype)
    C = Y if wide else made.multiply(Y, True)
    X, rank, s = _solve(made, C, wide, find_rank_limit(A, plan.options.rcond, plan.dtype))
    if wide:
        X = made.multiply(X, False)
    residuals = _compute_residuals(A, X, Y) if rank == n < m else np.zeros(0)
    return side.to_b_form(side.place(X)), residuals, rank, s


def _agree(
    name: str, A: DistMatrix, rcond: Any, layout: Any, result: Any, tol: Any = None
) -> tuple[tuple[int, int], bool, np.dtype]:
    """Collective: check the arguments; return A's shape, whether A has fewer rows than columns, and the dtype."""
    with agreed(communicator((A,)), describe_call(name, A, rcond=rcond, tol=tol, layout=layout)):
        matrix(A)
        check_rcond(name, rcond)
        dtype = checks.find_working_dtype(name, A.dtype)
        checks.check_result(A, result(A.shape), dtype, None, layout)
    return A.shape, A.shape[0] < A.shape[1], dtype


def _compute_svd(R: DistMatrix, vectors: bool, full: bool = False) -> Any:
    """Collective: R's singular values and, with vectors, U and V^H. The first rank computes them for all."""
    whole, (k, n) = R.gather(root=0), R.shape

    def find() -> Any:
        if R.xp.name == "meta":
            s = np.ones(min(k, n))
            return (np.zeros((k, len(s)), R.dtype), s, np.zeros((n if full else len(s), n), R.dtype)) if vectors else s
        return np.linalg.svd(R.xp.host(whole), full_matrices=full, compute_uv=vectors)  # type: ignore[call-overload]

    return run_on_first_rank(R.grid.comm, find)


def _solve(made: Factored, C: DistMatrix, wide: bool, limit: float) -> tuple[DistMatrix, int, np.ndarray | None]:
    """Collective: the least X of R X = C or, wide, of R^H X = C; the rank; and the singular values, if computed."""
    R = made.R
    n = R.shape[0]
    factors = Factors(R, ((wide, Part(wide)),))
    if n and _is_regular(R) and estimate_reciprocal_condition(Factors(R, ((False, Part(False)),))) > SURE * limit:
        return solve_by(factors, RightSide(C, None, R.dtype)), n, None
    u, s, vh = _compute_svd(R, True)
    kept = s > limit * s.max(initial=0)
    u, vh = (vh.conj().T, u.conj().T) if wide else (u, vh)
    # X = V S^-1 (U^H C), as the product V S^-1 U^H would lose R's condition in digits
    small = matmul(replicate(u[:, kept].conj().T, R), C)
    return matmul(replicate(vh[kept].conj().T / s[kept], R), small), int(kept.sum()), s


def _is_regular(R: DistMatrix) -> bool:
    """Collective: whether all of R's diagonal is finite and not 0; true for arrays without data."""
    d = R.diagonal()
    return R.xp.name == "meta" or bool(np.isfinite(d).all() and (d != 0).all())


def _compute_residuals(A: DistMatrix, X: DistMatrix, B: DistMatrix) -> np.ndarray:
    """Collective: the squared norms of the columns of A X - B."""
    left = matmul(A, X, layout=B.layout.summed) - B
    return np.asarray((abs(left) ** 2).sum(axis=0)).real.reshape(-1)


LSTSQ = Call("lstsq", _choose_routines, _lstsq, solves=True, square=False, reads=read_all, check=_check, adjoint=_is_wide)
