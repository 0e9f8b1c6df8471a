"""Activations that are no matrices' products: dropout drops the same everywhere, ReLU of any number."""

import itertools

import numpy as np
from helpers.nets import SERIAL, P, check_close, everywhere, run, somewhere

import pdla
from pdla import nn

ROWS, COLS = 60, 50


def dropped(scheme, passes=1, training=True):
    """What is left of ones, pass by pass."""
    layer, x = nn.Dropout(scheme, P, seed=4), scheme.shard(np.ones((ROWS, COLS)), sequence=4)
    return [layer.forward(x, training=training).gather() for _ in range(passes)]


@everywhere
def test_what_is_dropped_is_the_same_everywhere(place):
    found = run(place, lambda scheme: dropped(scheme, 2))
    assert all(np.array_equal(a, b) for a, b in zip(found, run(SERIAL, lambda scheme: dropped(scheme, 2)), strict=True))


def test_dropout_drops_its_share_and_other_elements_in_every_pass():
    first, second = run(SERIAL, lambda scheme: dropped(scheme, 2))
    other_seed = run(SERIAL, lambda scheme: nn.Dropout(scheme, P, seed=5).forward(scheme.shard(np.ones((ROWS, COLS)))).gather())
    spread = np.sqrt(P * (1 - P) / first.size)
    for y in (first, second, other_seed):
        assert set(np.unique(y)) == {0, 1 / (1 - P)}
        assert abs((y == 0).mean() - P) < 4 * spread
    for a, b in itertools.combinations((first, second, other_seed), 2):
        assert abs(((a == 0) & (b == 0)).mean() - P * P) < 4 * spread, "one says nothing of the other"


def test_dropout_is_off_in_evaluation_and_without_probability():
    assert run(SERIAL, lambda scheme: dropped(scheme, training=False))[0].min() == 1
    assert run(SERIAL, lambda scheme: nn.Dropout(scheme, 0).forward(scheme.shard(np.ones((4, 4)))).gather()).min() == 1


@somewhere
def test_dropout_backward_drops_the_same(place):
    def program(scheme):
        layer = nn.Dropout(scheme, P)
        y = layer.forward(scheme.shard(np.ones((ROWS, COLS))))
        return y.gather(), layer.backward(scheme.shard(np.ones((ROWS, COLS)))).gather()

    assert np.array_equal(*run(place, program))


@everywhere
def test_dropout_behind_a_layer_that_puts_out_fewer_rows(place):
    """What is dropped is told by the rows that come there, in every shard."""
    draw = np.random.default_rng(2)
    x, dy = draw.standard_normal((24, 20)), draw.standard_normal((6, 12))

    def program(scheme):
        parts = [nn.Linear(scheme, 20, 12), nn.MeanOverSequence(scheme, sequence=4), nn.Dropout(scheme, P)]
        net = nn.Sequential(scheme, parts)
        y = net.forward(scheme.shard(x, sequence=4))
        dx = net.backward(pdla.from_global(dy, scheme.grid, y.layout))
        return {"y": y.gather(), "dx": dx.gather()}

    check_close(run(place, program), run(SERIAL, program), where=place.name)


def test_passes_in_evaluation_do_not_count():
    """A run that looks at its loss in between drops what a run that does not drops."""

    def program(scheme):
        layer, x = nn.Dropout(scheme, P), scheme.shard(np.ones((ROWS, COLS)))
        layer.forward(x, training=False)
        return layer.forward(x).gather(), nn.Dropout(scheme, P).forward(x).gather()

    assert np.array_equal(*run(SERIAL, program))


def test_relu_of_what_is_no_number_and_of_what_is_infinite():
    """As in PyTorch: nothing passes back where x is at most 0, whatever comes; all does where x is no number."""
    inf, nan = np.inf, np.nan

    def program(scheme):
        layer = nn.ReLU(scheme)
        y = layer.forward(scheme.shard(np.array([[nan, nan, inf, inf, -inf, -inf, 0, -0.0, 1, 1, -1, -1]])))
        dy = scheme.shard(np.array([[2, nan, 2, -inf, 2, nan, inf, nan, inf, nan, -inf, nan]]))
        return y.gather(), layer.backward(dy).gather()

    y, dx = run(SERIAL, program)
    np.testing.assert_array_equal(y, [[nan, nan, inf, inf, 0, 0, 0, 0, 1, 1, 0, 0]])
    np.testing.assert_array_equal(dx, [[2, nan, 2, -inf, 0, 0, 0, 0, inf, nan, 0, 0]])
