"""Workspace: buffers that a call gives back and the next one takes again, so that a plan run many times allocates once.

New memory costs more than the multiplication's copies: the system clears every page of it. A buffer goes back when the last
view of it is gone, wherever that happens; nothing has to be freed by hand.
"""

from __future__ import annotations

import weakref
from contextvars import ContextVar
from math import inf, prod
from typing import Any

import numpy as np

_ALIGN = 64


def aligned(size: int) -> int:
    """So many bytes, rounded up to whole cache lines."""
    return -(-size // _ALIGN) * _ALIGN


class Workspace:
    """Memory of one rank for reuse, by size. `held` counts its bytes, in use or not.

    `most`: before it would hold more than so many, it lets go of what is not in use, and a later call allocates that again.
    """

    def __init__(self) -> None:
        self.held, self.most = 0, inf
        self._free: dict[int, list[Any]] = {}

    def take(self, xp: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array over memory that nobody uses, fresh where there is none of its size."""
        size = aligned(prod(shape) * np.dtype(dtype).itemsize)
        spare = self._free.setdefault(size, [])
        if spare:
            memory = spare.pop()
        else:
            self.trim(self.most - size)
            memory = xp.memory(size)
            self.held += size
        x = xp.over(memory, shape, dtype)
        weakref.finalize(x if x.base is None else x.base, spare.append, memory)
        return x

    def count(self, x: Any) -> None:
        """Count an array that was made elsewhere, for as long as it or any view of it lives."""
        self.trim(self.most - x.nbytes)
        self.held += x.nbytes
        weakref.finalize(x if x.base is None else x.base, self._uncount, x.nbytes)

    def _uncount(self, size: int) -> None:
        self.held -= size

    def trim(self, keep: float) -> None:
        """Let go of memory not in use, largest first, until no more than `keep` bytes are held."""
        for size in sorted(self._free, reverse=True):
            while self._free[size] and self.held > keep:
                self._free[size].pop()
                self.held -= size


_open: ContextVar[Workspace | None] = ContextVar("pdla_workspace", default=None)


def opened() -> Workspace | None:
    """The workspace that buffers of this rank come from, if any."""
    return _open.get()


class within:
    """Take this rank's buffers from a workspace for the length of a with-block."""

    __slots__ = ("token",)

    def __init__(self, workspace: Workspace) -> None:
        self.token = _open.set(workspace)

    def __enter__(self) -> None: ...

    def __exit__(self, *failure: object) -> None:
        _open.reset(self.token)
