"""Slots: what ranks write to them all read, in any order of haste; words as by broadcasts; an error on one is an error on all."""

import numpy as np
import pytest
from helpers.slots import ALL, wanted, written

import pdla
from pdla.comm.slots import COUNT, Slots
from pdla.errors import PdlaError
from pdla.linalg import cholesky, lu_factor, solve_triangular
from pdla.linalg.factorizations.lu import LU

SEEN = pytest.mark.parametrize("limit", [0, 2**30], ids=["messages", "memory"])


@SEEN
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_all_read_what_is_written(ranks, limit):
    def program(comm):
        comm.shared_limit = limit
        for haste in (lambda rank, k: 0, lambda rank, k: 1e-3 * (rank == k % 3)):
            mine = written(comm, haste=haste)
            assert all(np.array_equal(x, y) for x, y in zip(mine, wanted(ranks), strict=True))

    pdla.run(ranks, program)


def test_a_rank_alone():
    with Slots(None, pdla.array.numpy, 4, np.dtype(float)) as slots:
        x = slots.take(3, True)
        assert slots.bcast(x, {0: (ALL,)}).wait() is x


def test_nothing_is_copied_in_memory_that_ranks_share():
    def program(comm):
        comm.shared_limit = 2**30
        with Slots(comm, comm.xp, 4, np.dtype(float)) as slots:
            x = slots.take(4, comm.rank == 0)
            if comm.rank == 0:
                x[...] = 7
            slots.bcast(x, {0: (ALL,)}).wait()
            return x.__array_interface__["data"][0], x.tolist(), comm.world.elements_copied[comm.rank]

    first, *others = pdla.run(3, program)
    assert others == 2 * [first] and first[1:] == ([7.0] * 4, 0)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_rank_counts_its_share_of_memory_that_ranks_share(ranks):
    def program(comm, limit):
        comm.shared_limit = limit
        with pdla.record() as ledger, Slots(comm, comm.xp, 24, np.dtype(float)):
            pass
        return ledger.peak_workspace, ledger.workspace

    assert pdla.run(ranks, program, 2**30) == [(COUNT * 192 // ranks, 0)] * ranks
    assert [peak for peak, _ in pdla.run(ranks, program, 0)] == [COUNT * 192] * ranks


@SEEN
def test_the_same_words_as_in_a_dry_run(limit):
    def program(comm):
        comm.shared_limit = limit
        with pdla.record() as ledger:
            written(comm, 4)
        return ledger.by_verb(), ledger.messages

    ran = pdla.run(3, program)
    assert ran == [pdla.dry_run(3, program, rank=rank)[0] for rank in range(3)]
    others = [4 - 2, 4 - 1, 4 - 1]  # arrays of one rank that come from another
    assert ran == [({"bcast": 8 * (5 * some + 4 * 24)}, some + 4 * 2) for some in others]


def test_a_dry_run_with_clocks_waits_as_for_messages():
    machine = pdla.Machine(bandwidth=1e9, latency=1e-5)

    def program(comm):
        comm.shared_limit = 2**30
        written(comm, 4)

    ran = pdla.dry_run_all(3, program, machine=machine)
    assert all(ledger.seconds > 4e-5 for ledger in ran.ledgers)


@SEEN
def test_an_error_on_one_rank_is_an_error_on_all_and_the_next_call_works(limit):
    def program(comm):
        comm.shared_limit, said = limit, ""
        try:
            with Slots(comm, comm.xp, 8, np.dtype(float)) as slots:
                for k in range(2 * COUNT):
                    x = slots.take(8, comm.rank == k % 2)
                    if comm.rank == k % 2 == 1 and k == COUNT + 1:
                        raise ValueError("amid")
                    slots.bcast(x, {k % 2: (ALL,)}).wait()
                    slots.release()
        except (ValueError, PdlaError) as error:
            said = str(error)
        if not limit:  # messages have no way to tell: the world does, when the rank that failed has ended
            raise PdlaError(said)
        assert all(np.array_equal(x, y) for x, y in zip(written(comm), wanted(3), strict=True))
        return said

    if limit:
        said = pdla.run(3, program)
        assert said[1] == "amid" and all("has left this call by an error" in text for text in (said[0], said[2]))
    else:
        with pytest.raises(PdlaError, match="amid"):
            pdla.run(3, program)


def test_factors_have_the_same_bits_in_memory_that_ranks_share():
    a = np.random.default_rng(0).uniform(-1, 1, (90, 90)) + 90 * np.eye(90)

    def program(comm, shape, limit):
        comm.shared_limit = limit
        grid, layout = pdla.ProcessGrid(shape, comm=comm), pdla.Layout(pdla.Cyclic("row", 16), pdla.Cyclic("col", 16))
        A = pdla.from_global(a, grid, layout)
        L, (X, pivots) = cholesky(A), lu_factor(A)
        T = [solve_triangular(B, A, lower=lower) for B, lower in ((L, True), (L.T, False))]
        return [x.gather() for x in (L, X, *T)] + [pivots, solve_triangular(L, a[0], lower=True)]

    for shape in ((1, 4), (2, 2), (4, 1), (2, 1), (1, 2)):
        ranks = shape[0] * shape[1]
        sent, seen = (pdla.run(ranks, program, shape, limit)[0] for limit in (0, 2**30))
        assert all(np.array_equal(x, y) for x, y in zip(sent, seen, strict=True)), shape


def test_a_failure_amid_a_factorization_is_raised_on_every_rank_and_the_next_call_works(monkeypatch):
    panel = LU._panel

    def failing(self, k):
        if k == 3 and self.cols.here == self.cols.owner(k) and fails:
            raise MemoryError("no room for a panel")
        return panel(self, k)

    monkeypatch.setattr(LU, "_panel", failing)
    fails = [True]
    a = np.random.default_rng(0).uniform(-1, 1, (96, 96))

    def program(comm):
        comm.shared_limit = 2**30
        A = pdla.from_global(a, pdla.ProcessGrid((1, 3), comm=comm), pdla.Layout(cols=pdla.Cyclic("col", 16)))
        with pytest.raises((MemoryError, PdlaError)) as raised:
            lu_factor(A)
        comm.barrier()
        fails.clear()
        return type(raised.value), np.array_equal(lu_factor(A)[0].gather(), lu_factor(A)[0].gather())

    assert pdla.run(3, program) == [(MemoryError, True), (PdlaError, True), (PdlaError, True)]
