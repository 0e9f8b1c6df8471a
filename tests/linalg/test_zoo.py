"""The zoo: LAPACK's ratios of factors, solutions, inverses and triangles are below 30 for every matrix in it; no check refuses one.

PDLA_TEST_FULL=1 (`make test-full`) takes every grid, dtype and size; else each matrix meets one of each in turns.
"""

import os
import warnings
from itertools import cycle, product

import numpy as np
import pytest
from helpers.systems import BLOCKS, KINDS, cyclic, drawn, on, ratio
from helpers.zoo import GENERAL, POSITIVE, SINGULAR, animal

import pdla
from pdla import Layout, config
from pdla.errors import LinAlgError
from pdla.linalg import cho_solve, cholesky, inv, lu, lu_factor, lu_solve, solve, solve_triangular

FULL = os.environ.get("PDLA_TEST_FULL") == "1"
GRIDS = [(1, 1), (2, 2), (1, 3), (4, 1), (2, 3), (1, 4)]
SIZES = [33, 1, 8, 60, 7, 128]
LAYOUTS = [cyclic(8), BLOCKS, cyclic(8, None), Layout("col")]


@pytest.fixture(autouse=True)
def verified():
    """All is checked with PDLA_VERIFY, too: no right result is refused, or computed again."""
    with config.override(verify=True), warnings.catch_warnings():
        warnings.filterwarnings("error", ".*computed again")
        yield


def cases(names):
    if FULL:
        return list(product(names, KINDS, GRIDS, SIZES, range(len(LAYOUTS))))
    turns = (cycle(each) for each in (KINDS, GRIDS[1:], SIZES[:4], range(len(LAYOUTS))))
    return list(zip(names, *turns, strict=False))


def residual(a, b, *factors):
    """LAPACK's ratio of a - b, over n eps and the norms of the factors."""
    sizes = [np.abs(x).sum(0).max(initial=0) for x in (a - b, *factors)]
    least = np.finfo(np.float64).tiny
    return float(sizes[0] / max(len(a) * np.finfo(factors[0].dtype).eps * np.prod(sizes[1:]), least))


def wide(x):
    return x.astype(np.result_type(x.dtype, np.float64))


def checked(a, found):
    """The worst ratio, which names what it is of."""
    worst = max(found, key=lambda name: found[name] if np.isfinite(found[name]) else np.inf)
    assert found[worst] < 30, (worst, found)


@pytest.mark.parametrize(("name", "dtype", "grid", "n", "layout"), cases(GENERAL))
def test_general(name, dtype, grid, n, layout):
    a = animal("general", name, n, dtype)
    b = drawn((len(a), 3), dtype, 5)

    def program(comm):
        A, B = on(grid, a, LAYOUTS[layout], comm), on(grid, b, BLOCKS, comm)
        p, L, U = lu(A)
        l, u = L.gather(), U.gather()
        found = {"lu": residual(wide(l)[p] @ u, wide(a), a)}
        if name in SINGULAR:
            with np.errstate(all="ignore"):
                try:
                    solve(A, B)
                except LinAlgError as error:
                    assert "is singular" in str(error)
            return found
        factors = lu_factor(A)
        x, X = lu_solve(factors, b[:, 0]), inv(A).gather()
        found |= {"solve": ratio(a, solve(A, B).gather(), b), "vector": ratio(a, x[:, None], b[:, :1])}
        found["inverse"] = min(residual(wide(a) @ X, np.eye(len(a)), a, X), residual(wide(X) @ a, np.eye(len(a)), a, X))
        return found

    checked(a, pdla.run(grid[0] * grid[1], program)[0])


@pytest.mark.parametrize(("name", "dtype", "grid", "n", "layout"), cases(POSITIVE))
def test_positive(name, dtype, grid, n, layout):
    a = animal("positive", name, n, dtype)
    b = drawn((len(a), 3), dtype, 5)

    def program(comm):
        A, B = on(grid, a, LAYOUTS[layout], comm), on(grid, b, BLOCKS, comm)
        l, u = cholesky(A).gather(), cholesky(A, lower=False).gather()
        X = inv(A, assume_a="pos").gather()
        found = {"lower": residual(wide(l) @ l.conj().T, wide(a), a), "upper": residual(wide(u).conj().T @ u, wide(a), a)}
        found["solve"] = ratio(a, solve(A, B, assume_a="pos").gather(), b)
        found["kept"] = ratio(a, cho_solve((cholesky(A), True), b[:, 0])[:, None], b[:, :1])
        found["inverse"] = residual(wide(a) @ X, np.eye(len(a)), a, X)
        return found

    checked(a, pdla.run(grid[0] * grid[1], program)[0])


@pytest.mark.parametrize(("name", "dtype", "grid", "n", "layout"), cases([name for name in GENERAL if name not in SINGULAR]))
def test_triangles(name, dtype, grid, n, layout):
    a = animal("general", name, n, dtype)
    b = drawn((len(a), 40), dtype, 5)

    def program(comm):
        A, B = on(grid, a, LAYOUTS[layout], comm), on(grid, b, BLOCKS, comm)
        found = {}
        for lower, t in ((True, np.tril(a)), (False, np.triu(a))):
            with np.errstate(all="ignore"):
                if not np.diagonal(t).all():
                    continue
                X, x = solve_triangular(A, B, lower=lower).gather(), solve_triangular(A, b[:, 0], lower=lower)
            if np.isfinite(X).all() and np.abs(X).max() < np.finfo(dtype).max / 1e6:
                found |= {f"many, {lower}": ratio(t, X, b), f"one, {lower}": ratio(t, x[:, None], b[:, :1])}
        return found

    checked(a, pdla.run(grid[0] * grid[1], program)[0] or {"none": 0.0})
