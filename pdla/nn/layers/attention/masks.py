"""Masks: which keys a query sees.

The queries and the keys that are worked on at a time are slices of a sequence's tokens. The last
keys are those of the queries' own tokens, where the mask hides any key.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np


class Full:
    """Every query sees every key."""

    def find_keys(self, queries: slice) -> slice:
        """The keys that some of these queries see."""
        return slice(None)

    def hide(self, xp: Any, scores: Any) -> None:
        """Set the scores of those among these keys that a query does not see to -inf."""


class Causal(Full):
    """A query sees its own key and those before it."""

    def find_keys(self, queries: slice) -> slice:
        return slice(queries.stop)

    def hide(self, xp: Any, scores: Any) -> None:
        queries, keys = scores.shape[2:]
        scores[..., keys - queries :] += xp.asarray(_make_triangle(queries, scores.dtype))


@lru_cache(maxsize=8)
def _make_triangle(n: int, dtype: np.dtype) -> np.ndarray:
    """What hides the later of n keys from each of their queries: -inf where the key comes after the query, else 0."""
    return np.triu(np.full((n, n), -np.inf, dtype), 1)
