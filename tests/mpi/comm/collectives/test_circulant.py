"""Short pieces of many ranks in few steps."""

import numpy as np
import pytest

from pdla.comm.collectives import circulant
from pdla.comm.ledger import record
from pdla.comm.threads import run

pytestmark = pytest.mark.mpi


def in_steps(comm):
    """Short pieces gathered, and random addends summed in two ways, all under way together: the bits of the sums, and the ways."""
    rng = np.random.default_rng(comm.rank)
    x, parts = rng.standard_normal(23), [rng.standard_normal((r % 3, 2)) for r in range(comm.size)]
    x, *parts = (comm.xp.asarray(each) for each in (x, *parts))
    out, outs = comm.xp.empty((comm.rank % 3, 2), "float64"), [comm.xp.empty((r % 3, 4), "int8") for r in range(comm.size)]
    mine = comm.xp.asarray(np.full((comm.rank % 3, 4), comm.rank, "int8"))
    with record() as ledger:
        pending = comm.reduce_scatter(parts, out), comm.allgather(mine, outs), comm.allreduce(x)
        for each in pending:
            each.wait()
    assert all(np.array_equal(comm.xp.host(each), np.full((r % 3, 4), r)) for r, each in enumerate(outs))
    return comm.xp.host(out).tolist(), comm.xp.host(x).tolist(), [(event.what, event.way, event.bytes) for event in ledger.events]


def test_short_pieces_in_steps(comm, monkeypatch):
    if hasattr(comm, "nccl"):
        pytest.skip("steps begin when they are waited for, and NCCL's calls must come in one order")
    monkeypatch.setattr(circulant, "MANY", 2)
    assert in_steps(comm) == run(comm.size, in_steps)[comm.rank]
