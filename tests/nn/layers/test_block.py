"""Blocks: any norm, anywhere, and any inner layer; and branches that cannot be added to x."""

import numpy as np
import pytest
from helpers.nets import (
    SERIAL,
    SUMMA,
    Case,
    X,
    beside,
    chained,
    check_case,
    on,
    plain_attention,
    plain_layer_norm,
    plain_linear,
    plain_relu,
    plain_rms_norm,
    refusal,
    run,
    somewhere,
    transformer_case,
)

import pdla
from pdla import nn
from pdla.errors import LayoutError, PdlaError, ShapeError

MEGATRON = on(nn.Megatron1D, (4,))  # inside a pair layouts are other ones


def other_block(scheme, **options):
    """RMSNorm before attention, LayerNorm behind an MLP."""
    attention = nn.SelfAttention(scheme, 20, 5, sequence=5, causal=False, seed=4)
    mlp = nn.MLP(scheme, 20, 31, activation=nn.ReLU, seed=2)
    return nn.Block(scheme, [(nn.RMSNorm(scheme, 20), attention), (mlp, nn.LayerNorm(scheme, 20))], **options)


plain_mlp = chained(("layers.0.", plain_linear), ("-", plain_relu), ("layers.2.", plain_linear))
plain_block = chained(
    ("", beside(chained(("layers.0.", plain_rms_norm), ("layers.1.", plain_attention(5, 5, causal=False))))),
    ("", beside(chained(("layers.2.", plain_mlp), ("layers.3.", plain_layer_norm)))),
)
CASE = Case("block", other_block, plain_block, 15, 20, 20, 5)


@somewhere
def test_another_norm_and_another_layer(place):
    check_case(CASE, place)


class Squared(nn.Layer):
    """x^2, of one's own: widths of any kind."""

    def forward_local(self, x, batch):
        batch.save(self, x.local)
        return nn.like(x, x.local**2)

    def backward_local(self, dy, batch):
        (x,) = batch.saved(self)
        return nn.like(dy, 2 * x * dy.local)


def test_a_layer_of_ones_own_by_finite_differences():
    dy, way = np.random.default_rng(1).standard_normal((2, 15, 20))
    x = np.random.default_rng(2).standard_normal((15, 20))

    def program(scheme):
        block = nn.Block(scheme, [[nn.RMSNorm(scheme, 20), Squared(scheme)], [Squared(scheme)]])
        up, down = (block.forward(scheme.shard(x + step * way)).gather() for step in (1e-6, -1e-6))
        block.forward(scheme.shard(x))
        return ((up - down) * dy).sum() / 2e-6, (block.backward(scheme.shard(dy)).gather() * way).sum()

    numeric, exact = run(SERIAL, program)
    assert abs(numeric - exact) < 1e-6 * abs(exact)


@somewhere
def test_a_transformer_layer_is_a_block(place):
    """Bit for bit, of the same parameters in the same order; and so is it where it is computed again."""
    case = transformer_case(3)

    def program(scheme):
        def passed(layer):
            x, dy = (case.place(scheme, array) for array in case.data())
            y = layer.forward(x)
            kept = layer.kept_bytes()
            return kept, [y.gather(), layer.backward(dy).gather(), *(g.gather() for g in layer.gradients().values())]

        layer, norms = case.build(scheme), [nn.LayerNorm(scheme, 20) for _ in range(2)]
        kept, found = passed(layer)
        for recompute in (False, True):
            inner = nn.SelfAttention(scheme, 20, 5, sequence=5), nn.MLP(scheme, 20)
            block = nn.Block(scheme, [list(branch) for branch in zip(norms, inner, strict=True)], recompute=recompute)
            block.load_state_dict(dict(zip(block.parameters(), layer.state_dict().values(), strict=True)))
            less, again = passed(block)
            assert all(np.array_equal(one, other) for one, other in zip(found, again, strict=True))
            assert 0 < less < kept / 8 if recompute else less == kept

    run(place, program)


def test_names_are_those_of_a_row_of_layers():
    names = run(SERIAL, lambda scheme: list(other_block(scheme).parameters()))
    assert names[0] == "layers.0.gain" and "layers.1.qkv.weight" in names and names[-1] == "layers.3.offset"


REFUSED = {
    "other features": (lambda s: [[nn.Linear(s, 20, 8), nn.Linear(s, 8, 9, kind="second")]], ShapeError, "takes 20 .* give 9"),
    "half a pair": (lambda s: [[nn.Linear(s, 20, 20, kind=kind)] for kind in ("first", "second")], LayoutError, "takes tokens and"),
    "fewer tokens": (lambda s: [[nn.MeanOverSequence(s, sequence=5)]], ShapeError, "gives 1/5 tokens for each"),
    "more pixels": (lambda s: [[nn.Upsample(s, height=1, width=5)]], ShapeError, "gives 4 tokens for each"),
    "branches that do not fit": (lambda s: [[nn.RMSNorm(s, n)] for n in (20, 9)], ShapeError, "takes 9 features; .* give 20"),
    "an empty branch": (lambda s: [[nn.GeLU(s)], []], ShapeError, "Block of no layers"),
    "no branches": (lambda s: [], PdlaError, r"branches=\[\]: give a list of branches, each a list of layers"),
    "a layer for a branch": (lambda s: [nn.GeLU(s)], PdlaError, "Block of a GeLU: give a list of layers"),
    "a layer in two branches": (lambda s: [[gelu := nn.GeLU(s)], [gelu]], PdlaError, "is in a Block 2 times"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_blocks_that_are_refused(what):
    make, kind, words = REFUSED[what]
    raised, text = refusal(4, lambda comm: nn.Block(s := MEGATRON.make(comm), make(s)))
    assert raised is kind, text
    with pytest.raises(kind, match=words):
        raise raised(text)


class Even(Squared):
    """A layer that says itself what it takes."""

    def check_input(self, x):
        super().check_input(x)
        if x.shape[0] % 2:
            raise ShapeError(f"{x.shape[0]} tokens are not even")


def test_a_block_asks_its_first_layer():
    kind, text = refusal(4, lambda comm: nn.Block(s := SUMMA.make(comm), [[Even(s)]]).forward(s.shard(X)))
    assert kind is ShapeError and "15 tokens are not even" in text


def test_a_block_takes_what_its_first_layer_takes():
    def program(comm):
        scheme = SUMMA.make(comm)
        block = nn.Block(scheme, [[nn.GeLU(scheme), nn.GroupNorm(scheme, 20, groups=5, pixels=5)]])
        y = block.forward(scheme.shard(X, sequence=5))
        with pytest.raises(ShapeError, match=r"Block of 1 branches on .* takes \(tokens, 20\)"):
            block.forward(scheme.shard(X[:, :8], sequence=5))
        with pytest.raises(LayoutError, match=r"Block .* takes Layout\(rows=Balanced\('row', unit=5\)"):
            block.forward(scheme.shard(X))
        return y.gather()

    assert np.abs(pdla.run(4, program)[0] - X).max() < 1e-10  # all elements are alike, and so have no deviation
