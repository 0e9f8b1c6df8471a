"""Gathers into memory that the ranks of a node share."""

import time

import numpy as np
import pytest
from helpers.verbs import (
    around,
    every_place,
    numbers,
)

import pdla
from pdla import config
from pdla.comm.ledger import record

pytestmark = pytest.mark.mpi


@pytest.fixture
def with_gather_buffers(placed):
    """The same, with memory that the ranks of a node share."""
    if config.settings.array != "numpy":
        pytest.skip("devices do not share the host's memory")

    def placing(place):
        comm = placed(place)
        comm.shared_limit = 2**26
        return comm

    return placing


def test_ranks_on_several_nodes_have_no_memory_in_common(with_gather_buffers):
    near, far = with_gather_buffers(lambda r: 0), with_gather_buffers(lambda r: min(r, 1))
    if near.size == 1:
        pytest.skip("one rank is on one node")
    assert near.shared_buffer() is not None and near.common(64) is not None
    assert far.shared_buffer() is None and far.common(64) is None


@every_place
@pytest.mark.parametrize("sizes", [[5, 700], [2**20], [9, 2**20, 3, 3, 2**20 + 1, 2**21, 2**19, 1]], ids=str)
@pytest.mark.parametrize("share", [lambda r: (r * r + r) % 5, lambda r: r % 2], ids=["some empty", "some bring none"])
def test_gather_buffers(with_gather_buffers, place, sizes, share):
    """Turn after turn, by ranks that come early and late, nobody sees anything but this turn's pieces."""
    comm, delays = with_gather_buffers(place), np.random.default_rng(len(sizes)).random((8, 64)) * 2e-3
    delays[:4, -1] = 2e-2  # the first rank reads late
    for turn, late in enumerate(delays):
        lengths = [sizes[turn % len(sizes)] * share(r) // 4 for r in range(comm.size)]
        gather_buffer = comm.gather_buffer(sum(lengths), comm.size)
        if gather_buffer is None:
            assert comm.nodes in (1, comm.size)
            return
        outs = [gather_buffer.take(comm.xp, (length,), np.int8) for length in lengths]
        time.sleep(late[comm.rank])
        with record() as ledger:
            for owner in comm.allgather(np.full(lengths[comm.rank], comm.rank + turn, np.int8), outs, gather_buffer=gather_buffer):
                assert (outs[owner] == owner + turn).all()
        (event,) = ledger.events
        assert (event.way, event.bytes) == (around(comm), sum(lengths) - lengths[comm.rank])
        time.sleep(late[-1 - comm.rank])
        assert all((out == owner + turn).all() for owner, out in enumerate(outs))
        del outs
        gather_buffer.leave()


@every_place
@pytest.mark.parametrize(
    ("shape", "layouts"),
    [
        ((40, 24, 36), ("row", "col")), ((400, 12, 36), ("row", None)),
        ((9, 250, 5), (None, "col")), ((7, 3, 300), ("col", "row")),
    ],
    ids=str,
)
def test_products_in_gather_buffers(with_gather_buffers, place, shape, layouts):
    comm = with_gather_buffers(place)
    m, n, k = shape
    grid = pdla.ProcessGrid((2, comm.size // 2) if comm.size % 2 == 0 else (comm.size, 1), comm=comm)
    plan = None
    for turn in range(4):
        a, b = numbers(turn, (m, k)), numbers(turn + 1, (k, n))
        A, B = (pdla.from_global(x, grid, pdla.Layout(*cuts)) for x, cuts in ((a, layouts), (b, ("row", "col"))))
        plan = plan or pdla.plan_matmul(A, B, algorithm="gather")
        with record() as ledger:
            C = plan(A, B)
        np.testing.assert_array_equal(C.gather(), a @ b)
        assert ledger.peak_workspace <= plan.predicted.peak_workspace, plan.explain()
        assert ledger.bytes_received <= plan.predicted.bytes_received
