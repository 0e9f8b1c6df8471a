"""How a job ends whose ranks do not go on: within seconds, saying who waits where, or what was raised.

Each test starts a job of its own with mpirun, so this file runs without it.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HEADER = """
import numpy as np
from pdla.comm import job, libmpi, mpi, world
comm = world()
"""


def run_job(body, ranks=3, **env):
    """Run a program on some ranks; the job has a minute."""
    name, *options = shlex.split(os.environ.get("PDLA_TEST_MPIRUN", "mpirun"))
    found = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if not found:
        pytest.skip(f"no {name} beside this Python or on PATH")
    command = [os.path.abspath(found), *options, "-n", str(ranks), sys.executable, "-c", HEADER + body]
    joined = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, env=os.environ | env, timeout=60, **joined)


def test_ranks_that_wait_too_long_say_where_and_end_the_job():
    job = run_job(
        """
def stuck():
    comm.bcast(np.zeros(4), 1).wait() if comm.rank != 1 else comm.recv(np.zeros(3), 0, tag=5).wait()
stuck()
""",
        PDLA_TIMEOUT="3",
    )
    assert job.returncode != 0
    for rank, call in enumerate(["bcast", "recv(tag=5)", "bcast"]):
        assert f"[rank {rank} of 3] has waited 3 s (PDLA_TIMEOUT) for other ranks in {call} on 'all'" in job.stdout
    assert job.stdout.count("in stuck") == 3


def test_ranks_out_of_step_wait_and_take_nothing_for_something_else():
    job = run_job(
        """
x = np.zeros(4)
if comm.rank < 2:
    comm.alltoall({1: x, 2: x}, {}).wait() if comm.rank == 0 else comm.alltoall({}, {0: x}).wait()
comm.shift(np.ones(4), x).wait()
print("rank", comm.rank, "went on", flush=True)
""",
        PDLA_TIMEOUT="3",
    )
    assert job.returncode != 0
    assert "[rank 2 of 3] has waited 3 s (PDLA_TIMEOUT) for other ranks in shift" in job.stdout
    assert "rank 1 went on" in job.stdout
    assert "rank 2 went on" not in job.stdout


@pytest.mark.parametrize(
    "fault", ["raise ValueError('lost its way')", "threading.Thread(target=int, args=['lost its way']).start()"]
)
def test_an_uncaught_exception_on_one_rank_ends_the_job(fault):
    job = run_job(
        f"""
import threading
job.abort_on_exception()
if comm.rank == 1:
    {fault}
comm.barrier()
comm.barrier() if comm.rank else comm.bcast(np.zeros(1), 0).wait()
comm.split([0, 1, 2], "row")
""",
        PDLA_TIMEOUT="40",
    )
    assert job.returncode != 0
    assert "[rank 1 of 3] Traceback" in job.stdout
    assert "lost its way" in job.stdout
    assert "PDLA_TIMEOUT" not in job.stdout


def test_waiting_in_blocking_calls_of_mpi_is_watched_too():
    job = run_job(
        """
theirs = libmpi.MPI.COMM_WORLD.Dup()
if comm.rank == 0:
    comm.split([0, 1, 2], "row")
elif comm.rank == 1:
    mpi.wrap(theirs)
""",
        PDLA_TIMEOUT="3",
    )
    assert job.returncode != 0
    said = "has waited 3 s (PDLA_TIMEOUT) for other ranks in"
    assert f"[rank 0 of 3] {said} split('row') on 'all' (3 ranks, this is rank 0 of them)" in job.stdout
    assert f"[rank 1 of 3] {said} wrapping a communicator of 3 ranks" in job.stdout


def test_more_blas_threads_than_cores_are_warned_of_once_a_node():
    cores = len(os.sched_getaffinity(0))
    job = run_job("", ranks=2, PDLA_THREADS=str(cores))
    said = f"2 ranks x {cores} BLAS threads on a node of {cores} cores: set PDLA_THREADS={max(1, cores // 2)}"
    assert job.returncode == 0 and job.stdout.count(said) == (cores > 1)
    assert "BLAS threads" not in run_job("", ranks=2, PDLA_THREADS="1").stdout
