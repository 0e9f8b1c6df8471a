"""Communicators: ten verbs, three worlds (MPI, threads of one process, dry), and the ledger that counts.

communicator  ranks that send each other arrays (communicator.py, group.py), in three worlds (mpi/, threads.py, dry.py)
verb          bcast, reduce and so on: it gives a Pending, which is waited for (pending.py, collectives/)
ledger        what a rank has received and computed (ledger.py, trace.py, workspace.py)

`world()` is the communicator that comm=None means: the one of pdla.run or pdla.dry_run inside those, else MPI's world.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from pdla.comm.communicator import Communicator
from pdla.errors import GridError

current_world: ContextVar[Communicator | None] = ContextVar("pdla_world", default=None)


def world() -> Communicator:
    """The communicator over all ranks. The first call under MPI is collective. Raises NoMPIError without an MPI."""
    here = current_world.get()
    if here is not None:
        return here
    from pdla.comm.mpi import libmpi
    from pdla.comm.mpi.attach import attach

    return attach(libmpi.MPI.COMM_WORLD)


def as_communicator(comm: Any) -> Communicator:
    """A pdla communicator from None (the world), one of pdla's own, or one of mpi4py's (duplicated once, collectively)."""
    if comm is None:
        return world()
    if isinstance(comm, Communicator):
        return comm
    if hasattr(comm, "Get_rank"):
        from pdla.comm.mpi.attach import attach

        return attach(comm)
    raise GridError(f"{comm!r} is not a communicator: give None, an mpi4py communicator or one of pdla's")


def from_fortran(handle: int) -> Communicator:
    """A pdla communicator from an MPI communicator as Fortran, or C's MPI_Comm_c2f, names it. Collective the first time."""
    from pdla.comm.mpi import libmpi
    from pdla.comm.mpi.attach import attach

    libmpi.check_running()
    return attach(libmpi.MPI.Comm.f2py(handle))


def abort_on_exception() -> None:
    """From here on an uncaught exception on one rank ends the whole MPI job, its traceback printed; one line in a program.

    Without it the other ranks wait for that rank until PDLA_TIMEOUT; so they do for one that calls sys.exit, which is no error.
    Needed under MPI only; raises NoMPIError without one.
    """
    from pdla.comm.mpi import abort

    abort.abort_on_exception()
