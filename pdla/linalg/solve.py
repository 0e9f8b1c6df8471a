"""A X = B, by what is known of A."""

from __future__ import annotations

from typing import Any

from pdla.comm.agreement import agreed
from pdla.errors import PlanError
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.cholesky import factored, solved_by
from pdla.linalg.lu import solved_by_factoring
from pdla.linalg.refinement import lower_dtype, refined
from pdla.linalg.right_side import RightSide
from pdla.linalg.triangular import solved
from pdla.matmul.checks import communicator, one_of
from pdla.matrix.core import DistMatrix

TRIANGLES = ("lower triangular", "upper triangular")
ASSUMED = ("gen", "pos", "sym", "her", *TRIANGLES)


def solve(
    A: DistMatrix, B: Any, *, assume_a: str = "gen", lower: bool = True, overwrite_a: bool = False, check_finite: bool = True,
    layout: Layout | None = None, refine: str | None = None,
) -> Any:
    """X of A X = B; collective over A's grid, idle ranks too. Nothing is written to B.

    A         n x n in any layout
    B, layout, check_finite   as for solve_triangular: a vector gives a vector, a DistMatrix one in its layout
    assume_a  "gen": by LU with partial pivoting; "pos", Hermitian and positive definite: by Cholesky; "lower triangular", "upper
              triangular"; "sym" and "her", symmetric and Hermitian, both triangles of which are read: by LU, too
    lower     for "pos": which triangle is read
    overwrite_a   A may be written to, which spares a copy where it lies as it is worked on
    refine    "float32": factors in float32 of float64, in complex64 of complex128, for half the time and half the words, and
              refinement to the residual of a full solution (refinement.py), by a solution and a product A X a step; it takes
              memory for both. The logger "pdla" of rank 0 tells the steps, at level INFO. Where they do not converge, as from
              condition numbers of about 1e7, the full solution follows, with a RuntimeWarning. Dry runs count no step

    Raises LinAlgError for a matrix that is singular, or not positive definite; ShapeError, LayoutError, GridError, PlanError or
    AgreementError, on every rank.
    """
    named = {"lower": lower, "over": overwrite_a, "finite": check_finite, "layout": layout, "refine": refine}
    with agreed(communicator((A, B)), checks.words("solve", A, B, assume_a=assume_a, **named)):
        if not one_of(assume_a, ASSUMED):
            raise PlanError(f"solve: assume_a={assume_a!r}: one of {', '.join(map(repr, ASSUMED))}")
        checks.flags(lower=lower, overwrite_a=overwrite_a, check_finite=check_finite)
        checks.square("solve", A)
        if overwrite_a:
            checks.overwritten("A", A, B)
        side = RightSide.of("solve", A, B, layout)
        if check_finite:
            checks.finite(A, B)
        low = lower_dtype(refine, side.dtype, assume_a in TRIANGLES)
    if low is not None and (X := refined(A, side, low, assume_a == "pos", lower)) is not None:
        return X
    if assume_a in ("gen", "sym", "her"):
        return solved_by_factoring(A, side, overwrite_a)
    if assume_a == "pos":
        return solved_by(factored(A if lower else A.H, side.dtype, overwrite_a), side)
    return solved(A, side, assume_a == "lower triangular", False)
