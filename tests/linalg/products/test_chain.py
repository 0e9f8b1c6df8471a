"""Chains of products: in the order of fewest multiplications, in the dtype of all; and sums that are no chain."""

import itertools

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from helpers.level3 import (
    BLOCKS,
    TURNS,
)
from helpers.matmuls import exact
from hypothesis import given

import pdla
from pdla import Layout, ProcessGrid, errors
from pdla.linalg.products import chain

LAYOUTS = (BLOCKS, TURNS, Layout(), Layout(cols=("row", "col")), Layout(("col", "row")), Layout("row", partial="col"))


@given(st.lists(st.integers(0, 12), min_size=2, max_size=7), st.permutations(range(5)), st.data())
def test_chains_in_any_order(dims, turns, data):
    count = len(dims) - 1
    views = data.draw(st.lists(st.sampled_from(["A", "T"]), min_size=count, max_size=count))
    order = data.draw(st.permutations(range(count)))
    words = ["abcdefgh"[i : i + 2][:: -1 if how == "T" else 1] for i, how in enumerate(views)]
    result = data.draw(st.sampled_from([f"a{'abcdefgh'[count]}", f"{'abcdefgh'[count]}a"]))
    subscripts = f"{','.join(words[i] for i in order)}->{result}"

    def program(comm):
        grid = ProcessGrid((2, 2))
        made = [exact((dims[i], dims[i + 1]), grid, LAYOUTS[turns[i % 5]], seed=i) for i in range(count)]
        expected = np.linalg.multi_dot([X.gather() for X in made]) if count > 1 else made[0].gather()
        assert np.array_equal(pdla.multi_dot(made, layout=BLOCKS).gather(), expected)
        given_ = [made[i].T.copy() if views[i] == "T" else made[i] for i in order]
        C = pdla.einsum(subscripts, *given_)
        assert np.array_equal(C.gather(), expected if result[0] == "a" else expected.T)

    pdla.run(4, program)


def test_a_chain_takes_the_order_of_fewest_multiplications():
    assert chain.find_order([10, 100, 5, 50]) == [0, 0] and chain.find_order([50, 5, 100, 10]) == [1, 0]

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B, x = (pdla.zeros(shape, grid, BLOCKS) for shape in ((40, 40), (40, 40), (40, 2)))
        with pdla.record() as ledger:
            pdla.multi_dot([A, B, x])
        return ledger.flops

    assert sum(pdla.run(4, program)) == 2 * 2 * 40 * 40 * 2


def test_a_chain_of_addends_that_are_not_to_be_cast():
    def program(comm):
        grid = ProcessGrid((1, 2))
        A = pdla.from_local(np.full((2, 2), 200, np.uint8), (2, 2), grid, Layout("row", partial="col"))
        B = pdla.ones((2, 2), grid, BLOCKS)
        assert np.array_equal(pdla.einsum("ij,kj->ik", A, B).gather(), A.gather() @ np.ones((2, 2)))

    pdla.run(2, program)


def test_a_chain_is_multiplied_in_the_dtype_of_all():
    def program(comm):
        grid = ProcessGrid((2, 2))
        X, F = np.full((2, 2), 100, np.int8), np.ones((2, 50))
        A, B = (pdla.from_global(x, grid, BLOCKS) for x in (X, F))
        expected = np.einsum("ij,jk,kl->il", X, X, F)
        assert np.array_equal(pdla.einsum("ij,jk,kl->il", A, A, B).gather(), expected)
        assert np.array_equal(pdla.multi_dot([A, A, B]).gather(), expected)

    pdla.run(4, program)


@pytest.mark.parametrize("axis", [None, "row"])
def test_stacks_are_multiplied_in_the_dtype_of_all(axis):
    """Three dtypes in any order, also views: the first two alone overflow, or round."""
    kinds = [np.int8, np.uint8, np.float64, np.complex64]

    def program(comm):
        grid = ProcessGrid((2, 2), comm=comm)
        for dtypes in itertools.product(kinds, repeat=3):
            arrays = [np.full((3, 2, 2), 100, kind) + np.eye(2, dtype=kind) for kind in dtypes]
            stacks = [pdla.stack(x, grid, Layout("col"), axis) for x in arrays]
            found, want = pdla.einsum("bij,bjk,blk->bli", *stacks), np.einsum("bij,bjk,blk->bli", *arrays)
            assert found.dtype == want.dtype and np.array_equal(found.gather(), want), dtypes

    pdla.run(5, program)


@pytest.mark.parametrize("dtypes", list(itertools.permutations((float, np.int64, ml_dtypes.bfloat16))))
def test_which_dtypes_a_chain_takes_does_not_depend_on_their_order(dtypes):
    def program(comm):
        made = [pdla.ones((2, 2), ProcessGrid((1, 2)), BLOCKS, dtype=dtype) for dtype in dtypes]
        for C in (pdla.multi_dot(made), pdla.einsum("ij,jk,kl->il", *made)):
            assert C.dtype == float and (C.gather() == 4).all()

    pdla.run(2, program)


def test_addends_that_are_summed_first_leave_the_default_layout_as_it_is():
    def program(comm):
        grid = ProcessGrid((1, 2))
        A = pdla.from_local(np.full((2, 2), 200, np.uint8), (2, 2), grid, Layout("row", partial="col"))
        assert pdla.matvec(A, pdla.ones((2, 1), grid, Layout())).layout == Layout("row")
        assert pdla.einsum("ij,jk->ik", A, pdla.ones((2, 2), grid, Layout())).layout == Layout("row")

    pdla.run(2, program)


@pytest.mark.parametrize(
    "subscripts, text",
    [
        ("ij,ji", "two in the result"), ("ij,ji->i", "two in the result"), ("ii,ii->i", "two in the result"),
        ("ij,jk,kl->il", "names 3 matrices, 2 are given"),
        ("ijk,kl->il", "two letters an operand"),
        ("ij,jk->ij", "'j' occurs 3 times"),
        ("ij,kl->il", "'j' occurs 1 times"),
        ("ij,jk->i", "it takes a chain"),
        ("ij,ij->ij", "'i' occurs 3 times"),
        ("ij,kk->ij", "kk is not in the chain"),
        ("ii,jk->jk", "ii is not in the chain"),
    ],
)
def test_sums_that_are_no_chain_are_refused(subscripts, text):
    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid((1, 2)), BLOCKS)
        with pytest.raises(errors.ShapeError, match=text) as raised:
            pdla.einsum(subscripts, A, A)
        return str(raised.value)

    assert len(set(pdla.run(2, program))) == 1


def test_a_sum_without_a_result_is_of_the_letters_that_occur_once_as_in_numpy():
    a, b = np.arange(12.0).reshape(3, 4), np.arange(8.0).reshape(4, 2)

    def program(comm):
        A, B = (pdla.from_global(x, ProcessGrid((1, 2)), BLOCKS) for x in (a, b))
        return [pdla.einsum(word, *some).gather() for word, *some in (("ij,jk", A, B), ("ba", A), ("cb,ba", A, B), ("ji,kj", B, A))]

    want = [np.einsum(word, *some) for word, *some in (("ij,jk", a, b), ("ba", a), ("cb,ba", a, b), ("ji,kj", b, a))]
    assert all(np.array_equal(*pair) for pair in zip(pdla.run(2, program)[1], want, strict=True))


@pytest.mark.parametrize("dtype", ["float64", "complex64", "int64"])
def test_traces_and_diagonals(dtype):
    def program(comm):
        A = exact((5, 5), ProcessGrid((2, 2), comm=comm), TURNS, np.dtype(dtype), 1)
        a = A.gather()
        for word in ("ii", "ii->", "jj->", "i i->i"):
            found, want = pdla.einsum(word, A), np.einsum(word.replace(" ", ""), a)
            assert found.dtype == want.dtype and np.array_equal(found, want)
        with pytest.raises(errors.ShapeError, match="must be square"):
            pdla.einsum("ii", A[:3, :])
        with pytest.raises(errors.LayoutError, match="is whole on every rank"):
            pdla.einsum("ii->i", A, layout=BLOCKS)

    pdla.run(4, program)


@pytest.mark.parametrize("partial", ["col", "row", ("row", "col")])
def test_traces_and_diagonals_take_partial_sums(partial):
    def program(comm):
        grid = ProcessGrid((2, 3), comm=comm)
        cut = Layout(None if "row" in partial else "row", "col" if partial == "row" else None)
        mine = np.full(cut.local_shape((5, 5), grid.sizes, grid.coords), comm.rank + 1, np.int8)
        A = pdla.from_local(mine, (5, 5), grid, Layout(cut.rows, cut.cols, partial=partial))
        a = A.gather()
        assert pdla.einsum("ii", A) == np.trace(a) and np.array_equal(pdla.einsum("ii->i", A.T), a.diagonal())

    pdla.run(7, program)


def test_blanks_are_taken_where_numpy_takes_them():
    def program(comm):
        A = pdla.from_global(np.arange(4).reshape(2, 2), ProcessGrid((1, 2)), BLOCKS)
        a = A.gather()
        for word in ("i j , jk -> ik", " ij,jk", "ij,jk ->k i ", "i j,j k"):
            assert np.array_equal(pdla.einsum(word, A, A).gather(), np.einsum(word, a, a))
        with pytest.raises(errors.ShapeError, match=r"einsum\('ij,jk- >ik'\): it takes a chain"):
            pdla.einsum("ij,jk- >ik", A, A)  # ValueError by NumPy
        with pytest.raises(errors.ShapeError, match="it takes a chain"):
            pdla.einsum("ii- >i", A)

    pdla.run(2, program)


@pytest.mark.parametrize("axis", [None, "col"])
@pytest.mark.parametrize("word", ["bij,bjk->bik", "bij,bkj->bki", "aji,ajk,alk->ail", "xij->xji", "xij->xij"])
def test_chains_of_stacks(axis, word):
    rng = np.random.default_rng(1)
    sizes = dict(zip("baxijkl", (3, 3, 3, 4, 5, 2, 6), strict=True))
    arrays = [rng.integers(-4, 5, [sizes[letter] for letter in one]) for one in word.split("->")[0].split(",")]

    def program(comm):
        grid, layout = ProcessGrid((2, 2), comm=comm), Layout("row") if axis else BLOCKS
        stacks = [pdla.stack(x, grid, layout, axis) for x in arrays]
        assert np.array_equal(pdla.einsum(word, *stacks).gather(), np.einsum(word, *arrays))
        if len(stacks) > 1:
            assert pdla.einsum(word, *stacks, layout=Layout(), algorithm="gather").layout == Layout()

    pdla.run(5, program)


@pytest.mark.parametrize(("word", "text"), [
    ("bij,bjk", "first letter"), ("bij,ajk->bik", "first letter"), ("ijb,jkb->ikb", "first letter"),
    ("bij,bjk->ik", "first letter"),
    ("bbj,bjk->bbk", "first letter"), ("bij,bij->bij", "'i' occurs 3 times"), ("bij->bij", "names 1 matrices, 2 are given"),
    (3, "first letter"), ("bii,bjk->bjk", "ii is not in the chain"),
])
def test_sums_of_stacks_that_are_no_chain_are_refused(word, text):
    def program(comm):
        S = pdla.stack(np.ones((2, 4, 4)), ProcessGrid((1, 2), comm=comm), Layout("row"), "col")
        with pytest.raises(errors.ShapeError, match=text) as raised:
            pdla.einsum(word, S, S)
        with pytest.raises(errors.ShapeError, match="matrix 1 is a DistMatrix, not a Stack, as others are"):
            pdla.einsum("bij,bjk->bik", S, pdla.ones((4, 4), S.grid, Layout()))
        with pytest.raises(errors.LayoutError, match="a single stack keeps its layout"):
            pdla.einsum("bij->bji", S, layout=Layout())
        return str(raised.value)

    assert len(set(pdla.run(2, program))) == 1
