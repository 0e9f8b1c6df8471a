"""Keeps with a communicator what follows from layouts alone, such as routes and scripts, for later calls with the same layouts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from pdla.comm.communicator import Communicator

MOST = 128  # values kept with a communicator, and plans


def cached(comm: Communicator, key: Hashable, make: Callable[[], Any]) -> Any:
    """What this rank made for this key at an earlier call, or makes now.

    The MOST used last are kept, as long as the communicator lives.

    `make` may be collective if the calls are: then all ranks make, find and drop the same.
    """
    found = vars(comm).setdefault("_kept", {})
    made = found.pop(key, None)
    found[key] = made = make() if made is None else made
    while len(found) > MOST:
        del found[next(iter(found))]
    return made
