"""Matrices in memory that all ranks see: products copy nothing, begin when all ranks have come, and end when all have read."""

import itertools
import time

import numpy as np
import pytest
from helpers.matmuls import DTYPES, LAYOUT, exact, lacks, op

import pdla
from pdla import Balanced, Cuts, Cyclic, Layout, ProcessGrid
from pdla.errors import LayoutError, PlanError
from pdla.matmul.schedules import shared

SIZES = ((13, 4, 17), (0, 3, 2), (3, 2, 0), (1, 1, 1), (24, 12, 36))


def in_common(shape, grid, dtype, seed, how):
    """A matrix that all see, and NumPy's."""
    X = exact(shape if how == "N" else shape[::-1], grid, LAYOUT, dtype, seed)
    return op(X.shared(), how), op(X.gather(), how)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (6, 1), (1, 6), (2, 2)], ids=str)
def test_bitwise(shape):
    def program(comm):
        grid, dtypes = ProcessGrid(shape), itertools.cycle(DTYPES)
        for hows, (m, n, k) in itertools.product(("NN", "NT", "TN", "CC"), SIZES):
            dtype = next(dtypes)
            (A, a), (B, b) = in_common((m, k), grid, dtype, 1, hows[0]), in_common((k, n), grid, dtype, 2, hows[1])
            C = pdla.zeros((m, n), grid, LAYOUT, dtype=dtype)
            plan = pdla.plan_matmul(A, B, out=C)
            for _ in range(2):
                C.stored.fill(np.nan)
                plan(A, B, out=C)
                assert np.array_equal(C.gather(), a @ b), (hows, m, n, k)
            plan(A, B, out=C, alpha=2, beta=3)
            assert np.array_equal(C.gather(), 5 * (a @ b))
            assert np.array_equal(A.gather(), a) and np.array_equal(B.gather(), b)

    pdla.run(8, program)


def test_of_a_part_in_steps_ranks_see_their_own_blocks_alone():
    def program(comm):
        A = pdla.random((12, 9), distribution="integers", high=9).shared()
        for part in (A[1:, 2:], A[::2], A[:, ::2], A[1::3, ::4].T):
            assert (part.common is None) == (part.shape != (11, 7))
            assert np.array_equal((part @ part.T).gather(), part.gather() @ part.gather().T)

    pdla.run(4, program)


def test_what_a_rank_reads_is_counted_and_takes_no_workspace():
    """From any blocks, whichever the grid of the product."""

    def program(comm):
        grid, other = ProcessGrid((2, 3)), ProcessGrid((5,), axes="p")
        layouts = (LAYOUT, Layout("col", "row"), Layout(("row", "col")), Layout(cols=Balanced(("col", "row"), 4)))
        lying = [(grid, layout) for layout in layouts] + [(other, Layout(Cuts("p", (0, 5, 5, 11, 30, 30))))]
        for (home, a), (there, b) in itertools.product(lying, repeat=2):
            A, B = exact((30, 30), home, a, seed=1).shared(), exact((30, 30), there, b, seed=2).shared()
            plan = pdla.plan_matmul(A, B, layout="native", algorithm="3d", box=(3, 2, 1), schedule="shared")
            with pdla.record() as ledger:
                C = plan(A, B)
            assert np.array_equal(C.gather(), A.gather() @ B.gather()), (A, B)
            assert ledger.bytes_received == 8 * (lacks(A, plan.roles.A, plan.grid) + lacks(B, plan.roles.B, plan.grid))
            assert ledger.peak_workspace == plan.predicted.peak_workspace == 0

    pdla.run(6, program)


def test_one_operand_or_both():
    def program(comm):
        grid = ProcessGrid((2, 3))
        A, B = exact((60, 60), grid, LAYOUT, seed=1), exact((60, 60), grid, LAYOUT, seed=2)
        peaks = []
        for left, right in ((A, B), (A.shared(), B), (A, B.shared()), (A.shared(), B.shared())):
            plan = pdla.plan_matmul(left, right, schedule="shared")
            with pdla.record() as ledger:
                C = plan(left, right)
            assert np.array_equal(C.gather(), A.gather() @ B.gather())
            assert ledger.peak_workspace == plan.predicted.peak_workspace
            peaks.append(ledger.peak_workspace)
        return peaks

    [both, second, first, none] = pdla.run(6, program)[0]
    assert both > second and both > first and both == first + second > none == 0


def test_auto_reads_them_where_they_lie():
    """In a world that by itself would rather send messages, and of any size."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = (pdla.zeros((40, 40), grid, LAYOUT) for _ in range(2))
        return pdla.plan_matmul(A, B).schedule, pdla.plan_matmul(A.shared(), B.shared()).schedule

    assert pdla.run(4, program)[0] == ("gather", "shared")

    def dry(comm):
        grid = ProcessGrid((32, 32), comm=comm)
        A, B = (pdla.zeros((10**5, 10**5), grid, LAYOUT).shared() for _ in range(2))
        return pdla.plan_matmul(A, B).schedule

    assert pdla.dry_run(1024, dry)[0] == "shared"


@pytest.mark.parametrize("reader", [0, 3])
def test_a_product_ends_when_all_have_read(reader, monkeypatch):
    """Who is first out of it may write to what the slowest still multiplies."""
    multiply = shared.multiply

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = exact((8, 8), grid, LAYOUT, seed=1).shared(), exact((8, 8), grid, LAYOUT, seed=2).shared()
        C, whole = pdla.zeros((8, 8), grid, LAYOUT), A.gather() @ B.gather()
        plan = pdla.plan_matmul(A, B, out=C)
        for step in range(3):
            plan(A, B, out=C)
            A *= 2
            assert np.array_equal(C.gather(), 2**step * whole)

    def slowly(*args):
        if pdla.world().rank == reader:
            time.sleep(0.05)
        multiply(*args)

    monkeypatch.setattr(shared, "multiply", slowly)
    pdla.run(4, program)


def test_a_product_begins_when_all_have_written():
    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = pdla.zeros((8, 8), grid, LAYOUT).shared(), pdla.ones((8, 8), grid, LAYOUT).shared()
        for value in range(1, 4):
            time.sleep(0.02 * ((comm.rank + value) % 4))
            A[:, :] = value
            assert ((A @ B).gather() == 8 * value).all()

    pdla.run(4, program)


def test_parts_and_views_are_read_in_place_and_conjugates_copied():
    def program(comm):
        grid = ProcessGrid((2, 3))
        A, B = exact((20, 24), grid, LAYOUT, complex, 1), exact((24, 30), grid, LAYOUT, complex, 2)
        a, b, S, T = A.gather(), B.gather(), A.shared(), B.shared()
        for left, right, product in (
            (S[3:17, 2:21], T[2:21, 5:30], a[3:17, 2:21] @ b[2:21, 5:30]),
            (T[2:21, 5:30].T, S[3:17, 2:21].T, (a[3:17, 2:21] @ b[2:21, 5:30]).T),
            (S.T[2:21, 3:17], S[3:17, 2:21], a[3:17, 2:21].T @ a[3:17, 2:21]),
            (S.H, S, a.conj().T @ a),
            (S.conj().shared(), T, a.conj() @ b),
        ):
            plan = pdla.plan_matmul(left, right, layout="native", algorithm="3d", box=(3, 2, 1), schedule="shared")
            with pdla.record() as ledger:
                C = plan(left, right)
            assert np.array_equal(C.gather(), product)
            assert (ledger.peak_workspace > 0) == left.conjugated and ledger.peak_workspace <= plan.predicted.peak_workspace

    pdla.run(6, program)


def test_a_plan_for_what_all_see_takes_its_conjugate_too():
    """That is copied first; the copy is not seen by all."""

    def program(comm):
        grid = ProcessGrid((2, 3))
        A, B = exact((20, 24), grid, LAYOUT, complex, 1).shared(), exact((24, 30), grid, LAYOUT, complex, 2).shared()
        plan = pdla.plan_matmul(A, B, schedule="shared")
        for left, right in ((A, B), (A.conj(), B), (A, B.conj()), (A, B)):
            assert np.array_equal(plan(left, right).gather(), left.gather() @ right.gather())

    pdla.run(6, program)


def test_it_is_a_copy_and_what_is_made_of_it_too():
    def program(comm):
        grid = ProcessGrid((2, 3))
        A = exact((20, 24), grid, LAYOUT, seed=1)
        S, whole = A.shared(), A.gather()
        S *= 2
        assert np.array_equal(A.gather(), whole) and np.array_equal(S.gather(), 2 * whole)
        assert "shared" in repr(S) and not any("shared" in repr(X) for X in (A, S + S, S.copy(), S.redistribute(Layout("row"))))
        assert S.T.shared().transposed and np.array_equal(S.T.shared().gather(), 2 * whole.T)

    pdla.run(6, program)


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (Layout("row"), "copies along col"),
        (Layout("row", Cyclic("col", 2)), "its layout is cyclic"),
        (Layout("row", partial="col"), "partial sums"),
    ],
)
def test_what_has_no_single_place_is_refused(layout, why):
    def program(comm):
        X = pdla.zeros((12, 12), ProcessGrid((2, 3)), layout)
        with pytest.raises(LayoutError, match=why):
            X.shared()

    pdla.run(6, program)


def test_plans_tell_them_from_matrices_of_own_blocks():
    """By how much memory they foretold, and by what ranks write to the shared buffer."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = exact((8, 8), grid, LAYOUT, seed=1), exact((8, 8), grid, LAYOUT, seed=2)
        plan = pdla.plan_matmul(A.shared(), B.shared())
        with pytest.raises(PlanError, match=r"this plan is for 8 x 8, .* on ProcessGrid\(row=2, col=2\), shared; 8 x 8, "):
            plan(A, B)

    pdla.run(4, program)


def test_on_several_nodes_it_is_a_copy_as_any():
    def program(comm):
        comm.homes = [0, 0, 1, 1]
        S = pdla.zeros((8, 8), ProcessGrid((2, 2), comm=comm), LAYOUT).shared()
        return S.common

    assert pdla.run(4, program) == [None] * 4
