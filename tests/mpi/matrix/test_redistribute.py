"""Large matrices are redistributed by memory that ranks share: the same elements, as many words as by messages."""

import numpy as np
import pytest

import pdla
from pdla import Cyclic, Layout, config
from pdla.matrix import redistribute

pytestmark = pytest.mark.mpi
needs_memory = pytest.mark.skipif(not config.settings.shared or config.settings.array != "numpy", reason="no shared memory")

LAYOUTS = (Layout("row", "col"), Layout(Cyclic("row", 5), Cyclic("col", 3)), Layout(cols=("row", "col")), Layout("row"), Layout())


@needs_memory
@pytest.mark.parametrize("view", [lambda A: A, lambda A: A.T, lambda A: A.H], ids=["A", "AT", "AH"])
def test_by_shared_memory_as_by_messages(comm, monkeypatch, view):
    a = np.random.default_rng(0).uniform(-1, 1, (61, 47)) + 1j * np.arange(47)
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)
    other = pdla.ProcessGrid((max(1, comm.size - 1), 1), comm=comm)  # on which a rank is idle
    for source in LAYOUTS:
        A = view(pdla.from_global(a, grid, source))
        for target in LAYOUTS:
            for to in (grid, other):
                ways = []
                for shown in (0, 2**40):
                    monkeypatch.setattr(redistribute, "SHOWN", shown)
                    with pdla.record() as ledger:
                        X = A.redistribute(target, to)
                    ways.append((X.local.copy(), ledger.bytes_received))
                assert np.array_equal(ways[0][0], ways[1][0]) and ways[0][1] == ways[1][1], (source, target)


@needs_memory
def test_no_message_is_sent(comm, monkeypatch):
    monkeypatch.setattr(redistribute, "SHOWN", 0)
    A = pdla.random((40, 40), pdla.ProcessGrid(comm.size, comm=comm), Layout("row"))
    with pdla.record() as ledger:
        A.redistribute(Layout(cols="row"))
    assert {event.what for event in ledger.events} == {"read" if comm.size > 1 else "alltoall"}
