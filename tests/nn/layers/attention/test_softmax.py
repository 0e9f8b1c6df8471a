"""Attention to the keys that a mask leaves, beside all scores at once and finite differences."""

import ml_dtypes
import numpy as np
import pytest

import pdla
from pdla.array.meta import Meta
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


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_time_of_a_dry_run(dtype):
    """Two sequences of three heads, where products take all time, and where reading and writing does."""
    size, sums = np.dtype(dtype).itemsize, max(4, np.dtype(dtype).itemsize)
    heads, features, rate = 2 * 3, 4, {8: 1, 4: 2, 2: 16}[size]
    tokens, scores, block = TOKENS * heads, TOKENS**2 * heads, TOKENS * features * heads

    def program(comm):
        d, qkv = Meta((2, 3, TOKENS, features), dtype), Meta((3, 2, 3, TOKENS, features), dtype)
        attend(qkv, Full(), d)
        attend_backward(d, qkv, Full(), qkv)

    def predict(**figures):
        return pdla.dry_run(1, program, machine=pdla.Machine(call=0, single=2, half=16, **figures))[1].seconds

    assert predict(flops=1.0, memory=1e30) == pytest.approx(7 * 2 * scores * features / rate)
    of_scores = 3 * (2 * block * size + 2 * scores * sums)  # q k^T twice, d v^T
    of_blocks = 4 * ((scores + block) * size + 2 * block * size)  # weights or slopes, times v, d, k or q
    softmax = (8 * scores + 4 * tokens) * sums  # the scores' passes, and those of maxima and sums
    backward = (17 * scores + 8 * tokens) * sums
    assert predict(flops=1e30, memory=1.0) == pytest.approx(of_scores + of_blocks + softmax + backward)
