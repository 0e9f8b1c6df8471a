"""Transports of devices' arrays, in order of preference, and the choice of one for a communicator.

To add one, write a file with a function like `by_mpi`, and a line in `TRANSPORTS`.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from pdla import config
from pdla.array import namespace
from pdla.comm.mpi import nccl
from pdla.errors import DeviceError

SIZES = (1, 1 << 20)  # elements of the probe's messages, float64: some MPIs fail only on long ones
PATIENCE = 120.0  # seconds for the probe, which imports CuPy and starts MPI


class Transport(NamedTuple):
    """One transport.

    use(comm, required) is collective and returns the same on every rank. It returns the communicator to
    use in place of comm, and a note for the log; or None, and the reason.

    required  whether PDLA_GPU_MPI names this transport, so that the log needs no note
    """

    name: str  # the value of PDLA_GPU_MPI that requires it
    absence: str  # the note for the log if it does not work
    use: Callable[[Any, bool], tuple[Any, str]]


def by_nccl(comm: Any, required: bool) -> tuple[Any, str]:
    """Collective: use NCCL, from device to device."""
    made, fault = nccl.make_communicator(comm)
    if made is not None:
        wrong, fault = nccl.try_call(comm, partial(_find_wrong_verbs, made))
        fault = next(filter(None, comm.share(wrong or fault)), "")
    return (None, fault) if fault else (made, "arrays go by NCCL")


def by_mpi(comm: Any, required: bool) -> tuple[Any, str]:
    """Collective: use an MPI that takes device memory; unless required, first probe whether it does.

    A new process on each node sends device arrays to itself: if it crashes, no rank does. Then all
    ranks broadcast, sum, gather and shift arrays and check the results, as some MPIs deliver zeros.
    """
    comm.staged = False
    if required:
        return comm, ""
    first = comm.homes.index(comm.homes[comm.rank]) == comm.rank
    fault = next(filter(None, comm.share(_probe_alone() if first else "")), "")
    if not fault:
        fault = next(filter(None, comm.share(_find_wrong_verbs(comm))), "")
    return (None, fault) if fault else (comm, "this MPI takes device memory")


def through_host(comm: Any, required: bool) -> tuple[Any, str]:
    """Use pinned memory of the host (staging.py)."""
    comm.staged = True
    return comm, "" if required else "arrays go through the host"


TRANSPORTS = (
    Transport("nccl", "no NCCL here", by_nccl),
    Transport("on", "this MPI takes no device memory", by_mpi),
    Transport("off", "", through_host),
)


def connect(comm: Any) -> Any:
    """Collective: choose the communicator to use in place of comm for devices' arrays, by PDLA_GPU_MPI.

    The result is comm itself, or a communicator over its ranks with another transport. Raise
    DeviceError, on every rank, if the required transport does not work.
    """
    if comm.xp.name != "cupy":
        return comm
    chosen = config.settings.gpu_mpi
    for transport in TRANSPORTS:
        if chosen in ("auto", transport.name):
            made, note = transport.use(comm, chosen == transport.name)
            if made is None and chosen == transport.name:
                raise DeviceError(f"PDLA_GPU_MPI={chosen}, but {note}: auto takes another transport then")
            if note and comm.rank == 0:
                logging.getLogger("pdla").info("%s", note if made is not None else f"{transport.absence} ({note})")
            if made is not None:
                return made
    raise DeviceError(f"PDLA_GPU_MPI={chosen}: no transport of this name")


@cache
def _probe_alone() -> str:
    """Run the probe, a new process that sends device arrays to itself; return why it failed, or "".

    A process runs it once, as it takes seconds.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(config.LAUNCHERS)}
    environ |= {"PDLA_GPU_MPI": "on", "PDLA_ARRAY": "cupy"}  # this process may have these settings from elsewhere
    command = [sys.executable, "-m", "pdla.comm.mpi.transport"]
    try:
        done = subprocess.run(command, env=environ, timeout=PATIENCE, text=True, capture_output=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the probe: {error}"
    return f"the probe ended with {done.returncode}: {' '.join(done.stderr.split()[-8:])}" if done.returncode else ""


def _find_wrong_verbs(comm: Any) -> str:
    """Collective: name the verbs by which this rank received wrong data; "" for none."""
    wrong, rank, ranks = [], comm.rank, range(comm.size)
    for size in SIZES:
        sent = [np.arange(size) * 3.0 + 1 + r for r in ranks]
        x, total, shifted, all_ = (comm.xp.asarray(sent[rank]) for _ in range(4))
        parts = [all_ if r == rank else comm.xp.asarray(0 * sent[r]) for r in ranks]
        expected = {  # shift first, in which every rank sends: a rank that cannot send fails before others wait for it
            "shift": (comm.shift(comm.xp.asarray(sent[rank]), shifted), sent[rank - 1]),
            "bcast": (comm.bcast(x, comm.size - 1), sent[-1]),
            "allreduce": (comm.allreduce(total), sum(sent)),
        }
        found = {verb: (pending.wait(), sent_data) for verb, (pending, sent_data) in expected.items()}
        found |= {f"allgather from {r}": (part, sent[r]) for r, part in enumerate(comm.allgather(all_, parts).wait())}
        wrong += [f"{verb} of {size}" for verb, (came, sent_data) in found.items() if not _is_same(came, sent_data)]
    return ", ".join(wrong)


def _is_same(came: Any, wanted: np.ndarray) -> bool:
    return bool((came == namespace(came).asarray(wanted)).all())


def _probe() -> int:
    """Send device arrays to this process itself, as the probe; return the exit status."""
    from pdla.comm import world

    comm: Any = world()
    for size in SIZES:
        sent = np.arange(size) + 1.0
        x, out = comm.xp.asarray(sent), comm.xp.asarray(0 * sent)
        coming, going = comm.recv(out, comm.rank), comm.send(x, comm.rank)
        coming.wait()
        going.wait()
        if not _is_same(out, sent):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(_probe())
