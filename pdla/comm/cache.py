"""Keeps with a communicator, or a grid, what follows from layouts alone, such as routes and scripts, for later calls with them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

MOST = 128  # values kept with a communicator, and plans


def find_or_make(home: Any, key: Hashable, make: Callable[[], Any], good: Callable[[Any], bool] | None = None) -> Any:
    """What this rank made for this key at an earlier call, if it is still good, or makes now.

    The MOST used last are kept, as long as the communicator or the grid lives that is their home.

    `make` may be collective if the calls are: then all ranks make, find and drop the same.
    """
    found = vars(home).setdefault("_kept", {})
    made = found.pop(key, None)
    found[key] = made = make() if made is None or not (good is None or good(made)) else made
    while len(found) > MOST:
        del found[next(iter(found))]
    return made
