"""Norms and condition numbers. A few solutions estimate the norm of the inverse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, isfinite, isnan, sqrt
from typing import Any

import numpy as np

from pdla.array.dtypes import near_one
from pdla.errors import LinAlgError, PlanError, list_choices, warn_user
from pdla.linalg import checks
from pdla.linalg.given_factors import FactorsCall
from pdla.linalg.panels.blocks import count_workspace
from pdla.linalg.panels.factors import Factors
from pdla.linalg.plan.call import Call
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.right_side import RightSide
from pdla.linalg.routines import LU
from pdla.linalg.routines.triangular import check_diagonal, to_square_blocks
from pdla.linalg.solutions import factor, solve_by
from pdla.matmul.images import Images
from pdla.matrix.core import DistMatrix
from pdla.matrix.reductions import frobenius, reduce_columns

FAR = 2.0**-32, 2.0**32  # a norm outside these bounds scales A: else its inverse may overflow or underflow
MOST = 5  # the most steps of an estimate, as in LAPACK; nearly always two are enough
SUSPECT = 100  # nearly all matrices singular to working precision have a quotient of pivots below SUSPECT sqrt(n) eps
Way = Callable[[np.ndarray], np.ndarray]  # a vector, whole on every rank, to another one


def check_order(name: str, argument: str, order: Any, orders: tuple[Any, ...]) -> None:
    """PlanError unless `order` is one of these norms."""
    types = (str, int, float, np.integer, np.floating, type(None))
    if isinstance(order, bool) or not isinstance(order, types) or order not in orders:
        raise PlanError(f"{name}: {argument}={order!r}: {list_choices(order, orders)} (inf is numpy.inf)")


def measure(A: DistMatrix, ord: Any) -> float:
    """Collective, unchecked: A's Frobenius norm (None, "fro"), 1-norm, infinity norm, or largest absolute value ("max")."""
    if ord in (None, "fro"):
        return frobenius(A)
    return float(reduce_columns(A.T if ord == inf else A, "maximum" if ord == "max" else "add").max(initial=0))


def _check(options: Options, dtype: np.dtype, A: DistMatrix) -> None:
    check_order("cond", "p", options.p, (1, inf))
    check_not_empty(A)


def check_not_empty(A: DistMatrix) -> None:
    """LinAlgError for a 0 x 0 matrix."""
    if not A.shape[0]:
        raise LinAlgError("cond of a 0 x 0 matrix: it has no condition number")


def _estimate(plan: FactorPlan, A: DistMatrix) -> float:
    """Collective: estimate the condition number: A's norm, times the norm of the inverse, which A's factors estimate."""
    A, p = A.redistribute(A.layout.summed) if A.layout.partial else A, plan.options.p
    size = measure(A, p)
    if size != 0 and not FAR[0] < size < FAR[1]:
        A = count_workspace(A * float(near_one(size, plan.dtype)))
        size = measure(A, p)
    factors = factor(plan, A)
    if isnan(size) or factors.fault:
        return size if isnan(size) else inf
    with np.errstate(all="ignore"):
        factors = _move_to_square_blocks(factors if p == 1 else factors.adjoint, plan.dtype)
        return size * _estimate_norm(_make_solver, factors, plan.dtype)


def _estimate_by_factors(plan: FactorPlan, factors: Factors) -> float:
    """Collective: the condition number, from given factors alone."""
    return 1 / estimate_reciprocal_condition(factors if plan.options.p == 1 else factors.adjoint)


CONDITION = FactorsCall(Call("cond", (LU,), _estimate, check=_check), _estimate_by_factors)


def _move_to_square_blocks(factors: Factors, dtype: np.dtype) -> Factors:
    """Collective: the factors in square blocks, for several solutions."""
    return replace(factors, X=to_square_blocks(factors.X, dtype), pivots=None, scale=1)


def warn_if_ill_conditioned(factors: Factors, dtype: np.dtype) -> None:
    """Collective: warn, on every rank, if the factored matrix is singular to this dtype's precision.

    LinAlgError if a triangle has a zero on its diagonal. The condition is estimated only if the least and the largest pivot make it
    suspect.
    """
    eps = float(np.finfo(dtype).eps)
    ratio = check_diagonal(factors.X) if factors.ratio is None else factors.ratio
    if ratio ** sum(part.diagonal == "own" for _, part in factors.views) < SUSPECT * sqrt(factors.X.shape[0]) * eps:
        warn_if_below(estimate_reciprocal_condition(factors), eps)


def warn_if_below(rcond: float, eps: float) -> None:
    """Local: warn, as SciPy does, if the reciprocal condition number is below eps. The warning names the user's line."""
    if rcond < eps:
        from scipy.linalg import LinAlgWarning  # this import takes longer than pdla's

        message = f"A is ill-conditioned (rcond={rcond:.3g}): the result may not be accurate"
        warn_user(message, LinAlgWarning)


def estimate_reciprocal_condition(factors: Factors) -> float:
    """Collective: estimate the reciprocal condition number from the factors alone, as the matrix may be overwritten."""
    dtype = checks.find_working_dtype("cond", factors.X.dtype)
    factors = _move_to_square_blocks(factors, dtype)
    with np.errstate(all="ignore"):
        return float(np.divide(1, _estimate_norm(_make_product, factors, dtype) * _estimate_norm(_make_solver, factors, dtype)))


def _estimate_norm(make: Callable[[Factors, np.dtype], Way], factors: Factors, dtype: np.dtype) -> float:
    """Collective: estimate the 1-norm of the factors' product, or of its inverse."""
    return estimate_norm(make(factors, dtype), make(factors.adjoint, dtype), np.empty(factors.X.shape[0], dtype))


def _make_product(factors: Factors, dtype: np.dtype) -> Way:
    """Make the map from x to A x, which is collective."""
    images = Images(dtype, 0)

    def apply(x: np.ndarray) -> np.ndarray:
        for T, part in reversed(factors.triangles):
            image = images.multiply(T, (x[:, None], np.ones((len(x), 1), images.real)), part)[0][:, 0]
            x = T.xp.host(T.xp.host_or(image, x))
        return x

    return apply


def _make_solver(factors: Factors, dtype: np.dtype) -> Way:
    """Make the map from b to the x of A x = b, which is collective."""
    xp = factors.X.xp

    def apply(b: np.ndarray) -> np.ndarray:
        return xp.host(xp.host_or(solve_by(factors, RightSide(xp.asarray(b), None, dtype)), b))

    return apply


def estimate_norm(multiply: Callable[..., Any], multiply_adjoint: Callable[..., Any], like: np.ndarray) -> float:
    """Bound the 1-norm of a matrix B from below, by a few products B x and B^H x with vectors like `like`.

    The bound is infinite if a product is not finite.
    """
    n = len(like)
    y = multiply(np.full_like(like, 1 / n))
    largest, at = _sum_absolute(y), -1
    for _ in range(MOST if n > 1 else 0):
        x = np.abs(multiply_adjoint(np.where(y == 0, 1, y / np.where(y == 0, 1, np.abs(y)))))
        if at >= 0 and x[at] == x.max():
            break
        at = int(x.argmax())
        y = multiply(np.where(np.arange(n) == at, like.dtype.type(1), 0))
        if not _sum_absolute(y) > largest:
            break
        largest = _sum_absolute(y)
    # As in LAPACK's dlacn2, one more x: of alternating signs and of 1-norm 1.
    signs = np.where(np.arange(n) % 2, -1, 1) * (1 + np.arange(n) / max(1, n - 1)) * (2 / (3 * n))
    bound = max(largest, _sum_absolute(multiply(signs.astype(like.dtype))), key=lambda size: size if isfinite(size) else inf)
    return bound if isfinite(bound) else inf


def _sum_absolute(y: np.ndarray) -> float:
    """Compute the 1-norm of a vector."""
    return float(np.abs(y).sum(dtype=float))
