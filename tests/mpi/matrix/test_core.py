"""Distributed matrices under MPI: made, moved, gathered and summed; errors on all ranks; no communicator left over."""

from contextlib import nullcontext

import numpy as np
import pytest

import pdla
from pdla import Cuts, Cyclic, Layout, ProcessGrid, balanced_shape
from pdla.errors import AgreementError, PdlaError, ShapeError

pytestmark = pytest.mark.mpi

SHAPE = (23, 17)


def layouts(grid):
    """Layouts of all kinds that fit a matrix of SHAPE on a grid with the axes row and col."""
    bounds = (0, *range(1, grid.sizes["row"]), SHAPE[0])
    return [
        Layout(), Layout("row", "col"), Layout("col"), Layout(cols=("col", "row")), Layout(("row", "col")),
        Layout(Cyclic("row", 3), Cyclic("col", 2)), Layout(Cuts("row", bounds), "col"), Layout("row", Cyclic("col", 1)),
    ]


def numbers(dtype="float64"):
    whole = np.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE) % 97
    return (whole + 1j * (whole % 5) if np.dtype(dtype).kind == "c" else whole).astype(dtype)


def square(comm):
    return ProcessGrid(balanced_shape(comm.size), comm=comm)


@pytest.mark.parametrize("dtype", ["float64", "complex64", "int8", "float16"])
def test_every_layout_to_every_other(comm, dtype):
    grid, whole = square(comm), numbers(dtype)
    for source in layouts(grid):
        A = pdla.from_global(whole, grid, source)
        for target in layouts(grid):
            B = A.redistribute(target)
            np.testing.assert_array_equal(B.local, pdla.from_global(whole, grid, target).local)


def test_between_grids_and_through_views(comm):
    grid, whole = square(comm), numbers("complex128")
    other = ProcessGrid(
        max(1, comm.size - 1), "line", comm, order=list(range(comm.size))[::-1][: max(1, comm.size - 1)]
    )
    for source in layouts(grid):
        A = pdla.from_global(whole, grid, source)
        B = A.H.redistribute(Layout(cols="line"), other)
        np.testing.assert_array_equal(B.local, pdla.from_global(whole.conj().T, other, Layout(cols="line")).local)
        np.testing.assert_array_equal(B.T.redistribute(source, grid).local, A.conj().local)


def test_partial_sums_are_added_up(comm):
    grid, whole = square(comm), numbers()
    A = pdla.from_global(whole, grid, Layout("row"))
    local = A.local * (0 if grid.coords["col"] else 1) + grid.coords["col"]
    A = pdla.from_local(local, SHAPE, grid, Layout("row", partial="col"))
    wanted = whole + sum(range(grid.sizes["col"]))
    for target in layouts(grid):
        np.testing.assert_array_equal(A.redistribute(target).gather(), wanted)


def test_gather_and_from_global_by_every_root(comm):
    grid, whole = square(comm), numbers()
    for root in range(comm.size):
        A = pdla.from_global(whole if comm.rank == root else None, grid, Layout("row", "col"), root)
        gathered = A.T.gather(root)
        assert (gathered is not None) == (comm.rank == root)
        np.testing.assert_array_equal(A.gather(), whole)
        if comm.rank == root:
            np.testing.assert_array_equal(gathered, whole.T)


@pytest.mark.parametrize("distribution", ["uniform", "integers", "normal"])
def test_random_is_the_same_as_on_one_rank(comm, distribution):
    def drawn(grid, layout):
        return pdla.random((300, 150), grid, layout, seed=3, distribution=distribution, high=8).gather()

    (alone,) = pdla.run(1, lambda one: drawn(ProcessGrid((1, 1)), Layout()))
    for layout in (Layout("row", "col"), Layout(cols=("row", "col")), Layout(Cyclic("row", 7))):
        np.testing.assert_array_equal(drawn(square(comm), layout), alone)


def test_norm_trace_and_copies(comm):
    grid = square(comm)
    for layout in (Layout(), Layout("row", "col"), Layout(cols=("col", "row")), Layout(Cyclic("col", 2))):
        A = 3 * pdla.eye(20, grid, layout)
        assert A.trace() == A.sum() == 60 and A.norm() == pytest.approx(np.sqrt(180), rel=1e-15)
        assert A.check_copies()
    A = pdla.ones((4, 4), grid, Layout())
    A.local[0, 0] += comm.rank == comm.size - 1
    assert A.check_copies() == (comm.size == 1)


def test_every_rank_recorded_what_a_dry_run_says(comm):
    def program(comm):
        grid = square(comm)
        A = pdla.ones(SHAPE, grid, Layout("row", "col"), dtype="float32")
        with pdla.record() as ledger:
            A.T.redistribute(Layout(Cyclic("col", 2), Cyclic("row", 1)))
            A.gather()
        return sorted((e.what, e.axis, e.bytes, e.messages) for e in ledger.events)

    assert program(comm) == pdla.dry_run(comm.size, program, rank=comm.rank)[0]


# ---------------------------------------------------------------------------------------------- errors


def test_an_error_on_one_rank_is_an_error_on_all(comm):
    def f(i, j):
        if comm.rank == comm.size - 1:
            raise RuntimeError("out of numbers")
        return i + j

    with pytest.raises(RuntimeError, match="out of numbers") as caught:
        pdla.from_function(f, SHAPE, square(comm), Layout("row", "col"))
    assert len(set(comm.share(str(caught.value)))) == 1


def test_a_wrong_block_on_one_rank_is_an_error_on_all(comm):
    shape = (comm.size, 4)
    block = np.ones((1, 5 if comm.rank == 0 else 4))
    with pytest.raises(ShapeError, match=r"local block has shape \(1, 5\)") as caught:
        pdla.from_local(block, shape, ProcessGrid(comm.size, comm=comm), Layout("row"))
    assert len(set(comm.share(str(caught.value)))) == 1


def test_ranks_that_differ(comm):
    grid = square(comm)
    if comm.size == 1:
        return
    with pytest.raises(AgreementError, match=r"rank 1: random\(seed=1") as caught:
        pdla.random(SHAPE, grid, Layout("row", "col"), seed=int(comm.rank == 1))
    assert len(set(comm.share(str(caught.value)))) == 1
    A = pdla.ones(SHAPE, grid, Layout())
    with pytest.raises(AgreementError, match=r"rank 1: redistribute .* to Layout\(cols='row'\)"):
        A.redistribute(Layout(cols="row") if comm.rank == 1 else Layout("row"))
    with pytest.raises(AgreementError, match=r"check_copies of .*; rank 1: norm of"):
        (A.norm if comm.rank == 1 else A.check_copies)()
    assert comm.same("still together")


# ---------------------------------------------------------------------------------------------- communicators


def test_what_a_rank_was_dealt_when_it_failed_is_not_taken_for_the_next(comm, monkeypatch):
    if hasattr(comm, "nccl") or getattr(comm, "aware", False):
        pytest.skip("who sends a device's memory waits until it is received, even if it is short")
    group = comm.split(list(range(comm.size)), "dealt")
    grid = ProcessGrid(comm.size, comm=group)

    def deal(number):
        return pdla.from_global(np.full((2 * comm.size, 3), number) if comm.rank == 0 else None, grid, Layout("row"), root=0)

    def full(*arguments):
        raise MemoryError("no room")

    with pytest.raises(MemoryError) if comm.rank == 1 else nullcontext(), monkeypatch.context() as patch:
        if comm.rank == 1:
            patch.setattr(group.xp, "empty", full)
        deal(1.0)
    with pytest.raises(PdlaError, match="rank 1: went on after an error in from_global") if comm.size > 1 else nullcontext():
        deal(2.0)


def test_the_default_grid_and_what_goes_on_it(comm):
    whole = np.arange(23.0 * 23).reshape(23, 23)
    A = pdla.from_global(whole)
    assert A.grid is ProcessGrid.default() is pdla.zeros((2, 3)).grid and A.grid.shape == balanced_shape(comm.size)
    for made, expected in (
        (A + A.T, whole + whole.T), (A * A.T, whole * whole.T),
        (A[::2, :] @ A[:, 1::3], whole[::2] @ whole[:, 1::3]),
    ):
        assert np.array_equal(made.gather(), expected)
    assert A[-1, 3] == whole[-1, 3] and np.array_equal(A[4], whole[4]) and np.array_equal(A.T[1:9, 4], whole[4, 1:9])
    with pytest.raises(IndexError, match="out of bounds"):
        A[23, 0]
    A -= A.T
    assert np.array_equal(A.gather(), whole - whole.T)
