"""A cache, in a communicator or a grid, of values that follow from layouts alone, such as routes and scripts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

MOST = 128  # values, or plans, that a communicator keeps


def find_or_make(owner: Any, key: Hashable, make: Callable[[], Any], is_valid: Callable[[Any], bool] | None = None) -> Any:
    """Find the value that this rank made for this key earlier, if it is still valid; else make it.

    `owner`, a communicator or a grid, keeps the MOST values used last as long as it lives.

    `make` may be collective if the calls are: then all ranks make, find and drop the same values.
    """
    kept = vars(owner).setdefault("_kept", {})
    value = kept.pop(key, None)
    kept[key] = value = make() if value is None or not (is_valid is None or is_valid(value)) else value
    while len(kept) > MOST:
        del kept[next(iter(kept))]
    return value
