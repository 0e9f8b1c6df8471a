"""The test harness itself: where outcomes differ between ranks, the job ends soon, fails, and names the rank."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LONGEST = 240  # seconds that a program which a test starts may take: for one that hangs, no measure of speed
CONFTEST = Path(__file__).parents[1] / "conftest.py"
HEADER = """
import pytest
from mpi4py import MPI
comm, pytestmark = MPI.COMM_WORLD, pytest.mark.mpi
"""


def mpirun():
    """The launcher that belongs to this Python, with its options: the Makefile's, else the one beside it or on PATH."""
    name, *options = shlex.split(os.environ.get("PDLA_TEST_MPIRUN", "mpirun"))
    found = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if not found:
        pytest.skip(f"no {name} beside this Python or on PATH")
    return [os.path.abspath(found), *options]


def run_job(folder, body, **env):
    """Run a test file on two ranks under this project's conftest.py."""
    shutil.copy(CONFTEST, folder)
    (folder / "test_it.py").write_text(HEADER + body)
    pytest_alone = [sys.executable, "-m", "pytest", "--with-mpi", "--color=no", "-p", "no:cacheprovider", "test_it.py"]
    command = [*mpirun(), "-n", "2", *pytest_alone]
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
