"""Least squares, by A = Q R or A^H = Q R."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.checks import sizes
from pdla.layout import Layout
from pdla.linalg.condition import estimate_reciprocal_condition
from pdla.linalg.orthogonal.factors import Factored, compute_svd, factor_qr, replicate
from pdla.linalg.orthogonal.qr import check_rcond, find_rank_limit, read_all, routines_of
from pdla.linalg.panels.blocks import cut_layout
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
from pdla.model.bounds import exact
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
    m, n = exact(m, n)
    are_sizes = sizes(m, n)
    if are_sizes and m < n:
        m, n = n, m
    (routine,) = routines_of("r", are_sizes and is_tall(m, n))
    return predict(LSTSQ, routine, m, n, P, dtype, machine)


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


def _solve(made: Factored, C: DistMatrix, wide: bool, limit: float) -> tuple[DistMatrix, int, np.ndarray | None]:
    """Collective: the least X of R X = C or, wide, of R^H X = C; the rank; and the singular values, if computed."""
    R = made.R
    n = R.shape[0]
    factors = Factors(R, ((wide, Part(wide)),))
    if n and _is_regular(R) and estimate_reciprocal_condition(Factors(R, ((False, Part(False)),))) > SURE * limit:
        return solve_by(factors, RightSide(C, None, R.dtype)), n, None
    u, s, vh = compute_svd(R)
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


# the passes: QR, Q^H B, and six systems, of which five estimate R's condition
LSTSQ = Call("lstsq", _choose_routines, _lstsq, solves=True, square=False, reads=read_all, check=_check, adjoint=_is_wide, passes=8)
