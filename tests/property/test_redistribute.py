"""From any layout to any other, on any grids, and back: the result is what from_global would have made."""

from math import prod

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import pdla
from pdla import Balanced, Cuts, Cyclic, Layout, ProcessGrid
from pdla.matrix.redistribute import _nearest

NAMES = ("x", "y", "z")
VIEWS = {"A": lambda A: A, "T": lambda A: A.T, "H": lambda A: A.conj().T}
sizes = st.integers(0, 20)


@st.composite
def grids(draw, ranks):
    """Shape, axes and order of a grid on at most so many ranks."""
    shape = []
    for _ in range(draw(st.integers(1, 3))):
        shape.append(draw(st.integers(1, ranks // prod(shape))))
    order = draw(
        st.one_of(st.sampled_from([None, "C", "F"]), st.permutations(range(ranks)).map(lambda r: r[: prod(shape)]))
    )
    return tuple(shape), draw(st.permutations(NAMES))[: len(shape)], order


@st.composite
def cuts(draw, n, axes, parts):
    """The cuts of a dimension of length n along the axes, outermost first."""
    made = []
    for i, axis in enumerate(axes):
        kind = draw(
            st.sampled_from(["axis", "balanced", "cyclic", "cuts"] if i == 0 else ["axis", "balanced", "cyclic"])
        )
        if kind == "axis":
            made.append(axis)
        elif kind == "balanced":
            made.append(Balanced(axis, draw(st.integers(1, 6))))
        elif kind == "cyclic":
            block = draw(st.integers(1, 6))
            made.append(Cyclic(axis, block, draw(st.integers(0, parts[axis] - 1)), draw(st.integers(0, block))))
        else:
            inner = draw(st.lists(st.integers(0, n), min_size=parts[axis] - 1, max_size=parts[axis] - 1))
            made.append(Cuts(axis, (0, *sorted(inner), n)))
    return tuple(made)


@st.composite
def layouts(draw, shape, grid, partial=False):
    """A layout that fits a matrix of this shape on the grid."""
    parts = dict(zip(grid[1], grid[0], strict=True))
    uses = {
        axis: draw(st.sampled_from(["rows", "cols", "copies", "partial"][: 4 if partial else 3])) for axis in grid[1]
    }
    rows, cols, sums = ([axis for axis in grid[1] if uses[axis] == use] for use in ("rows", "cols", "partial"))
    return Layout(
        draw(cuts(shape[0], draw(st.permutations(rows)), parts)),
        draw(cuts(shape[1], draw(st.permutations(cols)), parts)),
        sums,
    )


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


def addend(whole, layout, grid):
    """What this rank adds to the matrix: other numbers at other coordinates, whose sum is the whole."""
    position, count = 0, 1
    for axis in layout.partial:
        position, count = position * grid.sizes[axis] + grid.coords[axis], count * grid.sizes[axis]
    return whole - sum(range(1, count)) if position == 0 else np.full_like(whole, position)


def spread(whole, grid, layout):
    """The matrix in a layout, each rank taking its part by hand; on some ranks it lies by columns."""
    if not grid.active:
        return pdla.from_local(None, whole.shape, grid, layout)
    rows, cols = (held.indices() for held in layout.indices(whole.shape, grid.sizes, grid.coords))
    block = np.array(addend(whole, layout, grid)[np.ix_(rows, cols)], order="CF"[grid.comm.rank % 3 == 1])
    return pdla.from_local(block, whole.shape, grid, layout)


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
