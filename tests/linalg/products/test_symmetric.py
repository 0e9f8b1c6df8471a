"""Products with half a symmetric matrix: NumPy's bit by bit, in any layout."""

import hypothesis.strategies as st
import numpy as np
from helpers.layouts import triangles
from helpers.level3 import BLOCKS, TURNS, check_symm
from helpers.matmuls import DTYPES, exact
from hypothesis import given

import pdla
from pdla import Layout, ProcessGrid


@given(triangles(), st.sampled_from(DTYPES), st.booleans(), st.booleans(), st.sampled_from(["left", "right"]))
def test_half_of_a_symmetric_matrix_is_read(case, dtype, hermitian, lower, side):
    ranks, (shape, axes, order), n, k, layout, wanted = case
    layout = layout.summed if side == "left" else layout.summed.T

    def program(comm):
        grid = ProcessGrid(shape, axes, order=order)
        check_symm(grid, n, k, (wanted, layout), dtype, hermitian, lower, side)

    pdla.run(ranks, program)


def test_symm_adds_to_out_and_takes_transposes():
    def program(comm):
        grid = ProcessGrid((2, 3))
        A, B, C = (exact((8, 8), grid, layout, complex, seed) for seed, layout in enumerate((BLOCKS, TURNS, BLOCKS)))
        a, b, c = A.gather(), B.gather(), C.gather()
        whole = np.tril(a) + np.tril(a, -1).T
        pdla.symm(A, B.H, alpha=2, beta=-1, out=C)
        assert np.array_equal(C.gather(), 2 * whole @ b.conj().T - c)
        upper = np.tril(a).T + np.tril(a, -1)
        assert np.array_equal(pdla.symm(A.T, B, lower=False).gather(), upper @ b)

    pdla.run(6, program)


def test_imaginary_parts_of_a_hermitian_diagonal_are_not_read():
    spoilt = np.array([[complex(2, np.nan), 0], [1 + 1j, complex(1e308, np.inf)]])
    whole = np.array([[2, 1 - 1j], [1 + 1j, 1e308]])

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, one = pdla.from_global(spoilt, grid, BLOCKS), pdla.eye(2, grid, BLOCKS, dtype=complex)
        assert np.array_equal(pdla.hemm(A, one).gather(), whole)
        pdla.herk(one * 0, beta=1, out=A)
        assert np.array_equal(np.tril(A.gather()), np.tril(whole))

    pdla.run(4, program)


def test_symm_of_addends_lies_as_the_product_does():
    def program(comm):
        A, B = (exact((4, 4), ProcessGrid((2, 2)), layout) for layout in (Layout("row", None, "col"), BLOCKS))
        return pdla.symm(A, B).layout == (A @ B).layout and pdla.symm(A, B, side="right").layout == (B @ A).layout

    assert pdla.run(4, program) == [True] * 4
