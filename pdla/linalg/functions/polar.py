"""The polar decomposition A = U H by QDWH, which converges for every A; and by Newton and Schulz, products alone."""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Any

import numpy as np

from pdla.array.dtypes import near_one
from pdla.checks import SIDES, communicator, describe_call, one_of
from pdla.comm.agreement import agreed
from pdla.comm.ledger import held
from pdla.errors import LinAlgError, PlanError, ShapeError, list_choices, suggest
from pdla.linalg import checks
from pdla.linalg.cholesky import cho_factor, cho_solve, cholesky
from pdla.linalg.condition import estimate_extremes
from pdla.linalg.functions.operand import prepare
from pdla.linalg.inverse import inv
from pdla.linalg.norms import norm
from pdla.linalg.orthogonal.factors import find_largest
from pdla.linalg.orthogonal.qr import qr, read_all, routines_of
from pdla.linalg.panels.blocks import to_layout
from pdla.linalg.plan.call import Call
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.predict import FactorPrediction, predict
from pdla.linalg.plan.routine import Routine
from pdla.linalg.products.rank_k import herk
from pdla.linalg.routines import CHOLESKY, LU, QR, TRIANGULAR
from pdla.linalg.routines.product import PRODUCT
from pdla.linalg.routines.qr import FORMING
from pdla.linalg.routines.tall_qr import is_tall
from pdla.linalg.triangular import solve_triangular
from pdla.matmul import matmul
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import eye, random
from pdla.matrix.diagonals import fill_diagonal
from pdla.model.machine import Machine

MOST = 30  # steps; in double precision 7, and one more for each factor of 3 by which the estimate of the least errs
AT_ONCE = 9  # matrices as large as X that there are in a step
ILL = 1e-6  # least singular value, over the largest, below which columns are mixed
STABLE = 100.0  # c up to which a Cholesky step is backward stable: Nakatsukasa and Higham (2013)
LOST = 0.1  # n c eps up to which a second Cholesky factorization makes up for what the first one lost, as in CholeskyQR2

COEFFICIENTS: dict[str, tuple[tuple[float, float, float], ...]] = {
    # X = a X + (b + c S) S X, S = X X^H. Jordan et al., Muon (2024), as torch.optim.Muon
    "jordan": ((3.4445, -4.7750, 2.0315),) * 5,
    # Amsel et al., Polar Express, arXiv 2505.16932v4, with the factors 1 / 1.01^k included
    "polar_express": (
        (8.2051, -22.9019, 16.4607), (4.0664, -2.8612, 0.5184), (3.9096, -2.8234, 0.5250), (3.2856, -2.4153, 0.4853),
        (2.2779, -1.6198, 0.3985), (1.8726, -1.2307, 0.3585), (1.8564, -1.2132, 0.3568), (1.875, -1.25, 0.375),
    ),
    # Newton and Schulz: converges to rounding where all singular values are near 1
    "newton_schulz": ((1.5, -0.5, 0.0),) * 30,
}


def polar(
    A: DistMatrix, *, side: str = "right", check_finite: bool = True, memory_limit: int | None = None
) -> tuple[DistMatrix, DistMatrix]:
    """Decompose a matrix: A = U H, or A = H U. Collective over A's grid, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        m x n, m at least n for "right", at most n for "left"; in any layout.
    side : "right" or "left", optional
        On which side of U H is.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    memory_limit : int, optional
        Bytes of workspace a rank, at most, what steps work on included.

    Returns
    -------
    U : DistMatrix
        m x n, with orthonormal columns (right) or rows (left).
    H : DistMatrix
        n x n (right) or m x m (left), Hermitian, positive semidefinite.

    Raises
    ------
    LinAlgError
        For NaN and infinity.
    ShapeError, PlanError, AgreementError
        For arguments that do not go together, and for a memory_limit that cannot be kept, on every
        rank.

    See Also
    --------
    newton_schulz : A U that is near, by few products.

    Notes
    -----
    QDWH: Nakatsukasa, Bai, Gygi, SIAM J. Matrix Anal. Appl. 31 (2010). Up to 7 steps take a
    Cholesky factorization each, the first ones two. Their number follows from the largest and the
    least singular value, estimated by the power method with A's LU factors. If the estimates are
    too near each other, further steps follow.

    First steps by QR would be backward stable if it pivoted columns: Nakatsukasa and Higham, SIAM
    J. Matrix Anal. Appl. 33 (2012). Here weights are limited to those for which two Cholesky
    factorizations suffice. An ill-conditioned A (from 1e6 on) is multiplied by a random unitary
    matrix: Demmel, Dumitriu, Holtz, Numer. Math. 108 (2007). If A is singular to working precision,
    random numbers of size eps are added first; U is not unique then.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.from_global(np.array([[0., -2], [3, 0]]))
    ...     U, H = pdla.linalg.polar(A)
    ...     return U.gather().round(12) + 0.0, H.gather().round(12) + 0.0
    >>> pdla.run(2, program)[0]
    (array([[ 0., -1.],
           [ 1.,  0.]]), array([[3., 0.],
           [0., 2.]]))
    """
    return POLAR(A, side=side, check_finite=check_finite, memory_limit=memory_limit)


def plan_polar(
    A: DistMatrix, *, side: str = "right", condition: float | None = None, check_finite: bool = True,
    memory_limit: int | None = None,
) -> FactorPlan:
    """Plan how `polar` will decompose matrices like A. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        As for `polar`, as all arguments are. Its elements do not matter.
    side : "right" or "left", optional
        On which side of U H is.
    condition : float, optional
        The condition number of the matrices to predict for; by default infinite, which takes most
        steps.
    check_finite : bool, optional
        Whether to look for NaN and infinity first.
    memory_limit : int, optional
        Bytes of workspace a rank, at most.

    Returns
    -------
    FactorPlan
        It says what it will cost, and decomposes matrices like A.

    Raises
    ------
    ShapeError, PlanError, AgreementError
        As by `polar`, on every rank, and for a condition number below 1.

    See Also
    --------
    predict_polar : What it costs, from A's size alone.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.eye(64)
    ...     U, H = pdla.linalg.plan_polar(A)(A)
    ...     return float(H.trace().round(8))
    >>> pdla.run(4, program)[0]
    64.0
    """
    return POLAR.plan(A, side=side, condition=condition, check_finite=check_finite, memory_limit=memory_limit)


def predict_polar(
    n: int, P: int, *, dtype: Any = "float64", machine: Machine | str | None = None
) -> FactorPrediction:
    """Find the best grid and blocks for polar factors of a square matrix, and what they cost.

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
        As for `predict_cholesky`.

    Returns
    -------
    FactorPrediction
        The grid, the block, and what they cost, of a singular matrix, which takes most steps.

    Raises
    ------
    PlanError, ShapeError
        As by `predict_cholesky`.

    Examples
    --------
    >>> pdla.linalg.predict_polar(4096, 4).ranks_used
    4
    """
    kind = np.dtype(dtype)
    first, *then = _list_routines(n if isinstance(n, int) else 0, 0.0, float(np.finfo(kind if kind.kind in "fc" else float).eps))
    return predict(POLAR, first, n, n, P, dtype, machine, then)


def newton_schulz(
    A: DistMatrix, *, coefficients: str | tuple[tuple[float, float, float], ...] = "polar_express", steps: int | None = None
) -> DistMatrix:
    """Bring a matrix's singular values near 1, by products alone. Collective, idle ranks included.

    Parameters
    ----------
    A : DistMatrix
        m x n, in any layout.
    coefficients : str or tuple of (a, b, c), optional
        Coefficients of each step: "jordan" (Muon's), "polar_express", "newton_schulz"; or your own.
    steps : int, optional
        The number of steps; by default all.

    Returns
    -------
    DistMatrix
        Near the polar factor U of A, in A's layout.

    Raises
    ------
    PlanError, ShapeError, AgreementError
        For coefficients that there are not, on every rank, as all of these.

    Notes
    -----
    X is A over its Frobenius norm; then X = a X + b S X + c S (S X), S = X X^H on the shorter side.
    Singular values of X from 0.01 to 1 become 0.68 to 1.13 by "jordan", 0.87 to 1.12 by 5 steps of
    "polar_express", 1.000 by 8.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.random((6, 4))
    ...     U = pdla.linalg.newton_schulz(A).gather()
    ...     return np.linalg.svd(U)[1].round(2).tolist()
    >>> pdla.run(2, program)[0]
    [1.0, 1.0, 1.0, 1.0]
    """
    with agreed(communicator((A,)), describe_call("newton_schulz", A, coefficients=coefficients, steps=steps)):
        dtype = checks.find_working_dtype("newton_schulz", A.dtype)
        if isinstance(coefficients, str) and coefficients not in COEFFICIENTS:
            raise PlanError(f"newton_schulz: coefficients={coefficients!r}: {list_choices(coefficients, COEFFICIENTS)}")
        table = COEFFICIENTS[coefficients] if isinstance(coefficients, str) else coefficients
        if steps is not None and not 0 <= steps <= len(table):
            raise PlanError(f"newton_schulz: steps={steps!r}: 0 to {len(table)} of these coefficients")
    wide = A.shape[0] <= A.shape[1]
    X = prepare(A if wide else A.H, dtype)
    size = find_largest(X)
    X = X * float(near_one(size, dtype)) if size else X
    X = X * (1 / max(float(norm(X)), float(np.finfo(X.dtype).tiny)))
    for a, b, c in table[:steps]:
        S = matmul(X, X.H)
        T = matmul(S, X, layout=X.layout)
        X = X * a + T * b
        if c:
            X += matmul(S, T, layout=X.layout) * c
    return (X if wide else X.H).redistribute(A.layout.summed)


# ---------------------------------------------------------------------------------------------- the work


def _check(options: Options, dtype: np.dtype, A: DistMatrix) -> None:
    (m, n), side, condition = A.shape, options.side, options.condition
    if not one_of(side, SIDES):
        raise PlanError(f"polar: side={side!r}: 'right' for A = U H, 'left' for A = H U{suggest(side, SIDES)}")
    if (m < n) if side == "right" else (m > n):
        raise ShapeError(f"polar: A is {m} x {n}: use side={'left' if side == 'right' else 'right'!r}")
    if condition is not None and not (isinstance(condition, (int, float)) and condition >= 1):
        raise PlanError(f"polar: condition={condition!r}: a number, 1 or more, or None")


def _is_left(options: Options, A: DistMatrix) -> bool:
    return bool(options.side == "left")


def _choose_routines(options: Options, A: DistMatrix) -> tuple[Routine, ...]:
    """List the routines of a square A; for a tall one, those of its QR factorization, whose R is decomposed."""
    m, n = A.shape
    if m > n:
        return routines_of("reduced", is_tall(m, n))
    return _list_routines(n, _find_least(options), float(np.finfo(checks.find_working_dtype("polar", A.dtype)).eps))


def _find_least(options: Options) -> float:
    """Find the least over the largest singular value of the matrices that a plan is for."""
    return 1 / options.condition if options.condition else 0.0


def _list_routines(n: int, least: float, eps: float) -> tuple[Routine, ...]:
    """List the routines of QDWH of an n x n matrix, for its price."""
    parts: list[Routine] = [CHOLESKY, TRIANGULAR, TRIANGULAR, PRODUCT, LU]  # the last step, and the estimate
    n = max(1, n)
    if least < sqrt(n) * eps:
        least = eps / n**2
    if least <= ILL:
        parts += [QR, FORMING, PRODUCT, PRODUCT]
    while 1 - least >= sqrt(eps):
        (_, _, c), least = _compute_weights(least, n, eps)
        parts += [CHOLESKY, TRIANGULAR, TRIANGULAR, PRODUCT] * (2 if c > STABLE else 1)
    return tuple(parts)


def _polar(plan: FactorPlan, A: DistMatrix) -> tuple[DistMatrix, DistMatrix]:
    """Collective, unchecked: U and H; a square A's steps use the plan's blocks."""
    X = prepare(A.H if plan.adjoint else A, plan.dtype)
    placed = to_layout(X, *plan.place) if X.shape[0] == X.shape[1] else X
    with held(AT_ONCE * placed.stored.nbytes):
        U = to_layout(_iterate_qdwh(placed, _find_least(plan.options)), X.layout, X.grid)
    H = matmul(U.H, X)
    H = (H + H.H) * 0.5
    return (U.H, H) if plan.adjoint else (U, H)


def _iterate_qdwh(A: DistMatrix, expected: float) -> DistMatrix:
    """Collective: U of an m x n matrix, m >= n. expected: the least singular value of a matrix without data."""
    (m, n), eps = A.shape, float(np.finfo(A.dtype).eps)
    size = find_largest(A) if m and n else 0.0
    if not size:
        return _make_orthonormal(A)
    if not isfinite(size):
        raise LinAlgError("polar: A has elements that are not finite")
    X = A * float(near_one(size, A.dtype))
    if m > n:
        Q, R = qr(X, overwrite_a=True, check_finite=False)
        return matmul(Q, _iterate_qdwh(R, expected), layout=A.layout.summed)
    size, inverse = estimate_extremes(X)
    X, least = X * (1 / size), expected if X.xp.name == "meta" else min(1.0, 1 / (size * inverse))
    if least < sqrt(n) * eps:
        # U of a neighbour: steps keep singular values of 0, and estimates of such small ones are rounding
        X, least = X + _draw_noise(X, 1) * (eps / sqrt(n)), eps / n**2
    if least > ILL:
        return _iterate(X, least)
    # steps lose what columns that depend on few others have; of random mixtures none do
    V, _ = qr(_draw_noise(X, 2), overwrite_a=True, check_finite=False)
    return matmul(_iterate(matmul(X, V, layout=X.layout), least), V.H, layout=X.layout)


def _draw_noise(X: DistMatrix, seed: int) -> DistMatrix:
    """Collective: a random matrix of X's shape, with elements from -1 to 1."""
    return random(X.shape, X.grid, X.layout, dtype=X.dtype, seed=seed, low=-1)


def _iterate(X: DistMatrix, least: float) -> DistMatrix:
    """Collective: U of a square X that has singular values from `least`, about, to 1."""
    n, eps = X.shape[1], float(np.finfo(X.dtype).eps)
    tried = False
    for _ in range(MOST):
        # Newton and Schulz square the distance from 1, for half the work; where the estimates were too near Halley goes on
        near, last = not tried and 1 - least < sqrt(eps), X
        weights, least = _compute_weights(least, n, eps)
        X, tried = _step_by_product(X) if near else _step(X, *weights), tried or near
        if 1 - least < sqrt(eps) and _has_settled(X, last, near):
            if X.xp.name == "meta" or norm(X) ** 2 > n - 0.5:  # else steps keep a singular value of 0
                return X
            break
    raise LinAlgError("polar: no convergence: A is too near a singular matrix; add small random numbers to it")


def _has_settled(X: DistMatrix, last: DistMatrix, near: bool) -> bool:
    """Collective: whether X has changed so little that rounding remains; without data, after the step by products."""
    if X.xp.name == "meta":
        return near
    return bool(norm(X - last) < (5 * float(np.finfo(X.dtype).eps)) ** (1 / 2 if near else 1 / 3))


def _compute_weights(least: float, n: int, eps: float) -> tuple[tuple[float, float, float], float]:
    """Compute the weights that bring singular values from `least` to 1 nearest to 1 by Halley's iteration; and the next `least`.

    n c eps is at most LOST, or c is 3: if c were larger, the weights are those of a larger `least`.
    """
    assumed = least
    a, b, c = _compute_best_weights(assumed)
    while n * c * eps > LOST and assumed < 1:
        assumed = min(1.0, 2 * assumed)
        a, b, c = _compute_best_weights(assumed)
    return (a, b, c), min(1.0, least * (a + b * least**2) / (1 + c * least**2))


def _compute_best_weights(least: float) -> tuple[float, float, float]:
    """Compute the weights for any c."""
    d = (4 * (1 - least**2) / least**4) ** (1 / 3)
    r = sqrt(1 + d)
    a = r + sqrt(8 - 4 * d + 8 * (2 - least**2) / (least**2 * r)) / 2
    b = (a - 1) ** 2 / 4
    return a, b, a + b - 1


def _step_by_product(X: DistMatrix) -> DistMatrix:
    """Collective: X (3 I - X^H X) / 2."""
    S = herk(X.H, alpha=-0.5, layout=X.layout.summed, mirror=True)
    fill_diagonal(S, S.diagonal() + 1.5)
    return matmul(X, S, layout=X.layout.summed)


def _step(X: DistMatrix, a: float, b: float, c: float) -> DistMatrix:
    """Collective: X (a I + b X^H X) (I + c X^H X)^-1."""
    layout = X.layout.summed
    # I + c X^H X = L L^H, P = L^-1 X^H
    Z = herk(X.H, alpha=c, layout=layout)
    fill_diagonal(Z, Z.diagonal().real + 1)
    L = cholesky(Z, overwrite_a=True, check_finite=False)
    P = solve_triangular(L, X.H, lower=True, check_finite=False)
    if c > STABLE:
        # T = L^-1, G = c P P^H + T T^H, which is I but for rounding, P = G^-1 P
        T = inv(L, assume_a="lower triangular", check_finite=False)
        G = herk(T, out=herk(P, alpha=c, layout=layout), beta=1)
        P = cho_solve(cho_factor(G, overwrite_a=True, check_finite=False), P, overwrite_b=True, check_finite=False)
    # X = b/c X + (a - b/c) (L^-H P)^H
    P = solve_triangular(L.H, P, lower=False, overwrite_b=True, check_finite=False)
    return X * (b / c) + P.H * (a - b / c)


def _make_orthonormal(A: DistMatrix) -> DistMatrix:
    """Collective: the first columns of the identity: a polar factor of 0."""
    return eye(max(A.shape), A.grid, A.layout.summed, dtype=A.dtype)[:, : A.shape[1]].redistribute(A.layout.summed)


POLAR = Call("polar", _choose_routines, _polar, square=False, reads=read_all, results=lambda A: (), check=_check, adjoint=_is_left)
