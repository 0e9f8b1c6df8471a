"""The products of the unit tests, over MPI."""

import gc
import itertools
import os
import re
import time
import weakref
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from matmuls import DTYPES, LAYOUT, check_product, exact, needs_a_board
from mpi4py import MPI

import pdla
from pdla import Cyclic, Layout, ProcessGrid, config
from pdla.array import numpy
from pdla.comm import workspace
from pdla.comm.mpi import shared_buffer
from pdla.matmul.schedules import shared

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("algorithm", [*pdla.algorithms, "fetch"])
def test_bitwise(comm, algorithm):
    dtypes = itertools.cycle(DTYPES)
    for shape in sorted({pdla.balanced_shape(comm.size), (comm.size, 1), (1, comm.size)}):
        grid = pdla.ProcessGrid(shape)
        for mnk, hows in itertools.product(((0, 3, 2), (3, 2, 0), (1, 1, 1), (13, 4, 17), (60, 47, 100)), ("NN", "TN", "NC", "TT")):
            check_product(grid, mnk, next(dtypes), algorithm, *hows, panel=7)


@pytest.mark.parametrize("algorithm", pdla.algorithms)
def test_bytes_equal_the_dry_run(comm, algorithm):
    def product(world):
        grid = pdla.ProcessGrid(pdla.balanced_shape(world.size), comm=world)
        A = pdla.zeros((31, 31), grid, pdla.Layout("row", "col"))
        with pdla.record() as ledger:
            pdla.matmul(A, A.T, algorithm=algorithm, panel=5)
        return ledger.bytes_received, ledger.messages, ledger.flops

    def dry(world):
        world.homes, world.shared_limit = comm.homes, comm.shared_limit  # by them the choice differs
        return product(world)

    assert product(comm) == pdla.dry_run(comm.size, dry, rank=comm.rank)[0]


@pytest.mark.skipif(config.settings.array != "numpy", reason="devices pack into memory of the host")
@pytest.mark.parametrize("mnk", [(30, 20, 40), (7, 90, 11), (16, 16, 400)], ids=str)
def test_workspace_with_conversions_is_what_the_plan_promises(comm, mnk):
    """What is packed to be sent is part of it."""
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size))
    m, n, k = mnk
    A, B, C = (pdla.zeros(shape, grid, LAYOUT) for shape in ((m, k), (k, n), (m, n)))
    for asked in ({"algorithm": "gather"}, {"algorithm": "3d"}, {"algorithm": "2.5d"}, {"schedule": "fetch", "panel": 3}):
        plan = pdla.plan_matmul(A, B, out=C, **asked)
        with pdla.record() as ledger:
            plan(A, B, out=C)
        assert plan.predicted.peak_workspace == ledger.total(comm)["max_peak_workspace"], plan.explain()


needs_proc = pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak of memory that can be set back")
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
    with pytest.raises(pdla.errors.PdlaError, match=f"rank {comm.size - 1}: went on after an error amid a product"):
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
        full.setattr(shared_buffer, "least_room", lambda _: 1000)
        with pytest.raises(pdla.errors.PdlaError, match="bytes are wanted, 1000 are free in /dev/shm"):
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


@pytest.mark.skipif(config.settings.array != "numpy", reason="devices share no shared buffer")
def test_a_plan_goes_from_matrices_to_others_and_keeps_none(comm):
    """What it has looked at is kept for the next run with the same: until a run with others, or the matrices' end, or a
    larger product has the shared buffer moved."""
    grid, n = ProcessGrid(pdla.balanced_shape(comm.size)), 24
    made = [[exact((n, n), grid, LAYOUT, np.dtype(float), seed) for seed in (i, i + 1)] for i in (1, 3)]
    C, D = (pdla.zeros((n, n), grid, LAYOUT) for _ in "CD")
    plan = pdla.plan_matmul(*made[0], out=C, schedule="shared")
    for turn, (A, B) in enumerate([made[0], made[0], made[1], made[0], *3 * [made[1]]]):
        for out in (C, D, D)[:: -1 if turn % 2 else 1]:
            A.stored.fill(turn)  # it lies where it lay, with other numbers
            out.stored.fill(np.nan)
            plan(A, B, out=out, alpha=2)
            assert np.array_equal(out.gather(), 2 * A.gather() @ B.gather())
            plan(A, B, out=out, beta=3)
            assert np.array_equal(out.gather(), 7 * A.gather() @ B.gather())
        large = pdla.zeros((n << turn, n << turn), grid, LAYOUT)
        pdla.matmul(large, large, schedule="shared")
    blocks = [weakref.ref(X.base) for X in (*made[0], *made[1], C, D)]
    del A, B, C, D, out, made
    gc.collect()
    assert [block() for block in blocks] == [None] * 6


@needs_a_board
def test_a_plan_run_again_multiplies_what_the_blocks_hold_now(comm):
    """Also where the rows of A that go to one rank lie apart, so that they are copied to be written there."""
    grid = ProcessGrid((comm.size,))
    A, B = exact((24, 4), grid, Layout("row"), seed=1), exact((4, 40), grid, Layout("row"), seed=2)
    C = pdla.zeros((24, 40), grid, Layout(Cyclic("row", 2)))
    plan = pdla.plan_matmul(A, B, out=C, schedule="shared")
    for _ in range(4):
        A.local[...] += 1
        assert np.array_equal(plan(A, B, out=C).gather(), A.gather() @ B.gather())


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


def test_workspace_of_parts_and_blocks_with_gaps_is_what_the_plan_promises(comm):
    """What has gaps is packed to be sent."""
    grid = ProcessGrid(pdla.balanced_shape(comm.size))
    whole, layout = exact((90, 70), grid, LAYOUT, seed=1), Layout("col", "row")
    shape = pdla.zeros((40, 50), grid, layout).local.shape

    def nought(*shape):
        return comm.xp.asarray(np.zeros(shape))

    lying = {"C": nought(shape[0], 2 * shape[1])[:, : shape[1]], "F": nought(shape[1], 2 * shape[0]).T[: shape[0]]}
    blocks = [lying["C"], lying["F"], lying["CF"[comm.rank % 2]], nought(*shape, 2)[..., 0]]
    row = nought(len(pdla.zeros((1, 40), grid, Layout(cols="col")).local[0]), 3).T[:1]
    with config.override(shared=False):
        parts = whole[3:80, 5:45], whole[10:50, 3:70].T, whole[10:50, 3:70].T * 2
        others = [pdla.from_local(row, (1, 40), grid, Layout(cols="col"))]
        for A, block in itertools.product((*parts, *others), blocks):
            B = pdla.from_local(block, (40, 50), grid, layout)
            for options in ({"algorithm": "gather"}, {"algorithm": "summa", "panel": 9}, {"algorithm": "3d"}):
                plan = pdla.plan_matmul(A, B, **options)
                with pdla.record() as ledger:
                    plan(A, B)
                total, cost = ledger.total(comm), plan.predicted
                assert total["max_bytes_received"] == cost.bytes_received
                assert total["max_peak_workspace"] <= cost.peak_workspace, (A, options)


LONG, FLAT = (16, 16, 2**20), (4096, 4096, 8)
CYCLIC = Layout(Cyclic("row", 3)), Layout(cols=Cyclic("row", 5)), Layout()


@needs_proc
@pytest.mark.skipif(config.settings.array != "numpy", reason="what devices hold is not in the process")
@pytest.mark.parametrize(
    ("mnk", "layouts", "dtype", "options"),
    [
        (LONG, CYCLIC, "float64", {"algorithm": "gather"}),
        (LONG, CYCLIC, "complex128", {"algorithm": "gather"}),
        (LONG, CYCLIC, "float16", {"algorithm": "3d", "schedule": "gather"}),
        (LONG, CYCLIC, "float64", {"memory_limit": 2**26}),
        (LONG, CYCLIC, "float64", {"schedule": "shared"}),
        (FLAT, (Layout(cols="row"), Layout("row"), Layout("row")), "float64", {"algorithm": "3d", "schedule": "gather"}),
    ],
)
def test_a_process_grows_by_no_more_than_the_plan_promises(comm, mnk, layouts, dtype, options):
    """Within 64 MiB, what BLAS and MPI take among it; of memory that ranks share, a rank's part."""
    if comm.size == 1 or (options.get("schedule") == "shared" and comm.shared_buffer() is None):
        pytest.skip("one rank sends nothing; on several nodes ranks share no memory")
    grid, (m, n, k) = ProcessGrid(comm.size), mnk
    A, B, C = (pdla.ones(s, grid, to, dtype=dtype) for s, to in zip(((m, k), (k, n), (m, n)), layouts, strict=True))
    plan = pdla.plan_matmul(A.conj(), B.conj(), out=C, **options, **({"box": (1, 1, comm.size)} if mnk == FLAT else {}))
    before = memory(fresh=True)
    plan(A.conj(), B.conj(), out=C)
    after = memory()
    shared = after["RssShmem"] - before["RssShmem"]
    growth = after["VmHWM"] - before["VmRSS"] - shared + shared // comm.size
    assert growth <= plan.predicted.peak_workspace + 2**26, plan.explain()


def memory(fresh=False):
    """Bytes of this process: those it has, those it shares, and the most it had since it was last asked afresh."""
    if fresh:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
    return {name: 1024 * int(size) for name, size in re.findall(r"(\w+):\s+(\d+) kB", Path("/proc/self/status").read_text())}


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
