"""The board of ranks on one node under MPI: a window of memory that all of them see.

At a barrier each rank writes the number of barriers it has come to, and looks at the numbers of all others. (A barrier of
messages is a tree, of which each step would cost a rank its turn on a shared core.) Ranks that share cores sleep while they wait,
as polling takes the core from the ranks that they wait for. The rank that finds that all have come wakes the others, but only if
any has noted that it sleeps, as waking is a system call.
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

_WORDS = 8  # 64-bit words from one rank's to the next's: each rank has a cache line of its own
_MOST = 2**32  # more than the pieces of any turn
_LETS_WORK = 8  # polls of shared memory for each call of MPI, which lets it work at messages that others wait for
_POLLS = 50  # polls of a rank that shares its core, before it sleeps
_SLEEP = 5e-3  # seconds that it sleeps at most, before it lets MPI work


class NodeBoard(Turns):
    """A board over an MPI window that the ranks of one node share; its memory is allocated by the first rank."""

    def __init__(self, comm: MPIComm) -> None:
        super().__init__()
        self.comm = comm
        self.window: MPI.Win | None = None
        self.turn, self.opened = 0, 0

    def _grow(self, size: int) -> np.ndarray:
        slots = 8 * _WORDS * (self.comm.size + 1)
        self.comm.barrier()  # pdla's own, in which ranks send on what others wait for; in MPI's calls below they do not
        with watched(self.comm._describe("sharing memory")):
            self.free()
            room = free(self.comm.mpi)  # asked again: less may be free now than when sharing was chosen
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
        """A rank's count is its turn times _MOST, and its pieces: so that of a later turn is larger than any of this one."""
        assert self.window is not None
        count = self.counts[rank]
        self.window.Sync()
        return count - self.opened * _MOST

    def _all_have_come(self) -> bool:
        return min(self.turns) >= self.turn

    def _pause(self, polls: int) -> None:
        """Leave the core to another rank. A sleep is short, as nobody may end it: two ranks that come last, at the same moment, may
        each overlook the other."""
        assert self.window is not None
        if polls > _POLLS and self.comm.node.crowded and (word := self.word[0]) != self.turn % 2**32:
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
            self.comm.barrier()  # after it no rank reads any more
            with watched(self.comm._describe("giving back shared memory")):
                self.free()
            self.size, self.small = 0, False

    def free(self) -> None:
        """Collective: free the window."""
        if self.window is not None:
            self.memory = None
            self.window.Unlock_all()
            self.window.Free()
            self.window = None
