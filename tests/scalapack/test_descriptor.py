"""Descriptors to layouts and back, and what neither can say."""

import numpy as np
import pytest
from helpers.descriptors import dealt
from helpers.matmuls import numbers

import pdla
from pdla import Cuts, Cyclic, Layout, ProcessGrid
from pdla.array.meta import Meta
from pdla.errors import AgreementError, GridError, LayoutError, ShapeError
from pdla.scalapack import Descriptor, from_descriptor, to_descriptor


def test_short_blocks_of_a_long_dimension_are_not_listed():
    """2^38 of them would not fit any memory."""
    words = [1, 0, 2**40, 3, 2, 2, 1, 0, 2**39]

    def program(comm):
        A = from_descriptor(words, Meta((2**39, 2)), ProcessGrid((2, 2), comm=comm))
        return A.shape, A.local.shape

    assert pdla.dry_run(4, program, rank=3)[0] == ((2**40, 3), (2**39, 1))


@pytest.mark.parametrize("words", [(1, 5, 11, 9, 3, 2, 1, 0, 9), (2, 5, 11, 9, 2, 1, 3, 2, 1, 2, 12)], ids=str)
@pytest.mark.parametrize("flat", [True, False])
def test_a_code_s_own_memory_by_its_descriptor(words, flat):
    whole = numbers((11, 9), "float64", 0)

    def program(comm):
        grid = ProcessGrid((2, 3))
        desc = Descriptor.read(words)
        local, _, _ = dealt(whole, desc, tuple(grid.coords.values()), (2, 3))
        A = from_descriptor(words, local.reshape(-1, order="F") if flat else local, grid)
        assert np.array_equal(A.gather(), whole)
        assert np.shares_memory(A.base, local) or flat
        assert to_descriptor(A, 5).tolist() == [*words[:-1], desc.lld] and A.transposed
        C = from_descriptor(words, local.copy(order="F"), grid)
        pdla.gemm(1, A, pdla.eye(9, grid, Layout()), 1, C)
        assert np.array_equal(C.gather(), 2 * whole)
        assert np.array_equal(to_descriptor(A[2:, 4:], 5)[2:4], (9, 5))

    pdla.run(6, program)


@pytest.mark.parametrize("words", [[1, 0, 11, 9, 3, 3, 0, 0, 11], [2, 0, 11, 9, 2, 1, 3, 3, 0, 0, 12]], ids=str)
def test_blocks_are_told_where_one_process_has_them_all(words):
    """LU wants square ones, on one process, too."""

    def program(comm):
        return to_descriptor(from_descriptor(words, np.zeros((words[-1], 9), order="F"), ProcessGrid((1, 1)))).tolist()

    assert pdla.run(1, program) == [words]


def test_a_communicator_stands_for_its_near_square_grid():
    def program(comm):
        local = np.full((3, 2), comm.rank, order="F")
        return from_descriptor((1, 0, 6, 6, 3, 2, 0, 0, 3), local, comm).gather()

    assert np.array_equal(pdla.run(6, program)[0], np.repeat(np.repeat([[0, 1, 2], [3, 4, 5]], 3, 0), 2, 1))


@pytest.mark.parametrize(
    ("layout", "shape", "words"),
    [
        (Layout("row", "col"), (6, 9), [1, 0, 6, 9, 3, 3, 0, 0, 3]),
        (Layout("row", "col"), (5, 8), [1, 0, 5, 8, 3, 3, 0, 0, 3]),
        (Layout(Cyclic("row", 2, 1, 1), Cyclic("col", 4)), (7, 7), [2, 0, 7, 7, 1, 4, 2, 4, 1, 0, 4]),
        (Layout(Cuts("row", (0, 4, 7)), Cuts("col", (0, 3, 6, 7))), (7, 7), [1, 0, 7, 7, 4, 3, 0, 0, 4]),
    ],
)
def test_layouts_that_a_descriptor_can_say(layout, shape, words):
    def program(comm):
        grid = ProcessGrid((2, 3))
        local = np.zeros(layout.local_shape(shape, grid.sizes, grid.coords), order="F")
        return to_descriptor(pdla.from_local(local, shape, grid, layout)).tolist()

    assert pdla.run(6, program)[0] == words


@pytest.mark.parametrize("step", [-1, 0])
def test_columns_that_do_not_follow_each_other(step):
    def program(comm):
        x = np.lib.stride_tricks.as_strided(np.zeros((9, 3), order="F")[:, 2:], (3, 3), (8, step * 24))
        with pytest.raises(LayoutError, match=r"must be stored by columns, not by strides .*asfortranarray"):
            to_descriptor(pdla.from_local(x, (3, 3), ProcessGrid((1, 1)), Layout(Cyclic("row", 2), Cyclic("col", 2))))

    pdla.run(1, program)


@pytest.mark.parametrize(
    ("layout", "order", "message"),
    [
        (Layout("row"), "F", r"cut by .* in equal blocks along 'col'; redistribute to Cyclic\('col', block\) first"),
        (Layout("row", Cuts("col", (0, 1, 5, 7))), "F", "are not distributed in equal blocks along 'col'"),
        (Layout("col", "row"), "F", "are not distributed in equal blocks along 'row'"),
        (Layout(Cyclic("col", 2), Cyclic("row", 2)), "F", "are not distributed in equal blocks along 'row'"),
        (Layout(Cyclic("row", 2), Cyclic("col", 2)), "C", "must be stored by columns"),
    ],
)
def test_layouts_that_it_cannot(layout, order, message):
    def program(comm):
        grid = ProcessGrid((2, 3))
        local = np.zeros(layout.local_shape((7, 7), grid.sizes, grid.coords), order=order)
        A = pdla.from_local(local, (7, 7), grid, layout)
        if order == "C" and min(local.shape) < 2:
            return
        with pytest.raises(LayoutError, match=message):
            to_descriptor(A)
        if order == "C":  # what the message says to do
            assert to_descriptor(pdla.from_local(np.asfortranarray(A.local), A.shape, A.grid, A.layout))[8] == len(local)

    pdla.run(6, program)


def test_a_matrix_with_more_rows_than_a_descriptor_s_integers_go():
    def program(comm):
        A = pdla.from_local(np.empty((3 * 10**9, 0)), (3 * 10**9, 0), ProcessGrid((1, 1)), Layout("row", "col"))
        with pytest.raises(LayoutError, match=r"3000000000, .* to 2147483647"):
            to_descriptor(A)

    pdla.run(1, program)


@pytest.mark.parametrize(("context", "message"), [
    (2.5, "context=2.5: that of BLACS, an integer"), ("0", "context="), (-(2**31) - 1, "-2147483649.* from -2147483648 to"),
])
def test_contexts_that_are_none(context, message):
    """Of 2.5 the descriptor would say 2."""

    def program(comm):
        A = from_descriptor([1, 0, 2, 2, 2, 2, 0, 0, 2], np.zeros((2, 2), order="F"), ProcessGrid((1, 1)))
        assert to_descriptor(A, np.int32(3))[1] == to_descriptor(A.conj(), 3)[1] == 3
        with pytest.raises(LayoutError, match=message):
            to_descriptor(A, context)
        with pytest.raises(ShapeError, match="A is an ndarray, not a DistMatrix"):
            to_descriptor(A.stored, 3)
        with pytest.raises(LayoutError, match="neither partial sums nor conjugates"):
            to_descriptor(A.astype(complex).T.conj())

    pdla.run(1, program)


@pytest.mark.parametrize(
    ("words", "size", "error", "message"),
    [
        ((1, 0, 6, 6, 3, 2, 0, 0), 6, LayoutError, "nine integers, the first 1, or eleven"),
        ((3, 0, 6, 6, 3, 2, 0, 0, 3), 6, LayoutError, "nine integers"),
        ((1, 0, 6, 6, 0, 2, 0, 0, 3), 6, LayoutError, "blocks and lld at least 1"),
        ((1, 0, 2**63, 6, 3, 2, 0, 0, 3), 6, LayoutError, "integers beyond"),
        ((1, 0, 6, 6, 3, 2, 2, 0, 3), 6, LayoutError, "source must be below 2"),
        ((1, 0, 6, 6, 3, 2, 0, 0, 2), 6, ShapeError, "6 elements, lld=2: this rank's 3 x 2 need lld x 2, lld >= 3"),
        ((1, 0, 6, 6, 3, 2, 0, 0, 3), 5, ShapeError, "5 elements, lld=3"),
    ],
)
def test_descriptors_that_do_not_fit(words, size, error, message):
    def program(comm):
        with pytest.raises(error, match=message):
            from_descriptor(words, np.zeros(size), ProcessGrid((2, 3)))

    pdla.run(6, program)


def test_contexts_are_a_rank_s_own_affair():
    """Handles differ from process to process, and outside of the grid they are -1."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        context = comm.rank if grid.active else -1
        return from_descriptor((1, context, 4, 4, 2, 2, 0, 0, 2 + comm.rank), np.ones((2, 2), order="F"), grid).gather()

    assert np.array_equal(pdla.run(5, program)[4], np.ones((4, 4)))


@pytest.mark.parametrize(("wrong", "error", "message"), [
    (None, LayoutError, "^rank 1: desc=None: a dense matrix has nine integers"),
    ("words", LayoutError, "^rank 1: desc='words': a dense matrix has nine integers"),
    ((1, 0, 4, 4, 2, float("inf"), 0, 0, 2), LayoutError, "^rank 1: .*a dense matrix has nine integers"),
    ((1, 0, 4, 4, 2.5, 2, 0, 0, 2), LayoutError, "^rank 1: .*a dense matrix has nine integers"),
    ((1, 0, 4, 5, 2, 2, 0, 0, 2), AgreementError, r"rank 1: from_descriptor\(\[1, 4, 5, 2, 2, 0, 0\] without context and lld"),
])
def test_a_descriptor_that_is_wrong_on_one_rank(wrong, error, message):
    def program(comm):
        with pytest.raises(error, match=message):
            from_descriptor(wrong if comm.rank == 1 else (1, 0, 4, 4, 2, 2, 0, 0, 2), np.zeros(4), ProcessGrid((2, 2)))

    pdla.run(4, program)


def test_a_grid_of_three_axes_is_none_of_a_descriptor():
    def program(comm):
        with pytest.raises(GridError, match="has two axes"):
            from_descriptor((1, 0, 6, 6, 3, 2, 0, 0, 3), np.zeros(6), ProcessGrid((1, 2, 1)))

    pdla.run(2, program)


@pytest.mark.parametrize(("words", "instead", "shape"), [
    ((501, 7, 9, 3, 1, 4, 0), "[1, 7, rows, 9, rows, 3, 0, 1, 4], on ProcessGrid((1, P))", (1, 3)),
    ((502, 7, 9, 2, 1, 6, 0), "[1, 7, 9, cols, 2, cols, 1, 0, 6], on ProcessGrid((P, 1))", (3, 1)),
])
def test_a_one_dimensional_descriptor_is_answered_by_its_nine_integers(words, instead, shape):
    """They are tried: the missing size is filled in."""
    with pytest.raises(LayoutError) as told:
        Descriptor.read(words)
    assert str(told.value).endswith(f"give {instead}")
    nine = eval(instead.split(", on")[0], {"rows": 4, "cols": 4})
    whole, desc = numbers((4, 9) if words[0] == 501 else (9, 4), "float64", 0), Descriptor.read(nine)

    def program(comm):
        grid = ProcessGrid(shape)
        local, _, _ = dealt(whole, desc, tuple(grid.coords.values()), shape)
        return from_descriptor(nine, local, grid).gather()

    assert np.array_equal(pdla.run(3, program)[0], whole)


def test_a_one_dimensional_descriptor_cut_short():
    with pytest.raises(LayoutError, match=r"give \[1, 0, rows, n, rows, nb, 0, src, lld\]"):
        Descriptor.read([501])
