"""Checked factors over MPI: a local GEMM that errs on one rank is named there, and what it led to is mended."""

import warnings

import numpy as np
import pytest
from helpers.systems import cyclic, drawn, positive

import pdla
from pdla import config
from pdla.array import numpy as host
from pdla.linalg import cholesky, solve

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("rank", [0, -1])
def test_a_wrong_element_is_found_and_mended(comm, monkeypatch, rank):
    if comm.xp.name != "numpy":
        pytest.skip("the local GEMM is the host's")
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size))
    a, b, right, errs = positive(96), drawn((96, 3), float), host.gemm, [rank % comm.size == comm.rank]
    A, B = (pdla.from_global(x, grid, cyclic(8)) for x in (a, b))

    def gemm(x, y, c, *args, **named):
        right(x, y, c, *args, **named)
        if any(errs) and c.size:
            errs.clear()
            c[-1, 0] += 1e-5

    monkeypatch.setattr(host, "gemm", gemm)
    with config.override(verify=True), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        L = cholesky(A)
    assert bool(said) == (comm.rank == 0 and comm.size > 1)
    monkeypatch.undo()
    assert np.allclose(L.gather(), np.linalg.cholesky(a))
    assert np.allclose(a @ solve(A, B, assume_a="pos", verify=True).gather(), b)
