"""Communicators: ten verbs, three worlds (MPI, threads of one process, dry), and the ledger that counts.

communicator  ranks that send each other arrays (communicator.py, group.py), in three worlds (mpi/, threads.py, dry.py)
verb          bcast, reduce and so on: it starts, and returns a Pending to wait for (pending.py, collectives/)
ledger        what a rank has received and computed (ledger.py, trace.py, workspace.py)

comm=None means the communicator `world()`: inside pdla.run or pdla.dry_run theirs, else MPI's world.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from pdla.comm.communicator import Communicator
from pdla.errors import GridError

current_world: ContextVar[Communicator | None] = ContextVar("pdla_world", default=None)


def world() -> Communicator:
    """Find the communicator over all ranks, which `comm=None` means everywhere.

    The first call under MPI is collective.

    Returns
    -------
    Communicator
        Inside `run`, `dry_run` or `dry_run_all` theirs, else MPI's world.

    Raises
    ------
    NoMPIError
        Outside these, if there is no MPI.

    Examples
    --------
    >>> pdla.run(2, lambda comm: pdla.world() is comm)
    [True, True]
    """
    current = current_world.get()
    if current is not None:
        return current
    from pdla.comm.mpi import libmpi
    from pdla.comm.mpi.attach import attach

    return attach(libmpi.MPI.COMM_WORLD)


def as_communicator(comm: Any) -> Communicator:
    """Convert an argument to a pdla communicator.

    Collective at the first call with an mpi4py communicator, which it duplicates.

    Parameters
    ----------
    comm : None, Communicator or mpi4py.MPI.Comm
        None means the world.

    Returns
    -------
    Communicator
        The same one at each call with the same `comm`.

    Raises
    ------
    GridError
        For anything else, on this rank.
    NoMPIError
        For None, if there is no MPI and no world of `run`.

    Examples
    --------
    >>> pdla.run(2, lambda comm: pdla.as_communicator(None).size)
    [2, 2]
    """
    if comm is None:
        return world()
    if isinstance(comm, Communicator):
        return comm
    if hasattr(comm, "Get_rank"):
        from pdla.comm.mpi.attach import attach

        return attach(comm)
    raise GridError(f"{comm!r} is not a communicator: give None, an mpi4py communicator or one of pdla's")


def from_fortran(handle: int) -> Communicator:
    """Convert an MPI communicator, as Fortran or C's MPI_Comm_c2f names it, to pdla's. Collective the first time."""
    from pdla.comm.mpi import libmpi
    from pdla.comm.mpi.attach import attach

    libmpi.check_running()
    return attach(libmpi.MPI.Comm.f2py(handle))


def abort_on_exception() -> None:
    """End the whole MPI job, from here on, if a rank does not catch an exception.

    One rank prints the traceback for all ranks that fail in the same way within half a second, and
    names them. Otherwise the other ranks wait for a failed rank for PDLA_TIMEOUT seconds. A call of
    sys.exit is no error: the others wait for that rank. Not collective; for MPI only.

    Raises
    ------
    NoMPIError
        If there is no MPI.

    Examples
    --------
    >>> pdla.abort_on_exception()  # doctest: +SKIP
    """
    from pdla.comm.mpi import abort

    abort.abort_on_exception()
