"""Workspace: buffers that one call gives back and the next one takes again, so that a plan run many times allocates once.

New memory costs more than the copies that a product makes: the system clears every page of it. A
buffer goes back when the last view of it is gone, wherever that happens; nothing has to be freed by
hand.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextvars import ContextVar, Token
from math import inf, prod
from typing import Any

import numpy as np

from pdla.array.numpy import give_back

_ALIGN = 64
KEPT = 64 * 2**20  # bytes that calls without a plan keep for the next one: with none 1000 x 1000 on 4 ranks takes 2.5 times as long
LARGE = 2**20  # bytes of an array for which a workspace without spare has the allocator give back what it keeps
SPARE = 16 * 2**20  # bytes that may be kept for the next run beyond the peak of what was in use at once


def align(size: int) -> int:
    """`size` bytes, rounded up to whole cache lines."""
    return -(-size // _ALIGN) * _ALIGN


class Workspace:
    """Memory of one rank for reuse, by size and, on a device, by the stream whose work used it.

    Work on other streams does not wait until that is done. `held` counts its bytes, in use or not;
    `used` those in use, `peak` the most at once.

    Before it would hold more than `most` bytes (inf: more than the peak, which is what plans
    foretell, and `spare`) it frees memory that is not in use; a later call allocates it again.
    """

    held: int
    used: int
    peak: int
    most: float
    spare: int

    def __init__(self, spare: int = SPARE) -> None:
        self.held, self.used, self.peak, self.most, self.spare = 0, 0, 0, inf, spare
        self._free: dict[tuple[int, int], list[Any]] = {}

    def take(self, xp: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array over memory that is not in use; over new memory, where there is none of its size."""
        size = align(prod(shape) * np.dtype(dtype).itemsize)
        kind = size, xp.lane()
        spare = self._free.setdefault(kind, [])
        if spare:
            memory = spare.pop()
        else:
            self._make_room(size)
            memory = xp.memory(size)
            self.held += size
        self._use(size)
        x = xp.over(memory, shape, dtype)
        weakref.finalize(x if x.base is None else x.base, self._give_back, memory, kind)
        return x

    def count(self, x: Any) -> None:
        """Count an array that was made elsewhere, for as long as it or any view of it lives."""
        self.hold(x.nbytes)
        weakref.finalize(x if x.base is None else x.base, self.hold, -x.nbytes)

    def hold(self, change: int) -> None:
        """Count so many bytes more that are in use elsewhere, or fewer; before there are more, make room for them."""
        if change > 0:
            self._make_room(change)
        self.held += change
        self._use(change)

    def _make_room(self, size: int) -> None:
        most = max(self.peak, self.used + size) + self.spare if self.most == inf else self.most
        self.trim(most - size)
        if not self.spare and size >= LARGE:
            give_back()

    def _use(self, size: int) -> None:
        self.used += size
        self.peak = max(self.peak, self.used)

    def _give_back(self, memory: Any, kind: tuple[int, int]) -> None:
        self._free[kind].append(memory)
        self.used -= kind[0]

    def trim(self, keep: float) -> None:
        """Free memory that is not in use, largest pieces first, until no more than `keep` bytes are held."""
        for kind in sorted(self._free, reverse=True):
            while self._free[kind] and self.held > keep:
                self._free[kind].pop()
                self.held -= kind[0]


_open: ContextVar[Workspace | None] = ContextVar("pdla_workspace", default=None)


find_workspace: Callable[[], Workspace | None] = _open.get  # the workspace that buffers of this rank come from, if any


def choose_workspace() -> Workspace:
    """The workspace of a call with a memory limit, if one is open; else a new one."""
    workspace = find_workspace()
    return Workspace() if workspace is None or workspace.spare else workspace


class within:
    """Take this rank's buffers from a workspace for the length of a with-block."""

    __slots__ = ("token",)

    def __init__(self, workspace: Workspace) -> None:
        self.token: Token[Workspace | None] = _open.set(workspace)

    def __enter__(self) -> None: ...

    def __exit__(self, *failure: object) -> None:
        _open.reset(self.token)
