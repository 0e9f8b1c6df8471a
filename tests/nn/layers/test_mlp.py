"""An MLP with another activation than GeLU, one of its own too."""

from functools import partial

import numpy as np
import pytest
from helpers.nets import Case, chained, check_case, plain_linear, plain_relu, run, somewhere

from pdla import nn


class SiLU(nn.Layer):
    """As a user writes it."""

    def forward_local(self, x, batch):
        s = 1 / (1 + np.exp(-x.local))
        batch.save(self, s * (1 + x.local * (1 - s)))
        return nn.like(x, x.local * s)

    def backward_local(self, dy, batch):
        (slope,) = batch.saved(self)
        return nn.like(dy, dy.local * slope)


def plain_silu(p, x):
    s = 1 / (1 + np.exp(-x))
    return x * s, lambda dy: (dy * s * (1 + x * (1 - s)), {})


class Doubled(nn.GeLU):
    """One that overrides what a GeLU does to x, though not how it adds a bias."""

    def forward_local(self, x, batch):
        batch.save(self, None)
        return nn.like(x, 2 * x.local)

    def backward_local(self, dy, batch):
        return nn.like(dy, 2 * dy.local)


KINDS = {nn.ReLU: plain_relu, SiLU: plain_silu, Doubled: lambda p, x: (2 * x, lambda dy: (2 * dy, {}))}


def case(kind, bias):
    plain = chained(("layers.0.", plain_linear), ("-", KINDS[kind]), ("layers.2.", plain_linear))
    return Case(f"MLP of {kind}", partial(nn.MLP, hidden=20, inner=31, activation=kind, bias=bias, seed=2), plain, 13, 20, 20)


@somewhere
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_another_activation(kind, bias, place):
    check_case(case(kind, bias), place)


@somewhere
def test_another_activation_beside_pytorchs(place):
    torch = pytest.importorskip("torch", reason="PyTorch is the reference here: python -m pip install torch==2.13.0")
    rng = np.random.default_rng(1)
    x, dy = rng.standard_normal((2, 13, 20))

    def program(scheme):
        mlp = nn.MLP(scheme, 20, activation=SiLU)
        y = mlp.forward(scheme.shard(x))
        gradients = {"y": y, "dx": mlp.backward(scheme.shard(dy)), **mlp.gradients()}
        return mlp.state_dict(), {name: value.gather() for name, value in gradients.items()}

    state, found = run(place, program)
    p = {name: torch.tensor(value, requires_grad=True) for name, value in {"x": x, **state}.items()}
    inner = torch.nn.functional.silu(p["x"] @ p["layers.0.weight"] + p["layers.0.bias"])
    y = inner @ p["layers.2.weight"] + p["layers.2.bias"]
    y.backward(torch.tensor(dy))
    wanted = {"y": y.detach().numpy(), "dx": p["x"].grad.numpy(), **{name: p[name].grad.numpy() for name in state}}
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
