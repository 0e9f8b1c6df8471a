"""What the tests of multiplication share: exact data, and one product checked against NumPy's."""

from functools import cache

import numpy as np
import pytest

import pdla
from pdla import config
from pdla.matmul.choose import candidates

LAYOUT = pdla.Layout("row", "col")
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
needs_a_board = pytest.mark.skipif(config.settings.array != "numpy", reason="devices are not multiplied on in the host's memory")


def forget_ways():
    """Let ways be searched anew: those found before are kept."""
    candidates._list_ways.cache_clear()
    candidates._find_cheapest.cache_clear()


def exact(shape, grid, layout, dtype=float, seed=0):
    """Small integers: every sum is exact in every order."""
    return pdla.random(shape, grid, layout, dtype=dtype, seed=seed, distribution="integers", low=-4, high=5)


def numbers(shape, dtype="float64", seed=0):
    """The same as a NumPy array, complex where the dtype is."""
    draw = np.random.default_rng([seed, *shape])
    x = draw.integers(-3, 4, shape)
    return (x + 1j * draw.integers(-3, 4, shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def op(X, how):
    if how == "N":
        return X
    return X.T if how == "T" else X.H if isinstance(X, pdla.DistMatrix) else X.conj().T


def lacks(X, layout, grid):
    """Elements of X that this rank has in a layout on a grid, and has not as X lies."""
    return len(_held(X.shape, layout, grid) - _held(X.shape, X.layout, X.grid))


def _held(shape, layout, grid):
    rows, cols = (part.indices() for part in layout.indices(shape, grid.sizes, grid.coords))
    return {(i, j) for i in rows for j in cols}


@cache
def whole(shape, dtype, seed):
    """All of `exact`'s matrix, as one rank alone makes it."""
    [x] = pdla.run(1, lambda comm: exact(shape, pdla.ProcessGrid(1), pdla.Layout(), dtype, seed).local)
    return x


def check_product(grid, mnk, dtype, algorithm, how_a="N", how_b="N", panel=3):
    """C = op(A) op(B), twice, then 2 A B + 3 C: bitwise NumPy's, inputs untouched, NaN in C gone with beta = 0.

    algorithm  one of matmul's, or "fetch", the schedule
    """
    m, n, k = mnk
    asked = {"schedule": algorithm} if algorithm == "fetch" else {"algorithm": algorithm}
    shapes = (m, k) if how_a == "N" else (k, m), (k, n) if how_b == "N" else (n, k)
    A, B = (exact(shape, grid, LAYOUT, dtype, seed) for seed, shape in enumerate(shapes))
    a, b = (whole(shape, dtype, seed) for seed, shape in enumerate(shapes))
    inputs = A.local.copy(), B.local.copy()
    C = pdla.matmul(op(A, how_a), op(B, how_b), panel=panel, **asked)
    expected = pdla.from_global(op(a, how_a) @ op(b, how_b), C.grid, C.layout).local
    checks = {"dtype": C.dtype == dtype, "once": np.array_equal(C.local, expected)}
    C.stored.fill(np.nan)
    pdla.matmul(op(A, how_a), op(B, how_b), panel=panel, **asked, out=C)
    checks["again over NaN"] = np.array_equal(C.local, expected)
    if algorithm == "fetch":
        pdla.matmul(op(A, how_a), op(B, how_b), out=C, alpha=2, beta=3, **asked)
    else:
        pdla.gemm(2, op(A, how_a), op(B, how_b), 3, C, algorithm=algorithm)
    checks["beta"] = np.array_equal(C.local, 5 * expected)
    checks["inputs unchanged"] = np.array_equal(A.local, inputs[0]) and np.array_equal(B.local, inputs[1])
    wrong = set().union(*grid.comm.share([what for what, right in checks.items() if not right]))
    assert not wrong, f"{algorithm} {how_a}{how_b} {mnk} {np.dtype(dtype)} on {grid}: wrong {sorted(wrong)}"
