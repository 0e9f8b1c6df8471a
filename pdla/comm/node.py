"""The machine that a rank runs on: its ranks, cores and shared memory, and how one waits there that shares its core."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from os import sched_yield
from time import sleep
from typing import NamedTuple

from pdla import config
from pdla.comm.libmpi import MPI

_SHARED = "/dev/shm"  # where MPIs keep the memory that ranks share
_NAP, _GROWTH = 100e-6, 10  # naps of a rank that shares its core, in seconds, the first ones; how many until they are twice as long


class Patience(NamedTuple):
    """Of a rank that shares its core: polls before it sleeps between them, and the longest nap, in seconds."""

    polls: int
    longest: float


NEAR = Patience(200, 5e-3)
FAR = Patience(10, 1e-3)  # what it waits for is longer on its way; and a network does nothing unless it is asked to


@dataclass(frozen=True)
class Node:
    """This machine: how many of the ranks run on it, and on how many cores."""

    ranks: int
    cores: int

    @property
    def crowded(self) -> bool:
        return self.ranks > self.cores or config.settings.crowded

    def pauses(self, patience: Patience) -> Callable[[int], None]:
        """What a rank that waits does between polls: leave the core to one that may have something to do."""
        if not self.crowded:
            return _leave
        naps = chain(_naps(patience), repeat(patience.longest))

        def pause(polls: int) -> None:
            if nap := next(naps):
                sleep(nap)
            else:
                sched_yield()

        return pause


def _leave(polls: int) -> None:
    sched_yield()


@cache
def _naps(patience: Patience) -> tuple[float, ...]:
    """The first naps, in seconds, until they are as long as they become; 0: none. Worked out before: who has slept finds its
    cache taken by others, and whatever it does then takes ten times as long.
    """
    growing = [_NAP * max(1.0, i / _GROWTH) for i in range(1, round(_GROWTH * patience.longest / _NAP))]
    return (0.0,) * patience.polls + tuple(growing)


def this_node(comm: MPI.Comm) -> tuple[Node, list[int]]:
    """Collective over comm: this rank's node, and for each rank the least rank on its node.

    A node's cores are all those that its ranks may use, bound to some of them or not.
    """
    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cores = neighbours.allgather(os.sched_getaffinity(0))
    homes = comm.allgather(neighbours.bcast(comm.Get_rank()))
    neighbours.Free()
    return Node(len(cores), len(set().union(*cores))), homes


def shareable(comm: MPI.Comm) -> int:
    """Collective over comm, all on one node: bytes of its shared memory that may be taken, half of what is free."""
    free = 0
    if os.path.isdir(_SHARED):
        room = os.statvfs(_SHARED)
        free = room.f_bavail * room.f_frsize // 2
    return comm.allreduce(free, MPI.MIN)
