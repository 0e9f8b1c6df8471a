"""DistMatrix: operators, parts and views, and what it refuses; against NumPy on the whole matrix."""

import copy
import operator
import pickle
import tracemalloc
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from helpers.layouts import grids, layouts, spread
from helpers.matrices import DTYPES, LAYOUTS, numbers, on_a_grid
from hypothesis import given, settings
from hypothesis import strategies as st

import pdla
from pdla import Cyclic, DistMatrix, Layout, ProcessGrid, nn
from pdla.errors import AgreementError, LayoutError, ShapeError

LAYOUT = Layout("row", "col")
# ---------------------------------------------------------------------------------------------- parts


PARTS = [np.s_[:, :], np.s_[2:6, 1:4], np.s_[-3:, :-1], np.s_[3:3, 2:], np.s_[6:2, :]]


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if len(layout.cols) < 2], ids=repr)
def test_a_part_is_a_view(layout, part):
    whole = numbers(dtype="complex128")

    def program(grid):
        A = pdla.from_global(whole, grid, layout)
        turned = A.H[part[1], part[0]].gather()
        mine = A[part]
        gathered = mine.gather()
        mine.local[...] = 7
        return gathered, turned, A.gather()

    written = whole.copy()
    written[part] = 7
    for gathered, turned, after in on_a_grid(program):
        assert np.array_equal(gathered, whole[part])
        assert np.array_equal(turned, whole.conj().T[part[1], part[0]])
        assert np.array_equal(after, written)


@pytest.mark.parametrize("block", [1, 2, 3])
def test_parts_of_one_matrix_multiply_into_another_part_of_it(block):
    """The step of an LU factorisation: the rest of the matrix less a column panel times a row panel."""
    whole = numbers((11, 11))

    def program(grid):
        A = pdla.from_global(whole, grid, Layout(Cyclic("row", block), Cyclic("col", block)))
        pdla.gemm(-1, A[3:, :3], A[:3, 3:], 1, A[3:, 3:])
        return A.gather()

    updated = whole.copy()
    updated[3:, 3:] -= whole[3:, :3] @ whole[:3, 3:]
    assert all(np.array_equal(after, updated) for after in on_a_grid(program))


def test_parts_that_overlap_are_no_operand_and_result():
    def program(grid):
        A = pdla.zeros((8, 8), grid, Layout(Cyclic("row", 2), Cyclic("col", 2)))
        with pytest.raises(ShapeError, match="shares memory"):
            pdla.gemm(1, A[:4, :4], A[4:, :4], 0, A[3:7, :4])

    on_a_grid(program)


STEPS = [np.s_[::2], np.s_[1::3, ::2], np.s_[:, 1:4:2], np.s_[2:6], np.s_[..., 1:3], np.s_[::6, 5:], np.s_[3:3:2, :]]


STEPPED = [Layout(), Layout("row", "col"), Layout("col"), Layout(Cyclic("col", 6), Cyclic("row", 6))]


@pytest.mark.parametrize("part", STEPS, ids=str)
@pytest.mark.parametrize("layout", STEPPED, ids=repr)
def test_a_part_in_steps_is_a_view(layout, part):
    whole = numbers((13, 11), dtype="complex128")
    other = numbers(whole[part].shape, seed=1)

    def program(grid):
        A, B = pdla.from_global(whole, grid, layout), pdla.from_global(other, grid, Layout("row"))
        mine = A[part]
        product, gathered, square = (mine.T @ B).gather(), mine.gather(), (mine @ mine.H).gather()
        mine[...] = B
        A.conj()[part] *= 2j
        return product, square, gathered, A.gather()

    written = whole.copy()
    written[part] = (other * 2j).conj()
    for product, square, gathered, after in on_a_grid(program):
        assert np.array_equal(gathered, whole[part])
        assert np.array_equal(product, whole[part].T @ other)
        assert np.array_equal(square, whole[part] @ whole[part].conj().T)
        assert np.array_equal(after, written)


@pytest.mark.parametrize("key", [np.s_[:, None], np.s_[::-1], (1, 2, 3), [1, 2], True, "a", np.s_[..., ...]], ids=str)
def test_what_is_no_part(key):
    A = pdla.run(1, lambda comm: pdla.zeros((4, 4), ProcessGrid((1,)), Layout()))[0]
    for call in (lambda: A[key], lambda: A.__setitem__(key, 1)):
        with pytest.raises(ShapeError, match=r"of a matrix of shape \(4, 4\): give numbers, and slices"):
            call()


def test_a_part_is_told_by_the_matrix_that_it_is_part_of():
    def program(comm):
        A = pdla.random((10, 8))
        B = A[2:9, 1:][1::2, :3]
        for X in (B, B.T.H, B.T.T):
            assert "3 x 3, float64, [3:9:2, 1:4] of 10 x 8, Layout(rows='row', cols='col') on ProcessGrid" in repr(X)
        assert "[1:4, 3:9:2] of 8 x 10, Layout(rows='col', cols='row')" in repr(B.T) and "[:, :3]" not in repr(A[:, :])
        assert "with gaps in rows" in repr(A[:, ::2]) and "with gaps in rows" in repr(A.T[::2])
        assert "with gaps," in repr(A[::2]) and "with gaps," in repr(A.T[:, ::2])
        assert "[5:, :]" not in repr(A[5:, :] + A[:5, :]) and "[5:10, :] of 10 x 8" in repr(A[5:, :])
        with pytest.raises(LayoutError, match=r"fill_diagonal of 3 x 3, float64, \[3:9:2, 1:4\] of 10 x 8, Layout\(rows='row'"):
            pdla.fill_diagonal(B, 1j)
        with pytest.raises(AgreementError, match=r"rank 0: norm of .*\[0:3, :\] of 10 x 8.*; rank 1: .*\[1:4, :\] of 10 x 8"):
            A[comm.rank : comm.rank + 3].norm()

    pdla.run(2, program)


# ---------------------------------------------------------------------------------------------- views and operators


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_views(layout, dtype):
    whole = numbers(dtype=dtype)

    def program(grid):
        A = pdla.from_global(whole, grid, layout)
        views = [A, A.T, A.H, A.conj(), A.H.T.conj()]
        for view, wanted in zip(views, [whole, whole.T, whole.conj().T, whole.conj(), whole], strict=True):
            np.testing.assert_array_equal(view.gather(), wanted)
            rows, cols = (held.indices() for held in view.indices)
            np.testing.assert_array_equal(view.local, wanted[np.ix_(rows, cols)])
            assert view.base is A.base and view.dtype == dtype and view.shape == wanted.shape
        assert A.T.layout == layout.T
        if grid.active and A.local.size:
            A.T.local[0, 0] = 77
            assert A.local[0, 0] == 77

    on_a_grid(program)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
@pytest.mark.parametrize("view", [lambda A: A, lambda A: A.T, lambda A: A.conj().T], ids=["A", "T", "H"])
def test_operators(layout, dtype, view):
    a, b = numbers(dtype=dtype, seed=1), numbers(dtype=dtype, seed=2)

    def program(grid):
        A, B = (view(pdla.from_global(x, grid, layout)) for x in (a, b))
        x, y = view(a), view(b)
        for result, wanted in [
            (A + B, x + y), (A - B, x - y), (A * B, x * y), (A + 3, x + 3), (3 + A, 3 + x), (A - 3, x - 3),
            (3 - A, 3 - x), (2 * A, 2 * x), (A * 2, x * 2), (A / 2, x / 2), (-A, -x),
            (np.float64(2) * A, np.float64(2) * x),
        ]:
            np.testing.assert_array_equal(result.gather(), wanted)
            assert result.dtype == wanted.dtype and (result.layout, result.grid) == (A.layout, grid)
        np.testing.assert_array_equal(A.gather(), x)

    on_a_grid(program)


def test_dtypes_promote_as_in_numpy():
    def program(grid):
        A = pdla.ones((4, 4), grid, Layout("row"), dtype="float32")
        B = pdla.ones((4, 4), grid, Layout("row"), dtype="int64")
        assert (A + B).dtype == np.float64
        assert (A * 2).dtype == (A + 2.5).dtype == np.float32
        assert (A * 2j).dtype == np.complex64

    on_a_grid(program)


@pytest.mark.parametrize("dtype", DTYPES)
def test_copy_and_astype(dtype):
    whole = numbers(dtype="int8")

    def program(grid):
        A = pdla.from_global(whole, grid, Layout("row", "col"))
        B = A.T.astype(dtype)
        assert B.dtype == dtype and B.layout == Layout("col", "row")
        np.testing.assert_array_equal(B.gather(), whole.T.astype(dtype))
        C = B.conj().copy()
        assert not np.shares_memory(B.base, C.base) and not C.conjugated
        np.testing.assert_array_equal(C.gather(), whole.T.astype(dtype).conj())

    on_a_grid(program)


def test_what_does_not_go_together():
    def program(grid):
        A = pdla.ones((4, 6), grid, Layout("row", "col"))
        with pytest.raises(ShapeError, match=r"add of shapes \(4, 6\) and \(6, 4\)"):
            A + A.T
        with pytest.raises(LayoutError, match=r"add of A=.* and B=.*: A has partial sums, .* redistribute A to a layout without"):
            pdla.ones((4, 6), grid, Layout("row", partial="col")) + A
        for other in (np.ones((4, 6)), "x", None):
            for operation in (operator.add, operator.mul, operator.matmul, operator.sub):
                with pytest.raises(TypeError):
                    operation(A, other)
                with pytest.raises(TypeError):
                    operation(other, A)
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(A)

    on_a_grid(program)


@pytest.mark.parametrize("call", [
    lambda A, B, plan: A @ B,
    lambda A, B, plan: A + B,
    lambda A, B, plan: A.__imul__(B),
    lambda A, B, plan: A.__setitem__(np.s_[1:, :], B[1:, :]),
    lambda A, B, plan: A.redistribute(B.layout, B.grid),
    lambda A, B, plan: plan(A, B),
    lambda A, B, plan: plan(A, A, out=B),
    lambda A, B, plan: pdla.syrk(A, out=B),
    lambda A, B, plan: pdla.symm(A, B),
    lambda A, B, plan: pdla.multi_dot([A, A, B]),
    lambda A, B, plan: pdla.batched_matmul(*(pdla.stack(np.ones((2, 4, 4)), X.grid, X.layout) for X in (A, B))),
    lambda A, B, plan: nn.Linear(nn.Summa2D(B.grid), 4, 4).forward(A),
    lambda A, B, plan: nn.ReLU(nn.Summa2D(B.grid)).forward(A),
])
def test_two_communicators_of_the_same_ranks_are_told_alike_by_all_that_takes_two_matrices(call):
    """Their grids look alike: to say that the layouts differ would quote the same text twice."""

    def program(comm):
        A, B = (pdla.ones((4, 4), ProcessGrid((1, 2), comm=c), Layout("row", "col")) for c in (comm, comm.split([0, 1], "all")))
        with pytest.raises(pdla.errors.GridError, match=r"on different communicators, of 2 and 2 ranks: make both grids from"):
            call(A, B, pdla.plan_matmul(A, A))

    pdla.run(2, program)


def test_repr_needs_no_other_rank():
    def program(comm):
        grid = ProcessGrid((2, 2))
        A = pdla.ones((7, 5), grid, Layout("row", "col"), dtype="float32")
        return repr(A) if comm.rank == 1 else None

    assert pdla.run(4, program)[1] == (
        "DistMatrix(7 x 5, float32, Layout(rows='row', cols='col') on ProcessGrid(row=2, col=2), local 4 x 2)"
    )


# ---------------------------------------------------------------------------------------------- sums over ranks


def test_an_operator_in_place_needs_no_second_block():
    def program(comm):
        A = pdla.ones((512, 512), ProcessGrid((1, 1)), Layout())
        B = A.T.copy()
        tracemalloc.start()
        for X in (A, A.T, A[:300, 1:301]):
            X += B[: X.shape[0], : X.shape[1]]
            X *= 2
            X -= 1
            X /= 4
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < A.local.nbytes / 8 and A.local[0, 0] == 0.625 and A.local[0, 1] == 0.5625

    pdla.run(1, program)


def test_partial_sums():
    whole = numbers((6, 8), "complex128")

    def program(grid):
        layout = Layout("row", partial="col")
        A = pdla.from_function(lambda i, j: whole[i, j], (6, 8), grid, layout, dtype="complex128")
        A.local[...] += 4 if grid.active and grid.coords["col"] else 0
        results = [A + A, A - 2 * A, -A, A / 4]
        for result, wanted in zip(results, [2 * whole + 8, -whole - 4, -whole - 4, whole / 4 + 1], strict=True):
            assert result.layout == layout
            np.testing.assert_array_equal(result.redistribute(Layout(cols="row")).gather(), wanted)
        np.testing.assert_array_equal(A.H.gather(), whole.conj().T + 4)
        for refused in (lambda: A * A, lambda: A + 1, lambda: 1 - A, lambda: A.norm(), lambda: A.T.trace(), lambda: A.sum()):
            with pytest.raises(LayoutError, match="partial sums"):
                refused()
        with pytest.raises(TypeError, match="from_global"):
            A + whole
        with pytest.raises(LayoutError, match=r"= 3 in 6 x 8.*: redistribute A to a layout without partial sums first"):
            A[:, :] = 3
        assert A.check_copies()

    on_a_grid(program)


# ---------------------------------------------------------------------------------------------- of two layouts

OPERATIONS = (operator.add, operator.sub, operator.mul, operator.truediv, operator.pow)
IN_PLACE = (operator.iadd, operator.isub, operator.imul)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_matrix_and_its_transpose(ranks, n):
    whole = numbers((n, n)) + 5

    def program(comm):
        A = pdla.from_global(whole)
        for operation in OPERATIONS:
            made = operation(A, A.T)
            assert made.layout == A.layout
            np.testing.assert_array_equal(made.gather(), operation(whole, whole.T))
        for operation in IN_PLACE:
            B = A.copy()
            np.testing.assert_array_equal(operation(B, B.T).gather(), operation(whole.copy(), whole.T))
        B[:, :] = A.T
        np.testing.assert_array_equal(B.gather(), whole.T)

    pdla.run(ranks, program)


@settings(max_examples=60)
@given(st.data())
def test_operands_in_any_two_layouts(data):
    ranks, shape = data.draw(st.integers(1, 6)), (data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9)))
    ours, theirs = (data.draw(grids(ranks)) for _ in range(2))
    layout, other = data.draw(layouts(shape, ours)), data.draw(layouts(shape, theirs, partial=True))
    a, b = numbers(shape), numbers(shape, seed=1)

    def program(comm):
        A, B = (spread(x, ProcessGrid(*at[:2], order=at[2]), how) for x, at, how in ((a, ours, layout), (b, theirs, other)))
        C, D = A - B, A * B
        assert C.layout == layout and C.grid == A.grid and C.check_copies() and B.layout == other
        A[:, :] = B
        return C.gather(), D.gather(), A.gather()

    for C, D, A in pdla.run(ranks, program):
        assert np.array_equal(C, a - b) and np.array_equal(D, a * b) and np.array_equal(A, b)


def test_the_ledger_counts_what_an_operand_receives():
    def program(comm):
        A = pdla.ones((8, 8), dtype="float32")
        B = A.redistribute(Layout("row", "col"))
        with pdla.record() as alike:
            A + B
        with pdla.record() as turned:
            A + A.T
        return alike.bytes_received, turned.bytes_received

    everyone = pdla.run(4, program)
    assert everyone == [(0, 0), (0, 4 * 4 * 4), (0, 4 * 4 * 4), (0, 0)]  # blocks on the diagonal are their own transposes'
    assert [pdla.dry_run(4, program, rank=rank)[0] for rank in range(4)] == everyone


def test_operands_that_lie_otherwise_are_agreed_on():
    def program(comm):
        A = pdla.ones((4, 4))
        with pytest.raises(AgreementError, match=r"ranks disagree: rank 0: add of .*; rank 1: subtract of "):
            A - A.T if comm.rank else A + A.T
        with pytest.raises(AgreementError, match=r"rank 0: add of 4 x 4, float64.*; rank 1: norm of "):
            A.norm() if comm.rank else A + A.T
        return (A + A.T).gather()

    assert (pdla.run(2, program)[0] == 2).all()


# ---------------------------------------------------------------------------------------------- in place, and NumPy


def test_what_is_updated_in_place_is_seen_through_views_and_by_the_caller():
    def program(comm):
        grid = ProcessGrid((2, 2), comm=comm)
        A, B = (pdla.random((6, 5), grid, LAYOUT, seed=seed) for seed in (1, 2))
        whole, other, held = A.gather(), B.gather(), A.local
        A *= 2
        A += B
        A -= 1
        A /= 4
        transposed = A.T
        transposed *= 3
        assert np.shares_memory(A.local, held) and np.shares_memory(transposed.local, held)
        np.testing.assert_array_equal(A.gather(), (whole * 2 + other - 1) / 4 * 3)
        view = (A * (1 + 2j)).H
        expected = view.gather() * 1j
        view *= 1j
        np.testing.assert_array_equal(view.gather(), expected)
        with pytest.raises(TypeError, match="same_kind"):
            A *= 1j

    pdla.run(4, program)


def test_what_a_matrix_cannot_take_in_place_is_named_alike_in_all_worlds():
    def program(comm):
        A = pdla.ones((5, 4), ProcessGrid(2, comm=comm), Layout("row"))
        texts = []
        for write in (lambda: A.__imul__(1j), lambda: A.__setitem__(np.s_[:, :], A * 1j), lambda: A.T.conj().__imul__(1j)):
            with pytest.raises(TypeError, match=r"complex128 into . x ., float64, Layout.*make a new matrix") as raised:
                write()
            texts.append(str(raised.value))
        return texts

    dry, _ = pdla.dry_run(3, program)
    assert pdla.run(3, program) == [dry] * 3


def test_parts_are_assigned_to():
    def program(comm):
        grid = ProcessGrid((2, 2), comm=comm)
        A, B = (pdla.random((6, 5), grid, LAYOUT, seed=seed) for seed in (1, 2))
        expected = A.gather()
        A[1:4, 2:5], expected[1:4, 2:5] = 7, 7
        A[2:6, 0:3] += 1
        expected[2:6, 0:3] += 1
        A[0:2, :], expected[0:2] = B[0:2, :], B.gather()[0:2]
        A[0:2, :], expected[0:2] = A[4:6, :], expected[4:6].copy()
        A[3], A[-1, 2], expected[3], expected[-1, 2] = 8, 9, 8, 9
        A[:, 4], expected[:, 4] = B[:, :1], B.gather()[:, 0]
        np.testing.assert_array_equal(A.gather(), expected)
        partial = DistMatrix(np.ones((3, 5)), (3, 5), ProcessGrid(4, comm=comm), Layout(partial="row"))
        for kind, call in (
            (LayoutError, lambda: A.__setitem__(np.s_[0:2, :], 1j)),
            (LayoutError, lambda: partial.__setitem__(np.s_[0:2, :], 1)),
            (ShapeError, lambda: A.__setitem__(np.s_[0:2, :], B[0:3, :])),
            (ShapeError, lambda: A.__setitem__(np.s_[0:2, :], np.ones((2, 5)))),
        ):
            with pytest.raises(kind):
                call()
        np.testing.assert_array_equal(A.gather(), expected)

    pdla.run(4, program)


def test_what_a_matrix_is_not_says_what_to_take_instead():
    def program(comm):
        grid = ProcessGrid((1, 1), comm=comm)
        A, x = pdla.ones((3, 3), grid, LAYOUT), np.ones((3, 3))
        S = pdla.stack(x[None], grid, LAYOUT)
        for text, call in (
            ("A.gather", lambda: np.asarray(A)), ("A.gather", lambda: np.allclose(A, x)), ("compared", lambda: A.copy() == A),
            ("compared", lambda: x == A), ("compared", lambda: x != A), ("matvec", lambda: A @ x), ("matvec", lambda: x @ A),
            ("from_global", lambda: A + x), ("from_global", lambda: x - A), ("from_global", lambda: [1] * A),
            ("A.gather", lambda: np.array_equal(A, x)), ("A.gather", lambda: np.array_equiv(x, A)), ("A.gather", lambda: np.sum(A)),
            (r"x\.item", lambda: np.array(2.0) * A), (r"x\.item", lambda: A + np.array(2)), (r"x\.item", lambda: A @ np.float64(3)),
            ("A is not None", lambda: bool(A)), ("A.norm", lambda: A and x), ("A.norm", lambda: not A),
            ("S.gather", lambda: np.asarray(S)), ("S.gather", lambda: np.array_equal(S, S)), ("S is not None", lambda: not S),
            ("compared", lambda: S.conj() == S),
        ):
            with pytest.raises(TypeError, match=text):
                call()
        for name in ("shape", "layout", "dtype", "local", "T", "name"):
            with pytest.raises(AttributeError, match=rf"A\.{name} = \.\.\.: .* A\.local\[\.\.\.\] = x .* A\.redistribute"):
                setattr(A, name, None)
        assert A in (A,) and len({A, A.T}) == 2
        twin = copy.deepcopy([A, copy.copy(A)])
        twin[0] *= 5
        assert (twin[1].local == 1).all() and (A.local == 1).all()

    pdla.run(1, program)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.bool_, np.float32])
def test_a_scalar_less_a_matrix_promotes_before_it_subtracts(dtype):
    whole = np.array([[1, 127], [0, 100]]).astype(dtype)
    if dtype is np.int8:
        whole[0, 0] = -128

    def program(comm):
        A = pdla.from_global(whole, ProcessGrid((1, 2)), LAYOUT)
        for scalar in (1, 1.5, np.int64(3), np.float32(0.5)):
            made, wanted = (scalar - A).gather(), scalar - whole
            assert made.dtype == wanted.dtype and np.array_equal(made, wanted)

    pdla.run(2, program)


@pytest.mark.parametrize("call", [
    lambda A, x: A * x, lambda A, x: x * A, lambda A, x: A / x, lambda A, x: A + x, lambda A, x: x - A, lambda A, x: A.__imul__(x),
    lambda A, x: A.__itruediv__(x), lambda A, x: A.__isub__(x), lambda A, x: A.__setitem__(np.s_[:, :], x),
])
def test_a_number_that_is_too_large_for_the_floats_is_refused(call):
    """NumPy would make infinity of it, which makes NaN of zeros. Infinity itself, and NaN, may be meant."""

    def program(comm):
        grid = ProcessGrid((1, 1), comm=comm)
        for dtype, large, fine in (
            ("float32", [1e60, -1e60, 10**60, 3.5e38], [np.inf, np.nan, 3e38]), ("float16", [70000, 1e6], [65504]),
            ("complex64", [1e60, 1e60j], [complex(0, np.inf)]), ("bfloat16", [1e60], [3e38]), ("float64", [10**400], [1e300]),
        ):
            A = pdla.zeros((2, 2), grid, LAYOUT, dtype=dtype)
            for x in large:
                with pytest.raises((OverflowError, LayoutError), match=r"more than|too large|cannot represent"):
                    call(A, x)
            with np.errstate(all="ignore"):
                assert A.gather().tolist() == np.zeros((2, 2)).tolist()
                for x in fine:
                    call(A.copy(), x)

    pdla.run(1, program)


def test_what_operators_make_has_no_gaps():
    """NumPy makes what is made of a transpose by columns, and that would be packed to travel, in memory that no plan foretells."""
    whole = numbers((6, 8), "complex64")

    def program(grid):
        A = pdla.from_global(whole, grid, LAYOUT)
        by_columns = pdla.from_local(np.array(A.local, order="CF"[grid.comm.rank % 2]), (6, 8), grid, LAYOUT)
        for X, x in ((A, whole), (A.T, whole.T), (A.H, whole.conj().T), (A[1:5, 2:7].T, whole[1:5, 2:7].T), (by_columns, whole)):
            for made, wanted in ((X * 2, x * 2), (2 - X, 2 - x), (X + X, x + x), (-X, -x), (X.astype("complex128"), x)):
                assert made.base.flags.c_contiguous and not (made.gaps or made.transposed or made.conjugated)
                assert np.array_equal(made.gather(), wanted)

    on_a_grid(program)


@pytest.mark.parametrize("operation", [operator.mul, operator.add, lambda A, x: x - A, operator.truediv, operator.imul])
@pytest.mark.parametrize("number", [Fraction(1, 3), Decimal("0.5"), np.timedelta64(3, "s")], ids=repr)
def test_numbers_that_numpy_has_no_dtype_for_are_one_error_on_all_ranks(operation, number):
    """A rank without elements would not come upon what one with some cannot multiply."""

    def program(comm):
        A = pdla.ones((2, 3), ProcessGrid((3, 1)), Layout("row"))
        with pytest.raises(ShapeError, match="give a float") as caught:
            operation(A, number)
        return str(caught.value)

    assert len(set(pdla.run(4, program))) == 1


def test_a_local_block_is_changed_in_place():
    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid((2, 2)), LAYOUT, dtype="complex128")
        A.local += 1j
        A.T.local[0] *= 2
        A.conj().conj().local -= 1
        wanted = np.full((2, 2), 1j)
        wanted[:, 0] = 1 + 2j
        assert (A.local == wanted).all()
        with pytest.raises(AttributeError, match="a matrix has no attributes to set"):
            A.H.local += 1  # a copy
        with pytest.raises(AttributeError, match="a matrix has no attributes to set"):
            A.local = A.local + 1
        return np.array_equal(A.local, wanted)

    def dry(comm):
        A = pdla.ones((4, 4), ProcessGrid((2, 2), comm=comm), LAYOUT)
        A.local += 1
        A.T.local *= 2

    assert all(pdla.run(4, program))
    pdla.dry_run(4, dry)


def test_operators_take_the_pairs_of_dtypes_that_products_take():
    def program(comm):
        grid = ProcessGrid((1, 2))
        halves, brains, whole = (pdla.ones((2, 2), grid, LAYOUT, dtype=dtype) for dtype in ("float16", ml_dtypes.bfloat16, "int32"))
        for other in (halves, whole):
            for operation in (operator.add, operator.sub, operator.mul, operator.truediv, operator.iadd, operator.matmul):
                with pytest.raises(ShapeError, match="NumPy has no common dtype: cast them to one by astype"):
                    operation(brains, other)
        assert (halves + brains.astype("float32")).dtype == (halves @ brains.astype("float32")).dtype == "float32"
        assert (brains * 2).dtype == ml_dtypes.bfloat16

    pdla.run(2, program)


def test_addends_of_ml_dtypes_integers_are_integers():
    def program(comm):
        grid, layout = ProcessGrid((1, 2)), Layout("row", partial="col")
        halves = pdla.from_local(np.full((2, 2), 0.5, ml_dtypes.bfloat16), (2, 2), grid, layout)
        fours = pdla.from_local(np.full((2, 2), 4, ml_dtypes.int4), (2, 2), grid, layout)
        assert (halves.astype(ml_dtypes.float8_e4m3fn).gather() == 1).all() and (fours.gather().astype(int) == -8).all()
        for call in (lambda: halves.astype(ml_dtypes.int4), lambda: fours.astype(ml_dtypes.bfloat16), lambda: -fours):
            with pytest.raises(LayoutError, match="redistribute to sum them first"):
                call()

    pdla.run(2, program)


def test_partial_sums_in_another_byte_order_keep_their_dtype():
    def program(comm):
        grid = ProcessGrid((1, 2))
        P = pdla.from_local(np.full((2, 2), 200, ">i2"), (2, 2), grid, Layout("row", partial="col"))
        for made in (P + P, P * 2, P.astype("int16") * 2):
            assert made.dtype.isnative and (made.gather() == 800).all()
        with pytest.raises(LayoutError, match="redistribute to sum them first"):
            P.astype(">i4")

    pdla.run(2, program)


def test_partial_sums_go_together_in_any_order_of_their_axes():
    def program(grid):
        A = pdla.ones((4, 6), grid, Layout(partial=("row", "col")))
        B = pdla.ones((4, 6), grid, Layout(partial=("col", "row")))
        A[:, :] = B
        return ((A + B).gather() == 2).all() and (A.redistribute(B.layout).gather() == 1).all()

    assert all(on_a_grid(program))


def test_layouts_that_say_the_same_go_together():
    def program(comm):
        grid = ProcessGrid((1, 2))
        A, B = pdla.ones((4, 6), grid, LAYOUT), pdla.ones((2, 6), grid, LAYOUT)
        A[:2, :] += B
        A[2:, :] = B * 5
        C = A - pdla.ones((4, 6), grid, Layout(cols=Cyclic("col", 3)))
        assert C.layout == LAYOUT and np.array_equal(C.gather(), np.repeat([1, 4], 2)[:, None] * np.ones(6))
        for other in (Layout(cols=Cyclic("col", 2)), Layout(None, "col", "row"), Layout()):
            assert ((A + pdla.ones((4, 6), grid, other)).gather() == A.gather() + 1).all()

    pdla.run(2, program)


def test_addends_that_wrap_around_keep_their_dtype():
    def program(comm):
        grid, layout = ProcessGrid((1, 2)), Layout("row", partial="col")
        P, Q = (pdla.from_local(np.full((2, 2), 200).astype(dtype), (2, 2), grid, layout) for dtype in (np.uint8, np.int16))
        assert ((P + P).gather() == 800 % 256).all() and (P.copy().gather() == 144).all() and ((P * 2).gather() == 32).all()
        R = pdla.zeros((2, 2), grid, layout)
        for widened in (
            lambda: P * 1.5, lambda: P / 2, lambda: P + Q, lambda: Q - P, lambda: P * np.int32(2),
            lambda: R.__setitem__(np.s_[:, :], P),
        ):
            with pytest.raises(LayoutError, match="redistribute to sum them first"):
                widened()

    pdla.run(2, program)


def test_what_would_be_no_matrix_of_numbers_is_refused():
    def program(comm):
        A = pdla.ones((2, 2), ProcessGrid((1, 1)), LAYOUT, dtype=int)
        with pytest.raises(ShapeError, match=r"multiply of int64 and Fraction\(1, 3\), a Fraction: give a float"):
            A * Fraction(1, 3)
        with pytest.raises(ShapeError, match="a timedelta64: give a float"):
            A * np.timedelta64(3, "s")
        for dtype in (object, "U3", "M8[s]", "V8"):
            with pytest.raises(ShapeError, match=r"astype: elements of dtype .*: give booleans, integers"):
                A.astype(dtype)
        for value in (np.str_("3"), np.datetime64("2020-01-01"), np.timedelta64(3), None):
            with pytest.raises(ShapeError, match="give a number or a DistMatrix"):
                A[:, :] = value
        A[:, :] = ml_dtypes.bfloat16(3)
        for value in (2.5, np.nan, np.inf, 2**63, -(2**63) - 1, 10**400, 1j, np.float16(0.5)):
            with pytest.raises(LayoutError, match=r"2 x 2, int64.*: int64 cannot represent it; cast A first"):
                A[:, :] = value
        return None if comm.xp.name == "meta" else A.gather().tolist()

    assert pdla.run(1, program) == [[[3, 3], [3, 3]]] and pdla.dry_run(1, program)[0] is None


def test_numbers_that_a_dtype_has_nearly():
    def program(comm):
        A = pdla.ones((1, 2), ProcessGrid((1, 1)), LAYOUT, dtype=np.uint8)
        A[:, :] = 255.0
        with pytest.raises(LayoutError, match="= 256 in 1 x 2, uint8"):
            A[:, :] = 256
        B = pdla.ones((1, 2), A.grid, LAYOUT, dtype=np.float32)
        B[:, :] = 0.1
        assert A.gather().tolist() == [[255, 255]] and (B.gather() == np.float32(0.1)).all()

    pdla.run(1, program)


@pytest.mark.parametrize(("dtype", "to", "sums"), [(float, int, False), (np.uint8, int, False), (float, np.float32, True)])
def test_partial_sums_take_dtypes_that_cut_nothing_off(dtype, to, sums):
    def program(comm):
        grid = ProcessGrid((1, 2))
        A = pdla.from_local(np.full((3, 4), 0.5).astype(dtype), (3, 4), grid, Layout("row", partial="col"))
        if sums:
            assert (A.astype(to).gather() == 1).all()
        else:
            with pytest.raises(LayoutError, match="redistribute to sum them first"):
                A.astype(to)

    pdla.run(2, program)


def test_what_is_no_number_and_has_no_order_says_what_to_ask():
    def program(comm):
        A = pdla.eye((4, 3), ProcessGrid((2, 2)))
        for told, call in (
            ("A.local > x", lambda: A > 0.5), ("A.local > x", lambda: A <= A), ("A.local > x", lambda: max(A, A)),
            (r"A.shape\[0\]", lambda: len(A)), (r"A\[0, 0\]", lambda: float(A)), (r"A\[0, 0\]", lambda: int(A)),
        ):
            with pytest.raises(TypeError, match=told):
                call()
        return [*A][1].tolist()  # list() asks for a length first

    assert pdla.run(4, program) == [[0.0, 1.0, 0.0]] * 4
