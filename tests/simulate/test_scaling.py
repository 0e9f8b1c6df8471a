"""Scaling foretold: what grows, and what a network costs."""

from dataclasses import replace

from helpers.machines import FREE

from pdla.matmul.search.products import Product
from pdla.model.machine import Machine
from pdla.simulate.networks import Transformer
from pdla.simulate.scaling import scaling

LINKED = Machine(flops=1e9, call=0.0, memory=1e30, bandwidth=1e7, latency=0.0, far_latency=0.0)


def test_what_grows():
    assert Product(10, 20, 30).grown(8, "m, n and k") == Product(20, 40, 60)
    net = Transformer(hidden=64, heads=8, sequence=8, batch=3, layers=2)
    assert net.grown(16, "batch") == Transformer(64, 8, 8, 48, 2)
    assert net.grown(16, "hidden") == Transformer(256, 32, 8, 3, 2)
    assert [point.problem for point in scaling(net, [1, 2], FREE)] == [net, net]


def test_a_network_costs_efficiency_and_a_faster_one_less():
    linked, slower = replace(LINKED, bandwidth=1e9), replace(LINKED, bandwidth=2e8)
    for of in (Transformer(hidden=64, heads=8, sequence=16, batch=16, layers=1), Product(256, 256, 256)):
        [one] = scaling(of, [1], linked)
        fast, slow, free = (next(scaling(of, [8], machine)).best.seconds for machine in (linked, slower, FREE))
        assert free < fast < slow and one.best.seconds / 8 <= free * (1 + 1e-9)
