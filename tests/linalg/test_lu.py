"""P, L and U: SciPy's, on any layout and shape."""


import numpy as np
import pytest
import scipy.linalg
from helpers.systems import BLOCKS, KINDS, cyclic, drawn, on, raised

import pdla
from pdla import Cuts, Cyclic, Layout
from pdla.linalg import lu


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 4), (9, 9), (33, 20), (20, 33)], ids=str)
def test_a_product_and_its_parts(dtype, shape):
    a = drawn(shape, dtype)

    def program(comm):
        for layout in (BLOCKS, Layout(), Layout("col"), cyclic(4), cyclic(8, None)):
            A = on((2, 2), a, layout, comm)
            p, L, U = lu(A)
            l, u = L.gather(), U.gather()
            assert L.layout == U.layout == layout and np.array_equal(A.gather(), a)
            assert np.array_equal(l, np.tril(l, -1) + np.eye(*l.shape)) and np.array_equal(u, np.triu(u))
            assert np.allclose(l[p] @ u, a, atol=1e2 * np.finfo(dtype).eps) and np.abs(l).max(initial=0) <= 1.5
        p, L, U = lu(A, overwrite_a=True, layout=Layout("row"))
        assert L.layout == U.layout == Layout("row")
        return p, l, u

    p, l, u = pdla.run(5, program)[0]
    if a.size:
        expected = scipy.linalg.lu(a, p_indices=True)
        assert np.array_equal(p, expected[0])
        assert all(np.allclose(*pair, atol=1e-4) for pair in zip((l, u), expected[1:], strict=True))


def test_parts_and_boundaries_are_cut_as_far_as_they_reach():
    a = drawn((20, 20), "float64")

    def program(comm):
        whole = on((2, 2), a, BLOCKS, comm)
        given = on((2, 2), a[:, 3:9], Layout(Cuts("row", (0, 9, 20)), Cuts("col", (0, 2, 6))), comm)
        for A in (whole[1:, 2:9], whole[3:9, 1:].T, given, given.H):
            m, k = A.shape[0], min(A.shape)
            p, L, U = lu(A)
            assert L.layout == A[:, :k].layout and U.layout == A[:k, :].layout
            assert L.shape == (m, k) and np.allclose(L.gather()[p] @ U.gather(), A.gather())

    pdla.run(5, program)
    short = Layout(Cuts("row", (0, 9, 19)))
    assert "does not cut 20 indices over 2 ranks" in raised(lambda comm: lu(on((2, 2), a, BLOCKS, comm), layout=short), 4)[1]


NESTED = [  # a layout of m x n, and those of L and U
    ((4, 6), Layout(cols=(Cuts("row", (0, 2, 6)), "col")), Layout(cols=(Cuts("row", (0, 2, 4)), "col")), None),
    ((9, 7), Layout((Cuts("row", (0, 8, 9)), Cyclic("col", 3))), None, Layout((Cuts("row", (0, 7, 7)), Cyclic("col", 3)))),
]


@pytest.mark.parametrize(("shape", "layout", "lower", "upper"), NESTED)
def test_of_boundaries_that_other_axes_cut_further_those_are_cut_off(shape, layout, lower, upper):
    a = drawn(shape, "float64")

    def program(comm):
        p, L, U = lu(on((2, 2), a, layout, comm))
        assert L.layout == (lower or layout) and U.layout == (upper or layout)
        return np.allclose(L.gather()[p] @ U.gather(), a)

    assert all(pdla.run(5, program))


def test_a_singular_matrix_has_factors_and_other_faults_are_told():
    p, _, U = pdla.run(2, lambda comm: lu(on((2, 1), np.zeros((3, 3)), BLOCKS, comm)))[0]
    assert p.tolist() == [0, 1, 2] and U.shape == (3, 3)
    assert "LAPACK has" in raised(lambda comm: lu(on((2, 1), np.ones((3, 3), "float16"), BLOCKS, comm)))[1]
    nan = np.full((3, 3), np.nan)
    assert "A has nan at [0, 0]" in raised(lambda comm: lu(on((2, 1), nan, BLOCKS, comm)), 3)[1]
