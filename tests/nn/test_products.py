"""Products of layers that are checked: one that errs is computed again, or all ranks raise the same error, and right ones pass."""

import threading
import warnings

import numpy as np
import pytest
from helpers.nets import PLACES, run

import pdla
from pdla import config, nn
from pdla.array import numpy as host
from pdla.errors import PdlaError, VerificationError

SCHEMES = {"whole": {}, "several": {"shards": 2}, "panels": {"panel": 3}}
X = np.random.default_rng(1).standard_normal((16, 8))


class Errs:
    """The local GEMM, or that of stacks, which errs in one rank's calls from `first` to `last`."""

    def __init__(self, monkeypatch, where, rank, first, last, error):
        self.rank, self.calls, self.error, self.count, self.mine = rank, range(first, last), error, 0, threading.local()
        name = {"linear": "gemm", "stack": "gemm_stacks"}[where]
        right = getattr(host, name)

        def gemm(a, b, c, *args, **named):
            right(a, b, c, *args, **named)
            self.err(c)

        monkeypatch.setattr(host, name, gemm)

    def err(self, c):
        if getattr(self.mine, "rank", None) == self.rank and c.size:
            if self.count in self.calls:
                c[(0,) * (c.ndim - 2) + tuple(n // 2 for n in c.shape[-2:])] += self.error
            self.count += 1


def passes(comm, scheme, errs=None, steps=(1, 1)):
    """The results of a pass and back through attention. steps: which of the two errs."""
    layer = nn.SelfAttention(nn.Summa2D(pdla.ProcessGrid((2, 2), comm=comm), **SCHEMES[scheme]), 8, 2, sequence=4)
    x = layer.scheme.shard(X, sequence=4)
    made = []
    for step, wrong in zip((lambda x: layer.forward(x), lambda x: layer.backward(x)), steps, strict=True):
        if errs and wrong:
            errs.mine.rank = comm.rank
        x = step(x)
        if errs:
            errs.mine.rank = None
        made.append(x.gather())
    return [*made, *(g.gather() for g in layer.gradients().values())]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("where", ["linear", "stack"])
@pytest.mark.parametrize("error", [1e-9, 1e300, np.nan, np.inf])
@pytest.mark.parametrize("steps", [(1, 0), (0, 1)], ids=["forward", "backward"])
def test_a_product_that_errs_once_is_computed_again(monkeypatch, scheme, where, error, steps):
    right = pdla.run(4, passes, scheme)[0]
    with config.override(verify=True):
        for call in (0, 1, 5):
            errs = Errs(monkeypatch, where, 2, call, call + 1, error)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                found = pdla.run(4, passes, scheme, errs, steps)[0]
            monkeypatch.undo()
            assert [str(w.message)[-28:] for w in said] == ["computed again, it was right"] * (errs.count > call)
            assert all(str(w.message).startswith("rank 2 has wrong elements in") or scheme == "panels" for w in said)
            for mine, its in zip(found, right, strict=True):
                np.testing.assert_allclose(mine, its, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("where", ["linear", "stack"])
@pytest.mark.parametrize("step", ["forward", "backward"])
@pytest.mark.parametrize("check", [True, False])
def test_a_product_that_is_wrong_twice_is_an_error_on_every_rank(monkeypatch, where, step, check):
    """Which can go on: with another pass, but not with the gradients of this one."""
    errs = Errs(monkeypatch, where, 3, 0, 1000, 1.0)

    def program(comm):
        layer = nn.SelfAttention(nn.Summa2D(pdla.ProcessGrid((2, 2), comm=comm)), 8, 2, sequence=4)
        x = layer.scheme.shard(X, sequence=4)
        y = layer.forward(x)
        errs.mine.rank = comm.rank
        with pytest.raises(VerificationError, match=r"^rank 3 has wrong elements in .*; computed again") as error:
            layer.forward(x) if step == "forward" else layer.backward(y)
        errs.mine.rank = None
        assert not layer.gradients()
        with pytest.raises(PdlaError, match="without a forward pass in training"):
            layer.backward(y)
        layer.backward(layer.forward(x))
        return str(error.value)

    with config.override(verify=True, check=check):
        assert len(set(pdla.run(4, program))) == 1


@pytest.mark.parametrize(("place", "dtype"), [
    *((place, "float64") for place in PLACES),
    *((place, dtype) for place in PLACES[::9] for dtype in ("float32", "float16", "bfloat16")),
], ids=lambda given: getattr(given, "name", given))
def test_right_products_pass(place, dtype):
    def program(scheme):
        net = nn.TransformerLayer(scheme, 48, 4, sequence=4, dtype=dtype)
        x = scheme.shard(np.random.default_rng(2).standard_normal((24, 48)), sequence=4).astype(dtype)
        return net.backward(net.forward(x)).gather()

    with config.override(verify=True), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        run(place, program)


@pytest.mark.parametrize("at", [np.nan, np.inf, 1e300, 5e-324])
def test_what_is_no_number_or_infinite_in_the_operands_is_no_fault(at):
    def program(comm):
        layer = nn.Linear(nn.Summa2D(pdla.ProcessGrid((2, 2), comm=comm)), 8, 6)
        x = layer.scheme.shard(np.where(np.arange(8) == 3, at, X))
        with np.errstate(all="ignore"):
            layer.backward(layer.forward(x) * 1e10)

    with config.override(verify=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        pdla.run(4, program)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_errors_of_16_bit_products_are_found(monkeypatch, dtype, ranks):
    errs = Errs(monkeypatch, "linear", 0, 0, 1, 100)

    def program(comm):
        layer = nn.Linear(nn.Summa2D(pdla.ProcessGrid(pdla.balanced_shape(ranks), comm=comm)), 8, 6, dtype=dtype)
        errs.mine.rank = comm.rank
        layer.forward(layer.scheme.shard(X).astype(dtype))

    with config.override(verify=True), pytest.warns(RuntimeWarning, match="rank 0 has wrong elements in a layer's product"):
        pdla.run(ranks, program)


def test_without_the_setting_nothing_is_checked(monkeypatch):
    errs = Errs(monkeypatch, "linear", 0, 0, 1, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdla.run(4, passes, "whole", errs)
    assert errs.count
