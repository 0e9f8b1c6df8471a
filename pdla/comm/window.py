"""The board of ranks on one node under MPI: a window of memory that all of them see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pdla.comm.board import Turns
from pdla.comm.job import watched
from pdla.comm.libmpi import MPI

if TYPE_CHECKING:
    from pdla.comm.mpi import MPIComm

_WORDS = 8  # from one word by which ranks meet to the next: each has a cache line of its own
_LETS_WORK = 8  # polls of shared memory from one call of MPI to the next: others may wait for messages of this rank


class NodeBoard(Turns):
    """A window of MPI's that the ranks of one node share; the first rank holds it."""

    def __init__(self, comm: MPIComm) -> None:
        super().__init__()
        self.comm = comm
        self.window: MPI.Win | None = None
        self.turn, self.come, self.polls = 0, 0, 0

    def _grow(self, size: int) -> np.ndarray:
        slots = 8 * _WORDS * self.comm.size
        with watched(self.comm._describe("sharing memory")):
            self.free()
            self.window = MPI.Win.Allocate_shared(slots + size if self.comm.rank == 0 else 0, 1, comm=self.comm.mpi)  # type: ignore[arg-type]
            self.window.Lock_all(MPI.MODE_NOCHECK)
            shared: Any = self.window.Shared_query(0)[0]
            memory = np.frombuffer(shared, np.uint8)
            self.turns = memory[:slots].data.cast("q")
            self.turn = self.turns[self.comm.rank * _WORDS] = 0
            self.window.Sync()
            self.comm.mpi.Barrier()
        return memory[slots:]

    def _come(self) -> None:
        """Write the number of the turn where all see it: by messages each step of a tree costs a rank its turn on a shared core."""
        assert self.window is not None
        self.turn += 1
        self.window.Sync()
        self.turns[self.comm.rank * _WORDS] = self.turn

    def _await(self) -> None:
        assert self.window is not None
        self.come = 0
        self.comm._until("sharing memory", self._all_have_come)
        self.window.Sync()

    def _all_have_come(self) -> bool:
        while self.turns[self.come * _WORDS] >= self.turn:
            self.come += 1
            if self.come == self.comm.size:
                return True
        self.polls += 1
        if self.polls % _LETS_WORK == 0:
            self.comm.mpi.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        return False

    def free(self) -> None:
        """Collective."""
        if self.window is not None:
            self.memory = None
            self.window.Unlock_all()
            self.window.Free()
            self.window = None
