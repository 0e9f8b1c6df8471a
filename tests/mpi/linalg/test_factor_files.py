"""Factors in a file over MPI: saved by all ranks, resumed by fewer, and faults that all ranks raise."""

import os
from pathlib import Path

import numpy as np
import pytest

import pdla
from pdla import Cyclic, Layout, linalg
from pdla.errors import FileError

pytestmark = pytest.mark.mpi
N = 50


def test_factors_are_resumed_on_fewer_ranks(comm, tmp_path):
    folder = Path(comm.share(str(tmp_path))[0])
    grid, cyclic = pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm), Layout(Cyclic("row", 8), Cyclic("col", 8))
    A = pdla.random((N, N), grid, cyclic)
    S, b = pdla.syrk(A) + N * pdla.eye(N, grid, cyclic), np.arange(float(N))
    fewer = pdla.ProcessGrid(max(1, comm.size - 1), comm=comm)
    for name, factors, solve in (("lu", linalg.lu_factor(A), linalg.lu_solve), ("cho", linalg.cho_factor(S), linalg.cho_solve)):
        path = folder / f"{name}.npz"
        linalg.save_factors(path, factors)
        for where in ((grid, cyclic), (fewer, Layout("row"))):
            found = linalg.load_factors(path, *where)
            assert np.array_equal(found[0].gather(), factors[0].gather())
            np.testing.assert_allclose(solve(found, b), solve(factors, b), rtol=1e-10)
            assert np.isclose(linalg.det(found), linalg.det(factors), rtol=1e-12)
    comm.barrier()
    if comm.rank == 0:
        os.truncate(path, 100)
    comm.barrier()
    with pytest.raises(FileError, match=r"no \.npz archive") as caught:
        linalg.load_factors(path, grid, cyclic)
    assert len(set(comm.share(str(caught.value)))) == 1
    comm.barrier()
