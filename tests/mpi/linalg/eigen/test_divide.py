"""Divide and conquer over MPI, as in threads."""

import numpy as np
import pytest
from helpers.tridiagonals import ratios, zoo

import pdla
from pdla.errors import LinAlgError
from pdla.linalg.eigen import divide
from pdla.linalg.eigen.divide import eigh_tridiagonal, eigvalsh_tridiagonal

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("least", [5, 20])
def test_the_zoo(comm, dtype, least, monkeypatch):
    monkeypatch.setattr(divide, "LEAST", least)
    grid, host = pdla.ProcessGrid((1, comm.size)), comm.xp.host
    for name, (d, e) in zoo(dtype).items():
        w, Z = eigh_tridiagonal(d, e, grid, 4)
        assert max(ratios(d, e, w, host(Z.gather()))) < 3, name
        again, part = eigh_tridiagonal(d, e, grid, 4, range(3, 40))
        assert len({*comm.share(w.tobytes()), again.tobytes()}) == 1
        assert np.allclose(host(part.gather()), host(Z.gather())[:, 3:40], rtol=0, atol=100 * np.finfo(dtype).eps)
        assert ratios(d, e, eigvalsh_tridiagonal(d, e, comm))[2] < 3


def test_the_same_bits_as_in_threads(comm, monkeypatch):
    monkeypatch.setattr(divide, "LEAST", 5)
    d, e = zoo("float64")["GOE"]

    def program(comm):
        w, Z = eigh_tridiagonal(d, e, pdla.ProcessGrid((1, comm.size), comm=comm), 4)
        return w, comm.xp.host(Z.gather())

    w, z = program(comm)
    there = pdla.run(comm.size, program)[0]
    assert np.array_equal(w, there[0]) and np.array_equal(z, there[1])


def test_nan_on_every_rank(comm):
    with pytest.raises(LinAlgError, match="not finite"):
        eigh_tridiagonal(np.full(300, np.nan), np.ones(299), pdla.ProcessGrid((1, comm.size)), 32)
