"""Layers at work: dropout, recomputation, what is kept, optimizers, states from scheme to scheme; and wrong use."""

import gc
import itertools
import tracemalloc
import warnings
import weakref
from contextlib import suppress
from fractions import Fraction
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from nets import FEW, PLACES, SERIAL, Model, check_close, learned, linear_case, model_expected, on, transformer_case

import pdla
from pdla import nn
from pdla.errors import AgreementError, DeadlockError, GridError, LayoutError, PdlaError, ShapeError
from pdla.nn import attention
from pdla.nn.pointwise import Pointwise
from pdla.nn.steps import together

somewhere = pytest.mark.parametrize("place", FEW, ids=lambda place: place.name)
everywhere = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
SHARDED = [place for place in PLACES if dict(place.options).get("shards", 1) > 1]


def run(place, program):
    """program(scheme) on every rank of a place; rank 0's result."""
    return pdla.run(place.ranks, lambda comm: program(place.make(comm)))[0]


def test_passes_take_turns_each_one_behind_the_one_before_it():
    """And give their results in their own order, though the first ends last."""
    seen = []

    def steps(name, times):
        for i in range(times):
            seen.append(f"{name}{i}")
            yield
        return name

    assert together([steps("a", 3), steps("b", 1), steps("c", 0)]) == ["a", "b", "c"]
    assert seen == ["a0", "a1", "b0", "a2"]


# ---------------------------------------------------------------------------------------------- dropout

ROWS, COLS, P = 60, 50, 0.3


def dropped(scheme, passes=1, training=True):
    """What is left of ones, pass by pass."""
    layer, x = nn.Dropout(scheme, P, seed=4), scheme.shard(np.ones((ROWS, COLS)), sequence=4)
    return [layer.forward(x, training=training).gather() for _ in range(passes)]


def test_an_activation_that_one_rank_has_and_a_scheme_that_cuts_nothing():
    """Serial cuts no tokens along "data" either."""
    x = np.arange(24.0).reshape(6, 4)

    def program(comm):
        grid = pdla.ProcessGrid((2,), axes=("data",), comm=comm)
        return nn.Serial(grid).shard(x if comm.rank == 1 else None, root=1).local

    assert all(np.array_equal(whole, x) for whole in pdla.run(2, program))


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


def trained_once(scheme, **options):
    """One pass of a transformer layer forward and backward; and the bytes kept in between."""
    case = transformer_case(3, **options)
    layer = case.build(scheme)
    x, dy = (case.place(scheme, array) for array in case.data())
    y = layer.forward(x)
    kept = layer.kept_bytes()
    return {"y": y.gather(), "dx": layer.backward(dy).gather()} | {n: g.gather() for n, g in layer.gradients().items()}, kept


@pytest.mark.parametrize("place", [*FEW, *SHARDED], ids=lambda place: place.name)
def test_a_layer_with_dropout_is_the_same_everywhere(place):
    found, _ = run(place, lambda scheme: trained_once(scheme, dropout=0.4))
    wanted, _ = run(SERIAL, lambda scheme: trained_once(scheme, dropout=0.4))
    check_close(found, wanted, where=place.name)
    assert not np.allclose(found["y"], run(SERIAL, trained_once)[0]["y"])


# ---------------------------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("place", [*FEW, *SHARDED], ids=lambda place: place.name)
def test_recomputed_passes_are_bitwise_the_same_and_keep_less(place):
    once, kept = run(place, lambda scheme: trained_once(scheme, dropout=0.4))
    again, less = run(place, lambda scheme: trained_once(scheme, dropout=0.4, recompute=True))
    assert all(np.array_equal(once[name], again[name]) for name in once)
    assert 0 < less < kept / 8


@pytest.mark.parametrize("place", SHARDED, ids=lambda place: place.name)
def test_shards_keep_whole_what_cuts_keep_whole(place):
    """Also in a layer that asks for no sequences."""
    x = np.random.default_rng(3).standard_normal((60, 20))

    def program(scheme):
        layer = nn.Linear(scheme, 20, 20)
        y = layer.forward(scheme.shard(x, sequence=4))
        return {"y": y.gather(), "dx": layer.backward(y).gather()} | {n: g.gather() for n, g in layer.gradients().items()}

    check_close(run(place, program), run(SERIAL, program))


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
        memory = weakref.ref(y.stored if y.stored.base is None else y.stored.base)
        del y
        gc.collect()
        return memory()

    assert run(place, program) is None


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


def test_words_of_group_norm():
    """64 samples, 8 groups, 64 channels over 4 ranks, samples over 2: 2 R_f(b g / t) forward and backward, 2 R_t(h / f)."""

    def program(comm):
        scheme = nn.Tensor3D(pdla.ProcessGrid((2, 4, 2), comm=comm))
        layer = nn.GroupNorm(scheme, 64, groups=8, pixels=16)
        x = scheme.shard(np.broadcast_to(0.0, (64 * 16, 64)), sequence=16)
        with pdla.record() as ledger:
            layer.backward(layer.forward(x))
        return {tag: size / 8 for tag, size in ledger.by_tag().items()}

    words, _ = pdla.dry_run(16, program)
    assert words == {"norm sums": 4 * 2 * (3 / 4) * 64 * 8 / 2, "norm gradients": 2 * 2 * (1 / 2) * 64 / 4}


@somewhere
def test_what_is_no_number_stays_in_its_samples_group(place):
    """As in PyTorch: of 3 samples of 4 pixels, and 5 groups of 4 channels, which ranks share."""
    x = np.arange(240.0).reshape(12, 20)
    x[5, 9] = np.nan

    def program(scheme):
        layer = nn.GroupNorm(scheme, 20, groups=5, pixels=4, kind="second")
        y = layer.forward(pdla.from_global(x, scheme.grid, scheme.activation(scheme.second.X, 4)))
        return y.gather(), layer.backward(y).gather()

    spoilt = np.zeros(x.shape, bool)
    spoilt[4:8, 8:12] = True
    for found in run(place, program):
        assert np.array_equal(np.isnan(found), spoilt)


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


# ---------------------------------------------------------------------------------------------- optimizers and states

OPTIMIZERS = {
    "SGD": lambda layer: nn.SGD(layer, 0.1),
    "SGD with momentum": lambda layer: nn.SGD(layer, 0.1, momentum=0.9, decay=0.01),
    "AdamW": lambda layer: nn.AdamW(layer, 0.01, decay=0.1),
}
MODEL = Model(3)


def trained(model, scheme, optimizer, steps=3, largest=0.5):
    """A few steps of a model with clipped gradients: losses, norms before, parameters."""
    layer, criterion = model.build(scheme), nn.CrossEntropy()
    layer.load_state_dict(learned(model))
    stepper, (ids, targets), seen = optimizer(layer), model.data(), []
    for _ in range(steps):
        loss = criterion.forward(layer.forward(ids), targets)
        layer.backward(criterion.backward())
        seen += [loss, nn.clip(layer, largest)]
        stepper.step()
    assert all(value.check_copies() for value in layer.parameters().values())
    for parameter, state in stepper.state.items():
        assert all(block.shape == parameter.value.stored.shape for block in state), "the state lies as the parameters do"
    return {"seen": np.array(seen)} | layer.state_dict()


def test_optimizers_step_as_their_formulas_say():
    """Two steps with gradients that are given, against the formulas written down once more."""
    case = linear_case("first", 13)
    value, draw = learned(case)["weight"], np.random.default_rng(3)
    gradients = [draw.standard_normal(value.shape) for _ in range(2)]

    def program(scheme):
        found = {}
        for name, optimizer in OPTIMIZERS.items():
            layer = case.build(scheme)
            layer.load_state_dict(learned(case))
            stepper = optimizer(layer)
            for gradient in gradients:
                layer.weight.gradient = pdla.from_global(gradient, scheme.grid, layer.weight.value.layout)
                layer.bias.gradient = pdla.zeros((1, 23), scheme.grid, layer.bias.value.layout)
                stepper.step()
            found[name] = layer.weight.value.gather()
        return found

    one, two = gradients
    w, rate, beta1, beta2 = value, 0.01, 0.9, 0.999
    plain = {"SGD": w - 0.1 * (one + two)}
    speed = one + 0.01 * w
    there = w - 0.1 * speed
    plain["SGD with momentum"] = there - 0.1 * (0.9 * speed + two + 0.01 * there)
    mean, square = np.zeros_like(w), np.zeros_like(w)
    for number, gradient in enumerate(gradients, 1):
        w = w - rate * 0.1 * w
        mean, square = beta1 * mean + (1 - beta1) * gradient, beta2 * square + (1 - beta2) * gradient**2
        w = w - rate * (mean / (1 - beta1**number)) / (np.sqrt(square / (1 - beta2**number)) + 1e-8)
    plain["AdamW"] = w
    for place in FEW:
        check_close(run(place, program), plain, 1e-14, place.name)


def test_a_step_that_is_refused_changes_nothing():
    def program(scheme):
        layer = nn.Linear(scheme, 20, 23)
        before, layer.weight.gradient = layer.weight.value.gather(), layer.weight.value.copy()
        optimizer = nn.SGD(layer, 0.1)
        with pytest.raises(PdlaError, match=r"bias of .* has no gradient"):
            optimizer.step()
        return np.array_equal(layer.weight.value.gather(), before), optimizer.steps

    assert run(SERIAL, program) == (True, 0)


@somewhere
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_is_the_same_in_every_scheme(place, optimizer):
    wanted = run(SERIAL, lambda scheme: trained(MODEL, scheme, OPTIMIZERS[optimizer]))
    found = run(place, lambda scheme: trained(MODEL, scheme, OPTIMIZERS[optimizer]))
    # AdamW's first steps are gradient / |gradient|: an element that should be 0 and is 1e-17 may go either way
    check_close(found, wanted, 1e-9 if optimizer == "AdamW" else 1e-10, place.name)


@somewhere
def test_clip(place):
    gradients = {name: value for name, value in model_expected(MODEL).items() if name != "loss"}
    norm = np.sqrt(sum((value**2).sum() for value in gradients.values()))

    def program(scheme):
        layer, criterion, found = MODEL.build(scheme), nn.CrossEntropy(), []
        layer.load_state_dict(learned(MODEL))
        criterion.forward(layer.forward(MODEL.data()[0]), MODEL.data()[1])
        layer.backward(criterion.backward())
        for largest in (2 * norm, norm / 3, norm / 3, 0):
            found.append({"norm": nn.clip(layer, largest)} | {name: value.gather() for name, value in layer.gradients().items()})
        return found

    untouched, scaled, again, none = run(place, program)
    check_close(untouched, {"norm": norm, **gradients})
    check_close(scaled, {"norm": norm, **{name: value / 3 for name, value in gradients.items()}})
    assert np.isclose(again["norm"], norm / 3, rtol=1e-12)
    assert none["norm"] > 0 and not any(value.any() for name, value in none.items() if name != "norm")


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")
@pytest.mark.parametrize(("largest", "bad", "wanted"), [
    (1, np.nan, [np.nan, np.nan, np.nan]),
    (1, np.inf, [np.nan, 0, 0]),
    (np.inf, np.nan, [np.nan, 2, 3]),
    (np.inf, np.inf, [np.inf, 2, 3]),
])
@somewhere
def test_clip_of_what_is_no_number_or_infinite(place, largest, bad, wanted):
    """On all ranks, as in PyTorch: a step by what is left, as large as it happens to be, would go unnoticed."""

    def program(scheme):
        layer = nn.LayerNorm(scheme, 3)
        layer.backward(layer.forward(scheme.shard(np.ones((4, 3)))))
        for parameter in layer.all_parameters():
            parameter.gradient = pdla.from_global(np.array([[bad, 2, 3]]), scheme.grid, parameter.value.layout)
        norm = nn.clip(layer, largest)
        return norm, *(value.gather()[0] for value in layer.gradients().values())

    norm, gain, offset = run(place, program)
    np.testing.assert_array_equal([norm], [bad])
    np.testing.assert_array_equal([gain, offset], [wanted, wanted])


@pytest.mark.parametrize("other", FEW, ids=lambda place: place.name)
@somewhere
def test_a_state_goes_from_scheme_to_scheme(place, other):
    def saved(scheme):
        layer = MODEL.build(scheme)
        layer.load_state_dict(learned(MODEL))
        return layer.state_dict()

    def loaded(scheme):
        layer = MODEL.build(scheme)
        layer.load_state_dict(state)
        assert all(value.check_copies() for value in layer.parameters().values())
        return layer.state_dict(root=0)

    state = run(place, saved)
    found = run(other, loaded)
    assert set(found) == set(learned(MODEL))
    assert all(np.array_equal(found[name], value) for name, value in learned(MODEL).items())


def test_a_state_is_on_the_root_alone():
    states = pdla.run(2, lambda comm: linear_case("first", 1).build(FEW[1].make(comm)).state_dict(root=1))
    assert states[0] == {"weight": None, "bias": None} and states[1]["weight"].shape == (20, 23)


def test_a_state_that_is_refused_changes_nothing():
    """Where ranks give another last array, behind others that fit."""

    def program(comm):
        layer = nn.Linear(SUMMA.make(comm), 20, 20)
        optimizer = nn.AdamW(layer)
        layer.backward(layer.forward(layer.scheme.shard(X)))
        optimizer.step()
        for holder in (layer, optimizer):
            before = holder.state_dict()
            other = {name: value + (1 if comm.rank or not name.startswith("bias") else 2) for name, value in before.items()}
            with pytest.raises(AgreementError):
                holder.load_state_dict(other)
            assert all(np.array_equal(value, before[name]) for name, value in holder.state_dict().items())
            holder.load_state_dict({name: value + 1 for name, value in before.items()})
            assert all(np.array_equal(value, before[name] + 1) for name, value in holder.state_dict().items())

    pdla.run(4, program)


def test_names_and_numbers_of_parameters():
    def program(scheme):
        layer = MODEL.build(scheme)
        assert list(layer.parameters()) == list(layer.state_dict())
        layer.parameters()["layers.0.weight"].stored[...] = 7  # the layer's own, which embedding and head share
        assert layer.layers[-1].parameters()["weight"].gather().min() == 7
        return sum(value.shape[0] * value.shape[1] for value in layer.parameters().values())

    hidden, inner = 20, 80
    transformer = 4 * hidden * hidden + 2 * hidden * inner + 4 * hidden + (3 + 1 + 1) * hidden + inner
    assert run(FEW[2], program) == 23 * hidden + 5 * hidden + transformer + 2 * hidden


# ---------------------------------------------------------------------------------------------- wrong use


def refusal(ranks, program):
    """The error that program(comm) raises, the same on every rank."""

    def tried(comm):
        try:
            program(comm)
        except PdlaError as error:
            return type(error), str(error)
        return None, "nothing was raised"

    refusals = set(pdla.run(ranks, tried))
    assert len(refusals) == 1, refusals
    return refusals.pop()


SUMMA, CUBE = on(nn.Summa2D, (2, 2)), on(nn.Cube3D, (2, 2, 2))
X = np.ones((15, 20))


def layer_of(scheme):
    return nn.TransformerLayer(scheme, 20, 5, sequence=5)


def forward(scheme, x, layer=None):
    (layer or layer_of(scheme)).forward(x)


def embed(scheme, ids, **options):
    nn.Embedding(scheme, 9, 4, **options).forward(ids)


def sharing(scheme):
    one, other = nn.Linear(scheme, 20, 20), nn.Linear(scheme, 20, 20)
    other.weight = one.weight
    return nn.Sequential(scheme, [one, other])


def chain(comm, *makers):
    """Layers, each made from a scheme, one after the other."""
    scheme = SUMMA.make(comm)
    return nn.Sequential(scheme, [make(scheme) for make in makers])


def conv_of(scheme, height, width, **options):
    return nn.Conv2d(scheme, 2, 2, 3, height=height, width=width, **options)


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
    "layout": (lambda s: forward(s, pdla.from_global(X, s.grid, pdla.Layout())), LayoutError, r"x lies as Layout\(\), .* takes"),
    "grid": (lambda s: forward(s, other_grid(s)), LayoutError, r"x is on ProcessGrid\(row=1, col=4\), .* works on"),
    "sequences cut": (lambda s: forward(s, s.shard(X)), LayoutError, r"scheme\.shard\(x, sequence=5\) deals out so"),
    "sequences cut otherwise": (lambda s: forward(s, s.shard(X, sequence=3)), LayoutError, r"scheme\.shard\(x, sequence=5\)"),
    "sequences not whole": (lambda s: forward(s, s.shard(X[:13], sequence=5)), ShapeError, "13 tokens are not whole sequences"),
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
        LayoutError, r"x lies as Layout\(\), Linear\(20, 5\) .* takes",
    ),
    "another layout, of a layer that takes any width": (
        lambda s: forward(s, pdla.from_global(X, s.grid, pdla.Layout()), nn.MeanOverSequence(s, sequence=5)), LayoutError,
        r"x lies as Layout\(\), MeanOverSequence .* takes",
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
        "GeLU on .* comes 2 times in a Sequential: make a layer for each place",
    ),
    "a layer in two parts": (
        lambda s: nn.Sequential(s, [nn.Sequential(s, [gelu := nn.GeLU(s)]), nn.MLP(s, 4), gelu]), PdlaError, "comes 2 times"
    ),
    "a parameter in two places": (
        lambda s: forward(s, s.shard(X), sharing(s)), PdlaError, "layers.0.weight of .* is used by 2 layers; TiedHead"
    ),
    "a head alone": (
        lambda s: nn.TiedHead(nn.Embedding(s, 9, 20)).forward(s.shard(X)), PdlaError,
        "is used by 2 layers, of which 1 make .* a TiedHead that is not used counts, too"
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
    assert kind is LayoutError and "does not leave sequences of 5 tokens whole" in text


@pytest.mark.parametrize("pairs", [0, 1])
def test_upsampled_tokens_that_lie_otherwise_are_refused(pairs):
    """Of 5 pixels the last of 3 ranks has 1; of 20 a cut of all would give it 6, not 4."""

    def program(comm):
        scheme = nn.Megatron1D(pdla.ProcessGrid((3,), comm=comm), sequence_parallel=True)
        before = [nn.Conv2d(scheme, 4, 4, 1, height=1, width=1, kind=kind) for kind in ("first", "second")] * pairs
        nn.Sequential(scheme, [*before, nn.Upsample(scheme, height=1, width=1)]).forward(scheme.shard(np.ones((5, 4))))

    kind, text = refusal(3, program)
    assert kind is LayoutError and "makes 4 tokens of one, where they lie: of the 5 tokens of x" in text


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
    assert kind is LayoutError and "does not leave sequences of 2 tokens whole" in text


def logits(scheme):
    return nn.Linear(scheme, 20, 9).forward(scheme.shard(X))


LOSSES = {
    "an array": (lambda s: nn.CrossEntropy().forward(X, np.zeros(15, int)), "takes logits as a DistMatrix .* not an ndarray"),
    "too few targets": (lambda s: nn.CrossEntropy().forward(logits(s), np.zeros(14, int)), "14 targets for the logits of 15"),
    "targets in a list": (lambda s: nn.CrossEntropy().forward(logits(s), [0] * 15), "1-D array of integers, not in a list$"),
    "too large": (lambda s: nn.CrossEntropy().forward(logits(s), np.arange(15) - 1), "from -1 to 13; they go from -1 to 8"),
    "too small": (lambda s: nn.CrossEntropy().forward(logits(s), np.full(15, -2)), "from -2 to -2"),
    "masked targets": (lambda s: nn.CrossEntropy().forward(logits(s), np.ma.masked_equal(np.arange(15) % 9, 3)), "masked elements"),
    "nothing counts": (lambda s: nn.CrossEntropy().forward(logits(s), np.full(15, -1)), "no token counts: all targets are -1"),
    "other targets on a rank": (
        lambda s: nn.CrossEntropy().forward(logits(s), np.full(15, s.grid.comm.rank % 2)), "ranks 0, 2: .* digest .* ranks 1, 3: "
    ),
    "integers": (lambda s: nn.CrossEntropy().forward(s.shard(np.ones((15, 9), int)), np.zeros(15, int)), "not of int64"),
    "partial sums": (
        lambda s: nn.CrossEntropy().forward(pdla.zeros((15, 9), s.grid, pdla.Layout(partial="row")), np.zeros(15, int)),
        r"of partial sums .* redistribute to Layout\(\) first",
    ),
}


@pytest.mark.parametrize("what", LOSSES)
def test_losses_that_are_refused(what):
    program, words = LOSSES[what]
    kind, text = refusal(4, lambda comm: program(SUMMA.make(comm)))
    with pytest.raises((ShapeError, LayoutError, AgreementError), match=words):
        raise kind(text)


@pytest.mark.parametrize("cols", [pdla.Cyclic("row", 1), pdla.Cyclic("row", 2), ("row", "col")], ids=repr)
def test_a_loss_of_logits_wherever_they_lie(cols):
    logits, targets = np.random.default_rng(0).standard_normal((6, 7)), np.array([0, 6, -1, 3, 4, 2])

    def program(scheme, cols):
        criterion = nn.CrossEntropy()
        loss = criterion.forward(pdla.from_global(logits, scheme.grid, pdla.Layout(cols=cols)), targets)
        return {"loss": loss, "slope": criterion.backward().gather()}

    check_close(run(SUMMA, lambda scheme: program(scheme, cols)), run(SERIAL, lambda scheme: program(scheme, None)))


def test_backward_passes_that_are_refused():
    """Each with the words that say why; the right one still goes through behind them."""

    def program(comm):
        scheme = SUMMA.make(comm)
        layer, criterion = layer_of(scheme), nn.CrossEntropy()
        dy, none = scheme.shard(X, sequence=5), "without a forward pass before it"
        wrong = [
            (X, ShapeError, "dy is an ndarray, not a DistMatrix laid out as the layer's output"),
            (scheme.shard(X[:10], sequence=5), ShapeError, r"dy is \(10, 20\) float64, the layer's output \(15, 20\) float64"),
            (scheme.shard(X.astype("f"), sequence=5), ShapeError, r"dy is \(15, 20\) float32"),
            (scheme.shard(X), LayoutError, "dy lies as .* the layer's output as"),
            (other_grid(scheme), LayoutError, r"dy lies as .* on ProcessGrid\(row=1, col=4\)"),
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


class Failing(Pointwise):
    """Hands on what it is given, or fails on one way through."""

    way = ""

    def _apply(self, x, at):
        assert self.way != "forward"
        return x

    def _gradient(self, dy, at):
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


@pytest.mark.parametrize("what", ["a loss", "clipping"])
def test_a_rank_that_goes_on_after_an_error_of_its_own_is_told_of(what):
    def program(comm):
        layer, targets = nn.Linear(nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm)), 2, 2), np.array([0])
        logits = layer.forward(layer.scheme.shard(np.ones((1, 2))))
        layer.backward(logits)
        for large in (logits, *layer.gradients().values()):
            large.stored[...] = 1e308 * (-1) ** comm.rank
        with suppress(FloatingPointError), np.errstate(over="raise" if comm.rank else "ignore"):
            nn.CrossEntropy().forward(logits, targets) if what == "a loss" else nn.clip(layer, 1)
        layer.forward(layer.scheme.shard(np.ones((1, 2))))

    with pytest.raises(DeadlockError, match=f"rank 1 waits in going on after an error amid {what}, in verb"):
        pdla.run(2, program)


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
    "an axis too many": (lambda c: nn.Summa2D(grid(c, (2, 2, 1))), GridError, "has depth besides"),
    "a strange axis": (lambda c: nn.Tensor3D(grid(c, (2, 2, 1), "row col time")), GridError, r"depth, data\); .* has time besides"),
    "megatron on two axes": (lambda c: nn.Megatron1D(grid(c, (2, 2))), GridError, "has col besides"),
    "cube without depth": (lambda c: nn.Cube3D(grid(c, (2, 2))), GridError, "lacks depth"),
    "idle ranks": (lambda c: nn.Summa2D(grid(c, (1, 2))), GridError, "leaves ranks idle"),
    "shards=0": (lambda c: nn.Tensor3D(grid(c, (2, 2)), shards=0), ShapeError, "shards=0: a whole number, at least 1"),
    "shards=1.5": (lambda c: nn.Tensor3D(grid(c, (2, 2)), shards=1.5), ShapeError, "shards=1.5: a whole number"),
    "panel=1.5": (lambda c: nn.Summa2D(grid(c, (2, 2)), panel=1.5), ShapeError, "panel=1.5, .* a whole number"),
    "shards on a cube": (lambda c: nn.Cube3D(grid(c, (2, 2, 1)), shards=2), ShapeError, "shards=2: Cube3D cuts tokens otherwise"),
    "shards of cut sequences": (
        lambda c: nn.Megatron1D(grid(c, (4,)), sequence_parallel=True, shards=2), ShapeError, "shards=2: Megatron1D cuts tokens"
    ),
    "many flags on one rank": (
        lambda c: nn.Megatron1D(grid(c, (4,)), sequence_parallel=np.ones(2) if c.rank else True), ShapeError, "ranks 1, .*True or"
    ),
    "a word for a flag": (
        lambda c: nn.Tesseract(grid(c, (2, 2, 1)), cut_weights="no"), ShapeError, "cut_weights='no': True or False"
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
    "sequence=5.0": (lambda c: nn.Positions(SUMMA.make(c), 4, sequence=5.0), ShapeError, "sequence=5.0: .* a whole number"),
    "heads=4.0": (lambda c: nn.SelfAttention(SUMMA.make(c), 20, 4.0, sequence=5), ShapeError, "not 4.0 equal heads"),
    "groups=5.0": (lambda c: nn.GroupNorm(SUMMA.make(c), 20, groups=5.0, pixels=4), ShapeError, "not 5.0 equal groups"),
    "a kernel of two numbers": (
        lambda c: nn.Conv2d(SUMMA.make(c), 4, 4, (3, 3), height=4, width=4), ShapeError, r"a kernel of \(3, 3\) x .* whole numbers"
    ),
    "half a padding": (
        lambda c: nn.Conv2d(SUMMA.make(c), 4, 4, 3, height=4, width=4, padding=0.5), ShapeError, "with 0.5 around: whole numbers"
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
    "one beta": (lambda c: nn.AdamW(nn.Linear(SUMMA.make(c), 4, 4), betas=0.9), PdlaError, "betas=0.9, .*: two betas below 1"),
    "rates that differ": (
        lambda c: nn.SGD(nn.Linear(SUMMA.make(c), 4, 4), 0.5 + c.rank), AgreementError, r"rank 0: SGD\(rate=0.5.*SGD\(rate=1.5",
    ),
    "a rate that is none": (lambda c: nn.SGD(nn.Linear(SUMMA.make(c), 4, 4), "a"), PdlaError, "rate='a', .*numbers of at least 0"),
    "a rate below 0": (lambda c: nn.SGD(nn.Linear(SUMMA.make(c), 4, 4), -0.1), PdlaError, "rate=-0.1, .*numbers of at least 0"),
    "a beta of 1": (lambda c: nn.AdamW(nn.Linear(SUMMA.make(c), 4, 4), betas=(0.9, 1)), PdlaError, "two betas below 1"),
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
    "an optimizer's state after other steps": (stepped_alone, AgreementError, "rank 0: state_dict of AdamW .* at step 1; ranks 1"),
    "clip before backward": (lambda c: nn.clip(layer_of(SUMMA.make(c)), 1), PdlaError, "has no gradients"),
    "a state that lacks a name": (
        lambda c: nn.Linear(SUMMA.make(c), 20, 5).load_state_dict({"weight": np.ones((20, 5)), "b": 1}), ShapeError,
        r"it lacks \['bias'\], and has \['b'\] besides",
    ),
    "a state of other keys": (
        lambda c: nn.Linear(SUMMA.make(c), 20, 5, bias=False).load_state_dict({"weights": X, 0: 1}), ShapeError,
        r"it lacks \['weight'\], and has \[0, 'weights'\] besides",
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
        r"ranks 1, 2, 3: a state of Linear.* is a dict of arrays by name, which every rank has, not a NoneType",
    ),
    "an optimizer's state that lacks steps": (lambda c: resumed(c, nn.AdamW, {}), ShapeError, r"it lacks \['steps'\]"),
    "an optimizer's state that lacks an array": (
        lambda c: resumed(c, nn.AdamW, {"steps": 1, "weight.0": np.ones((20, 5))}), ShapeError,
        r"the state is not AdamW of Linear.*: it lacks \['weight.1'\], and has \[\]",
    ),
    "an optimizer's state for another": (
        lambda c: resumed(c, partial(nn.SGD, rate=0.1), {"steps": 1, "weight.0": np.ones((20, 5))}), ShapeError,
        r"it lacks \[\], and has \['weight.0'\]",
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
        lambda c: resumed(c, nn.AdamW, {"steps": 0, "nobody.0": np.ones((1, 1))}), ShapeError, r"and has \['nobody.0'\]"
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
    assert raised is ShapeError and text.startswith("rank 1: "), text


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


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_token_numbers_of_few_bits(dtype):
    """A vocabulary may be larger than what they count to: bytes of a text, and words besides."""
    ids = np.arange(16).astype(dtype)

    def program(scheme):
        embedding, criterion = nn.Embedding(scheme, 320, 20, scale=1), nn.CrossEntropy()
        net = nn.Sequential(scheme, [embedding, nn.TiedHead(embedding)])
        loss = criterion.forward(net.forward(ids), ids)
        net.backward(criterion.backward())
        return {"loss": loss} | {name: value.gather() for name, value in net.gradients().items()}

    check_close(run(on(nn.Megatron1D, (8,)), program), run(SERIAL, program))


def test_sizes_of_few_bits():
    """NumPy's short integers wrap around where sizes are multiplied."""

    def features(scheme):
        layer = nn.TransformerLayer(scheme, np.int8(64), np.int8(4), sequence=np.uint8(16))
        wide = nn.MLP(scheme, hidden=np.uint8(100))
        conv = nn.Conv2d(scheme, np.int8(16), np.int8(16), np.int8(3), height=np.int8(12), width=np.int8(12))
        return layer.attention.qkv.n, layer.mlp.layers[0].n, wide.layers[0].n, conv.k, conv.sequence

    assert run(SERIAL, features) == (192, 256, 400, 144, 144)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_numbers_of_few_bits(kind):
    """NumPy's short floats round what is left of 1, and their range ends early: they count as Python's floats of their value."""

    def parameters(scheme, kind):
        layer = nn.Sequential(scheme, [nn.Dropout(scheme, kind(1 / 8)), nn.Linear(scheme, 20, 5)])
        optimizer = nn.AdamW(layer, kind(2**-12), betas=(kind(1 / 2), kind(3 / 4)), decay=kind(2**-14))
        norms = []
        for _ in range(3):
            y = layer.forward(scheme.shard(X))
            layer.backward(y * 1e40)
            norms.append(nn.clip(layer, kind(1)))
            optimizer.step()
        gradients = {f"{name}'s gradient": value.gather() for name, value in layer.gradients().items()}
        return {"norms": norms, **layer.state_dict(), **gradients}

    wanted, found = run(SUMMA, partial(parameters, kind=float)), run(SUMMA, partial(parameters, kind=kind))
    check_close(found, wanted, 0)


def test_fractions_count_as_numbers():
    def passed(scheme, kind):
        norms = [nn.LayerNorm(scheme, 20, eps=kind(1 / 8)), nn.GroupNorm(scheme, 20, groups=5, pixels=5, eps=kind(1 / 4))]
        x = scheme.shard(np.random.default_rng(0).standard_normal(X.shape), sequence=5)
        return {"y": nn.Sequential(scheme, [*norms, nn.Dropout(scheme, kind(1 / 2))]).forward(x).gather()}

    check_close(run(SUMMA, partial(passed, kind=Fraction)), run(SUMMA, partial(passed, kind=float)), 0)


def test_layers_between_which_there_are_no_features():
    """What comes out of the last is its bias."""

    def program(scheme):
        sizes = [("first", 4, 3), ("second", 3, 0), ("first", 0, 5)]
        net = nn.Sequential(scheme, [nn.Linear(scheme, k, n, kind=kind) for kind, k, n in sizes])
        net.load_state_dict({name: np.full(value.shape, 2.0) for name, value in net.parameters().items()})
        y = net.forward(scheme.shard(np.ones((6, 4))))
        return {"y": y.gather(), "dx": net.backward(y).gather()}

    check_close(run(SUMMA, program), {"y": np.full((6, 5), 2.0), "dx": np.zeros((6, 4))}, 0)


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm, partial(nn.GroupNorm, groups=2, pixels=2)])
def test_norms_of_no_features(kind):
    def program(scheme):
        norm = kind(scheme, 0)
        return norm.backward(norm.forward(scheme.shard(np.ones((6, 0)), sequence=2))).shape

    with warnings.catch_warnings(action="error"):  # nothing is divided by 0
        assert run(SUMMA, program) == (6, 0)


def test_a_head_alone_in_evaluation():
    """Without gradients an embedding and its head may be used apart."""

    def program(scheme):
        head = nn.TiedHead(nn.Embedding(scheme, 9, 20))
        return head.forward(scheme.shard(X), training=False).gather() - X @ head.weight.value.gather()

    assert np.max(np.abs(run(SUMMA, program))) < 1e-14


@pytest.mark.parametrize("options", [{"panel": 0}, {"panel": 4, "keep": True}, {"panel": 4, "shards": 2}], ids=str)
def test_panels_are_not_kept_nor_cut(options):
    def program(comm):
        nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm), **options)

    with pytest.raises(ShapeError, match="panel="):
        pdla.run(2, program)


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


RESUMED = {
    "AdamW": lambda layer: nn.AdamW(layer, eps=1e-3),  # a small eps makes much of gradients that are all rounding
    "SGD": lambda layer: nn.SGD(layer, 0.1, momentum=0.9),
}


@pytest.mark.parametrize("optimizer", RESUMED.values(), ids=RESUMED)
def test_training_resumes_in_another_scheme(optimizer):
    """Four steps, or two, saved and loaded on another grid, and two more: dropout's masks and the optimizer's state go on."""
    data = np.random.default_rng(0).standard_normal((4, 12, 16))

    def steps(layer, own, which):
        for i in which:
            own_x = layer.scheme.shard(data[i], sequence=4)
            layer.backward(layer.forward(own_x))
            own.step()

    def made(comm, place):
        layer = nn.TransformerLayer(place(comm), 16, 2, sequence=4, dropout=0.3)
        return layer, optimizer(layer)

    def whole(comm):
        layer, own = made(comm, lambda comm: nn.Serial(pdla.ProcessGrid((1,), comm=comm)))
        steps(layer, own, range(4))
        return layer.state_dict()

    def first(comm):
        layer, own = made(comm, lambda comm: nn.Tensor3D(pdla.ProcessGrid((2, 2), comm=comm)))
        steps(layer, own, range(2))
        return layer.state_dict(), own.state_dict(), layer.passes

    weights, state, passes = pdla.run(4, first)[0]

    def second(comm):
        layer, own = made(comm, lambda comm: nn.Cube3D(pdla.ProcessGrid((1, 2, 1), comm=comm)))
        layer.load_state_dict(weights)
        own.load_state_dict(state)
        layer.passes = passes
        steps(layer, own, range(2, 4))
        return layer.state_dict()

    expected, found = pdla.run(1, whole)[0], pdla.run(2, second)[0]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-11)


OF_16_BITS = {
    "Linear": lambda s, dtype: nn.Linear(s, 20, 20, dtype=dtype),
    "GeLU": lambda s, dtype: nn.GeLU(s),
    "ReLU": lambda s, dtype: nn.ReLU(s),
    "Dropout": lambda s, dtype: nn.Dropout(s, P),
    "RMSNorm": lambda s, dtype: nn.RMSNorm(s, 20, dtype=dtype),
    "GroupNorm": lambda s, dtype: nn.GroupNorm(s, 20, groups=5, pixels=5, dtype=dtype),
    "TransformerLayer": lambda s, dtype: nn.TransformerLayer(s, 20, 5, sequence=5, dropout=P, dtype=dtype),
    "Conv2d": lambda s, dtype: nn.Conv2d(s, 20, 20, 1, height=1, width=5, dtype=dtype),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("layer", OF_16_BITS.values(), ids=OF_16_BITS)
def test_floats_of_16_bits_stay_so(layer, dtype):
    """Forward, backward and gradients; and what comes out is what float32 gives, rounded."""
    given = np.random.default_rng(0).standard_normal((15, 20))

    def program(scheme, dtype):
        made = layer(scheme, dtype)
        x, dy = (scheme.shard(array.astype(dtype), sequence=5) for array in (given, given[::-1]))
        found = {"y": made.forward(x).gather(), "dx": made.backward(dy).gather()}
        found |= {name: value.gather() for name, value in made.gradients().items()}
        assert all(value.dtype == dtype for value in found.values())
        return {name: value.astype("f") for name, value in found.items()}

    kind = getattr(pytest.importorskip("ml_dtypes"), dtype, np.float16)
    check_close(run(SUMMA, lambda scheme: program(scheme, np.dtype(kind))), run(SERIAL, lambda s: program(s, np.dtype("f"))), 0.05)


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


@somewhere
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_optimizer_goes_back_to_its_start(place, optimizer):
    """The same step, made again from the states before it, gives the same parameters."""

    def program(scheme):
        layer, x = nn.Linear(scheme, 20, 23), scheme.shard(X)
        stepper, found = optimizer(layer), []
        start = layer.state_dict(), stepper.state_dict()
        for _ in range(2):
            layer.load_state_dict(start[0])
            stepper.load_state_dict(start[1])
            layer.backward(layer.forward(x))
            stepper.step()
            found.append(layer.state_dict()["weight"])
        return found

    assert np.array_equal(*run(place, program))


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


def test_a_scheme_takes_a_grid():
    with pytest.raises(GridError, match="takes a ProcessGrid"):
        pdla.run(1, nn.Summa2D)


def test_panels_keep_few_plans():
    def program(comm):
        scheme = nn.Summa2D(pdla.ProcessGrid((1, 2), comm=comm), panel=2)
        layer = nn.Linear(scheme, 4, 4)
        for tokens in range(1, 12):
            layer.backward(layer.forward(scheme.shard(np.ones((tokens, 4)))))
        return len(layer.panels.plans)

    assert pdla.run(2, program) == [12, 12]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_steps_and_losses_of_16_bit_floats_are_those_of_32_rounded(dtype):
    """Where AdamW's eps is 0, and the sum of 40000 losses more than float16 has."""
    tokens, ids = np.random.default_rng(0).standard_normal((40000, 2)).astype(dtype), np.zeros(40000, int)

    def program(comm, kind):
        scheme = SUMMA.make(comm)
        layer, loss = nn.Linear(scheme, 2, 6, dtype=kind), nn.CrossEntropy()
        layer.load_state_dict({"weight": np.ones((2, 6), kind), "bias": np.arange(6).reshape(1, 6).astype(kind)})
        x = pdla.from_global(tokens.astype(kind), scheme.grid, scheme.activation(scheme.first.X))
        value = loss.forward(layer.forward(x), ids)
        layer.backward(loss.backward())
        step = nn.AdamW(layer)
        step.step()
        step.step()
        return value, layer.state_dict()["weight"].astype(float)

    (value, weight), (exact, exact_weight) = (pdla.run(4, program, kind)[0] for kind in (dtype, np.float32))
    assert value == pytest.approx(exact, rel=0.02) and np.abs(weight - exact_weight).max() < 0.01


LONG = 4096  # more ones than bfloat16 counts, or float16
OF_MANY = {  # tokens, features, the layer
    "Linear": (LONG, 4, lambda s, dtype: nn.Linear(s, 4, 4, dtype=dtype)),
    "MLP": (LONG, 4, lambda s, dtype: nn.MLP(s, 4, dtype=dtype)),
    "LayerNorm": (LONG, 4, lambda s, dtype: nn.LayerNorm(s, 4, dtype=dtype)),
    "LayerNorm, wide": (4, LONG, lambda s, dtype: nn.LayerNorm(s, LONG, dtype=dtype)),
    "RMSNorm, wide": (4, LONG, lambda s, dtype: nn.RMSNorm(s, LONG, dtype=dtype)),
    "GroupNorm": (LONG, 4, lambda s, dtype: nn.GroupNorm(s, 4, groups=2, pixels=LONG // 2, dtype=dtype)),
    "Positions": (LONG, 4, lambda s, dtype: nn.Positions(s, 4, sequence=2, dtype=dtype)),
    "MeanOverSequence": (LONG, 4, lambda s, dtype: nn.MeanOverSequence(s, sequence=LONG // 2)),
    "SelfAttention": (600, 4, lambda s, dtype: nn.SelfAttention(s, 4, 2, sequence=300, causal=False, dtype=dtype)),
    "Upsample": (1, 4, lambda s, dtype: nn.Upsample(s, height=1, width=1, factor=160)),
}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("what", OF_MANY)
@pytest.mark.parametrize("place", [SERIAL, SUMMA], ids=lambda place: place.name)
def test_layers_of_16_bit_floats_add_up_in_32(place, what, dtype):
    """More than 256 ones, which bfloat16 does not count, and squares that float16 has no number for."""
    tokens, features, build = OF_MANY[what]
    x = np.random.default_rng(0).choice([-1, 0, 1, 2], (tokens, features)) * (20 if "wide" in what else 1)

    def program(scheme, kind):
        layer = build(scheme, kind)
        y = layer.forward(scheme.shard(x.astype(kind), sequence=layer.sequence))
        dx = layer.backward(pdla.from_global(np.ones(y.shape, kind), scheme.grid, y.layout))
        found = {"y": y, "dx": dx, **layer.gradients()}
        return {name: value.gather().astype("f") for name, value in found.items()}

    found, wanted = run(place, lambda s: program(s, np.dtype(dtype))), run(SERIAL, lambda s: program(s, np.dtype("f")))
    for name in ("dx", "gain") if "Norm" in what else ():  # differences of what is rounded
        assert np.abs(found.pop(name, 0) - wanted.pop(name, 0)).max() < 0.05 * (1 if name == "dx" else tokens)
    check_close(found, wanted, 0.05)


@everywhere
@pytest.mark.parametrize("kind", ["first", "second"])
def test_sums_of_16_bit_floats_over_ranks_are_rounded_once(place, kind):
    """bfloat16 has no 257: what each rank adds to 256 would be lost."""
    draw = np.random.default_rng(0)
    x, dy, weight = (draw.integers(0, 257, shape).astype(ml_dtypes.bfloat16) for shape in ((17, 19), (17, 23), (19, 23)))

    def program(scheme):
        layer = nn.Linear(scheme, 19, 23, kind=kind, dtype=ml_dtypes.bfloat16)
        layer.load_state_dict({"weight": weight, "bias": np.zeros((1, 23))})
        y = layer.forward(pdla.from_global(x, scheme.grid, scheme.activation(layer.takes)))
        dx = layer.backward(pdla.from_global(dy, scheme.grid, y.layout))
        return [value.gather().astype("f") for value in (y, dx, *layer.gradients().values())]

    for found, wanted in zip(run(place, program), run(SERIAL, program), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_gelu_of_16_bit_floats_is_that_of_32_rounded(dtype):
    """Below 0 too, where it is a small part of x."""
    given = np.linspace(-6, 6, 1000).reshape(1, -1).astype(dtype)

    def program(scheme, kind):
        layer, x = nn.GeLU(scheme), scheme.shard(given.astype(kind))
        y = layer.forward(x)
        return [z.gather().astype(dtype) for z in (y, layer.backward(pdla.from_global(np.ones(y.shape, kind), y.grid, y.layout)))]

    found, wanted = (run(SERIAL, lambda scheme, kind=kind: program(scheme, kind)) for kind in (dtype, np.float32))
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_values_of_16_bit_floats_that_many_queries_see(dtype, monkeypatch):
    """More than bfloat16 counts, one after the other: a value's gradient is what its token has put out."""
    monkeypatch.setattr(attention, "SCORES", 1)
    tokens = 1024

    def program(scheme):
        layer = nn.SelfAttention(scheme, 1, 1, sequence=tokens, causal=False, bias=False, dtype=dtype)
        layer.load_state_dict({"qkv.weight": np.array([[0, 1, 1]]), "out.weight": np.ones((1, 1))})  # all attend to all
        x = scheme.shard(np.ones((tokens, 1), dtype), sequence=tokens)
        return layer.backward(layer.forward(x)).gather().astype(float)

    np.testing.assert_allclose(run(SERIAL, program), 1, rtol=0.02)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_pixels_of_16_bit_floats_under_many_places_of_a_kernel(dtype):
    """More than bfloat16 counts."""
    kernel = 20

    def program(scheme):
        layer = nn.Conv2d(scheme, 1, 1, kernel, height=kernel, width=kernel, padding=kernel - 1, bias=False, dtype=dtype)
        layer.load_state_dict({"weight": np.ones((kernel**2, 1))})
        y = layer.forward(scheme.shard(np.zeros((kernel**2, 1), dtype), sequence=kernel**2))
        return layer.backward(pdla.from_global(np.ones(y.shape, dtype), scheme.grid, y.layout)).gather().astype(float)

    np.testing.assert_allclose(run(SERIAL, program), kernel**2, rtol=0.02)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_tables_and_losses_of_16_bit_floats_add_up_in_32(dtype):
    vocabulary = 70000  # more than float16 counts

    def program(scheme):
        embedding, loss = nn.Embedding(scheme, 3, 4, dtype=dtype), nn.CrossEntropy()
        x = embedding.forward(np.zeros(LONG, int))
        embedding.backward(pdla.from_global(np.ones(x.shape, dtype), scheme.grid, x.layout))
        logits = pdla.zeros((2, vocabulary), scheme.grid, scheme.activation(scheme.first.Y), dtype=dtype)
        value = loss.forward(logits, np.array([1, 2]))
        return value, loss.backward().gather().astype(float), embedding.gradients()["weight"].gather()[:, 0].astype(float)

    value, slope, table = run(SUMMA, program)
    assert value == pytest.approx(np.log(vocabulary)) and slope[0, :2] == pytest.approx([0.5 / vocabulary, -0.5], rel=0.02)
    assert (table == LONG).all()


def of_16_bits(scheme):
    """A linear of zeros in float16, whose gradients are 60000 and 60."""
    layer = nn.Linear(scheme, 4, 4, dtype=np.float16)
    layer.load_state_dict({"weight": np.zeros((4, 4)), "bias": np.zeros((1, 4))})
    y = layer.forward(scheme.shard(np.full((1, 4), 1000, np.float16)))
    layer.backward(pdla.from_global(np.full((1, 4), 60, np.float16), scheme.grid, y.layout))
    return layer


def test_rates_that_float16_has_no_number_for():
    def program(scheme):
        layer = of_16_bits(scheme)
        nn.SGD(layer, 1e-8, decay=1e-8).step()
        return layer.state_dict()["weight"]

    assert np.allclose(run(SUMMA, program), -6e-4, rtol=1e-3)


def test_a_rate_by_another_name_is_refused():
    """It would change nothing, and say nothing."""

    def program(scheme):
        for make in (nn.SGD, nn.AdamW):
            optimizer = make(nn.Linear(scheme, 4, 4), 1e-2)
            optimizer.rate = 1e-3
            with pytest.raises(AttributeError, match="lr"):
                optimizer.lr = 1e-3

    run(SUMMA, program)


def test_gradients_of_float16_are_clipped_to_a_part_that_it_has_no_number_for():
    def program(scheme):
        layer = of_16_bits(scheme)
        return nn.clip(layer, 1e-3), [value.gather().astype(float) for value in layer.gradients().values()]

    norm, gradients = run(SUMMA, program)
    assert norm == pytest.approx(240000, rel=1e-3) and sum((value**2).sum() for value in gradients) == pytest.approx(1e-6, rel=0.01)


def test_an_optimizers_state_comes_in_its_own_dtype():
    """Whatever it was saved as: moments of integers would be cut off at the next step."""

    def program(scheme):
        layer = nn.Linear(scheme, 20, 5, bias=False, dtype="f")
        optimizer, x = nn.AdamW(layer), scheme.shard(X.astype("f"))
        optimizer.load_state_dict({"steps": 1, "weight.0": np.zeros((20, 5), int), "weight.1": np.ones((20, 5)).tolist()})
        layer.backward(layer.forward(x))
        optimizer.step()
        return [value.dtype for value in optimizer.state_dict().values() if np.ndim(value)], optimizer.state_dict()["weight.0"]

    dtypes, mean = run(SUMMA, program)
    assert dtypes == [np.float32, np.float32] and np.count_nonzero(mean) > 90


@pytest.mark.parametrize("given", ["float64", "float32", "float16", "bfloat16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_state_of_any_real_numbers_is_loaded(dtype, given):
    """To NumPy bfloat16 and float16 are of different kinds: it casts one to the other only if told to."""
    state = {"weight": (np.arange(20).reshape(5, 4) % 3).astype(given)}

    def program(scheme):
        layer = nn.Linear(scheme, 5, 4, bias=False, dtype=dtype)
        layer.load_state_dict(state)
        return layer.state_dict()["weight"]

    found = run(on(nn.Summa2D, (2, 2)), program)
    assert found.dtype == dtype and np.array_equal(found.astype(float), state["weight"].astype(float))


@pytest.mark.parametrize("causal", [False, True])
def test_scores_that_float16_has_numbers_for(causal):
    """q k of 128 features is beyond float16's numbers where its part by sqrt(128) is not."""

    def program(scheme, dtype):
        layer = nn.SelfAttention(scheme, 128, 1, sequence=4, causal=causal, bias=False, dtype=dtype)
        eye = np.eye(128)
        layer.load_state_dict({"qkv.weight": np.hstack([eye] * 3), "out.weight": eye})
        x = scheme.shard(np.repeat([[25.0], [24.0], [26.0], [1.0]], 128, axis=1).astype(dtype), sequence=4)
        y = layer.forward(x)
        return y.gather(), layer.backward(scheme.shard(np.ones(y.shape, dtype), sequence=4)).gather()

    (y, dx), (wanted, _) = (run(SERIAL, partial(program, dtype=dtype)) for dtype in ("float16", "float64"))
    np.testing.assert_allclose(y, wanted, rtol=2e-3)
    assert np.isfinite(dx).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sharpness, slope", [(6, 1), (0.01, 40)], ids=["scores", "slopes"])
def test_scores_and_slopes_that_float16_has_no_numbers_for(causal, sharpness, slope):
    """q k of up to 104000, and dY times values of up to 82000, where float16 has all that comes of them."""

    def program(scheme, dtype):
        layer = nn.SelfAttention(scheme, 128, 1, sequence=4, causal=causal, bias=False, dtype=dtype)
        eye = np.eye(128)
        layer.load_state_dict({"qkv.weight": np.hstack([eye * sharpness, eye * sharpness, eye]), "out.weight": eye})
        x = scheme.shard(np.repeat([[16], [15], [14], [-16]], 128, axis=1).astype(dtype), sequence=4)
        y = layer.forward(x)
        return y.gather(), layer.backward(scheme.shard(np.full(y.shape, slope, dtype), sequence=4)).gather()

    found, wanted = (run(SERIAL, partial(program, dtype=dtype)) for dtype in ("float16", "float64"))
    for value, exact in zip(found, wanted, strict=True):
        np.testing.assert_allclose(value, exact, atol=4e-3 * np.abs(exact).max())


def test_slopes_of_scores_that_are_large_and_alike():
    """Of 20000 plus the logarithm of their number float32 has 3 digits behind the point."""

    def program(scheme, dtype):
        layer = nn.SelfAttention(scheme, 4, 1, sequence=9, bias=False, dtype=dtype)
        layer.load_state_dict({"qkv.weight": np.hstack([np.eye(4)] * 3), "out.weight": np.eye(4)})
        layer.forward(scheme.shard(np.full((9, 4), 100, dtype), sequence=9))
        return layer.backward(scheme.shard(np.arange(36).reshape(9, 4).astype(dtype), sequence=9)).gather()

    found, wanted = (run(SERIAL, partial(program, dtype=dtype)) for dtype in ("float32", "float64"))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.filterwarnings("ignore:overflow encountered in subtract")
@pytest.mark.parametrize("given", [(60000, -60000), (9, 0.01)])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_loss_of_16_bit_floats_that_lie_far_apart(dtype, given):
    """Of what is between them float16 has no number, and 16 bits have not its last digits."""
    given = np.array([given]).astype(dtype)

    def program(scheme):
        logits = pdla.from_global(given, scheme.grid, scheme.activation(scheme.first.Y))
        return nn.CrossEntropy().forward(logits, np.array([1]))

    apart = float(given[0, 0]) - float(given[0, 1])
    assert run(SUMMA, program) == pytest.approx(apart + np.log1p(np.exp(-apart)), rel=1e-5)


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm, partial(nn.GroupNorm, groups=2, pixels=4)])
def test_gradients_of_norms_that_float16_has_numbers_for(kind):
    """dY times a gain of 100 is up to 200000, what is passed back a thousandth of it."""
    given, slope = 1000 * np.random.default_rng(0).standard_normal((2, 8, 8)).astype(np.float16)

    def program(scheme, dtype):
        layer = kind(scheme, 8, dtype=dtype)
        layer.load_state_dict({name: np.full((1, 8), 100) for name in layer.parameters()})
        layer.forward(scheme.shard(given.astype(dtype), sequence=layer.sequence))
        return layer.backward(scheme.shard(slope.astype(dtype), sequence=layer.sequence)).gather()

    found, wanted = (run(SUMMA, partial(program, dtype=dtype)) for dtype in ("float16", "float64"))
    np.testing.assert_allclose(found, wanted, atol=2e-3 * np.abs(wanted).max())
