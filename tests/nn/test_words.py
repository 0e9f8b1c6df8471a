"""What a transformer layer's four linears receive, forward and backward: recorded, by tag, equal to the schemes' formulas."""

from itertools import pairwise

import numpy as np
import pytest

import pdla
from pdla import nn

SEQUENCES, S, H, HEADS = 64, 6, 192, 64  # every grid below divides all of them, but those of 27 ranks
M = SEQUENCES * S


def received(make, ranks, tokens=M, hidden=H, heads=HEADS, recompute=False, **options):
    """Words that rank 0 receives under the linears' tags, forward and in all; each rank's are the same where sizes divide."""

    def program(comm):
        scheme = make(comm, **options)
        layer = nn.TransformerLayer(scheme, hidden, heads, sequence=S, recompute=recompute)
        x = scheme.shard(np.zeros((tokens, hidden)), sequence=S)
        with pdla.record() as ledger:
            layer.backward(layer.forward(x))
        return ledger.by_tag()

    tags, _ = pdla.dry_run(ranks, program)
    forward = sum(size for tag, size in tags.items() if tag.endswith(" forward"))
    backward = sum(size for tag, size in tags.items() if tag.endswith(" backward"))
    return forward / 8, (forward + backward) / 8


def megatron(comm, **options):
    return nn.Megatron1D(pdla.ProcessGrid((comm.size,), comm=comm), **options)


@pytest.mark.parametrize("P", [4, 8, 16, 64])
def test_megatron(P):
    assert received(megatron, P) == (4 * (P - 1) / P * M * H, 8 * (P - 1) / P * M * H)


@pytest.mark.parametrize(("keep", "times"), [(False, 5), (True, 4)])
@pytest.mark.parametrize("P", [4, 8, 16, 64])
def test_megatron_with_sequence_parallelism(P, keep, times):
    """A column and a row layer: 2 gathers or scatters forward, 5 in training, as dY is gathered for dX and dW at once."""
    each = 2 * (P - 1) / P * M * H
    assert received(megatron, P, sequence_parallel=True, keep=keep) == (2 * each, times * each)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.Serial, (1,)), (nn.Megatron1D, (4,)), (nn.Summa2D, (2, 2)), (nn.Tesseract, (2, 2, 2)), (nn.Cube3D, (2, 2, 2))],
)
@pytest.mark.parametrize("run", [pdla.run, lambda ranks, program: pdla.dry_run(ranks, program)[:1]])
def test_the_flops_of_a_layer_are_those_of_its_linears_and_of_attention(kind, shape, run):
    """Attention multiplies S x S scores of each sequence and head twice forward; back, where it makes them again, five times."""
    ranks = int(np.prod(shape))

    def program(comm):
        scheme = kind(pdla.ProcessGrid(shape, comm=comm))
        layer = nn.TransformerLayer(scheme, H, HEADS, sequence=S)
        with pdla.record() as forward:
            y = layer.forward(scheme.shard(np.zeros((M, H)), sequence=S))
        with pdla.record() as back:
            layer.backward(y)
        return forward.flops, back.flops

    linears, attention = 24 * M * H * H, 2 * M * S * H
    each = (linears + 2 * attention) // ranks, (2 * linears + 5 * attention) // ranks
    assert set(run(ranks, program)) == {each}


@pytest.mark.parametrize(
    ("options", "passes", "again"),
    [
        ({}, 3, 0),
        ({"panel": 5}, 3, 0),
        ({"keep": True}, 2, 0),
        ({"recompute": True}, 3, 1),  # X, forward; W, gathered for the repeated pass, serves the one back, too
    ],
    ids=str,
)
@pytest.mark.parametrize("q", [2, 4, 8])
def test_summa(q, options, passes, again):
    x, w = (q - 1) / q**2 * 7 * M * H, (q - 1) / q**2 * 12 * H * H

    def make(comm, **options):
        return nn.Summa2D(pdla.ProcessGrid((q, q), comm=comm), **options)

    assert received(make, q * q, **options) == (x + w + again * x, passes * (x + w) + again * x)


@pytest.mark.parametrize(
    ("options", "passes"), [({}, 2), ({"cut_weights": True}, 3), ({"cut_weights": True, "panel": 12}, 3)], ids=str
)
@pytest.mark.parametrize(("q", "d"), [(2, 1), (2, 2), (2, 4), (4, 1), (4, 4), (2, 16)])
def test_tesseract(q, d, options, passes):
    """Over the layers a sum of dW there and back; or, of weights that are cut, W twice and a sum."""
    P = q * q * d

    def make(comm, **options):
        return nn.Tesseract(pdla.ProcessGrid((q, q, d), comm=comm), **options)

    in_layers = 3 * (q - 1) * (7 * M * H / P + 12 * H * H / q**2)
    between = (d - 1) / d * 12 * H * H / q**2
    assert received(make, P, **options)[1] == in_layers + passes * between


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("q", [2, 3, 4])
def test_cube(q, keep):
    """Three times the forward pass where operands are gathered again, less dY, gathered once for dX and dW."""
    P = q**3
    m, h, heads = (54 * S, 216, 27) if q == 3 else (M, H, HEADS)

    def make(comm, **options):
        return nn.Cube3D(pdla.ProcessGrid((q, q, q), comm=comm), **options)

    once = (q - 1) / P * (16 * m * h + 12 * h * h)
    trained = 2 * once if keep else 3 * once - (q - 1) / P * 9 * m * h
    assert received(make, P, m, h, heads, keep=keep) == (once, trained)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("data", "gr", "gc", "depth"), [(1, 2, 2, 1), (2, 4, 2, 1), (4, 8, 2, 1), (1, 8, 2, 4), (1, 4, 1, 16), (1, 16, 4, 1)]
)
def test_tensor3d(data, gr, gc, depth, shards):
    P = data * gr * gc * depth

    def make(comm, **options):
        return nn.Tensor3D(pdla.ProcessGrid((data, gr, gc, depth), ("data", "row", "col", "depth"), comm), **options)

    shared = 3 * (depth - 1) / depth * 12 * H * H / (gr * gc) + 2 * (data - 1) / data * 12 * H * H / (gr * gc * depth)
    words = 8 * M * H / P * (3 * (gc - 1) + (gr - 1)) + shared
    assert received(make, P, shards=shards)[1] == words


# ---------------------------------------------------------------------------------------------- what comes on top of the linears

GRIDS = {
    "Megatron1D": (nn.Megatron1D, (4,), ("row",), {}),
    "Megatron1D, sequence cut": (nn.Megatron1D, (2, 4), ("data", "row"), {"sequence_parallel": True}),
    "Summa2D": (nn.Summa2D, (4, 4), ("row", "col"), {}),
    "Tesseract": (nn.Tesseract, (2, 2, 4), ("row", "col", "depth"), {}),
    "Tesseract, weights cut": (nn.Tesseract, (4, 4, 4), ("row", "col", "depth"), {"cut_weights": True}),
    "Cube3D": (nn.Cube3D, (4, 4, 4), ("row", "col", "depth"), {}),
    "Tensor3D": (nn.Tensor3D, (4, 2, 2), ("row", "col", "depth"), {}),
    "Tensor3D, data": (nn.Tensor3D, (2, 2, 4), ("data", "row", "col"), {}),
}
V = 256


def summed(words, ranks):
    """Words of an all-reduce of so many words, which its ranks divide."""
    return 2 * (ranks - 1) / ranks * words


@pytest.mark.parametrize("name", GRIDS)
def test_biases_norms_embedding_and_loss(name):
    """The formulas of the documentation's page on layers, for one layer between an embedding and its head."""
    kind, shape, axes, options = GRIDS[name]
    ranks = int(np.prod(shape))

    def program(comm):
        scheme = kind(pdla.ProcessGrid(shape, axes, comm), **options)
        embedding = nn.Embedding(scheme, V, H, sequence=S)
        layer = nn.TransformerLayer(scheme, H, HEADS, sequence=S)
        net, loss = nn.Sequential(scheme, [embedding, layer, nn.TiedHead(embedding)]), nn.CrossEntropy()
        with pdla.record() as ledger:
            loss.forward(net.forward(np.zeros(M, int)), np.zeros(M, int))
            net.backward(loss.backward())
        return scheme, {tag: size / 8 for tag, size in ledger.by_tag().items()}

    (scheme, words), _ = pdla.dry_run(ranks, program)
    size = scheme.grid.sizes

    def over(spec):
        return [int(np.prod([size[axis] for axis in part.split()])) for part in spec.split("|")]

    (tx, fx), (ty, fy) = over(scheme.first.X), over(scheme.first.Y)  # ranks that cut tokens and features: outside, inside
    for norm in ("layer norm1", "layer norm2"):
        assert words.get(f"{norm} sums", 0) == 4 * summed(M / tx, fx)
        assert words.get(f"{norm} gradients", 0) == 2 * summed(H / fx, tx)
    for linear, wide in (("layer attention qkv", 3), ("layer mlp first", 4)):
        assert words.get(f"{linear} bias", 0) == summed(wide * H / fy, ty)
    for linear in ("layer attention out", "layer mlp second"):
        assert words.get(f"{linear} bias", 0) == summed(H / fx, tx)
    assert words.get("loss", 0) == 3 * summed(M / ty, fy) + (ty - 1)
    assert words.get("embedding positions", 0) == summed(S * H / fx, tx)

    # One weight, gathered by the embedding and by the head, by the head again on its way back; dW is settled once.
    along = {role: int(np.prod([size[axis] for axis, r in scheme.first.roles.items() if r == role])) for role in "tio"}
    (wi, wo) = over(scheme.first.W)
    x, w = M * H / along["t"] / along["i"], H * V / along["i"] / along["o"]
    gather_x, gather_w = x - M * H / (tx * fx), w - H * V / (wi * wo)
    dx = gather_x if fx * tx > along["t"] * along["i"] else summed(x, along["o"])
    copies = along["t"] * along["i"] * along["o"] / (wi * wo)
    dw = gather_w + summed(H * V / (wi * wo), copies)
    assert words.get("embedding forward", 0) == (1 if scheme.keep else 2) * gather_w + dx
    assert words.get("embedding backward", 0) == (0 if scheme.keep else 1) * gather_w + gather_x + dw
    y = M * V / along["t"] / along["o"]
    logits = y - M * V / (ty * fy) if ty * fy > along["t"] * along["o"] else summed(y, along["i"])
    assert words.get("head forward", 0) == gather_x + logits


# ---------------------------------------------------------------------------------------------- when it travels


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(("around", "forward", "back"), [("", "abc", "cba"), ("e", "eabc", "cba"), ("tied", "eabce", "ecba")])
def test_each_weight_travels_while_the_one_before_it_is_used(around, forward, back, shards):
    """Once for all shards, and never in vain: an embedding needs its weight on the way back only for a head that is tied to it."""

    def program(comm):
        scheme = nn.Summa2D(pdla.ProcessGrid((2, 1), comm=comm), shards=shards)
        embedding = nn.Embedding(scheme, 4, 4, name="e")
        first, last = [embedding] * (around != ""), [nn.TiedHead(embedding)] if around == "tied" else []
        linears = [nn.Linear(scheme, 4, 4, bias=False, name=name) for name in "abc"]
        net = nn.Sequential(scheme, [*first, *linears, *last])
        with pdla.record() as ledger:
            y, context = net.forward(np.zeros(8, int) if first else scheme.shard(np.zeros((8, 4)))), net._context
            net.backward(y)
        assert not context.under_way, "all that was sent has been received"
        return [(event.what, event.tag) for event in sorted(ledger.events, key=lambda event: event.start)]

    events, _ = pdla.dry_run(2, program)
    gathered = [tag for what, tag in events if what == "allgather"]
    assert gathered == [f"{name} forward" for name in forward] + [f"{name} backward" for name in back]
    for way, names in (("forward", "abc"), ("backward", "cba")):
        for before, after in pairwise(names):
            assert events.index(("allgather", f"{after} {way}")) < events.index(("gemm", f"{before} {way}")), (before, after)


def test_a_weight_whose_panels_travel_does_not_travel_whole_besides():
    def program(comm):
        scheme = nn.Summa2D(pdla.ProcessGrid((2, 1), comm=comm), panel=2)
        net = nn.Sequential(scheme, [nn.Embedding(scheme, 4, 4, name="e"), nn.Linear(scheme, 4, 4, bias=False, name="a")])
        y, context = net.forward(np.zeros(8, int)), net._context
        net.backward(y)
        return context.order == [net.layers[0].weight] and not context.under_way

    assert pdla.dry_run(2, program)[0]
