"""Memory that the ranks of one node have in common: each maps a file that has no name any more.

Nobody has to free it together with the others, as a window of MPI's: a rank's part in it ends with the last array over it, and
the memory with the last rank's.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from errno import ENOSPC
from typing import TypeVar

import numpy as np

from pdla.comm.base import Communicator
from pdla.comm.node import SHARED, room
from pdla.cuts import block_bounds
from pdla.errors import PdlaError

T = TypeVar("T")
_ALONE = os.O_RDWR | os.O_CREAT | os.O_EXCL


def mapped(comm: Communicator, size: int) -> np.ndarray:
    """Collective over comm, all on one node: so many bytes, or PdlaError on every rank.

    Each rank asks for its part of them, in order: pages lie near who asks, and what is not there is told of at once, not by a
    signal to whoever writes to it. By then the file has no name: a rank that is killed leaves nothing behind.
    """
    size = max(size, 1)  # there are no maps of nothing
    first, path = comm.rank == 0, comm.share(f"{SHARED}/pdla-{os.getpid()}-{secrets.token_hex(8)}")[0]
    _together(comm, size, lambda: os.close(os.open(path, _ALONE, 0o600)) if first else None)
    with ExitStack() as ends:
        try:
            file = _together(comm, size, lambda: _opened(path, size, ends))
        finally:
            if first:  # all have it open, or have failed
                os.unlink(path)
        _together(comm, size, lambda: _take(file, *block_bounds(size, comm.size, comm.rank)))
        return _together(comm, size, lambda: np.frombuffer(mmap.mmap(file, size), np.uint8))


def _opened(path: str, size: int, ends: ExitStack) -> int:
    """The file, where there is room for all of it: what was half taken would be missed elsewhere."""
    file = os.open(path, os.O_RDWR)
    ends.callback(os.close, file)
    if room() < size:
        raise OSError(ENOSPC, os.strerror(ENOSPC))
    return file


def _take(file: int, start: int, stop: int) -> None:
    if start < stop:
        os.posix_fallocate(file, start, stop - start)


def _together(comm: Communicator, size: int, step: Callable[[], T]) -> T:
    """Collective: what a step gives this rank; the system's error on one rank is an error on all."""
    fault, made = "", None
    try:
        made = step()
    except OSError as error:
        fault = f"{error.strerror} (rank {comm.rank})"
    if faults := [said for said in comm.share(fault) if said]:
        raise PdlaError(
            f"{size} bytes of memory in common: {faults[0]}; it is taken of {SHARED}: make that larger, leave out .shared(), or "
            "set PDLA_SHARED=0"
        )
    return made  # type: ignore[return-value]
