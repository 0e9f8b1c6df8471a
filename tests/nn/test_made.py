"""Schemes, layers and optimizers that cannot be made, or not so, are refused with the same words on every rank."""

from functools import partial

import numpy as np
import pytest
from helpers.nets import SUMMA, P, X, layer_of, refusal, run

import pdla
from pdla import nn
from pdla.errors import AgreementError, ArgumentError, GridError, PdlaError, ShapeError


def chain(comm, *makers):
    """Layers, each made from a scheme, one after the other."""
    scheme = SUMMA.make(comm)
    return nn.Sequential(scheme, [make(scheme) for make in makers])


def conv_of(scheme, height, width, **options):
    return nn.Conv2d(scheme, 2, 2, 3, height=height, width=width, **options)


def grid(comm, shape, axes=None):
    return pdla.ProcessGrid(shape, None if axes is None else tuple(axes.split()), comm)


def stepped_alone(comm):
    layer = nn.Linear(SUMMA.make(comm), 20, 5)
    optimizer, x = nn.AdamW(layer), layer.scheme.shard(X)
    layer.backward(layer.forward(x))
    if comm.rank == 0:
        optimizer.step()
    optimizer.state_dict()


def resumed(comm, optimizer, state):
    optimizer(nn.Linear(SUMMA.make(comm), 20, 5, bias=False)).load_state_dict(state)


MAKING = {
    "an axis lacks": (lambda c: nn.Summa2D(grid(c, (4,))), GridError, r"axes row, col \(optional: data\); .* lacks col"),
    "an axis too many": (lambda c: nn.Summa2D(grid(c, (2, 2, 1))), GridError, "also has depth"),
    "a strange axis": (lambda c: nn.Tensor3D(grid(c, (2, 2, 1), "row col time")), GridError, r"depth, data\); .* also has time"),
    "megatron on two axes": (lambda c: nn.Megatron1D(grid(c, (2, 2))), GridError, "also has col"),
    "cube without depth": (lambda c: nn.Cube3D(grid(c, (2, 2))), GridError, "lacks depth"),
    "idle ranks": (
        lambda c: nn.Summa2D(grid(c, (1, 2))), GridError, r"leaves ranks idle; make it over comm.split\(range\(2\) if comm.rank < 2"
    ),
    "shards=0": (lambda c: nn.Tensor3D(grid(c, (2, 2)), shards=0), ShapeError, "shards=0: a whole number, at least 1"),
    "shards=1.5": (lambda c: nn.Tensor3D(grid(c, (2, 2)), shards=1.5), ArgumentError, "shards=1.5: a whole number"),
    "panel=1.5": (lambda c: nn.Summa2D(grid(c, (2, 2)), panel=1.5), ShapeError, "panel=1.5, .* a whole number"),
    "shards on a cube": (lambda c: nn.Cube3D(grid(c, (2, 2, 1)), shards=2), ShapeError, "shards=2: Cube3D cuts tokens differently"),
    "shards of cut sequences": (
        lambda c: nn.Megatron1D(grid(c, (4,)), sequence_parallel=True, shards=2), ShapeError, "shards=2: Megatron1D cuts tokens"
    ),
    "many flags on one rank": (
        lambda c: nn.Megatron1D(grid(c, (4,)), sequence_parallel=np.ones(2) if c.rank else True),
        ArgumentError, "ranks 1, .*True or"
    ),
    "a word for a flag": (
        lambda c: nn.Tesseract(grid(c, (2, 2, 1)), cut_weights="no"), ArgumentError, "cut_weights='no': True or False"
    ),
    "ranks that differ": (lambda c: nn.Tensor3D(grid(c, (2, 2)), shards=1 + c.rank), AgreementError, "ranks disagree"),
    "a grid for a scheme": (lambda c: nn.MLP(grid(c, (2, 2)), 8), GridError, r"MLP\(ProcessGrid\(.*\), ...\): give a scheme"),
    "heads": (lambda c: nn.SelfAttention(SUMMA.make(c), 20, 3, sequence=5), ShapeError, "20 features are not 3 equal heads"),
    "heads of a layer": (lambda c: nn.TransformerLayer(SUMMA.make(c), 20, 0, sequence=5), ShapeError, "not 0 equal heads"),
    "heads of nothing": (lambda c: nn.TransformerLayer(SUMMA.make(c), 0, 5, sequence=5), ShapeError, "0 features are not 5 equal"),
    "sequence=0": (lambda c: nn.SelfAttention(SUMMA.make(c), 20, 5, sequence=0), ShapeError, "sequence=0: tokens of a sequence"),
    "sequence=0 of a mean": (lambda c: nn.MeanOverSequence(SUMMA.make(c), sequence=0), ShapeError, "MeanOverSequence: sequence=0"),
    "sequence=0 of an embedding": (lambda c: nn.Embedding(SUMMA.make(c), 9, 4, sequence=0), ShapeError, "Embedding: sequence=0"),
    "sequence=0 of positions": (lambda c: nn.Positions(SUMMA.make(c), 4, sequence=0), ShapeError, "Positions: sequence=0"),
    "pixels=0": (lambda c: nn.GroupNorm(SUMMA.make(c), 20, groups=5, pixels=0), ShapeError, "GroupNorm: pixels=0"),
    "sequence=5.0": (lambda c: nn.Positions(SUMMA.make(c), 4, sequence=5.0), ArgumentError, "sequence=5.0: .* a whole number"),
    "heads=4.0": (lambda c: nn.SelfAttention(SUMMA.make(c), 20, 4.0, sequence=5), ShapeError, "not 4.0 equal heads"),
    "groups=5.0": (lambda c: nn.GroupNorm(SUMMA.make(c), 20, groups=5.0, pixels=4), ShapeError, "not 5.0 equal groups"),
    "a kernel of two numbers": (
        lambda c: nn.Conv2d(SUMMA.make(c), 4, 4, (3, 3), height=4, width=4), ShapeError, r"a kernel of \(3, 3\) x .* whole numbers"
    ),
    "half a padding": (
        lambda c: nn.Conv2d(SUMMA.make(c), 4, 4, 3, height=4, width=4, padding=0.5), ShapeError, "with padding 0.5: give whole"
    ),
    "half a factor": (lambda c: nn.Upsample(SUMMA.make(c), height=2, width=2, factor=1.5), ShapeError, "2 x 2 by 1.5: .* whole"),
    "groups": (lambda c: nn.GroupNorm(SUMMA.make(c), 20, groups=3, pixels=4), ShapeError, "20 channels are not 3 equal groups"),
    "kind": (lambda c: nn.Linear(SUMMA.make(c), 20, 5, kind="third"), ShapeError, "kind='third': 'first' or 'second'"),
    "kind of a norm": (lambda c: nn.LayerNorm(SUMMA.make(c), 20, kind=""), ShapeError, "kind='': 'first' or 'second'"),
    "probability": (lambda c: nn.Dropout(SUMMA.make(c), 1), ShapeError, "probability=1: from 0 to below 1"),
    "weights of integers": (lambda c: nn.Linear(SUMMA.make(c), 4, 4, dtype=int), ShapeError, "linear is of real floats, .* int64"),
    "complex weights": (lambda c: nn.Linear(SUMMA.make(c), 4, 4, dtype="c8"), ShapeError, "linear .* not of complex64"),
    "weights of two dtypes": (
        lambda c: nn.Linear(SUMMA.make(c), 4, 4, bias=False, dtype="fd"[c.rank % 2]), AgreementError, "linear .* of 'f'; .* of 'd'"
    ),
    "gains of integers": (lambda c: nn.LayerNorm(SUMMA.make(c), 4, dtype=int), ShapeError, "not of int64"),
    "positions of integers": (
        lambda c: nn.Positions(SUMMA.make(c), 4, sequence=4, dtype=int), ShapeError, "positions is of real floats, .* int64"
    ),
    "weights of long doubles": (
        lambda c: nn.Linear(SUMMA.make(c), 4, 4, dtype=np.longdouble), ShapeError, "or bfloat16, not of f.*128"
    ),
    "a head of a linear": (lambda c: nn.TiedHead(nn.Linear(SUMMA.make(c), 4, 4)), PdlaError, "TiedHead of a Linear: give the Emb"),
    "one beta": (lambda c: nn.AdamW(nn.Linear(SUMMA.make(c), 4, 4), betas=0.9), PdlaError, "betas=0.9, .*: betas must be two"),
    "rates that differ": (
        lambda c: nn.SGD(nn.Linear(SUMMA.make(c), 4, 4), 0.5 + c.rank), AgreementError, r"rank 0: SGD\(rate=0.5.*SGD\(rate=1.5",
    ),
    "a rate that is none": (lambda c: nn.SGD(nn.Linear(SUMMA.make(c), 4, 4), "a"), PdlaError, "rate='a', .*must be at least 0"),
    "a rate below 0": (lambda c: nn.SGD(nn.Linear(SUMMA.make(c), 4, 4), -0.1), PdlaError, "rate=-0.1, .*must be at least 0"),
    "a beta of 1": (lambda c: nn.AdamW(nn.Linear(SUMMA.make(c), 4, 4), betas=(0.9, 1)), PdlaError, "betas must be two numbers"),
    "seeds that differ": (lambda c: nn.Dropout(SUMMA.make(c), P, seed=c.rank), AgreementError, "rank 0: .*seed=0.*; rank 1: "),
    "layers that differ": (
        lambda c: chain(c, nn.GeLU, nn.ReLU if c.rank else nn.GeLU), AgreementError, r"rank 0: Sequential.*; ranks 1, 2, 3: "
    ),
    "two schemes": (
        lambda c: nn.Sequential(SUMMA.make(c), [nn.GeLU(SUMMA.make(c))]), GridError, "GeLU on .* was made in another scheme"
    ),
    "features that do not fit": (
        lambda c: chain(c, lambda s: nn.Linear(s, 20, 30), nn.GeLU, lambda s: nn.Linear(s, 31, 20, kind="second")), ShapeError,
        r"Linear\(31, 20\) on .* takes 31 features; the layers before it give 30",
    ),
    "features behind none": (
        lambda c: chain(c, lambda s: nn.Linear(s, 4, 0), lambda s: nn.Linear(s, 3, 4, kind="second")), ShapeError,
        r"Linear\(3, 4\) on .* takes 3 features; the layers before it give 0",
    ),
    "features behind an embedding": (
        lambda c: chain(c, lambda s: nn.Embedding(s, 9, 20), lambda s: nn.MLP(s, 24)), ShapeError, "takes 24 .* give 20"
    ),
    "an embedding behind another layer": (
        lambda c: chain(c, nn.GeLU, lambda s: nn.Embedding(s, 9, 20)), ShapeError, "takes token numbers, which no layer gives"
    ),
    "units behind a pointwise layer": (
        lambda c: chain(c, lambda s: nn.Linear(s, 4, 10, units=(1, 3)), nn.GeLU, lambda s: nn.Linear(s, 10, 4, kind="second")),
        ShapeError, r"Linear\(10, 4\) .* takes features in units of 1; the layers before it give features in units of 3",
    ),
    "units before a norm": (
        lambda c: chain(c, lambda s: nn.Linear(s, 4, 2, units=(1, 2)), lambda s: nn.LayerNorm(s, 2, kind="second")), ShapeError,
        r"LayerNorm\(2\) .* takes features in units of 1; .* in units of 2",
    ),
    "sequences that do not fit": (
        lambda c: chain(c, lambda s: nn.Embedding(s, 9, 8, sequence=4), lambda s: nn.TransformerLayer(s, 8, 2, sequence=5)),
        ShapeError, "takes sequences of 5 tokens; the layers before it give sequences of 4 tokens",
    ),
    "sizes that do not fit": (
        lambda c: chain(c, lambda s: conv_of(s, 8, 8), lambda s: conv_of(s, 4, 4, kind="second")), ShapeError,
        r"Conv2d\(2, 2, 3, 4 x 4 to 4 x 4\) .* takes samples of 4 x 4 pixels; the layers before it give samples of 8 x 8 pixels",
    ),
    "sizes the other way round": (
        lambda c: chain(c, lambda s: conv_of(s, 8, 6, stride=2), lambda s: conv_of(s, 3, 4, kind="second")), ShapeError,
        "takes samples of 3 x 4 pixels; .* give samples of 4 x 3",
    ),
    "sizes behind Upsample": (
        lambda c: chain(c, lambda s: nn.Upsample(s, height=2, width=2), nn.ReLU, lambda s: conv_of(s, 2, 2)), ShapeError,
        "takes samples of 2 x 2 pixels; .* give samples of 4 x 4",
    ),
    "pixels of a norm": (
        lambda c: chain(c, lambda s: conv_of(s, 8, 8), lambda s: nn.GroupNorm(s, 2, groups=1, pixels=16, kind="second")),
        ShapeError, "takes sequences of 16 tokens; the layers before it give sequences of 64",
    ),
    "dtypes": (
        lambda c: chain(c, lambda s: nn.Linear(s, 20, 20, dtype="f"), lambda s: nn.LayerNorm(s, 20)), ShapeError,
        "layers of float32 and float64: give all one dtype",
    ),
    "a loss where ranks are idle": (
        lambda c: nn.CrossEntropy().forward(pdla.zeros((2, 3), grid(c, (1, 2)), pdla.Layout(cols="col")), np.arange(2)), GridError,
        "CrossEntropy on .* leaves ranks idle",
    ),
    "step before backward": (lambda c: nn.SGD(layer_of(SUMMA.make(c)), 0.1).step(), PdlaError, "norm1.gain .* has no gradient"),
    "an optimizer of parameters": (
        lambda c: nn.SGD(layer_of(SUMMA.make(c)).parameters(), 0.1), PdlaError, "^SGD of a dict: give the layer itself"
    ),
    "clip of parameters": (
        lambda c: nn.clip(layer_of(SUMMA.make(c)).parameters(), 1), PdlaError, "^clip of a dict: give the layer itself"
    ),
    "functions as layers": (
        lambda c: chain(c, nn.GeLU, lambda s: np.tanh), PdlaError, r"layers\[1\] of a Sequential is a ufunc: nn.GeLU"
    ),
    "a layer for layers": (lambda c: nn.Sequential(s := SUMMA.make(c), nn.GeLU(s)), PdlaError, "Sequential of a GeLU: give a list"),
    "layers on some ranks": (
        lambda c: nn.Sequential(s := SUMMA.make(c), None if c.rank else [nn.GeLU(s)]), PdlaError,
        "ranks 1, 2, 3: Sequential of a NoneType: give a list of layers",
    ),
    "factor=0": (lambda c: nn.Upsample(SUMMA.make(c), height=2, width=2, factor=0), ShapeError, "2 x 2 by 0: .* at least 1"),
    "samples without pixels": (lambda c: nn.Upsample(SUMMA.make(c), height=0, width=2), ShapeError, "Upsample of 0 x 2 by 2"),
    "clip to less than nothing": (lambda c: nn.clip(layer_of(SUMMA.make(c)), -1), PdlaError, "clip to a norm of -1: at least 0"),
    "clip to a word": (lambda c: nn.clip(layer_of(SUMMA.make(c)), "1"), PdlaError, "clip to a norm of '1': at least 0"),
    "clip to no number": (lambda c: nn.clip(layer_of(SUMMA.make(c)), np.nan), PdlaError, "clip to a norm of nan"),
    "an optimizer's state after other steps": (stepped_alone, AgreementError, "rank 0: step 1 of AdamW.*; ranks 1, 2, 3: state_"),
    "clip before backward": (lambda c: nn.clip(layer_of(SUMMA.make(c)), 1), PdlaError, "has no gradients"),
    "a state that lacks a name": (
        lambda c: nn.Linear(SUMMA.make(c), 20, 5).load_state_dict({"weight": np.ones((20, 5)), "b": 1}), ShapeError,
        r"it lacks \['bias'\], and also has \['b'\]",
    ),
    "a state of other keys": (
        lambda c: nn.Linear(SUMMA.make(c), 20, 5, bias=False).load_state_dict({"weights": X, 0: 1}), ShapeError,
        r"it lacks \['weight'\], and also has \[0, 'weights'\]",
    ),
    "a state of another shape": (
        lambda c: nn.Linear(SUMMA.make(c), 20, 5, bias=False).load_state_dict({"weight": X}), ShapeError,
        r"weight is \(15, 20\) in the state, \(20, 5\) in Linear",
    ),
    "a state of complex numbers": (
        lambda c: nn.Linear(SUMMA.make(c), 20, 5).load_state_dict({"weight": np.ones((20, 5)), "bias": np.full((1, 5), 1j)}),
        ShapeError, "bias in the state is of real floats, .* not of complex128",
    ),
    "a state on a rank that there is not": (lambda c: nn.ReLU(SUMMA.make(c)).state_dict(root=9), GridError, "root=9: .* 0 to 3"),
    "an optimizer's state on a rank that there is not": (
        lambda c: nn.SGD(nn.ReLU(SUMMA.make(c)), 0.1).state_dict(root=9), GridError, "root=9: .* 0 to 3",
    ),
    "a state on one rank": (
        lambda c: (layer := nn.Linear(SUMMA.make(c), 20, 5)).load_state_dict(layer.state_dict(root=0)), ShapeError,
        r"^ranks 1, 2, 3: weight is \(\) in the state",
    ),
    "another state on each rank": (
        lambda c: nn.Linear(SUMMA.make(c), 20, 5, bias=False).load_state_dict({"weight": np.full((20, 5), c.rank)}), AgreementError,
        "rank 0: from_global of shape .* digest .*; rank 1: ",
    ),
    "no state on some ranks": (
        lambda c: nn.Linear(SUMMA.make(c), 20, 5, bias=False).load_state_dict(None if c.rank else {"weight": X}), ShapeError,
        r"ranks 1, 2, 3: a state of Linear.* is a dict of arrays by name, on every rank, not a NoneType",
    ),
    "an optimizer's state that lacks steps": (lambda c: resumed(c, nn.AdamW, {}), ShapeError, r"it lacks \['steps'\]"),
    "an optimizer's state that lacks an array": (
        lambda c: resumed(c, nn.AdamW, {"steps": 1, "weight.0": np.ones((20, 5))}), ShapeError,
        r"the state is not AdamW of Linear.*: it lacks \['weight.1'\], and also has \[\]",
    ),
    "an optimizer's state for another": (
        lambda c: resumed(
            c, partial(nn.SGD, rate=0.1), {"steps": 1, "weight.0": np.ones((20, 5)), "weight.1": np.ones((20, 5))}
        ), ShapeError, r"it lacks \[\], and also has \['weight.1'\]",
    ),
    "an optimizer's state of steps that differ": (
        lambda c: resumed(c, partial(nn.SGD, rate=0.1), {"steps": 1 + c.rank // 3}), AgreementError, "rank 3: .* at step 2"
    ),
    "an optimizer's state of half a step": (
        lambda c: resumed(c, partial(nn.SGD, rate=0.1), {"steps": 0.5}), ShapeError, "steps=0.5 in the state: a whole number"
    ),
    "an optimizer's state of steps below 0": (
        lambda c: resumed(c, partial(nn.SGD, rate=0.1), {"steps": -1}), ShapeError, "steps=-1 in the state: a whole number"
    ),
    "an optimizer's state of nobody": (
        lambda c: resumed(c, nn.AdamW, {"steps": 0, "nobody.0": np.ones((1, 1))}), ShapeError, r"and also has \['nobody.0'\]"
    ),
    "an optimizer's state of another shape": (
        lambda c: resumed(c, nn.AdamW, {"steps": 1, "weight.0": np.ones((20, 5)), "weight.1": X}), ShapeError,
        r"weight.1 is \(15, 20\) in the state, \(20, 5\) in AdamW",
    ),
}


@pytest.mark.parametrize("what", MAKING)
def test_schemes_and_layers_that_are_refused(what):
    program, kind, words = MAKING[what]
    raised, text = refusal(4, program)
    assert raised is kind, text
    with pytest.raises(kind, match=words):
        raise raised(text)


ONE = {  # what a rank has, what the others have, and a layer that is made of it
    "heads": (3, 4, lambda s, heads: nn.SelfAttention(s, 20, heads, sequence=5)),
    "sequences": (0, 5, lambda s, sequence: nn.SelfAttention(s, 20, 4, sequence=sequence)),
    "sequences of a mean": (0, 5, lambda s, sequence: nn.MeanOverSequence(s, sequence=sequence)),
    "sequences of an embedding": (0, 5, lambda s, sequence: nn.Embedding(s, 9, 4, sequence=sequence)),
    "sequences of positions": (0, 5, lambda s, sequence: nn.Positions(s, 4, sequence=sequence)),
    "sequences of x": (0, 5, lambda s, sequence: s.shard(X, sequence=sequence)),
    "kinds": ("third", "first", lambda s, kind: nn.Linear(s, 4, 4, kind=kind)),
    "kinds of a norm": ("third", "first", lambda s, kind: nn.RMSNorm(s, 4, kind=kind)),
    "groups": (3, 5, lambda s, groups: nn.GroupNorm(s, 20, groups=groups, pixels=4)),
    "kernels": (0, 1, lambda s, kernel: nn.Conv2d(s, 4, 4, kernel, height=4, width=4)),
    "factors": (0, 2, lambda s, factor: nn.Upsample(s, height=4, width=4, factor=factor)),
    "kernels of a block": (2, 3, lambda s, kernel: nn.ResidualBlock(s, 4, groups=1, height=4, width=4, kernel=kernel)),
    "levels": (0, 1, lambda s, levels: nn.UNetBlock(s, 4, groups=1, height=4, width=4, levels=levels)),
    "layers": ([], [None], lambda s, some: nn.Sequential(s, [nn.GeLU(s) for _ in some])),
    "activations": ("relu", nn.ReLU, lambda s, layer: nn.ResidualBlock(s, 4, groups=1, height=4, width=4, activation=layer)),
    "activations that need more": (
        nn.Dropout, nn.ReLU, lambda s, layer: nn.ResidualBlock(s, 4, groups=1, height=4, width=4, activation=layer),
    ),
    "activations of a net": (None, nn.GeLU, lambda s, layer: nn.UNetBlock(s, 4, groups=1, height=4, width=4, activation=layer)),
    "seeds of a block": (None, 0, lambda s, seed: nn.ResidualBlock(s, 4, groups=1, height=4, width=4, seed=seed)),
    "seeds of a net": ("a", 0, lambda s, seed: nn.UNetBlock(s, 4, groups=1, height=4, width=4, seed=seed)),
    "biases": ("no", False, lambda s, bias: nn.Linear(s, 4, 4, bias=bias)),
    "biases of an MLP": (0, False, lambda s, bias: nn.MLP(s, 4, bias=bias)),
    "biases of kernels": (None, False, lambda s, bias: nn.Conv2d(s, 4, 4, 1, height=4, width=4, bias=bias)),
    "causal": ("no", False, lambda s, causal: nn.SelfAttention(s, 20, 4, sequence=5, causal=causal)),
    "recompute": ("no", np.False_, lambda s, recompute: nn.TransformerLayer(s, 20, 4, sequence=5, recompute=recompute)),
    "offsets": (None, True, lambda s, offset: nn.LayerNorm(s, 4, offset=offset)),
    "vocabularies": (9.0, 9, lambda s, vocabulary: nn.Embedding(s, vocabulary, 4)),
    "features of positions": (None, 4, lambda s, features: nn.Positions(s, features, sequence=5)),
    "inputs": ("a", 4, lambda s, k: nn.Linear(s, k, 4)),
    "outputs": (-1, 4, lambda s, n: nn.Linear(s, 4, n)),
    "units": (3, (1, 1), lambda s, units: nn.Linear(s, 4, 4, units=units)),
    "hidden features": (None, 4, lambda s, hidden: nn.SelfAttention(s, hidden, 2, sequence=5)),
    "hidden features of an MLP": (None, 4, nn.MLP),
    "heights of a block": (None, 4, lambda s, height: nn.ResidualBlock(s, 4, groups=1, height=height, width=4)),
    "features between": (2.5, 8, lambda s, inner: nn.MLP(s, 4, inner)),
    "channels": (None, 4, lambda s, channels: nn.GroupNorm(s, channels, groups=2, pixels=4)),
    "channels of a kernel": ("a", 4, lambda s, channels: nn.Conv2d(s, channels, 4, 1, height=4, width=4)),
    "eps": ("a", 1e-5, lambda s, eps: nn.LayerNorm(s, 4, eps=eps)),
    "eps below 0": (-1, 1e-5, lambda s, eps: nn.GroupNorm(s, 4, groups=1, pixels=4, eps=eps)),
    "scales": ("a", 1.0, lambda s, scale: nn.Linear(s, 4, 4, scale=scale)),
    "scales of an embedding": (None, 1.0, lambda s, scale: nn.Embedding(s, 4, 4, scale=scale)),
    "scales of positions": (np.ones(2), 1.0, lambda s, scale: nn.Positions(s, 4, sequence=5, scale=scale)),
    "probabilities": ("a", 0.1, lambda s, probability: nn.Dropout(s, probability)),
    "training": ("no", False, lambda s, training: nn.GeLU(s).forward(s.shard(X), training=training)),
}


@pytest.mark.parametrize("what", ONE)
def test_numbers_that_are_wrong_on_one_rank_are_refused_on_all(what):
    wrong, right, make = ONE[what]
    raised, text = refusal(4, lambda comm: make(SUMMA.make(comm), wrong if comm.rank == 1 else right))
    assert issubclass(raised, (ArgumentError, ShapeError)) and text.startswith("rank 1: "), text


TWO = {  # numbers that are right, but not together
    "causal": ((True, False), lambda s, causal: nn.TransformerLayer(s, 20, 4, sequence=5, causal=causal)),
    "recompute": ((True, False), lambda s, recompute: nn.TransformerLayer(s, 20, 4, sequence=5, recompute=recompute)),
    "sequences": ((1, 5), lambda s, sequence: nn.SelfAttention(s, 20, 4, sequence=sequence)),
    "eps": ((1e-5, 1e-6), lambda s, eps: nn.LayerNorm(s, 20, eps=eps)),
    "offsets": ((True, False), lambda s, offset: nn.LayerNorm(s, 20, offset=offset)),
    "cut weights": ((True, False), lambda s, cut: nn.Tesseract(grid(s.grid.comm, (2, 1, 2)), cut_weights=cut)),
    "cut sequences": ((True, False), lambda s, cut: nn.Megatron1D(grid(s.grid.comm, (4,)), sequence_parallel=cut, keep=False)),
    "groups": ((2, 4), lambda s, groups: nn.GroupNorm(s, 20, groups=groups, pixels=4)),
    "scales": ((1, 2), lambda s, scale: nn.Linear(s, 4, 4, scale=scale)),
    "scales of an embedding": ((1, 2), lambda s, scale: nn.Embedding(s, 9, 4, scale=scale)),
    "scales of positions": ((1, 2), lambda s, scale: nn.Positions(s, 4, sequence=5, scale=scale)),
    "strides": ((1, 2), lambda s, stride: nn.Conv2d(s, 4, 4, 2, height=2, width=2, padding=0, stride=stride)),
    "heights": ((2, 4), lambda s, height: nn.Upsample(s, height=height, width=8 // height)),
    "sequences of x": ((1, 5), lambda s, sequence: s.shard(X, sequence=sequence)),
}


@pytest.mark.parametrize("what", TWO)
def test_numbers_that_differ_between_ranks_are_refused(what):
    numbers, make = TWO[what]
    raised, text = refusal(4, lambda comm: make(SUMMA.make(comm), numbers[comm.rank == 1]))
    assert raised is AgreementError and "ranks disagree: ranks 0, 2, 3: " in text, text


@pytest.mark.parametrize("options", [{"panel": 0}, {"panel": 4, "keep": True}, {"panel": 4, "shards": 2}], ids=str)
def test_panels_are_not_kept_nor_cut(options):
    def program(comm):
        nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm), **options)

    with pytest.raises(ShapeError, match="panel="):
        pdla.run(2, program)


@pytest.mark.parametrize("scheme", [nn.Serial, nn.Cube3D])
def test_an_option_that_a_scheme_does_not_have_is_refused(scheme):
    """It was taken for a flag of a subclass, and forgotten."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'kep'"):
        pdla.run(1, lambda comm: scheme(pdla.ProcessGrid((1, 1, 1), comm=comm), kep=False))


def test_a_scheme_takes_a_grid():
    with pytest.raises(GridError, match="takes a ProcessGrid"):
        pdla.run(1, nn.Summa2D)


def test_a_rate_by_another_name_is_refused():
    """It would change nothing, and say nothing."""

    def program(scheme):
        for make in (nn.SGD, nn.AdamW):
            optimizer = make(nn.Linear(scheme, 4, 4), 1e-2)
            optimizer.rate = 1e-3
            with pytest.raises(AttributeError, match="lr"):
                optimizer.lr = 1e-3

    run(SUMMA, program)
