"""softmax(Q K^T / sqrt(size)) V and its gradient, for some heads or queries at a time.

Q, K and V are (sequences, heads, tokens, features of a head). Memory grows with the sequence, not
with its square: the backward pass computes the scores again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from math import prod
from operator import matmul
from typing import Any

import numpy as np

from pdla import config
from pdla.array import namespace
from pdla.array.composed import sum_dtype, widen
from pdla.comm.ledger import timed
from pdla.model.machine import operations
from pdla.nn.layers.attention.masks import Full
from pdla.nn.products import compute_and_check


def attend(qkv: tuple[Any, Any, Any], mask: Full, into: Any) -> Any:
    """Write the attended values to the view `into`, and return normalisers for `attend_backward`.

    The normalisers are each query's greatest score and its sum of exponentials. One array, with the
    score plus the logarithm of the sum, would lose digits.
    """
    (q, k, v), xp = qkv, namespace(qkv[0])
    tops, totals = normal = xp.empty((2, *q.shape[:3], 1), sum_dtype(q.dtype))
    for part, pieces in _cut(q, mask):
        for queries, keys in pieces:
            at_q, at_k = (*part, queries), (*part, keys)
            scores = score(xp, q[at_q], k[at_k], mask)
            top = scores.max(axis=3, keepdims=True)
            weights = np.exp(scores - top)
            total = weights.sum(axis=3, keepdims=True)
            into[at_q] = _multiply(weights, v[at_k]) / total
            tops[at_q], totals[at_q] = top, total
    return normal


def attend_backward(d: Any, qkv: tuple[Any, Any, Any], normal: Any, mask: Full, into: tuple[Any, Any, Any]) -> None:
    """Write the gradients of Q, K and V to the views `into`, given that of the attended values."""
    (q, k, v), (dq, dk, dv), (tops, totals), xp = qkv, into, normal, namespace(d)
    for part, pieces in _cut(q, mask):
        k_sums, v_sums = sums = xp.empty((2, *k[part].shape), sum_dtype(k.dtype))
        sums[...] = 0
        for queries, keys in pieces:
            at_q, at_k = (*part, queries), (*part, keys)
            weights, total = np.exp(score(xp, q[at_q], k[at_k], mask) - tops[at_q]), totals[at_q]
            share = widen(d[at_q]) / total  # dividing the weights would take longer: they are more
            v_sums[:, :, keys] += _multiply(weights.transpose(0, 1, 3, 2), share)
            slope = _multiply(share, v[at_k].transpose(0, 1, 3, 2))
            slope = weights * (slope - (slope * weights).sum(axis=3, keepdims=True) / total) * slope.dtype.type(_find_scale(q))
            dq[at_q] = _multiply(slope, k[at_k])
            k_sums[:, :, keys] += _multiply(slope.transpose(0, 1, 3, 2), q[at_q])
        dk[part], dv[part] = k_sums, v_sums


def score(xp: Any, q: Any, k: Any, mask: Full) -> Any:
    """Compute the scores of these queries for these keys."""
    scores = _multiply(widen(q) * sum_dtype(q.dtype).type(_find_scale(q)), k.transpose(0, 1, 3, 2))
    mask.hide(xp, scores)
    return scores


def _find_scale(q: Any) -> float:
    return q.shape[3] ** -0.5


def _cut(q: Any, mask: Full) -> Iterator[tuple[tuple[slice, slice], list[tuple[slice, slice]]]]:
    """Yield slices of sequences and heads, each with slices of queries and of their keys.

    The scores of one slice of queries exist at a time, of whole heads if they fit.
    """
    sequences, heads, tokens, _ = q.shape
    queries = namespace(q).AT_ONCE // tokens  # at a time
    width = max(1, min(heads, queries // tokens))  # heads at a time
    pieces = [(part, mask.find_keys(part)) for part in _divide(tokens, queries)]
    for part in product(_divide(sequences, queries // (tokens * width)), _divide(heads, width)):
        yield part, pieces


def _divide(n: int, size: int) -> list[slice]:
    """Divide range(n) into slices of `size`, at least 1."""
    return [slice(first, min(first + max(size, 1), n)) for first in range(0, n, max(size, 1))]


def _multiply(x: Any, y: Any) -> Any:
    """Multiply each matrix of the stack x by that of y, 16-bit floats as float32.

    Scores and slopes may exceed float16's range, and CuPy does not multiply stacks of bfloat16.
    """
    x, y = widen(x), widen(y)
    with timed("gemm", flops=prod(x.shape[:2]) * operations(x.shape[2], y.shape[3], x.shape[3], x.dtype)):
        return compute_and_check(partial(matmul, x, y), x, y) if config.settings.verify else x @ y
