"""Facts about a job: machine, MPI, BLAS, threads, cores, and how ranks wait."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pdla
from pdla.array import cores, namespace

NAP = 0.2  # seconds that rank 0 keeps the others waiting
POLLS = 0.5  # share of the usable cores from which waiting ranks count as polling


def facts(comm: pdla.Communicator, world: str) -> dict[str, Any]:
    """Collective: at rank 0, the facts for the JSON; {} elsewhere. `world`: mpi, threads or dry."""
    here = (platform.node(), tuple(sorted(os.sched_getaffinity(0))))
    everyone = [here] if world == "dry" else comm.share(here)
    if comm.rank:
        return {}
    hosts = [host for host, _ in everyone]
    machine = {
        "hosts": len(set(hosts)),
        "host": here[0],
        "processor": processor(),
        "system": platform.platform(),
        "cores": cores.usable(len({core for host, bound in everyone if host == here[0] for core in bound})),
        "cores_a_rank": cores.usable(),
        "ranks_a_host": max(hosts.count(host) for host in set(hosts)),
    }
    return {"machine": machine, "mpi": _mpi() if world == "mpi" else None, "blas": _blas(), "versions": _versions()}


def is_oversubscribed(known: dict[str, Any]) -> bool:
    """Whether the ranks of a host outnumber its cores."""
    return known["machine"]["ranks_a_host"] > known["machine"]["cores"]


def _mpi() -> dict[str, str]:
    from pdla.comm.mpi import libmpi

    return libmpi.version()


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _blas() -> list[dict[str, Any]]:
    """The BLAS libraries and their threads: NumPy's, and SciPy's or PDLA_BLAS's, which the first product loads."""
    from threadpoolctl import threadpool_info

    one = np.ones((1, 1))
    namespace(one).gemm(one, one, one.copy())
    names = ("internal_api", "version", "num_threads", "architecture")
    pools = (pool for pool in threadpool_info() if pool["user_api"] == "blas")
    return [{name: pool.get(name) for name in names} for pool in pools]


def _versions() -> dict[str, str | None]:
    import scipy

    return {
        "pdla": pdla.__version__,
        "commit": _commit(Path(pdla.__file__).parents[1]),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def _commit(folder: Path) -> str | None:
    """A checkout's commit, with "-dirty" for changed files; None outside a checkout."""
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--match=", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


# ---------------------------------------------------------------------------------------------- how ranks wait


def measure_waits(comm: pdla.Communicator, world: str) -> dict[str, float]:
    """Collective: the share of the usable cores that ranks use while they wait for rank 0, by way of waiting."""
    ways: dict[str, Callable[[], None]] = {"pdla": comm.barrier}
    if world == "mpi":
        ways["MPI_Barrier"] = comm.mpi.Barrier  # type: ignore[attr-defined]
    return {way: _measure_share(comm, wait) for way, wait in ways.items()} if comm.size > 1 else {}


def _measure_share(comm: pdla.Communicator, wait: Callable[[], None]) -> float:
    """Collective: CPU time over wall time of waiting ranks on rank 0's host, per core that they could use."""
    comm.barrier()
    if comm.rank == 0:
        time.sleep(NAP)
    wall, cpu = time.perf_counter(), time.thread_time()
    wait()
    share = (time.thread_time() - cpu) / max(time.perf_counter() - wall, 1e-9) if comm.rank else 0.0
    said = comm.share((platform.node(), share))
    here = [share for rank, (host, share) in enumerate(said) if rank and host == said[0][0]]
    return sum(here) / min(len(here), cores.usable()) if here else 0.0
