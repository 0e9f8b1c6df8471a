"""Failures: one rank prints an error that several ranks have. The ranks need bounded time and no collective call.

A rank that fails sends a digest of its error to the first ranks, the speakers. The lowest speaker
with the same error prints it, and sends a report to the others. A rank that receives the report
keeps silent; otherwise it waits a moment and prints the error itself.

These messages match no message of the program: they travel on pdla's duplicate of MPI's world, with
tags of their own. Before there is a duplicate, ranks that all fail within a moment make one, in a
thread. The thread never ends if a rank does not fail.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import groupby

from pdla.comm.communicator import VERB_TAGS
from pdla.comm.mpi.libmpi import MPI
from pdla.errors import plural

SPEAKERS = 16  # the first ranks, which may print an error for others
GRACE = 0.5  # seconds within which ranks with the same error mostly fail
LONGEST = 2.0  # seconds that a rank waits for another's report
HEARD = 0.5  # seconds for the launcher to forward printed text, which an abort may lose
POLL = 0.005  # seconds between two looks for messages
_TAG = VERB_TAGS - 1  # of the call that makes a communicator; no message has it

_own: MPI.Comm | None = None  # pdla's duplicate of MPI's world
_alone = threading.Lock()  # held by the first thread of this rank that fails


def use(own: MPI.Comm) -> None:
    """Local: use pdla's duplicate of MPI's world for failures from here on."""
    global _own
    _own = own


def report_once(error: str, key: str, report: Callable[[str], None]) -> None:
    """Local: report this rank's error, unless a rank with the same key has reported it; then name the other ranks with this key."""
    reported = False
    try:
        with suppress(Exception):  # MPI may be in any state
            comm = _find_communicator()
            failure = comm and Failure(comm, make_digest(key))
            if failure and failure.is_reported_by_another():
                reported = True
                time.sleep(2 * LONGEST + HEARD)  # until that rank has ended the job
                return
            report(error)
            reported = True
            if failure and (others := failure.announce()):
                report(f"{name_spans(others)} failed with the same error")
            if failure:
                failure.await_others()
    finally:
        if not reported:
            report(error)
        time.sleep(HEARD)


def make_digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(errors="replace"), digest_size=16).digest()


def _find_communicator() -> MPI.Comm | None:
    """Find a communicator of all ranks on which no program sends; None if there is none."""
    world, made = MPI.COMM_WORLD, []
    if world.Get_size() == 1 or not _alone.acquire(blocking=False):
        return None
    if _own:
        return _own
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return None

    def make() -> None:  # the call returns only if all ranks make it
        with suppress(Exception):
            made.append(world.Create_group(world.Get_group(), _TAG))

    maker = threading.Thread(target=make, daemon=True)
    maker.start()
    maker.join(GRACE)
    return made[0] if made else None


class Failure:
    """A failure of this rank, sent to the speakers, and the failures that it receives, by the errors' digests."""

    def __init__(self, comm: MPI.Comm, digest: bytes) -> None:
        most: int = comm.Get_attr(MPI.TAG_UB) or 0
        if most < 2 * VERB_TAGS + 1:
            raise ValueError("MPI has no tags but those of pdla's messages")
        self.comm, self.rank, self.digest, self.tags = comm, comm.Get_rank(), digest, (most - 1, most)
        self.failed: defaultdict[bytes, set[int]] = defaultdict(set, {digest: {self.rank}})
        self.reported: set[bytes] = set()
        self.speakers = range(min(SPEAKERS, comm.Get_size()))
        self._sends: list[MPI.Request] = []  # which hold what MPI reads
        self._send(self.tags[0], self.speakers)

    def is_reported_by_another(self) -> bool:
        """Whether another rank has reported the error; wait for that while a lower rank with the same error may report it."""
        if self.rank in self.speakers:
            self._listen(GRACE if self.rank else 0.0, lambda: self._is_reported() or self._has_lower())
        if self.rank not in self.speakers or self._has_lower():
            self._listen(LONGEST, self._is_reported)
        return self._is_reported()

    def announce(self) -> list[int]:
        """Send a report to the others; after a moment return the other ranks with the same error."""
        self.reported.add(self.digest)
        alike = self.failed[self.digest]
        self._send(self.tags[1], {*alike, *self.speakers})
        self._listen(GRACE, lambda: len(alike) == self.comm.Get_size())
        return sorted(alike - {self.rank})

    def await_others(self) -> None:
        """Wait a while for the reports of other errors."""
        self._listen(LONGEST, lambda: self.failed.keys() <= self.reported)

    def _is_reported(self) -> bool:
        return self.digest in self.reported

    def _has_lower(self) -> bool:
        return min(self.failed[self.digest]) < self.rank

    def _send(self, tag: int, ranks: Iterable[int]) -> None:
        self._sends += [self.comm.Isend([self.digest, MPI.BYTE], rank, tag) for rank in ranks if rank != self.rank]

    def _listen(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Receive messages of others until `enough` is true, for at most this many seconds."""
        end = time.monotonic() + seconds
        while not enough():
            taken = [self._take(tag) for tag in self.tags]
            if any(taken):
                continue
            if time.monotonic() >= end:
                return
            time.sleep(POLL)

    def _take(self, tag: int) -> bool:
        """Take a message of this tag, if one has come."""
        status, digest = MPI.Status(), bytearray(len(self.digest))
        message = self.comm.Improbe(MPI.ANY_SOURCE, tag, status)
        if message is None:
            return False
        message.Recv([digest, MPI.BYTE])
        rank, error = status.Get_source(), bytes(digest)
        self.failed[error].add(rank)
        if tag == self.tags[1]:
            self.reported.add(error)
        elif error == self.digest and self._is_reported():
            self._send(self.tags[1], [rank])
        return True


def name_spans(ranks: list[int]) -> str:
    """Name ascending ranks, as "ranks 1-3, 5"."""
    runs = [[rank for _, rank in run] for _, run in groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])]
    spans = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{plural(len(ranks), 'rank')} {spans}"
