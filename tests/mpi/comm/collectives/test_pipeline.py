"""Sums from node to node."""

from math import inf

import numpy as np
import pytest
from helpers.verbs import PIECE

from pdla.comm.collectives import pipeline
from pdla.comm.ledger import record

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("length", [0, 5, 3 * PIECE // 8 + 1], ids=["empty", "short", "in pieces"])
def test_sums_from_node_to_node(placed, monkeypatch, length):
    """Of random addends: the same bits as sent directly; other verbs are under way meanwhile."""
    monkeypatch.setattr(pipeline, "STEP", -inf)
    monkeypatch.setattr(pipeline, "CHUNK", 64)
    direct, comm = placed(lambda r: 0), placed(lambda r: r // 2)
    rng = np.random.default_rng(comm.rank)
    parts = [comm.xp.asarray(rng.standard_normal((length + r, 2))) for r in range(comm.size)]
    ways, outs = [], []
    for each in (direct, comm):
        outs.append(comm.xp.empty(parts[comm.rank].shape, "float64"))
        with record() as ledger:
            coming = each.reduce_scatter(parts, outs[-1])
            each.allreduce(comm.xp.asarray(np.ones(4))).wait()
            coming.wait()
        ways.append(ledger.events[-1].way)
    np.testing.assert_array_equal(*map(comm.xp.host, outs))
    assert ways == ["", "pipeline" if comm.adds and comm.size in (4, 6) else ""]
