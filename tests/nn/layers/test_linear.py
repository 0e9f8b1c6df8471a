"""Linears in shards."""

import numpy as np
import pytest
from helpers.nets import SERIAL, SHARDED, check_close, run

from pdla import nn


@pytest.mark.parametrize("place", SHARDED, ids=lambda place: place.name)
def test_shards_keep_whole_what_cuts_keep_whole(place):
    """Also in a layer that asks for no sequences."""
    x = np.random.default_rng(3).standard_normal((60, 20))

    def program(scheme):
        layer = nn.Linear(scheme, 20, 20)
        y = layer.forward(scheme.shard(x, sequence=4))
        return {"y": y.gather(), "dx": layer.backward(y).gather()} | {n: g.gather() for n, g in layer.gradients().items()}

    check_close(run(place, program), run(SERIAL, program))
