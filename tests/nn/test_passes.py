"""Passes: what they keep and leave, what fails amid one, and numbers on which ranks must agree."""

import gc
import weakref

import numpy as np
import pytest
from helpers.nets import SERIAL, SUMMA, X, check_close, on, refusal, run, somewhere, transformer_case

import pdla
from pdla import nn
from pdla.errors import AgreementError

U, HIDDEN = np.random.default_rng(0).standard_normal((24, 24)), 24


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shards", [1, 3])
def test_an_error_in_a_micro_batch_ends_the_others(shards):
    """None is left that was never awaited, and the next pass runs."""

    class Failing(nn.Layer):
        fails = True

        def forward_local(self, x, batch):
            if self.fails:
                raise ValueError("as asked")
            return x

        def backward_local(self, dy, batch):
            return dy

    def program(scheme):
        net = nn.Sequential(scheme, [nn.Linear(scheme, HIDDEN, 8), failing := Failing(scheme)])
        x = scheme.shard(U)
        with pytest.raises(ValueError, match="as asked"):
            net.forward(x)
        failing.fails = False
        y = net.forward(x)
        return net.backward(y).shape

    assert run(on(nn.Serial, (1,), shards=shards), program) == U.shape


def trained_once(scheme, **options):
    """One pass of a transformer layer forward and backward; and the bytes kept in between."""
    case = transformer_case(3, **options)
    layer = case.build(scheme)
    x, dy = (case.place(scheme, array) for array in case.data())
    y = layer.forward(x)
    kept = layer.kept_bytes()
    return {"y": y.gather(), "dx": layer.backward(dy).gather()} | {n: g.gather() for n, g in layer.gradients().items()}, kept


@somewhere
def test_a_pass_in_evaluation_keeps_nothing(place):
    def program(scheme):
        case = transformer_case(3)
        layer, x = case.build(scheme), case.place(scheme, case.data()[0])
        trained, y = layer.forward(x), layer.forward(x, training=False)
        assert layer.kept_bytes() == 0
        return trained.gather(), y.gather()

    assert np.array_equal(*run(place, program))


@somewhere
def test_a_layer_does_not_hold_what_it_has_put_out(place):
    """Logits are often the largest activation of all."""

    def program(scheme):
        layer = nn.Linear(scheme, 20, 23)
        y = layer.forward(scheme.shard(X))
        return layer, weakref.ref(y.stored if y.stored.base is None else y.stored.base)

    layer, memory = run(place, program)
    gc.collect()
    assert memory() is None, layer


@somewhere
def test_each_pass_leaves_its_own_gradients(place):
    """A second forward pass takes the first one's place; a second backward pass does not add to the first one's gradients."""
    case = transformer_case(3)

    def program(scheme):
        layer = case.build(scheme)
        x, dy = (case.place(scheme, array) for array in case.data())
        layer.forward(2 * x)
        found = []
        for _ in range(2):
            layer.forward(x)
            found.append({"dx": layer.backward(dy).gather()} | {n: g.gather() for n, g in layer.gradients().items()})
            assert layer.kept_bytes() == 0
        return found

    first, second = run(place, program)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    wanted, _ = run(SERIAL, trained_once)
    check_close(first, {name: value for name, value in wanted.items() if name != "y"}, where=place.name)


def test_copies_that_lie_by_columns_on_some_ranks_pass_as_the_others_do():
    """Sums over tokens and features, and so the loss and the gradients, were rounded otherwise there."""
    x, dy = np.random.default_rng(0).standard_normal((2, 32, 300))

    def program(comm):
        scheme = nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
        blocks = (np.array(whole, order="CF"[comm.rank]) for whole in (x, dy))
        X, dY = (pdla.from_local(block, (32, 300), scheme.grid, scheme.residual()) for block in blocks)
        layer, criterion = nn.LayerNorm(scheme, 300), nn.CrossEntropy()
        loss = criterion.forward(X, np.arange(32))
        found = [layer.forward(X), layer.backward(dY), *layer.gradients().values(), criterion.backward()]
        return [loss, *(matrix.local for matrix in found)]

    assert all(np.array_equal(here, there) for here, there in zip(*pdla.run(2, program), strict=True))


def dropping(layer):
    layer.layers[2].probability = 0.5


def seeding(layer):
    layer.layers[2].seed = 1


def evening(layer):
    layer.layers[0].eps = 1e-3


def passing(layer):
    layer.passes = 7


@pytest.mark.parametrize("change", [dropping, seeding, evening, passing])
def test_numbers_of_layers_that_are_set_on_one_rank_are_told_of(change):
    def program(comm):
        scheme = SUMMA.make(comm)
        net = nn.Sequential(scheme, [nn.LayerNorm(scheme, 20), nn.Linear(scheme, 20, 20), nn.Dropout(scheme, 0.25)])
        net.forward(scheme.shard(X))
        if comm.rank == 1:
            change(net)
        net.forward(scheme.shard(X))

    kind, text = refusal(4, program)
    assert kind is AgreementError and "ranks 0, 2, 3: forward of Sequential" in text and "rank 1: forward of Sequential" in text


def test_weights_that_one_rank_has_drawn_before_they_came_to_their_place_are_told_of():
    def program(comm):
        scheme = SUMMA.make(comm)
        parts = [nn.LayerNorm(scheme, 20), nn.Linear(scheme, 20, 20)]
        if comm.rank == 1:
            parts[1].parameters()
        nn.Sequential(scheme, parts).forward(scheme.shard(X))

    assert refusal(4, program)[0] is AgreementError
