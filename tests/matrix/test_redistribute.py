"""From any layout to any other, on any grids, and back: the result is what from_global would have made."""

from math import prod

import hypothesis.strategies as st
import numpy as np
import pytest
from helpers.layouts import grids, layouts, spread
from hypothesis import given

import pdla
from pdla import ProcessGrid
from pdla.matrix.redistribute import _nearest

VIEWS = {"A": lambda A: A, "T": lambda A: A.T, "H": lambda A: A.conj().T}
sizes = st.integers(0, 20)


@st.composite
def journeys(draw):
    """Ranks, a shape, a layout on a grid to begin with, a view of it, and a layout on a grid to end with."""
    ranks, shape, view = draw(st.integers(1, 8)), (draw(sizes), draw(sizes)), draw(st.sampled_from(list(VIEWS)))
    first = draw(grids(ranks))
    second = first if draw(st.booleans()) else draw(grids(ranks))
    seen = shape if view == "A" else shape[::-1]
    return ranks, shape, first, draw(layouts(shape, first, True)), view, second, draw(layouts(seen, second))


def numbers(shape):
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
    whole = numbers(shape)
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
    whole, root = numbers(shape), root % ranks

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
        A = spread(numbers(shape), ProcessGrid(*first[:2], comm, first[2]), layout.summed)
        with pdla.record() as ledger:
            B = A.redistribute(A.layout)
        assert ledger.bytes_received == 0 and not (A.local.size and np.shares_memory(A.local, B.local))
        same(A, B)

    pdla.run(ranks, program)


@pytest.mark.parametrize("holders", [[3], [0, 5], [1, 2, 6, 11]])
def test_of_several_holders_the_nearest_sends(holders):
    nearest = [min(holders, key=lambda holder: (abs(holder - rank), holder)) for rank in range(13)]
    assert _nearest(np.array(holders), np.arange(13)).tolist() == nearest
