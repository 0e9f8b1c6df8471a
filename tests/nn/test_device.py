"""A transformer layer on a device's arrays: its values beside NumPy's, and how often it calls the device."""

import ml_dtypes
import numpy as np
import pytest
from helpers.device_arrays import xp
from helpers.devices import GPU

import pdla
from pdla import config, nn
from pdla.nn.layers.attention.masks import Full
from pdla.nn.layers.attention.softmax import attend_backward

HIDDEN, HEADS, TOKENS = 16, 2, 24
DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


def run(array, program):
    with config.override(array=array):
        return pdla.run(1, lambda comm: program(nn.Serial(pdla.ProcessGrid((1,), comm=comm))))[0]


def draw(seed, rows, columns, dtype):
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(dtype)


def passes(dtype, sequences, **options):
    """Make a program: y, dx and all gradients of a layer."""

    def program(scheme):
        layer = nn.TransformerLayer(scheme, HIDDEN, HEADS, sequence=TOKENS, dtype=dtype, **options)
        x, dy = (scheme.shard(draw(seed, sequences * TOKENS, HIDDEN, dtype), sequence=TOKENS) for seed in (1, 2))
        made = [layer.forward(x), layer.backward(dy), *layer.gradients().values()]
        return [z.xp.host(z.local) for z in made]

    return program


@pytest.mark.parametrize("at_once", [9 * TOKENS, HEADS * TOKENS**2, 10**6], ids=["some queries", "a sequence", "whole"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_layer_beside_numpys(dtype, causal, at_once, monkeypatch):
    """Attention in pieces too; values of 16-bit floats as near to those of float64 as NumPy's are."""
    monkeypatch.setattr(xp, "AT_ONCE", at_once)
    exact = run("numpy", passes(np.float64, 2, causal=causal))
    wanted = run("numpy", passes(dtype, 2, causal=causal))
    found = run("cupy", passes(dtype, 2, causal=causal))
    for mine, numpys, right in zip(found, wanted, exact, strict=True):
        assert mine.dtype == numpys.dtype == dtype
        error, allowed = (np.linalg.norm(x.astype(float) - right) for x in (mine, numpys))
        assert error <= (1.5 if mine.itemsize == 2 else 3) * allowed + 1e-13 * np.linalg.norm(right)


@pytest.mark.parametrize("slope", [1, 5])
def test_slopes_that_float16_has_no_numbers_for(slope):
    """dY times values of up to 82000."""

    def program(scheme, dtype):
        layer = nn.SelfAttention(scheme, 128, 1, sequence=4, causal=False, bias=False, dtype=dtype)
        eye = np.eye(128)
        layer.load_state_dict({"qkv.weight": np.hstack([eye / 8, eye / 8, eye]), "out.weight": eye})
        x = scheme.shard(np.repeat([[16], [15], [14], [-16]], 128, axis=1).astype(dtype), sequence=4)
        layer.forward(x)
        return layer.backward(scheme.shard(np.full((4, 128), slope, dtype), sequence=4)).gather()

    found = run("cupy", lambda scheme: program(scheme, np.float16)).get()
    exact = run("numpy", lambda scheme: program(scheme, np.float64))
    np.testing.assert_allclose(found, exact, atol=4e-3 * np.abs(exact).max())


@pytest.mark.parametrize(("dtype", "most"), [(np.float16, 2**11), (ml_dtypes.bfloat16, 2**8)])
def test_values_that_many_queries_see(dtype, most, monkeypatch):
    """Query by query; summed in 16 bits a 1 beside the first addend would be lost."""
    monkeypatch.setattr(xp, "AT_ONCE", 4)
    d, qkv = np.array([most, 1, 1, 1]).reshape(1, 1, 4, 1) * 4, np.zeros((3, 1, 1, 4, 1))  # all weights are 1 / 4
    into = xp.empty(qkv.shape, dtype)
    attend_backward(xp.asarray(d.astype(dtype)), xp.asarray(qkv.astype(dtype)), Full(), into)
    np.testing.assert_array_equal(into.get()[2], np.full((1, 1, 4, 1), most + 3).astype(dtype))


@pytest.mark.skipif(GPU, reason="the stand-in for CuPy counts, a device does not")
@pytest.mark.parametrize(
    ("sequences", "heads", "calls"), [(11, HEADS, (21, 64)), (1, HEADS, (19, 53)), (4, 1, (19, 53))],
    ids=["copied", "one sequence", "one head"],
)
def test_calls_of_the_device(sequences, heads, calls, monkeypatch):
    """As many in 16 bits as in 32, and the same; attention in one piece. One sequence, or head, lies as cuBLAS takes it."""
    import cupy

    monkeypatch.setattr(cupy, "QUICK", True)

    def program(scheme, dtype):
        layer = nn.TransformerLayer(scheme, HIDDEN, heads, sequence=TOKENS, dtype=dtype)
        x = scheme.shard(draw(1, sequences * TOKENS, HIDDEN, dtype), sequence=TOKENS)
        layer.backward(layer.forward(x))  # the first pass draws the weights, too
        cupy.CALLS.clear()
        y = layer.forward(x)
        forward = cupy.CALLS.total()
        layer.backward(y)
        return forward, {name.removesuffix(f"_{np.dtype(dtype)}"): count for name, count in (+cupy.CALLS).items()}

    (forward, single), *others = (run("cupy", lambda scheme, dtype=dtype: program(scheme, dtype)) for dtype in DTYPES[:3][::-1])
    assert (forward, sum(single.values())) == calls, single
    assert bool(single.get("ascontiguousarray")) == (min(sequences, heads) > 1)
    for _, half in others:
        sums = half.pop("columns_float32", 0)  # of sums of tiles
        assert half | {"columns": half["columns"] + sums} == single
