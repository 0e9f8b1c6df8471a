"""A barrier: words of shared memory at which the ranks of a node wait until all have come.

Each rank writes the number of times that it has arrived, and reads the numbers of all others. (Messages
would form a tree, and each of its steps would wait for a turn on a shared core.) Ranks that share
cores sleep while they wait, as polling takes the core from the ranks that they wait for. The rank
that finds that all have arrived wakes the others. The rank does so only if one has noted that it
sleeps, as waking is a system call.

Barriers come in pairs. Ranks in the same calls arrive at both in the same order. Suppose that another
rank has arrived at the second barrier, but not at this one, and this rank the other way round. Then
the two are in different calls, and would wait for each other for ever.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from pdla.comm.agreement import name_ranks, raise_out_of_step
from pdla.comm.mpi import futex
from pdla.comm.mpi.libmpi import MPI
from pdla.comm.mpi.node import NEAR, Node

_LINE = 64  # bytes between the words of two ranks: each rank has a cache line of its own
_LETS_WORK = 8  # polls of shared memory for each call of MPI, which moves messages that others wait for
_POLLS = 50  # polls of a rank that shares its core, before it sleeps in a barrier
_RESTLESS = 10  # polls before it sleeps while it waits for a published count
_WORD = 4  # bytes of a word
_SLEEP = 5e-3  # most seconds of a sleep, before the rank lets MPI work


def nbytes_for(ranks: int) -> int:
    """Count the bytes of a barrier of this many ranks."""
    return _LINE * (ranks + 1)


class NodeComm(Protocol):
    """The interface of MPIComm that a barrier and a shared buffer use."""

    rank: int
    size: int
    node: Node
    mpi: Any
    failed: Any

    def barrier(self) -> None: ...
    def _describe(self, call: str) -> str: ...
    def _wait_until(self, call: str, ready: Any, pause: Any = None, round_: Any = None, awaited: Any = tuple) -> None: ...


class SharedBarrier:
    """A barrier in memory of a window that all ranks of comm see.

    spare   spare[i][rank]: six 64-bit words of each rank, for counts that it publishes
    partner  the other barrier of the pair
    """

    partner: SharedBarrier
    comm: NodeComm
    window: MPI.Win
    turns: memoryview[int]
    asleep: memoryview[int]
    spare: list[memoryview[int]]
    word: memoryview[int]
    address: int
    turn: int
    word_seen: int

    def __init__(self, comm: NodeComm, window: MPI.Win, memory: np.ndarray) -> None:
        self.comm, self.window = comm, window
        words, step = memory.data.cast("q"), _LINE // 8
        self.turns, self.asleep, *self.spare = (words[i:-step:step] for i in range(step))
        self.word, self.address = memory[-_LINE:].data.cast("I"), memory[-_LINE:].ctypes.data
        self.turn = self.turns[comm.rank] = self.asleep[comm.rank] = self.word[0] = self.word[1] = self.word_seen = 0
        for words_of_lane in self.spare:
            words_of_lane[comm.rank] = 0

    def arrive(self) -> None:
        """Enter the barrier; ranks that leave it see what this rank has written before."""
        self.turn += 1
        self.window.Sync()
        self.turns[self.comm.rank] = self.turn
        if self.comm.node.is_crowded:
            self.window.Sync()
            if self._all_have_come():
                self.word[0] = self.turn % 2**32
                self.window.Sync()
                if any(self.asleep):
                    futex.wake(self.address)

    def wait(self, call: str, sends: bool = False) -> None:
        """Wait until all ranks have arrived as often as this one. call: the call in words.

        sends  sleep only briefly: others may still wait for messages of this rank, which MPI moves when it is polled
        """
        self.comm._wait_until(call, self._all_have_come, partial(self._pause, call, sends), awaited=self._find_missing)
        self.window.Sync()

    def publish(self, lane: int, number: int) -> None:
        """Write one of this rank's spare words, after all its earlier writes, and wake ranks that sleep in `wait_until`."""
        self.window.Sync()
        self.spare[lane][self.comm.rank] = number
        if self.comm.node.is_crowded:
            self.word[1] = (number * len(self.spare) + lane + self.comm.rank * 2**16) % 2**32  # a value of this rank alone
            self.window.Sync()
            if any(self.asleep):
                futex.wake(self.address + _WORD)

    def wait_until(self, call: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready` is true, which depends on others' spare words."""
        self.comm._wait_until(call, ready, self._rest)
        self.window.Sync()

    def _rest(self, polls: int) -> None:
        """Leave the core to another rank. A count published since the last poll has changed the word, and so ends the sleep."""
        if polls > _RESTLESS and self.comm.node.is_crowded:
            self._doze(self.address + _WORD, self.word_seen, _SLEEP)
        else:
            self._yield(polls)
        self.word_seen = self.word[1]

    def _all_have_come(self) -> bool:
        return min(self.turns) >= self.turn

    def _find_missing(self) -> list[int]:
        return [rank for rank, turn in enumerate(self.turns) if turn < self.turn]

    def _pause(self, call: str, sends: bool, polls: int) -> None:
        """Leave the core to another rank.

        A sleep is short, as perhaps no rank ends it: if the last two ranks arrive at the same moment,
        neither may see the other.
        """
        if polls % _POLLS == 0 and (others := self._find_elsewhere()):
            raise_out_of_step(self.comm, f"{self.comm._describe(call)}: {name_ranks(others)} went into another call instead")  # type: ignore[arg-type]
        if polls > _POLLS and self.comm.node.is_crowded and (word := self.word[0]) != self.turn % 2**32:
            self._doze(self.address, word, NEAR.nap_after(polls) if sends else _SLEEP)
        else:
            self._yield(polls)

    def _doze(self, address: int, word: int, seconds: float) -> None:
        """Sleep until another rank wakes this one or changes the word; after `seconds` let MPI work."""
        self.asleep[self.comm.rank] = 1
        self.window.Sync()
        woken = futex.sleep(address, word, seconds)
        self.asleep[self.comm.rank] = 0
        if not woken:
            self.comm.mpi.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)

    def _yield(self, polls: int) -> None:
        """Let another rank run and, at some polls, MPI work."""
        os.sched_yield()
        if polls % _LETS_WORK == 0:
            self.comm.mpi.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)

    def _find_elsewhere(self) -> list[int]:
        """Find the ranks in another call: they have arrived at the other barrier without this rank, and not at this one."""
        partner = self.partner
        ahead = [rank for rank, turn in enumerate(partner.turns) if turn > partner.turn]
        self.window.Sync()  # a rank in step arrives at this barrier first, so read this barrier's numbers last
        return [rank for rank in ahead if self.turns[rank] < self.turn]
