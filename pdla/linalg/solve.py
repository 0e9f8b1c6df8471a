"""A X = B, by what is known of A."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from pdla.comm.agreement import agreed
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.condition import heed, of_cholesky, of_lower, of_lu, of_upper
from pdla.linalg.diagonal import solved_by_diagonal
from pdla.linalg.factorizations.blocking import limited, to
from pdla.linalg.factorizations.cholesky import factored, solved_by
from pdla.linalg.factorizations.lu import regular_factors, solved_by_lu
from pdla.linalg.factorizations.right_side import RightSide
from pdla.linalg.factorizations.triangular import solved
from pdla.linalg.refinement import lower_dtype, refined
from pdla.linalg.verify import asked
from pdla.matmul.checks import communicator
from pdla.matmul.verify import check_asked
from pdla.matrix.core import DistMatrix

ROUTINES = {
    "gen": "lu", "sym": "lu", "her": "lu", "pos": "cholesky", "lower triangular": "triangular", "upper triangular": "triangular",
    "diagonal": "diagonal",
}  # what is done first, by what is known of A


def solve(
    A: DistMatrix, B: Any, *, assume_a: str = "gen", lower: bool = True, overwrite_a: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, layout: Layout | None = None, refine: str | None = None, memory_limit: int | None = None,
    verify: bool | str | None = None,
) -> Any:
    """Solve A X = B, by what is known of A. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, in any layout.
    B : DistMatrix or array
        n x m on A's communicator, in any layout; or a NumPy vector of n numbers, equal on all
        ranks.
    assume_a : str, optional
        "gen": by LU with row pivoting; "sym" and "her", symmetric and Hermitian: by LU, too, of
        one triangle and its reflection; "pos", Hermitian and positive definite: by Cholesky;
        "lower triangular", "upper triangular": by substitution; "diagonal": by a division.
    lower : bool, optional
        For "sym", "her" and "pos": whether the lower triangle is read; else the upper one. Of the
        diagonal of a Hermitian A the imaginary parts are not read.
    overwrite_a : bool, optional
        Whether A may be written to, which spares a copy where it lies as it is worked on.
    overwrite_b : bool, optional
        Whether a matrix B may be written to, which spares a copy where it lies as it is worked on.
    check_finite : bool, optional
        Whether to look for NaN and infinity first, in B and in what is read of A.
    layout : Layout, optional
        Of X; by default B's.
    refine : None or "float32", optional
        "float32": factors in float32 of float64, in complex64 of complex128, for half the time and
        half the words, and refinement to the residual of a full solution; see the notes.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, the copies of A and B that are worked on included; with
        `refine` those of the full solution, and of GMRES's vectors, too. Of a diagonal A there is
        nothing to choose.
    verify : bool or "keep", optional
        Check the factors, as `cholesky` and `lu_factor` do, and compare A (X x), by them, with B x
        for two vectors of 1 and -1; compute what is wrong once more, with a warning. What was in an
        A or B that is overwritten is lost: then it is an error, or "keep" works on copies. By
        default as PDLA_VERIFY says. The guide on checked results says what is found, and how
        probably.

    Returns
    -------
    DistMatrix or array
        X, n x m, as B is; a vector on every rank.

    Raises
    ------
    LinAlgError
        For a matrix that is singular, or not positive definite; for NaN and infinity; where LU
        overflows, of an A that was overwritten.
    VerificationError
        For factors or an X that `verify` found wrong, and could not compute again.
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        For arguments that do not go together, on every rank, as all of these.

    Notes
    -----
    Where elements of U overflow, A and B are multiplied by 2^-32, and A is factored again.

    Of an A that is singular to working precision it warns on every rank, by SciPy's LinAlgWarning,
    where the least and the largest pivot raise a suspicion that an estimate of the condition
    confirms. Both pivots come with the search for zeros among them. Of matrices like Kahan's none
    is small: `cond` tells.

    To reflect a triangle of A takes n^2 / 2 P words a rank. Where both triangles are there, "gen"
    spares that.

    A step of refinement takes a solution and a product A X; there must be memory for both
    precisions. The logger "pdla" of rank 0 tells the steps, at level INFO. Where they stall, as
    from condition numbers of about 1e7, at most 30 steps of GMRES follow, for one column of 4096
    rows, two of 8192, and so on; and where these do not converge, the full solution, with a
    RuntimeWarning. An A whose row sums are beyond 2^64, or below 2^-64, is scaled first, as B is.
    Dry runs count no step. Wilkinson, Rounding Errors in Algebraic Processes (1963); LAPACK's
    dsgesv and dsposv: Langou et al., SC 2006; GMRES: Carson, Higham, SIAM J. Sci. Comput. 40
    (2018).

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 2], [4, 4]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.solve(A, np.array([5., 12]))
    >>> pdla.run(2, program)[0]
    array([1., 2.])
    """
    named = {"lower": lower, "over": (overwrite_a, overwrite_b), "finite": check_finite, "layout": layout, "refine": refine}
    said = checks.words("solve", A, B, assume_a=assume_a, limit=memory_limit, verify=verify, **named)
    with agreed(communicator((A, B)), said):
        check_asked(verify)
        checks.assumed("solve", assume_a)
        checks.flags(lower=lower, overwrite_a=overwrite_a, overwrite_b=overwrite_b, check_finite=check_finite)
        checks.square("solve", A)
        if overwrite_a:
            checks.overwritten("A", A, B)
        side = RightSide.of("solve", A, B, layout, overwrite_b and verify != "keep")
        if check_finite:
            checks.finite(A, side.B, part=checks.part_of(assume_a, lower))
        overwrite_a = overwrite_a and verify != "keep"
        low = lower_dtype(refine, side.dtype, assume_a)

        def run(A: DistMatrix, B: Any, both: bool = False) -> Any:
            given = replace(side, B=B)
            X = None if low is None else refined(A, given, low, assume_a, lower)
            return _solved(A, given, assume_a, lower, overwrite_a) if X is None or both else X

        blocking = limited(ROUTINES[assume_a], A, side.dtype, memory_limit, partial(run, both=True), side.B, said=said)
    with to(blocking, memory_limit), asked(verify):
        return run(A, side.B)


def _solved(A: DistMatrix, side: RightSide, assume_a: str, lower: bool, overwrite: bool) -> Any:
    """Collective: X, as its right-hand side wants it."""
    if ROUTINES[assume_a] == "lu":
        X, pivots, power = regular_factors(A, side.dtype, overwrite, checks.part_of(assume_a, lower))
        heed(X, of_lu, X.dtype)
        return solved_by_lu(X, pivots, side, power)
    if assume_a == "diagonal":
        return solved_by_diagonal(A, side)
    if assume_a == "pos":
        L = factored(A if lower else A.H, side.dtype, overwrite)
        heed(L, of_cholesky, L.dtype)
        return solved_by(L, side)
    lower = assume_a == "lower triangular"
    heed(A, of_lower if lower else of_upper, side.dtype)
    return solved(A, side, lower, False)
