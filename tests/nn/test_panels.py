"""Weights in panels."""

from copy import deepcopy

import numpy as np
from helpers.nets import (
    X,
)

import pdla
from pdla import nn


def test_panels_keep_few_plans():
    def program(comm):
        scheme = nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm), panel=2)
        layer = nn.Linear(scheme, 4, 4)
        for tokens in range(1, 12):
            layer.backward(layer.forward(scheme.shard(np.ones((tokens, 4)))))
        return len(layer.panels.plans)

    assert pdla.run(2, program) == [12, 12]


def test_a_deep_copy_of_a_network_in_panels():
    """It makes plans of its own, as a plan may hold memory that ranks share."""

    def program(comm):
        scheme = nn.Summa2D(pdla.ProcessGrid((2, 2), comm=comm), panel=5)
        net, x = nn.MLP(scheme, 20), scheme.shard(X)
        y, twin = net.forward(x), deepcopy(net)
        assert net.layers[0].panels.plans and not twin.layers[0].panels.plans
        return np.array_equal(y.gather(), twin.forward(x).gather())

    assert all(pdla.run(4, program))
