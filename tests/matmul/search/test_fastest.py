"""The search finds what looking at all finds, and the fastest way where it is known."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from helpers.machines import FREE, NODES, SLOW, SMALL

from pdla.matmul.search import products
from pdla.matmul.search.estimate import Seconds
from pdla.matmul.search.fastest import Candidate, Found, search, watch
from pdla.matmul.search.products import Product
from pdla.simulate import networks
from pdla.simulate.networks import Transformer


@dataclass(frozen=True)
class Run:
    """A choice that is its own result."""

    seconds: float
    size: float

    @property
    def least(self):
        return self.seconds


def made(count, seed=0):
    random = np.random.default_rng(seed)
    for true, share, size, begun in random.random((count, 4)).tolist():  # what begins may pass meanwhile: it bounds nothing
        yield Candidate(Run(true, size), Seconds(true * share, 0.0, 0.0, overhead=begun), size)


@pytest.mark.parametrize("memory", [float("inf"), 0.5])
def test_the_search_finds_what_looking_at_all_finds(memory):
    for seed in range(20):
        every = list(made(60, seed))
        found = search(every, lambda run: Run(run.seconds, run.size + 0.1), 5, 1000, memory)
        fits = sorted(one.choice.seconds for one in every if one.size + 0.1 <= memory)
        assert [one.seconds for one in found.best] == fits[:5]
        assert found.run + found.too_large + found.too_slow == found.possible == len(every) and found.too_slow


def test_the_search_says_what_it_did_not_look_at():
    found = search(made(60), lambda run: run, 5, 6)
    assert found.run == 6 and found.not_looked_at == 60 - 6 - found.too_slow > 0
    assert f"{found.not_looked_at} that promise less were not looked at" in found.words(("thing",))


def test_who_watches_a_search_is_told_before_each_run():
    told = []
    with watch(lambda done, most: told.append((done, most))):
        found = Product(64, 64, 64).fastest(4, "laptop", count=2)
    Product(64, 64, 64).fastest(4, "laptop", count=2)
    assert len(told) == found.run and all(done < most <= found.possible for done, most in told)


def test_one_is_counted_in_the_singular():
    of = ("scheme", "grid")
    several = Found([], 8, 2, 2, 2, 0.0).words(of)
    assert several.startswith("8 schemes and grids: 2 run dry; 2 need more memory; 2 cannot be faster: their work")
    one = Found([], 4, 1, 1, 1, 0.0).words(of)
    assert one.endswith(
        "; 1 needs more memory; 1 cannot be faster: its work or its bytes alone take longer; 1 that promises less was not looked at"
    )
    assert Found([], 1, 1, 0, 0, 0.0).words(of) == "1 scheme and grid: 1 run dry"
    assert str(Transformer(1, 1, 1, 1, 1)) == "1 layer of 1 feature, 1 head, 1 sequence of 1, 32-bit floats"


def test_without_a_network_only_work_counts():
    for step in SMALL.fastest(16, FREE, 3).best:
        assert step.cost.computing == pytest.approx(step.seconds)
    (way,) = Product(64, 64, 64).fastest(16, FREE, 1).best
    assert way.seconds == pytest.approx(2 * 64**3 / 16 / 1e9)


def test_on_a_slow_network_the_least_volume_wins():
    every = [networks.step(choice, SMALL, SLOW) for choice in networks.choices(16, SMALL)]
    assert networks.find_fastest_on(SMALL, 16, SLOW).best[0].cost.bytes_received == min(step.cost.bytes_received for step in every)
    (way,) = products.find_fastest_on(Product(64, 64, 64), 8, SLOW).best
    assert way.choice.table.box == (2, 2, 2)
    assert way.cost.bytes_received == 8 * 3 * 32 * 32 // 2 == round(Product(64, 64, 64).lower_bound(8))


def test_on_nodes_of_four_what_moves_most_stays_on_a_node():
    """Megatron's activations within a node, and between nodes the gradients of a quarter of the weights; Tesseract's panels, and
    nothing between nodes; of a product that is no work, everything on one node."""
    net = Transformer(hidden=32, heads=8, sequence=64, batch=64, layers=1)
    (step,) = networks.find_fastest_on(net, 16, NODES, ("Megatron1D",)).best
    assert [*step.choice.sizes.items()] == [("data", 4), ("row", 4)]
    of = Product(1024, 32, 32)
    slow, fast = (products.find_fastest(of, 8, replace(NODES, flops=flops), name="tesseract").best[0] for flops in (1e9, 1e15))
    assert slow.choice.order[0] == "depth" and slow.choice.sizes["depth"] == 2 and fast.choice.ranks <= 4
    assert of.fastest(8, replace(NODES, flops=1e15), 1).best[0].choice.ranks <= 4
    assert fast.seconds < slow.seconds < 32 * 32 * 8 / 1e3  # not even one B has come from another node
