"""Workspace: buffers that calls reuse, so that a plan run many times allocates once.

New memory costs more than the copies that a product makes: the system clears every page of it. A
buffer returns to the workspace with its last view; callers free nothing by hand.
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
KEPT = 64 * 2**20  # bytes kept between calls without a plan: with none 1000 x 1000 on 4 ranks takes 2.5 times as long
LARGE = 2**20  # bytes of an array for which a workspace without spare makes the allocator release its free memory
SPARE = 16 * 2**20  # bytes kept for the next run beyond the peak of bytes in use


def align(size: int) -> int:
    """Round `size` bytes up to whole cache lines."""
    return -(-size // _ALIGN) * _ALIGN


class Workspace:
    """Memory of one rank for reuse, by size and, on a device, by the stream whose work used it.

    Work on other streams does not wait for that work. `held` counts all bytes, `used` the bytes in
    use, and `peak` is the largest `used` so far.

    A workspace frees unused memory before it would hold more than `most` bytes; a later call
    allocates it again. With `most` inf the limit is the peak, which plans predict, plus `spare`.
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
        """Take an array over unused memory, or over new memory if none of its size is unused."""
        size = align(prod(shape) * np.dtype(dtype).itemsize)
        key = size, xp.lane()
        unused = self._free.setdefault(key, [])
        if unused:
            memory = unused.pop()
        else:
            self._make_room(size)
            memory = xp.memory(size)
            self.held += size
        self._use(size)
        x = xp.view_memory(memory, shape, dtype)
        weakref.finalize(x if x.base is None else x.base, self._give_back, memory, key)
        return x

    def count(self, x: Any) -> None:
        """Count an array that other code allocated, while it or any view of it lives."""
        self.hold(x.nbytes)
        weakref.finalize(x if x.base is None else x.base, self.hold, -x.nbytes)

    def hold(self, change: int) -> None:
        """Count `change` more bytes, or fewer, that other code uses; first make room for them."""
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

    def _give_back(self, memory: Any, key: tuple[int, int]) -> None:
        self._free[key].append(memory)
        self.used -= key[0]

    def trim(self, keep: float) -> None:
        """Free unused memory, largest pieces first, until at most `keep` bytes are held."""
        for key in sorted(self._free, reverse=True):
            while self._free[key] and self.held > keep:
                self._free[key].pop()
                self.held -= key[0]


_open: ContextVar[Workspace | None] = ContextVar("pdla_workspace", default=None)


find_workspace: Callable[[], Workspace | None] = _open.get  # the workspace of this rank's buffers, if any


def choose_workspace() -> Workspace:
    """Choose the open workspace if it belongs to a call with a memory limit; else make a new one."""
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
