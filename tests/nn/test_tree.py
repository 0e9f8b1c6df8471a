"""The tree of a network: names of parameters, and states that are saved and loaded."""

import numpy as np
import pytest
from helpers.nets import FEW, SUMMA, Model, X, learned, linear_case, on, refusal, run, somewhere

import pdla
from pdla import nn
from pdla.errors import AgreementError

MODEL = Model(3)


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


def saved_16_bits(tmp_path, **state):
    """A state of bfloat16 as np.load gives it: two raw bytes."""
    np.savez(tmp_path / "state.npz", **state)
    return np.load(tmp_path / "state.npz")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_state_of_bfloat16_from_a_file_of_numpys_is_loaded(tmp_path, dtype):
    """An optimizer's, too: parameters and moments."""
    weight = (np.arange(20).reshape(5, 4) % 3).astype("bfloat16")
    state = saved_16_bits(tmp_path, **{"weight": weight, "steps": 1, "weight.0": weight + weight})
    assert state["weight"].dtype == "V2"

    def program(scheme):
        layer = nn.Linear(scheme, 5, 4, bias=False, dtype=dtype)
        layer.load_state_dict({"weight": state["weight"]})
        optimizer = nn.SGD(layer, 0.1, momentum=0.5)
        optimizer.load_state_dict({name: state[name] for name in ("steps", "weight.0")})
        return layer.state_dict()["weight"], optimizer.state_dict()["weight.0"]

    found, moment = run(on(nn.Summa2D, (2, 2)), program)
    assert found.dtype == dtype and np.array_equal(found.astype(float), weight.astype(float))
    assert np.array_equal(moment.astype(float), 2 * weight.astype(float))


@pytest.mark.parametrize("given", [np.zeros((5, 4), "V3"), np.zeros((5, 4), [("a", "u1"), ("b", "u1")])], ids=["V3", "fields"])
def test_other_raw_bytes_are_no_state(given):
    def program(comm):
        nn.Linear(SUMMA.make(comm), 5, 4, bias=False).load_state_dict({"weight": given})

    kind, text = refusal(4, program)
    assert kind.__name__ == "ShapeError" and "weight in the state is of real floats" in text


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
