"""Cholesky factors of positive definite matrices, and the systems that they solve: what users call."""

from __future__ import annotations

from typing import Any

from pdla.layout import Layout
from pdla.linalg.panels.factors import Factors
from pdla.linalg.plan.call import Call, accept_stacks
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.predict import FactorPrediction, predict
from pdla.linalg.routines.cholesky import CHOLESKY
from pdla.linalg.routines.triangular import TRIANGULAR, check_diagonal
from pdla.linalg.solutions import factor, solve_by
from pdla.matmul.images import Part
from pdla.matrix.core import DistMatrix, MatrixOrVector
from pdla.model.machine import Machine


@accept_stacks(CHOLESKY)
def cholesky(
    A: DistMatrix, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True, layout: Layout | None = None,
    memory_limit: int | None = None, verify: bool | str | None = None,
) -> DistMatrix:
    """Factor a positive definite matrix: A = L L^H. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, Hermitian and positive definite, in any layout. Only one triangle is read; the other
        may hold anything, NaN too, and so may the imaginary parts of the diagonal.
    lower : bool, optional
        Whether the lower triangle is read, for L; else the upper one, for U of A = U^H U.
    overwrite_a : bool, optional
        Whether A may be written to. No copy is made then, if A is stored as the algorithm needs it.
    check_finite : bool, optional
        Whether to look for NaN and infinity first, in the triangle that is read.
    layout : Layout, optional
        The factor's layout; by default A's.
    memory_limit : int, optional
        The most bytes of workspace a rank, with the working copy of A.
    verify : bool or "keep", optional
        Compare L (L^H x) with A x for two vectors of 1 and -1, and look for nonzeros in the other
        triangle. A wrong factor is computed once more, with a warning. If A was overwritten, a
        wrong factor is an error; "keep" works on a copy instead. By default as PDLA_VERIFY says.

    Returns
    -------
    DistMatrix
        L, or U, with zeros in the other triangle.

    Raises
    ------
    LinAlgError
        For a matrix that is not positive definite, with the order of the first leading minor that
        is not; for NaN and infinity.
    PlanError
        For a memory_limit that cannot be kept.
    VerificationError
        For a factor that `verify` found wrong, and could not compute again.
    ShapeError, LayoutError, GridError, AgreementError
        For arguments that do not go together. All of these are raised on every rank.

    See Also
    --------
    cholesky_words : The words that a rank receives.

    Notes
    -----
    The algorithm works on square blocks: `Cyclic` along one axis for rows, one for columns, or only
    one of these. An A in another layout is redistributed to the grid and blocks that
    `plan_cholesky` finds cheapest, and L to its own layout.

    Right-looking with lookahead: ScaLAPACK's pdpotrf (Choi et al., Sci. Prog. 5 (1996), section 4),
    panels by the diagonal block's inverse, or by substitution where that is ill-conditioned. The
    factorization is backward stable: L L^H differs from A by n eps abs(L) abs(L^H) or less (Higham,
    Accuracy and Stability of Numerical Algorithms (2002), theorem 10.3).

    The 2.5-D form takes an A in `Layout(Cyclic("row", c * b), (Cyclic("col", c * b),
    Cyclic("depth", b)))`. Rows and columns are in blocks of c b, and a third axis of c ranks cuts
    these columns into blocks of b. Each of the c layers works on every c-th panel. A rank stores c
    times as many words and, with c = 4, receives about half as many.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[4., 2], [2, 10]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.cholesky(A).gather()
    >>> pdla.run(2, program)[0]
    array([[2., 0.],
           [1., 3.]])
    """
    return _CHOLESKY(
        A, lower=lower, overwrite_a=overwrite_a, check_finite=check_finite, layout=layout, memory_limit=memory_limit, verify=verify
    )


def plan_cholesky(
    A: DistMatrix, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True, layout: Layout | None = None,
    memory_limit: int | None = None,
) -> FactorPlan:
    """Plan how `cholesky` will factor matrices like A. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        As for `cholesky`, like all arguments. Its elements do not matter.
    lower : bool, optional
        Whether the lower triangle is read; else the upper one.
    overwrite_a : bool, optional
        Whether A may be written to.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    layout : Layout, optional
        Of the factor.
    memory_limit : int, optional
        Bytes of workspace a rank, at most.

    Returns
    -------
    FactorPlan
        The plan predicts its cost, and factors matrices like A.

    Raises
    ------
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        As by `cholesky`, on every rank.

    See Also
    --------
    predict_cholesky : What it costs, from its size alone.

    Examples
    --------
    >>> def program(comm):
    ...     layout = pdla.Layout(pdla.Cyclic("row", 8), pdla.Cyclic("col", 8))
    ...     plan = pdla.linalg.plan_cholesky(pdla.eye(64, pdla.ProcessGrid((2, 2)), layout))
    ...     return plan.keeps_layout, plan.predicted.bytes_received < 20000
    >>> pdla.run(4, program)[0]
    (True, True)
    """
    return _CHOLESKY.plan(
        A, lower=lower, overwrite_a=overwrite_a, check_finite=check_finite, layout=layout, memory_limit=memory_limit
    )


def predict_cholesky(
    n: int, P: int, *, dtype: Any = "float64", machine: Machine | str | None = None
) -> FactorPrediction:
    """Find the best grid and blocks for a Cholesky factorization, and what it costs.

    No communicator is needed.

    Parameters
    ----------
    n : int
        Rows and columns.
    P : int
        Ranks, at most.
    dtype : dtype, optional
        Of the matrix.
    machine : Machine or str, optional
        A machine, its name or its TOML file. Without one the choice is PDLA_MACHINE's, and
        `seconds` is None.

    Returns
    -------
    FactorPrediction
        The grid, the block, and what they cost.

    Raises
    ------
    PlanError
        For sizes that no matrix has.
    ShapeError
        For a dtype that LAPACK has not.

    Examples
    --------
    >>> cost = pdla.linalg.predict_cholesky(65536, 64)
    >>> cost.grid, cost.bytes_received < 4 * cost.lower_bound
    ((8, 8), True)
    """
    return predict(_CHOLESKY, CHOLESKY, n, n, P, dtype, machine)


@accept_stacks(CHOLESKY)
def cho_factor(
    A: DistMatrix, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True, memory_limit: int | None = None,
    verify: bool | str | None = None,
) -> tuple[DistMatrix, bool]:
    """Factor a positive definite matrix for `cho_solve`. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        n x n, Hermitian and positive definite, in any layout. Only one triangle is read.
    lower : bool, optional
        Whether it is the lower one.
    overwrite_a : bool, optional
        Whether A may be written to.
    check_finite : bool, optional
        Whether to look for NaN and infinity first, in the triangle that is read.
    memory_limit : int, optional
        The most bytes of workspace a rank, with the working copy of A.
    verify : bool or "keep", optional
        Whether to check the factor, as `cholesky` does.

    Returns
    -------
    C : DistMatrix
        The factor of `cholesky`, left in square blocks, so that `cho_solve` moves no factor.
    lower : bool
        As given.

    Raises
    ------
    LinAlgError, PlanError, VerificationError, ShapeError, AgreementError
        As by `cholesky`, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = 4 * pdla.eye(3, pdla.ProcessGrid((2,)), pdla.Layout("row"))
    ...     C, lower = pdla.linalg.cho_factor(A)
    ...     return C.trace(), lower
    >>> pdla.run(2, program)[0]
    (np.float64(6.0), True)
    """
    options = {"lower": lower, "overwrite_a": overwrite_a, "check_finite": check_finite, "memory_limit": memory_limit}
    return _CHO_FACTOR(A, **options, verify=verify), lower


@accept_stacks(CHOLESKY, like=1)
def cho_solve(
    c_and_lower: tuple[DistMatrix, bool], B: MatrixOrVector, *, overwrite_b: bool = False, check_finite: bool = True,
    layout: Layout | None = None, out: MatrixOrVector | None = None, memory_limit: int | None = None,
    verify: bool | str | None = None,
) -> MatrixOrVector:
    """Solve A X = B by A's Cholesky factor. Collective over its grid, idle ranks included.

    Parameters
    ----------
    c_and_lower : tuple of DistMatrix and bool
        As `cho_factor` gives it.
    B : DistMatrix or array
        n x m, or a vector of n numbers; see `solve_triangular`.
    overwrite_b : bool, optional
        Whether a matrix B may be written to. No copy is made then, if B is stored as the algorithm
        needs it.
    check_finite : bool, optional
        Whether to look for NaN and infinity first, in the triangle that is read.
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
        X, as B is.

    Raises
    ------
    LinAlgError, VerificationError, ShapeError, LayoutError, GridError, AgreementError
        As by `solve_triangular`, on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = 4 * pdla.eye(3, pdla.ProcessGrid((2,)), pdla.Layout("row"))
    ...     return pdla.linalg.cho_solve(pdla.linalg.cho_factor(A), np.array([4., 8, 12]))
    >>> pdla.run(2, program)[0]
    array([1., 2., 3.])
    """
    C, lower = c_and_lower if isinstance(c_and_lower, (tuple, list)) and len(c_and_lower) == 2 else (c_and_lower, None)
    return _CHO_SOLVE(
        C, B, out=out, lower=lower, overwrite_b=overwrite_b, check_finite=check_finite, layout=layout, memory_limit=memory_limit,
        verify=verify,
    )


def _reads(options: Options) -> Part:
    return Part(options.lower, "real")


def _factor_into_layout(plan: FactorPlan, A: DistMatrix) -> DistMatrix:
    """Collective, unchecked: L, or U, in the requested layout."""
    lower, layout = plan.options.lower, plan.options.layout or A.layout.summed
    if lower:
        return CHOLESKY(A, plan.place, plan.dtype, plan.overwrites("a"), layout=layout)[0]
    return CHOLESKY(A.H, plan.adjoint_place, plan.dtype, plan.overwrites("a"), layout=layout.T)[0].H


def _factor_in_blocks(plan: FactorPlan, A: DistMatrix) -> DistMatrix:
    """Collective, unchecked: L, or U, in the layout of the algorithm."""
    L = factor(plan, A).X
    return L if plan.options.lower else L.H


def _solve_by_cholesky(plan: FactorPlan, C: DistMatrix, B: Any, out: Any = None) -> Any:
    """Collective, unchecked: X in B's form."""
    check_diagonal(C)
    return solve_by(Factors.of_cholesky(C if plan.options.lower else C.H), plan.describe_side(B, out), plan.square_place)


_CHOLESKY = Call("cholesky", (CHOLESKY,), _factor_into_layout, reads=_reads)
_CHO_FACTOR = Call("cho_factor", (CHOLESKY,), _factor_in_blocks, reads=_reads)
_CHO_SOLVE = Call(
    "cho_solve", (TRIANGULAR, TRIANGULAR), _solve_by_cholesky, solves=True, reads=lambda options: Part(options.lower),
    argument="c_and_lower",
)
