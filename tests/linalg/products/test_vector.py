"""Matrix times vector: NumPy's bit by bit, words by formula."""

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from helpers.layouts import layouts, triangles
from helpers.level3 import BLOCKS, VIEWS, check_matvec
from helpers.matmuls import DTYPES, exact
from hypothesis import given

import pdla
from pdla import Layout, ProcessGrid


@given(triangles(), st.sampled_from([*DTYPES, np.int32]), st.sampled_from(sorted(VIEWS)), st.data())
def test_matrix_times_vector(case, dtype, view, data):
    ranks, (shape, axes, order), n, k, layout, _ = case
    rows, cols = (k, n) if view in "TH" else (n, k)
    vector = data.draw(layouts((cols, 1), (shape, axes, order), partial=True))
    wanted = data.draw(st.one_of(st.none(), layouts((rows, 1), (shape, axes, order))))

    def program(comm):
        grid = ProcessGrid(shape, axes, order=order)
        check_matvec(VIEWS[view](exact((n, k), grid, layout, dtype, 1)), vector, wanted)

    pdla.run(ranks, program)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (2, 3), (4, 1)], ids=str)
def test_matvec_words_by_formula(shape):
    m, k, ranks = 48, 60, shape[0] * shape[1]

    def program(comm):
        grid = ProcessGrid(shape)
        A, x = pdla.zeros((m, k), grid, BLOCKS), pdla.zeros((k, 1), grid, Layout(("col", "row")))
        with pdla.record() as ledger:
            pdla.matvec(A, x)
        return ledger.bytes_received

    assert pdla.run(ranks, program) == [round(8 * pdla.matvec_words(m, k, shape))] * ranks


def test_of_addends_times_a_vector_only_the_results_are_summed():
    """Two ranks have a half of A's rows each: of the sums of y a rank receives as many words as y has there, 24; of A's 24 x 60."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, x = (pdla.zeros(shape, grid, layout) for shape, layout in (((48, 60), Layout("row", None, "col")), ((60, 1), Layout())))
        with pdla.record() as ledger:
            pdla.matvec(A, x)
        return ledger.bytes_received

    assert pdla.run(4, program) == [8 * 24] * 4


def test_an_idle_rank_times_a_vector_dry():
    def program(comm):
        A = pdla.zeros((6, 4), ProcessGrid((1, 2)), BLOCKS)
        return pdla.matvec(A, pdla.zeros((4, 1), A.grid, BLOCKS)).local.shape, pdla.matvec(A, np.ones(4)).shape

    assert pdla.dry_run(3, program, rank=2)[0] == pdla.run(3, program)[2] == ((0, 0), (6,))


def test_dtypes_of_a_vector_promote():
    def program(comm):
        A = exact((5, 4), ProcessGrid((2, 2)), BLOCKS, np.float32)
        y = pdla.matvec(A, [1, 2j, 0, 1])
        assert y.dtype == np.result_type(np.float32, complex) and np.array_equal(y, A.gather() @ np.array([1, 2j, 0, 1]))

    pdla.run(4, program)


def test_unused_bytes_of_a_long_double_make_no_other_vector():
    def program(comm):
        x = np.ones(4, np.longdouble)
        if np.finfo(np.longdouble).nmant == 63:  # of whose sixteen bytes ten are used
            x.view(np.uint8)[15::16] = comm.rank
        return pdla.matvec(exact((5, 4), ProcessGrid((2, 2)), BLOCKS), x).shape

    assert pdla.run(4, program) == [(5,)] * 4


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_addends_of_16_bits_are_summed_in_32(kind):
    """300 * 300 is more than float16 has."""
    x, y = np.array([[300, 300, -300, -300]], kind), np.full(4, 300, kind)
    z = np.vstack([np.repeat([16, -16], 1000), np.full(2000, 16)]).astype(kind)

    def program(comm):
        grid = ProcessGrid((1, 2))
        A, B = (pdla.from_global(whole, grid, Layout(None, "col")) for whole in (x, z))
        v = pdla.from_global(y.reshape(4, 1), grid, Layout("col"))
        for made in (pdla.matvec(A, y), pdla.matvec(A, v).gather()):
            assert made.dtype == kind and not made.any()
        with np.errstate(over="ignore"):  # its diagonal
            C = pdla.syrk(B)
        assert C.dtype == kind and C.gather()[1, 0] == 0

    pdla.run(2, program)


def test_addends_of_integers_times_a_vector_of_floats():
    def program(comm):
        A = pdla.from_local(np.full((2, 2), 200, np.uint8), (2, 2), ProcessGrid((1, 2)), Layout("row", partial="col"))
        assert np.array_equal(pdla.matvec(A, np.ones(2)), A.gather() @ np.ones(2))

    pdla.run(2, program)
