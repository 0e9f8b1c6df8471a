"""Triangular systems: what users call."""

from __future__ import annotations

from typing import Any

import numpy as np

from pdla.checks import SIDES, one_of, scalars
from pdla.errors import PlanError, ShapeError, suggest
from pdla.layout import Layout
from pdla.linalg.panels.factors import Factors
from pdla.linalg.plan.call import Call
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.predict import FactorPrediction, predict
from pdla.linalg.routines.triangular import TRIANGULAR, check_diagonal
from pdla.linalg.solutions import solve_by
from pdla.matmul.images import Part
from pdla.matrix.core import DistMatrix, MatrixOrVector
from pdla.model.machine import Machine


def solve_triangular(
    A: DistMatrix, B: MatrixOrVector, *, lower: bool, unit_diagonal: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, layout: Layout | None = None, out: MatrixOrVector | None = None, memory_limit: int | None = None,
    verify: bool | str | None = None,
) -> MatrixOrVector:
    """Solve A X = B, A triangular. Collective over A's grid, idle ranks included.

    A is never written to.

    Parameters
    ----------
    A : DistMatrix
        n x n, in any layout; only one triangle is read, the other may hold anything, NaN too. For
        A^T or A^H pass A.T or A.H: views, whose other triangle is meant.
    B : DistMatrix or array
        n x m on A's communicator, in any layout; or a NumPy vector of n numbers, equal on all
        ranks.
    lower : bool
        Whether A is the lower triangle; else the upper one.
    unit_diagonal : bool, optional
        Whether the diagonal is ones, and not read.
    overwrite_b : bool, optional
        Whether a matrix B may be written to. No copy is made then, if B's rows are cut as A's are.
    check_finite : bool, optional
        Whether to look for NaN and infinity first, in B and in what is read of A.
    layout : Layout, optional
        X's layout; by default B's.
    out : DistMatrix or array, optional
        X is written here; see `solve`.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, the copies of the factors and of B that are worked on
        included.
    verify : bool or "keep", optional
        Whether to check X, as by `solve`.

    Returns
    -------
    DistMatrix or array
        X, n x m, as B is; a vector on every rank.

    Raises
    ------
    LinAlgError
        For a zero on the diagonal; for NaN and infinity.
    VerificationError
        For an X that `verify` found wrong, and could not compute again.
    ShapeError, LayoutError, GridError, AgreementError
        For arguments that do not go together. All of these are raised on every rank.

    Notes
    -----
    An A in square blocks is used in place, another is redistributed. Square blocks are `Cyclic`
    along one axis for rows, one for columns, or only one of these. On a pr x pc grid a rank
    receives about n m (1 + 1/pc) words for up to 32 columns. For more columns it receives n^2 / 2
    pr (1 - 1/pc) + n m / pc (1 - 1/pr).

    Right-looking substitution: Golub and Van Loan, Matrix Computations, 3.1.3. The solution is
    backward stable: X solves a system whose A differs by n eps abs(A) or less in each element. See
    Higham, Accuracy and Stability of Numerical Algorithms (2002), theorem 8.5.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[2., 0], [1, 3]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.solve_triangular(A, np.array([2., 7]), lower=True)
    >>> pdla.run(2, program)[0]
    array([1., 2.])
    """
    return SOLVE_TRIANGULAR(
        A, B, out=out, lower=lower, unit_diagonal=unit_diagonal, overwrite_b=overwrite_b, check_finite=check_finite, layout=layout,
        memory_limit=memory_limit, verify=verify,
    )


def plan_solve_triangular(
    A: DistMatrix, B: Any, *, lower: bool, unit_diagonal: bool = False, overwrite_b: bool = False,
    check_finite: bool = True, layout: Layout | None = None, memory_limit: int | None = None,
) -> FactorPlan:
    """Plan how `solve_triangular` will solve systems like A X = B. Collective, idle ranks included.

    Parameters
    ----------
    A, B : DistMatrix
        As for `solve_triangular`, like all arguments; B may be a vector. Their elements do not
        matter.
    lower : bool
        Whether A is the lower triangle; else the upper one.
    unit_diagonal : bool, optional
        Whether to take the diagonal to be ones.
    overwrite_b : bool, optional
        Whether B may be written to.
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
        As by `solve_triangular`, on every rank.

    See Also
    --------
    predict_solve_triangular : What it costs, from its sizes alone.

    Examples
    --------
    >>> def program(comm):
    ...     A = 4 * pdla.eye(64, pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
    ...     return pdla.linalg.plan_solve_triangular(A, A, lower=True)(A, A).trace()
    >>> pdla.run(4, program)[0]
    np.float64(64.0)
    """
    return SOLVE_TRIANGULAR.plan(
        A, B, lower=lower, unit_diagonal=unit_diagonal, overwrite_b=overwrite_b, check_finite=check_finite, layout=layout,
        memory_limit=memory_limit,
    )


def predict_solve_triangular(
    n: int, m: int, P: int, *, dtype: Any = "float64", machine: Machine | str | None = None
) -> FactorPrediction:
    """Find the best grid and blocks for a triangular system, and what it costs.

    No communicator is needed.

    Parameters
    ----------
    n : int
        Rows and columns of the triangle.
    m : int
        Right-hand sides.
    P : int
        Ranks, at most.
    dtype : dtype, optional
        Of the matrices.
    machine : Machine or str, optional
        As for `predict_cholesky`.

    Returns
    -------
    FactorPrediction
        The grid, the block, and what they cost.

    Raises
    ------
    PlanError, ShapeError
        As by `predict_cholesky`.

    Examples
    --------
    >>> pdla.linalg.predict_solve_triangular(4096, 4096, 4).ranks_used
    4
    """
    return predict(SOLVE_TRIANGULAR, TRIANGULAR, n, m, P, dtype, machine)


def trsm(
    A: DistMatrix, B: DistMatrix, *, lower: bool, side: str = "left", unit_diagonal: bool = False, alpha: complex = 1,
    overwrite_b: bool = False, layout: Layout | None = None, verify: bool | str | None = None,
) -> DistMatrix:
    """Solve A X = alpha B or X A = alpha B, A triangular. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n; see `solve_triangular`. NaN is not looked for.
    B : DistMatrix
        n x m (left) or m x n (right).
    lower : bool
        Whether A's lower triangle is read; else the upper one.
    side : "left" or "right", optional
        "left": A X = alpha B; "right": X A = alpha B.
    unit_diagonal : bool, optional
        Whether to take the diagonal to be ones.
    alpha : number, optional
        Factor of B.
    overwrite_b : bool, optional
        Whether B may be written to; see `solve_triangular`.
    layout : Layout, optional
        X's layout; by default B's.
    verify : bool or "keep", optional
        Whether to check X, as by `solve`.

    Returns
    -------
    DistMatrix
        X.

    Raises
    ------
    LinAlgError, VerificationError, ShapeError, LayoutError, GridError, AgreementError
        As by `solve_triangular`, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     grid, layout = pdla.ProcessGrid((2,)), pdla.Layout("row")
    ...     A = pdla.from_global(np.array([[2., 0], [1, 4]]), grid, layout)
    ...     I = pdla.eye(2, grid, layout)
    ...     return pdla.linalg.trsm(A, I, lower=True, side="right").gather()
    >>> pdla.run(2, program)[0]
    array([[ 0.5  ,  0.   ],
           [-0.125,  0.25 ]])
    """
    right = one_of(side, ("right",)) and isinstance(A, DistMatrix) and isinstance(B, DistMatrix)
    X = _TRSM(
        A.T if right else A, B.T if right else B, side=side, lower=lower != right if isinstance(lower, bool) else lower,
        unit_diagonal=unit_diagonal, alpha=alpha, overwrite_b=overwrite_b,
        layout=layout.T if right and isinstance(layout, Layout) else layout, verify=verify,
    )
    return X.T if right else X


def _reads(options: Options) -> Part:
    return Part(options.lower, "one" if options.unit_diagonal else "own")


def _check_trsm(options: Options, dtype: np.dtype, A: DistMatrix, B: Any) -> None:
    if not one_of(options.side, SIDES):
        like = suggest(options.side, SIDES)
        raise PlanError(f"trsm: side={options.side!r}: 'left' for A X = alpha B, 'right' for X A = alpha B{like}")
    if not isinstance(B, DistMatrix):
        raise ShapeError(f"trsm: B={B!r}: a DistMatrix; solve_triangular takes vectors, too")
    scalars(dtype, options.alpha, 0, B)


def _substitute(plan: FactorPlan, A: DistMatrix, B: Any, out: Any = None) -> Any:
    """Collective, unchecked: X in B's form."""
    if not plan.options.unit_diagonal:
        check_diagonal(A)
    factors = Factors(A, ((False, _reads(plan.options)),), scale=plan.options.alpha)
    return solve_by(factors, plan.describe_side(B, out), plan.square_place)


SOLVE_TRIANGULAR = Call("solve_triangular", (TRIANGULAR,), _substitute, solves=True, reads=_reads)
_TRSM = Call("trsm", (TRIANGULAR,), _substitute, solves=True, reads=_reads, check=_check_trsm)
