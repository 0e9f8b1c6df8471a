"""The test harness itself: where outcomes differ between ranks, the job ends soon, fails, and names the rank."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.jobs import LONGEST, mpirun

CONFTEST = Path(__file__).parents[1] / "conftest.py"
HEADER = """
import pytest
from mpi4py import MPI
comm, pytestmark = MPI.COMM_WORLD, pytest.mark.mpi
"""


def run_job(folder, body, **env):
    """Run a test file on two ranks under this project's conftest.py."""
    return run_pytest(folder, HEADER + body, [*mpirun(), "-n", "2"], ["--with-mpi"], **env)


def run_pytest(folder, text, launcher=(), options=(), **env):
    """Run a test file under this project's conftest.py."""
    shutil.copy(CONFTEST, folder)
    (folder / "test_it.py").write_text(text)
    command = [*launcher, sys.executable, "-m", "pytest", *options, "--color=no", "-p", "no:cacheprovider", "test_it.py"]
    joined = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, cwd=folder, env=os.environ | env, timeout=LONGEST, **joined)


def make(folder, *words):
    """What make says in a folder where nothing is but what it reads."""
    if not shutil.which("make"):
        pytest.skip("no make here")
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(CONFTEST.parents[1] / name, folder)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *words, "MPI=mpich"], cwd=folder, env=environ, check=True, capture_output=True, text=True).stdout


def test_make_names_the_launcher_where_paths_have_blanks(tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    line = next(line for line in make(folder, "-n", "test-unit").splitlines() if line.startswith("PDLA_TEST_MPIRUN="))
    assert shlex.split(shlex.split(line)[0].partition("=")[2]) == [str(folder / ".venv" / "bin" / "mpirun")]


def test_a_failure_on_one_rank_fails_all(tmp_path):
    job = run_job(
        tmp_path,
        """
def test_it():
    assert comm.rank != 1, "not this one"

def test_next():
    assert comm.allreduce(1) == 2
""",
    )
    assert job.returncode != 0
    assert "failed on rank 1: AssertionError: not this one" in job.stdout
    assert "1 failed, 1 passed" in job.stdout


def test_a_failure_beside_a_hanging_rank_ends_the_job(tmp_path):
    job = run_job(
        tmp_path,
        """
def test_it():
    if comm.rank == 1:
        raise ValueError("lost its way")
    comm.recv(source=1)
""",
        PDLA_TEST_PATIENCE="2",
    )
    assert job.returncode != 0
    assert "[rank 1 of 2] test_it.py::test_it failed, and other ranks hang" in job.stdout
    assert "ValueError: lost its way" in job.stdout


def test_the_watchdog_prints_the_stacks_of_all_ranks(tmp_path):
    job = run_job(
        tmp_path,
        """
def test_it():
    comm.recv(source=1 - comm.rank)
""",
        PDLA_TEST_TIMEOUT="2",
    )
    assert job.returncode != 0
    for rank in range(2):
        assert f"[rank {rank} of 2] test_it.py::test_it takes more than 2 s" in job.stdout
    assert job.stdout.count("comm.recv(source=1 - comm.rank)") == 2


HANGS = """
import subprocess, sys, time
import hypothesis, pdla, pytest

def sleeper(*launcher):
    work = "import os, time; open(str(os.getpid()) + '.pid', 'w'); time.sleep(3600)"
    return [*launcher, sys.executable, "-c", work]

def test_ranks_that_are_threads():
    pdla.run(2, lambda comm: time.sleep(3600) if comm.rank else comm.barrier())

def test_a_process():
    with subprocess.Popen(sleeper()) as process:
        process.wait()

def test_an_mpi_job():
    subprocess.run(sleeper(*MPIRUN, "-n", "2"), capture_output=True)

@hypothesis.given(hypothesis.strategies.integers())
def test_an_example(number):
    time.sleep(3600)

@pytest.fixture
def never_left():
    yield
    time.sleep(3600)

def test_a_teardown(never_left):
    pass

def test_the_rest():
    pass
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_without_mpirun_a_test_that_hangs_fails_its_processes_end_and_the_others_run(tmp_path, workers):
    job = run_pytest(tmp_path, f"MPIRUN = {mpirun()}\n{HANGS}", options=workers, PDLA_TEST_TIMEOUT="3")
    assert job.returncode == 1 and "4 failed, 2 passed, 1 error" in job.stdout, job.stdout
    for name in ("ranks_that_are_threads", "a_process", "an_mpi_job", "an_example"):
        assert f"FAILED test_it.py::test_{name} - " in job.stdout, job.stdout
        assert f"test_it.py::test_{name} takes more than 3 s (PDLA_TEST_TIMEOUT)" in job.stdout, job.stdout
    assert "ERROR test_it.py::test_a_teardown - " in job.stdout and "time.sleep(3600) if comm.rank" in job.stdout, job.stdout
    started = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert started and not [number for number in started if running(number)]


def running(number):
    """Whether a process runs, and has not only been left for its parent to look at."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ranks_that_collect_different_tests_end_the_job(tmp_path):
    job = run_job(
        tmp_path,
        """
assert comm.rank == 0, "only rank 0 can read this file"

def test_it():
    pass
""",
    )
    assert job.returncode != 0
    assert "only rank 0 can read this file" in job.stdout


def test_a_rank_that_reads_its_tests_late_is_waited_for(tmp_path):
    job = run_job(
        tmp_path,
        """
import time
time.sleep(3 * comm.rank)

def test_it():
    pass
""",
        PDLA_TEST_PATIENCE="1",
    )
    assert job.returncode == 0 and "1 passed" in job.stdout, job.stdout
