"""Rank-k updates: a triangle of A A^T, bitwise NumPy's in any layout; reading A where all ranks see it."""

import time

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from helpers.layouts import triangles
from helpers.level3 import BLOCKS, TURNS, VIEWS, check_rank_k, rank_k
from helpers.matmuls import DTYPES, exact
from hypothesis import given

import pdla
from pdla import Cyclic, Layout, ProcessGrid
from pdla.array import numpy as xp
from pdla.comm.communicator import Communicator
from pdla.linalg.products import rank_k_plan, stationary
from pdla.linalg.products.difference_cover import list_covers
from pdla.linalg.products.rank_k import _multiply_tiles
from pdla.linalg.products.strips import Strips


def test_matrices_in_another_byte_order():
    """BLAS reads this machine's only."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        A = exact((8, 6), grid, BLOCKS)
        B = pdla.from_local(A.local.astype(">f8"), (8, 6), grid, BLOCKS)
        assert np.array_equal(pdla.syrk(B, alpha=2.0).gather(), pdla.syrk(A, alpha=2.0).gather())

    pdla.run(4, program)


@given(
    triangles(), st.sampled_from([*DTYPES, np.int64]), st.sampled_from(sorted(VIEWS)), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from([(1, 0), (2, -1), (0, 3)]), st.integers(0, 4), st.booleans(),
)
def test_triangles_of_any_layout(case, dtype, view, hermitian, lower, mirror, scalars, which, together):
    """By messages, and on a shared buffer."""
    ranks, (shape, axes, order), n, k, layout, wanted = case
    if view in "TH":
        layout = layout.T

    def program(comm):
        grid = ProcessGrid(shape, axes, order=order)
        A = VIEWS[view](exact((k, n) if view in "TH" else (n, k), grid, layout, dtype, 1))
        check_rank_k(A, hermitian, lower, wanted, *scalars, mirror)

    places = int(np.prod(shape))
    stays = lambda n, k, layout, sizes: stationary.Stationary(layout, sizes)  # noqa: E731
    choices = [stays, rank_k_plan.choose, *(lambda *_, cover=cover: cover for cover in list_covers(places))]
    alike = [stays, rank_k_plan.choose_together, lambda *_: Strips(places)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_k_plan, "choose", choices[which % len(choices)])
        patch.setattr(rank_k_plan, "choose_together", alike[which % len(alike)])
        patch.setattr(Communicator, "shared_limit", 2**30 if together else 0)
        pdla.run(ranks, program)


def test_what_is_kept_of_one_call_serves_no_other():
    """Of what a call keeps all depends on the grid, the shape, both layouts, and whether all ranks read A in place."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        for here, shape, layout, wanted, limit in (
            (grid, (12, 7), BLOCKS, BLOCKS, 0),
            (ProcessGrid((2, 2), order=[1, 0, 3, 2]), (12, 7), BLOCKS, BLOCKS, 0),
            (grid, (10, 7), BLOCKS, BLOCKS, 0),
            (grid, (12, 4), BLOCKS, BLOCKS, 0),
            (grid, (12, 7), TURNS, BLOCKS, 0),
            (grid, (12, 7), BLOCKS, TURNS, 0),
            (grid, (12, 7), BLOCKS, BLOCKS, 2**30),
        ):
            comm.shared_limit, A = limit, exact(shape, here, layout)
            with pdla.record() as ledger:
                pdla.syrk(A, layout=wanted)
            assert set().union(*comm.share({*ledger.by_verb()})) == {"read" if limit else "alltoall"}
            check_rank_k(A, False, True, wanted, mirror=True)

    pdla.run(4, program)


def test_a_new_result_is_zero_above_and_lies_as_the_product():
    def program(comm):
        A = exact((9, 5), ProcessGrid((2, 2)), BLOCKS)
        C = pdla.syrk(A)
        assert C.layout == (A @ A.T).layout == BLOCKS and np.array_equal(C.gather(), np.tril(A.gather() @ A.gather().T))
        assert np.array_equal(pdla.syrk(A, mirror=True, layout=BLOCKS).gather(), A.gather() @ A.gather().T)

    pdla.run(5, program)


def test_leaves_smaller_than_tiles(monkeypatch):
    """Tiles are multiplied by halves of halves, here down to three rows; herk's diagonal is exactly real."""
    monkeypatch.setattr("pdla.linalg.products.rank_k.LEAF", 3)

    def program(comm):
        grid = ProcessGrid((2, 2))
        for layout in (BLOCKS, TURNS):
            check_rank_k(exact((50, 7), grid, BLOCKS, complex), False, True, layout)
        A = pdla.random((50, 7), grid, BLOCKS, dtype=complex, distribution="normal")
        C = pdla.herk(A, layout=BLOCKS).gather()
        assert (np.diagonal(C).imag == 0).all() and np.allclose(C, np.tril(A.gather() @ A.gather().conj().T))

    for cover in (*list_covers(4), None):
        if cover is not None:
            monkeypatch.setattr(rank_k_plan, "choose", lambda *_, cover=cover: cover)
        else:
            monkeypatch.setattr(rank_k_plan, "choose", lambda n, k, layout, sizes: stationary.Stationary(layout, sizes))
        pdla.run(4, program)


def test_where_all_see_A_nothing_of_it_is_copied():
    def program(comm):
        grid = ProcessGrid((2, 2))
        A = exact((40, 60), grid, BLOCKS).shared()
        C = pdla.zeros((40, 40), grid, BLOCKS)
        peaks = []
        for X in (A, A.T[:40, :]):
            with pdla.record() as ledger:
                pdla.syrk(X, out=C)
            peaks.append(ledger.peak_workspace)
            assert np.array_equal(C.gather(), np.tril(X.gather() @ X.gather().T))
        return peaks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_k_plan, "choose_together", lambda n, k, layout, sizes: stationary.Stationary(layout, sizes))
        for peaks in pdla.run(4, program):
            assert max(peaks) <= 8 * 20 * 20, "its part of C's triangle"


@pytest.mark.parametrize("reader", [0, 3])
@pytest.mark.parametrize("product", [pdla.syrk, pdla.herk])
def test_where_all_see_A_it_ends_when_all_have_read(product, reader, monkeypatch):
    """Who is first out of it may write to what the slowest still multiplies."""

    def program(comm):
        A = exact((12, 6), ProcessGrid((2, 2)), BLOCKS, complex).shared()
        C, a = pdla.zeros((12, 12), A.grid, BLOCKS, dtype=complex), A.gather()
        for step in range(3):
            product(A, out=C)
            A *= 2
            assert np.array_equal(C.gather(), 4**step * np.tril(a @ (a.T if product is pdla.syrk else a.conj().T)))

    def slowly(*given):
        if pdla.world().rank == reader:
            time.sleep(0.05)
        return _multiply_tiles(*given)

    monkeypatch.setattr("pdla.linalg.products.rank_k._multiply_tiles", slowly)
    monkeypatch.setattr(rank_k_plan, "choose_together", lambda n, k, layout, sizes: stationary.Stationary(layout, sizes))
    pdla.run(4, program)


@pytest.mark.parametrize("writer", [0, 3])
def test_where_all_see_A_none_reads_before_all_have_written(writer, monkeypatch):
    put = xp.put

    def slowly(*given):
        time.sleep(0.05 * (pdla.world().rank == writer))
        put(*given)

    def program(comm):
        A = exact((16, 12), ProcessGrid((2, 2)), BLOCKS)
        whole = np.tril(A.gather() @ A.gather().T)
        comm.shared_limit = 2**30
        for step in range(3):
            assert np.array_equal(pdla.syrk(A).gather(), 4**step * whole)
            A *= 2

    monkeypatch.setattr(xp, "put", slowly)
    pdla.run(4, program)


@pytest.mark.parametrize(
    "shape, n, k, layout, wanted, words",
    [
        ((6, 6), 1440, 1440, BLOCKS, BLOCKS, 0.65),
        ((4, 4), 960, 960, BLOCKS, Layout(Cyclic("row", 32), Cyclic("col", 32)), 0.8),
        ((2, 3), 480, 9600, Layout(cols=("row", "col")), BLOCKS, 0.75),
        ((4, 4), 480, 9600, BLOCKS, BLOCKS, 0.75),
        ((2, 2), 1440, 96, BLOCKS, Layout(Cyclic("row", 16), Cyclic("col", 16)), 1.0),
    ],
    ids=str,
)
def test_fewer_words_and_half_the_flops_of_matmul(shape, n, k, layout, wanted, words):
    """The rank that receives most, and all ranks' flops and the busiest rank's, against the same product by matmul."""
    ranks = shape[0] * shape[1]
    whole = lambda A, out: pdla.matmul(A, A.T, out=out, algorithm="gather")  # noqa: E731
    half, full = (
        [pdla.dry_run(ranks, rank_k, shape, n, k, layout, wanted, how, rank=rank)[0] for rank in range(ranks)]
        for how in (pdla.syrk, whole)
    )
    assert max(rank[1] for rank in half) <= words * max(rank[1] for rank in full)
    assert max(rank[3] for rank in half) < 0.65 * max(rank[3] for rank in full)
    assert n * n * k <= sum(rank[3] for rank in half) < 0.65 * sum(rank[3] for rank in full) == 0.65 * 2 * n * n * k


def test_a_triangle_of_blocks_in_another_byte_order_is_of_this_one_as_a_product_is():
    def program(comm):
        grid = ProcessGrid((2, 2))
        A = pdla.from_local(exact((6, 4), grid, BLOCKS).local.astype(">f8"), (6, 4), grid, BLOCKS)
        C = exact((6, 6), grid, BLOCKS)
        a, c = A.gather().astype(float), C.gather()
        pdla.syrk(A, out=C, beta=1, mirror=True)
        made = pdla.syrk(A, mirror=True)
        assert made.dtype.isnative and np.array_equal(made.gather(), a @ a.T)
        assert np.array_equal(np.tril(C.gather()), np.tril(a @ a.T + c))

    pdla.run(4, program)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_copies_are_rounded_alike_where_16_bits_are_added_to(kind, monkeypatch):
    """Also the copy on the rank that made the addend, which has more of its bits."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        A = pdla.random((9, 30), grid, BLOCKS, dtype=kind, distribution="normal")
        for wanted in (Layout(), Layout("row"), Layout(cols="col")):
            C = pdla.random((9, 9), grid, wanted, dtype=kind, seed=1, distribution="normal")
            assert pdla.syrk(A, beta=1, out=C).check_copies(), wanted

    for cover in list_covers(4):
        monkeypatch.setattr(rank_k_plan, "choose", lambda *_, cover=cover: cover)
        pdla.run(4, program)
