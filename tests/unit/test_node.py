"""The machine that a rank runs on: its cores are divided among all ranks of the job there, not only those of a communicator."""

import os
import subprocess
import sys

import pytest
from unit.test_harness import LONGEST, mpirun

PROGRAM = """
import os, sys
from mpi4py import MPI
if sys.argv[1] == "untold":
    os.environ.pop("MPI_LOCALNRANKS", None), os.environ.pop("OMPI_COMM_WORLD_LOCAL_SIZE", None)
import pdla
from pdla.array import blas
from threadpoolctl import threadpool_info
pdla.ProcessGrid(1, comm=MPI.COMM_SELF)
if sys.argv[1] == "untold":
    pdla.ProcessGrid(2)
held = {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}
sys.stdout.write(f"fair: {held == {blas.share_cores(2)}}\\n")
"""


@pytest.mark.parametrize("launcher", ["told", "untold"])
def test_a_communicator_of_some_ranks_leaves_cores_to_the_others(launcher):
    """Where the launcher tells of them; else those that come with a larger communicator."""
    command = [*mpirun(), "-n", "2", sys.executable, "-c", PROGRAM, launcher]
    job = subprocess.run(command, env=os.environ | {"PDLA_THREADS": ""}, capture_output=True, text=True, timeout=LONGEST)
    assert (job.returncode, job.stdout.count("fair: True")) == (0, 2), job.stdout + job.stderr
