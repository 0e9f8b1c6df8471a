"""The loss: of logits wherever they lie, of tokens that do not count, in one array."""

import tracemalloc

import numpy as np
import pytest
from helpers.nets import (
    SERIAL,
    SUMMA,
    check_close,
    run,
    somewhere,
)

import pdla
from pdla import nn
from pdla.errors import PdlaError


def test_a_loss_that_fails_leaves_none_to_go_back_from():
    """Nor does a loss keep what it has of one forward pass while it makes the next."""

    def program(scheme):
        logits, targets, loss = scheme.shard(np.full((4, 4), 1e308)), np.zeros(4, int), nn.CrossEntropy()
        loss.forward(logits, targets)
        logits.stored[:, 1] *= -1
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            loss.forward(logits, targets)
        with pytest.raises(PdlaError, match="without a forward"):
            loss.backward()

    run(SERIAL, program)


def test_a_loss_makes_one_array_of_the_logits_size():
    def program(scheme):
        x = scheme.shard(np.ones((500, 1000)))
        tracemalloc.start()
        nn.CrossEntropy().forward(x, np.zeros(500, int))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak / x.stored.nbytes

    assert 1 <= run(SERIAL, program) < 1.5


def test_logits_that_do_not_count_may_be_anything():
    logits = np.random.default_rng(0).standard_normal((6, 5))
    targets = np.array([0, -1, 3, 4, -1, 2])

    def program(comm, spoilt):
        scheme = nn.Tensor3D(pdla.ProcessGrid((2, 1), comm=comm))
        given = logits.copy()
        given[targets < 0] = np.nan if spoilt else 0
        loss = nn.CrossEntropy()
        with np.errstate(invalid="ignore"):
            value = loss.forward(pdla.from_global(given, scheme.grid, scheme.activation(scheme.first.Y)), targets)
        return value, loss.backward().gather()

    (value, slope), (spoilt, spoilt_slope) = (pdla.run(2, program, spoilt)[0] for spoilt in (False, True))
    assert value == spoilt and np.array_equal(slope, spoilt_slope) and not slope[1].any()


@pytest.mark.parametrize(("ignore", "dtype"), [(-100, np.int64), (-100, np.int8), (-1, np.int32), (3, np.uint8), (255, np.uint8)])
@somewhere
def test_tokens_of_any_number_may_not_count(place, ignore, dtype):
    """One of the vocabulary, too; gradients of the others are those of a loss without them."""
    logits, targets = np.random.default_rng(0).standard_normal((15, 7)), (np.arange(15) % 7).astype(dtype)
    targets[::4] = ignore
    counted = targets != ignore

    def program(scheme, criterion, given):
        spec = scheme.first.Y
        loss = criterion.forward(pdla.from_global(logits, scheme.grid, scheme.activation(spec)), given)
        return {"loss": loss, "slope": criterion.backward().gather()}

    odds = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    slope = np.where(counted[:, None], odds - np.eye(7)[np.where(counted, targets, 0)], 0) / counted.sum()
    loss = -np.log(odds[counted, targets[counted]]).mean()
    found = run(place, lambda scheme: program(scheme, nn.CrossEntropy(ignore=ignore), targets))
    check_close(found, {"loss": loss, "slope": slope}, 1e-13)
    assert not found["slope"][~counted].any()


@pytest.mark.parametrize("cols", [pdla.Cyclic("row", 1), pdla.Cyclic("row", 2), ("row", "col")], ids=repr)
def test_a_loss_of_logits_wherever_they_lie(cols):
    logits, targets = np.random.default_rng(0).standard_normal((6, 7)), np.array([0, 6, -1, 3, 4, 2])

    def program(scheme, cols):
        criterion = nn.CrossEntropy()
        loss = criterion.forward(pdla.from_global(logits, scheme.grid, pdla.Layout(cols=cols)), targets)
        return {"loss": loss, "slope": criterion.backward().gather()}

    check_close(run(SUMMA, lambda scheme: program(scheme, cols)), run(SERIAL, lambda scheme: program(scheme, None)))


@somewhere
def test_the_loss_is_the_mean_over_all_tokens(place):
    """Every token has a loss of its own, so that those of one rank alone, or a mean of means, would be another number."""
    tokens, vocabulary = 15, 7
    logits = np.random.default_rng(1).standard_normal((tokens, vocabulary)) * np.arange(1, tokens + 1)[:, None]
    targets = np.arange(tokens) % vocabulary
    targets[:9:2] = -1
    each = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(tokens), targets]
    wanted = each[targets >= 0].mean()

    def program(comm):
        scheme, losses = place.make(comm), []
        for spec in (scheme.first.X, scheme.first.Y):
            X = pdla.from_global(logits, scheme.grid, scheme.activation(spec))
            losses.append(nn.CrossEntropy().forward(X, targets))
        return losses

    for losses in pdla.run(place.ranks, program):
        np.testing.assert_allclose(losses, wanted, rtol=1e-13)
