"""The word after a count: one thing, or several."""

from __future__ import annotations


def plural(count: int, one: str, several: str = "") -> str:
    """`one` where the count is 1, else `several`; without it, `one` with an s."""
    return one if count == 1 else several or f"{one}s"
