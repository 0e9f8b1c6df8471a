"""Machines of which one figure counts, and small networks."""

from dataclasses import replace

from pdla.model.machine import Machine
from pdla.simulate.networks import Transformer

SMALL = Transformer(hidden=64, heads=8, sequence=8, batch=16, layers=2)
RAGGED = Transformer(hidden=60, heads=5, sequence=7, batch=13, layers=3)
FREE = Machine(flops=1e9, call=0.0, memory=1e30, bandwidth=1e30, network=1e30, latency=0.0, far_latency=0.0)
SLOW = Machine(flops=1e15, call=0.0, memory=1e30, bandwidth=1e3, network=1e3, latency=0.0, far_latency=0.0)
NODES = Machine(flops=1e15, call=0.0, memory=1e30, bandwidth=1e12, network=1e3, latency=0.0, far_latency=0.0, node=4)
MIXED = Machine(flops=1e11, memory=1e11, bandwidth=1e9, network=1e8, latency=1e-6, far_latency=1e-5, node=4)
AROUND = replace(MIXED, name="where all-gathers go around the nodes, however short")
