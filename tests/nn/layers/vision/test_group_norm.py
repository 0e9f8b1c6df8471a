"""GroupNorm: its words, and numbers that are none."""

import numpy as np
from helpers.nets import run, somewhere

import pdla
from pdla import nn


def test_words_of_group_norm():
    """64 samples, 8 groups, 64 channels over 4 ranks, samples over 2: 2 R_f(b g / t) forward and backward, 2 R_t(h / f)."""

    def program(comm):
        scheme = nn.Tensor3D(pdla.ProcessGrid((2, 4, 2), comm=comm))
        layer = nn.GroupNorm(scheme, 64, groups=8, pixels=16)
        x = scheme.shard(np.broadcast_to(0.0, (64 * 16, 64)), sequence=16)
        with pdla.record() as ledger:
            layer.backward(layer.forward(x))
        return {tag: size / 8 for tag, size in ledger.by_tag().items()}

    words, _ = pdla.dry_run(16, program)
    assert words == {"norm sums": 4 * 2 * (3 / 4) * 64 * 8 / 2, "norm gradients": 2 * 2 * (1 / 2) * 64 / 4}


@somewhere
def test_what_is_no_number_stays_in_its_samples_group(place):
    """As in PyTorch: of 3 samples of 4 pixels, and 5 groups of 4 channels, which ranks share."""
    x = np.arange(240.0).reshape(12, 20)
    x[5, 9] = np.nan

    def program(scheme):
        layer = nn.GroupNorm(scheme, 20, groups=5, pixels=4, kind="second")
        y = layer.forward(pdla.from_global(x, scheme.grid, scheme.activation(scheme.second.X, 4)))
        return y.gather(), layer.backward(y).gather()

    spoilt = np.zeros(x.shape, bool)
    spoilt[4:8, 8:12] = True
    for found in run(place, program):
        assert np.array_equal(np.isnan(found), spoilt)
