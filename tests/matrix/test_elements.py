"""Single elements, rows and columns: NumPy's, on every rank."""

import numpy as np
import pytest
from helpers.layouts import grids, layouts, spread
from helpers.matrices import numbers
from hypothesis import given, settings
from hypothesis import strategies as st

import pdla
from pdla import Layout, ProcessGrid
from pdla.errors import AgreementError, LayoutError

KEYS = [(0, 0), (-1, -1), 3, -2, np.s_[:, 1], np.s_[2, ::2], np.s_[4:1, 0], np.s_[..., -1], np.s_[1:6:3, 2]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int8"])
def test_elements_are_numpy_s(ranks, dtype):
    whole = numbers((7, 5), dtype)

    def program(comm):
        A = pdla.from_global(whole)
        return [X[key] for X in (A, A.conj(), A.H.T, A[0:7, 0:5]) for key in KEYS] + [A.T[3, 4], A[2:, 1:][::2][1, -1]]

    expected = [x[key] for x in (whole, whole.conj(), whole.conj(), whole) for key in KEYS] + [whole.T[3, 4], whole[4, -1]]
    for found in pdla.run(ranks, program):
        for mine, numpys in zip(found, expected, strict=True):
            assert type(mine) is type(numpys) and mine.dtype == dtype
            np.testing.assert_array_equal(mine, numpys)


@settings(max_examples=60)
@given(st.data())
def test_elements_of_any_layout(data):
    ranks, m, n = (data.draw(st.integers(1, most)) for most in (6, 9, 9))
    shape, axes, order = grid = data.draw(grids(ranks))
    layout = data.draw(layouts((m, n), grid))
    i, j, whole = data.draw(st.integers(-m, m - 1)), data.draw(st.integers(-n, n - 1)), numbers((m, n))

    def program(comm):
        A = spread(whole, ProcessGrid(shape, axes, order=order), layout)
        return A[i, j], A[i], A[:, j]

    for element, row, column in pdla.run(ranks, program):
        assert element == whole[i, j] and np.array_equal(row, whole[i]) and np.array_equal(column, whole[:, j])


def test_a_vector_is_one_s_own():
    def program(comm):
        A = pdla.ones((4, 4))
        A[1][:] = 5
        return A.sum()

    assert pdla.run(2, program) == [16, 16]


def test_iteration_gives_rows():
    whole = numbers((3, 4))
    assert np.array_equal(pdla.run(2, lambda comm: list(pdla.from_global(whole)))[1], whole)
    assert pdla.run(2, lambda comm: [row.shape for row in pdla.zeros((3, 0))])[0] == [(0,)] * 3


def test_what_is_not_there_is_one_error_on_all_ranks():
    def program(comm):
        A = pdla.ones((4, 3))
        with pytest.raises(IndexError, match=r"index 4 is out of bounds for axis 0 with size 4"):
            A[4]
        with pytest.raises(IndexError, match=r"index -4 is out of bounds for axis 1 with size 3"):
            A[0, -4] = 1
        with pytest.raises(LayoutError, match="partial sums"):
            pdla.ones((4, 3), layout=Layout("row", partial="col"))[0, 0]
        with pytest.raises(AgreementError, match=r"ranks disagree: rank 0: A\[0, 1\] of A=4 x 3.*; rank 1: A\[1, 1\] of A=4 x 3"):
            A[comm.rank, 1]
        return A[0, 0]

    assert pdla.run(2, program) == [1, 1]


def test_a_rank_receives_what_it_lacks():
    def program(comm):
        A = pdla.ones((8, 6))
        with pdla.record() as element:
            A[0, 0]
        with pdla.record() as row:
            A[-1]
        return element.bytes_received, row.bytes_received

    everyone = pdla.run(4, program)
    assert everyone == [(0, 48), (8, 48), (8, 24), (8, 24)]
    assert [pdla.dry_run(4, program, rank=rank)[0] for rank in range(4)] == everyone


def test_without_data_elements_are_0():
    found = pdla.dry_run(6, lambda comm: (pdla.ones((8, 6))[1, 2], pdla.ones((8, 6))[1], pdla.ones((8, 6))[::2, 0].shape))[0]
    assert found[0] == 0 and found[1].tolist() == [0] * 6 and found[2] == (4,)
