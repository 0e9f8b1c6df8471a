"""Layers, loss, optimizers and clipping in one grid of each scheme against PyTorch's, in float64, its gradients by its autograd.

On every other grid layers are held against a plain NumPy model (test_against_numpy.py), as closely.
"""

from functools import cache

import numpy as np
import pytest
from helpers.nets import (
    EPS,
    EXACT,
    FEW,
    Case,
    Model,
    attention_case,
    check_case,
    check_close,
    check_model,
    group_case,
    learned,
    linear_case,
    norm_case,
    plain_gelu,
    plain_layer_norm,
    run,
    somewhere,
    transformer_case,
    within,
)

import pdla
from pdla import nn

torch = pytest.importorskip(
    "torch", reason="PyTorch is the reference here and pdla does not need it: python -m pip install torch==2.13.0"
)
F = torch.nn.functional


# ---------------------------------------------------------------------------------------------- PyTorch's layers


def linear(p, x):
    return F.linear(x, p["weight"].T, p["bias"][0])


def layer_norm(p, x):
    return F.layer_norm(x, x.shape[1:], p["gain"][0], p["offset"][0], EPS)


def group_norm(groups, pixels):
    def layer(p, x):
        samples = x.reshape(-1, pixels, x.shape[1]).transpose(1, 2)
        return F.group_norm(samples, groups, p["gain"][0], p["offset"][0], EPS).transpose(1, 2).reshape(x.shape)

    return layer


def attention(heads, sequence, causal=True):
    def layer(p, x):
        qkv = linear(within(p, "qkv."), x).reshape(-1, sequence, heads, 3, x.shape[1] // heads)
        q, k, v = qkv.permute(3, 0, 2, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return linear(within(p, "out."), mixed.transpose(1, 2).reshape(x.shape))

    return layer


def transformer(heads, sequence):
    def layer(p, x):
        x = x + attention(heads, sequence)(within(p, "attention."), layer_norm(within(p, "norm1."), x))
        inner = F.gelu(linear(within(p, "mlp.layers.0."), layer_norm(within(p, "norm2."), x)))
        return x + linear(within(p, "mlp.layers.2."), inner)

    return layer


def model_loss(model, p):
    ids, targets = map(torch.tensor, model.data())
    table, positions = p["layers.0.weight"], p["layers.0.positions.table"]
    x = F.embedding(ids, table.T) + positions.repeat(model.sequences, 1)
    for i in range(1, model.layers + 1):
        x = transformer(model.heads, model.sequence)(within(p, f"layers.{i}."), x)
    x = layer_norm(within(p, f"layers.{model.layers + 1}."), x)
    return F.cross_entropy(x @ table, targets, ignore_index=-1)


# ---------------------------------------------------------------------------------------------- what they give


def leaf(array):
    return torch.tensor(array, dtype=torch.float64, requires_grad=True)


@cache
def layer_expected(case):
    p = {name: leaf(value) for name, value in learned(case).items()}
    x, dy = map(leaf, case.data())
    y = TORCH[case](p, x)
    y.backward(dy)
    return {"y": y.detach().numpy(), "dx": x.grad.numpy(), **{name: value.grad.numpy() for name, value in p.items()}}


@cache
def model_gradients(model):
    p = {name: leaf(value) for name, value in learned(model).items()}
    loss = model_loss(model, p)
    loss.backward()
    return {"loss": loss.item(), **{name: value.grad.numpy() for name, value in p.items()}}


TORCH = {
    linear_case("first", 13): linear,
    linear_case("second", 13): linear,
    norm_case("first", nn.LayerNorm, plain_layer_norm, 13): layer_norm,
    group_case("second", 3): group_norm(5, 4),
    Case("GeLU", nn.GeLU, plain_gelu, 13, 20, 20): lambda p, x: F.gelu(x),
    attention_case(True, 3): attention(5, 5),
    transformer_case(3): transformer(5, 5),
}


@somewhere
@pytest.mark.parametrize("case", TORCH, ids=lambda case: case.name)
def test_layer(case, place):
    check_case(case, place, layer_expected(case))


@somewhere
def test_model(place):
    model = Model(3)
    check_model(model, place, model_gradients(model))


@pytest.mark.parametrize("ignore", [-100, 0, 3, 1000])
@somewhere
def test_tokens_that_do_not_count(place, ignore):
    logits, targets = np.random.default_rng(1).standard_normal((15, 9)), np.arange(15) % 9
    targets[:4] = ignore
    given = leaf(logits)
    wanted = F.cross_entropy(given, torch.tensor(targets), ignore_index=ignore)
    wanted.backward()

    def program(scheme):
        criterion = nn.CrossEntropy(ignore=ignore)
        loss = criterion.forward(pdla.from_global(logits, scheme.grid, scheme.activation(scheme.first.Y)), targets)
        return {"loss": loss, "slope": criterion.backward().gather()}

    check_close(run(place, program), {"loss": wanted.item(), "slope": given.grad.numpy()}, where=place.name)


@somewhere
def test_mean_squared_error(place):
    """Its targets lie as y, or in another layout, or are whole on every rank."""
    y, targets = np.random.default_rng(1).standard_normal((2, 15, 9))
    given = leaf(y)
    wanted = F.mse_loss(given, torch.tensor(targets))
    wanted.backward()

    def program(scheme):
        found = {}
        for layout in map(scheme.activation, (scheme.first.X, scheme.first.Y)):
            Y = pdla.from_global(y, scheme.grid, layout)
            for given in (pdla.from_global(targets, scheme.grid, layout), scheme.shard(targets), targets):
                criterion = nn.MeanSquaredError()
                loss = criterion.forward(Y, given)
                assert len(set(scheme.grid.comm.share(loss))) == 1, "the loss is the same on every rank"
                found[len(found)] = {"loss": loss, "slope": criterion.backward().gather()}
        return found

    for found in run(place, program).values():
        check_close(found, {"loss": wanted.item(), "slope": given.grad.numpy()}, where=place.name)


# ---------------------------------------------------------------------------------------------- steps

OPTIMIZERS = {
    "SGD": (lambda layer: nn.SGD(layer, 0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "SGD with momentum and decay": (
        lambda layer: nn.SGD(layer, 0.1, momentum=0.9, decay=0.02),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.02),
    ),
    "AdamW": (
        lambda layer: nn.AdamW(layer, 0.01, betas=(0.8, 0.95), eps=1e-6, decay=0.1),
        lambda p: torch.optim.AdamW(p, 0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    ),
}


@cache
def torch_trained(model, optimizer, steps):
    p = {name: leaf(value) for name, value in learned(model).items()}
    stepper, losses = OPTIMIZERS[optimizer][1](list(p.values())), []
    for _ in range(steps):
        stepper.zero_grad()
        loss = model_loss(model, p)
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    return {"losses": np.array(losses)} | {name: value.detach().numpy() for name, value in p.items()}


def trained(model, scheme, optimizer, steps):
    layer, criterion = model.build(scheme), nn.CrossEntropy()
    layer.load_state_dict(learned(model))
    stepper, (ids, targets), losses = OPTIMIZERS[optimizer][0](layer), model.data(), []
    for _ in range(steps):
        losses.append(criterion.forward(layer.forward(ids), targets))
        layer.backward(criterion.backward())
        stepper.step()
    return {"losses": np.array(losses)} | layer.state_dict(root=0)


@somewhere
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training(place, optimizer):
    """Six steps; parameters may drift apart by more than one pass's roundings, losses not."""
    found = run(place, lambda scheme: trained(Model(3), scheme, optimizer, 6))
    wanted = torch_trained(Model(3), optimizer, 6)
    check_close(found, wanted, 1e-9, f"{optimizer} in {place.name}")
    check_close({"losses": found["losses"]}, {"losses": wanted["losses"]}, EXACT)


@somewhere
@pytest.mark.parametrize("largest", [0.3, 1e3])
def test_clip(place, largest):
    """PyTorch adds 1e-6 to the norm before it divides by it."""
    model = Model(3)
    p = [leaf(value) for value in learned(model).values()]
    model_loss(model, dict(zip(learned(model), p, strict=True))).backward()
    norm = torch.nn.utils.clip_grad_norm_(p, largest).item()
    assert (norm > largest) == (largest < 1), "one of the cases is to clip"

    def program(comm):
        layer, criterion = model.build(place.make(comm)), nn.CrossEntropy()
        layer.load_state_dict(learned(model))
        criterion.forward(layer.forward(model.data()[0]), model.data()[1])
        layer.backward(criterion.backward())
        return {"norm": nn.clip(layer, largest)} | {name: value.gather(0) for name, value in layer.gradients().items()}

    factor = (norm + 1e-6) / norm if norm > largest else 1
    gradients = {name: value.grad.numpy() * factor for name, value in zip(learned(model), p, strict=True)}
    check_close(pdla.run(place.ranks, program)[0], {"norm": norm, **gradients})


def test_a_state_of_tensors():
    """As PyTorch saves it: a weight that asks for its gradient is refused in PyTorch's own words, on every rank."""

    def program(comm):
        layer = nn.Linear(FEW[2].make(comm), 5, 4)
        state = {"weight": torch.arange(20, dtype=torch.float32).reshape(5, 4), "bias": torch.ones(1, 4)}
        layer.load_state_dict(state)
        nn.SGD(layer, 0.1, momentum=0.9).load_state_dict({"steps": torch.tensor(3), **{f"{n}.0": v for n, v in state.items()}})
        asking = {name: value.clone().requires_grad_(True) for name, value in state.items()}
        with pytest.raises(RuntimeError, match="requires grad"):
            layer.load_state_dict(asking if comm.rank == 1 else state)
        return layer.state_dict()

    found = pdla.run(FEW[2].ranks, program)[0]
    assert np.array_equal(found["weight"], np.arange(20).reshape(5, 4)) and (found["bias"] == 1).all()
