"""Plans: the workspace that they promise, and what they keep."""

import gc
import itertools
import os
import re
import weakref
from pathlib import Path

import numpy as np
import pytest
from helpers.matmuls import LAYOUT, exact, needs_a_board

import pdla
from pdla import Cyclic, Layout, ProcessGrid, config

pytestmark = pytest.mark.mpi


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
