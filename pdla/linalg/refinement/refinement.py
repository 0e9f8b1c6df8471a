"""Solve systems by factors of a lower precision, and refine the solutions.

The factorization, most of the work, takes half the time and half the words; each step of refinement
takes a solution and a product.

X starts as 0. Each step solves A D = B - A X for a correction, by the low factors. The right-hand
side is computed in the precision of A and B, and a power of 2 scales each column, lest it
underflow. If float32 cannot hold A's factors, powers of 2 scale A and each column of B first.
Refinement ends when max |B - A X| <= sqrt(n) eps |A| max |X| in each column, the residual of a full
solution. If a step does not halve the residual, GMRES continues, for so few columns that its steps
cost less than full factors. Wilkinson, Rounding Errors in Algebraic Processes (1963); LAPACK's
dsgesv and dsposv: Langou et al., SC 2006.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf, prod, sqrt
from typing import Any

import numpy as np

from pdla.array.dtypes import near_one
from pdla.comm.agreement import collective_section
from pdla.comm.ledger import held
from pdla.errors import LinAlgError, PlanError, suggest
from pdla.layout import Layout
from pdla.linalg import checks
from pdla.linalg.condition import warn_if_ill_conditioned
from pdla.linalg.panels.blocks import count_workspace, make_working_copy
from pdla.linalg.panels.factors import Factors
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.right_side import RightSide
from pdla.linalg.products.symmetric import copy_mirrored
from pdla.linalg.refinement.gmres import KEPT, WORTH, find_correction, scale_columns
from pdla.linalg.routines.lu import multiply_by_part
from pdla.linalg.solutions import factor, solve_by
from pdla.linalg.verify import Check, is_checking
from pdla.matmul import matmul
from pdla.matmul.images import Images, Pair, Part
from pdla.matmul.verify import NotFinite
from pdla.matrix.core import DistMatrix
from pdla.matrix.redistribute import local_shape
from pdla.matrix.reductions import reduce_columns

LOWER = {("float32", "d"): "f", ("float32", "D"): "F"}
MOST = 30  # the most steps, as in LAPACK; for a condition number below 1e5 two or three are enough
FAR = 2.0**-64, 2.0**64  # bounds of row sums: float32 can hold the factors
LIVE = 5  # the most matrices like X at a time, besides B: X, the residual, two corrections, and one being computed


def find_lower_dtype(options: Options, dtype: np.dtype) -> np.dtype | None:
    """Find the dtype of the factors, None for refine=None; PlanError if there is no lower one, or no factor."""
    refine, assumed = options.refine, options.assume_a
    if refine is None:
        return None
    if not isinstance(refine, str) or (refine, dtype.char) not in LOWER:
        like = "" if refine == "float32" else suggest(refine, ("float32",))
        raise PlanError(f"solve: refine={refine!r} of {dtype}: None, or 'float32' where A or B is float64 or complex128{like}")
    if assumed in checks.FACTORLESS:
        raise PlanError(f"solve: refine={refine!r} with assume_a={assumed!r}, which needs no factors: leave refine out")
    return np.dtype(LOWER[refine, dtype.char])


def refine_solution(plan: FactorPlan, A: DistMatrix, side: RightSide, low: np.dtype) -> Any:
    """Collective: solve A X = B. Returns X; without convergence None, with a warning."""
    with np.errstate(over="ignore", invalid="ignore"):  # overflow in float32 becomes infinity: no factor, or no residual
        refined = _solve_refined(plan, A, side, low)
    reason = f"A has no factor in {low}"
    if refined is not None:
        X, steps, gmres_steps, quotient = refined
        steps_taken = f"{steps} steps of refinement{f' and {gmres_steps} of GMRES' if gmres_steps else ''}"
        if A.grid.comm.rank == 0:
            logging.getLogger("pdla").info("solve: %s, residual %.1e of the allowed one", steps_taken, quotient)
        reason = f"after {steps_taken} the residual is {quotient:.1e} times the allowed one"
        if quotient <= 1:
            X = side.place(X)
            if not (reason := _find_fault(A, X, side, plan.reads)):
                return side.to_b_form(X)
    warnings.warn(f"solve: {reason}: A is factored again, in {side.dtype}", RuntimeWarning, stacklevel=4)
    return None


def _find_fault(A: DistMatrix, X: DistMatrix, side: RightSide, part: Part | None) -> str:
    """Collective: describe what is wrong with X, if results are checked; "": nothing.

    In all rows the residual may be as large as refinement allows: |A| times X's largest column elements. `part` of A is read; None:
    all of A.
    """
    if not is_checking():
        return ""
    images = Images.of(A.grid.comm, side.dtype)

    def bound_by_columns(X: DistMatrix, x: Pair) -> Pair:
        maxima = reduce_columns(X, "maximum").sum()
        return images.multiply(X, x)[0], np.full((A.shape[0], 1), maxima, images.real)

    def take_largest(x: Pair) -> Pair:
        y = multiply_by_part(images, A, part, x)
        return y[0], np.full_like(y[1], y[1].max(initial=0))

    claim = replace(side, overwrite=False).make_claim()(images)
    with collective_section(A.grid.comm, "the check of a result"), np.errstate(all="ignore"):
        check = Check(A.grid.comm, images, replace(claim, steps=lambda X: (partial(bound_by_columns, X), take_largest)))
    fault = check.find_faults(X) and check.find_faults(X)
    return "" if isinstance(fault, NotFinite) else fault  # an infinite X has no small residual; infinite images say nothing of X


def _solve_refined(plan: FactorPlan, A: DistMatrix, side: RightSide, low: np.dtype) -> tuple[DistMatrix, int, int, float] | None:
    """Collective: return the result of `_iterate`; None if A has no factors in the lower precision.

    Workspace for GMRES is counted in advance, as a dry run takes no steps of GMRES.
    """
    part = plan.reads
    A = A if part is None else count_workspace(copy_mirrored(A, part.lower, part.hermitian))
    A = make_working_copy(A, A.layout.summed, A.grid, side.dtype, True)  # once, not a step
    power = _find_power(A)
    A = A if power == 1 else count_workspace(A * power)
    layout, grid = (side.B.layout.summed, side.B.grid) if isinstance(side.B, DistMatrix) else (Layout(A.layout.rows), A.grid)
    matrices = LIVE + KEPT * _is_gmres_worthwhile(side)
    with held(matrices * prod(local_shape(side.shape, layout, grid)) * side.dtype.itemsize):
        factors = _factor_low(plan, A, low)
        if factors is None:
            return None
        B, solve = side.make_working_copy(layout, grid), partial(_solve_low, plan, factors)
        scales = None if power == 1 else _find_scales(B)
        X, steps, gmres_steps, quotient = _iterate(A, B if scales is None else scale_columns(B, scales), solve)
        if quotient <= 1:  # without convergence the factors may be wrong
            warn_if_ill_conditioned(factors, side.dtype)
        if scales is None:
            return X, steps, gmres_steps, quotient
        exponents = np.log2(power) - np.log2(scales)
        half = np.floor(exponents / 2)  # the scaling takes two steps: the whole power may be out of range
        return scale_columns(scale_columns(X, 2.0**half), 2.0 ** (exponents - half)), steps, gmres_steps, quotient


def _find_power(A: DistMatrix) -> float:
    """Collective: the power of 2 that keeps A's factors in the range of float32; mostly 1."""
    size = _find_largest_row_sum(A)
    return 1 if size == 0 or FAR[0] < size < FAR[1] else float(near_one(size, A.dtype))


def _factor_low(plan: FactorPlan, A: DistMatrix, low: np.dtype) -> Factors | None:
    """Collective: factor A, of which all is read, in a lower precision; None if A has no such factors."""
    try:
        factors = factor(replace(plan, reads=None, options=replace(plan.options, lower=True)), A, low)
    except LinAlgError:
        return None
    return None if factors.fault else factors


def _solve_low(plan: FactorPlan, factors: Factors, R: DistMatrix) -> DistMatrix:
    """Collective: a solution by low factors, in R's dtype."""
    return solve_by(factors, RightSide(R, None, factors.X.dtype), plan.square_place).astype(R.dtype)


def _is_gmres_worthwhile(B: DistMatrix | RightSide) -> bool:
    """Whether GMRES for so many columns costs less than factors in full precision."""
    return B.shape[0] >= WORTH * B.shape[1]


def _find_largest_row_sum(A: DistMatrix) -> float:
    """Collective: the largest sum of a row's absolute values."""
    return float(reduce_columns(A.T, "add").max(initial=0))


def _iterate(A: DistMatrix, B: DistMatrix, solve: Callable[[DistMatrix], DistMatrix]) -> tuple[DistMatrix, int, int, float]:
    """Collective: iterate to X. Returns X, the steps of refinement after the first solution, the steps of GMRES, and a quotient.

    The quotient is the residual over the allowed residual: 1 or less after convergence.
    """
    times = 1 + is_checking()  # if results are checked, numbers that end refinement are computed twice: messages may be wrong
    allowed = min(_find_largest_row_sum(A) for _ in range(times)) * np.finfo(B.dtype).eps * sqrt(A.shape[0])

    def compute_residual() -> DistMatrix:
        return matmul(A, X, alpha=-1, beta=1, out=B.copy(), verify="keep" if is_checking() else False)

    def measure_residual(R: DistMatrix) -> float:
        quotients = [_find_worst(reduce_columns(R, "maximum"), allowed * reduce_columns(X, "maximum")) for _ in range(times)]
        return float(np.max(R.grid.comm.share(quotients)))

    X, R, previous, steps = B * 0, B, inf, 0
    while True:
        scales = _find_scales(R)
        D = scale_columns(solve(scale_columns(R, scales)), 1 / scales)
        X += D
        next_R = compute_residual()
        quotient = measure_residual(next_R)
        if quotient <= 1 or not quotient < previous / 2 or steps == MOST:
            break
        R, previous, steps = next_R, quotient, steps + 1
    if not 1 < quotient < inf or not _is_gmres_worthwhile(B):
        return X, steps, 0, quotient
    if quotient < previous:
        R = next_R
    else:
        X -= D
    scales = _find_scales(R)
    D, gmres_steps = find_correction(A, scale_columns(R, scales), solve, scales * allowed * reduce_columns(X, "maximum"))
    X += scale_columns(D, 1 / scales)
    return X, steps, gmres_steps, measure_residual(compute_residual())


def _find_scales(R: DistMatrix) -> np.ndarray:
    """Find the powers of 2 that scale the largest element of each column to about 1."""
    return near_one(reduce_columns(R, "maximum"), R.dtype)


def _find_worst(maxima: np.ndarray, allowed: np.ndarray) -> float:
    """Find the largest quotient, with 0 / 0 as 0; NaN if one is NaN."""
    return float(np.divide(maxima, allowed, out=np.where(maxima == 0, 0, inf) * 1.0, where=allowed != 0).max(initial=0))
