"""What a rank holds: parameters, gradients, optimizer state, and what is kept from forward to backward, as the tables say."""

import tracemalloc

import numpy as np
import pytest

import pdla
from pdla import nn
from pdla.array.numpy import empty
from pdla.nn.layers.attention import softmax

SEQUENCES, S, H, HEADS = 16, 4, 48, 16
M = SEQUENCES * S
GRIDS = {
    "Serial": (nn.Serial, (1,), ("row",), {}),
    "Megatron1D": (nn.Megatron1D, (4,), ("row",), {}),
    "Megatron1D, sequence cut": (nn.Megatron1D, (4,), ("row",), {"sequence_parallel": True}),
    "Summa2D": (nn.Summa2D, (2, 2), ("row", "col"), {}),
    "Summa2D in panels": (nn.Summa2D, (2, 2), ("row", "col"), {"panel": 8}),
    "Summa2D, kept": (nn.Summa2D, (2, 2), ("row", "col"), {"keep": True}),
    "Tesseract": (nn.Tesseract, (2, 2, 2), ("row", "col", "depth"), {}),
    "Tesseract, weights cut": (nn.Tesseract, (2, 2, 2), ("row", "col", "depth"), {"cut_weights": True}),
    "Cube3D": (nn.Cube3D, (2, 2, 2), ("row", "col", "depth"), {}),
    "Cube3D, gathered again": (nn.Cube3D, (2, 2, 2), ("row", "col", "depth"), {"keep": False}),
    "Tensor3D": (nn.Tensor3D, (2, 2, 2), ("row", "col", "depth"), {}),
    "Tensor3D, 2 shards": (nn.Tensor3D, (2, 2, 2), ("row", "col", "depth"), {"shards": 2}),
}


def measured(name, **options):
    """Elements that rank 0 holds of parameters, gradients and AdamW's state, and keeps; and its scheme's grid and tables."""
    kind, shape, axes, kinds = GRIDS[name]

    def program(comm):
        scheme = kind(pdla.ProcessGrid(shape, axes, comm), **kinds)
        layer = nn.TransformerLayer(scheme, H, HEADS, sequence=S, **options)
        y = layer.forward(scheme.shard(np.ones((M, H)), sequence=S))
        kept = layer.kept_bytes() / 8
        layer.backward(y)
        after = layer.kept_bytes()
        optimizer = nn.AdamW(layer)
        optimizer.step()
        held = [sum(X.stored.size for X in of().values()) for of in (layer.parameters, layer.gradients)]
        state = sum(block.size for blocks in optimizer.state.values() for block in blocks)
        return scheme, held[0], held[1], state, kept, after

    return pdla.run(int(np.prod(shape)), program)[0]


def over(scheme, spec):
    """Ranks that cut rows and columns."""
    size = scheme.grid.sizes
    return [int(np.prod([size[axis] for axis in part.split()])) for part in spec.split("|")]


def along(scheme, table):
    return {role: int(np.prod([scheme.grid.sizes[a] for a, r in table.roles.items() if r == role])) for role in "tio"}


@pytest.mark.parametrize("name", GRIDS)
def test_parameters_gradients_and_state(name):
    scheme, parameters, gradients, state, _, after = measured(name)
    (_, fx), (_, fy) = over(scheme, scheme.first.X), over(scheme, scheme.first.Y)
    weights = [(scheme.first, 3), (scheme.second, 1), (scheme.first, 4), (scheme.second, 4)]
    expected = sum(n * H * H // int(np.prod(over(scheme, table.W))) for table, n in weights)
    expected += (3 + 4) * H // fy + (1 + 1) * H // fx + 4 * H // fx  # biases; gains and offsets of two norms
    assert parameters == gradients == expected and state == 2 * expected and after == 0


@pytest.mark.parametrize("name", GRIDS)
def test_what_is_kept(name):
    """Two norms' normalised inputs and scales; Q K V; linears' inputs, as they lie or gathered; GeLU."""
    scheme, _, _, _, kept, _ = measured(name)
    (tx, fx), (ty, fy) = over(scheme, scheme.first.X), over(scheme, scheme.first.Y)
    outside, inside = M / tx / fx * H, M / ty / fy * H
    norms = 2 * (outside + M / tx)
    attention = 3 * inside
    if scheme.keep:
        first, second = along(scheme, scheme.first), along(scheme, scheme.second)
        inputs = 2 * M * H / first["t"] / first["i"] + (1 + 4) * M * H / second["t"] / second["i"]
        if np.prod(over(scheme, scheme.first.W)) > first["i"] * first["o"]:
            inputs += 12 * H * H / first["i"] / first["o"]
    else:
        inputs = 2 * outside + (1 + 4) * inside
    assert kept == norms + attention + inputs + 4 * inside


@pytest.mark.parametrize("name", GRIDS)
def test_recomputed(name):
    """x alone is kept."""
    scheme, *_, kept, _ = measured(name, recompute=True)
    assert kept == M * H / np.prod(over(scheme, scheme.first.X))


def test_what_a_layer_keeps_that_is_no_array_does_not_count():
    def program(comm):
        scheme = nn.Megatron1D(pdla.ProcessGrid((2,), comm=comm))
        net = nn.Sequential(scheme, [nn.Linear(scheme, H, H), nn.MeanOverSequence(scheme, sequence=S), nn.Dropout(scheme, 0)])
        x = scheme.shard(np.ones((M, H)), sequence=S)
        net.forward(x)
        return net.kept_bytes()

    assert pdla.run(2, program) == [8 * M * H] * 2


def test_numpy_is_asked_for_no_more(monkeypatch):
    """Attention's scores are never there as a whole: the largest array of a pass is smaller than they are."""
    largest = 0

    def watched(shape, dtype):
        nonlocal largest
        largest = max(largest, int(np.prod(shape)))
        return empty(shape, dtype)

    def seen(*given):
        found = scores(*given)
        sizes.append(found.size)
        return found

    scores, sizes = softmax.multiply_tokens, []
    monkeypatch.setattr(softmax, "multiply_tokens", seen)
    monkeypatch.setattr("pdla.array.numpy.empty", watched)
    monkeypatch.setattr("pdla.array.numpy.AT_ONCE", 2 * 64)

    def program(comm):
        scheme = nn.Serial(pdla.ProcessGrid((1,), comm=comm))
        layer = nn.SelfAttention(scheme, 8, 2, sequence=64)
        layer.backward(layer.forward(scheme.shard(np.ones((64, 8)), sequence=64)))

    pdla.run(1, program)
    assert largest == 64 * 24 < 2 * 64 * 64
    forward, backward = ([2 * keys for keys in range(2, 65, 2) for _ in range(times)] for times in (1, 2))
    assert sizes == 2 * forward + 2 * backward  # two queries at a time of two heads; backward, slopes too


def test_an_mlp_holds_no_more_between_its_linears_than_goes_on_or_is_kept():
    """What the first puts out, GeLU's slope: as many elements. While GeLU is made it takes twice as many besides."""
    inner = 64 * 1024  # tokens times features

    def program(comm):
        mlp = nn.MLP(nn.Serial(pdla.ProcessGrid((1,), comm=comm)), 4, 256)
        second, seen = mlp.layers[2].forward_async, []

        def watched(x, batch):
            seen.extend(size / 8 / inner for size in tracemalloc.get_traced_memory())
            return second(x, batch)

        mlp.layers[2].forward_async = watched
        x = mlp.scheme.shard(np.ones((256, 4)))
        mlp.forward(x)
        tracemalloc.start()
        mlp.forward(x)
        tracemalloc.stop()
        return seen[2:]

    now, peak = pdla.run(1, program)[0]
    assert now < 2.1 and peak < 4.1
