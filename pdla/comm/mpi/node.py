"""The node of a rank: its ranks, cores and shared memory, and the waiting of ranks that share a core."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import NamedTuple

from pdla import config
from pdla.array import cores
from pdla.comm.mpi.libmpi import MPI

SHARED = "/dev/shm"  # the folder in which MPIs keep the memory that ranks share
# Launchers set these variables to the number of the job's ranks on this node.
_STARTED = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
_GROWTH = 10  # the n-th nap is n / _GROWTH times as long as the first, and at least as long


class Patience(NamedTuple):
    """How a rank that shares its core waits: the polls before it naps between polls, and the first and longest nap, in seconds."""

    polls: int
    nap: float
    longest: float

    def nap_after(self, polls: int) -> float:
        """Compute the seconds of the nap after this many polls: the longer a rank has waited, the longer it naps."""
        return min(self.longest, self.nap * max(1.0, (polls - self.polls) / _GROWTH))


NEAR = Patience(20, 50e-6, 5e-3)  # a rank that yields its core gets it back late; a rank that has slept, soon
FAR = Patience(3, 1e-3, 2e-3)  # messages from other nodes take longer, and MPI moves them only when it is polled


@dataclass(frozen=True)
class Node:
    """The node of this rank: the number of the communicator's ranks on it, and of their cores."""

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
        """Let another rank that shares the core run between two polls. polls: the number of polls of this wait."""
        if polls > patience.polls and self.is_crowded:
            time.sleep(patience.nap_after(polls))
        else:
            os.sched_yield()


def find_node(comm: MPI.Comm) -> tuple[Node, list[int]]:
    """Collective over comm: find this rank's node and, by rank, the lowest rank on the same node, which identifies the node.

    The node's cores are those on which at least one of its ranks may run, within a quota.
    """
    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
    bound = neighbours.allgather(os.sched_getaffinity(0))
    homes = comm.allgather(neighbours.bcast(comm.Get_rank()))
    neighbours.Free()
    return Node(len(bound), cores.usable(len(set().union(*bound)))), homes


def count_started() -> int:
    """Count the job's ranks that the launcher has started on this node, by its variables; 0 without these.

    (The ranks of a communicator over a part of the job cannot ask the others.)
    """
    values = (os.environ.get(name, "") for name in _STARTED)
    started = next((int(ranks) for ranks in values if ranks.isdecimal()), 0)
    return min(started, MPI.COMM_WORLD.Get_size())  # a program that a rank starts is its own job, with the rank's variables


def count_free_bytes() -> int:
    """Count the free bytes of this machine's shared memory; 0 without /dev/shm."""
    stats = os.statvfs(SHARED) if os.path.isdir(SHARED) else None
    return stats.f_bavail * stats.f_frsize if stats else 0


def find_least_free_bytes(comm: MPI.Comm) -> int:
    """Collective over comm: find the least free bytes of its ranks' nodes, the same on every rank.

    mpi4py's allreduce of objects first makes a collective call that holds Python's lock. Two threads
    could then wait for each other's rank, and no watchdog could run; hence an allgather.
    """
    return min(comm.allgather(count_free_bytes()))
