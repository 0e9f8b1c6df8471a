"""How arrays travel over MPI: out of and into memory without gaps, the host's or, where MPI takes it, a device's.

Where it does not, a device's arrays go through pinned memory of the host, which the device reads and writes itself: one launch
packs all messages of a round. MPI is given nothing that a device may still work on.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from pdla import config
from pdla.array import namespace
from pdla.comm.base import Array
from pdla.comm.ledger import buffer

SIZES = (1, 1 << 20)  # of the probe's messages, in float64: some MPIs go wrong with long ones only
PATIENCE = 120.0  # seconds for a process that imports CuPy and starts MPI
LAUNCHERS = (
    "PMI", "PRTE_", "HYDI", "HYDRA", "MPI_LOCAL", "MPIEXEC", "SLURM", "PALS",
    "OMPI_COMM", "OMPI_UNIVERSE", "OMPI_MCA_ess", "OMPI_MCA_orte", "MV2_COMM",
)  # fmt: skip


def landing(out: Array, aware: bool) -> Array:
    """Where out's elements arrive, nobody using it any more: out itself, or memory without gaps that MPI writes to."""
    xp = namespace(out)
    xp.finish()
    if xp.name == "cupy" and not aware:
        return xp.pinned(out.shape, out.dtype)
    return out if xp.contiguous(out) else buffer(xp, out.shape, out.dtype)


def packed(arrays: Sequence[Array], aware: bool) -> list[Array]:
    """The same elements without gaps, for MPI to read."""
    boxes = [landing(x, aware) for x in arrays]
    copied = [(box, x) for box, x in zip(boxes, arrays, strict=True) if box is not x]
    if copied:
        xp = namespace(copied[0][1])
        xp.copies(copied)
        xp.finish()
    return boxes


# ---------------------------------------------------------------------------------------------- whether MPI takes device memory


def aware(comm: Any) -> bool:
    """Collective: whether to give MPI device memory: as PDLA_GPU_MPI says, or as a probe finds.

    A process on each node sends device arrays to itself: there a crash harms nobody. Then all ranks broadcast, sum, gather and
    shift some, and compare what has come: some MPIs bring zeros.
    """
    if comm.xp.name != "cupy" or config.settings.gpu_mpi != "auto":
        return comm.xp.name == "cupy" and config.settings.gpu_mpi == "on"
    first = comm.homes.index(comm.homes[comm.rank]) == comm.rank
    fault = next(filter(None, comm.share(_alone() if first else "")), "")
    if not fault:
        comm.aware = True
        fault = next(filter(None, comm.share(_together(comm))), "")
    if comm.rank == 0:
        verdict = f"takes no device memory ({fault}): arrays go through the host" if fault else "takes device memory"
        logging.getLogger("pdla").info("this MPI %s", verdict)
    return not fault


def _alone() -> str:
    """What a process of its own dies of, sending device arrays to itself; empty: nothing."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    command = [sys.executable, "-m", "pdla.comm.device"]
    try:
        done = subprocess.run(command, env=environ | {"PDLA_GPU_MPI": "on"}, timeout=PATIENCE, text=True, capture_output=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the probe: {error}"
    return f"the probe ended with {done.returncode}: {' '.join(done.stderr.split()[-8:])}" if done.returncode else ""


def _together(comm: Any) -> str:
    """Collective: which verbs bring this rank something else than was sent, in words."""
    wrong, rank, ranks = [], comm.rank, range(comm.size)
    for size in SIZES:
        sent = [np.arange(size) * 3.0 + 1 + r for r in ranks]
        x, total, shifted, all_ = (comm.xp.asarray(sent[rank]) for _ in range(4))
        parts = [all_ if r == rank else comm.xp.asarray(0 * sent[r]) for r in ranks]
        expected = {
            "bcast": (comm.bcast(x, comm.size - 1), sent[-1]),
            "allreduce": (comm.allreduce(total), sum(sent)),
            "shift": (comm.shift(comm.xp.asarray(sent[rank]), shifted), sent[rank - 1]),
        }
        found = {verb: (pending.wait(), wanted) for verb, (pending, wanted) in expected.items()}
        found |= {f"allgather from {r}": (part, sent[r]) for r, part in enumerate(comm.allgather(all_, parts).wait())}
        wrong += [f"{verb} of {size}" for verb, (came, wanted) in found.items() if not _same(came, wanted)]
    return ", ".join(wrong)


def _same(came: Any, wanted: np.ndarray) -> bool:
    return bool((came == namespace(came).asarray(wanted)).all())


def _probe() -> int:
    """What a process of its own does: send device arrays to itself; the exit status."""
    from pdla.comm import world

    comm: Any = world()
    for size in SIZES:
        sent = np.arange(size) + 1.0
        x, out = comm.xp.asarray(sent), comm.xp.asarray(0 * sent)
        coming, going = comm.recv(out, comm.rank), comm.send(x, comm.rank)
        coming.wait()
        going.wait()
        if not _same(out, sent):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(_probe())
