"""The shared buffer of ranks on one node under MPI: a window of memory that all of them see, with two barriers.

At one barrier ranks wait for others to write to the buffer. At the other they meet and compare their
calls, in a fraction of the time of messages. With two barriers no rank takes an arrival in another
call for the arrival that it waits for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from pdla.comm.mpi import barrier
from pdla.comm.mpi.abort import watch
from pdla.comm.mpi.barrier import NodeComm, SharedBarrier
from pdla.comm.mpi.libmpi import MPI
from pdla.comm.mpi.node import SHARED, find_least_free_bytes
from pdla.comm.shared_buffer import GONE, Turns
from pdla.errors import PdlaError

_MOST = 2**32  # more than the pieces of any turn


class WindowBuffer(Turns):
    """A shared buffer over an MPI window of the ranks of one node; the first rank allocates its memory."""

    barrier: SharedBarrier
    meeting: SharedBarrier

    def __init__(self, comm: NodeComm) -> None:
        super().__init__()
        self.comm = comm
        self.window: MPI.Win | None = None
        self.opened: int = 0

    def _grow(self, size: int) -> np.ndarray:
        step = barrier.nbytes_for(self.comm.size)
        self.comm.barrier()  # in pdla's barrier ranks forward what others wait for; in MPI's calls below they do not
        with watch(self.comm._describe("sharing memory")):
            self.free()
            free = find_least_free_bytes(self.comm.mpi)  # less may be free now than when sharing was chosen
            needed = 2 * step + size
            if free < needed and os.path.isdir(SHARED):
                raise PdlaError(
                    f"sharing memory: {needed} bytes are needed, {free} are free in {SHARED}; PDLA_SHARED=0 sends messages"
                )
            window = self._window(needed)
            window.Lock_all(MPI.MODE_NOCHECK)
            shared: Any = window.Shared_query(0)[0]
            memory = np.frombuffer(shared, np.uint8)
            self.barrier, self.meeting = (SharedBarrier(self.comm, window, memory[at : at + step]) for at in (0, step))
            self.barrier.partner, self.meeting.partner = self.meeting, self.barrier
            window.Sync()
            self.comm.mpi.Barrier()
        self.window = window
        return memory[2 * step :]

    def _window(self, size: int) -> MPI.Win:
        try:
            return MPI.Win.Allocate_shared(size if self.comm.rank == 0 else 0, 1, comm=self.comm.mpi)
        except MPI.Exception as error:  # raised on every rank, whichever lacks the memory
            raise PdlaError(
                f"sharing memory: MPI could not map {size} bytes on every rank, which may lie at a limit of a rank's memory or at "
                f"{SHARED}; PDLA_SHARED=0 sends messages"
            ) from error

    def _arrive(self) -> None:
        self.barrier.arrive()

    def _await(self) -> None:
        self.barrier.wait("sharing memory")

    def open(self, size: int) -> Any:
        memory = super().open(size)
        self.opened += 1
        return memory

    def publish(self, pieces: int, lane: int = 0) -> None:
        self.barrier.publish(lane, self.opened * _MOST + pieces)

    def count_published(self, rank: int, lane: int = 0) -> int:
        """Decode the count from a rank's word, turn * _MOST + pieces: a word of a later turn is larger than any of this turn."""
        count = self.barrier.spare[lane][rank]
        self.barrier.window.Sync()
        return count - self.opened * _MOST

    def may_have_left(self, lane: int = 0) -> bool:
        return max(self.barrier.spare[lane]) >= self.opened * _MOST + GONE

    def wait_until(self, call: str, ready: Callable[[], bool]) -> None:
        self.barrier.wait_until(call, ready)

    def meet(self, call: str, numbers: tuple[int, int, int]) -> list[list[int]]:
        """Collective: exchange three numbers a rank; return the first of each rank, by rank, then the second, then the third.

        Meetings alternate between two halves of the spare words. When a rank comes to the next meeting
        but one, all have left this one.
        """
        meeting = self.meeting
        words = meeting.spare[3:] if meeting.turn % 2 else meeting.spare[:3]
        for lane, number in zip(words, numbers, strict=True):
            lane[self.comm.rank] = number
        meeting.arrive()
        meeting.wait(call, sends=True)
        return [*map(memoryview.tolist, words)]

    def trim(self, most: int) -> None:
        if self.size > most * self.comm.size:
            self.comm.barrier()  # pdla's own barrier, as in `_grow`
            with watch(self.comm._describe("giving back shared memory")):
                self.free()
            self.size = 0

    def free(self) -> None:
        """Collective: free the window."""
        if self.window is not None:
            window, self.window, self.memory = self.window, None, None
            del self.barrier, self.meeting
            window.Unlock_all()
            window.Free()
