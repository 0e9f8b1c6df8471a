"""What the tests of multiplication share: exact data, and one product checked against NumPy's."""

import numpy as np

import pdla

LAYOUT = pdla.Layout("row", "col")
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


def exact(shape, grid, layout, dtype=float, seed=0):
    """Small integers: every sum is exact in every order."""
    return pdla.random(shape, grid, layout, dtype=dtype, seed=seed, distribution="integers", low=-4, high=5)


def op(X, how):
    if how == "N":
        return X
    return X.T if how == "T" else X.H if isinstance(X, pdla.DistMatrix) else X.conj().T


def check_product(grid, mnk, dtype, algorithm, how_a="N", how_b="N", panel=3):
    """C = op(A) op(B), twice, then 2 A B + 3 C: bitwise NumPy's, inputs untouched, NaN in C gone with beta = 0."""
    m, n, k = mnk
    A = exact((m, k) if how_a == "N" else (k, m), grid, LAYOUT, dtype, 1)
    B = exact((k, n) if how_b == "N" else (n, k), grid, LAYOUT, dtype, 2)
    a, b = A.gather(), B.gather()
    expected = op(a, how_a) @ op(b, how_b)
    where = f"{algorithm} {how_a}{how_b} {mnk} {np.dtype(dtype)} on {grid}"
    C = pdla.matmul(op(A, how_a), op(B, how_b), algorithm=algorithm, panel=panel)
    assert C.dtype == dtype and np.array_equal(C.gather(), expected), where
    C.stored.fill(np.nan)
    pdla.matmul(op(A, how_a), op(B, how_b), algorithm=algorithm, panel=panel, out=C)
    assert np.array_equal(C.gather(), expected), f"{where}, again over NaN"
    pdla.gemm(2, op(A, how_a), op(B, how_b), 3, C, algorithm=algorithm)
    assert np.array_equal(C.gather(), 5 * expected), f"{where}, beta"
    assert np.array_equal(A.gather(), a) and np.array_equal(B.gather(), b), f"{where}: inputs changed"
