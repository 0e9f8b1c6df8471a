"""Predictions: closed forms against dry runs, the search against running all, the fastest way where it is known, the command."""

import csv
import json
from dataclasses import dataclass, replace
from itertools import product as cross
from math import prod

import numpy as np
import pytest
from helpers.commands import FREE, command

import pdla
from pdla import nn
from pdla.bench.commands import predict, scale
from pdla.comm.collectives import ring
from pdla.model.machine import Machine
from pdla.simulate import estimate, networks, products
from pdla.simulate.estimate import Seconds
from pdla.simulate.networks import SCHEMES, Transformer
from pdla.simulate.products import Product
from pdla.simulate.search import Candidate, Found, search

SMALL = Transformer(hidden=64, heads=8, sequence=8, batch=16, layers=2)
RAGGED = Transformer(hidden=60, heads=5, sequence=7, batch=13, layers=3)
SLOW = Machine(flops=1e15, call=0.0, memory=1e30, bandwidth=1e3, network=1e3, latency=0.0, far_latency=0.0)
NODES = Machine(flops=1e15, call=0.0, memory=1e30, bandwidth=1e12, network=1e3, latency=0.0, far_latency=0.0, node=4)
MIXED = Machine(flops=1e11, memory=1e11, bandwidth=1e9, network=1e8, latency=1e-6, far_latency=1e-5, node=4)
AROUND = replace(MIXED, name="where all-gathers go around the nodes, however short")
OPTIONS = ["--hidden", "64", "--heads", "8", "--sequence", "8", "--batch", "16", "--layers", "2"]


# ---------------------------------------------------------------------------------------------- closed forms


def received(choice, net):
    """Words of a layer by the axes along which they came, counted by a dry run."""

    def program(comm):
        scheme = choice.scheme(comm)
        layer = nn.TransformerLayer(scheme, net.hidden, net.heads, sequence=net.sequence, dtype=net.dtype)
        x = pdla.zeros((net.tokens, net.hidden), scheme.grid, scheme.residual(net.sequence), dtype=net.dtype)
        layer.backward(layer.forward(x))

    _, ledger = pdla.dry_run(choice.ranks, program)
    sums = {}
    for event in ledger.events:
        if event.bytes:
            axes = frozenset(event.axis.split(","))
            sums[axes] = sums.get(axes, 0) + event.bytes // net.itemsize
    return sums


@pytest.mark.parametrize("net", [SMALL, RAGGED], ids=["even", "ragged"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_layers_receive_is_known_in_closed_form(scheme, net):
    found = [choice for ranks in (12, 15, 16) for choice in networks.choices(ranks, net, [scheme])]
    assert found
    for choice in found:
        sums = {}
        for move in networks.moves(choice, net):
            sums[frozenset(move.axes)] = sums.get(frozenset(move.axes), 0) + move.words
        assert {axes: words for axes, words in sums.items() if words} == received(choice, net), choice


@pytest.mark.parametrize("sizes", [(24, 24, 24), (13, 29, 17)])
def test_what_products_receive_is_known_in_closed_form(sizes):
    of = Product(*sizes)
    for ranks in (6, 8, 16):
        for table in products.tables(of, ranks, FREE):
            guess = products.guess(of, table, FREE)
            found = products.cost(of, guess.choice, ranks, FREE)
            words = sum(move.words for move in products.moves(of, table))
            assert found.received == 8 * words or (table.schedule == "cannon" and found.received > 8 * words), guess.choice
            assert guess.size == found.matrices, guess.choice


@pytest.mark.parametrize("node", [1, 4])
def test_messages_are_those_of_the_sums_that_the_grid_has(node):
    """36 ranks sum a face of C in two sums of six where nodes have one rank, and else in one."""
    machine, of = replace(MIXED, node=node, call=0.0, latency=0.0, far_latency=0.0, gap=1e-3), Product(2000, 2000, 10**7)
    (table,) = (table for table in products.tables(of, 144, machine) if (table.box, table.schedule) == ((2, 2, 36), "gather"))
    guess = products.guess(of, table, machine)
    found = products.cost(of, guess.choice, 144, machine)
    assert found.messages == (2 + 2 * 5 if node == 1 else 2 + 35)
    assert guess.seconds.begun == pytest.approx(found.messages * machine.gap)


@pytest.mark.parametrize("schedule", ["gather", "summa"])
def test_short_panels_of_many_ranks_come_one_by_one_and_what_is_gathered_at_once_in_steps(schedule):
    machine, of = replace(MIXED, node=0, call=0.0, latency=0.0, gap=1e-3), Product(400, 40, 400)
    (table,) = (one for one in products.tables(of, 64, machine) if (one.algorithm, one.shape) == (schedule, (64, 1)))
    guess = products.guess(of, table, machine)
    found = products.cost(of, guess.choice, 64, machine)
    assert found.messages == {"gather": 6, "summa": 63}[schedule]
    assert guess.seconds.begun == pytest.approx(found.messages * machine.gap)


@pytest.mark.parametrize("node", [0, 4, 8])
def test_messages_sent_at_once_wait_for_one_latency_that_of_the_node_within_it(node):
    machine, of = replace(MIXED, node=node, call=0.0), Product(40, 30, 50)
    begun, rounds = zip(*(
        (products.guess(of, table, machine).seconds.begun, len([*products.moves(of, table)]))
        for table in products.tables(of, 8, machine) if table.schedule == "gather" and prod(table.shape) == 8
    ), strict=True)
    if node == 4:
        assert min(begun) >= machine.far_latency
    else:
        assert begun == pytest.approx([n * machine.latency for n in rounds])


@pytest.mark.parametrize(("schedule", "calls"), [("gather", 0), ("summa", 3)])
def test_products_of_panels_are_counted_one_for_a_panel_of_a_and_one_of_b(schedule, calls):
    machine, of = replace(FREE, call=1.0), Product(400, 400, 400)
    (table,) = (one for one in products.tables(of, 16, machine) if (one.algorithm, one.shape) == (schedule, (4, 4)))
    assert products.guess(of, table, machine).seconds.begun == calls


@pytest.mark.parametrize("sizes", [(1, 17, 10**6), (2000, 3, 10**5), (2000, 2000, 10**6)])
def test_short_sums_of_many_ranks_come_in_steps(sizes):
    """Where a step takes long, a sum that is priced as if all addends came by themselves would take longer than the run."""
    machine, of = replace(MIXED, call=1e-3, node=0), Product(*sizes)
    for table in products.tables(of, 64, machine):
        if table.box.k >= 32:
            guess = products.guess(of, table, machine)
            found = products.cost(of, guess.choice, 64, machine)
            assert found.received == 8 * sum(move.words for move in products.moves(of, table)), guess.choice
            assert guess.seconds.least <= found.seconds, guess.choice


def test_short_sums_of_many_ranks_of_a_network_come_in_steps():
    machine, net = replace(MIXED, call=1e-3, node=0), replace(SMALL, batch=37)
    for choice in networks.choices(37, net):
        guess = networks.guess(choice, net, machine)
        step = networks.step(guess.choice, net, machine)
        assert step.received == 4 * net.layers * sum(move.words for move in networks.moves(choice, net)), choice
        assert guess.seconds.least <= step.seconds, choice


@pytest.mark.parametrize("machine", [FREE, SLOW, MIXED, AROUND], ids=["free", "slow", "mixed", "around"])
@pytest.mark.parametrize("net", [SMALL, RAGGED], ids=["even", "ragged"])
def test_no_run_is_faster_or_smaller_than_its_closed_form(net, machine, monkeypatch):
    if machine is AROUND:
        monkeypatch.setattr(ring, "LONG", 0)
    for choice in networks.choices(12, net):
        guess = networks.guess(choice, net, machine)
        step = networks.step(guess.choice, net, machine)
        assert guess.seconds.least <= step.seconds * (1 + 1e-9), guess.choice
        assert guess.size <= step.size, guess.choice
    of = Product(40, 30, 50)
    for table in products.tables(of, 12, machine):
        guess = products.guess(of, table, machine)
        assert guess.seconds.least <= products.cost(of, guess.choice, 12, machine).seconds * (1 + 1e-9), guess.choice


@pytest.mark.parametrize("node", [0, 1, 3, 4, 6])
def test_neighbours_and_placements_are_those_of_the_grid(node):
    for shape in cross((1, 2, 3), (1, 4), (2, 5)):
        sizes = dict(zip("abc", shape, strict=True))
        ranks = np.arange(prod(shape)).reshape(shape)
        for axes in (("a",), ("b", "c"), ("a", "c")):
            group = ranks[tuple(slice(None) if axis in axes else 0 for axis in "abc")]
            assert estimate.neighbours(axes, sizes, node) == (group < (node or ranks.size)).sum()
        placed = list(estimate.placements(sizes, node))
        assert placed[0] == sizes and all(one == sizes for one in placed) and (node or len(placed) == 1)


def test_along_data_alone_all_schemes_are_one():
    steps = {networks.step(choice, SMALL, MIXED).seconds for choice in networks.choices(4, SMALL) if choice.sizes["data"] == 4}

    def own(comm):
        scheme = nn.Cube3D(pdla.ProcessGrid((4, 1, 1, 1), ("data", "row", "col", "depth"), comm))
        layer = nn.TransformerLayer(scheme, 64, 8, sequence=8, dtype="float32")
        layer.backward(layer.forward(pdla.zeros((128, 64), scheme.grid, scheme.residual(8), dtype="float32")))

    assert steps == {SMALL.layers * pdla.dry_run(4, own, machine=MIXED)[1].seconds}


# ---------------------------------------------------------------------------------------------- the search


@dataclass(frozen=True)
class Run:
    """A choice that is its own result."""

    seconds: float
    size: float


def made(count, seed=0):
    random = np.random.default_rng(seed)
    for true, share, size in random.random((count, 3)).tolist():
        yield Candidate(Run(true, size), Seconds(true * share, 0.0, 0.0), size)


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


def test_one_rank_is_no_ranks(capsys):
    for words, module in ((("-P", "1"), predict), (("--to", "1"), scale)):
        _, out, _ = command(capsys, *words, "--product", "8x8x8", module=module)
        assert "on 1 rank\n" in out


# ---------------------------------------------------------------------------------------------- the fastest


def test_without_a_network_only_work_counts():
    for step in SMALL.fastest(16, FREE, 3).best:
        assert step.computing == pytest.approx(step.seconds)
    (cost,) = Product(64, 64, 64).fastest(16, FREE, 1).best
    assert cost.seconds == pytest.approx(2 * 64**3 / 16 / 1e9)


def test_on_a_slow_network_the_least_volume_wins():
    every = [networks.step(choice, SMALL, SLOW) for choice in networks.choices(16, SMALL)]
    assert SMALL.fastest(16, SLOW, 1).best[0].received == min(step.received for step in every)
    (cost,) = Product(64, 64, 64).fastest(8, SLOW, 1).best
    assert cost.choice.table.box == (2, 2, 2)
    assert cost.received == 8 * 3 * 32 * 32 // 2 == round(Product(64, 64, 64).lower_bound(8))


def test_on_nodes_of_four_what_moves_most_stays_on_a_node():
    """Megatron's activations within a node, and between nodes the gradients of a quarter of the weights; Tesseract's panels, and
    nothing between nodes; of a product that is no work, everything on one node."""
    net = Transformer(hidden=32, heads=8, sequence=64, batch=64, layers=1)
    (step,) = net.fastest(16, NODES, 1, schemes=("Megatron1D",)).best
    assert [*step.choice.sizes.items()] == [("data", 4), ("row", 4)]
    slow, fast = (Product(1024, 32, 32).fastest(8, replace(NODES, flops=flops), 1).best[0] for flops in (1e9, 1e15))
    assert slow.choice.order[0] == "depth" and slow.choice.sizes["depth"] == 2 and fast.choice.ranks <= 4
    assert fast.seconds < slow.seconds < 32 * 32 * 8 / 1e3  # not even one B has come from another node


def test_every_layer_is_counted():
    choice = networks.Choice("Tensor3D", (1, 2, 2, 1), ("data", "row", "col", "depth"))
    one, three = (networks.step(choice, Transformer(64, 8, 8, 16, layers), MIXED) for layers in (1, 3))
    for figure in ("seconds", "computing", "received", "messages", "parameters", "kept", "size"):
        assert getattr(three, figure) == 3 * getattr(one, figure) > 0


@pytest.mark.parametrize("ranks", [1, 7, 12, 61, 64])
def test_every_choice_uses_all_ranks_and_cuts_no_more_than_there_is(ranks):
    for choice in networks.choices(ranks, SMALL):
        assert choice.ranks == ranks
        scheme, _ = pdla.dry_run(ranks, choice.scheme)
        layout = scheme.first.Y.split("|")
        sequences, heads = (prod(choice.sizes.get(axis, 1) for axis in part.split()) for part in layout)
        assert sequences <= SMALL.batch and heads <= SMALL.heads


def test_ranks_that_no_scheme_can_use():
    few = Transformer(hidden=4, heads=2, sequence=4, batch=3, layers=1)
    assert [networks.usable(ranks, few) for ranks in (12, 23, 24, 10**6)] == [12, 3 * 2 * 3, 24, 24]


def test_a_million_ranks():
    net = Transformer(hidden=3072, heads=64, sequence=512, batch=64, layers=24)
    found = net.fastest(10**6, Machine.load("a100x4"), 1, most=1)
    assert found.run == 1 and found.best[0].choice.ranks == 10**6 and found.possible > 50


# ---------------------------------------------------------------------------------------------- the command


def test_transformers(capsys, tmp_path):
    files = ["--csv", str(tmp_path / "out.csv"), "--json", str(tmp_path / "out.json")]
    status, out, _ = command(capsys, "-P", "4", *OPTIONS, "--machine", "a100x4", "--best", "3", *files)
    assert status == 0 and out.startswith("2 layers of 64 features, 8 heads, 16 sequences of 8")
    content = json.loads((tmp_path / "out.json").read_text())
    assert (content["command"], content["ranks"], content["problem"]["kind"]) == ("predict", 4, "transformer")
    assert Machine(**content["machine"]) == Machine.load("a100x4")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["choice"] for row in rows] == [row["choice"] for row in content["rows"]] and len(rows) == 3
    assert all(row["choice"] in out for row in rows) and all(row["ranks_used"] == "4" for row in rows)


def test_products(capsys, tmp_path):
    path = tmp_path / "out.json"
    status, out, _ = command(capsys, "-P", "8", "--product", "64x32x16", "--dtype", "complex64", "--json", str(path))
    (first, *_) = json.loads(path.read_text())["rows"]
    assert status == 0 and out.startswith("C = A B, m n k = 64 32 16, complex64, on 8 ranks") and first["choice"] in out
    assert first["multiple_of_bound"] == pytest.approx(first["bytes_received"] / Product(64, 32, 16, "complex64").lower_bound(8))


def test_what_needs_more_memory_is_left_out(capsys, tmp_path):
    """4 ranks, 64 features: all parameters, 4 times, in 32 bits, and what is kept of 128 tokens."""
    path = tmp_path / "out.json"
    command(capsys, "-P", "4", *OPTIONS, "--best", "1000", "--json", str(path))
    sizes = sorted(row["bytes_needed"] for row in json.loads(path.read_text())["rows"])
    assert sizes[0] < sizes[-1]
    _, out, _ = command(capsys, "-P", "4", *OPTIONS, "--memory", str(sizes[1] / 1e9), "--best", "1000", "--json", str(path))
    assert all(row["bytes_needed"] <= sizes[1] for row in json.loads(path.read_text())["rows"]) and "more memory" in out
    status, _, err = command(capsys, "-P", "4", *OPTIONS, "--memory", "1e-6")
    assert status == 2 and "need more memory" in err and "at least" in err


def test_idle_ranks_are_told(capsys):
    few = ["--hidden", "4", "--heads", "2", "--sequence", "4", "--batch", "3"]
    _, out, _ = command(capsys, "-P", "23", *few, "--best", "1")
    assert ", 5 idle" in out
    _, out, _ = command(capsys, "-P", "24", *few, "--best", "1")
    assert "idle" not in out


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        (["--product", "4x4"], "'4x4'"),
        (["--product", "4x0x4"], "'4x0x4'"),
        (["--product", "4x4x4", "--heads", "2"], "--heads"),
        (["--dtype", "complex64"], "float32 or float64"),
        (["--hidden", "10", "--heads", "3"], "equal heads"),
        (["--memory", "none"], "'none'"),
        (["--memory", "-1"], "-1"),
        (["--machine", "nowhere"], "a100x4"),
        (["--machine", ""], "no machine ''"),
        ([*OPTIONS, "--json", "/nowhere/out.json"], "/nowhere/out.json"),
    ],
)
def test_refusals_quote_what_was_given(capsys, words, quoted):
    status, out, err = command(capsys, "-P", "4", *words)
    assert (status, out) == (2, "") and quoted in err


def test_a_product_below_the_bound_is_explained(capsys):
    """Tesseract holds B in every layer: 0.88 of a bound seemed to be a mistake."""
    status, out, _ = command(capsys, "-P", "12", "--product", "1000x2000x300", "--machine", "a100x4")
    assert status == 0 and "0.88" in out and "no matrix held twice (tesseract" in out


def test_columns_stay_apart_whatever_the_figures():
    row = {"choice": "summa", "ranks_used": 4, "seconds": 1.0, "computing": 1.0, "bytes_received": 10**30, "messages": 10**20}
    row |= {"multiple_of_bound": 1e12, "bytes_of_matrices": 10**30, "bytes_of_workspace": 10**30}
    _, line = predict.lines([row], 4, network=False)
    assert line.split() == ["summa", "1", "100%", "1e+21", f"{10**20}", f"{10**12}.00", "1e+21", "1e+21"]
