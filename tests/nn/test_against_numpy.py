"""Layers in every scheme against a plain NumPy model, which is itself checked by finite differences."""

import hypothesis
import numpy as np
import pytest
from helpers.nets import (
    CASES,
    PLACES,
    SERIAL,
    Model,
    attention_case,
    check_case,
    check_close,
    check_model,
    everywhere,
    expected,
    group_case,
    learned,
    linear_case,
    mlp_case,
    on,
    somewhere,
    transformer_case,
)
from hypothesis import strategies as st

import pdla
from pdla import nn

FLOAT32 = 2e-5  # float32 on these sizes: some hundred roundings of 6e-8, relative to the largest element


# ---------------------------------------------------------------------------------------------- the reference itself


def slopes_agree(loss, arrays, gradients):
    """Central differences along a random direction of each array."""
    draw = np.random.default_rng(9)
    for name, gradient in gradients.items():
        direction, step = draw.standard_normal(gradient.shape), 1e-5
        ends = [loss({**arrays, name: arrays[name] + sign * step * direction}) for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        assert abs(slope - (gradient * direction).sum()) <= 1e-7 * np.linalg.norm(gradient), name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_plain_layers_by_finite_differences(case):
    x, dy = case.data()

    def loss(arrays):
        return (case.plain({name: arrays[name] for name in learned(case)}, arrays["x"])[0] * dy).sum()

    gradients = {("x" if name == "dx" else name): value for name, value in expected(case).items() if name != "y"}
    slopes_agree(loss, {"x": x, **learned(case)}, gradients)


def test_the_plain_model_by_finite_differences():
    model = Model(3, layers=2)
    _, gradients = model.plain(learned(model), *model.data())
    slopes_agree(lambda arrays: model.plain(arrays, *model.data())[0], learned(model), gradients)


def test_a_transformer_layer_by_finite_differences():
    case = transformer_case(2)
    x, dy = case.data()

    def program(comm):
        scheme = SERIAL.make(comm)
        layer = case.build(scheme)

        def loss(arrays):
            layer.load_state_dict({name: arrays[name] for name in learned(case)})
            return (layer.forward(case.place(scheme, arrays["x"])).gather() * dy).sum()

        loss(arrays := {"x": x, **learned(case)})
        dx = layer.backward(case.place(scheme, dy))
        gradients = {"x": dx, **layer.gradients()}
        slopes_agree(loss, arrays, {name: value.gather() for name, value in gradients.items()})

    pdla.run(1, program)


# ---------------------------------------------------------------------------------------------- every layer, every scheme


@everywhere
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layer(case, place):
    check_case(case, place)


@everywhere
def test_model(place):
    check_model(Model(3), place)


@somewhere
@pytest.mark.parametrize("model", [Model(1), Model(7, layers=2), Model(2, 2, 6, 2, vocabulary=3)], ids=str)
def test_models_of_other_sizes(model, place):
    """One sequence leaves most ranks without tokens, three numbers some without any of the vocabulary."""
    check_model(model, place)


@somewhere
@pytest.mark.parametrize("case", [transformer_case(1, 1, 6, 2), transformer_case(7, 2, 12, 3)], ids=lambda case: case.name)
def test_transformer_layers_of_other_sizes(case, place):
    """One token, and more sequences than ranks."""
    check_case(case, place)


@pytest.mark.parametrize("place", [p for p in PLACES if p.kind in (nn.Serial, nn.Summa2D, nn.Tensor3D)], ids=lambda p: p.name)
def test_group_norm_of_a_first_layers_input(place):
    check_case(group_case("first", 3), place)


@somewhere
@pytest.mark.parametrize("scores", [1, 15, 150])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_to_some_queries_at_a_time(place, causal, scores, monkeypatch):
    """One by one, in pieces that do not divide the sequence, and sequence by sequence."""
    monkeypatch.setattr("pdla.array.numpy.AT_ONCE", scores)
    check_case(attention_case(causal, 3), place)


@somewhere
def test_an_embedding_without_positions_deals_out_whole_sequences(place):
    ids, dy = np.arange(15) % 9, np.random.default_rng(1).standard_normal((15, 20))

    def program(comm):
        scheme = (SERIAL if comm.size == 1 else place).make(comm)
        net = nn.Sequential(scheme, [nn.Embedding(scheme, 9, 20), nn.TransformerLayer(scheme, 20, 5, sequence=5)])
        y = net.forward(ids)
        net.backward(pdla.from_global(dy, scheme.grid, y.layout))
        return {"y": y.gather(0)} | {name: value.gather(0) for name, value in net.gradients().items()}

    check_close(pdla.run(place.ranks, program)[0], pdla.run(1, program)[0])


@somewhere
@pytest.mark.parametrize(
    "case", [linear_case("first", 13), group_case("second", 3), mlp_case(13), transformer_case(3)], ids=lambda case: case.name
)
def test_float32(case, place):
    check_case(case, place, tolerance=FLOAT32, dtype=np.float32)


# ---------------------------------------------------------------------------------------------- random sizes and grids
# Hidden is 6 or more: of two features a norm leaves next to nothing but their signs, and gradients are differences that cancel.


@st.composite
def places(draw):
    """Any scheme on any grid that it takes, of at most 8 ranks."""
    kind = draw(st.sampled_from([nn.Megatron1D, nn.Summa2D, nn.Tesseract, nn.Cube3D, nn.Tensor3D]))
    axes = {nn.Megatron1D: "data row", nn.Summa2D: "data row col"}.get(kind, "data row col depth")
    shape = []
    for _ in axes.split():
        shape.append(draw(st.integers(1, min(3, 8 // int(np.prod(shape))))))
    options = {"keep": draw(st.booleans())}
    if kind is nn.Megatron1D:
        options["sequence_parallel"] = draw(st.booleans())
    if kind is nn.Tesseract:
        options["cut_weights"] = draw(st.booleans())
    if kind is not nn.Cube3D and not options.get("sequence_parallel"):
        options["shards"] = draw(st.integers(1, 3))
    return on(kind, tuple(shape), axes, **options)


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(places(), st.integers(1, 5), st.integers(1, 4), st.integers(2, 4), st.integers(3, 5), st.booleans())
def test_any_transformer_layer(place, sequences, sequence, heads, size, recompute):
    check_case(transformer_case(sequences, sequence, heads * size, heads, recompute=recompute), place)


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(places(), st.integers(1, 5), st.integers(2, 4), st.integers(2, 4), st.integers(3, 5), st.integers(2, 9))
def test_any_model(place, sequences, sequence, heads, size, vocabulary):
    check_model(Model(sequences, sequence, heads * size, heads, vocabulary), place)
