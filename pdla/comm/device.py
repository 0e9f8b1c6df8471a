"""How arrays travel over MPI: out of and into memory without gaps, the host's or, where MPI takes it, a device's.

Where it does not, a device's arrays go through pinned memory of the host, which the device reads and writes itself: one launch
packs all short messages of a round; long ones are packed, sent and brought to the other device piece after piece, all three at
the same time. MPI is given nothing that a device may still work on: a piece when the event after its packing has passed, so
that no rank waits for what its device does before.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache, partial
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from pdla import config
from pdla.array import namespace
from pdla.comm.base import Array
from pdla.comm.ledger import buffer
from pdla.comm.rounds import step
from pdla.errors import DeviceError

PIECE = 1 << 20  # bytes of a piece through pinned memory, at least: each is a launch
SIZES = (1, 1 << 20)  # of the probe's messages, in float64: some MPIs go wrong with long ones only
PATIENCE = 120.0  # seconds for a process that imports CuPy and starts MPI


def least(xp: ModuleType, aware: bool) -> int:
    """Bytes of a piece of the long messages of a communicator, whatever they are made of; 0: they travel whole."""
    return PIECE if xp.name == "cupy" and not aware else 0


def gapless(x: Array) -> Array:
    """x, or memory for it that has no gaps."""
    xp = namespace(x)
    return x if xp.contiguous(x) else buffer(xp, x.shape, x.dtype)


# ---------------------------------------------------------------------------------------------- where messages arrive


class Landing:
    """Where a message arrives, in `box`: `out` itself, or memory without gaps, out of which it is brought when it is there."""

    by_piece = False

    def __init__(self, out: Array) -> None:
        self.out, self.box = out, gapless(out)

    def land(self, number: int) -> bool:
        """A piece is in the box, the last to come unless `by_piece`; whether the message is in `out` now."""
        if self.box is not self.out:
            namespace(self.out).land(self.out, self.box)
        return True


class Staged(Landing):
    """The same for a device's array, through pinned memory: rows go on to the device while later ones come."""

    by_piece = True

    def __init__(self, out: Array, after: Any) -> None:
        """after: the event that ends the use of out."""
        self.xp, self.after = namespace(out), after
        self.box = self.xp.pinned(out.shape, out.dtype)
        self.parts = _parts(out, self.box, whole=False)
        self.come: set[int] = set()
        self.landed = 0

    def land(self, number: int) -> bool:
        self.come.add(number)
        while self.landed in self.come:  # pieces may come out of turn
            target, box = self.parts[self.landed]
            self.landed += 1
            self.xp.land(target, box, self.after, self.landed == len(self.parts))
        return self.landed == len(self.parts)


def landings(outs: Sequence[Array], aware: bool) -> list[Landing]:
    """Where messages into arrays arrive that nobody uses any more."""
    made: list[Landing] = []
    after = None
    for out in outs:
        xp = namespace(out)
        if least(xp, aware):
            after = after or xp.mark()
            made.append(Staged(out, after))
        else:
            xp.finish()
            made.append(Landing(out))
    return made


def _parts(x: Array, box: np.ndarray, whole: bool) -> list[tuple[Array, Array]]:
    """Rows of an array and of its box, for each piece those that are complete with it; whole: that all of the piece is in."""
    if namespace(x).contiguous(x):
        x, box = x.reshape(-1), box.reshape(-1)
    length = step(box.nbytes, PIECE)
    if not length:
        return [(x, box)]
    ends = [min(end, box.nbytes) * len(box) for end in range(length, box.nbytes + length + 1, length)]
    rows = [-(-end // box.nbytes) if whole else end // box.nbytes for end in ends]
    return [(x[lo:hi], box[lo:hi]) for lo, hi in pairwise([0, *rows])]


# ---------------------------------------------------------------------------------------------- what is sent


class Packed(NamedTuple):
    """Elements without gaps, for MPI to read: each piece when its event has passed; no events: now."""

    box: Array
    events: Sequence[Any]


def packed(arrays: Sequence[Array], aware: bool) -> list[Packed]:
    """The elements of arrays, all the host's or all of a device."""
    if not arrays:
        return []
    xp = namespace(arrays[0])
    if least(xp, aware):
        return _through_host(xp, arrays)
    boxes = [gapless(x) for x in arrays]
    copied = [(box, x) for box, x in zip(boxes, arrays, strict=True) if box is not x]
    if copied:
        xp.copies(copied)
    xp.finish()
    return [Packed(box, ()) for box in boxes]


def _through_host(xp: ModuleType, arrays: Sequence[Array]) -> list[Packed]:
    boxes = [xp.pinned(x.shape, x.dtype) for x in arrays]
    parts = [_parts(x, box, whole=True) for x, box in zip(arrays, boxes, strict=True)]
    xp.copies([(box, x) for first, *more in parts if not more for x, box in [first]])
    short = xp.mark()

    def event(x: Array, box: np.ndarray) -> Any:
        xp.copies([(box, x)])
        return xp.mark()

    events = [[event(*part) for part in each] if len(each) > 1 else [short] for each in parts]
    return [Packed(box, each) for box, each in zip(boxes, events, strict=True)]


# ---------------------------------------------------------------------------------------------- whether MPI takes device memory


def connected(comm: Any) -> Any:
    """Collective: a communicator that brings devices' arrays as PDLA_GPU_MPI says: comm, or one over it that uses NCCL.

    DeviceError, on every rank, where NCCL is asked for and does not work.
    """
    if comm.xp.name != "cupy":
        return comm
    if config.settings.gpu_mpi in ("auto", "nccl"):
        from pdla.comm import nccl

        made, fault = nccl.over(comm)
        if made is not None:
            wrong, fault = nccl.tried(comm, partial(_together, made))
            fault = next(filter(None, comm.share(wrong or fault)), "")
        if not fault:
            _tell(comm, "arrays go by NCCL")
            return made
        if config.settings.gpu_mpi == "nccl":
            raise DeviceError(f"PDLA_GPU_MPI=nccl, but {fault}: auto does without where it must")
        _tell(comm, f"no NCCL here ({fault})")
    comm.aware = aware(comm)
    return comm


def _tell(comm: Any, verdict: str) -> None:
    if comm.rank == 0:
        logging.getLogger("pdla").info("%s", verdict)


def aware(comm: Any) -> bool:
    """Collective: whether to give MPI device memory: as PDLA_GPU_MPI says, or as a probe finds.

    A process on each node sends device arrays to itself: there a crash harms nobody. Then all ranks broadcast, sum, gather and
    shift some, and compare what has come: some MPIs bring zeros.
    """
    if config.settings.gpu_mpi != "auto":
        return config.settings.gpu_mpi == "on"
    first = comm.homes.index(comm.homes[comm.rank]) == comm.rank
    fault = next(filter(None, comm.share(_alone() if first else "")), "")
    if not fault:
        comm.aware = True
        fault = next(filter(None, comm.share(_together(comm))), "")
    verdict = f"takes no device memory ({fault}): arrays go through the host" if fault else "takes device memory"
    _tell(comm, f"this MPI {verdict}")
    return not fault


@cache
def _alone() -> str:
    """What a process of its own dies of, sending device arrays to itself; empty: nothing. Once: it takes seconds, and communicators
    may be many."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(config.LAUNCHERS)}
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
        expected = {  # first what every rank sends in: who cannot send fails before anybody waits
            "shift": (comm.shift(comm.xp.asarray(sent[rank]), shifted), sent[rank - 1]),
            "bcast": (comm.bcast(x, comm.size - 1), sent[-1]),
            "allreduce": (comm.allreduce(total), sum(sent)),
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
