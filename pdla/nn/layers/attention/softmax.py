"""softmax(Q K^T / sqrt(size)) V and its gradient, for some heads or queries at a time.

Q, K and V are (3, sequences, heads, tokens, features of a head). Memory grows with the sequence,
not with its square: the backward pass computes the scores again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

from pdla import config
from pdla.array import namespace
from pdla.array.composed import sum_dtype
from pdla.comm.ledger import timed
from pdla.model.machine import operations
from pdla.nn.layers.attention.masks import Full
from pdla.nn.products import multiply_and_check


def attend(qkv: Any, mask: Full, into: Any) -> None:
    """Write the attended values to the view `into`."""
    xp = namespace(into)
    for part, pieces in _cut(into, mask):
        q, k, v = xp.prepare_stacks(qkv[(slice(None), *part)])
        for queries, keys in pieces:
            scores = multiply_tokens(xp, q[:, :, queries], k[:, :, keys])
            weights = xp.softmax(scores, mask.count_keys(*scores.shape[2:]), q.dtype)
            _multiply(xp, weights, v[:, :, keys], into[(*part, queries)])


def attend_backward(d: Any, qkv: Any, mask: Full, into: Any) -> None:
    """Write the gradients of Q, K and V to the view `into`, given that of the attended values."""
    xp = namespace(d)
    for part, pieces in _cut(d, mask):
        several, lying, target = len(pieces) > 1, qkv[(slice(None), *part)], into[(slice(None), *part)]
        q, k, v = factors = xp.prepare_stacks(lying)
        do, dtype = xp.prepare_stacks(d[part]), sum_dtype(d.dtype) if several else d.dtype
        in_place = factors is lying and dtype == d.dtype  # what can be read where it lies can be written there
        dq, dk, dv = gradients = target if in_place else xp.empty(lying.shape, dtype)
        if several:
            gradients[1:] = 0
        for queries, keys in pieces:
            at_q, at_k = (slice(None), slice(None), queries), (slice(None), slice(None), keys)
            scores, slopes = multiply_tokens(xp, q[at_q], k[at_k]), multiply_tokens(xp, do[at_q], v[at_k])
            weights, slopes = xp.softmax_backward(scores, slopes, mask.count_keys(*scores.shape[2:]), q.dtype)
            _multiply(xp, slopes, k[at_k], dq[at_q])
            _multiply(xp, _transpose(slopes), q[at_q], dk[at_k], beta=int(several))
            _multiply(xp, _transpose(weights), do[at_q], dv[at_k], beta=int(several))
        if not in_place:
            target[...] = gradients


def multiply_tokens(xp: Any, x: Any, y: Any) -> Any:
    """Multiply each token's features in x by those of each token in y, and by 1 / sqrt(size).

    Queries by keys are scores. Gradients by values are slopes, here already those of the products
    of queries by keys: a 16-bit float may have no number for larger ones.
    """
    products = xp.empty((*x.shape[:3], y.shape[2]), sum_dtype(x.dtype))
    _multiply(xp, x, _transpose(y), products, x.shape[3] ** -0.5)
    return products


def _transpose(x: Any) -> Any:
    return x.transpose(0, 1, 3, 2)


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


def _multiply(xp: Any, x: Any, y: Any, into: Any, alpha: float = 1, beta: int = 0) -> None:
    """`into = alpha x y + beta into` for the matrices of stacks, checked with PDLA_VERIFY=1."""
    if config.settings.verify:
        multiply_and_check(xp, x, y, into, alpha, beta, _multiply_stacks)
    else:
        _multiply_stacks(xp, x, y, into, alpha, beta)


def _multiply_stacks(xp: Any, x: Any, y: Any, into: Any, alpha: float, beta: int) -> None:
    """The same, recorded in the ledger."""
    with timed("gemm", flops=prod(x.shape[:2]) * operations(x.shape[2], y.shape[3], x.shape[3], x.dtype)):
        xp.gemm_stacks(x, y, into, alpha, beta)
