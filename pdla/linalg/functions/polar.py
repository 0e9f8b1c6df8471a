"""The polar decomposition A = U H by iterations of Newton and Halley, for every A; and by Newton and Schulz, products alone."""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Any

import numpy as np

from pdla.array.dtypes import near_one
from pdla.checks import SIDES, communicator, describe_call, one_of, sizes
from pdla.comm.agreement import agreed
from pdla.comm.ledger import held
from pdla.errors import LinAlgError, PlanError, ShapeError, list_choices, suggest
from pdla.linalg import checks
from pdla.linalg.cholesky import cholesky
from pdla.linalg.functions.operand import prepare
from pdla.linalg.inverse import find_inverse, inv
from pdla.linalg.norms import norm
from pdla.linalg.orthogonal.factors import find_largest
from pdla.linalg.orthogonal.qr import qr, read_all, routines_of
from pdla.linalg.panels.blocks import to_layout
from pdla.linalg.plan.blocking import choose_place
from pdla.linalg.plan.call import Call
from pdla.linalg.plan.options import Options
from pdla.linalg.plan.plan import FactorPlan
from pdla.linalg.plan.predict import FactorPrediction, predict
from pdla.linalg.plan.routine import Routine
from pdla.linalg.products.rank_k import herk
from pdla.linalg.routines import CHOLESKY, LU, TRIANGULAR
from pdla.linalg.routines.product import PRODUCT
from pdla.linalg.routines.tall_qr import is_tall
from pdla.linalg.triangular import solve_triangular
from pdla.matmul import matmul
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import eye, from_function
from pdla.model.bounds import exact
from pdla.model.machine import Machine

MOST = 30  # draws of a mixture, and steps, which are 2 to 7 inversions, 2 or 3 Cholesky factorizations, and products
AT_ONCE = 9  # matrices as large as X that there are in a step
NEAR = 5.0  # condition number up to which two steps by Cholesky factors, and one by products, reach rounding

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
    Newton's iteration, X = (X + X^-H) / 2, scaled as in Byers and Xu, SIAM J. Matrix Anal. Appl. 30
    (2008), brings the condition number below 5: 5 inversions are the most. Two steps of Halley's
    iteration with the weights of QDWH follow, which take a Cholesky factorization each
    (Nakatsukasa, Bai, Gygi, SIAM J. Matrix Anal. Appl. 31 (2010)), and one step by products. The
    norms of A and of its inverse tell the number of steps.

    These steps are backward stable if LU inverts X in a mixed stable way: Nakatsukasa and Higham,
    SIAM J. Matrix Anal. Appl. 33 (2012). For that A is multiplied by a random unitary matrix first,
    as columns that depend on few others lose digits: Demmel, Dumitriu, Holtz, Numer. Math. 108
    (2007). A random unitary matrix of norm eps is added, as A may be singular.

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
    eps = float(np.finfo(kind if kind.kind in "fc" else float).eps)
    (n,) = exact(n)
    first, *then = _list_routines(_find_condition(Options(), max(1, n) if sizes(n) else 1, eps), eps)
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
    eps = float(np.finfo(checks.find_working_dtype("polar", A.dtype)).eps)
    return _list_routines(_find_condition(options, max(1, n), eps), eps)


def _find_condition(options: Options, n: int, eps: float) -> float:
    """Find the product of the norms of a typical such matrix of n rows and of its inverse, which a plan is for."""
    return min(sqrt(n) * (options.condition or 1 / eps), n / eps)


def _list_routines(condition: float, eps: float) -> tuple[Routine, ...]:
    """List the routines of a polar decomposition, for its price."""
    parts: list[Routine] = [LU, TRIANGULAR, *[PRODUCT] * 4]  # the first step, mixing, the last step, and H
    while (condition := _shrink_condition(condition)) > NEAR:
        parts += [LU, TRIANGULAR]
    least = 1 / condition
    while not _is_near(least, eps):
        _, least = _compute_weights(least)
        parts += [CHOLESKY, TRIANGULAR, TRIANGULAR, PRODUCT]
    return tuple(parts)


def _polar(plan: FactorPlan, A: DistMatrix) -> tuple[DistMatrix, DistMatrix]:
    """Collective, unchecked: U and H; a square A's steps use the plan's blocks."""
    X = prepare(A.H if plan.adjoint else A, plan.dtype)
    placed = to_layout(X, *plan.place) if X.shape[0] == X.shape[1] else X
    with held(AT_ONCE * placed.stored.nbytes):
        U = to_layout(_find_orthonormal_factor(placed, plan.options), X.layout, X.grid)
    H = matmul(U.H, X)
    H = (H + H.H) * 0.5
    return (U.H, H) if plan.adjoint else (U, H)


def _find_orthonormal_factor(A: DistMatrix, options: Options) -> DistMatrix:
    """Collective: U of an m x n matrix, m >= n."""
    (m, n), eps = A.shape, float(np.finfo(A.dtype).eps)
    size = find_largest(A) if m and n else 0.0
    if not size:
        return _make_orthonormal(A)
    if not isfinite(size):
        raise LinAlgError("polar: A has elements that are not finite")
    X = A * float(near_one(size, A.dtype))
    if m > n:
        Q, R = qr(X, overwrite_a=True, check_finite=False)
        R = to_layout(R, *choose_place(LU, R, None, R.dtype))
        return matmul(Q, _find_orthonormal_factor(R, options), layout=A.layout.summed)
    size = norm(X)
    for seed in range(0, 2 * MOST, 2):
        # columns that depend on few others would make an inverse unstable; of random mixtures none does
        V, W = _draw_unitary(X, seed), _draw_unitary(X, seed + 1)
        # W makes a singular matrix regular; rounding may undo this
        mixed = matmul(X, V, layout=X.layout) + W * (eps * size / sqrt(n))
        inverse = find_inverse(mixed)
        if inverse is not None:
            return matmul(_iterate(mixed, inverse, _find_condition(options, n, eps)), V.H, layout=X.layout)
    raise LinAlgError("polar: A is too near a singular matrix; add small random numbers to it")


def _draw_unitary(X: DistMatrix, seed: int) -> DistMatrix:
    """Collective: a random circulant unitary matrix of X's shape, whose rows have random signs."""
    n, rng = X.shape[0], np.random.default_rng(seed)
    phases = np.exp(2j * np.pi * rng.random(n // 2 + 1))
    phases[2 * np.arange(len(phases)) % n == 0] = 1  # those of 0 and n / 2 are real for a real column
    column, signs = np.fft.irfft(phases, n), rng.choice([-1.0, 1.0], n)
    return from_function(lambda i, j: signs[i] * column[(i - j) % n], X.shape, X.grid, X.layout, dtype=X.dtype)


def _iterate(X: DistMatrix, Y: DistMatrix, condition: float) -> DistMatrix:
    """Collective: U of a square X, of which Y is the inverse. condition: the product of their norms, for arrays without data."""
    n, eps = X.shape[0], float(np.finfo(X.dtype).eps)
    sizes = (1.0, condition) if X.xp.name == "meta" else (norm(X), norm(Y))
    # singular values of scale X are from 1 / sqrt(condition) to sqrt(condition), of the next X from 1 to the next condition
    scale, condition = sqrt(sizes[1] / sizes[0]), sizes[0] * sizes[1]
    while True:
        X = X * (scale / 2) + Y.H * (0.5 / scale)
        condition = _shrink_condition(condition)
        if condition <= NEAR:
            break
        Y, scale = inv(X, check_finite=False), 1 / sqrt(condition)
    X, least = X * (1 / condition), 1 / condition
    for _ in range(MOST):
        if not _is_near(least, eps):
            weights, least = _compute_weights(least)
            X = _step(X, *weights)
        else:
            X, left = _step_by_products(X)
            if left**3 <= n**1.5 * eps:
                return X
    raise LinAlgError("polar: no convergence")


def _is_near(least: float, eps: float) -> bool:
    """Whether one step by products brings singular values from `least` to 1 to 1."""
    return 2 * (1 - least) < eps ** (1 / 3)


def _shrink_condition(condition: float) -> float:
    """Compute the largest over the least singular value after a step of Newton's iteration, from that before."""
    return (sqrt(condition) + 1 / sqrt(condition)) / 2


def _compute_weights(least: float) -> tuple[tuple[float, float, float], float]:
    """Compute the weights that bring singular values from `least` to 1 nearest to 1 by Halley's iteration; and the next `least`."""
    d = (4 * (1 - least**2) / least**4) ** (1 / 3)
    r = sqrt(1 + d)
    a = r + sqrt(8 - 4 * d + 8 * (2 - least**2) / (least**2 * r)) / 2
    b = (a - 1) ** 2 / 4
    c = a + b - 1
    return (a, b, c), min(1.0, least * (a + b * least**2) / (1 + c * least**2))


def _step_by_products(X: DistMatrix) -> tuple[DistMatrix, float]:
    """Collective: X (I + E / 2 + 3 E^2 / 8), E = I - X^H X, without E^2 if that is rounding; and E's norm, 0 without data."""
    unit = _make_unit(X)
    half = herk(X.H, alpha=-0.5, out=unit * 0.5, beta=1, mirror=True)
    left = 0.0 if X.xp.name == "meta" else 2 * float(norm(half))
    T = unit + half
    if left**2 > X.shape[0] * float(np.finfo(X.dtype).eps):
        T = herk(half, alpha=1.5, out=T, beta=1, mirror=True)
    return matmul(X, T, layout=X.layout.summed), left


def _step(X: DistMatrix, a: float, b: float, c: float) -> DistMatrix:
    """Collective: X (a I + b X^H X) (I + c X^H X)^-1."""
    # I + c X^H X = L L^H
    L = cholesky(herk(X.H, alpha=c, out=_make_unit(X), beta=1), overwrite_a=True, check_finite=False)
    # X = b/c X + (a - b/c) (L^-H L^-1 X^H)^H
    P = solve_triangular(L, X.H, lower=True, check_finite=False)
    P = solve_triangular(L.H, P, lower=False, overwrite_b=True, check_finite=False)
    return X * (b / c) + P.H * (a - b / c)


def _make_unit(X: DistMatrix) -> DistMatrix:
    """Collective: the identity in X's place."""
    return eye(X.shape[0], X.grid, X.layout.summed, dtype=X.dtype)


def _make_orthonormal(A: DistMatrix) -> DistMatrix:
    """Collective: the first columns of the identity: a polar factor of 0."""
    return eye(max(A.shape), A.grid, A.layout.summed, dtype=A.dtype)[:, : A.shape[1]].redistribute(A.layout.summed)


POLAR = Call("polar", _choose_routines, _polar, square=False, reads=read_all, results=lambda A: (), check=_check, adjoint=_is_left)
