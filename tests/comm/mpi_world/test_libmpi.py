"""Before MPI begins, after its end, and in processes that a rank forks."""

import os
import subprocess
import sys

from helpers.jobs import LONGEST, mpirun, run_job


def test_a_rank_that_ends_before_mpi_begins_is_not_waited_for_for_ever():
    alive = [sys.executable, "-c", "import pdla; pdla.world()"]
    command = [*mpirun(), "-n", "1", *alive, ":", "-n", "1", sys.executable, "-c", "raise SystemExit(3)"]
    job = subprocess.run(command, env=os.environ | {"PDLA_TIMEOUT": "3"}, capture_output=True, text=True, timeout=LONGEST)
    assert job.returncode != 0


def test_after_the_end_of_mpi_there_is_no_world():
    job = run_job(
        """
import pdla
handle = libmpi.MPI.COMM_WORLD.Dup().py2f()
libmpi.MPI.Finalize()
for call in (pdla.world, lambda: pdla.comm.from_fortran(handle)):
    try:
        call()
    except pdla.errors.NoMPIError as error:
        print(error)
pdla.abort_on_exception()
raise ValueError("no job to end")
""",
        ranks=1,
    )
    assert (job.returncode, job.stdout.count("MPI is not running")) == (1, 2), job.stdout
    assert "ValueError: no job to end" in job.stdout, job.stdout


def test_matrices_that_outlive_mpi_say_so():
    """Where Open MPI would end the job."""
    job = run_job(
        """
import pdla
grid = pdla.ProcessGrid(2)
A = pdla.ones((4, 4), grid, pdla.Layout("row"))
plan = pdla.plan_matmul(A, A)
libmpi.MPI.Finalize()
calls = [lambda: A @ A, lambda: plan(A, A), A.gather, lambda: comm.send(np.ones(2), 0, tag=1)]
for call in calls:
    try:
        call()
    except pdla.errors.NoMPIError as error:
        print(error)
""",
        ranks=2,
    )
    assert (job.returncode, job.stdout.count("MPI is not running")) == (0, 8), job.stdout


def test_a_process_that_a_rank_forks_is_told_that_it_is_none():
    job = run_job(
        """
import os, pdla
grid = pdla.ProcessGrid((1, comm.size))
A, x = pdla.random((6, 6), grid, pdla.Layout(cols="col")), np.zeros(2)
before = (A @ A).norm()
calls = {
    "world": pdla.world, "attach": lambda: attach(libmpi.MPI.COMM_WORLD), "product": lambda: A @ A, "barrier": comm.barrier,
    "send": lambda: comm.send(x, 0), "bcast": lambda: comm.bcast(x, 0), "made": lambda: pdla.ProcessGrid((1, comm.size)),
    "threads": lambda: pdla.run(2, lambda inner: inner.barrier()),
}
if not (child := os.fork()):
    for name, call in calls.items():
        try:
            call()
        except pdla.errors.NoMPIError as error:
            os.write(1, f"{name}: {error}\\n".encode())
    os._exit(0)
os.waitpid(child, 0)
assert (A @ A).norm() == before
""",
        ranks=2, PDLA_TIMEOUT="120",
    )
    assert job.returncode == 0, job.stdout
    for rank in range(2):
        said = [line for line in job.stdout.splitlines() if f": this process was forked from rank {rank}, and is no rank" in line]
        assert [line.partition(":")[0] for line in said] == ["world", "attach", "product", "barrier", "send", "bcast", "made"]
