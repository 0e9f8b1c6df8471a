"""Ranks that share memory meet there: what they compare is right, however late each comes, and while the memory grows and goes."""

import signal
import time
from contextlib import suppress
from itertools import product
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

import pdla
from pdla import config
from pdla.comm.agreement import agree, collective_section
from pdla.comm.collectives import broadcast
from pdla.comm.mpi import barrier, futex
from pdla.comm.mpi.barrier import SharedBarrier, nbytes_for
from pdla.comm.shared_buffer import HALF, LANES
from pdla.errors import AgreementError, PdlaError, ShapeError

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(config.settings.array != "numpy", reason="devices do not share the host's memory"),
]


@pytest.fixture
def at_board(comm):
    """A communicator whose ranks have shared memory once, and so have a barrier."""
    own = comm.split(range(comm.size), "own")
    turn(own, 64)
    yield own
    own.close()


def turn(comm, size):
    shared_buffer = comm.shared_buffer()
    memory = shared_buffer.open(size)
    memory[comm.rank] = comm.rank
    shared_buffer.seal()
    assert memory[: comm.size].tolist() == [*range(comm.size)]
    shared_buffer.leave()


def test_a_gate_trusts_nothing_that_is_in_its_memory(comm):
    """MPI does not promise zeros: what another program has left there is not what a rank tells. Each rank clears its own words."""
    memory = np.full(nbytes_for(comm.size), 255, np.uint8)
    made = SharedBarrier(comm, None, memory)
    told = np.array([made.turns, made.asleep, *made.spare])
    assert made.turn == made.word[0] == 0 and len(told) == 8
    assert (told == [0 if rank == comm.rank else -1 for rank in range(comm.size)]).all()


def test_nobody_goes_on_in_new_memory_before_all_have_cleared_their_words(comm, monkeypatch):
    own = comm.split(range(comm.size), "own")
    shared_buffer = own.shared_buffer()
    window = shared_buffer._window

    def used_before(size):
        made = window(size)
        np.frombuffer(made.Shared_query(0)[0], np.uint8)[:] = 127
        own.mpi.Barrier()
        time.sleep(0.1 * comm.rank)  # so the last rank clears its words late
        return made

    monkeypatch.setattr(shared_buffer, "_window", used_before)
    turn(own, 64)
    own.close()


@pytest.fixture
def pair():
    """Rank 0's pair of barriers, on a crowded node of two ranks."""
    comm = SimpleNamespace(rank=0, node=SimpleNamespace(is_crowded=True))
    memory = np.zeros((2, nbytes_for(2)), np.uint8)
    here, beside = (SharedBarrier(comm, SimpleNamespace(Sync=lambda: None), one) for one in memory)
    here.partner, beside.partner = beside, here
    return here, beside


def test_who_has_come_here_and_gone_on_is_in_no_other_call(pair):
    here, beside = pair
    here.arrive()
    assert here._find_elsewhere() == []
    beside.turns[1] = 1
    assert here._find_elsewhere() == [1]
    here.turns[1] = 1
    assert here._find_elsewhere() == []


@pytest.mark.parametrize(("come", "asleep", "word", "woken"), [(0, 1, 0, 0), (1, 0, 1, 0), (1, 1, 1, 1)])
def test_who_comes_last_wakes_those_who_sleep(pair, come, asleep, word, woken, monkeypatch):
    here, _ = pair
    addresses = []
    monkeypatch.setattr(futex, "wake", addresses.append)
    here.turns[1], here.asleep[1] = come, asleep
    here.arrive()
    assert here.word[0] == word and addresses == [here.turns.obj.ctypes.data + nbytes_for(2) - 64] * woken


@pytest.mark.parametrize("kept", [False, True])
def test_memory_is_made_and_given_back_while_messages_are_sent_on(comm, kept):
    """The last rank waits for what comes through the others, which are to wait for it in a call of MPI's."""
    own = comm.split(range(comm.size), "own")
    if kept:
        turn(own, 64)
    x = np.full(2**18, float(comm.rank == 0))
    with patch.object(broadcast, "choose", lambda *_: "chain"):
        sent = comm.bcast(x, 0)
    if comm.rank == comm.size - 1:
        sent.wait()
    own.shared_buffer().trim(0) if kept else turn(own, 64)
    if comm.rank < comm.size - 1:
        sent.wait()
    assert (x == 1).all()
    own.close()


@pytest.mark.parametrize("more", [False, True])
def test_memory_goes_with_its_communicator_and_where_more_is_wanted(comm, more):
    own = comm.split(range(comm.size), "own")
    turn(own, 64)
    window = own.shared_buffer().window
    assert [bool(len(window.Shared_query(rank)[0])) for rank in range(comm.size)] == [rank == 0 for rank in range(comm.size)]
    if more:
        turn(own, 4 * HALF)
    else:
        own.close()
    assert not window  # it has been freed, not only forgotten
    own.close()


def test_memory_is_kept_up_to_so_many_bytes_a_rank(at_board):
    shared_buffer, ranks = at_board.shared_buffer(), at_board.size
    for most, kept in ((-(-shared_buffer.size // ranks), True), ((shared_buffer.size - 1) // ranks, False)):
        shared_buffer.trim(most)
        assert (shared_buffer.window is not None) == kept


def test_pieces_of_one_turn_are_none_of_the_next(at_board):
    shared_buffer = at_board.shared_buffer()
    for _ in range(2):
        shared_buffer.open(64)
        assert shared_buffer.count_published(at_board.rank) < 0
        shared_buffer.publish(3)
        assert shared_buffer.count_published(at_board.rank) == 3
        shared_buffer.leave()


@pytest.mark.parametrize("verb", [lambda c: c.barrier(), lambda c: c.share(1), lambda c: c.bcast(np.zeros(9), c.rank).wait()])
def test_a_rank_that_goes_on_after_an_error_asks_first(comm, verb):
    """In a verb that is no round of messages, too."""
    if comm.size == 1:
        pytest.skip("one rank fails alike everywhere")
    own = comm.split(range(comm.size), "own")
    with suppress(MemoryError), collective_section(own, "a call"):
        if comm.rank == 1:
            raise MemoryError("no room")
    told = r"^rank 1: went on after an error in a call"
    with pytest.raises(PdlaError, match=told), patch.object(broadcast, "choose", lambda *_: "mpi"):
        verb(own) if comm.rank == 1 else agree(own, "the next")


@pytest.mark.parametrize("seed", [1, 2])
def test_meetings_in_any_order_with_turns_and_growing_memory(at_board, seed, monkeypatch):
    comm, same_for_all, own = at_board, np.random.default_rng(seed), np.random.default_rng(seed + 10 * at_board.rank)
    by_messages = []
    monkeypatch.setattr(comm, "_wait", lambda call, *what, wait=comm._wait: (by_messages.append(call), wait(call, *what)))
    for step in range(60):
        odd, length, what = (int(x) for x in same_for_all.integers(0, (comm.size, 500, 6)))
        if own.random() < 0.2:
            time.sleep(3e-3 * own.random())
        if what == 0:
            assert comm.same(f"step {step}")
        elif what == 1:
            assert comm.same("the odd one" if comm.rank == odd else f"step {step}") == (comm.size == 1)
        elif what == 2:
            said = comm.share((comm.rank, "x" * (length if comm.rank == odd else 1)))
            assert said == [(rank, "x" * (length if rank == odd else 1)) for rank in range(comm.size)]
        elif what == 3:
            comm.barrier()
        elif what == 4:
            turn(comm, 64 + length)
        else:
            turn(comm, HALF + (step + 1) * 65536)
    assert set(by_messages) <= {"share"}  # the pickles themselves
    window = comm.shared_buffer().window
    comm.shared_buffer().trim(0)
    assert not window  # it has been freed, not only forgotten
    by_messages.clear()
    assert comm.same("by messages")
    assert by_messages == ["by messages"]


def test_ranks_in_different_calls_find_it_out(at_board):
    if at_board.size == 1:
        pytest.skip("one rank is in one call")
    with pytest.raises(AgreementError, match=r"ranks disagree: rank 0: barrier; rank.*: share$"):
        at_board.barrier() if at_board.rank == 0 else at_board.share(1)
    assert at_board.same("and go on")


def test_a_rank_that_meets_does_not_sleep_long_while_others_may_wait_for_its_messages(at_board, monkeypatch):
    """MPI may move a message in hundreds of pieces, each when it is polled."""
    slept, sleep = [], futex.sleep
    monkeypatch.setattr(futex, "sleep", lambda address, word, seconds: (slept.append(seconds), sleep(address, word, seconds))[1])
    at_board.barrier()
    slept.clear()
    with config.override(crowded=4.0):
        if at_board.rank == 0:
            time.sleep(0.1)
        assert at_board.same("rank 0 is late")
    assert all(seconds < 1e-3 for seconds in slept[:20])
    assert slept or at_board.rank == 0


def test_a_product_agrees_without_a_message_once_memory_is_shared(at_board, monkeypatch):
    comm = at_board
    A = pdla.ones((8, 8), pdla.ProcessGrid((comm.size, 1), comm=comm), pdla.Layout("row"))
    plan = pdla.plan_matmul(A, A.T, schedule="shared")
    monkeypatch.setattr(comm, "_wait", lambda call, _: pytest.fail(f"a message for {call}"))
    assert (plan(A, A.T).local == 8).all()
    assert (pdla.matmul(A, A.T, schedule="shared").local == 8).all()


@pytest.mark.parametrize("late", [False, True])
def test_ranks_that_wait_at_different_gates_find_it_out_at_once(at_board, late):
    """One rank's product fails before it has written its blocks, and it goes on to a call that meets; the others wait for them."""
    comm = at_board
    if comm.size == 1:
        pytest.skip("one rank is in one call")
    grid = pdla.ProcessGrid((comm.size, 1), comm=comm)
    A = pdla.ones((8, 8), grid, pdla.Layout("row"))
    plan = pdla.plan_matmul(A, A.T, schedule="shared")
    plan(A, A.T)
    if comm.rank == 0:
        with pytest.raises(ShapeError, match="alpha"):
            plan(A, A.T, alpha="two")
    if late == (comm.rank == 0):
        time.sleep(0.05)
    with pytest.raises(PdlaError, match="the job" if comm.rank == 0 else "rank 0 went into another call instead; .* end the job"):
        A.norm() if comm.rank == 0 else plan(A, A.T)
    for call in (A.norm, comm.barrier, lambda: plan(A, A.T), lambda: grid["row"].allgather(np.ones(1), [None] * comm.size)):
        with pytest.raises(PdlaError, match="the job"):
            call()


# ---------------------------------------------------------------------------------------------- sleepers, and who wakes them


@pytest.fixture
def asleep_for_ever(at_board, monkeypatch):
    """Ranks that share cores and sleep until they are woken; one that nobody wakes within 8 seconds is an error on it."""

    def nobody_wakes(*_):
        raise TimeoutError("nobody wakes this rank")

    before = signal.signal(signal.SIGALRM, nobody_wakes)
    monkeypatch.setattr(barrier, "_SLEEP", 3600)
    monkeypatch.setattr(barrier, "NEAR", SimpleNamespace(nap_after=lambda polls: 3600))
    signal.alarm(8)
    with config.override(crowded=4.0):
        yield at_board
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def when_others_sleep(board):
    while sum(board.asleep) < len(board.asleep) - 1:
        time.sleep(1e-3)
    time.sleep(0.02)  # from the word that tells of it to the sleep itself


def test_one_publication_wakes_all_who_sleep(asleep_for_ever):
    """Each rank in turn is the one that publishes, in either lane; nobody tells anything else before all have gone on."""
    comm = asleep_for_ever
    shared_buffer = comm.shared_buffer()
    for publisher, lane in product(range(comm.size), range(LANES)):
        shared_buffer.open(64)
        if comm.rank == publisher:
            when_others_sleep(shared_buffer.barrier)
            shared_buffer.publish(3, lane)
            while any(shared_buffer.barrier.asleep):
                time.sleep(1e-3)
        else:
            shared_buffer.wait_until("one", lambda: shared_buffer.count_published(publisher, lane) >= 3)  # noqa: B023
        shared_buffer.leave()
        comm.mpi.Barrier()


def test_the_last_to_come_wakes_all_who_sleep(asleep_for_ever):
    comm = asleep_for_ever
    for last in range(comm.size):
        if comm.rank == last:
            when_others_sleep(comm.shared_buffer().meeting)
        assert comm.same("all have come")
        comm.mpi.Barrier()


@pytest.mark.parametrize("told", ["another rank's word", "its own next word", "of another lane"])
def test_what_is_told_between_a_look_and_the_sleep_ends_the_sleep_at_once(pair, told, monkeypatch):
    """Two ranks that publish at once write different words, so that each is seen as a change."""
    here, _ = pair
    slept = []
    monkeypatch.setattr(futex, "sleep", lambda address, word, seconds: slept.append((address, word)) or True)

    def publish(rank, lane, number):
        here.comm.rank = rank
        here.publish(lane, number)
        here.comm.rank = 0

    here._rest(1)
    publish(1, 0, 7)
    here._rest(1)  # sees that
    publish(*{"another rank's word": (0, 0, 7), "its own next word": (1, 0, 8), "of another lane": (1, 1, 7)}[told])
    here._rest(barrier._RESTLESS + 1)
    ((address, word),) = slept
    assert address == here.address + barrier._WORD and word != here.word[1]
