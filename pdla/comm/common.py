"""Memory that the ranks of one node have in common: each maps a file that has no name any more.

Nobody has to free it together with the others, as a window of MPI's: a rank's part in it ends with the last array over it, and
the memory with the last rank's.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from errno import ENOSPC

import numpy as np

from pdla.comm.base import Communicator
from pdla.comm.node import SHARED
from pdla.cuts import block_bounds
from pdla.errors import PdlaError

_ALONE = os.O_RDWR | os.O_CREAT | os.O_EXCL


def mapped(comm: Communicator, size: int) -> np.ndarray:
    """Collective over comm, all on one node: so many bytes, or PdlaError on every rank.

    Each rank asks for its part of them, in order: pages lie near who asks, and what is not there is told of at once, not by a
    signal to whoever writes to it. By then the file has no name: a rank that is killed leaves nothing behind.
    """
    size = max(size, 1)  # there are no maps of nothing
    path = comm.share(f"{SHARED}/pdla-{os.getpid()}-{secrets.token_hex(8)}")[0]
    start, stop = block_bounds(size, comm.size, comm.rank)
    file, memory = -1, None

    def make() -> None:
        nonlocal file
        if comm.rank == 0:
            file = os.open(path, _ALONE, 0o600)

    def find() -> None:
        nonlocal file
        file = file if comm.rank == 0 else os.open(path, os.O_RDWR)
        room = os.fstatvfs(file)
        if room.f_bavail * room.f_frsize < size:  # before anyone takes of it: what is half taken would be missed elsewhere
            raise OSError(ENOSPC, os.strerror(ENOSPC))

    def take() -> None:
        if start < stop:
            os.posix_fallocate(file, start, stop - start)

    def see() -> None:
        nonlocal memory
        memory = np.frombuffer(mmap.mmap(file, size), np.uint8)

    try:
        try:
            for step in (make, find):
                _together(comm, size, step)
        finally:
            if comm.rank == 0:  # all have it open, or have failed
                with suppress(OSError):
                    os.unlink(path)
        for step in (take, see):
            _together(comm, size, step)
        assert memory is not None
        return memory
    finally:
        if file >= 0:
            os.close(file)


def _together(comm: Communicator, size: int, step: Callable[[], None]) -> None:
    """Collective: a step of every rank; the system's error on one is an error on all."""
    fault = ""
    try:
        step()
    except OSError as error:
        fault = f"{error.strerror} (rank {comm.rank})"
    if faults := [said for said in comm.share(fault) if said]:
        raise PdlaError(
            f"{size} bytes of memory in common: {faults[0]}; it is taken of {SHARED}: make that larger, leave out .shared(), or "
            "set PDLA_SHARED=0"
        )
