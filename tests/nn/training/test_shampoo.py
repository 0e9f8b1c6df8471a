"""Shampoo steps as its formula says, in every scheme alike; its state goes from scheme to scheme."""

import numpy as np
import pytest
import scipy.linalg
from helpers.nets import SERIAL, SUMMA, check_close, learned, linear_case, refusal, run, somewhere

import pdla
from pdla import nn
from pdla.errors import AgreementError, LinAlgError, PdlaError

CASE = linear_case("first", 13)
STEPS, RATE, EPS = 4, 0.1, 1e-3


def gradients():
    draw = np.random.default_rng(3)
    shapes = {name: value.shape for name, value in learned(CASE).items()}
    return [{name: draw.standard_normal(shape) for name, shape in shapes.items()} for _ in range(STEPS)]


def plain():
    """The same, by SciPy's roots."""

    def root(X):
        w, V = scipy.linalg.eigh(X)
        return V * w**-0.25 @ V.T

    found = {}
    for name, value in learned(CASE).items():
        value, L, R = value.copy(), *(EPS * np.eye(size) for size in value.shape)
        for each in gradients():
            G = each[name]
            L, R = L + G @ G.T, R + G.T @ G
            value -= RATE * root(L) @ G @ root(R)
        found |= {name: value, f"{name}.0": L, f"{name}.1": R}
    return found


def made(scheme, **named):
    layer = CASE.build(scheme)
    layer.load_state_dict(learned(CASE))
    return layer, nn.Shampoo(layer, RATE, **{"eps": EPS} | named)


def step(layer, optimizer, given):
    for name, parameter in layer.named_parameters():
        parameter.gradient = pdla.from_global(given[name], layer.scheme.grid, parameter.value.layout)
    optimizer.step()


def states(layer, optimizer):
    return layer.state_dict() | {name: value for name, value in optimizer.state_dict().items() if name != "steps"}


@somewhere
def test_shampoo_steps_as_its_formula_says(place):
    def program(scheme):
        layer, optimizer = made(scheme)
        for given in gradients():
            step(layer, optimizer, given)
        assert all(value.check_copies() for value in layer.parameters().values())
        return states(layer, optimizer)

    check_close(run(place, program), plain(), 1e-9, place.name)


@somewhere
def test_training_goes_on_in_another_scheme(place):
    first, then = gradients()[:2], gradients()[2:]

    def before(scheme):
        layer, optimizer = made(scheme)
        for given in first:
            step(layer, optimizer, given)
        return layer.state_dict(), optimizer.state_dict()

    weights, state = run(SUMMA, before)

    def after(scheme):
        layer, optimizer = made(scheme)
        layer.load_state_dict(weights)
        optimizer.load_state_dict(state)
        for given in then:
            step(layer, optimizer, given)
        return states(layer, optimizer)

    check_close(run(place, after), plain(), 1e-9, place.name)


@pytest.mark.parametrize(("dtype", "far"), [("float32", 1e-3), ("float16", 1e-2)])
def test_short_floats_are_stepped_in_single_precision(dtype, far):
    draw = np.random.default_rng(4)
    G, value = draw.standard_normal((6, 5)), draw.standard_normal((6, 5))

    def program(scheme):
        layer = nn.Linear(scheme, 6, 5, bias=False, dtype=dtype)
        layer.load_state_dict({"weight": value.astype(dtype)})
        optimizer = nn.Shampoo(layer, RATE, eps=0.1)
        step(layer, optimizer, {"weight": G.astype(dtype)})
        return layer.state_dict()["weight"], optimizer.state_dict()["weight.0"].dtype

    found, kept = run(SUMMA, program)
    L, R = (scipy.linalg.fractional_matrix_power(0.1 * np.eye(len(X)) + X @ X.T, -0.25) for X in (G, G.T))
    assert found.dtype == dtype and kept == np.float32
    np.testing.assert_allclose(found.astype(float), value - RATE * L @ G @ R, atol=far)


def test_a_rate_that_differs_is_an_error_before_anything_is_changed():
    def program(comm):
        layer, optimizer = made(SUMMA.make(comm))
        optimizer.rate = 0.5 if comm.rank == 1 else RATE
        step(layer, optimizer, gradients()[0])

    kind, text = refusal(4, program)
    assert kind is AgreementError and "rank 1: step 1 of Shampoo(rate=0.5, eps=0.001)" in text, text


def test_what_has_no_root_is_refused():
    def program(scheme):
        layer, optimizer = made(scheme, eps=0)
        with pytest.raises(LinAlgError):
            step(layer, optimizer, {name: np.zeros(value.shape) for name, value in learned(CASE).items()})
        return layer.state_dict()["weight"], [*optimizer.state_dict()]

    weight, kept = run(SERIAL, program)
    assert np.array_equal(weight, learned(CASE)["weight"]) and "weight.0" not in kept
    with pytest.raises(PdlaError, match=r"Shampoo\(rate=0.1, eps=-1.0\) .*numbers must be at least 0"):
        run(SERIAL, lambda scheme: made(scheme, eps=-1))
