"""Norms of no features at all."""

import warnings
from functools import partial

import numpy as np
import pytest
from helpers.nets import SUMMA, run

from pdla import nn


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm, partial(nn.GroupNorm, groups=2, pixels=2)])
def test_norms_of_no_features(kind):
    def program(scheme):
        norm = kind(scheme, 0)
        return norm.backward(norm.forward(scheme.shard(np.ones((6, 0)), sequence=2))).shape

    with warnings.catch_warnings(action="error"):  # nothing is divided by 0
        assert run(SUMMA, program) == (6, 0)
