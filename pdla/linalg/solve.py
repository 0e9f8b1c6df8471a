"""Solve A X = B, by the structure of A."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.layout import Layout
from pdla.linalg.condition import warn_if_ill_conditioned
from pdla.linalg.diagonal import solve_diagonal
from pdla.linalg.plan.call import Call, accept_stacks
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.refinement.refinement import find_lower_dtype, refine_solution
from pdla.linalg.routines import BY_STRUCTURE, LU, TRIANGULAR
from pdla.linalg.solutions import factor, solve_by
from pdla.matrix.core import DistMatrix, MatrixOrVector


@accept_stacks(LU, like=1)
def solve(
    A: DistMatrix, B: MatrixOrVector, *, assume_a: str = "gen", lower: bool = True, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, layout: Layout | None = None, out: MatrixOrVector | None = None,
    refine: str | None = None, memory_limit: int | None = None, verify: bool | str | None = None,
) -> MatrixOrVector:
    """Solve A X = B, by the structure of A. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, in any layout.
    B : DistMatrix or array
        n x m on A's communicator, in any layout; or a NumPy vector of n numbers, equal on all
        ranks.
    assume_a : str, optional
        A's structure. "gen": LU with row pivoting. "sym", "her", symmetric or Hermitian: LU of one
        triangle and its mirror image. "pos", Hermitian and positive definite: Cholesky.
        "lower triangular", "upper triangular": substitution. "diagonal": division.
    lower : bool, optional
        For "sym", "her" and "pos": whether the lower triangle is read; else the upper one. The
        imaginary parts of a Hermitian A's diagonal are not read.
    overwrite_a : bool, optional
        Whether A may be written to. No copy is made then, if A is stored as the algorithm needs it.
    overwrite_b : bool, optional
        Whether a matrix B may be written to. No copy is made then, if B is stored as the algorithm
        needs it.
    check_finite : bool, optional
        Whether to look for NaN and infinity first, in B and in what is read of A.
    layout : Layout, optional
        X's layout; by default B's.
    out : DistMatrix or array, optional
        X is written here: a matrix on B's grid, of X's shape and dtype, or an array on every rank
        for a vector. `out` shares no memory with A and B.
    refine : None or "float32", optional
        "float32": factor a float64 A in float32, a complex128 one in complex64, and refine X to the
        residual of a full solution. Factors take half the time and half the words; see the notes.
    memory_limit : int, optional
        The most bytes of workspace a rank, with the working copies of A and B. With `refine`, the
        full solution and GMRES's vectors count, too. Ignored for a diagonal A.
    verify : bool or "keep", optional
        Check the factors, as `cholesky` and `lu_factor` do. Compare A (X x), computed from the
        factors, with B x for two vectors of 1 and -1. A wrong result is computed once more, with a
        warning. If A or B was overwritten, a wrong result is an error; "keep" works on copies
        instead. By default as PDLA_VERIFY says. The guide on checked results lists what is found,
        and how probably.

    Returns
    -------
    DistMatrix or array
        X, n x m, as B is; a vector on every rank.

    Raises
    ------
    LinAlgError
        For a matrix that is singular, or not positive definite; for NaN and infinity; if LU
        overflows and A was overwritten.
    VerificationError
        For factors or an X that `verify` found wrong, and could not compute again.
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        For arguments that do not go together. All of these are raised on every rank.

    Notes
    -----
    If elements of U overflow, A and B are multiplied by 2^-32, and A is factored again.

    If A is singular to working precision, SciPy's LinAlgWarning appears on every rank. The
    condition is estimated only if the least pivot is small against the largest, which costs no
    message. Matrices like Kahan's have no small pivot: use `cond`.

    Mirroring a triangle of A takes n^2 / 2 P words a rank. If both triangles are stored, "gen"
    avoids that.

    A step of refinement takes a solution and a product A X; memory must hold both precisions. The
    logger "pdla" of rank 0 reports the number of steps, at level INFO. If refinement stalls, as
    from condition numbers of about 1e7, at most 30 steps of GMRES follow, for one column of 4096
    rows, two of 8192, and so on. If GMRES does not converge, the full solution follows, with a
    RuntimeWarning. If A's row sums are above 2^64 or below 2^-64, A and B are scaled first. Dry
    runs count no step. Wilkinson, Rounding Errors in Algebraic Processes (1963); LAPACK's dsgesv
    and dsposv: Langou et al., SC 2006; GMRES: Carson, Higham, SIAM J. Sci. Comput. 40 (2018).

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 2], [4, 4]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.solve(A, np.array([5., 12]))
    >>> pdla.run(2, program)[0]
    array([1., 2.])
    """
    return SOLVE(
        A, B, out=out, assume_a=assume_a, lower=lower, overwrite_a=overwrite_a, overwrite_b=overwrite_b, check_finite=check_finite,
        layout=layout, refine=refine, memory_limit=memory_limit, verify=verify,
    )


def _solve(plan: FactorPlan, A: DistMatrix, B: Any, out: Any = None) -> Any:
    """Collective, unchecked: X in B's form, by refinement if requested, else in full precision."""
    side = plan.describe_side(B, out)
    low = find_lower_dtype(plan.options, plan.dtype)
    X = None if low is None else refine_solution(plan, A, side, low)
    if X is not None and not plan.worst:
        return X
    if not plan.tasks:
        return solve_diagonal(A, side)
    factors = factor(plan, A).require_regular()
    warn_if_ill_conditioned(factors, plan.dtype)
    return solve_by(factors, side, plan.square_place)


def _check(options: Options, dtype: np.dtype, A: DistMatrix, B: Any) -> None:
    find_lower_dtype(options, dtype)


_SIDES = (TRIANGULAR, TRIANGULAR)  # behind a factorization
_ROUTINES = {structure: first if first in ((), (TRIANGULAR,)) else (*first, *_SIDES) for structure, first in BY_STRUCTURE.items()}
SOLVE = Call("solve", _ROUTINES, _solve, solves=True, check=_check)


def plan_solve(
    A: DistMatrix, B: Any, *, assume_a: str = "gen", lower: bool = True, overwrite_a: bool = False,
    overwrite_b: bool = False, check_finite: bool = True, layout: Layout | None = None, memory_limit: int | None = None,
) -> FactorPlan:
    """Plan how `solve` will solve systems like A X = B. Collective, idle ranks included.

    Parameters
    ----------
    A, B : DistMatrix
        As for `solve`, like all arguments; B may be a vector. Their elements do not matter.
    assume_a : str, optional
        A's structure; not "diagonal".
    lower : bool, optional
        For "sym", "her" and "pos": whether the lower triangle is read; else the upper one.
    overwrite_a, overwrite_b : bool, optional
        Whether they may be written to.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    layout : Layout, optional
        Of X.
    memory_limit : int, optional
        Bytes of workspace a rank, at most.

    Returns
    -------
    FactorPlan
        The plan predicts its cost, and solves systems like this one.

    Raises
    ------
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        As by `solve`, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = 4 * pdla.eye(64, pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
    ...     plan = pdla.linalg.plan_solve(A, A, assume_a="pos")
    ...     return plan(A, A).trace()
    >>> pdla.run(4, program)[0]
    np.float64(64.0)
    """
    return SOLVE.plan(
        A, B, assume_a=assume_a, lower=lower, overwrite_a=overwrite_a, overwrite_b=overwrite_b, check_finite=check_finite,
        layout=layout, memory_limit=memory_limit,
    )
