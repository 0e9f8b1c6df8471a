"""A cache, in a communicator or a grid, of values that follow from layouts alone, such as routes and scripts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

MOST = 128  # values, or plans, that a communicator keeps


def find_or_make(home: Any, key: Hashable, make: Callable[[], Any], good: Callable[[Any], bool] | None = None) -> Any:
    """Find the value that this rank made for this key earlier, if it is still good; else make it.

    `home`, a communicator or a grid, keeps the MOST values used last as long as it lives.

    `make` may be collective if the calls are: then all ranks make, find and drop the same values.
    """
    found = vars(home).setdefault("_kept", {})
    made = found.pop(key, None)
    found[key] = made = make() if made is None or not (good is None or good(made)) else made
    while len(found) > MOST:
        del found[next(iter(found))]
    return made
