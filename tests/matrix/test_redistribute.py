"""From any layout to any other, on any grids, and back: the result is what from_global would have made."""

from math import prod

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from helpers.layouts import grids, layouts, sizes, spread
from helpers.matrices import numbers, on_a_grid
from hypothesis import given

import pdla
from pdla import Cuts, Cyclic, Layout, ProcessGrid
from pdla.errors import LayoutError
from pdla.matrix import redistribute
from pdla.matrix.redistribute import _find_nearest

VIEWS = {"A": lambda A: A, "T": lambda A: A.T, "H": lambda A: A.conj().T}


@st.composite
def journeys(draw):
    """Ranks, a shape, a layout on a grid to begin with, a view of it, and a layout on a grid to end with."""
    ranks, shape, view = draw(st.integers(1, 8)), (draw(sizes), draw(sizes)), draw(st.sampled_from(list(VIEWS)))
    first = draw(grids(ranks))
    second = first if draw(st.booleans()) else draw(grids(ranks))
    seen = shape if view == "A" else shape[::-1]
    return ranks, shape, first, draw(layouts(shape, first, True)), view, second, draw(layouts(seen, second))


def told_apart(shape):
    """Complex numbers that tell places apart and whose sums are exact."""
    places = np.arange(prod(shape)).reshape(shape)
    return (places + 1j * (places % 7)).astype("complex64")


def same(A, B):
    """Whether two matrices are the same in all that a user can see, on this rank."""
    np.testing.assert_array_equal(A.local, B.local)
    assert (A.shape, A.dtype, A.layout, A.grid) == (B.shape, B.dtype, B.layout, B.grid)


@given(journeys())
def test_there_and_back(journey):
    ranks, shape, first, layout, view, second, wanted = journey
    whole = told_apart(shape)
    seen = VIEWS[view](whole)

    def program(comm):
        here, there = (ProcessGrid(sizes, axes, comm, order) for sizes, axes, order in (first, second))
        A = spread(whole, here, layout)
        before = A.local.copy()
        comm.barrier()
        copied = comm.world.bytes_copied[comm.rank]
        with pdla.record() as ledger:
            B = VIEWS[view](A).redistribute(wanted, there)
        assert ledger.bytes_received == comm.world.bytes_copied[comm.rank] - copied
        np.testing.assert_array_equal(A.local, before)
        same(B, pdla.from_global(seen, there, wanted))
        assert B.check_copies()
        home = layout.summed if view == "A" else layout.T.summed
        same(B.redistribute(home, here), pdla.from_global(seen, here, home))
        np.testing.assert_array_equal(B.gather(), seen)

    pdla.run(ranks, program)


@given(journeys(), st.integers(0, 7))
def test_from_one_rank_and_to_one_rank(journey, root):
    ranks, shape, first, layout, view, _, _ = journey
    whole, root = told_apart(shape), root % ranks

    def program(comm):
        grid = ProcessGrid(*first[:2], comm, first[2])
        A = pdla.from_global(whole if comm.rank == root else None, grid, layout.summed, root)
        same(A, pdla.from_global(whole, grid, layout.summed))
        gathered = VIEWS[view](spread(whole, grid, layout)).gather(root)
        if comm.rank == root:
            np.testing.assert_array_equal(gathered, VIEWS[view](whole))
        else:
            assert gathered is None

    pdla.run(ranks, program)


@given(journeys())
def test_nothing_travels_that_is_there_already(journey):
    ranks, shape, first, layout, _, _, _ = journey

    def program(comm):
        A = spread(told_apart(shape), ProcessGrid(*first[:2], comm, first[2]), layout.summed)
        with pdla.record() as ledger:
            B = A.redistribute(A.layout)
        assert ledger.bytes_received == 0 and not (A.local.size and np.shares_memory(A.local, B.local))
        same(A, B)

    pdla.run(ranks, program)


@pytest.mark.parametrize("holders", [[3], [0, 5], [1, 2, 6, 11]])
def test_of_several_holders_the_nearest_sends(holders):
    nearest = [min(holders, key=lambda holder: (abs(holder - rank), holder)) for rank in range(13)]
    assert _find_nearest(np.array(holders), np.arange(13)).tolist() == nearest


@pytest.mark.parametrize(("shape", "words"), [((3, 60), 300), ((60, 3), 184), ((60, 60), 3480)])
def test_partial_sums_are_added_up_in_the_order_that_brings_fewer_words(shape, words):
    """Of 3 rows cut by 8 ranks 3 get one, and receive it seven times: 60 columns, or 30 if the columns have been cut before."""

    def program(comm):
        A = pdla.from_local(np.full(shape, comm.rank), shape, ProcessGrid((8, 2), comm=comm), Layout(partial=("row", "col")))
        with pdla.record() as ledger:
            B = A.redistribute(Layout("row", "col"))
        assert (B.gather() == sum(range(16))).all()
        return ledger.bytes_received

    assert max(pdla.run(16, program)) == 8 * words


@pytest.mark.parametrize(
    ("shape", "wanted", "more"),
    [
        ((1, 64), Layout(), 48),
        ((64, 1), Layout(), 48),
        ((64, 4), Layout(cols="row"), 0),
        ((4, 64), Layout("row"), 0),
        ((64, 4), Layout(Cyclic("row", 2)), 0),
    ],
)
def test_addends_are_summed_along_the_dimension_that_is_cut_afterwards_or_else_the_longer_one(shape, wanted, more):
    """So a rank receives three addends of a fourth of the matrix, and then what else it is to hold, if that is more."""

    def program(comm):
        A = pdla.ones(shape, ProcessGrid((4,)), Layout(partial="row"))
        with pdla.record() as ledger:
            assert (A.redistribute(wanted).local == 1).all()
        assert ledger.bytes_received == A.dtype.itemsize * (3 * A.shape[0] * A.shape[1] // 4 + more)

    pdla.run(4, program)


@pytest.mark.parametrize("ranks", [7, 33])
@pytest.mark.parametrize("block", [(5, 7), (66, 3), (20, 1980)], ids=str)
def test_the_words_of_addends_by_which_their_order_is_chosen_are_those_received(ranks, block):
    """Of small blocks over many ranks in steps, else at once; several rows a rank, and ranks without any."""

    def program(comm):
        A, received = pdla.ones(block, ProcessGrid(ranks, comm=comm), Layout(partial="row")), []
        for layout in Layout("row"), Layout(cols="row"):
            with pdla.record() as ledger:
                A.redistribute(layout)
            received.append(ledger.bytes_received // A.dtype.itemsize)
        return received

    most = np.max(pdla.run(ranks, program), axis=0)
    assert [*most] == [redistribute.count_addends(block, [(by_rows, ranks)]) for by_rows in (True, False)]


def test_addends_go_to_cuts_by_boundaries_along_the_axis_over_which_they_are_summed():
    """They are summed in blocks first: such cuts are outermost, and the rows are cut already."""

    def program(comm):
        A = pdla.ones((6, 4), ProcessGrid((2, 2)), Layout("row", partial="col"))
        assert (A.redistribute(Layout(Cuts("col", (0, 1, 6)), "row")).gather() == 1).all()

    pdla.run(4, program)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_partial_sums_of_16_bits_are_rounded_once(dtype):
    """The addends of one or two ranks are less than half of the way to the next number, all together more."""
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    first = 2.0 ** (1 - np.log2(float(ml_dtypes.finfo(dtype).eps)))  # the next number is two more

    def program(comm):
        grid = ProcessGrid((2, 2))
        A = pdla.from_local(np.full((4, 6), 0.4 if comm.rank else first, dtype), (4, 6), grid, Layout(partial=("row", "col")))
        back = [A.redistribute(layout) for layout in (Layout("row", "col"), Layout(("col", "row")), Layout())]
        assert {X.dtype for X in back} == {dtype}
        return [X.gather() for X in (A, A.T, *back)]

    for whole in np.concatenate([x.ravel() for one in pdla.run(4, program) for x in one]):
        assert whole == first + 2


def test_gather_to_one_rank():
    whole = numbers()

    def program(comm):
        A = pdla.from_global(whole, ProcessGrid((2, 2)), Layout("row", "col"))
        gathered = [A.T.gather(root=root) for root in range(5)]
        assert [x is not None for x in gathered] == [r == comm.rank for r in range(5)]
        np.testing.assert_array_equal(gathered[comm.rank], whole.T)
        assert not np.shares_memory(A.gather(), A.base)
        with pytest.raises(pdla.errors.GridError, match="root=5: the communicator has ranks 0 to 4"):
            A.gather(root=5)
        with pytest.raises(pdla.errors.ArgumentError, match="rank 3: root='0': the communicator has ranks 0 to 4"):
            A.gather(root="0" if comm.rank == 3 else 0)

    pdla.run(5, program)


def test_partial_sums_are_redistributed_to_a_layout_that_says_the_same():
    def program(grid):
        A = pdla.ones((4, 6), grid, Layout("row", partial="col"))
        for rows in (Cyclic("row", 2), Cuts("row", (0, 2, 4))):
            B = A.redistribute(Layout(rows, partial="col"))
            assert B.layout == Layout(rows, partial="col") and (B.gather() == 1).all()
            assert not (B.local.size and np.shares_memory(A.local, B.local))
        for layout in (Layout(Cyclic("row", 1), partial="col"), Layout(partial=("row", "col")), Layout("col", partial="row")):
            with pytest.raises(LayoutError, match="cannot make partial sums"):
                A.redistribute(layout)
        with pytest.raises(LayoutError, match="cannot make partial sums"):
            A.redistribute(A.layout, ProcessGrid((4, 1), comm=grid.comm))

    on_a_grid(program)
