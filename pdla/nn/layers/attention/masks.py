"""Masks: which keys a query sees.

Attention works on slices of a sequence's tokens, one of queries and one of keys. If a mask hides
any key, the last keys of the slice are those of the queries' own tokens.
"""

from __future__ import annotations


class Full:
    """Every query sees every key."""

    def find_keys(self, queries: slice) -> slice:
        """Find the slice of the keys that some of these queries see."""
        return slice(None)

    def count_keys(self, queries: int, keys: int) -> int:
        """Count the keys that the first query of a slice sees; each later query sees one more, if there is one."""
        return keys


class Causal(Full):
    """A query sees its own key and those before it."""

    def find_keys(self, queries: slice) -> slice:
        return slice(queries.stop)

    def count_keys(self, queries: int, keys: int) -> int:
        return keys - queries + 1
