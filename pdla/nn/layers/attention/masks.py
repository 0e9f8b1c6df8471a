"""Masks: which keys a query sees.

Attention works on slices of a sequence's tokens, one of queries and one of keys. If a mask hides
any key, the last keys of the slice are those of the queries' own tokens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np


class Full:
    """Every query sees every key."""

    def find_keys(self, queries: slice) -> slice:
        """Find the slice of the keys that some of these queries see."""
        return slice(None)

    def hide(self, xp: Any, scores: Any) -> None:
        """Set the scores of keys that a query does not see to -inf."""


class Causal(Full):
    """A query sees its own key and those before it."""

    def find_keys(self, queries: slice) -> slice:
        return slice(queries.stop)

    def hide(self, xp: Any, scores: Any) -> None:
        queries, keys = scores.shape[2:]
        scores[..., keys - queries :] += xp.asarray(_make_triangle(queries, scores.dtype))


@lru_cache(maxsize=8)
def _make_triangle(n: int, dtype: np.dtype) -> np.ndarray:
    """Make an n x n matrix that is -inf where the key comes after the query, else 0."""
    return np.triu(np.full((n, n), -np.inf, dtype), 1)
