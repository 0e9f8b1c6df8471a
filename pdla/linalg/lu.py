"""LU factors with row pivoting, and the systems that they solve: what users call."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pdla.errors import warn_user
from pdla.layout import Layout, Shape
from pdla.linalg import checks
from pdla.linalg.panels.blocks import count_workspace, cut_layout, to_layout
from pdla.linalg.panels.factors import Factors
from pdla.linalg.panels.rows import Permutation, to_pivots
from pdla.linalg.plan.call import Call
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.predict import FactorPrediction, predict
from pdla.linalg.products.triangle import triangle
from pdla.linalg.routines.lu import LU, describe_fault
from pdla.linalg.routines.triangular import TRIANGULAR, check_diagonal
from pdla.linalg.solutions import solve_by
from pdla.linalg.verify import Claim, explain_loss, run_and_check
from pdla.matmul.images import Images, Part
from pdla.matrix.core import DistMatrix, MatrixOrVector
from pdla.model.machine import Machine


class LUFactors(NamedTuple):
    """A pair as scipy.linalg.lu_factor's; the repr shows only the ends of many pivots."""

    LU: DistMatrix
    pivots: np.ndarray

    def __repr__(self) -> str:
        from pdla.show import abbreviate

        return f"LUFactors(LU={self.LU!r}, pivots={abbreviate(self.pivots)})"


class PLU(NamedTuple):
    """A triple as scipy.linalg.lu's with p_indices=True; the repr shows only the ends of a long p."""

    p: np.ndarray
    L: DistMatrix
    U: DistMatrix

    def __repr__(self) -> str:
        from pdla.show import abbreviate

        return f"PLU(p={abbreviate(self.p)}, L={self.L!r}, U={self.U!r})"


def lu_factor(
    A: DistMatrix, *, overwrite_a: bool = False, check_finite: bool = True, memory_limit: int | None = None,
    verify: bool | str | None = None,
) -> tuple[DistMatrix, np.ndarray]:
    """Factor a matrix with row pivoting: P A = L U. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout.
    overwrite_a : bool, optional
        Whether A may be written to. No copy is made then, if A is stored as the algorithm needs it.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    memory_limit : int, optional
        The most bytes of workspace a rank, with the working copy of A.
    verify : bool or "keep", optional
        Compare L (U x) with P A x, as `cholesky` does for its factor. Let d be the error of an
        element of L, times the largest element of its row of U. If d is more than twice the
        rounding allowed in that row of P A, the error is missed with probability 1/4 at most. By
        default as PDLA_VERIFY says.

    Returns
    -------
    LU : DistMatrix
        L below the diagonal, whose ones are not stored, and U above it, in square blocks.
    pivots : array
        Row i was exchanged with row pivots[i], for i below min(m, n): a NumPy array, on every rank.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    VerificationError
        For factors that `verify` found wrong, and could not compute again.
    ShapeError, PlanError, AgreementError
        If A is no matrix, LAPACK lacks its dtype, or memory_limit cannot be kept. All of these
        are raised on every rank.

    See Also
    --------
    lu_words : The words that a rank receives.

    Notes
    -----
    The algorithm works on square blocks: `Cyclic` along one axis for rows, one for columns, or only
    one of these. An A in another layout is redistributed to the grid and blocks that `plan_lu`
    finds cheapest. A warning tells that U is singular, as by SciPy, or overflows.

    If one rank has a whole panel, pivots are LAPACK's, by partial pivoting. Otherwise a tournament
    chooses them, and they depend on the grid.

    L U differs from P A by n eps abs(L) abs(U) or less (Higham, Accuracy and Stability of Numerical
    Algorithms (2002), theorem 9.3).

    Right-looking with lookahead, as HPL (Petitet et al., netlib.org/benchmark/hpl); tournaments:
    Grigori, Demmel, Xiang, SIAM J. Matrix Anal. Appl. 32 (2011).

    The 2.5-D form takes an A in layers, `Layout(Cyclic("row", c * b), (Cyclic("col", c * b),
    Cyclic("depth", b)))`, as for `cholesky`. Tournaments choose pivot rows, which are masked
    instead of exchanged. Kwasniewski et al.: SC 2021.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 2], [4, 4]]), grid, pdla.Layout("row"))
    ...     LU, pivots = pdla.linalg.lu_factor(A)
    ...     return LU.gather(), pivots
    >>> pdla.run(2, program)[0]
    (array([[4.  , 4.  ],
           [0.25, 1.  ]]), array([1, 1]))
    """
    return _LU_FACTOR(A, overwrite_a=overwrite_a, check_finite=check_finite, memory_limit=memory_limit, verify=verify)


def plan_lu(
    A: DistMatrix, *, overwrite_a: bool = False, check_finite: bool = True, memory_limit: int | None = None
) -> FactorPlan:
    """Plan how `lu_factor` will factor matrices like A. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        As for `lu_factor`, like all arguments. Its elements do not matter.
    overwrite_a : bool, optional
        Whether A may be written to.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    memory_limit : int, optional
        Bytes of workspace a rank, at most.

    Returns
    -------
    FactorPlan
        The plan predicts its cost, and factors matrices like A.

    Raises
    ------
    ShapeError, PlanError, AgreementError
        As by `lu_factor`, on every rank.

    See Also
    --------
    predict_lu : What it costs, from its sizes alone.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.random((64, 64), pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
    ...     LU, pivots = pdla.linalg.plan_lu(A)(A)
    ...     return len(pivots)
    >>> pdla.run(4, program)[0]
    64
    """
    return _LU_FACTOR.plan(A, overwrite_a=overwrite_a, check_finite=check_finite, memory_limit=memory_limit)


def predict_lu(
    m: int, n: int, P: int, *, dtype: Any = "float64", machine: Machine | str | None = None
) -> FactorPrediction:
    """Find the best grid and blocks for an LU factorization, and what it costs.

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
        The grid, the block, and what they cost.

    Raises
    ------
    PlanError, ShapeError
        As by `predict_cholesky`.

    Examples
    --------
    >>> pdla.linalg.predict_lu(4096, 4096, 4).ranks_used
    4
    """
    return predict(_LU_FACTOR, LU, m, n, P, dtype, machine)


def lu_solve(
    lu_and_piv: tuple[DistMatrix, np.ndarray], B: MatrixOrVector, *, overwrite_b: bool = False, check_finite: bool = True,
    layout: Layout | None = None, out: MatrixOrVector | None = None, memory_limit: int | None = None,
    verify: bool | str | None = None,
) -> MatrixOrVector:
    """Solve A X = B by A's LU factors. Collective over their grid, idle ranks included.

    Parameters
    ----------
    lu_and_piv : tuple of DistMatrix and array
        As `lu_factor` returns it.
    B : DistMatrix or array
        n x m, or a vector of n numbers; see `solve_triangular`.
    overwrite_b : bool, optional
        Whether a matrix B may be written to. No copy is made then, if B is stored as the algorithm
        needs it.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
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
    LinAlgError
        If U is singular; for NaN and infinity.
    VerificationError, ShapeError, LayoutError, GridError, AgreementError
        As by `solve_triangular`. All of these are raised on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 2], [4, 4]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.lu_solve(pdla.linalg.lu_factor(A), np.array([5., 12]))
    >>> pdla.run(2, program)[0]
    array([1., 2.])
    """
    X, pivots = lu_and_piv if isinstance(lu_and_piv, (tuple, list)) and len(lu_and_piv) == 2 else (lu_and_piv, None)
    return _LU_SOLVE(
        X, pivots, B, out=out, overwrite_b=overwrite_b, check_finite=check_finite, layout=layout, memory_limit=memory_limit,
        verify=verify,
    )


def lu(
    A: DistMatrix, *, overwrite_a: bool = False, check_finite: bool = True, layout: Layout | None = None,
    memory_limit: int | None = None, verify: bool | str | None = None,
) -> tuple[np.ndarray, DistMatrix, DistMatrix]:
    """Factor a matrix with row pivoting: A = L[p] U. Collective, idle ranks included.

    To solve systems, `lu_factor` is faster.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout.
    overwrite_a : bool, optional
        Whether A may be written to. No copy is made then, if A is stored as the algorithm needs it.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    layout : Layout, optional
        The layout of L and U; by default A's, with boundaries (`Cuts`) clipped to L's columns and
        U's rows.
    memory_limit : int, optional
        The most bytes of workspace a rank, with the working copy of A.
    verify : bool or "keep", optional
        Whether to check the factors, as `lu_factor` does.

    Returns
    -------
    p : array
        m numbers, on every rank: row i of A is row p[i] of L U. As by scipy.linalg.lu with
        p_indices=True.
    L : DistMatrix
        m x k, k the smaller of m and n: ones on the diagonal, zeros above it.
    U : DistMatrix
        k x n, zeros below the diagonal. If A is singular, U has a zero on the diagonal; there is no
        warning.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    VerificationError, ShapeError, LayoutError, GridError, PlanError, AgreementError
        For arguments that do not go together. All of these are raised on every rank.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 2], [4, 4]]), grid, pdla.Layout("row"))
    ...     p, L, U = pdla.linalg.lu(A)
    ...     return p, L.gather(), U.gather()
    >>> pdla.run(2, program)[0]
    (array([1, 0]), array([[1.  , 0.  ],
           [0.25, 1.  ]]), array([[4., 4.],
           [0., 1.]]))
    """
    return _LU(
        A, overwrite_a=overwrite_a, check_finite=check_finite, layout=layout, memory_limit=memory_limit, verify=verify
    )


def _read_all(options: Options) -> None:
    """Read all of A."""


def _check_rows(options: Options, dtype: np.dtype, A: DistMatrix) -> None:
    checks.check_row_count("lu_factor", A, dtype)


def _factor(plan: FactorPlan, A: DistMatrix) -> tuple[DistMatrix, np.ndarray]:
    """Collective, unchecked: the factors in the layout of the algorithm, and the pivots."""
    X, pivots, fault, _ = LU(A, plan.place, plan.dtype, plan.overwrites("a"))
    if fault:
        warn_user(f"lu_factor: {describe_fault(fault)}", RuntimeWarning)
    return LUFactors(X, pivots)


def _check_pivots(X: DistMatrix, pivots: Any, B: Any) -> None:
    checks.check_pivots("lu_solve", X, pivots)


def _solve_by_lu(plan: FactorPlan, X: DistMatrix, pivots: np.ndarray, B: Any, out: Any = None) -> Any:
    """Collective, unchecked: X in B's form."""
    check_diagonal(X)
    if not isinstance(pivots, np.ndarray):  # a dry run: pivots as of random elements
        pivots = to_pivots(np.random.default_rng(len(pivots)).permutation(len(pivots)), 0)
    return solve_by(Factors.of_lu(X, pivots), plan.describe_side(B, out), plan.square_place)


def _check_split(options: Options, dtype: np.dtype, A: DistMatrix) -> None:
    checks.check_row_count("lu", A, dtype)
    for shape, layout in zip(_find_shapes(A), _find_layouts(A, options), strict=True):
        checks.check_result(A, shape, dtype, None, layout)


def _find_shapes(A: DistMatrix) -> tuple[Shape, Shape]:
    """Find the shapes of L and of U."""
    (m, n), k = A.shape, min(A.shape)
    return (m, k), (k, n)


def _find_layouts(A: DistMatrix, options: Options) -> list[Layout]:
    """Find the layouts of L and of U."""
    return [options.layout or cut_layout(A, shape) for shape in _find_shapes(A)]


def _split(plan: FactorPlan, A: DistMatrix) -> tuple[np.ndarray, DistMatrix, DistMatrix]:
    """Collective, unchecked: the permutation, L and U. `verify` checks these, with their zeros and ones."""
    n, overwrite, layouts = A.shape[1], plan.overwrites("a"), _find_layouts(A, plan.options)

    def claim(images: Images) -> Claim:
        return Claim(
            n, 2 * (n + min(A.shape)), partial(images.multiply, A),
            lambda result: (
                partial(images.multiply, result[2], part=Part(False)), partial(images.multiply, result[1], part=Part(True))
            ),
            matrices=lambda result: result[1:],
            zeros=lambda result: ((result[1], Part(False, "none")), (result[2], Part(True, "none"))),
            rows=lambda result: np.argsort(result[0]), control=lambda result: result[0].tolist(), lost=explain_loss("A", overwrite),
        )

    def compute() -> tuple[np.ndarray, DistMatrix, DistMatrix]:
        return _extract_parts(A, *LU.compute(A, plan.place, plan.dtype, overwrite)[:2], *layouts)

    return run_and_check(A.grid.comm, plan.dtype, compute, claim)


def _extract_parts(
    A: DistMatrix, X: DistMatrix, pivots: np.ndarray, lower: Layout, upper: Layout
) -> tuple[np.ndarray, DistMatrix, DistMatrix]:
    """Collective: the permutation, L and U, from X, which has both factors."""
    k = min(X.shape)
    L = to_layout(count_workspace(triangle(X[:, :k], True, True)), lower, A.grid)  # before U: else both would be stored twice
    U = to_layout(count_workspace(triangle(X[:k, :], False)), upper, A.grid)
    return PLU(np.argsort(Permutation.of_pivots(pivots).rows(X.shape[0])), L, U)


_LU_FACTOR = Call("lu_factor", (LU,), _factor, square=False, reads=_read_all, check=_check_rows)
_LU_SOLVE = Call(
    "lu_solve", (TRIANGULAR, TRIANGULAR), _solve_by_lu, solves=True, reads=_read_all, check_elements=_check_pivots,
    argument="lu_and_piv",
    check=lambda options, dtype, X, pivots, B: _check_pivots(X, pivots, B),
)
_LU = Call("lu", (LU,), _split, square=False, reads=_read_all, results=lambda A: (), check=_check_split)
