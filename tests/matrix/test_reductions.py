"""Norms, traces and sums over all ranks: copies once, addends together, in memory of few rows."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from helpers.matrices import DTYPES, LAYOUTS, numbers, on_a_grid

import pdla
from pdla import Cyclic, Layout, ProcessGrid
from pdla.errors import ShapeError
from pdla.matrix import reductions

LAYOUT = Layout("row", "col")


@pytest.mark.parametrize("dtype", [*DTYPES, "int8"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_norm_trace_and_sum_count_copies_once(layout, dtype):
    whole = numbers((9, 9), dtype)
    whole[np.diag_indices(9)] += 50

    def program(grid):
        A = pdla.from_global(whole, grid, layout)
        for view, x in [(A, whole), (A.T, whole.T), (A.H, whole.conj().T)]:
            assert view.norm() == pytest.approx(np.linalg.norm(whole.astype("complex128")), rel=1e-15)
            assert view.trace() == x.trace() and view.trace().dtype == x.trace().dtype
            assert view.sum() == x.sum() and view.sum().dtype == x.sum().dtype
        return A.norm(), A.trace(), A.sum()

    assert len(set(on_a_grid(program))) == 1


def test_a_norm_needs_no_second_block():
    def program(comm):
        A = pdla.ones((4096, 2048), ProcessGrid((1, 1)), Layout(), dtype="float32")
        tracemalloc.start()
        assert A.norm() == A.T.norm() == (4096 * 2048) ** 0.5
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < A.local.nbytes

    pdla.run(1, program)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_norm_in_double_precision_copies_nothing(dtype):
    """A stopping criterion is asked for in every iteration: copies of the block would take longer than its sum."""
    def program(comm):
        A = pdla.ones((512, 512), ProcessGrid((1, 1)), Layout(), dtype=dtype)
        tracemalloc.start()
        assert A.norm() == A.T.norm() == 512
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < A.local.nbytes / 16

    pdla.run(1, program)


@pytest.mark.parametrize("shape", [(2, 2**22), (2**22, 2)])
def test_long_rows_are_summed_and_compared_in_parts_too(shape):
    def program(comm):
        A = pdla.ones(shape, ProcessGrid((1, 1)), Layout(), dtype="float32")
        tracemalloc.start()
        assert A.norm() == 2**11.5 and A.sum() == 2**23 and A.check_copies()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < A.local.nbytes

    pdla.run(1, program)


@pytest.mark.parametrize("place", [(0, 0), (1, 6), (2, 0), (4, 3)])
def test_parts_that_are_no_whole_rows_are_summed_and_compared(place, monkeypatch):
    monkeypatch.setattr(reductions, "STRIP", 3)

    def program(comm):
        A = pdla.from_global(numbers((5, 7), "complex64"), ProcessGrid((2, 1)), Layout(cols=None))
        assert A.norm() == A.H.norm() == pytest.approx(np.linalg.norm(A.local), rel=1e-7) and A.check_copies()
        A.local[place] += comm.rank * 1j
        assert not A.check_copies() and not A.H.check_copies()

    pdla.run(2, program)


@pytest.mark.parametrize("dtype", ["float64", "complex128", "longdouble"])
@pytest.mark.parametrize("size", [2.0**1000, -(2.0**1000), 2.0**-600, 5e-324, np.inf, np.nan])
def test_a_norm_is_right_where_its_squares_are_too_large_or_too_small(size, dtype):
    whole = np.zeros((8, 8), dtype)
    whole[::2, 1::2] = size

    def program(grid):
        return pdla.from_global(whole, grid, LAYOUT).norm()

    with np.errstate(all="raise"):
        np.testing.assert_array_equal(on_a_grid(program), [4 * abs(size)] * 5)


def test_a_norm_that_is_no_float():
    assert on_a_grid(lambda grid: pdla.from_global(np.full((8, 8), 1e308), grid, LAYOUT).norm()) == [np.inf] * 5


@pytest.mark.parametrize("at", [(0, 7), (7, 0)])
def test_a_norm_of_what_is_no_number_and_of_what_is_infinite_is_no_number(at):
    """Whichever rank has which: the largest is infinite."""
    whole = np.zeros((8, 8))
    whole[at, 1] = np.inf, np.nan
    assert np.isnan(on_a_grid(lambda grid: pdla.from_global(whole, grid, LAYOUT).norm())).all()


def test_norm_trace_and_sum_of_nothing():
    def program(grid):
        A = pdla.zeros((0, 0), grid, Layout("row", "col"))
        return A.norm(), A.trace(), A.sum()

    assert on_a_grid(program) == [(0, 0, 0)] * 5


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int8", "float16", "bfloat16"])
def test_a_trace_and_a_sum_are_of_numpy_s_dtype_and_wrap_around_as_there(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    whole = np.full((6, 6), 120 if dtype.itemsize < 8 else np.iinfo(dtype).max - 1, dtype)

    def program(grid):
        A = pdla.from_global(whole, grid, Layout("row", "col"))
        assert A.trace() == whole.trace() and type(A.trace()) is type(whole.trace())
        total = whole.astype("float32").sum().astype(dtype) if dtype.itemsize == 2 else whole.sum()  # rounded once
        assert A.sum() == total and type(A.sum()) is type(total)

    on_a_grid(program)


@pytest.mark.parametrize("dtype", ["int8", "complex64", "float16"])
def test_a_scattered_diagonal_is_summed_in_parts(dtype, monkeypatch):
    """Of cyclic rows and columns: the block that its rows and columns have in common may be most of what the rank holds."""
    whole = numbers((90, 90), dtype)

    def program(grid):
        A = pdla.from_global(whole, grid, Layout(Cyclic("row", 3), Cyclic("col", 5)))
        return A.trace(), A.H.trace()

    assert set(on_a_grid(program)) == {(whole.trace(), whole.conj().trace())}
    monkeypatch.setattr(reductions, "BATCH", 4)
    assert set(on_a_grid(program)) == {(whole.trace(), whole.conj().trace())}


def test_a_scattered_diagonal_needs_no_second_block():
    def program(comm):
        A = pdla.ones((4096, 4096), ProcessGrid((2, 2)), Layout(Cyclic("row", 3), Cyclic("col", 5)), dtype="float32")
        comm.barrier()  # other threads' blocks are not to be counted
        if comm.rank == 0:
            tracemalloc.start()
        comm.barrier()
        assert A.trace() == 4096
        comm.barrier()
        if comm.rank == 0:
            peak = tracemalloc.get_traced_memory()[1]  # of four threads
            tracemalloc.stop()
            assert peak < A.local.nbytes

    pdla.run(4, program)


@pytest.mark.parametrize("P", [1, 4])
def test_a_trace_of_16_bits_is_rounded_once(P):
    def program(comm):
        return pdla.eye(4096, ProcessGrid((P, 1)), Layout("row"), dtype=ml_dtypes.bfloat16).trace()

    assert set(pdla.run(P, program)) == {ml_dtypes.bfloat16(4096)}


def test_an_inner_product_is_the_trace_of_a_product():
    X, Y = numbers((9, 4), "complex128"), numbers((9, 4), "complex128")[::-1]

    def program(grid):
        A, B = (pdla.from_global(x, grid, Layout("row")) for x in (X, Y))
        return (A.conj() * B).sum(), (A.H @ B).trace()

    assert set(on_a_grid(program)) == {(np.vdot(X, Y), np.vdot(X, Y))}


def test_trace_wants_a_square_on_every_rank():
    def program(grid):
        with pytest.raises(ShapeError, match=r"shape \(4, 6\): it must be square"):
            pdla.ones((4, 6), grid, Layout("row")).trace()

    on_a_grid(program)


def test_check_copies():
    def program(grid):
        A = pdla.random((6, 8), grid, Layout("row"))
        A.local[:1, :1] = np.nan
        assert A.check_copies() and A.T.check_copies()
        if grid.coords == {"row": 1, "col": 1}:
            A.local[0, 3] += 1e-15
        assert not A.check_copies()
        B = pdla.random((6, 8), grid, Layout("row", "col"))
        assert B.check_copies()
        for dtype in (np.longdouble, np.clongdouble):  # whose unused bytes hold anything
            assert (pdla.random((6, 8), grid, Layout("row"), dtype=dtype) / 3).check_copies()
            x = np.ones((6, 8), np.dtype(dtype).newbyteorder())
            x.view(np.uint8).reshape(-1, 16)[:, : 6 * (np.finfo(dtype).nmant == 63)] = grid.comm.rank
            C = pdla.from_local(x, (6, 8), grid, Layout())
            assert C.check_copies()
            C.local[1:2, 1:2] += (grid.comm.rank == 1) * np.finfo(np.longdouble).eps
            assert not C.check_copies()

    on_a_grid(program)
