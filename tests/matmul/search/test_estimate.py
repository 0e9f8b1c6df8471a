"""Estimates in closed form are never above what runs take."""

from itertools import product as cross
from math import prod

import numpy as np
import pytest
from helpers.machines import AROUND, FREE, MIXED, RAGGED, SLOW, SMALL

from pdla.comm.collectives import ring
from pdla.matmul.dry import make_communicator
from pdla.matmul.search import estimate, products
from pdla.matmul.search.products import Product
from pdla.simulate import networks


@pytest.mark.parametrize("machine", [FREE, SLOW, MIXED, AROUND], ids=["free", "slow", "mixed", "around"])
@pytest.mark.parametrize("net", [SMALL, RAGGED], ids=["even", "ragged"])
def test_no_run_is_faster_or_smaller_than_its_closed_form(net, machine, monkeypatch):
    if machine is AROUND:
        monkeypatch.setattr(ring, "LONG", 0)
    for choice in networks.choices(12, net):
        guess = networks.estimate(choice, net, machine)
        step = networks.step(guess.choice, net, machine)
        assert guess.seconds.least <= step.seconds * (1 + 1e-9), guess.choice
        assert guess.size <= step.size, guess.choice
    of = Product(40, 30, 50)
    for table in products.list_tables(of, 12, machine):
        guess = products.guess(of, table, machine)
        way = products.make_plan(of, guess.choice, machine, make_communicator(12, machine))
        assert guess.seconds.least <= way.least * (1 + 1e-9) and way.least <= way.seconds, guess.choice


@pytest.mark.parametrize("node", [0, 1, 3, 4, 6])
def test_neighbours_and_placements_are_those_of_the_grid(node):
    for shape in cross((1, 2, 3), (1, 4), (2, 5)):
        sizes = dict(zip("abc", shape, strict=True))
        ranks = np.arange(prod(shape)).reshape(shape)
        for axes in (("a",), ("b", "c"), ("a", "c")):
            group = ranks[tuple(slice(None) if axis in axes else 0 for axis in "abc")]
            assert estimate.count_neighbours(axes, sizes, node) == (group < (node or ranks.size)).sum()
        placed = list(estimate.list_placements(sizes, node))
        assert placed[0] == sizes and all(one == sizes for one in placed) and (node or len(placed) == 1)
