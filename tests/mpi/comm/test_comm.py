"""The communicator that tests are given is the whole job, and the harness's exchange does not disturb it."""

import pytest

pytestmark = pytest.mark.mpi


def test_world_is_the_whole_job(comm):
    from mpi4py import MPI

    assert (comm.rank, comm.size) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
