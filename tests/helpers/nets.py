"""What the tests of layers share: schemes on grids, a plain NumPy model of every layer, and a pass and back compared with it.

A plain layer is a function of its parameters (by name, as the layer's own) and x; it gives y and a function back(dy), which
gives dx and the gradients by name. Formulas are those of a textbook, step by step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from scipy.special import erf

import pdla
from pdla import nn
from pdla.errors import PdlaError

EPS = 1e-5  # what norms add to the variance
EXACT = 1e-10  # how far float64 may be off, relative to the largest element


# ---------------------------------------------------------------------------------------------- schemes on grids


@dataclass(frozen=True)
class Place:
    """A scheme on a grid of so many ranks."""

    kind: type[nn.Scheme]
    shape: tuple[int, ...]
    axes: tuple[str, ...] | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def ranks(self):
        return int(np.prod(self.shape))

    @property
    def name(self):
        words = ["x".join(map(str, self.shape)), *(self.axes or ()), *(f"{k}={v}" for k, v in self.options)]
        return "-".join([self.kind.__name__, *words])

    def make(self, comm):
        return self.kind(pdla.ProcessGrid(self.shape, self.axes, comm), **dict(self.options))


def on(kind, shape, axes=None, **options):
    return Place(kind, shape, None if axes is None else tuple(axes.split()), tuple(options.items()))


SERIAL = on(nn.Serial, (1,))
PLACES = [
    SERIAL,
    on(nn.Serial, (2,)),
    on(nn.Serial, (1,), shards=3),
    on(nn.Megatron1D, (2,)),
    on(nn.Megatron1D, (3,)),
    on(nn.Megatron1D, (4,), keep=False),
    on(nn.Megatron1D, (2,), shards=2),
    on(nn.Megatron1D, (2, 2), "data row"),
    on(nn.Megatron1D, (2,), sequence_parallel=True),
    on(nn.Megatron1D, (3,), sequence_parallel=True, keep=True),
    on(nn.Megatron1D, (2, 2), "data row", sequence_parallel=True),
    on(nn.Summa2D, (1, 2)),
    on(nn.Summa2D, (2, 2)),
    on(nn.Summa2D, (2, 3)),
    on(nn.Summa2D, (2, 3), panel=3),
    on(nn.Summa2D, (2, 2, 1), "data row col", panel=100),
    on(nn.Summa2D, (3, 2), keep=True),
    on(nn.Summa2D, (2, 1, 2), "data row col", shards=2),
    on(nn.Tesseract, (1, 1, 3)),
    on(nn.Tesseract, (2, 2, 2)),
    on(nn.Tesseract, (2, 1, 3), cut_weights=True),
    on(nn.Tesseract, (2, 2, 2), panel=1),
    on(nn.Tesseract, (1, 3, 2), cut_weights=True, panel=4),
    on(nn.Tesseract, (3, 2, 1), cut_weights=True, keep=True),
    on(nn.Tesseract, (1, 2, 3), shards=2),
    on(nn.Tesseract, (2, 2, 2), cut_weights=True, shards=2),
    on(nn.Cube3D, (2, 2, 2)),
    on(nn.Cube3D, (1, 2, 3)),
    on(nn.Cube3D, (3, 1, 2), keep=False),
    on(nn.Cube3D, (2, 2, 1, 2), "data row col depth", keep=False),
    on(nn.Tensor3D, (2, 2)),
    on(nn.Tensor3D, (1, 3)),
    on(nn.Tensor3D, (2, 2, 2), keep=True),
    on(nn.Tensor3D, (2, 1, 3), shards=2),
    on(nn.Tensor3D, (2, 2, 2), "data row col", shards=3),
    on(nn.Tensor3D, (2, 1, 2, 2), "data row col depth", shards=2),
]
FEW = [  # one of each
    SERIAL,
    on(nn.Megatron1D, (2,), sequence_parallel=True),
    on(nn.Summa2D, (2, 2)),
    on(nn.Tesseract, (1, 2, 2), cut_weights=True, shards=2),
    on(nn.Cube3D, (2, 1, 2)),
    on(nn.Tensor3D, (2, 1, 2), shards=2),
]
SHARDED = [place for place in PLACES if dict(place.options).get("shards", 1) > 1]
SUMMA, CUBE = on(nn.Summa2D, (2, 2)), on(nn.Cube3D, (2, 2, 2))

everywhere = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
somewhere = pytest.mark.parametrize("place", FEW, ids=lambda place: place.name)


def run(place, program):
    """program(scheme) on every rank of a place; rank 0's result."""
    return pdla.run(place.ranks, lambda comm: program(place.make(comm)))[0]


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


# ---------------------------------------------------------------------------------------------- given to layers

X = np.ones((15, 20))
P = 0.3  # of dropout


def layer_of(scheme):
    return nn.TransformerLayer(scheme, 20, 5, sequence=5)


# ---------------------------------------------------------------------------------------------- plain layers


def within(parameters, prefix):
    """An inner layer's parameters by its own names."""
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}


def chained(*layers):
    """Plain layers one after the other, each with the prefix of its parameters' names."""

    def chain(p, x):
        backs = []
        for prefix, layer in layers:
            x, back = layer(within(p, prefix), x)
            backs.append((prefix, back))

        def back(dy):
            gradients = {}
            for prefix, step in reversed(backs):
                dy, inner = step(dy)
                gradients |= {prefix + name: value for name, value in inner.items()}
            return dy, gradients

        return x, back

    return chain


def plain_linear(p, x):
    def back(dy):
        gradients = {"weight": x.T @ dy, "bias": dy.sum(axis=0, keepdims=True)}
        return dy @ p["weight"].T, {name: gradients[name] for name in p}

    return x @ p["weight"] + p.get("bias", 0), back


def plain_gelu(p, x):
    phi = (1 + erf(x / np.sqrt(2))) / 2
    return x * phi, lambda dy: (dy * (phi + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)), {})


def plain_relu(p, x):
    return np.where(x > 0, x, 0), lambda dy: (np.where(x > 0, dy, 0), {})


def _normal(x, axes):
    """x less its mean over axes, divided by its deviation; and how a gradient passes through, by way of variance and mean."""
    n = np.prod([x.shape[axis] for axis in axes])
    mean = x.mean(axis=axes, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=axes, keepdims=True)
    deviation = np.sqrt(variance + EPS)

    def back(d):
        dvariance = (d * (x - mean)).sum(axis=axes, keepdims=True) * -0.5 / deviation**3
        dmean = -(d / deviation).sum(axis=axes, keepdims=True)
        return d / deviation + dvariance * 2 * (x - mean) / n + dmean / n

    return (x - mean) / deviation, back


def _scaled(p, normal, through):
    def back(dy):
        gradients = {"gain": (dy * normal).sum(axis=0, keepdims=True), "offset": dy.sum(axis=0, keepdims=True)}
        return through(dy * p["gain"]), {name: gradients[name] for name in p}

    return normal * p["gain"] + p.get("offset", 0), back


def plain_layer_norm(p, x):
    return _scaled(p, *_normal(x, (1,)))


def plain_rms_norm(p, x):
    root = np.sqrt((x**2).mean(axis=1, keepdims=True) + EPS)
    return _scaled(p, x / root, lambda d: d / root - x * (d * x).sum(axis=1, keepdims=True) / root**3 / x.shape[1])


def plain_group_norm(groups, pixels):
    def layer(p, x):
        inside = -1, pixels, groups, x.shape[1] // groups
        normal, through = _normal(x.reshape(inside), (1, 3))
        return _scaled(p, normal.reshape(x.shape), lambda d: through(d.reshape(inside)).reshape(x.shape))

    return layer


def _one_head(q, k, v, causal):
    scores = q @ k.T / np.sqrt(q.shape[1])
    if causal:
        scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)

    def back(d):
        dweights = d @ v.T
        jacobians = [np.diag(w) - np.outer(w, w) for w in weights]
        dscores = np.array([j @ row for j, row in zip(jacobians, dweights, strict=True)]) / np.sqrt(q.shape[1])
        return dscores @ k, dscores.T @ q, weights.T @ d

    return weights @ v, back


def plain_mixing(heads, sequence, causal):
    """From Q, K and V of all heads, side by side, to what each head makes of them, sequence by sequence, head by head."""

    def layer(p, x):
        size = x.shape[1] // (3 * heads)
        y, dx, backs = np.empty((len(x), heads * size)), np.empty_like(x), []
        for first in range(0, len(x), sequence):
            for head in range(heads):
                rows, out = slice(first, first + sequence), slice(head * size, (head + 1) * size)
                parts = [slice((3 * head + i) * size, (3 * head + i + 1) * size) for i in range(3)]
                y[rows, out], back = _one_head(*(x[rows, part] for part in parts), causal)
                backs.append((rows, out, parts, back))

        def everywhere(dy):
            for rows, out, parts, back in backs:
                for part, d in zip(parts, back(dy[rows, out]), strict=True):
                    dx[rows, part] = d
            return dx, {}

        return y, everywhere

    return layer


def plain_attention(heads, sequence, causal=True):
    return chained(("qkv.", plain_linear), ("-", plain_mixing(heads, sequence, causal)), ("out.", plain_linear))


plain_mlp = chained(("layers.0.", plain_linear), ("-", plain_gelu), ("layers.2.", plain_linear))


def plain_positions(sequence):
    def layer(p, x):
        def back(dy):
            return dy, {"table": np.array([dy[i::sequence].sum(axis=0) for i in range(sequence)])}

        return np.array([row + p["table"][i % sequence] for i, row in enumerate(x)]), back

    return layer


def plain_mean(sequence):
    def layer(p, x):
        y = np.array([x[i : i + sequence].mean(axis=0) for i in range(0, len(x), sequence)])
        return y, lambda dy: (np.repeat(dy, sequence, axis=0) / sequence, {})

    return layer


def beside(layer):
    """x and, added to it, the layer of x."""

    def both(p, x):
        y, back = layer(p, x)

        def way_back(dy):
            dx, gradients = back(dy)
            return dy + dx, gradients

        return x + y, way_back

    return both


def plain_transformer(heads, sequence, causal=True):
    first = chained(("norm1.", plain_layer_norm), ("attention.", plain_attention(heads, sequence, causal)))
    return chained(("", beside(first)), ("", beside(chained(("norm2.", plain_layer_norm), ("mlp.", plain_mlp)))))


def plain_model(heads, sequence, layers=1):
    """Token numbers and targets to the mean loss: embedding with positions, layers, a norm, the head tied to the embedding."""
    inside = chained(
        *((f"layers.{i + 1}.", plain_transformer(heads, sequence)) for i in range(layers)),
        (f"layers.{layers + 1}.", plain_layer_norm),
    )

    def model(p, ids, targets):
        table, positions = p["layers.0.weight"], p["layers.0.positions.table"]
        x = np.array([table[:, number] + positions[i % sequence] for i, number in enumerate(ids)])
        y, back = inside(p, x)
        logits = y @ table
        odds = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        counted = [i for i, target in enumerate(targets) if target != -1]
        loss = -sum(np.log(odds[i, targets[i]]) for i in counted) / len(counted)
        dlogits = np.zeros_like(logits)
        for i in counted:
            dlogits[i] = (odds[i] - np.eye(table.shape[1])[targets[i]]) / len(counted)
        dx, gradients = back(dlogits @ table.T)
        dtable, dpositions = y.T @ dlogits, np.zeros_like(positions)
        for i, number in enumerate(ids):
            dtable[:, number] += dx[i]
            dpositions[i % sequence] += dx[i]
        return loss, gradients | {"layers.0.weight": dtable, "layers.0.positions.table": dpositions}

    return model


# ---------------------------------------------------------------------------------------------- one trip through a layer


@dataclass(frozen=True)
class Case:
    """A layer to be made in any scheme, its plain model, and the tokens that go through it.

    kind  which layer of a pair it is: its input lies as that one's X does, or as the first one's Y ("between")
    rows  of the output, where they are not as many as tokens
    """

    name: str
    build: Callable[..., nn.Layer]
    plain: Callable
    tokens: int
    features: int
    outputs: int
    sequence: int = 1
    kind: str = "first"
    rows: int = 0

    def place(self, scheme, x):
        spec = scheme.first.Y if self.kind == "between" else getattr(scheme, self.kind).X
        return pdla.from_global(x, scheme.grid, scheme.activation(spec, self.sequence))

    def data(self):
        draw = np.random.default_rng(self.tokens)
        return draw.standard_normal((self.tokens, self.features)), draw.standard_normal((self.rows or self.tokens, self.outputs))


@cache
def initial(case):
    """The parameters that Serial begins with."""
    with pdla.config.override(array="numpy"):
        return pdla.run(1, lambda comm: case.build(SERIAL.make(comm)).state_dict())[0]


@cache
def learned(case):
    """Other parameters: biases and offsets that are not 0, gains that are not 1."""
    draw = np.random.default_rng(5)
    return {name: value + 0.3 * draw.standard_normal(value.shape) for name, value in initial(case).items()}


@cache
def expected(case):
    """What the plain model makes of the case: y, dx and gradients by name."""
    x, dy = case.data()
    y, back = case.plain(learned(case), x)
    return {"y": y, "dx": (d := back(dy))[0], **d[1]}


def check_initial(case, layer, dtype=np.float64):
    """The layer begins as in Serial, bit by bit."""
    state, wanted = layer.state_dict(root=0), initial(case)
    assert set(state) == set(wanted)
    if layer.scheme.grid.comm.rank == 0:
        assert all(np.array_equal(state[name], value.astype(dtype)) for name, value in wanted.items())


def travelled(case, scheme, dtype=np.float64):
    """The same by the layer in a scheme, in global arrays on rank 0; the layer and all copies are checked on the way."""
    layer = case.build(scheme) if dtype == np.float64 else case.build(scheme, dtype=dtype)
    check_initial(case, layer, dtype)
    layer.load_state_dict(learned(case))
    x, dy = case.data()
    y = layer.forward(case.place(scheme, x.astype(dtype)))
    dx = layer.backward(pdla.from_global(dy.astype(dtype), scheme.grid, y.layout))
    found = {"y": y, "dx": dx, **layer.gradients()}
    assert all(value.dtype == dtype for value in found.values())
    for name, value in found.items():
        assert value.check_copies(), f"copies of {name}"
    for name, value in layer.parameters().items():
        assert found[name].layout == value.layout, name
    return {name: value.gather(0) for name, value in found.items()}


def check_close(found, wanted, tolerance=EXACT, where=""):
    """The same names, each array within the tolerance, relative to its largest element."""
    assert set(found) == set(wanted), (where, set(found) ^ set(wanted))
    for name, value in wanted.items():
        assert np.shape(found[name]) == np.shape(value), (where, name, np.shape(found[name]), np.shape(value))
        largest = np.max(np.abs(value), initial=0) or 1
        off = np.max(np.abs(np.subtract(found[name], value)), initial=0) / largest
        assert off <= tolerance, f"{where}: {name} is off by {off:.1e}"


def check_case(case, place, wanted=None, tolerance=EXACT, dtype=np.float64):
    found = pdla.run(place.ranks, lambda comm: travelled(case, place.make(comm), dtype))[0]
    check_close(found, expected(case) if wanted is None else wanted, tolerance, f"{case.name} in {place.name}")


# ---------------------------------------------------------------------------------------------- the cases


def linear_case(kind, tokens, k=20, n=23, bias=True):
    def build(scheme, **dtype):
        return nn.Linear(scheme, k, n, kind=kind, bias=bias, seed=3, **dtype)

    return Case(f"linear {kind} {tokens}{'' if bias else ' without bias'}", build, plain_linear, tokens, k, n, kind=kind)


def norm_case(kind, layer, plain, tokens):
    return Case(f"{layer.__name__} {kind} {tokens}", partial(layer, features=20, kind=kind), plain, tokens, 20, 20, kind=kind)


def group_case(kind, samples, channels=20, groups=5, pixels=4):
    def build(scheme, **dtype):
        return nn.GroupNorm(scheme, channels, groups=groups, pixels=pixels, kind=kind, **dtype)

    plain = plain_group_norm(groups, pixels)
    return Case(f"GroupNorm {kind} {samples}", build, plain, samples * pixels, channels, channels, pixels, kind)


def attention_case(causal, sequences, sequence=5, hidden=20, heads=5):
    def build(scheme, **dtype):
        return nn.SelfAttention(scheme, hidden, heads, sequence=sequence, causal=causal, seed=4, **dtype)

    name = f"{'causal ' if causal else ''}attention, {sequences} of {sequence}"
    return Case(name, build, plain_attention(heads, sequence, causal), sequences * sequence, hidden, hidden, sequence)


def mlp_case(tokens, hidden=20, inner=31):
    return Case(f"MLP {tokens}", partial(nn.MLP, hidden=hidden, inner=inner, seed=2), plain_mlp, tokens, hidden, hidden)


def transformer_case(sequences, sequence=5, hidden=20, heads=5, **options):
    def build(scheme, **dtype):
        return nn.TransformerLayer(scheme, hidden, heads, sequence=sequence, seed=6, **options, **dtype)

    plain = plain_transformer(heads, sequence)
    name = f"transformer layer, {sequences} of {sequence}"
    return Case(name, build, plain, sequences * sequence, hidden, hidden, sequence)


CASES = [
    linear_case("first", 13),
    linear_case("second", 13),
    linear_case("first", 1, bias=False),
    linear_case("second", 1),
    norm_case("first", nn.LayerNorm, plain_layer_norm, 13),
    norm_case("second", nn.LayerNorm, plain_layer_norm, 1),
    norm_case("first", nn.RMSNorm, plain_rms_norm, 13),
    norm_case("second", nn.RMSNorm, plain_rms_norm, 2),
    group_case("second", 3),
    Case("Positions", partial(nn.Positions, features=20, sequence=5), plain_positions(5), 15, 20, 20, 5),
    Case("mean", partial(nn.MeanOverSequence, sequence=4), plain_mean(4), 12, 20, 20, 4, "between", 3),
    Case("GeLU", nn.GeLU, plain_gelu, 13, 20, 20),
    Case("ReLU", nn.ReLU, plain_relu, 13, 20, 20, kind="between"),
    attention_case(True, 3),
    attention_case(False, 7),
    mlp_case(13),
    mlp_case(1, 3, 2),
    transformer_case(3),
]


# ---------------------------------------------------------------------------------------------- a whole model


@dataclass(frozen=True)
class Model:
    """Embedding with positions, transformer layers, a norm and the tied head, with cross-entropy behind."""

    sequences: int
    sequence: int = 5
    hidden: int = 20
    heads: int = 5
    vocabulary: int = 23
    layers: int = 1

    def build(self, scheme):
        embedding = nn.Embedding(scheme, self.vocabulary, self.hidden, sequence=self.sequence, scale=0.5, seed=8)
        inside = [
            nn.TransformerLayer(scheme, self.hidden, self.heads, sequence=self.sequence, seed=10 * i) for i in range(self.layers)
        ]
        return nn.Sequential(scheme, [embedding, *inside, nn.LayerNorm(scheme, self.hidden), nn.TiedHead(embedding)])

    @property
    def plain(self):
        return plain_model(self.heads, self.sequence, self.layers)

    def data(self):
        """Token numbers, and targets of which some do not count."""
        draw = np.random.default_rng(self.sequences)
        ids, targets = draw.integers(0, self.vocabulary, (2, self.sequences * self.sequence))
        targets[1::4] = -1
        return ids, targets


def model_expected(model):
    loss, gradients = model.plain(learned(model), *model.data())
    return {"loss": loss, **gradients}


def model_travelled(model, scheme):
    layer, criterion = model.build(scheme), nn.CrossEntropy()
    check_initial(model, layer)
    layer.load_state_dict(learned(model))
    ids, targets = model.data()
    loss = criterion.forward(layer.forward(ids), targets)
    assert len(set(scheme.grid.comm.share(loss))) == 1, "the loss is the same on every rank"
    assert layer.backward(criterion.backward()) is None
    assert all(value.check_copies() for value in layer.gradients().values())
    return {"loss": loss, **{name: value.gather(0) for name, value in layer.gradients().items()}}


def check_model(model, place, wanted=None):
    found = pdla.run(place.ranks, lambda comm: model_travelled(model, place.make(comm)))[0]
    check_close(found, model_expected(model) if wanted is None else wanted, where=f"{model} in {place.name}")
