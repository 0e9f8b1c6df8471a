"""A X = B, by what is known of A."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from pdla.comm.agreement import agreed
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.diagonal import solved_by_diagonal
from pdla.linalg.factorizations.blocking import limited, to
from pdla.linalg.factorizations.cholesky import factored, solved_by
from pdla.linalg.factorizations.lu import solved_by_factoring
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
        "gen": by LU with row pivoting; "sym" and "her", symmetric and Hermitian, both triangles
        of which are read: by LU, too; "pos", Hermitian and positive definite: by Cholesky; "lower
        triangular", "upper triangular": by substitution; "diagonal": by a division.
    lower : bool, optional
        For "pos": whether the lower triangle is read; else the upper one.
    overwrite_a : bool, optional
        Whether A may be written to, which spares a copy where it lies as it is worked on.
    overwrite_b : bool, optional
        Whether a matrix B may be written to, which spares a copy where it lies as it is worked on.
    check_finite : bool, optional
        Whether to look for NaN and infinity in A and B first.
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
        default as PDLA_VERIFY says. A diagonal A has nothing to check.

    Returns
    -------
    DistMatrix or array
        X, n x m, as B is; a vector on every rank.

    Raises
    ------
    LinAlgError
        For a matrix that is singular, or not positive definite; for NaN and infinity.
    VerificationError
        For factors or an X that `verify` found wrong, and could not compute again.
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        For arguments that do not go together, on every rank, as all of these.

    Notes
    -----
    A step of refinement takes a solution and a product A X; there must be memory for both
    precisions. The logger "pdla" of rank 0 tells the steps, at level INFO. Where they stall, as
    from condition numbers of about 1e7, at most 30 steps of GMRES follow, for one column of 4096
    rows, two of 8192, and so on; and where these do not converge, the full solution, with a
    RuntimeWarning. Dry runs count no step. Wilkinson, Rounding Errors in Algebraic Processes
    (1963); LAPACK's dsgesv and dsposv: Langou et al., SC 2006; GMRES: Carson, Higham, SIAM J. Sci.
    Comput. 40 (2018).

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
            checks.finite(A, side.B)
        overwrite_a = overwrite_a and verify != "keep"
        low = lower_dtype(refine, side.dtype, assume_a)

        def run(A: DistMatrix, B: Any, both: bool = False) -> Any:
            given = replace(side, B=B)
            X = None if low is None else refined(A, given, low, assume_a == "pos", lower)
            return _solved(A, given, assume_a, lower, overwrite_a) if X is None or both else X

        blocking = limited(ROUTINES[assume_a], A, side.dtype, memory_limit, partial(run, both=True), side.B, said=said)
    with to(blocking, memory_limit), asked(verify):
        return run(A, side.B)


def _solved(A: DistMatrix, side: RightSide, assume_a: str, lower: bool, overwrite: bool) -> Any:
    """Collective: X, as its right-hand side wants it."""
    if ROUTINES[assume_a] == "lu":
        return solved_by_factoring(A, side, overwrite)
    if assume_a == "diagonal":
        return solved_by_diagonal(A, side)
    if assume_a == "pos":
        return solved_by(factored(A if lower else A.H, side.dtype, overwrite), side)
    return solved(A, side, assume_a == "lower triangular", False)
