"""The machine that a rank runs on: its cores are divided among all ranks of the job there, not only those of a communicator."""

import os
import subprocess
import sys

import pytest
from helpers.jobs import LONGEST, mpirun, run_job

from pdla import config
from pdla.array.cores import usable
from pdla.comm.mpi import node
from pdla.comm.mpi.node import Node, Patience

PROGRAM = """
import os, sys
from mpi4py import MPI
if sys.argv[1] == "untold":
    os.environ.pop("MPI_LOCALNRANKS", None), os.environ.pop("OMPI_COMM_WORLD_LOCAL_SIZE", None)
import pdla
from pdla.array import cores
from threadpoolctl import threadpool_info
pdla.ProcessGrid(1, comm=MPI.COMM_SELF)
if sys.argv[1] == "untold":
    pdla.ProcessGrid(2)
held = {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}
sys.stdout.write(f"fair: {held == {cores.share(2)}}\\n")
"""


@pytest.mark.parametrize("launcher", ["told", "untold"])
def test_a_communicator_of_some_ranks_leaves_cores_to_the_others(launcher):
    """Where the launcher tells of them; else those that come with a larger communicator."""
    command = [*mpirun(), "-n", "2", sys.executable, "-c", PROGRAM, launcher]
    job = subprocess.run(command, env=os.environ | {"PDLA_THREADS": ""}, capture_output=True, text=True, timeout=LONGEST)
    assert (job.returncode, job.stdout.count("fair: True")) == (0, 2), job.stdout + job.stderr


@pytest.mark.parametrize(
    ("here", "told", "crowding"),
    [((2, 4), 1, 1), ((4, 4), 1, 1), ((6, 4), 1, 1.5), ((2, 4), 1.5, 1.5), ((16, 4), 3, 4), ((2, 4), 0.5, 1)],
)
def test_only_who_shares_its_core_sleeps_and_the_longer_the_longer_it_has_waited(here, told, crowding, monkeypatch):
    rests, patience = [], Patience(2, 1.0, 3.0)
    monkeypatch.setattr(node.time, "sleep", rests.append)
    monkeypatch.setattr(node.os, "sched_yield", lambda: rests.append("yield"))
    with config.override(crowded=told):
        assert Node(*here).crowding == crowding
        for polls in (2, 3, 12, 22, 32, 99):
            Node(*here).pause(polls, patience)
    assert rests == (["yield", 1.0, 1.0, 2.0, 3.0, 3.0] if crowding > 1 else ["yield"] * 6)


def test_more_blas_threads_than_cores_are_warned_of_once_a_node():
    cores = usable()
    job = run_job("", ranks=2, PDLA_THREADS=str(cores))
    said = f"2 ranks x {cores} BLAS threads on a node of {cores} cores: set PDLA_THREADS={max(1, cores // 2)}"
    assert job.returncode == 0 and job.stdout.count(said) == (cores > 1)
    assert "BLAS threads" not in run_job("", ranks=2, PDLA_THREADS="1").stdout
