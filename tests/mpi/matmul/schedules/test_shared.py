"""Operands in memory that ranks of a node share: faults, slow ranks, and ranks that wait."""

import itertools
import time
from unittest.mock import patch

import numpy as np
import pytest
from helpers.matmuls import DTYPES, LAYOUT, exact, needs_a_board
from mpi4py import MPI

import pdla
from pdla import Cyclic, Layout, ProcessGrid, config
from pdla.array import numpy
from pdla.comm import workspace
from pdla.comm.mpi import shared_buffer
from pdla.matmul.schedules import shared

pytestmark = pytest.mark.mpi


needs_memory = pytest.mark.skipif(not config.settings.shared, reason="PDLA_SHARED=0")


def fail(*_):
    raise MemoryError("in the product")


@needs_a_board
@pytest.mark.parametrize("calls", [0, 3])
def test_a_rank_that_fails_in_a_product_and_goes_on_is_an_error_on_every_rank(comm, monkeypatch, calls):
    """In the first product, and in one of the very matrices of the last."""
    if comm.size == 1:
        pytest.skip("one rank fails alike everywhere")
    grid = ProcessGrid((comm.size, 1), comm=comm.split(range(comm.size), "new"))  # no other test goes on with it
    A, B, C = (exact((600, 600), grid, LAYOUT, "float64", seed) for seed in (1, 2, 3))
    plan = pdla.plan_matmul(A, B, out=C, schedule="shared")
    for _ in range(calls):
        plan(A, B, out=C)
    if comm.rank == comm.size - 1:
        with monkeypatch.context() as failing, pytest.raises(MemoryError, match="in the product"):
            failing.setattr(shared, "multiply", fail)
            plan(A, B, out=C)
    else:
        plan(A, B, out=C)
    with pytest.raises(pdla.errors.PdlaError, match=f"rank {comm.size - 1}: went on after an error in a product"):
        A.norm()


@needs_a_board
def test_ranks_that_fail_alike_in_a_product_are_no_turn_behind(comm, monkeypatch):
    """What they multiply afterwards is right: nobody reads what is written for the next product."""
    grid, rng = ProcessGrid((comm.size, 1)), np.random.default_rng(7)
    A, B = (exact((600, 600), grid, LAYOUT, "float64", seed) for seed in (1, 2))
    plan = pdla.plan_matmul(A, B, schedule="shared")
    with monkeypatch.context() as failing, pytest.raises(MemoryError, match="in the product"):
        failing.setattr(shared, "multiply", fail)
        plan(A, B)
    for turn in range(6):
        A, B = (exact((600, 600), grid, LAYOUT, "float64", seed) for seed in rng.integers(0, 100, 2).tolist())
        if comm.rank == turn % comm.size:
            time.sleep(0.02)
        C = plan(A, B)
        comm.barrier()
        assert np.array_equal(C.gather(), A.gather() @ B.gather())
        comm.barrier()


@needs_a_board
def test_memory_that_others_have_taken_is_an_error_on_every_rank(comm, monkeypatch):
    grid = pdla.ProcessGrid((comm.size, 1), comm=comm.split(range(comm.size), "new"))  # with a shared buffer of its own
    A, B = (exact((700, 700), grid, LAYOUT, "float64", seed) for seed in (1, 2))
    plan = pdla.plan_matmul(A, B, schedule="shared")
    with monkeypatch.context() as full:
        full.setattr(shared_buffer, "find_least_free_bytes", lambda _: 1000)
        with pytest.raises(pdla.errors.PdlaError, match="bytes are needed, 1000 are free in /dev/shm"):
            grid.comm.shared_buffer().open(2**24)
        full.setattr(shared_buffer, "SHARED", "/nowhere")  # then nobody knows how much is free where MPI's memory lies
        own = grid.comm.shared_buffer()
        assert len(own.open(2**24)) == 2**24
        own.seal()
        own.leave()
    assert np.array_equal(plan(A, B).gather(), A.gather() @ B.gather())


@needs_a_board
@needs_memory
def test_shared(comm):
    """In memory that the ranks share: small turns, large ones, and the plan that auto makes."""
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size))
    for n, dtype in itertools.product((7, 64, 400, 64), DTYPES):
        A, B = (exact((n, n), grid, LAYOUT, dtype, seed) for seed in (1, 2))
        plan = pdla.plan_matmul(A, B.T)
        assert plan.schedule == ("shared" if comm.size > 1 else "gather")
        C = plan(A, B.T)
        for _ in range(5):
            C.stored.fill(np.nan)
            plan(A, B.T, out=C)
        assert np.array_equal(C.gather(), A.gather() @ B.gather().T)


@needs_a_board
@pytest.mark.parametrize("dtype", [complex, np.complex64, float])
@pytest.mark.parametrize("n", [7, 64])
def test_conjugated_factors_in_memory_that_ranks_share(comm, n, dtype):
    """One of the two, or both; by @, and by a plan that is called again with the same matrices, and then with others."""
    grid = ProcessGrid(pdla.balanced_shape(comm.size))
    A, B = (exact((n, n), grid, LAYOUT, dtype, seed) for seed in (1, 2))
    C, plan = pdla.zeros((n, n), grid, LAYOUT, dtype=dtype), pdla.plan_matmul(A, B, schedule="shared")
    for left, right in ((A.conj(), B), (A, B.conj()), (A.conj(), B.conj()), (A, B)):
        wanted = left.gather() @ right.gather()
        for _ in range(3):
            C.stored.fill(np.nan)
            assert np.array_equal(plan(left, right, out=C).gather(), wanted)
            assert np.array_equal((left @ right).gather(), wanted)
    for left, right in ((A.H, B), (A, B.H), (A.H, B.T), (A.T, B.H), (A.H, B.H)):
        for _ in range(3):
            assert np.array_equal((left @ right).gather(), left.gather() @ right.gather())


@needs_a_board
@pytest.mark.parametrize("n", [64, 600])
def test_nobody_writes_where_a_slow_rank_still_reads(comm, n, monkeypatch):
    grid, slow = pdla.ProcessGrid(pdla.balanced_shape(comm.size)), comm.size - 1
    operands = [exact((n, n), grid, LAYOUT, np.float64, seed) for seed in range(4)]
    wanted = [A.gather() @ A.gather() for A in operands]
    plan, multiply = pdla.plan_matmul(operands[0], operands[0]), numpy.gemm

    def late(*arguments):
        if comm.rank == slow:
            time.sleep(0.02)
        multiply(*arguments)

    plan(operands[0], operands[0])
    monkeypatch.setattr(numpy, "gemm", late)
    products = [plan(A, A) for A in operands * 3]
    assert all(np.array_equal(product.gather(), one) for product, one in zip(products, wanted * 3, strict=True))


@needs_a_board
@pytest.mark.parametrize("k", [24, 100_000])
def test_what_lies_otherwise_is_read_in_place_too(comm, k):
    """By the shared buffer, and by no message; without a plan no more of it is kept than is told, however large it was."""
    grid, other = ProcessGrid(pdla.balanced_shape(comm.size)), ProcessGrid(comm.size, order=range(comm.size)[::-1])
    A = exact((6, k), grid, Layout(Cyclic("row", 1), Cyclic("col", 7)), seed=1)
    B = exact((k, 5), other, Layout("row"), seed=2)
    expected, shared_buffer = A.gather() @ B.gather(), comm.shared_buffer()
    for _ in range(2):
        with pdla.record() as ledger, patch.object(workspace, "KEPT", 2**20):
            C = pdla.matmul(A, B, layout="native", schedule="shared", algorithm="3d", box=(1, 1, comm.size))
        assert np.array_equal(C.gather(), expected)
        assert set(ledger.by_verb()) <= {"read", "reduce_scatter"}
        assert shared_buffer.size <= comm.size * 2**20


def test_message_schedules_where_nothing_is_shared(comm):
    with pdla.config.override(shared=False):
        fresh = MPI.COMM_WORLD.Dup()
        grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=fresh)
        A = exact((20, 20), grid, LAYOUT)
        assert pdla.plan_matmul(A, A).schedule == "gather"
        assert np.array_equal((A @ A).gather(), A.gather() @ A.gather())
        fresh.Free()


@needs_a_board
def test_ranks_that_came_last_and_overlooked_each_other_go_on(comm, monkeypatch):
    from pdla.comm.mpi import futex

    with config.override(crowded=2):
        grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size))
        A = exact((20, 20), grid, LAYOUT)
        plan, expected = pdla.plan_matmul(A, A), A.gather() @ A.gather()
        monkeypatch.setattr(futex, "wake", lambda address: None)
        assert all(np.array_equal(plan(A, A).gather(), expected) for _ in range(10))


@needs_a_board
@needs_memory
def test_a_rank_that_waits_in_shared_memory_lets_messages_through(comm):
    """A message too long to be sent at once is to reach a rank that already waits in a product."""
    if comm.size == 1:
        pytest.skip("one rank sends nothing")
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size))
    A = exact((64, 64), grid, LAYOUT)
    plan = pdla.plan_matmul(A, A)
    plan(A, A)
    assert plan.schedule == "shared"
    theirs, message = MPI.COMM_WORLD.Dup(), np.zeros(1 << 24, np.uint8)
    coming = theirs.Irecv(message, 1) if comm.rank == 0 else None
    if comm.rank == 1:
        theirs.Send(message, 0)
    assert np.array_equal(plan(A, A).gather(), A.gather() @ A.gather())
    if coming is not None:
        coming.Wait()
    theirs.Free()
