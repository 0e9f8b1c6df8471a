"""How parameters begin: by seeds, names and places."""

import itertools
from functools import partial

import numpy as np
import pytest
from helpers.nets import SERIAL, run

import pdla
from pdla import nn


def test_parameters_begin_normal_with_the_deviation_and_the_seed_that_are_given():
    """Weights and positions; gains begin as 1, biases and offsets as 0."""

    def program(scheme, seed):
        embedding, norm = nn.Embedding(scheme, 64, 64, sequence=64, seed=seed), nn.LayerNorm(scheme, 64)
        linear, wide = nn.Linear(scheme, 64, 64, seed=seed), nn.Linear(scheme, 64, 64, scale=3, seed=seed)
        drawn = {0.02: [embedding.weight, embedding.positions.table], 1 / 8: [linear.weight], 3: [wide.weight]}
        fixed = [(linear.bias, 0), (norm.gain, 1), (norm.offset, 0)]
        assert all((parameter.value.local == fill).all() for parameter, fill in fixed)
        return [parameter.value.local / scale for scale, parameters in drawn.items() for parameter in parameters]

    for one, other in zip(*(run(SERIAL, partial(program, seed=seed)) for seed in (0, 1)), strict=True):
        assert abs(one.std() - 1) < 0.05 and abs(one.mean()) < 0.05
        assert abs((abs(one) > 2).mean() - 0.0455) < 0.01, "normal"
        assert abs((one * other).mean()) < 0.05, "one says nothing of the other"


def test_a_layer_of_a_seed_and_a_name_begins_and_drops_alike_in_every_release():
    def program(scheme):
        linear, dropout = nn.Linear(scheme, 3, 2, scale=1, seed=3), nn.Dropout(scheme, 0.5, seed=3)
        return linear.weight.value.local.round(8).tolist(), dropout.forward(scheme.shard(np.ones((2, 6)))).local.tolist()

    weights, left = run(SERIAL, program)
    assert weights == [[-0.38207436, -0.96126781], [-1.52069045, 0.96319839], [1.37916608, 1.00726403]]
    assert left == [[0, 0, 0, 0, 2, 2], [2, 0, 2, 0, 2, 0]]


def test_layers_of_one_seed_are_not_alike():
    """Neither their weights nor what they drop, where their names differ."""

    def program(comm):
        scheme = nn.Serial(pdla.ProcessGrid((1,), comm=comm))
        one, other = (nn.TransformerLayer(scheme, 16, 2, sequence=4, name=name) for name in ("one", "other"))
        embedding = nn.Embedding(scheme, 16, 16, sequence=4)
        blocks = [X.local for layer in (one, other, embedding) for X in layer.parameters().values() if X.local.std() > 0]
        x = scheme.shard(np.ones((64, 64)))
        masks = [nn.Dropout(scheme, 0.5, seed=seed, name=name).forward(x).local for seed in (0, 1) for name in ("one", "other")]
        return blocks, masks

    blocks, masks = pdla.run(1, program)[0]
    for a, b in itertools.combinations(blocks, 2):
        rows, cols = min(a.shape[0], b.shape[0]), min(a.shape[1], b.shape[1])
        assert abs(np.corrcoef(a[:rows, :cols].ravel(), b[:rows, :cols].ravel())[0, 1]) < 0.5
    for a, b in itertools.combinations(masks, 2):
        assert abs(((a == 0) == (b == 0)).mean() - 0.5) < 0.05


class Held(nn.Layer):
    """A layer of a user's, which holds layers in attributes and in a list that grows."""

    def __init__(self, scheme, make):
        super().__init__(scheme)
        self.one, self.other, self.more = make(scheme), make(scheme), []
        for _ in range(2):
            self.more.append(make(scheme))


class Scaled(nn.Layer):
    """One that looks at its layers' weights while it is made."""

    def __init__(self, scheme, make):
        super().__init__(scheme)
        self.one, self.other = make(scheme), make(scheme)
        for layer in (self.one, self.other):
            for value in layer.parameters().values():
                value.local[...] *= 2


UNNAMED = {
    "Linear": lambda s: nn.Linear(s, 8, 8),
    "MLP": lambda s: nn.MLP(s, 8),
    "SelfAttention": lambda s: nn.SelfAttention(s, 8, 2, sequence=4),
    "TransformerLayer": lambda s: nn.TransformerLayer(s, 8, 2, sequence=4, recompute=True),
    "Embedding": lambda s: nn.Embedding(s, 8, 8, sequence=4),
    "Positions": lambda s: nn.Positions(s, 8, sequence=8),
    "Conv2d": lambda s: nn.Conv2d(s, 8, 8, 3, height=2, width=2),
    "ResidualBlock": lambda s: nn.ResidualBlock(s, 8, groups=2, height=2, width=2),
    "UNetBlock": lambda s: nn.UNetBlock(s, 4, groups=2, height=2, width=2),
    "Sequential": lambda s: nn.Sequential(s, [nn.MLP(s, 8), nn.MLP(s, 8)]),
}
HOLDERS = {
    "attributes and lists": Held, "looked at": Scaled, "a holder of holders": lambda s, make: Held(s, lambda s: Held(s, make)),
}


def all_differ(layer):
    """Whether no weights of a layer begin like others of their shape."""
    drawn = [value for value in layer.state_dict().values() if value.std() > 0]
    return len(drawn) > 1 and all(
        abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.6 for a, b in itertools.combinations(drawn, 2) if a.shape == b.shape
    )


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize("make", UNNAMED.values(), ids=UNNAMED)
def test_layers_without_names_of_their_own_begin_by_their_places(make, holder):
    assert run(SERIAL, lambda scheme: all_differ(holder(scheme, make)))


@pytest.mark.parametrize("kind", [name for name in UNNAMED if name not in ("Embedding", "Conv2d", "Linear")])
def test_layers_without_names_of_their_own_begin_by_their_places_in_a_sequential(kind):
    """Of two levels, too."""

    def program(scheme):
        inner = [nn.Sequential(scheme, [UNNAMED[kind](scheme) for _ in range(2)]) for _ in range(2)]
        return all_differ(nn.Sequential(scheme, inner))

    assert run(SERIAL, program)
