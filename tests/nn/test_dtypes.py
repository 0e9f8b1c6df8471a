"""Layers, losses and optimizers of floats of 16 bits, and numbers of few bits where any number may be given."""

from fractions import Fraction
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from helpers.nets import SERIAL, SUMMA, P, X, check_close, everywhere, on, run

import pdla
from pdla import nn


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


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("optimizer", [nn.AdamW, partial(nn.SGD, momentum=0.9)], ids=["AdamW", "SGD"])
def test_an_optimizer_that_has_been_loaded_goes_on_bit_by_bit(optimizer, dtype):
    """What it keeps of 16-bit floats is in float32, and is not rounded to them."""

    def program(scheme, again):
        layer = nn.Linear(scheme, 20, 5, dtype=dtype)
        steps = optimizer(layer, 0.01)
        for _ in range(4):
            layer.backward(layer.forward(scheme.shard(X.astype(dtype))))
            steps.step()
            if again:
                state, steps = steps.state_dict(), optimizer(layer, 0.01)
                steps.load_state_dict(state)
        found = layer.state_dict() | steps.state_dict()
        return {name: np.asarray(value, float) for name, value in found.items()}

    check_close(run(SUMMA, partial(program, again=True)), run(SUMMA, partial(program, again=False)), 0)


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
    monkeypatch.setattr("pdla.array.numpy.AT_ONCE", 1)
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


@pytest.mark.parametrize(("dtype", "probability", "kept"), [(np.float16, 0.99999, 1.25 * 2**-14), (ml_dtypes.bfloat16, 0.1, 1.375)])
def test_dropout_by_factors_that_16_bits_have_no_number_for(dtype, probability, kept):
    """1e5 is beyond float16's range, 10 / 9 is rounded in bfloat16: what is dropped is 0, what is kept is rounded once."""

    def program(scheme):
        layer, x = nn.Dropout(scheme, probability), scheme.shard(np.full((2000, 200), kept, dtype))
        y = layer.forward(x)
        return [set(value.gather().astype(float).flat) for value in (y, layer.backward(x))]

    wanted = {0, float(dtype(kept / (1 - probability)))}
    assert run(SUMMA, program) == [wanted, wanted]


def test_gradients_of_float16_are_clipped_to_a_part_that_it_has_no_number_for():
    def program(scheme):
        layer = of_16_bits(scheme)
        return nn.clip(layer, 1e-3), [value.gather().astype(float) for value in layer.gradients().values()]

    norm, gradients = run(SUMMA, program)
    assert norm == pytest.approx(240000, rel=1e-3) and sum((value**2).sum() for value in gradients) == pytest.approx(1e-6, rel=0.01)


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
