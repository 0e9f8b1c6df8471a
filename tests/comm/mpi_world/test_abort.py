"""How a job ends when a rank fails or hangs: within seconds, saying which rank waits where, or what was raised.

Each test starts a job of its own with mpirun, so this file runs without it.
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress

import pytest
from helpers.jobs import LONGEST, mpirun, run_job


def test_ranks_that_wait_too_long_say_where_and_end_the_job():
    job = run_job(
        """
def stuck():
    comm.bcast(np.zeros(4), 1).wait() if comm.rank != 1 else comm.recv(np.zeros(3), 0, tag=5).wait()
patience(3.0)
stuck()
"""
    )
    assert job.returncode != 0
    for rank, call in enumerate(["bcast", "recv(tag=5)", "bcast"]):
        assert f"[rank {rank} of 3] has waited 3 s (PDLA_TIMEOUT) for other ranks in {call} on 'all'" in job.stdout
    assert job.stdout.count("in stuck") == 3


FAILS_ALIKE = {  # a program, who prints the traceback, what it ends with, and what is said of the others
    "in a call": ("A.redistribute(pdla.Layout('rwo'))", 0, "the grid has row; did you mean 'row'?", "ranks 1-2"),
    "by a name": ("matrix = A; matirx", 0, "'matirx' is not defined. Did you mean: 'matrix'?", "ranks 1-2"),
    "on some": ("comm.rank and undefined; comm.barrier()", 1, "NameError: name 'undefined' is not defined", "rank 2"),
}


@pytest.mark.parametrize("case", FAILS_ALIKE)
def test_ranks_that_fail_alike_print_one_traceback(case):
    fault, speaks, ends, others = FAILS_ALIKE[case]
    job = run_job(
        f"""
import pdla
pdla.abort_on_exception()
A = pdla.ones((4, 4), pdla.ProcessGrid(3), pdla.Layout("row"))
{fault}
""",
        PDLA_TIMEOUT="120",
    )
    assert job.returncode != 0 and job.stdout.count("Traceback") == 1, job.stdout
    told = f"{ends}\n[rank {speaks} of 3] {others} failed with the same error\n"
    assert f"[rank {speaks} of 3] Traceback" in job.stdout and told in job.stdout, job.stdout


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_fail_alike_before_there_is_a_communicator_print_one_traceback(ranks):
    program = "import pdla\npdla.abort_on_exception()\nmatrix = 1\nmatirx"
    joined = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    job = subprocess.run([*mpirun(), "-n", str(ranks), sys.executable, "-c", program], timeout=LONGEST, **joined)
    others = "rank 1" if ranks == 2 else "ranks 1-2"
    told = f"Did you mean: 'matrix'?\n[rank 0 of {ranks}] {others} failed with the same error\n"
    assert (job.returncode != 0, job.stdout.count("Traceback"), told in job.stdout) == (True, 1, True), job.stdout


def test_ranks_that_fail_differently_print_a_traceback_each():
    job = run_job("abort.abort_on_exception()\nraise ValueError(f'lost by {comm.rank}')", PDLA_TIMEOUT="120")
    assert job.stdout.count("Traceback") == 3 and "same error" not in job.stdout, job.stdout
    assert all(f"ValueError: lost by {rank}" in job.stdout for rank in range(3)), job.stdout


def test_an_error_that_no_other_rank_has_told_is_told():
    """A rank below it has failed alike, and has ended before it could tell that."""
    job = run_job(
        """
import os, time
from pdla.comm.mpi import failures
if comm.rank == 0:
    failures.Failure(failures._find_communicator(), failures.make_digest("the same"))
    time.sleep(60)
failures.report_once("told by 1", "the same", lambda text: os.write(1, text.encode()))
abort._abort()
""",
        ranks=2,
    )
    assert job.stdout.count("told by 1") == 1, job.stdout


# Its own session on the terminal that it is given, and Ctrl-C as a user has it: a shell's background jobs ignore it.
ON_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def typed_ctrl_c(command, ready):
    """Run a command on a terminal of its own, type Ctrl-C once it has printed "ready" so often; gives the exit status, and what it
    has printed since."""
    ours, theirs = os.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    job = subprocess.Popen([sys.executable, "-c", ON_TERMINAL, *command], start_new_session=True, **streams)
    os.close(theirs)
    alarm = threading.Timer(LONGEST, job.kill)
    alarm.start()
    said, typed = b"", 0
    with suppress(OSError):  # where the last process on the terminal ends
        while more := os.read(ours, 4096):
            said += more
            if not typed and said.count(b"ready") == ready:
                typed = len(said)
                os.write(ours, b"\x03")
    alarm.cancel()
    os.close(ours)
    return job.wait(), said[typed:].decode()


WAITING = """
A = pdla.ones((64, 64), pdla.ProcessGrid(pdla.world().size), pdla.Layout("row"))
print("ready", flush=True)
while True:
    A @ A
"""


@pytest.mark.parametrize("asked", ["", "pdla.abort_on_exception()\n"])
def test_ctrl_c_ends_all_ranks_with_one_line(asked):
    command = [*mpirun(), "-n", "6", sys.executable, "-c", "import pdla\n" + asked + WAITING]
    status, said = typed_ctrl_c(command, 6)
    told = [line for line in said.splitlines() if line.startswith("[rank ")]
    lines = len((asked + WAITING).splitlines()) + 1  # of which it is one of the last three
    right = [[f"[rank 0 of 6] <string>:{at}: interrupted; the job ends"] for at in range(lines - 2, lines + 1)]
    assert told in (right if "Sending Ctrl-C" in said else [[]]), said  # Open MPI's launcher ends all ranks itself, in silence
    assert status != 0 and "Traceback" not in said, said


INTERRUPTS = """
import os, signal

def interrupts():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
    comm.barrier()

"""


def test_an_interruption_of_one_rank_is_told_by_that_rank_and_ends_the_job():
    job = run_job(f"{INTERRUPTS}interrupts() if comm.rank == 1 else comm.barrier()", PDLA_TIMEOUT="120")
    told = re.findall(r"\[rank .*", job.stdout)
    assert job.returncode != 0 and "Traceback" not in job.stdout, job.stdout
    assert len(told) == 1 and re.fullmatch(r"\[rank 1 of 3\] <string>:\d+: interrupted; the job ends", told[0]), job.stdout


def test_an_interruption_that_the_program_catches_ends_nothing():
    job = run_job(INTERRUPTS + "try: interrupts()\nexcept KeyboardInterrupt: os.write(1, b'caught\\n')\ncomm.barrier()", ranks=2)
    assert (job.returncode, job.stdout) == (0, "caught\ncaught\n")


def test_ctrl_c_ends_ranks_that_are_threads_with_one_traceback():
    program = f"import pdla\ndef program(comm):\n{textwrap.indent(WAITING, '    ')}\npdla.run(6, program)"
    status, said = typed_ctrl_c([sys.executable, "-c", program], 6)
    assert (status, said.count("Traceback"), said.count("KeyboardInterrupt")) == (-signal.SIGINT, 1, 1), said


def test_the_time_for_which_a_job_is_suspended_is_no_waiting():
    job = run_job(
        """
import os, subprocess, time
ranks = " ".join(map(str, comm.share(os.getpid())))
patience(4.0)
if comm.rank == 0:
    subprocess.Popen(["sh", "-c", f"sleep 1; kill -STOP {ranks}; sleep 5; kill -CONT {ranks}"])
else:
    time.sleep(3)
comm.barrier()
print("met", flush=True)
""",
        ranks=2,
    )
    assert (job.returncode, job.stdout.count("met")) == (0, 2), job.stdout


def test_ranks_that_wait_in_shared_memory_tell_once_for_whom():
    job = run_job(
        """
import pdla
A = pdla.ones((64, 64), pdla.ProcessGrid(3), pdla.Layout("row"))
A @ A
patience(3.0)
if comm.rank == 1:
    sys.exit("nothing to do")
A @ A
"""
    )
    assert job.returncode != 0
    for rank in (0, 2):
        assert job.stdout.count(f"on 'all' (3 ranks, this is rank {rank} of them), for rank 1; its stack:") == 1, job.stdout


def test_ranks_that_free_communicators_in_different_orders_say_so_and_end_the_job():
    job = run_job(
        """
import pdla
comms = [libmpi.MPI.COMM_WORLD.Dup() for _ in range(2)]
for dup in comms:
    pdla.syrk(pdla.ones((64, 64), pdla.ProcessGrid(2, comm=dup), pdla.Layout("row")))
patience(3.0)
for dup in comms[:: 1 if comm.rank else -1]:
    dup.Free()
""",
        ranks=2,
    )
    told = "has waited 3 s (PDLA_TIMEOUT) for other ranks in freeing a communicator on 'all'"
    assert job.returncode != 0 and told in job.stdout, job.stdout


@pytest.mark.parametrize("shared", ["0", "1"])
def test_who_waits_at_the_end_of_a_with_block_tells_the_exception_that_left_it(shared):
    """Where communicators are freed, for which others must come, or a message is waited for."""
    job = run_job(
        """
import pdla
with pdla.ProcessGrid((1, 2)) as outer:
    with pdla.ProcessGrid(2, comm=outer["col"]) as inner:
        A = pdla.ones((64, 64), inner, pdla.Layout("row"))
        A @ A
        patience(3.0)
        try:
            if comm.rank == 1:
                raise ValueError("only here")
        except ValueError:
            if not pdla.config.settings.shared:
                comm.barrier()
            raise
        A.norm()
""",
        ranks=2, PDLA_SHARED=shared,
    )
    place = "freeing a communicator on 'col'" if shared == "1" else "barrier on 'all'"
    waits = f"[rank 1 of 2] has waited 3 s (PDLA_TIMEOUT) for other ranks in {place}"
    assert job.returncode != 0 and waits in job.stdout, job.stdout
    assert "[rank 1 of 2] it waits there after this error: Traceback" in job.stdout and "ValueError: only here" in job.stdout


@pytest.mark.parametrize(("work", "status", "told"), [("time.sleep(3); return 3", 3, ""), ("return 1 / 0", 1, "ZeroDivisionError")])
def test_others_wait_for_a_command_of_one_process_until_it_ends(work, status, told):
    body = f"""
import dataclasses, sys, time
from pdla.bench import cli
def run(arguments): {work}
cli.COMMANDS["predict"] = dataclasses.replace(cli.COMMANDS["predict"], run=run)
patience({300.0 if told else 1.0})
sys.exit(cli.main(["predict", "-P", "4"]))
"""
    job = run_job(body, 2)
    assert (job.returncode, told in job.stdout, "has waited" in job.stdout) == (status, True, False), job.stdout


def test_ranks_out_of_step_wait_and_take_nothing_for_something_else():
    job = run_job(
        """
x = np.zeros(4)
patience(3.0)
if comm.rank < 2:
    comm.alltoall({1: x, 2: x}, {}).wait() if comm.rank == 0 else comm.alltoall({}, {0: x}).wait()
comm.shift(np.ones(4), x).wait()
print("rank", comm.rank, "went on", flush=True)
"""
    )
    assert job.returncode != 0
    assert "[rank 2 of 3] has waited 3 s (PDLA_TIMEOUT) for other ranks in shift" in job.stdout
    assert "rank 1 went on" in job.stdout
    assert "rank 2 went on" not in job.stdout


@pytest.mark.parametrize(
    "fault",
    [
        "raise ValueError('lost its way')",
        "threading.Thread(target=int, args=['lost its way']).start()",
        "signal.setitimer(signal.ITIMER_REAL, 0.3); raise ValueError('lost its way, and interrupted as it tells that')",
    ],
)
def test_an_uncaught_exception_on_one_rank_ends_the_job(fault):
    job = run_job(
        f"""
import signal, threading
signal.signal(signal.SIGALRM, signal.default_int_handler)
abort.abort_on_exception()
if comm.rank == 1:
    {fault}
comm.barrier()
comm.barrier() if comm.rank else comm.bcast(np.zeros(1), 0).wait()
comm.split([0, 1, 2], "row")
""",
        PDLA_TIMEOUT="120",
    )
    assert job.returncode != 0
    assert "[rank 1 of 3] Traceback" in job.stdout
    assert "lost its way" in job.stdout
    assert "PDLA_TIMEOUT" not in job.stdout


def test_an_uncaught_exception_ends_the_job_where_nobody_listens_any_more():
    job = run_job(
        """
import os
abort.abort_on_exception()
if comm.rank == 1:
    print("unheard", end="")
    os.close(1)
    raise ValueError("told by no \\udcff")
comm.barrier()
""",
        PDLA_TIMEOUT="120",
    )
    assert job.returncode != 0
    assert "ValueError: told by no" in job.stdout and "PDLA_TIMEOUT" not in job.stdout


def test_waiting_in_blocking_calls_of_mpi_is_watched_too():
    job = run_job(
        """
theirs = libmpi.MPI.COMM_WORLD.Dup()
patience(3.0)
if comm.rank == 0:
    comm.split([0, 1, 2], "row")
elif comm.rank == 1:
    attach(theirs)
"""
    )
    assert job.returncode != 0
    said = "has waited 3 s (PDLA_TIMEOUT) for other ranks in"
    assert f"[rank 0 of 3] {said} split('row') on 'all' (3 ranks, this is rank 0 of them)" in job.stdout
    assert f"[rank 1 of 3] {said} wrapping a communicator of 3 ranks" in job.stdout


def test_who_waits_in_shared_memory_sends_its_own_messages_meanwhile():
    """Two nodes of two ranks; over TCP a long message moves when its sender calls MPI."""
    job = run_job(
        """
from pdla.array import numpy as xp
sizes = [8_000_000, 1000, 1000, 8_000_000]
for turn in range(3):
    if room := comm.gather_buffer(sum(sizes), comm.size):
        outs = [room.take(xp, (n,), np.uint8) for n in sizes]
        comm.allgather(np.full(sizes[comm.rank], comm.rank + turn, np.uint8), outs, gather_buffer=room).wait()
        assert all((x == r + turn).all() for r, x in enumerate(outs))
        room.leave()
""",
        ranks=4, UCX_TLS="tcp,self", MPIR_CVAR_NUM_CLIQUES="2", PDLA_TIMEOUT="120",
    )
    assert job.returncode == 0, job.stdout


INTERRUPTED = """
import signal, time, pdla

class Alarm(Exception): ...

def ring(*_):
    raise Alarm("time is up")

def interrupted(call):  # on rank 0, while the other is late
    signal.signal(signal.SIGALRM, ring)
    comm.barrier()
    if comm.rank == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    else:
        time.sleep(0.9)
    try:
        call()
    except Alarm:
        print("interrupted", flush=True)

"""


@pytest.mark.parametrize("shared", ["0", "1"])
def test_who_goes_on_after_a_signal_amid_an_agreement_takes_nothing_of_that_call_for_the_next(shared):
    job = run_job(
        INTERRUPTED
        + """
A = pdla.ones((40, 40), pdla.ProcessGrid(2), pdla.Layout("row"))
B, _ = 2 * A, A @ A
interrupted(lambda: A.gather(0))
try:
    print("gathered", B.gather(0))
except pdla.errors.PdlaError as error:
    print(error, flush=True)
""",
        ranks=2, PDLA_SHARED=shared,
    )
    told = "rank 0: went on after an error in the agreement on gather 40 x 40, "
    assert (job.returncode, job.stdout.count("interrupted"), job.stdout.count(told)) == (0, 1, 2), job.stdout


def test_who_goes_on_after_a_signal_amid_a_share_takes_nothing_of_it_for_something_else():
    job = run_job(
        INTERRUPTED
        + """
abort.abort_on_exception()
interrupted(lambda: comm.share(comm.rank))
comm.barrier()
print("gone on")
""",
        ranks=2, PDLA_TIMEOUT="120",
    )
    told = "AgreementError: rank 0 left a share on 'all' that others are in (Alarm: time is up); they stay out of step"
    assert job.returncode != 0 and told in job.stdout and "gone on" not in job.stdout, job.stdout


def test_mpi_writes_to_no_memory_that_a_signal_amid_a_call_has_freed():
    job = run_job(
        INTERRUPTED
        + """
interrupted(comm.barrier)
own = [np.zeros(5, np.int64) for _ in range(2000)]
time.sleep(0.9)
comm.barrier()
assert not np.any(own)
""",
        ranks=2,
    )
    assert (job.returncode, job.stdout) == (0, "interrupted\n"), job.stdout


def test_a_pblas_call_that_fails_where_no_job_can_be_ended_is_left_to_scalapack():
    """To have taken it would leave the result as it was."""
    job = run_job(
        """
from types import SimpleNamespace
from pdla.native import pblas
libmpi.MPI.Finalize()
takes = []
pblas.serve(SimpleNamespace(offsetof=lambda *_: 0, def_extern=lambda error: takes.append))
print("taken:", takes[0](SimpleNamespace(comm=0, nprow=1, npcol=1, myrow=0, mycol=0), *[None] * 5))
""",
        ranks=1,
    )
    assert job.returncode == 0 and "NoMPIError: MPI is not running" in job.stdout and "taken: 0" in job.stdout, job.stdout


def test_an_uncaught_exception_in_a_thread_of_a_forked_process_ends_no_job():
    job = run_job(
        """
import multiprocessing, threading

def work():
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()

abort.abort_on_exception()
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
comm.barrier()
""",
        ranks=2,
    )
    assert (job.returncode, job.stdout.count("ZeroDivisionError"), "[rank" in job.stdout) == (0, 2, False), job.stdout


def test_any_timeout_is_waited_for():
    job = run_job("comm.split([0, 1, 2], 'row')", PDLA_TIMEOUT="inf")
    assert (job.returncode, job.stdout) == (0, "")


def test_two_threads_of_a_rank_in_calls_at_once_are_told_of_both_within_the_timeout():
    """On every rank both threads, or one of them and the program, which goes on: nothing hangs, and MPI does not end it."""
    job = run_job(
        """
import threading, pdla
patience(30.0)
grids, raised = [pdla.ProcessGrid((1, comm.size), comm=comm) for _ in range(2)], []
def work(grid):
    try:
        for _ in range(50):
            A = pdla.random((20, 20), grid, pdla.Layout(cols="col"))
            (A @ A).sum()
    except pdla.errors.AgreementError as error:
        raised.append(str(error))
threads = [threading.Thread(target=work, args=(grid,)) for grid in grids]
for each in threads: each.start()
for each in threads: each.join()
print(f"rank {comm.rank}: {len(raised)} { {' and in ' in text for text in raised} } { {text[:26] for text in raised} }", flush=True)
"""
    )
    assert job.stdout.count("{True} {'two threads of rank") == 3, job.stdout
