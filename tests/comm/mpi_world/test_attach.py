"""Ranks agree on their settings when the job begins, and MPI's errors are exceptions from then on."""

import subprocess
import sys

import pytest
from helpers.jobs import LONGEST, mpirun


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("PDLA_SHARED=0", "1 on ranks 0, 1; 0 on rank 2"),
        ("PDLA_CHECK=0", "differs between ranks: 1 on ranks 0, 1; 0 on rank 2"),
        ("PDLA_MACHINE=v100x9", "Machine() on ranks 0, 1; PDLA_MACHINE: no machine 'v100x9'"),
    ],
)
def test_settings_that_differ_are_an_error_on_every_rank(variable, told):
    program = """
import os, pdla
try:
    pdla.world()
except pdla.errors.AgreementError as error:
    os.write(1, f"{error}\\n".encode())  # in one piece
"""
    command = [*mpirun(), "-n", "2", sys.executable, "-c", program]
    command += [":", "-n", "1", "env", variable, *command[-3:]]
    job = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
    said = f"{variable.split('=')[0]} differs between ranks: "
    assert (job.stdout.count(said), job.stdout.count(told)) == (3, 3), job.stdout + job.stderr


def test_settings_of_a_ranks_own_may_differ():
    command = [*mpirun(), "-n", "1", sys.executable, "-c", "import pdla; pdla.world()"]
    command += [":", "-n", "1", "env", "PDLA_TIMEOUT=99", "PDLA_THREADS=1", "PDLA_PROGRESS=0", *command[-3:]]
    job = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
    assert job.returncode == 0, job.stderr


def test_errors_of_mpi_are_exceptions_whatever_the_program_makes_of_its_own():
    program = "import mpi4py; mpi4py.rc.errors = 'default'; import pdla; from mpi4py import MPI\n"
    program += "print(*(comm.Get_errhandler() == MPI.ERRORS_RETURN for comm in (MPI.COMM_WORLD, pdla.world().mpi)))"
    job = subprocess.run([*mpirun(), "-n", "1", sys.executable, "-c", program], capture_output=True, text=True, timeout=LONGEST)
    assert job.stdout == "False True\n", job.stdout + job.stderr
