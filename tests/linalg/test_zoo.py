"""The zoo: LAPACK's ratios of factors, solutions, inverses and triangles are below 30 for every matrix in it; no check refuses one.

PDLA_TEST_FULL=1 (`make test-full`) takes every dtype on every grid, with sizes and ways to lie that are drawn; else each matrix
meets one of each in turns.
"""

import os
import warnings
from itertools import cycle, product

import numpy as np
import pytest
from helpers.systems import BLOCKS, KINDS, WAYS, drawn, on, ratio, taken
from helpers.zoo import GENERAL, POSITIVE, animal

import pdla
from pdla import config
from pdla.errors import LinAlgError
from pdla.linalg import (
    cho_factor,
    cho_solve,
    cholesky,
    cond,
    inv,
    lu,
    lu_factor,
    lu_solve,
    slogdet,
    solve,
    solve_triangular,
    trmm,
    trsm,
)

FULL = os.environ.get("PDLA_TEST_FULL") == "1"
GRIDS = [(pr, P // pr) for P in range(1, 9) for pr in range(1, P + 1) if P % pr == 0] + [(11, 1), (1, 13)]
SIZES = [0, 1, 2, 5, 7, 8, 9, 33, 60, 128]  # of 8 a block
QUICK = [(2, 2), (1, 3), (4, 1), (2, 3), (1, 4)], [33, 1, 8, 60]


@pytest.fixture(autouse=True)
def verified():
    """All is checked with PDLA_VERIFY, too: no right result is refused, or computed again."""
    with config.override(verify=True), warnings.catch_warnings():
        warnings.filterwarnings("error", ".*computed again")
        warnings.filterwarnings("ignore", ".*factored again")
        yield


def cases(names):
    """Of name, dtype, grid, size, way to lie, and number of idle ranks."""
    if not FULL:
        turns = (cycle(each) for each in (KINDS, *QUICK, WAYS, (0, 1)))
        return list(zip(names, *turns, strict=False))
    rng = np.random.default_rng(0)
    each = product(names, KINDS, GRIDS)
    return [(*one, int(rng.choice(SIZES)), str(rng.choice([*WAYS])), int(rng.integers(2))) for one in each]


def residual(a, b, *factors):
    """LAPACK's ratio of a - b, over n eps and the norms of the factors."""
    sizes = [np.abs(x).sum(0).max(initial=0) for x in (a - b, *factors)]
    least = np.finfo(np.float64).tiny
    return float(sizes[0] / max(max(a.shape) * np.finfo(factors[0].dtype).eps * np.prod(sizes[1:]), least))


def wide(x):
    return x.astype(np.result_type(x.dtype, np.float64))


def of_inverse(a, x):
    """The smaller of the ratios of A X - 1 and X A - 1."""
    return min(residual(wide(a) @ x, np.eye(len(a)), a, x), residual(wide(x) @ a, np.eye(len(a)), a, x))


def checked(found):
    """The worst ratio, which names what it is of; the same on every rank."""
    assert all(each.keys() == found[0].keys() for each in found)
    for each in found:
        worst = max(each, key=lambda name: each[name] if np.isfinite(each[name]) else np.inf, default=None)
        assert worst is None or each[worst] < 30, (worst, each)


def by_lu(A, a):
    """Ratios of the factors, also of its first half of columns and of rows, and of the determinant by them."""
    found, half = {}, len(a) // 2
    for name, X, x in (("lu", A, a), ("tall", A[:, :half], a[:, :half]), ("flat", A[:half, :], a[:half])):
        p, L, U = lu(X)
        l, u = L.gather(), U.gather()
        found[name] = residual(wide(l)[p] @ u, wide(x), x) if x.size else 0.0
        if name == "lu":
            sign = np.linalg.slogdet(np.eye(len(p))[p])[0]
            d = wide(u.diagonal())
            with np.errstate(divide="ignore"):
                wanted = sign * np.prod(d / np.where(d == 0, 1, np.abs(d))), np.log(np.abs(d)).sum()
            given = slogdet(X)
            eps = np.finfo(a.dtype).eps * max(1, len(a))
            same = wanted[1] == given.logabsdet or abs(wanted[1] - given.logabsdet) < eps * (1 + np.abs(np.log(np.abs(d))).sum())
            found["slogdet"] = abs(wanted[0] - given.sign) / eps if same else np.inf
    return found


def of_condition(A, a):
    """0; infinite where the estimate is far below the condition number, or above it, if that can be told in this precision."""
    return 0.0 if ill(a) or 0.1 * np.linalg.cond(wide(a), 1) < cond(A) < 1.1 * np.linalg.cond(wide(a), 1) else np.inf


def ill(a):
    """Whether rounding may make it singular."""
    return not a.size or not np.linalg.cond(wide(a), 1) < 1e-2 / np.finfo(a.dtype).eps


def by_solving(A, B, a, b):
    """Ratios of solutions and inverse, and of the condition number."""
    X, x = inv(A).gather(), lu_solve(lu_factor(A), b[:, 0])
    found = {"solve": ratio(a, solve(A, B).gather(), b), "vector": ratio(a, x[:, None], b[:, :1])}
    found |= {"inverse": of_inverse(a, X), "condition": of_condition(A, a)}
    if a.dtype.char in "dD":
        found["refined"] = ratio(a, solve(A, B, refine="float32").gather(), b)
    return found


@pytest.mark.parametrize(("name", "dtype", "grid", "n", "way", "idle"), cases(GENERAL))
def test_general(name, dtype, grid, n, way, idle):
    a = animal("general", name, n, dtype)
    b = drawn((len(a), 3), dtype, 5)

    def program(comm):
        A, B = WAYS[way](grid, a, comm), on(grid, b, BLOCKS, comm)
        found = by_lu(A, a)
        try:
            return found | by_solving(A, B, a, b)
        except LinAlgError as error:
            assert "is singular" in str(error) and ill(a)
            return found

    checked(pdla.run(grid[0] * grid[1] + idle, program))


@pytest.mark.parametrize(("name", "dtype", "grid", "n", "way", "idle"), cases(POSITIVE))
def test_positive(name, dtype, grid, n, way, idle):
    a = animal("positive", name, n, dtype)
    b = drawn((len(a), 3), dtype, 5)

    def program(comm):
        A, B = WAYS[way](grid, a, comm), on(grid, b, BLOCKS, comm)
        l, u = cholesky(A).gather(), cholesky(A, lower=False).gather()
        X = inv(A, assume_a="pos").gather()
        found = {"lower": residual(wide(l) @ l.conj().T, wide(a), a), "upper": residual(wide(u).conj().T @ u, wide(a), a)}
        found["solve"] = ratio(a, solve(A, B, assume_a="pos").gather(), b)
        for lower in (True, False):
            found[f"kept, {lower}"] = ratio(a, cho_solve(cho_factor(A, lower=lower), b[:, 0])[:, None], b[:, :1])
        found["inverse"] = residual(wide(a) @ X, np.eye(len(a)), a, X)
        if np.dtype(dtype).char in "dD":
            found["refined"] = ratio(a, solve(A, B, assume_a="pos", refine="float32").gather(), b)
        return found

    checked(pdla.run(grid[0] * grid[1] + idle, program))


@pytest.mark.parametrize(("name", "dtype", "grid", "n", "way", "idle"), cases(GENERAL))
def test_triangles(name, dtype, grid, n, way, idle):
    a = animal("general", name, n, dtype)
    b, most = drawn((len(a), 40), dtype, 5), np.finfo(dtype).max / 1e6

    def fine(x):
        return bool(np.isfinite(x).all() and np.abs(x).max(initial=0) < most)

    def of(A, B, lower, unit):
        t, found = taken(a, lower, unit), {}
        product = trmm(A, B, lower=lower, unit_diagonal=unit).gather()
        found["product"] = residual(product, wide(t) @ b, t, b)
        if not np.diagonal(t).all():
            return found
        X, x = (solve_triangular(A, c, lower=lower, unit_diagonal=unit) for c in (B, b[:, 0]))
        Y = trsm(A, B.T, lower=lower, side="right", unit_diagonal=unit).gather().T
        if fine(X := X.gather()) and fine(Y):
            found |= {"many": ratio(t, X, b), "one": ratio(t, x[:, None], b[:, :1]), "right": ratio(t.T, Y, b)}
        if not unit and fine(X := inv(A, assume_a=f"{'lower' if lower else 'upper'} triangular").gather()):
            found["inverse"] = of_inverse(t, X)
        return found

    def program(comm):
        A, B = WAYS[way](grid, a, comm), on(grid, b, BLOCKS, comm)
        with np.errstate(all="ignore"):
            found = {(lower, unit): of(A, B, lower, unit) for lower in (True, False) for unit in (True, False)}
        return {(*key, name): worth for key, each in found.items() for name, worth in each.items()}

    checked(pdla.run(grid[0] * grid[1] + idle, program))
