"""The files that a command leaves behind."""

from __future__ import annotations

from collections.abc import Callable

import pdla
from pdla.bench.stop import refuse


def leave(path: str | None, write: Callable[[str], object], option: str, comm: pdla.Communicator) -> None:
    """Collective: rank 0 writes what an option asks for; where it cannot, every rank stops."""
    fault = ""
    if path and comm.rank == 0:
        try:
            write(path)
        except OSError as error:
            fault = str(error)
    if path and (fault := comm.share(fault)[0]):
        raise refuse(f"{option} {path}: {fault}")
