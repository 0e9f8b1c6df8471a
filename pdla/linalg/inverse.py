"""The inverse of a matrix, from its LU or Cholesky factor; and powers.

Column c of L^-1 P has zeros above the row in which column c of P has its 1. Each rank sorts its
columns by these rows, and multiplies each block of L by the first columns only, a third of the
work. The columns are cyclic, as L's are, so that ranks have equal shares. A positive definite
matrix has a Hermitian inverse. Only the lower triangle of L^-H (L^-1) is computed, in the same way,
and is then mirrored.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np

from pdla.checks import communicator, describe_call
from pdla.comm.agreement import agreed, collective_section
from pdla.comm.ledger import take
from pdla.comm.workspace import Workspace, find_workspace, within
from pdla.errors import ArgumentError
from pdla.grid import ProcessGrid
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.condition import warn_if_ill_conditioned
from pdla.linalg.diagonal import invert_diagonal
from pdla.linalg.panels.blocks import count_workspace, find_dimensions, make_working_copy, to_layout
from pdla.linalg.panels.factors import Factors
from pdla.linalg.plan.blocking import Place
from pdla.linalg.plan.call import Call, accept_stacks
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.products.symmetrize import reflect
from pdla.linalg.routines import BY_STRUCTURE, LU
from pdla.linalg.routines.triangular import Substitution, to_square_blocks
from pdla.linalg.solutions import factor
from pdla.linalg.verify import Claim, run_and_check
from pdla.matmul.images import Images, Pair, Part, scale
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import eye
from pdla.matrix.redistribute import convert

ALL = slice(None)


@accept_stacks(LU)
def inv(
    A: DistMatrix, *, assume_a: str = "gen", lower: bool = True, overwrite_a: bool = False, check_finite: bool = True,
    layout: Layout | None = None, memory_limit: int | None = None, verify: bool | str | None = None,
) -> DistMatrix:
    """Invert a matrix. Collective over A's grid, idle ranks included.

    To solve A X = B, `solve` is faster and more accurate.

    Parameters
    ----------
    A : DistMatrix
        n x n, in any layout.
    assume_a : str, optional
        A's structure, as for `solve`; for "pos" the inverse is Hermitian, bit for bit.
    lower : bool, optional
        For "sym", "her" and "pos": whether the lower triangle is read; else the upper one.
    overwrite_a : bool, optional
        Whether A may be written to. No copy is made then, if A is stored as the algorithm needs it.
    check_finite : bool, optional
        Whether to look for NaN and infinity first, in what is read of A.
    layout : Layout, optional
        The inverse's layout; by default A's.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, the copies of A and of its inverse that are worked on
        included. Ignored for a diagonal A.
    verify : bool or "keep", optional
        Whether to check factors and inverse, as by `solve`.

    Returns
    -------
    DistMatrix
        n x n.

    Raises
    ------
    LinAlgError
        For a matrix that is singular, or not positive definite; for NaN and infinity; where LU
        overflows, of an A that was overwritten.
    VerificationError
        For factors or an inverse that `verify` found wrong, and could not compute again.
    ShapeError, LayoutError, GridError, PlanError, AgreementError
        For arguments that do not go together. All of these are raised on every rank.

    Notes
    -----
    A warning tells that A is singular to working precision, as by `solve`.

    After the factorization a rank receives about n^2 (1/pr + 1/pc - 2/P) words, in the mean, on a
    pr x pc grid. The general inverse takes n block more, redistributions of A and of the inverse
    come on top.

    The residual is small on one side, X A - 1 or A X - 1: n eps abs(X) abs(L) abs(U) or less. See
    Higham, Accuracy and Stability of Numerical Algorithms (2002), 14.3. For "pos", half of X is
    mirrored, and the residual may be n eps abs(X) abs(L) abs(L^H) abs(X) times norm(A).

    LAPACK's xGETRI (method 2) and xPOTRI: Du Croz and Higham, IMA J. Numer. Anal. 12 (1992), 1-19.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[0, 2], [4, 0]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.inv(A).gather()
    >>> pdla.run(2, program)[0]
    array([[0.  , 0.25],
           [0.5 , 0.  ]])
    """
    return _INV(
        A, assume_a=assume_a, lower=lower, overwrite_a=overwrite_a, check_finite=check_finite, layout=layout,
        memory_limit=memory_limit, verify=verify,
    )


def _invert(plan: FactorPlan, A: DistMatrix) -> DistMatrix:
    """Collective, unchecked: the inverse, in the requested layout."""
    layout = plan.options.layout or A.layout.summed
    if not plan.tasks:
        return invert_diagonal(A, plan.dtype, layout)
    factors = factor(plan, A).require_regular()
    warn_if_ill_conditioned(factors, plan.dtype)
    if len(factors.views) == 1:
        return _invert_triangle(A, plan, layout)
    factors = replace(factors, X=to_square_blocks(factors.X, plan.dtype))
    return (_invert_by_lu if factors.pivots is not None else _invert_by_cholesky)(factors, layout, A.grid)


_INV = Call("inv", BY_STRUCTURE, _invert)


def find_inverse(A: DistMatrix) -> DistMatrix | None:
    """Collective: A's inverse, in A's layout, without a warning; None if A is singular, or if LU overflows."""
    return _FIND(A)


def _find(plan: FactorPlan, A: DistMatrix) -> DistMatrix | None:
    factors = factor(plan, A)
    if factors.fault:
        return None
    return _invert_by_lu(replace(factors, X=to_square_blocks(factors.X, plan.dtype)), A.layout.summed, A.grid)


_FIND = Call("inv", (LU,), _find)


def _invert_by_lu(factors: Factors, layout: Layout, grid: ProcessGrid) -> DistMatrix:
    """Collective: U^-1 (L^-1 P) times `factors.scale`, which scaled A; factors in square blocks."""
    X, rows, power = factors.X, factors.rows, factors.scale

    def compute() -> DistMatrix:
        places = np.argsort(rows)
        with collective_section(X.grid.comm, "an inverse by LU"), within(find_workspace() or Workspace()):
            ascending = np.argsort(places[X.indices[1].indices()])
            Y = _substitute_forward(X, places, ascending, True)
            Y.xp.scale(Y.stored, power)
            Substitution(X, Y, False, False).solve_many()
            sorted_back, height = np.argsort(ascending), max(1, X.xp.AT_ONCE // max(1, Y.stored.shape[1]))
            for first in range(0, len(Y.stored), height):
                part = Y.stored[first : first + height]
                Y.xp.copy(part, take(Y.xp, part, ALL, sorted_back))
        return to_layout(Y, layout, grid)

    def claim(images: Images) -> Claim:
        L, U = (partial(images.multiply, X, part=part) for part in (Part(True, "one"), Part(False)))
        return _make_claim(X, lambda Y: (partial(images.multiply, Y), U, L), rows, power)

    return run_and_check(X.grid.comm, X.dtype, compute, claim)


def _invert_by_cholesky(factors: Factors, layout: Layout, grid: ProcessGrid) -> DistMatrix:
    """Collective: the lower triangle of L^-H L^-1, mirrored; L in square blocks."""
    L = factors.X

    def compute() -> DistMatrix:
        with collective_section(L.grid.comm, "an inverse by Cholesky"), within(find_workspace() or Workspace()):
            Y = _substitute_forward(L, np.arange(L.shape[0]), ALL, False)
            T = L.H
            Y = make_working_copy(Y, T.layout, T.grid, L.dtype, True)
            Substitution(T, Y, False, False).solve_many(_count_widths(T, Y.indices[1].indices()))
            reflect(Y, True, True)
        return to_layout(Y, layout, grid)

    def claim(images: Images) -> Claim:
        """A mirrored element has the error of its original: sizes are |Y| |L| |L^H| |Y|, in place of |x|."""

        def multiply_by_factors(y: Pair) -> Pair:
            return images.multiply(L, images.multiply(L.H, y, Part(False)), Part(True))

        def multiply_by_inverse(Y: DistMatrix, x: Pair) -> Pair:
            y = images.multiply(Y, x)
            return y[0], y[1] + images.multiply(Y, multiply_by_factors(y))[1]

        return _make_claim(L, lambda Y: (partial(multiply_by_inverse, Y), multiply_by_factors))

    return run_and_check(L.grid.comm, L.dtype, compute, claim)


def _make_claim(A: DistMatrix, steps: Any, rows: Any = ALL, alpha: complex = 1) -> Claim:
    """Claim that the factors' product times Y is alpha times the identity, with its rows in this order."""
    n = A.shape[0]
    return Claim(n, 6 * n, lambda x: scale(x, alpha), steps, rows=lambda Y: rows)


def _invert_triangle(A: DistMatrix, plan: FactorPlan, layout: Layout) -> DistMatrix:
    """Collective: the inverse of a triangle; an upper one is inverted as its transpose."""
    place = plan.place
    if plan.reads is not None and not plan.reads.lower:
        return _invert_lower(A.T, plan.dtype, (place[0].T, place[1]), layout.T).T
    return _invert_lower(A, plan.dtype, place, layout)


def _invert_lower(A: DistMatrix, dtype: np.dtype, place: Place, layout: Layout) -> DistMatrix:
    """Collective: the inverse of a lower triangle."""

    def compute() -> DistMatrix:
        with collective_section(A.grid.comm, "an inverse of a triangle"), within(find_workspace() or Workspace()):
            T = to_square_blocks(A, dtype, place)
            Y = _substitute_forward(T, np.arange(T.shape[0]), ALL, False)
        return to_layout(Y, layout, A.grid)

    def claim(images: Images) -> Claim:
        T = partial(images.multiply, A, part=Part(True))
        return replace(_make_claim(A, lambda Y: (partial(images.multiply, Y), T)), zeros=lambda Y: ((Y, Part(False, "none")),))

    return run_and_check(A.grid.comm, dtype, compute, claim)


def _substitute_forward(T: DistMatrix, places: np.ndarray, order: Any, unit: bool) -> DistMatrix:
    """Collective: T^-1 times the matrix with a 1 in row places[c] of each column c.

    `order` sorts each rank's columns by these rows. T is lower triangular in square blocks, and the
    result is stored as T is.
    """
    Y = count_workspace(DistMatrix(T.xp.empty(T.stored.shape, T.dtype), T.shape, T.grid, T.layout))
    T.xp.scale(Y.stored, 0)
    rows, cols = (index_set.indices() for index_set in T.indices)
    ones = places[cols][order]
    positions = np.searchsorted(rows, ones)
    own = np.flatnonzero(np.append(rows, -1)[positions] == ones)
    T.xp.place(Y.stored, positions[own], own, 1)
    Substitution(T, Y, True, unit).solve_many(_count_widths(T, ones))
    return Y


def _count_widths(T: DistMatrix, rows: np.ndarray) -> list[int]:
    """Count, for each block of T, this rank's columns whose first row is in or before it. rows: first rows, ascending."""
    ends = find_dimensions(T)[0]
    return np.searchsorted(rows, [(k + 1) * ends.block for k in range(ends.count)]).tolist()


def matrix_power(A: DistMatrix, n: int) -> DistMatrix:
    """Raise a matrix to an integer power. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        Square, in any layout.
    n : int
        The power; a negative one is of the inverse.

    Returns
    -------
    DistMatrix
        A^n, in A's layout. Integers remain integers, except for a negative n.

    Raises
    ------
    LinAlgError
        For a negative power of a singular matrix.
    ShapeError, ArgumentError
        For a matrix that is not square, and an n that is no integer, on every rank.
    AgreementError
        For another n on another rank, on every rank.

    Notes
    -----
    Repeated squaring: at most 2 log2(abs(n)) products.

    Examples
    --------
    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((2,))
    ...     A = pdla.from_global(np.array([[1, 1], [1, 0]]), grid, pdla.Layout("row"))
    ...     return pdla.linalg.matrix_power(A, 10).gather()
    >>> pdla.run(2, program)[0]
    array([[89, 55],
           [55, 34]])
    """
    with agreed(communicator((A,)), describe_call("matrix_power", A, n)):
        checks.check_square("matrix_power", A)
        if not isinstance(n, (int, np.integer)) or isinstance(n, bool):
            raise ArgumentError(f"matrix_power: n={n!r}: an integer")
        n = int(n)  # the absolute value of np.int8(-128) is -128
    layout = A.layout.summed
    if n == 0:
        return eye(A.shape[0], A.grid, layout, dtype=A.dtype)
    X = convert(A, layout, A.grid) if n > 0 else inv(A, check_finite=False)
    return reduce(lambda power, bit: power @ power @ X if bit == "1" else power @ power, bin(abs(n))[3:], X)
