"""Transformer layers: with dropout and recomputed, the same everywhere."""

import numpy as np
import pytest
from helpers.nets import FEW, SERIAL, SHARDED, check_close, run, transformer_case


def trained_once(scheme, **options):
    """One pass of a transformer layer forward and backward; and the bytes kept in between."""
    case = transformer_case(3, **options)
    layer = case.build(scheme)
    x, dy = (case.place(scheme, array) for array in case.data())
    y = layer.forward(x)
    kept = layer.kept_bytes()
    return {"y": y.gather(), "dx": layer.backward(dy).gather()} | {n: g.gather() for n, g in layer.gradients().items()}, kept


@pytest.mark.parametrize("place", [*FEW, *SHARDED], ids=lambda place: place.name)
def test_a_layer_with_dropout_is_the_same_everywhere(place):
    found, _ = run(place, lambda scheme: trained_once(scheme, dropout=0.4))
    wanted, _ = run(SERIAL, lambda scheme: trained_once(scheme, dropout=0.4))
    check_close(found, wanted, where=place.name)
    assert not np.allclose(found["y"], run(SERIAL, trained_once)[0]["y"])


@pytest.mark.parametrize("place", [*FEW, *SHARDED], ids=lambda place: place.name)
def test_recomputed_passes_are_bitwise_the_same_and_keep_less(place):
    once, kept = run(place, lambda scheme: trained_once(scheme, dropout=0.4))
    again, less = run(place, lambda scheme: trained_once(scheme, dropout=0.4, recompute=True))
    assert all(np.array_equal(once[name], again[name]) for name in once)
    assert 0 < less < kept / 8
