"""The world of threads: what its verbs bring and count, and how it ends when a program is wrong."""

import time

import numpy as np
import pytest

from pdla import record, run
from pdla.errors import AgreementError, DeadlockError, PdlaError, RemoteError


def numbers(rank, shape, dtype="float64"):
    """Small integers that tell ranks and places apart."""
    return ((np.arange(np.prod(shape)).reshape(shape) * 7 + rank * 3) % 11).astype(dtype)


# ---------------------------------------------------------------------------------------------- verbs


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_every_verb(size):
    def program(comm):
        me = comm.rank
        for root in range(size):
            np.testing.assert_array_equal(comm.bcast(numbers(me, (3, 2)), root).wait(), numbers(root, (3, 2)))
            total = comm.reduce(numbers(me, (2, 2)), root).wait()
            assert (total is None) == (me != root)
            if me == root:
                np.testing.assert_array_equal(total, sum(numbers(r, (2, 2)) for r in range(size)))
        x = numbers(me, (5, 3))
        assert comm.allreduce(x).wait() is x
        np.testing.assert_array_equal(x, sum(numbers(r, (5, 3)) for r in range(size)))
        outs = comm.allgather(numbers(me, (me % 3, 4)), [np.empty((r % 3, 4)) for r in range(size)]).wait()
        for r, out in enumerate(outs):
            np.testing.assert_array_equal(out, numbers(r, (r % 3, 4)))
        part = comm.reduce_scatter([numbers(me + r, (r % 2, 3)) for r in range(size)], np.empty((me % 2, 3))).wait()
        np.testing.assert_array_equal(part, sum(numbers(me + r, (me % 2, 3)) for r in range(size)))
        for step in (1, -1, 2, size):
            out = comm.shift(numbers(me, (2, 3)), np.empty((2, 3)), step).wait()
            np.testing.assert_array_equal(out, numbers((me - step) % size, (2, 3)))
        comm.barrier()

    run(size, program)


def test_alltoall_between_some_ranks_into_strided_views():
    def program(comm):
        outs = {r: np.zeros((4, 6))[::2, ::3].T for r in range(4) if (r + 2 * comm.rank) % 3}
        sends = {t: numbers(10 * comm.rank + t, (2, 2)).T for t in range(4) if (comm.rank + 2 * t) % 3}
        comm.alltoall(sends, outs).wait()
        for r, out in outs.items():
            np.testing.assert_array_equal(out, numbers(10 * r + comm.rank, (2, 2)).T)

    run(4, program)


def test_send_and_recv_match_by_tag():
    def program(comm):
        ahead, back = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        sent = [comm.send(numbers(comm.rank + tag, (2, 2)), ahead, tag) for tag in (0, 7)]
        for tag in (7, 0):
            np.testing.assert_array_equal(comm.recv(np.empty((2, 2)), back, tag).wait(), numbers(back + tag, (2, 2)))
        for pending in sent:
            pending.wait()

    run(3, program)


def test_verbs_under_way_together_are_told_apart():
    def program(comm):
        group = comm.split([r for r in range(4) if r % 2 == comm.rank % 2], "half")
        panels = [numbers(comm.rank + i, (i + 1, 3)) for i in range(5)]
        pending = [(comm if i % 2 else group).bcast(panel, 1) for i, panel in enumerate(panels)]
        for i in reversed(range(5)):
            root = 1 if i % 2 else 2 + comm.rank % 2
            np.testing.assert_array_equal(pending[i].wait(), numbers(root + i, (i + 1, 3)))

    run(4, program)


def test_results_come_by_rank_and_arguments_go_to_all():
    assert run(3, lambda comm, a, b: (comm.rank, comm.size, a + b), 1, 2) == [(r, 3, 3) for r in range(3)]
    with pytest.raises(PdlaError, match="at least one rank, not 0"):
        run(0, lambda comm: None)


# ---------------------------------------------------------------------------------------------- counting


def test_the_ledger_counts_what_the_world_copies():
    def program(comm):
        grid_half = comm.split([r for r in range(6) if r % 2 == comm.rank % 2], "half")
        with record() as ledger:
            comm.bcast(numbers(comm.rank, (5, 4)), 2).wait()
            grid_half.allgather(
                numbers(0, (comm.rank, 2)), [np.empty((2 * i + comm.rank % 2, 2)) for i in range(3)]
            ).wait()
            comm.allreduce(numbers(comm.rank, (7, 3), "complex64")).wait()
            grid_half.reduce(numbers(comm.rank, (3, 3), "float32"), 1).wait()
            comm.reduce_scatter([numbers(0, (r, 2)) for r in range(6)], np.empty((comm.rank, 2))).wait()
            comm.shift(numbers(0, (4, 4), "int8"), np.empty((4, 4), "int8"), 2).wait()
            sent = comm.send(numbers(0, (2, 5)).T, (comm.rank + 1) % 6)
            comm.recv(np.empty((5, 2)), (comm.rank - 1) % 6).wait()
            sent.wait()
        comm.barrier()
        assert ledger.bytes_received == comm.world.bytes_copied[comm.rank]
        assert sum(ledger.by_axis().values()) == sum(ledger.by_verb().values()) == ledger.bytes_received
        assert set(ledger.by_axis()) == {"all", "half"}
        total = ledger.total(comm)
        assert total["bytes_received"] == sum(comm.world.bytes_copied)
        assert total["max_bytes_received"] == max(comm.world.bytes_copied)
        return ledger

    ledgers = run(6, program)
    assert ledgers[0].by_verb()["bcast"] == 5 * 4 * 8 and "bcast" not in ledgers[2].by_verb()
    assert ledgers[1].by_verb()["shift"] == 16
    assert ledgers[3].by_verb()["recv"] == 80


def test_elements_are_counted_where_they_are_copied():
    def program(comm):
        comm.bcast(numbers(comm.rank, (5, 4), "complex128"), 0).wait()
        comm.barrier()
        return comm.world.elements_copied, comm.world.bytes_copied

    assert run(3, program)[0] == ([0, 20, 20], [0, 320, 320])


def test_without_a_ledger_nothing_is_recorded():
    def program(comm):
        with record() as ledger:
            pass
        comm.bcast(numbers(0, (3, 3)), 0).wait()
        return ledger.events

    assert run(2, program) == [[], []]


def test_a_trace_can_be_saved(tmp_path):
    import json

    def program(comm):
        with record() as ledger:
            comm.bcast(numbers(0, (3, 3)), 0).wait()
        ledger.save_trace(tmp_path / f"{comm.rank}.json", comm.rank)

    run(2, program)
    (row,) = json.loads((tmp_path / "1.json").read_text())["traceEvents"]
    assert (row["name"], row["tid"], row["args"]["bytes"]) == ("bcast", 1, 72)


# ---------------------------------------------------------------------------------------------- when it goes wrong


def test_a_deadlock_names_what_each_rank_waits_for():
    def program(comm):
        if comm.rank == 0:
            comm.recv(np.empty((2, 2)), 1, tag=5).wait()
        elif comm.rank == 1:
            comm.bcast(np.empty((2, 2)), 2).wait()
        else:
            comm.share("hello")

    with pytest.raises(DeadlockError, match="all ranks wait, none can go on") as caught:
        run(3, program)
    text = str(caught.value)
    assert "rank 0 waits in recv(tag=5)" in text and "for rank 1" in text
    assert "rank 1 waits in bcast (call 0 on 'all', 3 ranks) for rank 2" in text
    assert "rank 2 waits in agree" in text and "for ranks [0, 1]" in text


def test_waiting_for_a_rank_that_has_ended_is_a_deadlock():
    def program(comm):
        if comm.rank:
            comm.barrier()

    with pytest.raises(DeadlockError, match=r"rank 2 waits in agree .* for rank 0\n  ended: ranks \[0\]"):
        run(3, program)


def test_every_rank_sees_the_deadlock():
    seen = [None] * 2

    def program(comm):
        try:
            comm.recv(np.empty(1), 1 - comm.rank).wait()
        except DeadlockError as error:
            seen[comm.rank] = str(error)
            raise

    with pytest.raises(DeadlockError):
        run(2, program)
    assert seen[0] == seen[1] != None  # noqa: E711


def test_ranks_that_call_different_verbs():
    def program(comm):
        x = np.zeros((2, 2))
        if comm.rank == 1:
            comm.shift(x, np.empty((2, 2))).wait()
        else:
            comm.allgather(x, [np.empty((2, 2)), np.empty((2, 2))]).wait()

    with pytest.raises(AgreementError) as caught:
        run(2, program)
    text = str(caught.value)
    assert "ranks disagree on call 0 on 'all'" in text
    assert "calls allgather" in text and "calls shift" in text


def test_ranks_that_expect_different_arrays():
    def program(comm):
        comm.bcast(np.zeros((2, 3 + comm.rank)), 0).wait()

    with pytest.raises(AgreementError, match=r"rank 0 sends float64 \(2, 3\), rank 1 expects float64 \(2, 4\)"):
        run(2, program)

    def of_another_dtype(comm):
        comm.bcast(np.zeros((2, 3), "float32" if comm.rank else "float64"), 0).wait()

    with pytest.raises(AgreementError, match=r"sends float64 \(2, 3\), rank 1 expects float32 \(2, 3\)"):
        run(2, of_another_dtype)


def test_the_failure_of_one_rank_ends_all():
    ended = [None] * 4

    def program(comm):
        if comm.rank == 2:
            raise KeyError("lost")
        try:
            comm.barrier()
        except RemoteError as error:
            ended[comm.rank] = str(error)
            raise

    with pytest.raises(KeyError, match="lost") as caught:
        run(4, program)
    assert caught.value.__notes__ == ["raised on rank 2 of 4"]
    assert [text for text in ended if text] == ["rank 2 failed: KeyError: 'lost'"] * 3


def test_a_failure_reaches_ranks_that_wait_for_others():
    def program(comm):
        if comm.rank == 0:
            time.sleep(0.05)  # the others already wait
            raise ZeroDivisionError
        comm.recv(np.empty(3), 0).wait()

    with pytest.raises(ZeroDivisionError):
        run(3, program)


def test_messages_that_nobody_received():
    def program(comm):
        if comm.rank == 0:
            comm.send(np.zeros(3), 1, tag=3)

    with pytest.raises(PdlaError, match=r"messages nobody received: send\(tag=3\)"):
        run(2, program)
