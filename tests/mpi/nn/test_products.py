"""Checked products of layers over MPI: one that errs on a rank is told there and mended, one that is wrong twice is told on all."""

import warnings

import numpy as np
import pytest

import pdla
from pdla import config, nn
from pdla.array import numpy as host
from pdla.errors import VerificationError

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("rank", [0, -1])
@pytest.mark.parametrize("often", [1, 2])
@pytest.mark.parametrize("step", ["forward", "backward"])
def test_a_wrong_element_is_mended_or_told(comm, monkeypatch, rank, often, step):
    if comm.xp.name != "numpy":
        pytest.skip("the local GEMM is the host's")
    layer = nn.Linear(nn.Summa2D(pdla.ProcessGrid(pdla.balanced_shape(comm.size))), 24, 24)
    x, right, errs = layer.scheme.shard(np.ones((24, 24))), host.gemm, []
    y = layer.forward(x)

    def gemm(x, y, c, *args, **named):
        right(x, y, c, *args, **named)
        if errs and c.size:
            errs.pop()
            c[-1, 0] += 1e-5

    monkeypatch.setattr(host, "gemm", gemm)
    errs += [True] * often * (rank % comm.size == comm.rank)
    with config.override(verify=True), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if often == 1:
            layer.forward(x) if step == "forward" else layer.backward(y)
            assert bool(said) == (rank % comm.size == comm.rank)
        else:
            with pytest.raises(VerificationError, match=rf"^rank {rank % comm.size} has wrong elements"):
                layer.forward(x) if step == "forward" else layer.backward(y)
    assert np.allclose(layer.forward(x).gather(), y.gather())
