"""Slots in memory that processes share: what is written is read, whoever is late, and an error on one rank is an error on all."""

import random
import time

import numpy as np
import pytest
from helpers.slots import wanted, written

import pdla
from pdla import Cyclic, Layout, config
from pdla.comm.slots import COUNT, Slots
from pdla.comm.workspace import KEPT
from pdla.errors import PdlaError
from pdla.linalg import lu_factor
from pdla.linalg.routines.lu import FlatLU

pytestmark = pytest.mark.mpi
needs_memory = pytest.mark.skipif(not config.settings.shared or config.settings.array != "numpy", reason="no shared memory")


def test_all_read_what_is_written(comm):
    host = comm.xp.host
    for most in (0, 3e-3):
        mine = written(comm, 6 * COUNT, lambda rank, k, most=most: random.random() * most)
        assert all(np.array_equal(host(x), y) for x, y in zip(mine, wanted(comm.size, 6 * COUNT), strict=True))


@needs_memory
def test_no_message_is_sent(comm):
    with pdla.record() as ledger:
        written(comm)
    assert {event.way for event in ledger.events if event.what == "bcast"} <= {"slots"}


@needs_memory
def test_an_error_on_one_rank_is_an_error_on_all_and_the_next_call_works(comm):
    late = comm.size - 1
    for turn in (0, 1, COUNT + 1):
        with pytest.raises((ValueError, PdlaError)) as raised, Slots(comm, comm.xp, 2**18, np.dtype(float)) as slots:
            for k in range(4 * COUNT):
                x = slots.take(2**18, comm.rank == late)
                if k == turn and comm.rank == late:
                    time.sleep(0.02)
                    raise ValueError("amid")
                slots.bcast(x, {late: (slice(None),)}).wait()
                slots.release()
        assert "amid" in str(raised.value) or "has left this call by an error" in str(raised.value)
        assert all(np.array_equal(x, y) for x, y in zip(written(comm), wanted(comm.size), strict=True))


@needs_memory
def test_a_failure_amid_a_factorization_is_raised_on_every_rank_and_the_next_call_works(comm, monkeypatch):
    panel, late = FlatLU.factor_panel, comm.size - 1
    n = 48 * comm.size
    A = pdla.random((n, n), pdla.ProcessGrid((1, comm.size), comm=comm), Layout(cols=Cyclic("col", 16)), seed=1)
    wanted, _ = lu_factor(A)

    def failing(self, k, last):
        if k == late + comm.size and self.cols.rank == late:
            raise MemoryError("no room for a panel")
        return panel(self, k, last)

    if comm.size > 1:
        monkeypatch.setattr(FlatLU, "factor_panel", failing)
        with pytest.raises((MemoryError, PdlaError)):
            lu_factor(A)
        monkeypatch.undo()
    assert np.array_equal(lu_factor(A)[0].gather(), wanted.gather())


@needs_memory
def test_more_than_is_kept_for_the_next_call_is_freed(comm):
    """Of KEPT bytes a rank all stay; of more none."""
    host, shared = np.dtype(np.uint8), comm.split(range(comm.size), "slots")
    for a_rank, kept in ((KEPT, True), (KEPT + 64, False), (2**22, True)):
        with Slots(shared, comm.xp, a_rank * comm.size // COUNT, host):
            pass
        assert (shared.shared_buffer().size == a_rank * comm.size) if kept else shared.shared_buffer().size == 0
