"""mpi4py, the one place that imports it, and which MPI it has found."""

from __future__ import annotations

from pdla.errors import NoMPIError

try:
    import mpi4py
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # mpi4py missing; mpi4py without a libmpi
    raise NoMPIError(
        f"no MPI here ({error}): `pip install pdla[mpich]` brings one; pdla.run(P, program) does without"
    ) from error


def version() -> dict[str, str]:
    """What this MPI and mpi4py call themselves; not collective."""
    version = ".".join(map(str, MPI.Get_version()))
    return {"library": MPI.Get_library_version().strip("\0\n "), "standard": version, "mpi4py": mpi4py.__version__}


def check_running() -> None:
    """Raise NoMPIError before MPI's initialisation and after its end."""
    if not MPI.Is_initialized() or MPI.Is_finalized():
        raise NoMPIError("MPI is not running: call pdla after MPI_Init and before MPI_Finalize")


def first() -> bool:
    """Whether this is the first rank of the job."""
    return MPI.COMM_WORLD.Get_rank() == 0
