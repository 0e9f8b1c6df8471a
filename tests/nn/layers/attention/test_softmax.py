"""Attention to the keys that a mask leaves, beside all scores at once and finite differences."""

import numpy as np
import pytest

from pdla.nn.layers.attention.masks import Causal, Full
from pdla.nn.layers.attention.softmax import attend, attend_backward

TOKENS = 7
SEEN = {Full: np.ones((TOKENS, TOKENS), bool), Causal: np.tri(TOKENS, dtype=bool)}


def whole(q, k, v, seen):
    scores = np.where(seen, q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3]), -np.inf)
    weights = np.exp(scores)
    return weights / weights.sum(axis=3, keepdims=True) @ v


@pytest.mark.parametrize("at_once", [1, 14, 21, 10**6])
@pytest.mark.parametrize("kind", SEEN, ids=lambda kind: kind.__name__)
def test_masks(kind, at_once, monkeypatch):
    """Two sequences of three heads; query by query, by two and by three, and all at once."""
    monkeypatch.setattr("pdla.array.numpy.AT_ONCE", at_once)
    rng = np.random.default_rng(1)
    qkv, d = rng.standard_normal((3, 2, 3, TOKENS, 4)), rng.standard_normal((2, 3, TOKENS, 4))
    found, gradients = np.empty_like(d), np.empty_like(qkv)
    attend(qkv, kind(), found)
    attend_backward(d, qkv, kind(), gradients)
    np.testing.assert_allclose(found, whole(*qkv, SEEN[kind]), rtol=1e-12)
    for i, gradient in enumerate(gradients):
        way = rng.standard_normal(d.shape)
        ends = [(whole(*qkv[:i], qkv[i] + step * way, *qkv[i + 1 :], SEEN[kind]) * d).sum() for step in (1e-6, -1e-6)]
        assert abs((ends[0] - ends[1]) / 2e-6 - (gradient * way).sum()) < 1e-7 * np.linalg.norm(gradient) * np.linalg.norm(way)
