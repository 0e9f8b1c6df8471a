"""Networks foretold: closed forms against dry runs, and the fastest scheme where it is known."""

from dataclasses import replace
from math import prod

import pytest
from helpers.machines import MIXED, RAGGED, SMALL

import pdla
from pdla import nn
from pdla.model.machine import Machine
from pdla.simulate import networks
from pdla.simulate.networks import SCHEMES, Transformer


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


def test_short_sums_of_many_ranks_of_a_network_come_in_steps():
    machine, net = replace(MIXED, call=1e-3, node=0), replace(SMALL, batch=37)
    for choice in networks.choices(37, net):
        guess = networks.estimate(choice, net, machine)
        step = networks.step(guess.choice, net, machine)
        assert step.cost.bytes_received == 4 * net.layers * sum(move.words for move in networks.moves(choice, net)), choice
        assert guess.seconds.least <= step.seconds, choice


def test_along_data_alone_all_schemes_are_one():
    steps = {networks.step(choice, SMALL, MIXED).seconds for choice in networks.choices(4, SMALL) if choice.sizes["data"] == 4}

    def own(comm):
        scheme = nn.Cube3D(pdla.ProcessGrid((4, 1, 1, 1), ("data", "row", "col", "depth"), comm))
        layer = nn.TransformerLayer(scheme, 64, 8, sequence=8, dtype="float32")
        layer.backward(layer.forward(pdla.zeros((128, 64), scheme.grid, scheme.residual(8), dtype="float32")))

    assert steps == {SMALL.layers * pdla.dry_run(4, own, machine=MIXED)[1].seconds}


def test_every_layer_is_counted():
    choice = networks.Choice("Tensor3D", (1, 2, 2, 1), ("data", "row", "col", "depth"))
    one, three = (networks.step(choice, Transformer(64, 8, 8, 16, layers), MIXED) for layers in (1, 3))
    for figure in ("seconds", "computing", "bytes_received", "messages", "flops"):
        assert getattr(three.cost, figure) == 3 * getattr(one.cost, figure) > 0
    for figure in ("seconds", "parameters", "kept", "size"):
        assert getattr(three, figure) == 3 * getattr(one, figure) > 0
    assert three.cost.peak_workspace == one.cost.peak_workspace > 0  # kept for the next layer


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
    assert [networks.count_usable(ranks, few) for ranks in (12, 23, 24, 10**6)] == [12, 3 * 2 * 3, 24, 24]


def test_a_million_ranks():
    net = Transformer(hidden=3072, heads=64, sequence=512, batch=64, layers=24)
    found = networks.find_fastest_on(net, 10**6, Machine.load("a100x4"), most=1)
    assert found.run == 1 and found.best[0].choice.ranks == 10**6 and found.possible > 50
