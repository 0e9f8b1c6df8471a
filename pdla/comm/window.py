"""The board of ranks on one node under MPI: a window of memory that all of them see.

Each rank writes the number of the turn it has come to, and looks at those of all others; by messages each step of a tree would
cost a rank its turn on a shared core. Ranks that share cores sleep, since who polls takes them from those that are waited for:
who finds that all have come wakes them, if any has said that it sleeps: waking is a system call.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from pdla.comm import futex
from pdla.comm.board import Turns
from pdla.comm.job import watched
from pdla.comm.libmpi import MPI
from pdla.comm.node import SHARED, free
from pdla.errors import PdlaError

if TYPE_CHECKING:
    from pdla.comm.mpi import MPIComm

_WORDS = 8  # from one word by which ranks meet to the next: each has a cache line of its own
_MOST = 2**32  # pieces of a turn
_LETS_WORK = 8  # polls of shared memory from one call of MPI to the next: others may wait for messages of this rank
_POLLS = 50  # of a rank that shares its core, before it sleeps
_SLEEP = 5e-3  # seconds, after which it lets MPI work


class NodeBoard(Turns):
    """A window of MPI's that the ranks of one node share; the first rank holds it."""

    def __init__(self, comm: MPIComm) -> None:
        super().__init__()
        self.comm = comm
        self.window: MPI.Win | None = None
        self.turn, self.opened = 0, 0

    def _grow(self, size: int) -> np.ndarray:
        slots = 8 * _WORDS * (self.comm.size + 1)
        self.comm.barrier()  # who waits in MPI's own calls sends nothing on
        with watched(self.comm._describe("sharing memory")):
            self.free()
            room = free(self.comm.mpi)  # of what was free when the choice was made others may have taken some
            if room < slots + size and os.path.isdir(SHARED):
                raise PdlaError(
                    f"sharing memory: {slots + size} bytes are wanted, {room} are free in {SHARED}; PDLA_SHARED=0 sends messages"
                )
            self.window = MPI.Win.Allocate_shared(slots + size if self.comm.rank == 0 else 0, 1, comm=self.comm.mpi)  # type: ignore[arg-type]
            self.window.Lock_all(MPI.MODE_NOCHECK)
            shared: Any = self.window.Shared_query(0)[0]
            memory = np.frombuffer(shared, np.uint8)
            words = memory[:slots]
            self.turns = words.data.cast("q")[: -_WORDS : _WORDS]
            self.word, self.address = words[-8 * _WORDS :].data.cast("I"), words[-8 * _WORDS :].ctypes.data
            self.counts, self.asleep = (words.data.cast("q")[i : -_WORDS : _WORDS] for i in (1, 2))
            self.turn = self.turns[self.comm.rank] = self.counts[self.comm.rank] = self.asleep[self.comm.rank] = self.word[0] = 0
            self.window.Sync()
            self.comm.mpi.Barrier()
        return memory[slots:]

    def _come(self) -> None:
        assert self.window is not None
        self.turn += 1
        self.window.Sync()
        self.turns[self.comm.rank] = self.turn
        if self.comm.node.crowded:
            self.window.Sync()
            if self._all_have_come():
                self.word[0] = self.turn % 2**32
                self.window.Sync()
                if any(self.asleep):
                    futex.wake(self.address)

    def _await(self) -> None:
        assert self.window is not None
        self.comm._until("sharing memory", self._all_have_come, self._pause)
        self.window.Sync()

    def open(self, size: int) -> Any:
        memory = super().open(size)
        self.opened += 1
        return memory

    def tell(self, pieces: int) -> None:
        assert self.window is not None
        self.window.Sync()
        self.counts[self.comm.rank] = self.opened * _MOST + pieces

    def told(self, rank: int) -> int:
        """The count of a rank that has come to a later turn is above all of this one's."""
        assert self.window is not None
        count = self.counts[rank]
        self.window.Sync()
        return count - self.opened * _MOST

    def _all_have_come(self) -> bool:
        return min(self.turns) >= self.turn

    def _pause(self, polls: int) -> None:
        """Leave the core to another rank. Sleeps are short: two ranks that came last may have overlooked each other."""
        assert self.window is not None
        word = self.word[0]
        if polls > _POLLS and self.comm.node.crowded and word != self.turn % 2**32:
            self.asleep[self.comm.rank] = 1
            self.window.Sync()
            woken = futex.sleep(self.address, word, _SLEEP)
            self.asleep[self.comm.rank] = 0
        else:
            woken = polls % _LETS_WORK != 0
            os.sched_yield()
        if not woken:
            self.comm.mpi.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)

    def trim(self, most: int) -> None:
        if self.size > most * self.comm.size:
            self.comm.barrier()  # nobody reads any more
            with watched(self.comm._describe("giving back shared memory")):
                self.free()
            self.size, self.small = 0, False

    def free(self) -> None:
        """Collective."""
        if self.window is not None:
            self.memory = None
            self.window.Unlock_all()
            self.window.Free()
            self.window = None
