"""What ranks have worked out of layouts alone, kept with the communicator for the next call of its kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from pdla import config
from pdla.comm.base import Communicator


def kept(comm: Communicator, key: Hashable, make: Callable[[], Any]) -> Any:
    """What was made for this key at the first call, on this rank. It lives as long as the communicator; the latest PDLA_PLANS do.

    `make` may be collective where calls are: all ranks make, find and drop the same.
    """
    found = vars(comm).setdefault("_kept", {})
    made = found.pop(key, None)
    found[key] = made = make() if made is None else made
    while len(found) > config.settings.plans:
        del found[next(iter(found))]
    return made
