"""Ranks as processes, over mpi4py: the one place that imports it.

A round of messages is posted when its verb is called, all receives first. Arrays travel as bytes in C order: contiguous
ones where they lie, strided ones through a buffer. Waiting is a loop of tests, which lets other processes run where the
ranks of a node outnumber its cores, and which ends the job, stacks printed, after PDLA_TIMEOUT seconds.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import TracebackType
from typing import Any

import numpy as np

from pdla import config
from pdla.array import blas, numpy
from pdla.comm.base import Array, Communicator, Pending
from pdla.comm.ledger import buffer
from pdla.errors import GridError, NoMPIError

try:
    import mpi4py
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:  # mpi4py missing; mpi4py without a libmpi
    raise NoMPIError(
        f"no MPI here ({error}): `pip install pdla[mpich]` brings one; pdla.run(P, program) does without"
    ) from error

# Users' tags lie below this one, verbs' above, up to the least maximum that MPI promises, 2^15 - 1. A verb's is its
# call's number, so that ranks out of step wait instead of taking one verb's data for another's.
_VERB_TAGS = 1 << 14
_CHUNK = 1 << 20
_INT_MAX = 2**31 - 1  # bytes in one message of an MPI older than 4
_PATIENCE = 2.0  # seconds in which other ranks, too, can print where they wait
_POLLS, _NAP = 200, 100e-6  # polls before a rank that shares its core sleeps between them, and how long: seconds


@dataclass(frozen=True)
class Node:
    """This machine: how many of the ranks run on it, and on how many cores."""

    ranks: int
    cores: int

    @property
    def crowded(self) -> bool:
        return self.ranks > self.cores

    def pause(self, polls: int) -> None:
        """Between two polls: leave the core to a rank that may have something to do."""
        if polls > _POLLS and self.crowded:
            time.sleep(_NAP)
        else:
            os.sched_yield()


def node(comm: MPI.Comm) -> tuple[Node, list[int]]:
    """Collective over comm: this rank's node, and for each rank the least rank on its node.

    A node's cores are all those that its ranks may use, bound to some of them or not.
    """
    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cores = neighbours.allgather(os.sched_getaffinity(0))
    homes = comm.allgather(neighbours.bcast(comm.Get_rank()))
    neighbours.Free()
    return Node(len(cores), len(set().union(*cores))), homes


@lru_cache(maxsize=64)
def _large(size: int) -> MPI.Datatype:
    """So many bytes as one datatype, for MPIs whose counts are 32 bits."""
    chunks, rest = divmod(size, _CHUNK)
    parts = [MPI.BYTE.Create_contiguous(_CHUNK).Create_contiguous(chunks), MPI.BYTE.Create_contiguous(rest)]
    return MPI.Datatype.Create_struct([1, 1], [0, chunks * _CHUNK], parts).Commit()


def _spec(x: np.ndarray) -> list[Any]:
    """A C-contiguous array as mpi4py takes it: bytes, since some dtypes have no buffer format and no MPI type."""
    raw = x.reshape(-1).view(np.uint8) if x.size else np.empty(0, np.uint8)
    if raw.size > _INT_MAX and MPI.Get_version() < (4, 0):
        return [raw, 1, _large(raw.size)]
    return [raw, raw.size, MPI.BYTE]


class MPIComm(Communicator):
    """One rank's handle of a group of processes. It owns `mpi`, an mpi4py communicator nobody else sends on."""

    xp = numpy

    def __init__(self, mpi: MPI.Comm, here: Node, homes: Sequence[int], axis: str = "all") -> None:
        super().__init__(mpi.Get_rank(), mpi.Get_size(), axis)
        self.mpi, self.node, self.homes = mpi, here, homes
        # On crowded cores each step of a tree waits for its rank's turn: 8 ranks on 2 cores take 8 times as long.
        self.tree = len(set(homes)) > 1 or not here.crowded
        # Requests hold the memory that MPI reads and writes: a Pending dropped half-way must not free it.
        self._under_way: dict[int, list[MPI.Request]] = {}

    @property
    def identity(self) -> Any:
        return self.mpi.handle

    # ------------------------------------------------------------------ messages

    def _exchange(self, call: str, sends: Mapping[int, Array], recvs: Mapping[int, Array]) -> Iterator[int]:
        return self._post(call, _VERB_TAGS + next(self._calls) % _VERB_TAGS, sends, recvs)

    def _message(self, call: str, sends: Mapping[int, Array], recvs: Mapping[int, Array], result: Array) -> Pending:
        verb, _, tag = call.rstrip(")").partition("(tag=")
        arrivals = self._post(call, int(tag), sends, recvs)
        size = sum(x.nbytes for x in recvs.values())
        return Pending(arrivals, lambda: result, (verb, self.axis, size, len(recvs)))

    def _post(self, call: str, tag: int, sends: Mapping[int, Array], recvs: Mapping[int, Array]) -> Iterator[int]:
        """Sends go out in ring order from this rank on, so that not all ranks begin with rank 0."""
        landings = [(source, out, self._landing(out)) for source, out in recvs.items()]
        requests = [self.mpi.Irecv(_spec(box), source, tag) for source, _, box in landings]
        packed: dict[int, Array] = {}
        for to, x in sorted(sends.items(), key=lambda item: (item[0] - self.rank) % self.size):
            if id(x) not in packed:
                packed[id(x)] = self._packed(x)
            requests.append(self.mpi.Isend(_spec(packed[id(x)]), to, tag))
        return self._arrivals(call, requests, landings)

    def _landing(self, out: Array) -> Array:
        """Where out's elements arrive."""
        return out if self.xp.contiguous(out) else buffer(self.xp, out.shape, out.dtype)

    def _packed(self, x: Array) -> Array:
        box = self._landing(x)
        if box is not x:
            self.xp.copy(box, x)
        return box

    def _arrivals(
        self, call: str, requests: list[MPI.Request], landings: Sequence[tuple[int, Array, Array]]
    ) -> Iterator[int]:
        """The sources of (source, out, where its elements land) in order of arrival: the first requests are theirs."""
        self._under_way[id(requests)] = requests
        return self._complete(call, requests, landings)

    def _complete(
        self, call: str, requests: list[MPI.Request], landings: Sequence[tuple[int, Array, Array]]
    ) -> Iterator[int]:
        left = len(requests)
        while left:
            ended = self._poll(call, requests)
            left -= len(ended)
            for source, out, box in (landings[i] for i in ended if i < len(landings)):
                if box is not out:
                    self.xp.copy(out, box)
                yield source
        del self._under_way[id(requests)]

    def bcast(self, x: Array, root: int) -> Pending:
        """x of `root` into x of every rank, along the library's tree where that pays. Others receive x.nbytes."""
        if not self.tree or self.size == 1 or not x.size:
            return super().bcast(x, root)
        mine = self.rank == root
        box = self._packed(x) if mine else self._landing(x)
        requests = [self.mpi.Ibcast(_spec(box), root)]
        arrivals = self._arrivals("bcast", requests, [] if mine else [(root, x, box)])
        return Pending(arrivals, lambda: x, ("bcast", self.axis, 0 if mine else x.nbytes, 0 if mine else 1))

    # ------------------------------------------------------------------ waiting

    def _poll(self, call: str, requests: list[MPI.Request]) -> list[int]:
        """Wait until some of the requests have ended: which."""
        polls, start = 0, time.monotonic()
        while not (ended := MPI.Request.Testsome(requests)):
            polls += 1
            self.node.pause(polls)
            if polls % 64 == 0 and 0 < config.settings.timeout < time.monotonic() - start:
                self._give_up(call)
        return ended

    def _wait(self, call: str, request: MPI.Request) -> None:
        self._poll(call, [request])

    def _give_up(self, call: str) -> None:
        where = f"{call} on {self.axis!r} ({self.size} ranks, this is rank {self.rank} of them)"
        say(f"has waited {config.settings.timeout:g} s (PDLA_TIMEOUT) for other ranks in {where}; its stack:")
        faulthandler.dump_traceback(2)
        time.sleep(_PATIENCE)
        MPI.COMM_WORLD.Abort(1)

    # ------------------------------------------------------------------ agreement and groups

    def share(self, value: Any) -> list[Any]:
        payload = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        mine, sizes = np.array([len(payload)]), np.empty(self.size, np.int64)
        self._wait("share", self.mpi.Iallgather([mine, MPI.INT64_T], [sizes, MPI.INT64_T]))
        ends = np.cumsum(sizes)
        everyone = np.empty(ends[-1], np.uint8)
        pieces = [everyone, (sizes, ends - sizes), MPI.BYTE]
        self._wait("share", self.mpi.Iallgatherv([payload, MPI.BYTE], pieces))
        return [pickle.loads(everyone[end - size : end].tobytes()) for size, end in zip(sizes, ends, strict=True)]

    def same(self, text: str) -> bool:
        return self._same(text, "agree")

    def barrier(self) -> None:
        self._same("", "barrier")

    def _same(self, text: str, call: str) -> bool:
        """The least of a digest and the least of its complement fit together only where all digests are one."""
        digest = np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), np.int64)
        mine = np.concatenate([digest, ~digest])
        least = np.empty_like(mine)
        self._wait(call, self.mpi.Iallreduce([mine, MPI.INT64_T], [least, MPI.INT64_T], MPI.MIN))
        return bool((least[:2] == ~least[2:]).all())

    def split(self, ranks: Sequence[int] | None, axis: str) -> MPIComm | None:
        self._same("", f"split({axis!r})")  # MPI's own call cannot be watched
        if ranks is None:
            self.mpi.Split(MPI.UNDEFINED)
            return None
        group = self.mpi.Split(min(ranks), list(ranks).index(self.rank))
        return MPIComm(group, self.node, [self.homes[r] for r in ranks], axis)

    def close(self) -> None:
        if self.mpi != MPI.COMM_NULL and not MPI.Is_finalized():
            self.mpi.Free()


# ---------------------------------------------------------------------------------------------- where it begins


def world() -> MPIComm:
    """The communicator over all ranks of the job. The first call is collective."""
    return wrap(MPI.COMM_WORLD)


def wrap(comm: MPI.Comm) -> MPIComm:
    """pdla's communicator over the ranks of an mpi4py one: a duplicate, made once. The first call is collective.

    The first one of a process also shares out the cores: it holds BLAS to PDLA_THREADS threads or this rank's share.
    Freeing comm frees the duplicate. Raises GridError for an inter-communicator and for the null communicator.
    """
    if comm == MPI.COMM_NULL or comm.Is_inter():
        raise GridError(f"pdla needs a communicator over one group of ranks, not {comm!r}")
    ours: Any = comm.Get_attr(_key())
    if ours is None:
        ours = MPIComm(comm.Dup(), *node(comm))
        comm.Set_attr(_key(), ours)
        _share_out(ours.node)
    return ours


@cache
def _key() -> int:
    """The MPI attribute under which a communicator keeps its duplicate; duplicates of comm do not inherit it."""
    return MPI.Comm.Create_keyval(delete_fn=lambda comm, key, ours: ours.close())


_shared_out = threading.Event()


def _share_out(here: Node) -> None:
    if not _shared_out.is_set():
        _shared_out.set()
        blas.hold(config.settings.threads or blas.share_cores(here.ranks))


# ---------------------------------------------------------------------------------------------- how it ends


def say(text: str) -> None:
    """A line on the true stderr, with this rank's number in the job."""
    os.write(2, f"[rank {MPI.COMM_WORLD.Get_rank()} of {MPI.COMM_WORLD.Get_size()}] {text}\n".encode())


def _end_job(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    sys.stdout.flush()
    say("".join(traceback.format_exception(kind, error, trace)))
    MPI.COMM_WORLD.Abort(1)


def abort_on_exception() -> None:
    """From here on an uncaught exception on one rank, in any thread, ends the whole job, its traceback printed.

    Without it the other ranks wait for that rank until PDLA_TIMEOUT. One line at the top of a program:
    `pdla.abort_on_exception()`. sys.exit on one rank is no exception and ends no other.
    """

    def end_in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            _end_job(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook = _end_job
    threading.excepthook = end_in_thread


# ---------------------------------------------------------------------------------------------- which MPI this is


def library() -> dict[str, str]:
    """What this MPI and mpi4py call themselves; not collective."""
    version = ".".join(map(str, MPI.Get_version()))
    return {"library": MPI.Get_library_version().strip("\0\n "), "standard": version, "mpi4py": mpi4py.__version__}


def library_barrier(comm: MPIComm) -> None:
    """Collective: MPI's own blocking barrier, to see how this MPI waits."""
    comm.mpi.Barrier()
