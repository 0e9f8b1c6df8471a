"""Stacks of matrices: numpy.matmul's products, and layers that do not talk."""

import hypothesis.strategies as st
import numpy as np
import pytest
from helpers.level3 import BLOCKS, VIEWS, check_stack, random_array
from helpers.matmuls import DTYPES
from hypothesis import given

import pdla
from pdla import Cyclic, Layout, ProcessGrid, errors
from pdla.linalg.products import stacks


@given(
    st.sampled_from([((2, 2), None), ((2, 2), "row"), ((2, 3), "col"), ((3, 1), "row"), ((2, 1, 2), "depth"), ((3,), "row")]),
    st.tuples(st.integers(0, 5), *[st.integers(0, 9)] * 3), st.sampled_from([*DTYPES, np.int64]),
    st.tuples(*[st.sampled_from(sorted(VIEWS))] * 2), st.integers(0, 1), st.data(),
)
def test_stacks_against_numpy(case, bmnk, dtype, views, idle, data):
    (shape, axis), names = case, ("row", "col", "depth")
    others = [name for name in names[: len(shape)] if name != axis]
    cuts = [Layout(), *(Layout(name) for name in others), *(Layout(cols=Cyclic(name, 2)) for name in others)]
    cuts += [Layout(*others)] if len(others) == 2 else []
    layout = data.draw(st.sampled_from(cuts))
    pdla.run(int(np.prod(shape)) + idle, lambda comm: check_stack(ProcessGrid(shape), axis, layout, bmnk, dtype, views))


def test_layers_of_a_stack_do_not_talk():
    """Cut along depth, a product moves what a product on the layer's own grid does, and nothing along depth."""

    def program(comm):
        grid = ProcessGrid((2, 2, 3))
        A = pdla.stack(random_array((7, 8, 8), float, 0), grid, BLOCKS, "depth")
        with pdla.record() as ledger:
            pdla.batched_matmul(A, A, algorithm="gather")
        return len(A.blocks), ledger.bytes_received, ledger.by_axis()

    figures = pdla.run(12, program)
    assert [count for count, _, _ in figures] == [3] * 4 + [2] * 8
    for count, received, axes in figures:
        assert received == count * 8 * pdla.matmul_words("gather", 8, 8, 8, (2, 2))
        assert all("depth" not in axis for axis in axes)


@pytest.mark.parametrize("call", [
    lambda S: pdla.stack(np.ones((2, 3, 4)), S.grid, S.layout, "b"), lambda S: S @ S.T, lambda S: S.gather(),
], ids=["stack", "product", "gather"])
def test_a_grid_that_one_rank_has_closed_has_no_layers_on_any(call):
    def program(comm):
        S = pdla.stack(np.ones((2, 3, 4)), ProcessGrid((2, 2), ("b", "row")), Layout("row"), "b")
        if comm.rank == 1:
            S.grid.close()
        with pytest.raises(errors.GridError, match=r"rank 1: .*is closed"):
            call(S)
        comm.barrier()

    pdla.run(4, program)


def test_layers_agree_on_how_a_stack_is_looked_at():
    """They do not talk to each other: each alone would take its own view for everybody's."""

    def program(comm):
        S = pdla.stack(random_array((2, 3, 3), complex, 0), ProcessGrid((2, 1)), Layout(), "row")
        T, C = (view if comm.rank else S for view in (S.T, S.conj()))
        for words, wrong in (("by columns", lambda: T.gather()), ("conjugated", lambda: C.gather()), ("conjugated", lambda: S @ C)):
            with pytest.raises(errors.AgreementError, match=words):
                wrong()

    pdla.run(2, program)


@pytest.mark.parametrize(("ranks", "under_way"), [(1, 16), (4, 16), (5, 16), (4, 1)])
def test_stacks_are_cut_otherwise(ranks, under_way, monkeypatch):
    """From every form to every other, views too: gathered, they are the same."""
    monkeypatch.setattr(stacks, "UNDER_WAY", under_way)
    whole = np.arange(5 * 4 * 6.0).reshape(5, 4, 6)

    def program(comm):
        flat, square = ProcessGrid((comm.size,)), ProcessGrid((2, 2) if comm.size > 1 else (1, 1))
        places = [(flat, Layout(), "row"), (flat, Layout("row"), None)]
        places += [(square, Layout("row", "col"), None), (square, Layout("row"), "col")]
        for before in places:
            S = pdla.stack(whole, *before)
            for after in places:
                assert np.array_equal(S.redistribute(*after).gather(), whole)
                assert np.array_equal(S.T.redistribute(*after).gather(), whole.transpose(0, 2, 1))
        assert S.redistribute(flat, axis="row").layout == Layout()
        with pytest.raises(errors.GridError, match="no such axis"):
            S.redistribute(axis="depth")

    pdla.run(ranks, program)
