"""The world of threads: what its verbs bring and count, and how it ends when a program is wrong."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
from helpers.slots import awaits, when_others_wait
from threadpoolctl import threadpool_info, threadpool_limits

import pdla
from pdla import Layout, ProcessGrid, config, matmul, random, record, run
from pdla.array import blas
from pdla.comm.shared_buffer import LANES
from pdla.errors import AgreementError, DeadlockError, GridError, PdlaError, RemoteError


def numbers(rank, shape, dtype="float64"):
    """Small integers that tell ranks and places apart."""
    return ((np.arange(np.prod(shape)).reshape(shape) * 7 + rank * 3) % 11).astype(dtype)


# ---------------------------------------------------------------------------------------------- verbs


def test_a_group_knows_of_its_ranks_what_the_whole_does():
    def program(comm):
        comm.homes, comm.shared_limit = [0, 0, 5, 5], 2**20
        group = comm.split([3, 1] if comm.rank % 2 else None, "odd")
        return group and (group.rank, group.homes, group.shared_limit, group.xp is comm.xp)

    assert run(4, program) == [None, (1, [5, 0], 2**20, True), None, (0, [5, 0], 2**20, True)]
    assert pdla.dry_run(4, program, rank=3)[0] == (0, [5, 0], 2**20, True)


@pytest.mark.parametrize(("size", "program", "match"), [("4", print, "'4'"), (print, 4, "number of ranks first"), (4, 3, "4, 3")])
def test_what_is_no_number_of_ranks_or_no_program_is_told(size, program, match):
    for starter in (run, pdla.dry_run, partial(pdla.dry_run_all, machine="laptop")):
        with pytest.raises(PdlaError, match=match):
            starter(size, program)


def test_results_come_by_rank_and_arguments_go_to_all():
    assert run(3, lambda comm, a, b: (comm.rank, comm.size, a + b), 1, 2) == [(r, 3, 3) for r in range(3)]
    with pytest.raises(PdlaError, match="at least one rank, not 0"):
        run(0, lambda comm: None)
    with pytest.raises(PdlaError, match=r"1000000 ranks: at most 10000, .* pdla\.dry_run"):
        run(10**6, lambda comm: None)


STARTERS = {"run": run, "dry_run": pdla.dry_run, "dry_run_all": partial(pdla.dry_run_all, machine="a100x4")}


def results(starter, *given, **named):
    """By rank, or of the one that is run dry."""
    found = STARTERS[starter](*given, **named)
    return found.results if starter == "dry_run_all" else found if starter == "run" else [found[0]]


@pytest.mark.parametrize("starter", STARTERS)
def test_arguments_by_keyword_go_to_the_program(starter):
    def program(comm, n, *rest, layout, seed=0, **others):
        return n, rest, layout, seed, others

    assert set(map(repr, results(starter, 3, program, 8, 9, layout="row", kind=3))) == {"(8, (9,), 'row', 0, {'kind': 3})"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'sed'"):
        STARTERS[starter](2, lambda comm, seed=0: seed, sed=3)


@pytest.mark.parametrize("starter", STARTERS)
def test_a_keyword_of_the_run_that_may_be_meant_for_the_program_is_refused(starter):
    """Where the program has it from elsewhere it is the run's."""

    def needs(comm, delay, rank, machine):
        return delay, rank, machine

    def may(comm, *, delay=None, rank=None, machine=None):
        return delay, rank, machine

    own = {"run": {"delay": 0.001}, "dry_run": {"rank": 1}, "dry_run_all": {"machine": "a100x4"}}[starter]
    (name,) = own
    told = pytest.raises(PdlaError, match=rf"{name}= is pdla\.{starter}'s own, and an argument of .* or by functools\.partial\(pr")
    for program, given in ((needs, {}), (needs, own), (may, own)):
        with told:
            STARTERS[starter](2, program, **given)
    for program, by_place in ((needs, (1, 2, 3)), (partial(may, delay=1, rank=2, machine=3), ())):
        assert set(results(starter, 2, program, *by_place, **own)) == {(1, 2, 3)}
    assert starter == "dry_run_all" or results(starter, 2, may) == [(None, None, None)] * (2 if starter == "run" else 1)
    assert not any(results(starter, 2, lambda comm, **others: others, **own))


COLLECTIVE = {
    "@": lambda A: A @ A,
    "gather": lambda A: A.gather(),
    "norm": lambda A: A.norm(),
    "redistribute": lambda A: A.redistribute(pdla.Layout("row")),
    "shared": lambda A: A.shared(),
    "a grid": lambda A: pdla.ProcessGrid(1, comm=A.grid.comm),
    "zeros": lambda A: pdla.zeros((3, 3), A.grid, A.layout),
    "along an axis": lambda A: A.grid["col"],
    "share": lambda A: A.grid.comm.share(1),
    "barrier": lambda A: A.grid.comm.barrier(),
    "split": lambda A: A.grid.comm.split([0], "new"),
    "allreduce": lambda A: A.grid.comm.allreduce(A.local).wait(),
    "bcast": lambda A: A.grid.comm.bcast(A.local, 0).wait(),
    "send": lambda A: A.grid.comm.send(A.local, 0).wait(),
    "recv": lambda A: A.grid.comm.recv(A.local, A.grid.comm.size - 1).wait(),
    "of a part": lambda A: A.grid["row"].barrier(),
    "a plan": lambda A: A.grid.made[0](A, A),
}


@pytest.mark.parametrize("call", COLLECTIVE)
@pytest.mark.parametrize("starter", STARTERS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_what_is_collective_after_the_run_has_ended_says_so(starter, call, ranks):
    """And not of how many ranks each waits for which."""

    def program(comm):
        A = pdla.ones((3, 3), pdla.ProcessGrid((comm.size, 1), comm=comm), pdla.Layout("row", "col"))
        A.grid.made = pdla.plan_matmul(A, A), A.grid["row"]
        return A

    for A in results(starter, ranks, program):
        assert (A * 2).local.shape == A.local.shape
        with pytest.raises(GridError, match="the run that made this communicator has ended"):
            COLLECTIVE[call](A)


@pytest.mark.parametrize("starter", STARTERS)
def test_what_is_collective_after_a_run_that_failed_says_so(starter):
    kept = []

    def program(comm):
        kept.append(comm)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        STARTERS[starter](2, program)
    with pytest.raises(GridError, match="the run that made this communicator has ended"):
        kept[0].share(1)


# ---------------------------------------------------------------------------------------------- when it goes wrong


def test_a_deadlock_names_what_each_rank_waits_for():
    def program(comm):
        if comm.rank == 0:
            time.sleep(0.02)  # the last to wait is the first to be named
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
    assert "rank 2 waits in share" in text and "for ranks [0, 1]" in text
    assert [line.split()[:2] for line in text.splitlines()[1:]] == [["rank", "0"], ["rank", "1"], ["rank", "2"]]


def test_waiting_for_a_rank_that_has_ended_is_a_deadlock():
    def program(comm):
        if comm.rank:
            comm.barrier()

    told = "".join(rf"\n  rank {rank} waits in barrier \(.*\) for rank 0" for rank in (1, 2))
    with pytest.raises(DeadlockError, match=rf"{told}\n  ended: ranks \[0\]"):
        run(3, program)


def test_threads_of_a_rank_that_have_communicators_of_their_own_are_in_no_deadlock():
    """All ranks wait, each with one of its threads: others are about to come. Nobody is once they have ended."""

    def program(comm, waits):
        own, found = [comm.split(range(comm.size), name) for name in "abc"], {}

        def work(which):
            found[which] = [own[which].allreduce(np.full(3, i)).wait().tolist() for i in range(20)]

        order = np.roll(range(3), comm.rank).tolist()
        threads = [threading.Thread(target=work, args=(which,), daemon=True) for which in order]
        for thread in threads:
            thread.start()
            thread.join(0.02)
        for thread in threads:
            thread.join()
        if waits:
            comm.recv(np.empty(1), (comm.rank + 1) % 3).wait()
        return all(sums == [[3 * i] * 3 for i in range(20)] for sums in found.values())

    assert run(3, program, False) == [True] * 3
    with pytest.raises(DeadlockError, match=r"rank 2 waits in recv\(tag=0\)"):
        run(3, program, True)


def test_threads_that_others_wait_for_are_waited_for_as_long_as_the_timeout_says():
    """Each rank's own thread is in join(), which nobody can tell from work."""

    def program(comm):
        def work():
            with contextlib.suppress(DeadlockError):
                comm.recv(np.empty(1), 1 - comm.rank).wait()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    says = r"rank 0 waits in recv.*\n.*rank 1 waits in recv"
    with config.override(timeout=0.2), pytest.raises(DeadlockError, match=says):
        run(2, program)


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


def test_who_shares_is_not_told_what_others_compare():
    with pytest.raises(DeadlockError, match=r"rank 0 waits in share .*\n  rank 1 waits in same words "):
        run(2, lambda comm: comm.share("words") if comm.rank == 0 else comm.same("same words"))


def test_a_barrier_beside_what_others_compare_is_an_error():
    with pytest.raises(AgreementError, match="barrier on 'all', 2 ranks: other ranks are in another call"):
        run(2, lambda comm: comm.barrier() if comm.rank == 0 else comm.same("words"))


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


def test_ranks_that_cannot_begin_leave_none_waiting(monkeypatch):
    def start(thread):
        if thread.name == "rank 2":
            raise RuntimeError("can't start new thread")
        begin(thread)

    begin, before = threading.Thread.start, set(threading.enumerate())
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        run(4, lambda comm: comm.barrier())
    for thread in threading.enumerate():
        if thread.name in ("rank 0", "rank 1"):
            thread.join(10)
    assert before.issuperset(threading.enumerate())  # one of an earlier test may have ended since


def test_messages_that_nobody_received():
    def program(comm):
        if comm.rank == 0:
            comm.send(np.zeros(3), 1, tag=3)

    with pytest.raises(PdlaError, match=r"messages that no rank received: send\(tag=3\)"):
        run(2, program)


# ---------------------------------------------------------------------------------------------- an imagined network


def test_an_array_is_there_a_known_time_after_it_was_sent():
    def program(comm):
        start = time.perf_counter()
        pending = [comm.shift(numbers(comm.rank, (100, 1)), np.empty((100, 1))) for _ in range(200)]
        ends = []
        for shift in pending:
            np.testing.assert_array_equal(shift.wait(), numbers((comm.rank - 1) % 3, (100, 1)))
            ends.append(time.perf_counter())
        return start, ends

    starts, ends = zip(*run(3, program, delay=0.05, bandwidth=16_000), strict=True)
    for rank in range(3):
        assert ends[rank][0] >= starts[rank - 1] + 0.05 + 800 / 16_000
        assert ends[rank][-1] < starts[rank - 1] + 200 * 0.1  # all were on their way at once


def test_a_rank_that_waits_for_the_network_is_in_no_deadlock():
    def program(comm):
        if comm.rank == 0:
            time.sleep(0.02)  # by now rank 1 waits
        return comm.bcast(numbers(comm.rank, (2, 2)), 0).wait().sum()

    assert run(2, program, delay=0.05) == [numbers(0, (2, 2)).sum()] * 2


def test_a_network_that_cannot_be():
    for network in ({"delay": -1}, {"bandwidth": 0}, {"delay": float("nan")}):
        with pytest.raises(PdlaError, match="at least 0 seconds, more than 0 bytes a second"):
            run(2, lambda comm: None, **network)


@pytest.mark.parametrize(("algorithm", "verb"), [("summa", "bcast"), ("cannon", "shift")])
@pytest.mark.parametrize("how", ["A B", "At B"])
def test_what_is_needed_next_travels_while_panels_are_multiplied(algorithm, verb, how):
    """All but the first panels, those of the skew, and the last sums on their way home."""

    def program(comm):
        grid, layout = ProcessGrid((2, 2)), Layout("row", "col")
        A, B = (random((64, 64), grid, layout, seed=seed) for seed in (1, 2))
        with record() as ledger:
            matmul(A if how == "A B" else A.T, B, algorithm=algorithm, panel=8)
        return [event for event in ledger.events if event.what in ("gemm", verb)]

    for events in run(4, program, delay=0.002):
        gemms = [event for event in events if event.what == "gemm"]
        travels = sorted((event for event in events if event.what == verb), key=lambda event: event.start)
        first, last = min(gemm.start for gemm in gemms), max(gemm.end for gemm in gemms)
        alone = [travel for travel in travels if travel.end <= first or travel.start >= last]
        assert len(gemms) == 8 and len(alone) <= 2 < len(travels) / 2
        for travel in travels:
            assert travel in alone or any(travel.start <= gemm.start and gemm.end <= travel.end for gemm in gemms)


def test_a_run_holds_blas_to_a_thread_a_rank_and_then_gives_it_back_what_it_had():
    def threads():
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    blas._routine("dgemm")  # so that SciPy's is loaded
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        assert set(before) == {2}
        assert set(run(2, lambda comm: tuple(threads()))) == {(1,) * len(before)}
        with pytest.raises(ValueError, match="none"):
            run(2, lambda comm: int("none"))
        assert threads() == before


def test_a_run_holds_the_blas_that_it_is_the_first_to_load_and_leaves_it_as_the_others():
    """In a process of its own, as SciPy's BLAS is loaded once."""
    program = """
from threadpoolctl import threadpool_info, threadpool_limits
from pdla import run
from pdla.array import blas
from pdla.comm.shared_buffer import LANES

threadpool_limits(3)  # by the environment there would be no more than cores

def threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

def load(comm):
    blas._routine("dgemm")
    comm.barrier()
    return threads()

print(len(threads()), run(2, load), threads())
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "1 [[1, 1], [1, 1]] [3, 3]"


def test_a_rank_that_waits_for_no_other_ends_after_an_interruption():
    ranks = []

    def program(comm):
        ranks.append(threading.current_thread())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        while True:
            comm.barrier()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            run(1, program)
    finally:
        signal.signal(signal.SIGINT, before)
    ranks[0].join(20)
    assert not ranks[0].is_alive()


# ---------------------------------------------------------------------------------------------- sleepers, and who wakes them


@pytest.mark.parametrize("publisher", range(4))
@pytest.mark.parametrize("lane", range(LANES))
def test_one_publication_wakes_all_who_wait_for_it(publisher, lane):
    """Nobody publishes anything else, nor ends, until all have gone on."""

    def program(comm):
        shared_buffer = comm.shared_buffer()
        shared_buffer.open(64)
        if comm.rank == publisher:
            when_others_wait(comm)
            shared_buffer.publish(3, lane)
            awaits(lambda: len(gone) == 3)
        else:
            shared_buffer.wait_until("one", lambda: shared_buffer.count_published(publisher, lane) >= 3)
            gone.append(comm.rank)
        shared_buffer.leave()

    gone = []
    run(4, program)


@pytest.mark.parametrize("sleepers", [[0], [1, 2], [3]])
def test_ranks_that_publish_at_once_are_both_heard(sleepers):
    def program(comm):
        shared_buffer, publishers = comm.shared_buffer(), [rank for rank in range(4) if rank not in sleepers]
        for at_once, gone in turns:
            shared_buffer.open(64)
            if comm.rank in publishers:
                awaits(lambda: comm.world.waiting.keys() >= {*sleepers})
                at_once.wait()
                shared_buffer.publish(1)
                awaits(lambda gone=gone: len(gone) == len(sleepers))
            else:
                shared_buffer.wait_until("all", lambda: all(shared_buffer.count_published(rank) for rank in publishers))
                gone.append(comm.rank)
            shared_buffer.leave()

    turns = [(threading.Barrier(4 - len(sleepers)), []) for _ in range(10)]
    run(4, program)


@pytest.mark.parametrize("awaited", range(3))
def test_of_three_threads_of_a_rank_the_one_wakes_that_a_message_is_for(awaited):
    """Each waits on a communicator of its own."""

    def program(comm):
        comms, out = [comm.split(range(2), str(i)) for i in range(3)], np.zeros((3, 1))
        if comm.rank == 0:
            for i in range(3):
                threading.Thread(target=lambda i=i: comms[i].recv(out[i], 1).wait(), daemon=True).start()
            awaits(lambda: len(comm.world.waiting.get(0, ())) == 3)
            told.set()
            awaits(lambda: out[awaited, 0] == 7)
            heard.set()
            awaits(lambda: out.sum() == 21)
        else:
            told.wait(12)
            sent = [comms[awaited].send(np.full(1, 7.0), 0)]
            heard.wait(12)
            sent += [comms[i].send(np.full(1, 7.0), 0) for i in range(3) if i != awaited]
            for one in sent:
                one.wait()
        return out.sum()

    told, heard = threading.Event(), threading.Event()
    assert run(2, program) == [21.0, 0.0]
