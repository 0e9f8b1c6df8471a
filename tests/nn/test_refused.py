"""Passes that are refused, with the same words on every rank, and passes that fail."""

from contextlib import suppress

import numpy as np
import pytest
from helpers.nets import CUBE, SERIAL, SUMMA, P, X, layer_of, on, refusal, run

import pdla
from pdla import nn
from pdla.errors import AgreementError, DeadlockError, GridError, LayoutError, PdlaError, ShapeError
from pdla.matrix import reductions


def forward(scheme, x, layer=None):
    (layer or layer_of(scheme)).forward(x)


def embed(scheme, ids, **options):
    nn.Embedding(scheme, 9, 4, **options).forward(ids)


def sharing(scheme):
    one, other = nn.Linear(scheme, 20, 20), nn.Linear(scheme, 20, 20)
    other.weight = one.weight
    return nn.Sequential(scheme, [one, other])


def other_grid(scheme):
    grid = pdla.ProcessGrid((1, 4), comm=scheme.grid.comm)
    return pdla.from_global(X, grid, scheme.residual(5))


INPUTS = {
    "an array": (lambda s: forward(s, X), ShapeError, r"takes a DistMatrix \(tokens, features\), not an ndarray: scheme.shard"),
    "an array for one rank": (
        lambda s: forward(s, (s.shard(X), X)[s.grid.comm.rank == 2], nn.Linear(s, 20, 5)), ShapeError, "^rank 2: .* not an ndarray"
    ),
    "width": (lambda s: forward(s, s.shard(X[:, :18], sequence=5)), ShapeError, r"\(tokens, 20\) of float64, not \(15, 18\)"),
    "dtype": (lambda s: forward(s, s.shard(X.astype("f"), sequence=5)), ShapeError, "of float64, not .* of float32"),
    "layout": (lambda s: forward(s, pdla.from_global(X, s.grid, pdla.Layout())), LayoutError, r"x has Layout\(\), .* takes"),
    "grid": (lambda s: forward(s, other_grid(s)), LayoutError, r"x is on ProcessGrid\(row=1, col=4\), .* works on"),
    "sequences cut": (lambda s: forward(s, s.shard(X)), LayoutError, r"scheme\.shard\(x, sequence=5\) distributes x so"),
    "sequences cut otherwise": (lambda s: forward(s, s.shard(X, sequence=3)), LayoutError, r"scheme\.shard\(x, sequence=5\)"),
    "sequences not whole": (lambda s: forward(s, s.shard(X[:13], sequence=5)), ShapeError, "whole sequences of 5 tokens, not 13"),
    "a view": (
        lambda s: nn.Linear(s, 20, 3).forward(pdla.from_global(X.T, s.grid, s.residual().T).T), LayoutError, r"takes its copy\(\)"
    ),
    "partial sums": (
        lambda s: nn.GeLU(s).forward(pdla.zeros((4, 4), s.grid, pdla.Layout(partial="row"))), LayoutError, "of partial sums"
    ),
    "pointwise array": (lambda s: nn.ReLU(s).forward(X), ShapeError, "takes a DistMatrix on the scheme's grid"),
    "pointwise grid": (lambda s: nn.ReLU(s).forward(other_grid(s)), ShapeError, "takes a DistMatrix on the scheme's grid"),
    "sequence=0": (lambda s: s.shard(X, sequence=0), ShapeError, "sequence=0: tokens of a sequence, a whole number, at"),
    "training on some ranks": (
        lambda s: layer_of(s).forward(s.shard(X, sequence=5), training=s.grid.comm.rank > 1), AgreementError, "ranks disagree"
    ),
    "integers": (lambda s: forward(s, s.shard(X.astype(int)), nn.GeLU(s)), ShapeError, "GeLU .* of real floats, .* not of int64"),
    "integers to be dropped": (lambda s: nn.Dropout(s, P).forward(s.shard(np.full((4, 4), 3))), ShapeError, "not of int64"),
    "complex numbers": (lambda s: nn.ReLU(s).forward(s.shard(np.full((4, 4), 1j))), ShapeError, "not of complex128"),
    "passes on some ranks": (
        lambda s: (setattr(layer := nn.Dropout(s, P), "passes", s.grid.comm.rank), forward(s, s.shard(X), layer)), AgreementError,
        "rank 0: forward of Dropout.*passes=0; rank 1: .*passes=1",
    ),
    "token numbers too large": (lambda s: embed(s, np.arange(10)), ShapeError, "from 0 to 9; they go from 0 to 8"),
    "token numbers below 0": (lambda s: embed(s, np.arange(3) - 1), ShapeError, "from -1 to 1; they go from 0 to 8"),
    "token numbers on one rank": (
        lambda s: embed(s, np.arange(3) + 9 * (s.grid.comm.rank == 1)), ShapeError, "^rank 1: .* from 9 to 11"
    ),
    "token numbers in a list": (lambda s: embed(s, [1, 2]), ShapeError, "1-D array of integers, not in a list$"),
    "masked token numbers": (
        lambda s: embed(s, np.ma.masked_equal([1, 2, 99], 99)), ShapeError, "masked elements among token numbers"
    ),
    "token numbers in 2-D": (lambda s: embed(s, np.ones((2, 2), int)), ShapeError, r"not of int64, of shape \(2, 2\)$"),
    "token numbers as floats": (lambda s: embed(s, np.ones(2)), ShapeError, "1-D array of integers, not of float64"),
    "half a sequence": (lambda s: embed(s, np.ones(7, int), sequence=5), ShapeError, "7 tokens are not whole sequences of 5"),
    "another layout behind a pointwise layer": (
        lambda s: forward(s, pdla.from_global(X, s.grid, pdla.Layout()), nn.Sequential(s, [nn.GeLU(s), nn.Linear(s, 20, 5)])),
        LayoutError, r"x has Layout\(\), Linear\(20, 5\) .* takes",
    ),
    "another layout, of a layer that takes any width": (
        lambda s: forward(s, pdla.from_global(X, s.grid, pdla.Layout()), nn.MeanOverSequence(s, sequence=5)), LayoutError,
        r"x has Layout\(\), MeanOverSequence .* takes",
    ),
    "width, of a layer behind one that takes any": (
        lambda s: forward(s, s.shard(X, sequence=5), nn.Sequential(s, [nn.MeanOverSequence(s, sequence=5), nn.Linear(s, 9, 9)])),
        ShapeError, r"Sequential of 2 layers on .* takes \(tokens, 9\) of float64, not \(15, 20\) of float64",
    ),
    "dtype, of a layer behind one that takes any": (
        lambda s: forward(s, s.shard(X.astype("f")), nn.Sequential(s, [nn.Upsample(s, height=1, width=1), nn.Linear(s, 20, 9)])),
        ShapeError, r"Sequential of 2 layers on .* takes \(tokens, 20\) of float64, not \(15, 20\) of float32",
    ),
    "a layer in two places": (
        lambda s: forward(s, s.shard(X), nn.Sequential(s, [gelu := nn.GeLU(s), nn.Linear(s, 20, 20), gelu])), PdlaError,
        "GeLU on .* is in a Sequential 2 times: make a layer for each place",
    ),
    "a layer in two parts": (
        lambda s: nn.Sequential(s, [nn.Sequential(s, [gelu := nn.GeLU(s)]), nn.MLP(s, 4), gelu]), PdlaError, "in a Sequential 2 t"
    ),
    "a parameter in two places": (
        lambda s: forward(s, s.shard(X), sharing(s)), PdlaError, "layers.0.weight of .* is used by 2 layers; only TiedHead"
    ),
    "a head alone": (
        lambda s: nn.TiedHead(nn.Embedding(s, 9, 20)).forward(s.shard(X)), PdlaError,
        "is used by 2 layers, of which 1 are in .* an unused TiedHead counts, too"
    ),
}


@pytest.mark.parametrize("what", INPUTS)
def test_inputs_that_are_refused(what):
    program, kind, words = INPUTS[what]
    raised, text = refusal(4, lambda comm: program(SUMMA.make(comm)))
    assert raised is kind, text
    with pytest.raises(kind, match=words):
        raise raised(text)


@pytest.mark.parametrize("place", [on(nn.Megatron1D, (2,), sequence_parallel=True), CUBE], ids=lambda place: place.name)
def test_samples_that_are_cut_are_refused(place):
    def program(comm):
        scheme = place.make(comm)
        nn.GroupNorm(scheme, 20, groups=5, pixels=5).forward(scheme.shard(X, sequence=5))

    kind, text = refusal(place.ranks, program)
    assert kind is LayoutError and "takes whole sequences of 5 tokens on each rank, but" in text


@pytest.mark.parametrize("pairs", [0, 1])
def test_upsampled_tokens_that_lie_otherwise_are_refused(pairs):
    """Of 5 pixels the last of 3 ranks has 1; of 20 a cut of all would give it 6, not 4."""

    def program(comm):
        scheme = nn.Megatron1D(pdla.ProcessGrid((3,), comm=comm), sequence_parallel=True)
        before = [nn.Conv2d(scheme, 4, 4, 1, height=1, width=1, kind=kind) for kind in ("first", "second")] * pairs
        nn.Sequential(scheme, [*before, nn.Upsample(scheme, height=1, width=1)]).forward(scheme.shard(np.ones((5, 4))))

    kind, text = refusal(3, program)
    assert kind is LayoutError and "so ranks must hold equally many of x's 5 tokens" in text


BEHIND = {
    "GroupNorm": lambda s: nn.GroupNorm(s, 4, groups=2, pixels=2),
    "Upsample": lambda s: nn.Upsample(s, height=1, width=2),
    "ResidualBlock": lambda s: nn.ResidualBlock(s, 4, groups=2, height=1, width=2),
}


@pytest.mark.parametrize("place", [on(nn.Megatron1D, (4,), sequence_parallel=True), CUBE], ids=lambda place: place.name)
@pytest.mark.parametrize("layer", BEHIND.values(), ids=BEHIND)
def test_samples_that_are_cut_are_refused_behind_other_layers(place, layer):
    def program(comm):
        scheme = place.make(comm)
        pair = [nn.Conv2d(scheme, 4, 4, 1, height=1, width=2, kind=kind) for kind in ("first", "second")]
        nn.Sequential(scheme, [*pair, layer(scheme)]).forward(scheme.shard(np.ones((6, 4)), sequence=2))

    kind, text = refusal(place.ranks, program)
    assert kind is LayoutError and "takes whole sequences of 2 tokens on each rank, but" in text


# ---------------------------------------------------------------------------------------------- losses and passes back


def logits(scheme):
    return nn.Linear(scheme, 20, 9).forward(scheme.shard(X))


LOSSES = {
    "an array": (lambda s: nn.CrossEntropy().forward(X, np.zeros(15, int)), "takes logits as a DistMatrix .* not an ndarray"),
    "too few targets": (lambda s: nn.CrossEntropy().forward(logits(s), np.zeros(14, int)), "14 targets for the logits of 15"),
    "targets in a list": (lambda s: nn.CrossEntropy().forward(logits(s), [0] * 15), "1-D array of integers, not in a list$"),
    "too large": (lambda s: nn.CrossEntropy().forward(logits(s), np.arange(15) - 1), "from 0 to 13; they go from 0 to 8; -1 "),
    "too small": (lambda s: nn.CrossEntropy().forward(logits(s), np.full(15, -2)), "from -2 to -2"),
    "masked targets": (lambda s: nn.CrossEntropy().forward(logits(s), np.ma.masked_equal(np.arange(15) % 9, 3)), "masked elements"),
    "nothing counts": (lambda s: nn.CrossEntropy().forward(logits(s), np.full(15, -1)), "no token counts: all 15 targets are -1"),
    "no tokens": (
        lambda s: nn.CrossEntropy().forward(s.shard(np.ones((0, 9))), np.zeros(0, int)), "^CrossEntropy of no tokens: there is no"
    ),
    "nothing but what is ignored": (
        lambda s: nn.CrossEntropy(ignore=7).forward(logits(s), np.full(15, 7)), "all 15 targets are 7: there is no mean loss"
    ),
    "-100 without ignore": (
        lambda s: nn.CrossEntropy().forward(logits(s), np.full(15, -100)), r"from -100 to -100; .* CrossEntropy\(ignore=-100\)"
    ),
    "-1 beside ignore": (
        lambda s: nn.CrossEntropy(ignore=0).forward(logits(s), np.arange(15) % 3 - 1), "from -1 to 1; .* 0 is ignored"
    ),
    "half a number": (lambda s: nn.CrossEntropy(ignore=0.5).forward(logits(s), np.zeros(15, int)), "ignore=0.5.*: a whole number"),
    "numbers to ignore that differ": (
        lambda s: nn.CrossEntropy(ignore=s.grid.comm.rank).forward(logits(s), np.arange(15) % 9), r"rank 1: .*\(ignore=1\)"
    ),
    "other targets on a rank": (
        lambda s: nn.CrossEntropy().forward(logits(s), np.full(15, s.grid.comm.rank % 2)), "ranks 0, 2: .* digest .* ranks 1, 3: "
    ),
    "integers": (lambda s: nn.CrossEntropy().forward(s.shard(np.ones((15, 9), int)), np.zeros(15, int)), "not of int64"),
    "partial sums": (
        lambda s: nn.CrossEntropy().forward(pdla.zeros((15, 9), s.grid, pdla.Layout(partial="row")), np.zeros(15, int)),
        r"of partial sums .* redistribute to Layout\(\) first",
    ),
    "idle ranks": (
        lambda s: nn.CrossEntropy().forward(
            pdla.zeros((15, 9), pdla.ProcessGrid(3, comm=s.grid.comm), pdla.Layout("row")), np.zeros(15, int)
        ),
        "row=3; 1 idle.*, which leaves ranks idle",
    ),
}


@pytest.mark.parametrize("what", LOSSES)
def test_losses_that_are_refused(what):
    program, words = LOSSES[what]
    kind, text = refusal(4, lambda comm: program(SUMMA.make(comm)))
    with pytest.raises((ShapeError, LayoutError, GridError, AgreementError), match=words):
        raise kind(text)


def test_backward_passes_that_are_refused():
    """Each with the words that say why; the right one still goes through behind them."""

    def program(comm):
        scheme = SUMMA.make(comm)
        layer, criterion = layer_of(scheme), nn.CrossEntropy()
        dy, none = scheme.shard(X, sequence=5), "without a forward pass in training"
        wrong = [
            (X, ShapeError, "dy is an ndarray, not a DistMatrix laid out as the layer's output"),
            (scheme.shard(X[:10], sequence=5), ShapeError, r"dy is \(10, 20\) float64, the layer's output \(15, 20\) float64"),
            (scheme.shard(X.astype("f"), sequence=5), ShapeError, r"dy is \(15, 20\) float32"),
            (scheme.shard(X), LayoutError, "dy has .* the layer's output Layout"),
            (other_grid(scheme), LayoutError, r"dy has .* on ProcessGrid\(row=1, col=4\)"),
            (pdla.from_global(X.T, scheme.grid, dy.layout.T).T, LayoutError, r"dy is a transposed or conjugated view; .* copy\(\)"),
        ]

        def refused(kind, words):
            return pytest.raises(kind, match=words)

        with refused(PdlaError, none):
            layer.backward(dy)
        layer.forward(dy, training=False)
        with refused(PdlaError, none):
            layer.backward(dy)
        layer.forward(dy)
        for given, kind, words in wrong:
            with refused(kind, words):
                layer.backward(given)
        with refused(ShapeError, "^rank 1: dy is an ndarray"):
            layer.backward(X if comm.rank == 1 else dy)
        assert layer.backward(dy).shape == X.shape
        with refused(PdlaError, none):
            layer.backward(dy)
        with refused(PdlaError, "backward of CrossEntropy without a forward"):
            criterion.backward()

    pdla.run(4, program)


# ---------------------------------------------------------------------------------------------- passes that fail


class Failing(nn.Layer):
    """Hands on what it is given, or fails on one way through."""

    way = ""

    def forward_local(self, x, batch):
        assert self.way != "forward"
        return x

    def backward_local(self, dy, batch):
        assert self.way != "backward"
        return dy


def test_an_error_amid_a_pass_leaves_nothing_of_it_nor_of_the_one_before():
    def program(scheme):
        failing = Failing(scheme)
        layer = nn.Sequential(scheme, [nn.Linear(scheme, 20, 9), failing, nn.Linear(scheme, 9, 20, kind="second")])
        x, optimizer, found = scheme.shard(X), nn.SGD(layer, 0.1), []
        layer.backward(layer.forward(x))
        layer.forward(x)
        failing.way = "forward"
        with pytest.raises(AssertionError):
            layer.forward(2 * x)
        assert layer.kept_bytes() == 0
        with pytest.raises(PdlaError, match="without a forward pass"):
            layer.backward(x)
        failing.way = "backward"
        y = layer.forward(x)
        with pytest.raises(AssertionError):
            layer.backward(y)
        assert layer.kept_bytes() == 0
        with pytest.raises(PdlaError, match="has no gradient"):
            optimizer.step()
        failing.way = ""
        for _ in range(2):
            found.append(layer.backward(layer.forward(x)).gather())
        return found

    first, second = run(SERIAL, program)
    assert np.array_equal(first, second)


@pytest.mark.parametrize("what", ["a loss", "norm"])
def test_a_rank_that_goes_on_after_an_error_of_its_own_is_told_of(what, monkeypatch):
    """As where elements overflow, which a norm scales: there another error is made."""
    right = reductions._find_largest

    def largest(A):
        if A.grid.comm.rank:
            raise FloatingPointError
        return right(A)

    monkeypatch.setattr(reductions, "_find_largest", largest)

    def program(comm):
        layer, targets = nn.Linear(nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm)), 2, 2), np.array([0])
        logits = layer.forward(layer.scheme.shard(np.ones((1, 2))))
        layer.backward(logits)
        for large in (logits, *layer.gradients().values()):
            large.stored[...] = 1e308 * (-1) ** comm.rank
        with suppress(FloatingPointError), np.errstate(over="raise" if comm.rank else "ignore"):
            nn.CrossEntropy().forward(logits, targets) if what == "a loss" else nn.clip(layer, 1)
        layer.forward(layer.scheme.shard(np.ones((1, 2))))

    with pytest.raises(DeadlockError, match=f"rank 1 waits in going on after an error in {what}, in verb"):
        pdla.run(2, program)
