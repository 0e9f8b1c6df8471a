"""Optimizers step as their formulas say, in every scheme alike; states go from scheme to scheme."""

from copy import deepcopy
from inspect import signature

import numpy as np
import pytest
from helpers.nets import (
    FEW,
    SERIAL,
    SUMMA,
    Model,
    X,
    check_close,
    learned,
    linear_case,
    model_expected,
    refusal,
    run,
    somewhere,
)

import pdla
from pdla import nn
from pdla.errors import AgreementError, PdlaError

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
        layer.bias.gradient, optimizer.rate = layer.bias.value.copy(), -1
        with pytest.raises(PdlaError, match=r"SGD\(rate=-1.0, .* numbers must be at least 0"):
            optimizer.step()
        return np.array_equal(layer.weight.value.gather(), before), optimizer.steps

    assert run(SERIAL, program) == (True, 0)


# ---------------------------------------------------------------------------------------------- numbers that ranks must share


def numbers_of(name):
    """Two that an optimizer's argument may be."""
    return ((0.5, 0.75), (0.5, 0.625)) if name == "betas" else (0.25, 0.125)


NUMBERS = [(make, name) for make in (nn.SGD, nn.AdamW) for name in list(signature(make).parameters)[1:]]


def stepped(layer, optimizer):
    layer.backward(layer.forward(layer.scheme.shard(X)))
    optimizer.step()


@pytest.mark.parametrize("made", [True, False], ids=["made", "set"])
@pytest.mark.parametrize(("make", "name"), NUMBERS, ids=lambda x: getattr(x, "__name__", x))
def test_a_number_of_an_optimizer_that_differs_on_one_rank_is_told_of(make, name, made):
    """Where it is made, and where it is set between steps: else copies would drift apart."""
    usual, other = numbers_of(name)

    def program(comm):
        layer, mine = nn.Linear(SUMMA.make(comm), 20, 20), other if comm.rank == 1 else usual
        optimizer = make(layer, **({"rate": 0.5} | {name: mine if made else usual}))
        setattr(optimizer, name, mine)
        stepped(layer, optimizer)
        layer.forward(layer.scheme.shard(X))

    kind, text = refusal(4, program)
    assert kind is AgreementError and text.count(f"{name}=") == 2, text
    assert f"ranks 0, 2, 3: {'' if made else 'step 1 of '}{make.__name__}(" in text and f"{name}={other}" in text


@pytest.mark.parametrize("call", [
    lambda layer, optimizer: layer.forward(layer.scheme.shard(X)),
    lambda layer, optimizer: layer.state_dict(),
    lambda layer, optimizer: nn.clip(layer, 1),
    lambda layer, optimizer: optimizer.state_dict(),
    lambda layer, optimizer: pdla.zeros((2, 2), layer.scheme.grid, pdla.Layout()),
    lambda layer, optimizer: layer.weight.value.norm(),
], ids=["forward", "state_dict", "clip", "the optimizer's", "zeros", "norm"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_rank_that_has_stepped_otherwise_is_told_of_at_the_next_call(call, steps):
    def program(comm):
        layer = nn.Linear(SUMMA.make(comm), 20, 20)
        optimizer = nn.SGD(layer, 0.1)
        layer.backward(layer.forward(layer.scheme.shard(X)))
        for _ in range(steps if comm.rank == 3 else 1):
            optimizer.step()
        call(layer, optimizer)

    kind, text = refusal(4, program)
    assert kind is AgreementError and "ranks 0, 1, 2: step 1 of SGD(rate=0.1, " in text and ("step 2 of" in text) == (steps > 1)


def test_steps_that_differed_are_told_of_once():
    """After the error a program may go back to a state that it has; and errors between step and call leave the question open."""

    def program(comm):
        layer = nn.Linear(SUMMA.make(comm), 20, 20)
        optimizer = nn.SGD(layer, 0.1)
        before = layer.state_dict(), optimizer.state_dict()
        optimizer.rate = 0.1 * (1 + comm.rank)
        stepped(layer, optimizer)
        for some in (range(4), range(1)):
            with pytest.raises(PdlaError, match="clip to a norm of -1"):
                nn.clip(layer, -1 if comm.rank in some else 1)
        with pytest.raises(AgreementError, match="rank 3: step 1 of SGD"):
            layer.state_dict()
        layer.load_state_dict(before[0])
        optimizer.load_state_dict(before[1])
        optimizer.rate = 0.1
        stepped(layer, optimizer)
        return layer.state_dict()["weight"]

    assert len({weight.tobytes() for weight in pdla.run(4, program)}) == 1


def test_a_step_compares_numbers_not_how_they_are_written():
    def program(comm):
        layer = nn.Linear(SUMMA.make(comm), 20, 20)
        kind = np.float32 if comm.rank else float
        optimizer = nn.AdamW(layer, kind(0.5), betas=[kind(0.5), 0.75] if comm.rank else (0.5, 0.75), decay=comm.rank * 0)
        stepped(layer, optimizer)
        return nn.clip(layer, kind(1) if comm.rank % 2 else 1), layer.forward(layer.scheme.shard(X)).norm()

    pdla.run(4, program)


def test_a_step_sends_nothing():
    def program(comm):
        layer = nn.Linear(SUMMA.make(comm), 20, 20)
        optimizer, agreements, same = nn.SGD(layer, 0.1), [], comm.same
        layer.backward(layer.forward(layer.scheme.shard(X)))
        comm.same = lambda text: agreements.append(text) or same(text)
        with pdla.record() as ledger:
            optimizer.step()
        assert not agreements
        layer.forward(layer.scheme.shard(X), training=False)
        return ledger.messages, sum("step 1" in text for text in agreements)

    assert pdla.run(4, program) == [(0, 1)] * 4


def test_norms_to_clip_to_that_differ_are_told_of():
    """To the last bit, though they be written alike."""

    def program(comm):
        layer = nn.Linear(SUMMA.make(comm), 20, 20)
        layer.backward(layer.forward(layer.scheme.shard(X)))
        nn.clip(layer, np.float32(0.1) if comm.rank == 2 else 0.1)

    kind, text = refusal(4, program)
    assert kind is AgreementError and "ranks 0, 1, 3: clip(Linear" in text and "rank 2: clip(Linear" in text and ", 0.1)" in text


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


@pytest.mark.parametrize(("dtype", "size"), [("float64", 1e200), ("float64", 1e-200), ("float32", 3e38), ("float32", 1e-44)])
@somewhere
def test_clip_of_gradients_whose_squares_leave_the_range(place, dtype, size):
    def program(scheme):
        layer = nn.LayerNorm(scheme, 300, dtype=dtype)
        layer.backward(layer.forward(scheme.shard(np.ones((4, 300), dtype))))
        for parameter in layer.all_parameters():
            parameter.gradient = pdla.from_global(np.full((1, 300), size, dtype), scheme.grid, parameter.value.layout)
        norms = nn.clip(layer, largest := 1e-8 * min(1, size)), nn.clip(layer, np.inf)
        return norms, largest, [value.gather()[0] for value in layer.gradients().values()]

    (before, after), largest, gradients = run(place, program)
    close = {"rtol": 1e-5 if largest * np.sqrt(1 / 600) > 1e3 * np.finfo(dtype).smallest_subnormal else 1}
    np.testing.assert_allclose(before, float(np.dtype(dtype).type(size)) * np.sqrt(600), rtol=1e-12)
    np.testing.assert_allclose([after, *np.concatenate(gradients)], [largest, *[largest / np.sqrt(600)] * 600], **close)


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")
@pytest.mark.parametrize(("largest", "bad", "wanted"), [
    (1, np.nan, [np.nan, np.nan, np.nan]),
    (1, np.inf, [np.nan, np.nan, np.nan]),
    (np.inf, np.nan, [np.nan, 2, 3]),
    (np.inf, np.inf, [np.inf, 2, 3]),
])
@somewhere
def test_clip_of_what_is_no_number_or_infinite(place, largest, bad, wanted):
    """On all ranks: a step by what is left, as large as it happens to be, would go unnoticed."""

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


@pytest.mark.parametrize(("first", "then"), [(0.9, 0.0), (0.0, 0.9)])
def test_a_state_is_loaded_after_the_momentum_has_been_set(first, then):
    """Numbers may be set between steps: there may be a velocity that is not used now, or none yet."""

    def program(scheme):
        layer = nn.Linear(scheme, 20, 23)
        optimizer = nn.SGD(layer, 0.1, momentum=first)
        stepped(layer, optimizer)
        optimizer.momentum = then
        saved, other = (layer.state_dict(), optimizer.state_dict()), nn.Linear(scheme, 20, 23, seed=1)
        resumed = nn.SGD(other, 0.1, momentum=then)
        other.load_state_dict(saved[0])
        resumed.load_state_dict(saved[1])
        for each in (optimizer, resumed):
            stepped(each.layer, each)
        return [each.layer.state_dict()["weight"] for each in (optimizer, resumed)]

    assert np.array_equal(*run(SUMMA, program))


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


# ---------------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_deep_copy_of_an_optimizer_steps_a_copy_of_its_network(optimizer):
    """Alone, it has one of its own; copied along with the network it has the network's copy."""

    def program(scheme):
        layer = nn.Linear(scheme, 20, 23)
        own = optimizer(layer)
        stepped(layer, own)
        pair, alone = deepcopy((layer, own)), deepcopy(own)
        assert pair[1].layer is pair[0] and alone.layer is not layer and alone.layer.scheme is scheme
        for each in (own, pair[1], alone):
            stepped(each.layer, each)
        return [each.layer.state_dict()["weight"] for each in (own, pair[1], alone)]

    one, two, three = run(SUMMA, program)
    assert np.array_equal(one, two) and np.array_equal(one, three)
