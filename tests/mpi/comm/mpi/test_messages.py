"""Rounds of messages: in pieces, long and wrong ones, and as they go on while a rank computes."""

import threading
import time
import weakref
from functools import partial

import numpy as np
import pytest
from helpers.verbs import PIECE, broadcast_by, every_layout, every_way, laid, numbers, recorded

import pdla
from bench.cases import calls
from pdla import config, nn
from pdla.comm.collectives import broadcast
from pdla.comm.ledger import record
from pdla.comm.threads import run
from pdla.errors import AgreementError

pytestmark = pytest.mark.mpi


def test_messages_too_long_for_an_old_mpi(comm, monkeypatch):
    from pdla.comm.mpi import messages

    monkeypatch.setattr(comm, "tree", True)
    monkeypatch.setattr(messages, "_INT_MAX", 1000)
    monkeypatch.setattr(messages.MPI, "Get_version", lambda: (3, 1))
    for size in (1000, 1001, 5 << 20, (3 << 20) + 7):
        x, out = numbers(comm.rank, (size,), "int8"), np.zeros(size, "int8")
        assert messages.pieces(x, 0)[0][1] == (1 if size > 1000 else 1000)
        comm.shift(x, out).wait()
        np.testing.assert_array_equal(out, numbers((comm.rank - 1) % comm.size, (size,), "int8"))
        np.testing.assert_array_equal(comm.bcast(x, 0).wait(), numbers(0, (size,), "int8"))


def test_mpi_is_given_bytes(comm):
    from pdla.comm.mpi import messages

    for shape in ((), (0, 3), (5, 4)):
        ((raw, count, kind),) = messages.pieces(comm.xp.empty(shape, "float64"), 0)
        assert (raw.dtype, raw.size, count, kind) == (np.uint8, raw.nbytes, 8 * int(np.prod(shape)), messages.MPI.BYTE)


@pytest.mark.parametrize(("rows", "says"), [(3, r"sends less \(24 bytes, not 32\)"), (5, "sends more")])
def test_messages_of_another_length(comm, rows, says):
    group = comm.split([0, 1] if comm.rank < 2 else None, "pair") if comm.size > 1 else None
    if group is not None and group.rank == 0:
        group.send(np.ones(rows), 1, 5).wait()
    if group is not None and group.rank == 1:
        with pytest.raises(AgreementError, match=rf"recv\(tag=5\) on 'pair': rank 0 {says} than rank 1 expects"):
            group.recv(np.empty(4), 0, 5).wait()
    comm.barrier()


@pytest.mark.parametrize(
    ("size", "lengths"),
    [
        (0, [0]), (PIECE - 1, [PIECE - 1]), (PIECE, [PIECE, 0]), (PIECE + 1, [PIECE, 1]), (16 * PIECE, [PIECE] * 16 + [0]),
        (32 * PIECE + 5, [2 * PIECE] * 16 + [5]),
    ],
    ids=str,
)
def test_long_messages_have_sixteen_pieces_and_a_rest_at_most(size, lengths):
    from pdla.comm.mpi.messages import pieces

    assert [length for _, length, _ in pieces(np.empty(size, np.int8), PIECE)] == lengths
    assert [length for _, length, _ in pieces(np.empty(size, np.int8), 0)] == [size]


@pytest.mark.parametrize("size", [0, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 20 * PIECE, 20 * PIECE + 7])
def test_long_messages_between_nodes(far_apart, size):
    comm = far_apart
    x = np.full(size, comm.rank + 1, np.int8)
    outs = [np.zeros(size, np.int8) for _ in range(comm.size)]
    with record() as ledger:
        came = [(r, np.unique(outs[r]).tolist()) for r in comm.allgather(x, outs)]  # once each, and whole
    assert sorted(came) == [(r, [r + 1]) for r in range(comm.size) if size and r != comm.rank]
    assert [np.unique(out).tolist() for out in outs] == [[r + 1] if size else [] for r in range(comm.size)]
    assert (ledger.messages, ledger.bytes_received) == ((comm.size - 1 if size else 0), (comm.size - 1) * size)


@every_way
def test_long_broadcasts_between_nodes(far_apart, way, monkeypatch):
    comm = far_apart
    broadcast_by(way, comm, monkeypatch)
    monkeypatch.setattr(broadcast, "CHUNK", 3 * PIECE)
    x = np.arange(3 * PIECE, dtype=np.float32) * (comm.rank == 0)
    with record() as ledger:
        comm.bcast(x, 0).wait()
    np.testing.assert_array_equal(x, np.arange(3 * PIECE, dtype=np.float32))
    assert ledger.bytes_from_far == (x.nbytes if comm.rank else 0)


@pytest.mark.parametrize(("pieces", "says"), [(1, "sends less"), (2, "sends less"), (4, "sends more"), (20, "sends more")])
def test_long_messages_of_another_length(far_apart, pieces, says):
    comm = far_apart.split(range(far_apart.size), "own")  # no other test is to receive what is left over,
    comm._progress = None  # nor its thread to look after that for ever
    if comm.rank == 0 and comm.size > 1:
        sending = comm.send(np.ones(pieces * PIECE, np.int8), 1, 5)
        comm.recv(np.empty(1), 1, 99).wait()
        del sending  # never received to the end
    if comm.rank == 1:
        with pytest.raises(AgreementError, match=f"rank 0 {says} "):
            comm.recv(np.empty(3 * PIECE, np.int8), 0, 5).wait()
        comm.send(np.ones(1), 0, 99).wait()
    comm.barrier()
    comm.close()


def test_messages_arrive_while_a_rank_computes(comm, progress):
    outs = [np.zeros(1 << 20) for _ in range(comm.size)]
    gathered = comm.allgather(np.full(1 << 20, comm.rank + 1.0), outs)
    give_up = time.monotonic() + 60
    while not all(out[-1] for r, out in enumerate(outs) if r != comm.rank) and time.monotonic() < give_up:
        time.sleep(0.001)  # no call of this thread lets MPI work
    assert [out[-1] for out in outs] == [r + 1 for r in range(comm.size)]
    gathered.wait()
    comm.barrier()


def test_what_has_all_come_while_a_rank_computed_is_told_and_copied(comm, progress):
    """Behind it nothing is on its way any more, and strided arrays have come to boxes of their own."""
    outs = [laid(comm.xp, "gaps", (5, 3)) for _ in range(comm.size)]
    gathered = comm.allgather(comm.xp.asarray(numbers(comm.rank, (5, 3))), outs)
    give_up = time.monotonic() + 60
    while any(round_.left for round_, _ in comm._under_way.values()) and time.monotonic() < give_up:
        time.sleep(0.001)
    assert sorted(gathered) == [r for r in range(comm.size) if r != comm.rank]
    for r, out in enumerate(outs):
        np.testing.assert_array_equal(out, numbers(r, (5, 3)))
    comm.barrier()


def test_a_chain_goes_on_while_a_rank_computes(comm, progress, monkeypatch):
    broadcast_by("chain", comm, monkeypatch)
    x = np.full((300, 100), comm.rank + 1.0)
    pending, give_up = comm.bcast(x, 0), time.monotonic() + 60
    while (x != 1).any() and time.monotonic() < give_up:  # all of it: pieces of a slice may come in any order
        time.sleep(0.001)
    np.testing.assert_array_equal(x, np.ones((300, 100)))
    pending.wait()
    comm.barrier()


def test_progress_is_wanted_only_while_rounds_are_under_way(comm, progress):
    first, second = (comm.shift(np.ones(5), np.empty(5)) for _ in range(2))
    assert progress.busy.is_set() == (comm.size > 1)
    second.wait()
    assert progress.busy.is_set() == (comm.size > 1)
    first.wait()
    assert not progress.busy.is_set()
    comm.barrier()


def test_progress_rests_while_a_rank_waits(comm, progress):
    seen = []

    def third_time():
        seen.append(progress.resting)
        return len(seen) == 3

    pending = comm.shift(np.ones(5), np.empty(5))
    comm._wait_until("test", third_time)
    assert seen == [False, True, True] and not progress.resting
    pending.wait()
    comm.barrier()


def test_progress_leaves_the_looking_to_a_rank_that_waits(comm, progress, monkeypatch):
    if comm.size == 1:
        pytest.skip("no message")
    from pdla.comm.mpi.messages import Round

    looked, advance = [], Round.advance
    monkeypatch.setattr(Round, "advance", lambda self: (looked.append(threading.current_thread()), advance(self))[1])
    progress.resting = True
    pending = comm.shift(np.ones(5), np.empty(5))
    time.sleep(0.05)
    assert not looked
    progress.resting, give_up = False, time.monotonic() + 60
    while not looked and time.monotonic() < give_up:
        time.sleep(0.001)
    assert {*looked} == {progress.thread}
    pending.wait()
    comm.barrier()


def test_what_came_while_own_data_was_packed_is_sent_on_then(comm):
    """A message from this rank to itself, to be sent on behind another that is still packed when it comes."""
    from pdla.comm.mpi.libmpi import MPI
    from pdla.comm.mpi.messages import Round

    class Packing:
        done = False

    mpi, me, came, after = comm.mpi, comm.rank, np.zeros(3), np.zeros(3)
    sent_on = mpi.Irecv(after, me, 2)
    own = mpi.Irecv(np.zeros(3), me, 3)
    recvs, sends, packing = [mpi.Irecv(came, me, 1)], [mpi.Isend(np.ones(3), me, 1)], Packing()
    later = {0: [lambda: mpi.Isend(came, me, 2)]}
    round_ = Round(recvs, [(0, 0, came.nbytes)], sends, later, [(packing, lambda: mpi.Isend(came, me, 3))])
    comm._wait_until("test", lambda: round_.advance() and bool(round_.come))
    assert came.all() and not sent_on.Test() and round_.left
    packing.done = True
    round_.come.clear()
    comm._wait_until("test", round_.advance)
    MPI.Request.Waitall([own, sent_on])
    assert after.all()
    comm.barrier()


def test_what_has_been_sent_on_is_let_go_of(comm):
    """Also while somebody still looks at the round, as the thread that lets MPI work may."""
    from pdla.comm.mpi.libmpi import MPI
    from pdla.comm.mpi.messages import Round

    mpi, me = comm.mpi, comm.rank
    came, after = np.zeros(3), np.zeros(3)
    sent_on, memory = mpi.Irecv(after, me, 2), weakref.ref(came)
    round_ = Round(
        [mpi.Irecv(came, me, 1)], [(0, 0, came.nbytes)], [mpi.Isend(np.ones(3), me, 1)], {0: [partial(mpi.Isend, came, me, 2)]}
    )
    del came
    comm._wait_until("test", lambda: round_.advance() and not round_.left)
    MPI.Request.Wait(sent_on)
    assert after.all() and memory() is None
    ended, round_ = weakref.ref(round_), None
    assert ended() is None
    comm.barrier()


def test_who_waits_for_one_message_sends_others_on(comm, monkeypatch):
    """Rank 2 answers when the broadcast has come by rank 1, which waits for the answer, not for the broadcast."""
    if comm.size < 3:
        pytest.skip("a chain of three")
    broadcast_by("chain", comm, monkeypatch)
    x, answer = np.full((300, 100), comm.rank + 1.0), np.zeros(1)
    pending = comm.bcast(x, 0)
    if comm.rank == 1:
        comm.recv(answer, 2).wait()
    pending.wait()
    if comm.rank == 2:
        comm.send(x[0, :1], 1).wait()
    assert x[-1, -1] == 1 and answer[0] == (comm.rank == 1)
    comm.barrier()


@every_layout
@every_way
def test_every_verb_beside_progress(comm, progress, how, way, monkeypatch):
    broadcast_by(way, comm, monkeypatch)
    progress.nap = 0
    came, _ = recorded(comm, how)
    expected, _ = run(comm.size, recorded, how)[comm.rank]
    for x, y in zip(came, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def test_progress_ends_once(comm, progress):
    progress.end()
    progress.end()
    assert not progress.thread.is_alive()


@pytest.mark.skipif(config.settings.array != "numpy", reason="counted of arrays of the host; staging has calls of its own")
def test_the_path_of_a_message_is_short(comm):
    """Count the Python calls of products and layers by messages as bench/cases/calls.py does; a send that ends late takes more."""
    if comm.size != 4:
        pytest.skip("counted on 2 x 2 ranks")
    grid = pdla.ProcessGrid((2, 2), comm=comm)
    A, B = (pdla.ones((400, 400), grid, pdla.Layout("row", "col")) for _ in range(2))
    for _ in range(2):
        pdla.matmul(A, B, schedule="gather")
    assert calls.count_calls(lambda: pdla.matmul(A, B, schedule="gather")) <= 250
    forward, backward = calls.count_passes(comm, nn.Summa2D)
    assert forward <= 270 and backward <= 540
