"""Slots: what ranks write to them all read, in any order of haste; words as by broadcasts; an error on one is an error on all."""

import importlib
from math import prod
from time import sleep

import numpy as np
import pytest
from helpers.slots import ALL, wanted, when_others_wait, written

import pdla
from pdla.comm.slots import COUNT, RELEASED, Slots
from pdla.errors import PdlaError
from pdla.linalg import cholesky, lu_factor, solve_triangular
from pdla.linalg.panels.blocks import cut_in_blocks
from pdla.linalg.routines.lu import FlatLU

kernels, lu_steps, triangular_steps = (
    importlib.import_module(f"pdla.linalg.{name}") for name in ("panels.kernels", "routines.lu", "routines.triangular")
)

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


def late(comm, slow, parts):
    """What a rank reads of each array; `slow` reads only once the others have gone as far as they can. parts: see Slots.bcast."""
    comm.shared_limit, read = 2**30, []
    with Slots(comm, comm.xp, 3, np.dtype(float)) as slots:
        for k in range(3 * COUNT):
            x = slots.take(3, comm.rank in parts)
            for rows in parts.get(comm.rank, ()):
                x[rows] = k
            slots.bcast(x, parts).wait()
            if comm.rank == slow:
                when_others_wait(comm)
            read.append(set(x.tolist()))
            slots.release()
    return read


@pytest.mark.parametrize(("writer", "slow"), [(w, s) for w in range(3) for s in range(3) if w != s])
def test_a_slot_is_not_written_to_before_each_reader_has_released_it(writer, slow):
    assert pdla.run(3, late, slow, {writer: (ALL,)})[slow] == [{float(k)} for k in range(3 * COUNT)]


@pytest.mark.parametrize("slow", range(3))
def test_a_slot_of_which_all_write_a_part_is_not_written_to_by_any_before_all_have_released_it(slow):
    parts = {rank: (slice(rank, rank + 1),) for rank in range(3)}
    assert pdla.run(3, late, slow, parts)[slow] == [{float(k)} for k in range(3 * COUNT)]


def test_slots_hold_so_many_arrays_that_nobody_has_released():
    """A writer is ahead by so many, and no more: who waits for one release too many would wait for ever."""

    def program(comm):
        comm.shared_limit = 2**30
        with Slots(comm, comm.xp, 1, np.dtype(float)) as slots:
            taken = [slots.take(1, comm.rank == 0) for _ in range(COUNT)]
            if comm.rank == 0:
                for k, x in enumerate(taken):
                    x[...] = k
            comm.barrier()
            read = [float(x[0]) for x in taken]
            for _ in range(COUNT):
                slots.release()
        return read

    assert pdla.run(3, program) == [[0.0, 1.0, 2.0, 3.0]] * 3


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


def test_a_rank_that_left_is_noticed_also_where_it_has_told_enough_before():
    def program(comm):
        comm.shared_limit = 2**30
        raised = pytest.raises(PdlaError if comm.rank == 0 else ZeroDivisionError)
        with raised as error, Slots(comm, comm.xp, 1, np.dtype(float)) as slots:
            for _ in range(3):
                slots.take(1, False)
                slots.release()
            comm.barrier()
            slots.take(1, comm.rank == 0)  # the writer now knows of all three
            if comm.rank:
                raise ZeroDivisionError
            slots.release()
            when_gone(slots)
            slots.take(1, True)
        return str(error.value)

    def when_gone(slots):
        slots.shared_buffer.wait_until("an error", lambda: slots.shared_buffer.may_have_left(RELEASED))

    assert pdla.run(2, program)[0] == "writing to a slot on 'all': rank 1 of 2 has left this call by an error"


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


def test_a_writer_that_waits_for_a_reader_hears_that_it_has_left_by_an_error():
    def program(comm):
        comm.shared_limit = 2**30
        with pytest.raises((ValueError, PdlaError)) as raised, Slots(comm, comm.xp, 1, np.dtype(float)) as slots:
            if comm.rank == 1:
                when_others_wait(comm)
                raise ValueError("amid")
            for _ in range(COUNT + 1):
                slots.take(1, True)
        comm.barrier()
        return str(raised.value)

    assert pdla.run(2, program) == ["writing to a slot on 'all': rank 1 of 2 has left this call by an error", "amid"]


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


@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (2, 2), (1, 5), (5, 1), (2, 3), (1, 1, 2), (2, 2, 2)])
def test_nothing_is_read_in_a_slot_that_was_released(shape, monkeypatch):
    """Of messages each rank has slots of its own, which are overwritten as soon as it has released them."""
    a = np.random.default_rng(0).uniform(-1, 1, (48, 48)) + 48 * np.eye(48)

    def results(comm):
        comm.shared_limit = 0
        grid, layout = pdla.ProcessGrid(shape, comm=comm), cut_in_blocks(shape, 4)
        A = pdla.from_global(a, grid, layout)
        X, pivots = lu_factor(A)
        T = [solve_triangular(B, A, lower=lower) for B, lower in ((A, True), (A.T, False))]
        return [x.gather() for x in (cholesky(A), X, *T)] + [pivots, solve_triangular(A, a[0], lower=True)]

    def released(self, release=Slots.release):
        release(self)
        if self.shared_buffer is None:
            lost.append(self.own[(self.released - 1) % COUNT])
            lost[-1][...] = np.nan

    lost = []
    right = pdla.run(prod(shape), results)[0]
    monkeypatch.setattr(Slots, "release", released)
    for found in pdla.run(prod(shape), results):
        assert all(np.array_equal(x, y) for x, y in zip(found, right, strict=True))
    assert lost


@pytest.mark.parametrize(("shape", "slow"), [((1, 6), 0), ((1, 6), 3), ((6, 1), 5), ((2, 3), 4)])
def test_a_rank_that_is_as_late_as_the_others_allow_reads_what_was_written_for_it(shape, slow, monkeypatch):
    """It goes on from each release, and into each product of its updates, only when all others wait."""
    a = np.random.default_rng(0).uniform(-1, 1, (48, 48)) + 48 * np.eye(48)

    def results(comm, limit):
        comm.shared_limit = limit
        A = pdla.from_global(a, pdla.ProcessGrid(shape, comm=comm), cut_in_blocks(shape, 4))
        X, pivots = lu_factor(A)
        return [x.gather() for x in (cholesky(A), X, solve_triangular(A, A, lower=True))] + [pivots]

    def late(call):
        def called(*given):
            if (comm := pdla.world()).rank == slow and comm.shared_limit:
                when_others_wait(comm)
            return call(*given)

        return called

    right = pdla.run(6, results, 0)[0]
    for module in (kernels, lu_steps, triangular_steps):
        monkeypatch.setattr(module, "multiply", late(module.multiply))
    monkeypatch.setattr(Slots, "release", late(Slots.release))
    for found in pdla.run(6, results, 2**30):
        assert all(np.array_equal(x, y) for x, y in zip(found, right, strict=True))


def test_a_failure_amid_a_factorization_is_raised_on_every_rank_and_the_next_call_works(monkeypatch):
    panel = FlatLU.factor_panel

    def failing(self, k, last):
        if k == 3 and self.cols.rank == self.cols.owner[k] and fails:
            raise MemoryError("no room for a panel")
        return panel(self, k, last)

    monkeypatch.setattr(FlatLU, "factor_panel", failing)
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


@SEEN
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_sums_between_broadcasts(ranks, limit):
    """In rank order, of sums one after another, whoever is late; the ledger counts those of an all-reduce."""

    def addend(k, rank):
        return (np.arange(1.0, 8 - k % 3) * 3**rank + k).reshape(-1, 1)

    def program(comm):
        comm.shared_limit = limit
        with pdla.record() as ledger, Slots(comm if ranks > 1 else None, comm.xp, 4, np.dtype(float), addends=7) as slots:
            for k in range(9):
                x = slots.take(4, comm.rank == 0)
                if comm.rank == 0:
                    x[...] = k
                coming, y = slots.bcast(x, {0: (ALL,)}), addend(k, comm.rank)
                if comm.rank == k % ranks:
                    sleep(1e-3)
                slots.sum(y)
                assert np.array_equal(y, sum(addend(k, rank) for rank in range(ranks)))
                assert (coming.wait() == k).all()
                slots.release()
        return ledger.by_verb().get("allreduce", 0)

    received, words = pdla.run(ranks, program), sum(len(addend(k, 0)) for k in range(9))
    assert sum(received) == 8 * 2 * (ranks - 1) * words


@SEEN
def test_an_error_of_one_rank_ends_the_sums_of_others(limit):
    def program(comm):
        comm.shared_limit = limit
        with pytest.raises((ValueError, PdlaError)) as raised, Slots(comm, comm.xp, 1, np.dtype(float), addends=3) as slots:
            slots.sum(np.ones((3, 1)))
            if comm.rank == 1:
                raise ValueError("no addend")
            slots.sum(np.ones((3, 1)))
        return type(raised.value)

    if limit:
        assert pdla.run(2, program) == [PdlaError, ValueError]
