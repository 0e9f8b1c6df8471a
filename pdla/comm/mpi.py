"""Ranks as processes, over mpi4py: the one place that imports it.

A round of messages is posted when its verb is called, all receives first. Arrays travel as bytes in C order: contiguous
ones where they lie, strided ones through a buffer. Waiting is a loop of tests, which lets other processes run where the
ranks of a node outnumber its cores, and which ends the job, stacks printed, after PDLA_TIMEOUT seconds. Where ranks are on
several nodes a thread of each lets MPI work while the rank computes.
"""

from __future__ import annotations

import atexit
import faulthandler
import hashlib
import os
import pickle
import sys
import threading
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from types import ModuleType, TracebackType
from typing import Any, NamedTuple

import numpy as np

from pdla import config
from pdla.array import blas, chosen, namespace, numpy
from pdla.comm import device
from pdla.comm.base import Array, Communicator, Onward, Pending, Pieces
from pdla.comm.board import Board, Turns
from pdla.errors import AgreementError, DeviceError, GridError, NoMPIError

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
_SHARED = "/dev/shm"  # where MPIs keep the memory that ranks share
_PIECE, _PIECES = 512 << 10, 16  # bytes of a message's pieces between nodes, longer ones where these would be more than so many
_WORDS = 8  # from one word by which ranks meet to the next: each has a cache line of its own
_LETS_WORK = 8  # polls of shared memory from one call of MPI to the next: others may wait for messages of this rank
_HEARD = 0.5  # seconds in which the launcher passes on what was printed: an aborted job's last words may be lost
_PATIENCE = 2.0  # seconds in which other ranks, too, can print where they wait
Send = Callable[[], MPI.Request]
Landing = tuple[Array, Array]  # out, where its elements arrive
_NAP, _GROWTH = 100e-6, 10  # naps of a rank that shares its core, in seconds, the first ones; how many until they are twice as long


class Patience(NamedTuple):
    """Of a rank that shares its core: polls before it sleeps between them, and the longest nap, in seconds."""

    polls: int
    longest: float


_NEAR = Patience(200, 5e-3)
_FAR = Patience(10, 1e-3)  # what it waits for is longer on its way; and a network does nothing unless it is asked to


@dataclass(frozen=True)
class Node:
    """This machine: how many of the ranks run on it, and on how many cores."""

    ranks: int
    cores: int

    @property
    def crowded(self) -> bool:
        return self.ranks > self.cores or config.settings.crowded

    def pause(self, polls: int, patience: Patience) -> None:
        """Between two polls: leave the core to a rank that may have something to do."""
        if polls > patience.polls and self.crowded:
            time.sleep(min(patience.longest, _NAP * max(1.0, (polls - patience.polls) / _GROWTH)))
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


def shareable(comm: MPI.Comm) -> int:
    """Collective over comm, all on one node: bytes of its shared memory that may be taken, half of what is free."""
    free = 0
    if os.path.isdir(_SHARED):
        room = os.statvfs(_SHARED)
        free = room.f_bavail * room.f_frsize // 2
    return comm.allreduce(free, MPI.MIN)


@lru_cache(maxsize=64)
def _large(size: int) -> MPI.Datatype:
    """So many bytes as one datatype, for MPIs whose counts are 32 bits."""
    chunks, rest = divmod(size, _CHUNK)
    parts = [MPI.BYTE.Create_contiguous(_CHUNK).Create_contiguous(chunks), MPI.BYTE.Create_contiguous(rest)]
    return MPI.Datatype.Create_struct([1, 1], [0, chunks * _CHUNK], parts).Commit()


def _spec(x: np.ndarray) -> list[Any]:
    """A C-contiguous array as mpi4py takes it: bytes, since some dtypes have no buffer format and no MPI type."""
    (raw,) = _pieces(x, False)
    if raw.size > _INT_MAX and MPI.Get_version() < (4, 0):
        return [raw, 1, _large(raw.size)]
    return [raw, raw.size, MPI.BYTE]


def _pieces(x: np.ndarray, far: bool) -> list[np.ndarray]:
    """The pieces in which a C-contiguous array travels; the last is shorter than the others, so that no two lengths fit.

    Between nodes both directions of a pair would wait for each other's whole messages: MPI asks for a long one's data by a
    word that queues behind the data that go the other way.
    """
    raw = x.reshape(-1).view(np.uint8) if x.size else np.empty(0, np.uint8)
    if not far or raw.size < _PIECE:
        return [raw]
    step = max(_PIECE, raw.size // _PIECES)
    return [raw[lo : lo + step] for lo in range(0, raw.size + 1, step)]


class Round:
    """Messages under way: what has come, and what is to be sent on. Both the rank's own thread and `progress` advance it.

    It holds the memory that MPI reads and writes: a Pending dropped half-way must not free it.
    """

    def __init__(
        self, requests: list[MPI.Request], expected: Sequence[tuple[int, int]], onward: Mapping[int, list[Send]]
    ) -> None:
        """The first requests are receives, `expected`: of which message a piece, and its bytes (-1: not to be checked)."""
        self.requests, self.expected, self.onward = requests, expected, onward
        self.missing = Counter(message for message, _ in expected)
        self.turns = deque(onward)
        self.lock = threading.Lock()
        self.left = len(requests)
        self.come: deque[int] = deque()
        self.fault = ""

    def advance(self) -> bool:
        """Let MPI work; whether anything is here that has not been taken, or all is done, or a rank sent another length."""
        with self.lock:
            if self.left and not self.fault:
                statuses: list[MPI.Status] = []
                try:
                    self._note(MPI.Request.Testsome(self.requests, statuses) or [], statuses)
                except MPI.Exception:
                    self.fault = next((f"rank {s.source} sends more" for s in statuses if _truncated(s)), "")
                    if not self.fault:
                        raise
            return bool(self.come or self.fault) or not self.left

    def _note(self, ended: list[int], statuses: list[MPI.Status]) -> None:
        for i, status in zip(ended, statuses, strict=True):
            if i < len(self.expected):
                message, size = self.expected[i]
                self._check(size, status)
                self.missing[message] -= 1
                if not self.missing[message]:
                    self.come.append(message)
        sent: list[MPI.Request] = []
        while self.turns and not self.missing[self.turns[0]] and not self.fault:
            sent += [send() for send in self.onward[self.turns.popleft()]]
        self.requests += sent
        self.left += len(sent) - len(ended)  # last: who reads 0 finds all that has come

    def _check(self, expected: int, status: MPI.Status) -> None:
        count = status.Get_count(MPI.BYTE)
        if expected >= 0 and count not in (expected, MPI.UNDEFINED):  # undefined: beyond an old MPI's 32 bits
            self.fault = f"rank {status.source} sends less ({count} bytes, not {expected})"


def _truncated(status: MPI.Status) -> bool:
    return MPI.Get_error_class(status.error) == MPI.ERR_TRUNCATE


class Progress:
    """A thread that calls MPI while this rank computes: between calls MPI moves nothing over a network.

    It looks every PDLA_PROGRESS seconds, and less often where ranks share a core, while rounds are under way; on one node
    it does not run, since there a message is a copy, which takes a core whoever makes it.
    """

    def __init__(self, here: Node) -> None:
        self.nap = config.settings.progress * max(1.0, here.ranks / here.cores)
        self.rounds: dict[int, Round] = {}
        self.wanted, self.ended = threading.Event(), False
        self.thread = threading.Thread(target=self._look, name="pdla progress", daemon=True)
        self.thread.start()
        atexit.register(self.end)

    def _look(self) -> None:
        while self.wanted.wait() and not self.ended:
            for round_ in list(self.rounds.values()):
                round_.advance()
            time.sleep(self.nap)

    def begin(self, round_: Round) -> None:
        self.rounds[id(round_)] = round_
        self.wanted.set()

    def finish(self, round_: Round) -> None:
        del self.rounds[id(round_)]
        if not self.rounds:
            self.wanted.clear()

    def end(self) -> None:
        """No MPI call after this."""
        self.ended = True
        self.wanted.set()
        self.thread.join()


@cache
def progress(here: Node) -> Progress | None:
    """The one of this process; None where it is not wanted or MPI is not to be called by two threads."""
    threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    return Progress(here) if config.settings.progress and threads else None


class MPIComm(Communicator):
    """One rank's handle of a group of processes. It owns `mpi`, an mpi4py communicator nobody else sends on."""

    aware = False  # whether MPI is given device memory

    def __init__(self, mpi: MPI.Comm, here: Node, homes: Sequence[int], axis: str = "all", xp: ModuleType = numpy) -> None:
        super().__init__(mpi.Get_rank(), mpi.Get_size(), axis)
        self.xp = xp
        self.mpi, self.node, self.homes = mpi, here, homes
        self._progress = progress(here) if self.nodes > 1 else None
        # On crowded cores each step of a tree waits for its rank's turn: 8 ranks on 2 cores take 8 times as long.
        self.tree = self.nodes > 1 or not here.crowded
        self._board: NodeBoard | None = None
        self._under_way: dict[int, Round] = {}

    @property
    def identity(self) -> Any:
        return self.mpi.handle

    # ------------------------------------------------------------------ messages

    def _exchange(self, call: str, sends: Pieces, recvs: Pieces, onward: Onward) -> Iterator[int]:
        return self._post(call, _VERB_TAGS + next(self._calls) % _VERB_TAGS, sends, recvs, onward)

    def _message(self, call: str, sends: Mapping[int, Array], recvs: Mapping[int, Array], result: Array) -> Pending:
        verb, _, tag = call.rstrip(")").partition("(tag=")
        coming = [*recvs.items()]
        return self._pending(verb, self._post(call, int(tag), [*sends.items()], coming, {}), coming, lambda: result)

    def _post(self, call: str, tag: int, sends: Pieces, recvs: Pieces, onward: Onward) -> Iterator[int]:
        """Sends go out in ring order from this rank on, so that not all ranks begin with rank 0."""
        landings = [(out, self._landing(out)) for _, out in recvs]
        boxes = [(i, source, piece) for i, (source, _) in enumerate(recvs) for piece in _pieces(landings[i][1], self._far(source))]
        requests = [self.mpi.Irecv(_spec(piece), source, tag) for _, source, piece in boxes]
        arrays = {id(x): x for _, x in sends}
        packed = dict(zip(arrays, device.packed([*arrays.values()], self.aware), strict=True))
        for to, x in sorted(sends, key=lambda item: (item[0] - self.rank) % self.size):
            requests += [send() for send in self._sends(packed[id(x)], to, tag)]
        later = {i: [send for to in onward[i] for send in self._sends(landings[i][1], to, tag)] for i in onward}
        return self._arrivals(call, Round(requests, [(i, piece.nbytes) for i, _, piece in boxes], later), landings)

    def _sends(self, box: Array, to: int, tag: int) -> list[Send]:
        return [partial(self.mpi.Isend, _spec(piece), to, tag) for piece in _pieces(box, self._far(to))]

    def _landing(self, out: Array) -> Array:
        """Where out's elements arrive."""
        return device.landing(out, self.aware)

    def _arrivals(self, call: str, round_: Round, landings: Sequence[Landing]) -> Iterator[int]:
        """The numbers of `landings` in order of arrival: the first requests are theirs."""
        self._under_way[id(round_)] = round_
        if self._progress is not None:
            self._progress.begin(round_)
        return self._complete(call, round_, landings)

    def _complete(self, call: str, round_: Round, landings: Sequence[Landing]) -> Iterator[int]:
        while round_.left or round_.come:
            self._until(call, round_.advance)
            if round_.fault:
                raise AgreementError(f"{call} on {self.axis!r}: {round_.fault} than rank {self.rank} expects")
            while round_.come:
                i = round_.come.popleft()
                out, box = landings[i]
                if box is not out:
                    namespace(out).land(out, box)
                yield i
        del self._under_way[id(round_)]
        if self._progress is not None:
            self._progress.finish(round_)

    def bcast(self, x: Array, root: int) -> Pending:
        """x of `root` into x of every rank, the way that PDLA_BCAST says. Each other rank receives x.nbytes."""
        if self._way(x.nbytes) != "mpi" or self.size == 1 or not x.size:
            return super().bcast(x, root)
        mine = self.rank == root
        box = device.packed([x], self.aware)[0] if mine else self._landing(x)
        landings = [] if mine else [(x, box)]
        arrivals = self._arrivals("bcast", Round([self.mpi.Ibcast(_spec(box), root)], [(0, -1)] * len(landings), {}), landings)
        received = 0 if mine else x.nbytes
        far = received if self._far(root) else 0  # MPI does not say which way the bytes took
        return Pending(arrivals, lambda: x, ("bcast", self.axis, received, len(landings), "mpi", far))

    def _way(self, nbytes: int) -> str:
        way = self.asked_way(nbytes)
        return "flat" if way == "mpi" and config.settings.bcast == "auto" and not self.tree else way

    # ------------------------------------------------------------------ waiting

    def _until(self, call: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready` says so, which lets MPI work."""
        polls, start, patience = 0, time.monotonic(), _NEAR if self.nodes == 1 else _FAR
        while not ready():
            polls += 1
            self.node.pause(polls, patience)
            if polls % 64 == 0 and 0 < config.settings.timeout < time.monotonic() - start:
                give_up(self._describe(call))

    def _wait(self, call: str, request: MPI.Request) -> None:
        self._until(call, request.Test)

    def _describe(self, call: str) -> str:
        return f"{call} on {self.axis!r} ({self.size} ranks, this is rank {self.rank} of them)"

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
        with watched(self._describe(f"split({axis!r})")):
            group = self.mpi.Split(*((MPI.UNDEFINED, 0) if ranks is None else (min(ranks), list(ranks).index(self.rank))))
        if ranks is None:
            return None
        made = MPIComm(group, self.node, [self.homes[r] for r in ranks], axis, self.xp)
        made.aware = self.aware
        return made

    def board(self) -> Board | None:
        if self.nodes > 1 or self.xp is not numpy:
            return None
        self._board = self._board or NodeBoard(self)
        return self._board

    def close(self) -> None:
        if self.mpi != MPI.COMM_NULL and not MPI.Is_finalized():
            if self._board is not None:
                self._board.free()
            self.mpi.Free()


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


# ---------------------------------------------------------------------------------------------- where it begins


def world() -> MPIComm:
    """The communicator over all ranks of the job. The first call is collective."""
    return wrap(MPI.COMM_WORLD)


def wrap(comm: MPI.Comm) -> MPIComm:
    """pdla's communicator over the ranks of an mpi4py one: a duplicate, made once. The first call is collective.

    The first one of a process also shares out the cores: it holds BLAS to PDLA_THREADS threads or this rank's share.
    Freeing comm frees the duplicate. Raises GridError for an inter-communicator and for the null communicator, DeviceError,
    on every rank, where matrices are to lie on devices and a rank has none.
    """
    if comm == MPI.COMM_NULL or comm.Is_inter():
        raise GridError(f"pdla needs a communicator over one group of ranks, not {comm!r}")
    ours: Any = comm.Get_attr(_key())
    if ours is None:
        with watched(f"wrapping a communicator of {comm.Get_size()} ranks"):
            here, homes = node(comm)
            ours = MPIComm(comm.Dup(), here, homes, xp=_arrays(comm, homes))
            ours.aware = device.aware(ours)
            ours.shared_limit = shareable(comm) if config.settings.shared and ours.board() else 0
        comm.Set_attr(_key(), ours)
        _share_out(ours)
    return ours


def _arrays(comm: MPI.Comm, homes: list[int]) -> ModuleType:
    """Collective: what matrices are made of here; DeviceError, on every rank, where they cannot be."""
    rank, xp, fault = comm.Get_rank(), numpy, ""
    try:
        xp = chosen(homes[:rank].count(homes[rank]))
    except DeviceError as error:
        fault = str(error)
    everyone = comm.allgather((config.settings.array, fault))
    if len({array for array, _ in everyone}) > 1:
        raise DeviceError(f"PDLA_ARRAY differs between ranks: {', '.join(array for array, _ in everyone)}")
    wrong = [r for r, (_, fault) in enumerate(everyone) if fault]
    if wrong:
        raise DeviceError(f"{everyone[wrong[0]][1]} (rank {wrong[0]}, {len(wrong)} of {comm.Get_size()} ranks)")
    return xp


@cache
def _key() -> int:
    """The MPI attribute under which a communicator keeps its duplicate; duplicates of comm do not inherit it."""
    return MPI.Comm.Create_keyval(delete_fn=lambda comm, key, ours: ours.close())


_shared_out = threading.Event()


def _share_out(ours: MPIComm) -> None:
    """BLAS threads for this rank, at the first communicator; the first rank of a node warns where its cores are too few."""
    if _shared_out.is_set():
        return
    _shared_out.set()
    threads, here = config.settings.threads or blas.share_cores(ours.node.ranks), ours.node
    blas.hold(threads)
    if threads > 1 and threads * here.ranks > here.cores and ours.homes[ours.rank] == ours.rank:
        warnings.warn(
            f"{here.ranks} ranks x {threads} BLAS threads on a node of {here.cores} cores: set PDLA_THREADS="
            f"{max(1, here.cores // here.ranks)}, or have the launcher bind each rank to cores of its own",
            stacklevel=2,
        )


# ---------------------------------------------------------------------------------------------- how it ends


def say(text: str) -> None:
    """A line on the true stderr, with this rank's number in the job."""
    os.write(2, f"[rank {MPI.COMM_WORLD.Get_rank()} of {MPI.COMM_WORLD.Get_size()}] {text}\n".encode())


def give_up(call: str) -> None:
    """End the job: this rank has waited too long."""
    say(f"has waited {config.settings.timeout:g} s (PDLA_TIMEOUT) for other ranks in {call}; its stack:")
    faulthandler.dump_traceback(2)
    time.sleep(_PATIENCE)
    MPI.COMM_WORLD.Abort(1)


@contextmanager
def watched(call: str) -> Iterator[None]:
    """Give up where one of MPI's blocking calls takes longer than PDLA_TIMEOUT."""
    timer = threading.Timer(config.settings.timeout, give_up, [call])
    if config.settings.timeout:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def end_job(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """End the job, this rank's exception printed."""
    sys.stdout.flush()
    say("".join(traceback.format_exception(kind, error, trace)))
    time.sleep(_HEARD)
    MPI.COMM_WORLD.Abort(1)


def abort_on_exception() -> None:
    """From here on an uncaught exception on one rank, in any thread, ends the whole job, its traceback printed.

    Without it the other ranks wait for that rank until PDLA_TIMEOUT. One line at the top of a program:
    `pdla.abort_on_exception()`. sys.exit on one rank is no exception and ends no other.
    """

    def end_in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            end_job(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook = end_job
    threading.excepthook = end_in_thread


# ---------------------------------------------------------------------------------------------- which MPI this is


def version() -> dict[str, str]:
    """What this MPI and mpi4py call themselves; not collective."""
    version = ".".join(map(str, MPI.Get_version()))
    return {"library": MPI.Get_library_version().strip("\0\n "), "standard": version, "mpi4py": mpi4py.__version__}


def first() -> bool:
    """Whether this is the first rank of the job."""
    return MPI.COMM_WORLD.Get_rank() == 0


def blocking_barrier(comm: MPIComm) -> None:
    """Collective: MPI's own blocking barrier, to see how this MPI waits."""
    comm.mpi.Barrier()
