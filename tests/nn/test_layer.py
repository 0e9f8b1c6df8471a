"""Layers of users' own, by public names alone: what they may override, declare and ask."""

import doctest
from copy import deepcopy

import numpy as np
import pytest
from helpers.nets import (
    SERIAL,
    Model,
    check_close,
    everywhere,
    on,
    run,
    somewhere,
)

import pdla
from pdla import nn
from pdla.errors import ArgumentError, PdlaError, ShapeError

HIDDEN, HEADS, GROUPS, SEQUENCE = 24, 6, 3, 4
SIZE, SHARED = HIDDEN // HEADS, HEADS // GROUPS
U, DY = np.random.default_rng(0).standard_normal((2, 24, HIDDEN))


class Grouped(nn.Layer):
    """Attention of several queries of a group to one key and one value; columns by group: its queries, its key, its value."""

    units = (SHARED + 2) * SIZE, SHARED * SIZE
    sequence = SEQUENCE

    def __init__(self, scheme):
        super().__init__(scheme)
        self.takes = self.gives = scheme.first.Y
        self.widths = GROUPS * self.units[0], HIDDEN

    def parts(self, block):
        """Views: queries (sequences, groups, queries of a group, tokens, features), keys and values with one in the third place."""
        rows, columns = block.shape
        each = block.reshape(rows // SEQUENCE, SEQUENCE, columns // self.units[0], SHARED + 2, SIZE).transpose(0, 2, 3, 1, 4)
        return each[:, :, :SHARED], each[:, :, SHARED : SHARED + 1], each[:, :, SHARED + 1 :]

    def forward_local(self, x, batch):
        q, k, v = self.parts(x.local)
        scores = q @ k.swapaxes(3, 4) * SIZE**-0.5 + np.triu(np.full((SEQUENCE, SEQUENCE), -np.inf), 1)
        weights = np.exp(scores - scores.max(axis=4, keepdims=True))
        weights /= weights.sum(axis=4, keepdims=True)
        batch.save(self, x.local, weights)
        mixed = (weights @ v).transpose(0, 3, 1, 2, 4)
        return nn.like(x, mixed.reshape(x.local.shape[0], -1 if mixed.size else 0), features=HIDDEN, unit=self.units[1])

    def backward_local(self, dy, batch):
        block, weights = batch.saved(self)
        q, k, v = self.parts(block)
        d = dy.local.reshape(len(q), SEQUENCE, q.shape[1], SHARED, SIZE).transpose(0, 2, 3, 1, 4)
        slope = d @ v.swapaxes(3, 4)
        slope = weights * (slope - (slope * weights).sum(axis=4, keepdims=True)) * SIZE**-0.5
        dx = dy.xp.empty(block.shape, block.dtype)
        dq, dk, dv = self.parts(dx)
        dq[...] = slope @ k
        dk[...] = (slope.swapaxes(3, 4) @ q).sum(axis=2, keepdims=True)
        dv[...] = (weights.swapaxes(3, 4) @ d).sum(axis=2, keepdims=True)
        return nn.like(dy, dx, features=self.widths[0], unit=self.units[0])


def grouped_query_attention(scheme):
    taken, given = Grouped.units
    to = nn.Linear(scheme, HIDDEN, GROUPS * taken, units=(1, taken))
    back = nn.Linear(scheme, HIDDEN, HIDDEN, kind="second", units=(given, 1))
    return nn.Sequential(scheme, [to, Grouped(scheme), back])


class Marked(nn.Layer):
    """Each feature times a number that is learned, plus the element's own place in the whole."""

    def __init__(self, scheme):
        super().__init__(scheme)
        self.takes = self.gives = scheme.first.X
        self.widths = HIDDEN, HIDDEN
        self.gain = nn.feature_vector(scheme, HIDDEN, self.takes, fill=2)

    def forward_local(self, x, batch):
        assert batch.training
        batch.save(self, x.local)
        places = np.add.outer(100 * batch.rows(x), x.indices[1].indices())
        return nn.like(x, x.local * self.gain.value.local + places)

    def backward_local(self, dy, batch):
        (x,) = batch.saved(self)
        batch.add_gradient(self.gain, dy, (x * dy.local).sum(axis=0, keepdims=True))
        return nn.like(dy, dy.local * self.gain.value.local)


class Residual(nn.Layer):
    """x + attention(marked(x)): a layer that awaits others."""

    def __init__(self, scheme):
        super().__init__(scheme)
        self.parts, self.sequence = [Marked(scheme), grouped_query_attention(scheme)], SEQUENCE
        self.takes = self.gives = scheme.first.X
        self.widths = HIDDEN, HIDDEN

    async def forward_async(self, x, batch):
        y = x
        for part in self.parts:
            y = await part.forward_async(y, batch)
        return nn.like(x, x.local + y.local)

    async def backward_async(self, dy, batch):
        dx = dy
        for part in reversed(self.parts):
            dx = await part.backward_async(dx, batch)
        return nn.like(dy, dx.local + dy.local)


def passed(scheme, make):
    layer = make(scheme)
    y = layer.forward(scheme.shard(U, sequence=SEQUENCE))
    dx = layer.backward(scheme.shard(DY, sequence=SEQUENCE))
    return {"y": y.gather(), "dx": dx.gather()} | {name: value.gather() for name, value in layer.gradients().items()}


@pytest.mark.parametrize("make", [grouped_query_attention, Marked, Residual], ids=lambda make: make.__name__)
@everywhere
def test_layers_of_ones_own_are_the_same_everywhere(place, make):
    check_close(run(place, lambda scheme: passed(scheme, make)), run(SERIAL, lambda scheme: passed(scheme, make)), where=place.name)


def test_their_gradients_are_those_of_finite_differences():
    def program(scheme):
        layer, (e,) = Residual(scheme), np.random.default_rng(1).standard_normal((1, *U.shape))
        up, down = (layer.forward(scheme.shard(U + h * e, sequence=SEQUENCE)).gather() for h in (1e-6, -1e-6))
        layer.forward(scheme.shard(U, sequence=SEQUENCE))
        return ((up - down) * DY).sum() / 2e-6, (layer.backward(scheme.shard(DY, sequence=SEQUENCE)).gather() * e).sum()

    numeric, exact = run(SERIAL, program)
    assert abs(numeric - exact) < 1e-6 * abs(exact)


def test_rows_and_columns_are_those_of_the_whole():
    found = run(on(nn.Tensor3D, (2, 2, 2), shards=2), lambda scheme: passed(scheme, Marked))
    assert np.array_equal(found["y"], 2 * U + np.add.outer(100 * np.arange(24), np.arange(HIDDEN)))
    assert np.allclose(found["gain"], (U * DY).sum(axis=0))


@pytest.mark.parametrize("thing", [nn.Layer, nn.MicroBatch, nn.like, nn.feature_vector], ids=lambda thing: thing.__name__)
def test_examples_of_docstrings(thing):
    (found,) = doctest.DocTestFinder(recurse=False).find(thing, globs={"pdla": pdla, "np": np})
    assert found.examples and doctest.DocTestRunner().run(found).failed == 0


def test_the_wrong_method_is_refused_when_the_class_is_made():
    with pytest.raises(PdlaError, match=r"Mine.forward starts a pass on all ranks: override forward_local\(x, batch\), or async"):
        type("Mine", (nn.Layer,), {"forward": lambda self, x: x})
    with pytest.raises(PdlaError, match=r"Mine.backward starts .* override backward_local\(dy, batch\)"):
        type("Mine", (nn.GeLU,), {"backward": lambda self, dy: dy})
    with pytest.raises(PdlaError, match=r"Mine.forward_async is no async def: override"):
        type("Mine", (nn.Layer,), {"forward_async": lambda self, x, batch: x})

    async def backward_local(self, dy, batch):
        return dy

    with pytest.raises(PdlaError, match=r"Mine.backward_local is an async def: override"):
        type("Mine", (nn.Layer,), {"backward_local": backward_local})


class Neither(nn.Layer):
    def __init__(self, scheme, number=1):
        super().__init__(scheme)


class OneWay(nn.Layer):
    def forward_local(self, x, batch):
        return x


class Unmade(nn.Layer):
    def __init__(self, scheme):
        self.number = 1


REFUSED = {
    "no pass": (lambda s: Neither(s).forward(s.shard(U)), PdlaError, "Neither on .* has no pass forward: override forward_local"),
    "no pass back": (
        lambda s: (layer := OneWay(s)).backward(layer.forward(s.shard(U))), PdlaError, "OneWay on .* has no pass backward: override"
    ),
    "not made": (lambda s: Unmade(s), PdlaError, r"Unmade.__init__ does not call super\(\).__init__\(scheme\)"),
    "other features": (lambda s: Marked(s).forward(s.shard(U[:, :9])), ShapeError, r"Marked on .* takes \(tokens, 24\) of float64"),
    "another dtype": (lambda s: Marked(s).forward(s.shard(U.astype("f"))), ShapeError, "of float64, not .* of float32"),
    "another unit": (
        lambda s: nn.Sequential(s, [nn.Linear(s, 24, 48, units=(1, 8)), Grouped(s)]), ShapeError, "takes features in units of 16"
    ),
    "cut of axes that are not there": (
        lambda s: nn.feature_vector(s, 8, "depth | row"), pdla.errors.LayoutError, "cut='depth | row': 'axes that cut rows"
    ),
    "half a feature": (lambda s: nn.feature_vector(s, 1.5, s.first.X), ArgumentError, "features=1.5: a whole number"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_says_what_would_work(what):
    program, kind, words = REFUSED[what]
    with pytest.raises(kind, match=words):
        pdla.run(4, lambda comm: program(nn.Summa2D(pdla.ProcessGrid((2, 2), comm=comm))))


def test_an_activation_that_one_rank_has_and_a_scheme_that_cuts_nothing():
    """Serial cuts no tokens along "data" either."""
    x = np.arange(24.0).reshape(6, 4)

    def program(comm):
        grid = pdla.ProcessGrid((2,), axes=("data",), comm=comm)
        return nn.Serial(grid).shard(x if comm.rank == 1 else None, root=1).local

    assert all(np.array_equal(whole, x) for whole in pdla.run(2, program))


MODEL = Model(3)


@somewhere
def test_a_deep_copy_of_a_network_is_one_of_its_own(place):
    """As for averages of its weights: it passes as the original does, and neither changes the other; also amid a pass."""

    def program(scheme):
        net, (ids, targets), criterion = MODEL.build(scheme), MODEL.data(), nn.CrossEntropy()
        loss = criterion.forward(net.forward(ids), targets)
        twin, plain = deepcopy(net), net.state_dict()
        net.backward(criterion.backward())
        nn.SGD(net, 0.5).step()
        assert twin.scheme is scheme and twin.kept_bytes() == 0 and not twin.gradients() and twin.passes == net.passes
        assert all(np.array_equal(value, plain[name]) for name, value in twin.state_dict().items())
        assert not any(np.array_equal(value, plain[name]) for name, value in net.state_dict().items() if np.ptp(value))
        again = criterion.forward(twin.forward(ids), targets)
        twin.backward(criterion.backward())
        after = {name: value.gather() for name, value in net.gradients().items()}
        assert again == loss and all(np.array_equal(value.gather(), after[name]) for name, value in twin.gradients().items())
        for average, value in zip(twin.parameters().values(), net.parameters().values(), strict=True):
            average.local[...] = 0.75 * average.local + 0.25 * value.local
        return {name: value - 0.75 * plain[name] for name, value in twin.state_dict().items()}, net.state_dict()

    shares, now = run(place, program)
    check_close(shares, {name: 0.25 * value for name, value in now.items()}, 1e-14)
