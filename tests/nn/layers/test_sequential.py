"""Layers in a row: their places are their names, and what one gives the next can take."""

from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from helpers.nets import SERIAL, SUMMA, P, X, check_close, everywhere, run

import pdla
from pdla import nn
from pdla.errors import ShapeError


def unnamed_net(scheme):
    """Layers of one kind and name after each other, which drop, too."""
    pair = [nn.Linear(scheme, 20, 20), nn.Dropout(scheme, P), nn.Linear(scheme, 20, 20, kind="second"), nn.Dropout(scheme, P)]
    layers = [nn.TransformerLayer(scheme, 20, 5, sequence=5, dropout=P) for _ in range(2)]
    return nn.Sequential(scheme, [nn.Sequential(scheme, pair), *layers])


@cache
def begun_and_passed(place):
    """What the net begins with in a place, and what goes there and back through it."""
    x = np.random.default_rng(5).standard_normal((15, 20))

    def program(scheme):
        net = unnamed_net(scheme)
        begun = net.state_dict()
        y = net.forward(scheme.shard(x, sequence=5))
        return begun, {"y": y.gather(), "dx": net.backward(y).gather()}

    return run(place, program)


@everywhere
def test_layers_in_their_places_begin_and_drop_alike_everywhere(place):
    (begun, found), (wanted_begun, wanted) = begun_and_passed(place), begun_and_passed(SERIAL)
    assert list(begun) == list(wanted_begun) and all(np.array_equal(begun[name], wanted_begun[name]) for name in begun)
    check_close(found, wanted, where=place.name)


def test_dropouts_in_a_sequential_drop_by_their_places():
    def program(scheme):
        net = nn.Sequential(scheme, [nn.Dropout(scheme, 0.5) for _ in range(3)])
        return (net.forward(scheme.shard(np.ones((200, 50)))).gather() > 0).mean()

    assert abs(run(SUMMA, program) - 1 / 8) < 0.02


def test_places_are_the_names_of_a_state():
    """So it does not matter who looks first, once a network is made."""

    def program(scheme):
        net, other = unnamed_net(scheme), unnamed_net(scheme)
        inner = {name: value.gather() for name, value in other.layers[1].parameters().items()}
        whole = net.state_dict()
        assert all(np.array_equal(value, whole[f"layers.1.{name}"]) for name, value in inner.items())
        assert all(layer.place == prefix for layer, prefix in net.all_layers().items())

    run(SERIAL, program)


def test_a_layer_that_has_numbers_keeps_them_wherever_it_is_put():
    """Whether they were looked at, loaded, or learned."""

    def program(scheme):
        looked, loaded = nn.Linear(scheme, 20, 20), nn.Linear(scheme, 20, 20, kind="second")
        before = looked.state_dict(), {name: value + 1 for name, value in looked.state_dict().items()}
        loaded.load_state_dict(before[1])
        net = nn.Sequential(scheme, [looked, loaded])
        for layer, state in zip(net.layers, before, strict=True):
            assert all(np.array_equal(value, state[name]) for name, value in layer.state_dict().items())

    run(SUMMA, program)


def test_a_layer_may_have_two_names():
    """An attribute that names what is in a Sequential, too, is not another use of it."""

    class Net(nn.Sequential):
        def __init__(self, scheme):
            self.head = nn.Linear(scheme, 20, 9)
            super().__init__(scheme, [nn.LayerNorm(scheme, 20), self.head])

    def program(scheme):
        net = nn.Sequential(scheme, [Net(scheme)])
        net.backward(net.forward(scheme.shard(X)))
        return list(net.gradients())

    assert len(run(SUMMA, program)) == 4


def test_layers_between_which_there_are_no_features():
    """What comes out of the last is its bias."""

    def program(scheme):
        sizes = [("first", 4, 3), ("second", 3, 0), ("first", 0, 5)]
        net = nn.Sequential(scheme, [nn.Linear(scheme, k, n, kind=kind) for kind, k, n in sizes])
        net.load_state_dict({name: np.full(value.shape, 2.0) for name, value in net.parameters().items()})
        y = net.forward(scheme.shard(np.ones((6, 4))))
        return {"y": y.gather(), "dx": net.backward(y).gather()}

    check_close(run(SUMMA, program), {"y": np.full((6, 5), 2.0), "dx": np.zeros((6, 4))}, 0)


class Rows(nn.Layer):
    """The sums of each two pixels of a row, 2 x 4 to 2 x 2: a layer of one's own that changes the number of tokens."""

    sequence, scale, sizes = 8, Fraction(1, 2), ((2, 4), (2, 2))

    def forward_local(self, x, batch):
        block = x.local.reshape(-1, 2, x.local.shape[1]).sum(axis=1)
        return pdla.DistMatrix(block, (x.shape[0] // 2, x.shape[1]), x.grid, x.layout)


def test_a_layer_of_ones_own_may_change_the_number_of_tokens():
    def program(scheme):
        net = nn.Sequential(scheme, [Rows(scheme), nn.Conv2d(scheme, 3, 3, 1, height=2, width=2)])
        assert (net.sequence, net.scale, net.sizes) == (8, Fraction(1, 2), ((2, 4), (2, 2)))
        with pytest.raises(ShapeError, match="takes samples of 1 x 4 pixels; the layers before it give samples of 2 x 2"):
            nn.Sequential(scheme, [Rows(scheme), nn.Conv2d(scheme, 3, 3, 1, height=1, width=4)])
        return net.forward(scheme.shard(np.ones((16, 3)), sequence=8), training=False).shape

    assert run(SERIAL, program) == (8, 3)


def test_sequences_of_sequences():
    """Means over parts of a sequence are a sequence again."""

    def program(scheme):
        parts = [nn.Linear(scheme, 20, 8), nn.MeanOverSequence(scheme, sequence=3), nn.Linear(scheme, 8, 8, kind="second")]
        net = nn.Sequential(scheme, [*parts, nn.TransformerLayer(scheme, 8, 2, sequence=5)])
        assert net.sequence == 15
        return net.forward(scheme.shard(X, sequence=15)).gather()

    check_close({"y": run(SUMMA, program)}, {"y": run(SERIAL, program)})


@pytest.mark.parametrize("nested", [slice(0, 4), slice(1, 4), slice(1, 6), slice(2, 6)], ids=str)
@pytest.mark.parametrize("sequence", [4, 12], ids="sequences of {}".format)
def test_a_sequential_within_another_compares_sequences_as_its_layers_do(sequence, nested):
    """Means over 4 tokens are sequences of 3. The inner one's layers want 12 tokens of x, whatever their sequences are."""

    def program(scheme):
        first = nn.TransformerLayer(scheme, 8, 2, sequence=sequence, name="first")
        last = nn.TransformerLayer(scheme, 8, 2, sequence=3, name="last")
        parts = [first, nn.RMSNorm(scheme, 8), nn.Sequential(scheme, [nn.MLP(scheme, 8), nn.Linear(scheme, 8, 8)])]
        parts += [nn.MeanOverSequence(scheme, sequence=4), nn.Linear(scheme, 8, 8, kind="second"), last]
        parts[nested] = [nn.Sequential(scheme, parts[nested])]
        return nn.Sequential(scheme, parts).sequence

    if sequence == 4:
        assert run(SERIAL, program) == 12
    else:
        with pytest.raises(ShapeError, match=r"MeanOverSequence.* takes sequences of 4 tokens; .* sequences of 12 tokens"):
            run(SERIAL, program)
