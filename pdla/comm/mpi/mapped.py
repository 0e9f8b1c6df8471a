"""Memory that the ranks of one node share: each rank maps the same file, whose name has been removed.

Ranks need not free it together, unlike an MPI window. A rank's map ends with the last array over it,
and the system frees the memory with the last map.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from errno import EMFILE, ENOSPC
from pathlib import Path
from typing import TypeVar

import numpy as np

from pdla.comm.communicator import Communicator
from pdla.comm.mpi.node import SHARED, count_free_bytes
from pdla.cuts import block_bounds
from pdla.errors import PdlaError

T = TypeVar("T")
_ALONE = os.O_RDWR | os.O_CREAT | os.O_EXCL


def map_memory(comm: Communicator, size: int) -> np.ndarray:
    """Collective: map memory of `size` bytes that all ranks of comm, which are on one node, see.

    Raise PdlaError, on every rank, if there is not enough memory.
    """
    size = max(size, 1)  # an empty file cannot be mapped
    first, path = comm.rank == 0, comm.share(f"{SHARED}/pdla-{os.getpid()}-{secrets.token_hex(8)}")[0]
    with ExitStack() as ends:
        try:
            _run_on_all(comm, size, lambda: os.close(os.open(path, _ALONE, 0o600)) if first else None)
            file = _run_on_all(comm, size, lambda: _open(path, size, ends))
        finally:
            if first:  # by now every rank has opened the file or failed; this one may have failed before it made the file
                Path(path).unlink(missing_ok=True)
        _run_on_all(comm, size, lambda: _allocate(file, *block_bounds(size, comm.size, comm.rank)))
        return _run_on_all(comm, size, lambda: np.frombuffer(mmap.mmap(file, size), np.uint8))


def _open(path: str, size: int, ends: ExitStack) -> int:
    """Open the file if there is room for all of it; else ranks would take all memory before they fail."""
    file = os.open(path, os.O_RDWR)
    ends.callback(os.close, file)
    if count_free_bytes() < size:
        raise OSError(ENOSPC, os.strerror(ENOSPC))
    return file


def _allocate(file: int, start: int, stop: int) -> None:
    if start < stop:
        os.posix_fallocate(file, start, stop - start)


def _run_on_all(comm: Communicator, size: int, step: Callable[[], T]) -> T:
    """Collective: run `step` on this rank; an OSError on one rank raises PdlaError on all."""
    fault, result = "", None
    try:
        result = step()
    except OSError as error:
        advice = ": each such matrix keeps one open, up to `ulimit -n`" if error.errno == EMFILE else ""
        fault = f"{error.strerror} (rank {comm.rank}){advice}"
    if faults := [text for text in comm.share(fault) if text]:
        raise PdlaError(
            f"{size} bytes of shared memory: {faults[0]}; enlarge {SHARED}, leave out .shared(), or "
            "set PDLA_SHARED=0"
        )
    return result  # type: ignore[return-value]
