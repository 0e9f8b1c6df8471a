"""The only import of mpi4py, and the state of the MPI that it has found."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading

from pdla import config
from pdla.errors import NoMPIError

# The import starts MPI, which waits for all ranks; one of them may have ended already. Python's
# threads do not run meanwhile, so faulthandler watches it.
_starts_mpi = bool(config.settings.timeout) and "mpi4py.MPI" not in sys.modules  # else the program's own timer keeps running
if _starts_mpi:
    faulthandler.dump_traceback_later(min(config.settings.timeout, threading.TIMEOUT_MAX), exit=True, file=2)
try:
    import mpi4py
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # mpi4py missing; mpi4py without a libmpi
    raise NoMPIError(
        f"no MPI here ({error}): `pip install pdla[mpich]` installs one; pdla.run(P, program) needs none"
    ) from error
finally:
    if _starts_mpi:
        faulthandler.cancel_dump_traceback_later()

_forked = False


def _note_fork() -> None:
    global _forked
    _forked = MPI.Is_initialized()


os.register_at_fork(after_in_child=_note_fork)


def is_forked() -> bool:
    """Whether this process was forked from a rank; it is no rank then."""
    return _forked


def check_not_forked() -> None:
    """Raise NoMPIError in a process forked from a rank: it would take the rank's messages and write to its shared memory."""
    if _forked:
        raise NoMPIError(
            f"this process was forked from rank {MPI.COMM_WORLD.Get_rank()}, and is no rank itself: let that rank do what needs "
            "others; pdla.run(P, program) and pdla.dry_run work here, too"
        )


def version() -> dict[str, str]:
    """Return the names and versions of this MPI and mpi4py; not collective."""
    version = ".".join(map(str, MPI.Get_version()))
    return {"library": MPI.Get_library_version().strip("\0\n "), "standard": version, "mpi4py": mpi4py.__version__}


def is_running() -> bool:
    """Whether MPI is initialised, and not finalised yet."""
    return MPI.Is_initialized() and not MPI.Is_finalized()


def check_running() -> None:
    """Raise NoMPIError before MPI is initialised, after it is finalised, and in a process forked from a rank."""
    if _forked or not MPI.Is_initialized() or MPI.Is_finalized():
        check_not_forked()
        raise NoMPIError("MPI is not running: call pdla after MPI_Init and before MPI_Finalize")


def is_first() -> bool:
    """Whether this is the first rank of the job."""
    return MPI.COMM_WORLD.Get_rank() == 0
