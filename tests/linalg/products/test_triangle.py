"""Triangles as matrices of their own, and products with them: NumPy's, bitwise; what is not read is NaN."""

import numpy as np
import pytest
from helpers.level3 import both, random_array
from helpers.systems import BLOCKS, cyclic, on, raised

import pdla
from pdla import Layout
from pdla.errors import ShapeError
from pdla.linalg import trmm

LAYOUTS = (BLOCKS, Layout("col"), Layout(), cyclic(3), Layout(cols=("row", "col")))


@pytest.mark.parametrize("dtype", ["float64", "complex64", "float16", "int64", "bool"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
@pytest.mark.parametrize("unit", [False, True])
def test_products_from_either_side(dtype, layout, unit):
    a, b = random_array((9, 9), dtype, 1), random_array((9, 5), dtype, 2)
    alpha = 1 if dtype == "bool" else 2

    def program(comm):
        for lower in (True, False):
            whole, read = both(a, lower), a.copy()
            if unit:
                np.fill_diagonal(whole, 1)
            if np.dtype(dtype).kind in "fc":
                read[both(np.ones((9, 9), bool), not lower, 0 if unit else 1)] = np.nan
            A, B = on((2, 2), read, layout, comm), on((2, 2), b, BLOCKS, comm)
            views = (lambda X: X, lambda X: X.T, lambda X: X.H, lambda X: X.conj())
            for view, t in zip(views, (whole, whole.T, whole.conj().T, whole.conj()), strict=True):
                V = view(A)
                seen = {"lower": lower != V.transposed, "unit_diagonal": unit, "alpha": alpha}
                assert np.array_equal(trmm(V, B, **seen).gather(), alpha * (t @ b).astype(dtype))
                X = trmm(V, B.T, side="right", layout=Layout("row"), **seen)
                assert X.layout == Layout("row") and np.array_equal(X.gather(), alpha * (b.T @ t).astype(dtype))
            assert np.array_equal(B.gather(), b)

    pdla.run(5, program)


def test_words_are_those_of_the_product():
    def program(comm, multiply):
        A = pdla.ones((24, 24), pdla.ProcessGrid((2, 2), comm=comm), BLOCKS)
        with pdla.record() as ledger:
            multiply(A)
        return ledger.bytes_received

    ran = pdla.run(4, program, lambda A: trmm(A, A, lower=True))
    assert ran == pdla.run(4, program, lambda A: A @ A)
    assert ran == [pdla.dry_run(4, program, lambda A: trmm(A, A, lower=True), rank=rank)[0] for rank in range(4)]


def test_faults_on_every_rank():
    def of(shape, other, **named):
        grid = pdla.ProcessGrid
        return lambda comm: trmm(*(pdla.ones(x, grid((2, 1), comm=comm), BLOCKS) for x in (shape, other)), lower=True, **named)

    assert raised(of((4, 5), (4, 4))) == (ShapeError, "trmm: A is 4 x 5, it must be square")
    assert "side='up': 'left' for A B" in raised(of((4, 4), (4, 4), side="up"))[1]
    assert "A is 4 x 4, B 4 x 5: the inner sizes differ" in raised(of((4, 4), (4, 5), side="right"))[1]
    assert "alpha=1j is complex" in raised(of((4, 4), (4, 4), alpha=1j))[1]
