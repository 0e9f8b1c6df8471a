"""The machine that a rank runs on: its ranks, cores and shared memory, and how one waits there that shares its core."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import NamedTuple

from pdla import config
from pdla.comm.libmpi import MPI

SHARED = "/dev/shm"  # where MPIs keep the memory that ranks share
_STARTED = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")  # by launchers: a job's ranks on a node
_GROWTH = 10  # naps of a rank that shares its core until they are twice as long


class Patience(NamedTuple):
    """Of a rank that shares its core: polls before it sleeps between them, and the first naps and the longest, in seconds."""

    polls: int
    nap: float
    longest: float


NEAR = Patience(200, 100e-6, 5e-3)
FAR = Patience(3, 1e-3, 2e-3)  # what it waits for is longer on its way; and a network does nothing unless it is asked to


@dataclass(frozen=True)
class Node:
    """This machine: how many of the ranks run on it, and on how many cores."""

    ranks: int
    cores: int

    @property
    def crowding(self) -> float:
        """Processes that share a core."""
        return max(self.ranks / self.cores, config.settings.crowded, 1.0)

    @property
    def crowded(self) -> bool:
        return self.ranks > self.cores or config.settings.crowded > 1

    def pause(self, polls: int, patience: Patience) -> None:
        """Between two polls: leave the core to a rank that may have something to do."""
        if polls > patience.polls and self.crowded:
            time.sleep(min(patience.longest, patience.nap * max(1.0, (polls - patience.polls) / _GROWTH)))
        else:
            os.sched_yield()


def this_node(comm: MPI.Comm) -> tuple[Node, list[int]]:
    """Collective over comm: this rank's node, and for each rank the least rank on its node.

    A node's cores are all those that its ranks may use, bound to some of them or not.
    """
    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cores = neighbours.allgather(os.sched_getaffinity(0))
    homes = comm.allgather(neighbours.bcast(comm.Get_rank()))
    neighbours.Free()
    return Node(len(cores), len(set().union(*cores))), homes


def started() -> int:
    """How many of the job's ranks its launcher says that it has started on this node, 0 where it says nothing: those of a part of
    them cannot ask the others."""
    said = (os.environ.get(name, "") for name in _STARTED)
    return min(next((int(ranks) for ranks in said if ranks.isdecimal()), 0), MPI.COMM_WORLD.Get_size())  # a rank's child is alone


def room() -> int:
    """Bytes of this machine's shared memory that nobody has taken; 0 where there is none to look at."""
    here = os.statvfs(SHARED) if os.path.isdir(SHARED) else None
    return here.f_bavail * here.f_frsize if here else 0


def free(comm: MPI.Comm) -> int:
    """Collective over comm, all on one node: its room, the same on every rank.

    Gathered, since mpi4py's allreduce begins by a collective call of MPI that holds Python's lock: of two threads each might wait
    for the other one's rank, and no watchdog would run.
    """
    return min(comm.allgather(room()))
