"""The machine that a rank runs on: its ranks, cores and shared memory, and how ranks wait if they share a core."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import NamedTuple

from pdla import config
from pdla.array import cores
from pdla.comm.mpi.libmpi import MPI

SHARED = "/dev/shm"  # where MPIs keep the memory that ranks share
# Variables in which launchers say how many of the job's ranks are on this node.
_STARTED = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
_GROWTH = 10  # the n-th nap is n / _GROWTH times as long as the first, or as long


class Patience(NamedTuple):
    """For a rank that shares its core: polls before it begins to nap in between; the first and the longest nap, in seconds."""

    polls: int
    nap: float
    longest: float

    def nap_after(self, polls: int) -> float:
        """How long the nap after so many polls is: the longer a rank has waited, the longer it naps."""
        return min(self.longest, self.nap * max(1.0, (polls - self.polls) / _GROWTH))


NEAR = Patience(20, 50e-6, 5e-3)  # who yields its core to busy processes gets it back late; who has slept, soon
FAR = Patience(3, 1e-3, 2e-3)  # messages from other nodes take longer, and MPI moves them only when it is polled


@dataclass(frozen=True)
class Node:
    """The machine of this rank: how many of a communicator's ranks run on it, and on how many cores."""

    ranks: int
    cores: int

    @property
    def crowding(self) -> float:
        """Processes to a core, at least 1."""
        return max(self.ranks / self.cores, config.settings.crowded, 1.0)

    @property
    def is_crowded(self) -> bool:
        return self.ranks > self.cores or config.settings.crowded > 1

    def pause(self, polls: int, patience: Patience) -> None:
        """Between two polls: let another rank that shares the core run. polls: how many there have been in this wait."""
        if polls > patience.polls and self.is_crowded:
            time.sleep(patience.nap_after(polls))
        else:
            os.sched_yield()


def find_node(comm: MPI.Comm) -> tuple[Node, list[int]]:
    """Collective over comm: this rank's node, and by rank the lowest rank on the same node, which stands for the node.

    The node's cores are all those on which at least one of its ranks may run, as far as they can be
    used at once.
    """
    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
    bound = neighbours.allgather(os.sched_getaffinity(0))
    homes = comm.allgather(neighbours.bcast(comm.Get_rank()))
    neighbours.Free()
    return Node(len(bound), cores.usable(len(set().union(*bound)))), homes


def count_started() -> int:
    """How many of the job's ranks the launcher has started on this node, as its variables say.

    0 if they do not. (The ranks of a communicator over a part of the job cannot ask the others.)
    """
    said = (os.environ.get(name, "") for name in _STARTED)
    found = next((int(ranks) for ranks in said if ranks.isdecimal()), 0)
    return min(found, MPI.COMM_WORLD.Get_size())  # a program that a rank starts is a job of its own, with the rank's variables


def free_bytes() -> int:
    """Bytes of this machine's shared memory that are free; 0 where there is no /dev/shm."""
    here = os.statvfs(SHARED) if os.path.isdir(SHARED) else None
    return here.f_bavail * here.f_frsize if here else 0


def least_free_bytes(comm: MPI.Comm) -> int:
    """Collective over comm: the least `free_bytes` of its ranks' nodes, the same on every rank.

    By allgather, since mpi4py's allreduce of objects begins with a collective call that holds
    Python's lock: two threads might each wait for the other one's rank, and no watchdog could run.
    """
    return min(comm.allgather(free_bytes()))
