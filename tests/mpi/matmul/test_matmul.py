"""The products of the unit tests, over MPI."""

import itertools

import pytest
from helpers.matmuls import DTYPES, check_product

import pdla

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("algorithm", [*pdla.algorithms, "fetch"])
def test_bitwise(comm, algorithm):
    dtypes = itertools.cycle(DTYPES)
    for shape in sorted({pdla.balanced_shape(comm.size), (comm.size, 1), (1, comm.size)}):
        grid = pdla.ProcessGrid(shape)
        for mnk, hows in itertools.product(((0, 3, 2), (3, 2, 0), (1, 1, 1), (13, 4, 17), (60, 47, 100)), ("NN", "TN", "NC", "TT")):
            check_product(grid, mnk, next(dtypes), algorithm, *hows, panel=7)


@pytest.mark.parametrize("algorithm", pdla.algorithms)
def test_bytes_equal_the_dry_run(comm, algorithm):
    def product(world):
        grid = pdla.ProcessGrid(pdla.balanced_shape(world.size), comm=world)
        A = pdla.zeros((31, 31), grid, pdla.Layout("row", "col"))
        with pdla.record() as ledger:
            pdla.matmul(A, A.T, algorithm=algorithm, panel=5)
        return ledger.bytes_received, ledger.messages, ledger.flops

    def dry(world):
        world.homes, world.shared_limit = comm.homes, comm.shared_limit  # by them the choice differs
        return product(world)

    assert product(comm) == pdla.dry_run(comm.size, dry, rank=comm.rank)[0]
