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
                for shown, at_once in ((2**40, 1), (0, 2**24), (0, 2**10)):
                    monkeypatch.setattr(redistribute, "SHOWN", shown)
                    monkeypatch.setattr(redistribute, "ROUND", at_once)
                    with pdla.record() as ledger:
                        X = A.redistribute(target, to)
                    ways.append((X.local.copy(), (ledger.bytes_received, ledger.messages)))
                for way in ways[1:]:
                    assert np.array_equal(way[0], ways[0][0]) and way[1] == ways[0][1], (source, target)


@needs_memory
@pytest.mark.parametrize("wanted", [Layout(cols="row"), Layout(Cyclic("row", 7)), Layout()], ids=repr)
def test_the_memory_for_large_matrices_is_kept_for_the_next_one(comm, monkeypatch, wanted):
    """They are there in rounds, of less than what is kept."""
    monkeypatch.setattr(redistribute, "KEPT", 2**21)
    monkeypatch.setattr(redistribute, "ROUND", 2**20)
    A = pdla.random((1500, 900), pdla.ProcessGrid(comm.size, comm=comm), Layout("row"), seed=1)
    A.redistribute(wanted)  # gives back what other tests have left, if it is more
    with pdla.record() as ledger:
        first = A.redistribute(wanted)
        if comm.size > 1:
            grown = comm.shared_buffer().grown
            assert all(np.array_equal(A.redistribute(wanted).local, first.local) for _ in range(2))
            assert comm.shared_buffer().grown == grown and comm.shared_buffer().size <= 2**21 * comm.size
    assert ledger.peak_workspace <= 2**21


@needs_memory
@pytest.mark.parametrize("limit", [2**30, 2**10])
def test_no_message_is_sent(comm, monkeypatch, limit):
    """Also of a matrix that is larger than the memory that ranks may share."""
    monkeypatch.setattr(redistribute, "SHOWN", 0)
    monkeypatch.setattr(comm, "shared_limit", limit)
    A = pdla.random((40, 40), pdla.ProcessGrid(comm.size, comm=comm), Layout("row"))
    with pdla.record() as ledger:
        A.redistribute(Layout(cols="row"))
    assert {event.what for event in ledger.events} == {"read" if comm.size > 1 else "alltoall"}
