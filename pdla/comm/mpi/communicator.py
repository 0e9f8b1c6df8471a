"""Ranks as processes, over MPI.

A verb posts a round of messages when it is called, all receives first. Arrays travel as bytes in C
order: contiguous ones without a copy, strided ones through a buffer. A waiting rank tests for
messages in a loop. The loop lets other processes run if the ranks of a node outnumber its cores.
After PDLA_TIMEOUT seconds it prints stacks and ends the job. Between nodes a thread of each rank
lets MPI work while the rank computes.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from threading import get_ident
from types import ModuleType
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from pdla import config
from pdla.array import numpy
from pdla.comm.agreement import mark_out_of_step, name_ranks, raise_disagreement
from pdla.comm.collectives.broadcast import Messages
from pdla.comm.communicator import VERB_TAGS, Communicator
from pdla.comm.group import Array, Forwards, Group, OnArrival, Pieces, sections
from pdla.comm.mpi import libmpi, staging
from pdla.comm.mpi.abort import give_up, watch
from pdla.comm.mpi.libmpi import MPI
from pdla.comm.mpi.mapped import map_memory
from pdla.comm.mpi.messages import FAR_PIECE, Round, Send, pieces, send_on, start_progress, unsent
from pdla.comm.mpi.node import FAR, NEAR, Node, Patience
from pdla.comm.mpi.shared_buffer import WindowBuffer
from pdla.comm.shared_buffer import SharedBuffer
from pdla.errors import AgreementError, GridError, PdlaError

AT_ONCE = 512 << 10  # if each rank sends to each: bytes under way to one rank at a time, but at least two messages
_ARRAY = itemgetter(1)
_LOOK = 1.0  # most seconds between two readings of the clock that count as waiting: in longer ones the job was suspended


class MPIComm(Communicator):
    """One rank's handle of a group of processes; only this class sends on `mpi`, its mpi4py communicator."""

    xp: ModuleType
    homes: Sequence[int]
    adds: bool
    mpi: MPI.Comm
    node: Node

    staged = False  # whether a device's arrays go through pinned memory of the host

    def __init__(self, mpi: MPI.Comm, node: Node, homes: Sequence[int], axis: str = "all", xp: ModuleType = numpy) -> None:
        super().__init__(mpi.Get_rank(), mpi.Get_size(), axis)
        self.xp, self.adds = xp, xp is numpy
        self.mpi, self.node, self.homes = mpi, node, homes
        self._progress = start_progress(node, xp) if self.nodes > 1 else None
        # Whether MPI's broadcast, by a tree, pays: each of its steps waits until a rank gets a core, and
        # 8 ranks on 2 cores take 8 times as long.
        self.tree: bool = self.nodes > 1 or not node.is_crowded
        self._shared_buffer: WindowBuffer | None = None
        # Rounds to which MPI may still write, each with a reference to the iterator that waits for it.
        self._under_way: dict[int, tuple[Round, ref[Iterator[int]]]] = {}
        self._waits: dict[int, Any] = {}  # requests of `_wait`, and their memory

    @property
    def identity(self) -> Any:
        return self.mpi.handle

    @property
    def workers(self) -> int:
        return self.size if self.nodes > 1 else min(self.size, self.node.cores)

    def _check_open(self) -> None:
        libmpi.check_running()
        if self.mpi == MPI.COMM_NULL:
            raise GridError(f"the communicator of {self.size} ranks has been freed: its grids and matrices can no longer be used")

    # ------------------------------------------------------------------ messages

    def _exchange(
        self, call: str, sends: Pieces, recvs: Pieces, forwards: Forwards, on_arrival: OnArrival | None = None
    ) -> Iterator[int]:
        return self._post(call, VERB_TAGS + self._number() % VERB_TAGS, sends, recvs, forwards, on_arrival)

    def _exchange_tagged(self, verb: str, tag: int, sends: Pieces, recvs: Pieces) -> Iterator[int]:
        self._check_open()
        return self._post(f"{verb}(tag={tag})", tag, sends, recvs, {})

    def _post(
        self, call: str, tag: int, sends: Pieces, recvs: Pieces, forwards: Forwards, on_arrival: OnArrival | None = None
    ) -> Iterator[int]:
        """Post a round: receives, then sends, in ring order from this rank on, so that each starts with a different rank.

        If each rank sends to each, post only few sends at first. Yield the numbers of `recvs` in order
        of arrival.
        """
        landings = staging.make_landings([*map(_ARRAY, recvs)], self.staged) if recvs else {}
        # Pack before posting: if memory runs out here, MPI must have no receives into freed memory.
        packed = staging.pack([*map(_ARRAY, sends)], self.staged) if sends else {}
        receives, posted, expected = [], [], []
        cut = self.staged or self.nodes > 1
        for i, (source, out) in enumerate(recvs):
            box = landings[i].box if i in landings else out
            for number, piece in enumerate(pieces(box, self._find_least_piece(source) if cut else 0)):
                receives.append(self.mpi.Irecv(piece, source, tag))
                expected.append((i, number, piece[0].nbytes))
        packing: list[tuple[Any, Send]] = []
        later: dict[int, list[Send]] = {}
        for i in forwards:
            box = landings[i].box if i in landings else recvs[i][1]
            later[i] = [send for to in forwards[i] for send in self._make_sends(pieces(box, self._find_least_piece(to)), to, tag)]
        turns = {} if forwards or self.nodes == 1 else self._map_delayed_sends(sends, recvs)
        if len(sends) > 1:
            sends = [*map(sends.__getitem__, self._order_by_ring(sends))]
        before = None
        for to, x in sends:
            if cut or x is not before:  # else reuse the pieces of the previous rank
                box, events = packed.get(id(x), (x, ()))
                parts, before = pieces(box, self._find_least_piece(to) if cut else 0), x
            if events:
                packing += zip(events, self._make_sends(parts, to, tag), strict=True)
            elif to in turns:
                later[turns[to]] = self._make_sends(parts, to, tag)
            else:
                for piece in parts:
                    posted.append(self.mpi.Isend(piece, to, tag))
        by_piece = [i for i in landings if landings[i].by_piece] if landings else ()
        return self._arrivals(call, Round(receives, expected, posted, later, packing, by_piece, on_arrival), landings)

    def _map_delayed_sends(self, sends: Pieces, recvs: Pieces) -> dict[int, int]:
        """Map receivers of delayed sends to the number, in `recvs`, of the message that must come first.

        The map is empty unless each rank sends to each other.
        """
        place = {source: i for i, (source, _) in enumerate(recvs)}
        if not len(sends) == len(recvs) == len(dict(sends)) == len(place) == self.size - 1:
            return {}
        at_once = max(2, AT_ONCE // max(1, *(x.nbytes for _, x in recvs)))
        further = range(1, self.size - at_once)
        return {(self.rank + at_once + i) % self.size: place[(self.rank - i) % self.size] for i in further}

    def _make_sends(self, parts: Sequence[Any], to: int, tag: int) -> list[Send]:
        return [partial(self.mpi.Isend, piece, to, tag) for piece in parts]

    def _find_least_piece(self, rank: int) -> int:
        """Find the least bytes of a piece of a message from or to this rank; 0: messages travel whole."""
        if self.staged:
            return staging.PIECE
        return FAR_PIECE if self._is_far(rank) else 0

    def _arrivals(self, call: str, round_: Round, landings: Mapping[int, staging.Landing]) -> Iterator[int]:
        """Start waiting for a posted round; yield the numbers of its messages in order of arrival."""
        for before, waiting in [*self._under_way.values()]:
            if waiting() is None:
                self._let_go(before)
        arrivals = self._complete(call, round_, landings)
        self._under_way[id(round_)] = round_, ref(arrivals)
        if self._progress is not None:
            self._progress.begin(round_)
        return arrivals

    def _let_go(self, round_: Round) -> None:
        """End a round whose Pending was dropped, if MPI has finished with it, so that its memory is freed."""
        round_.advance()
        if not round_.left:
            self._end(round_)

    def _end(self, round_: Round) -> None:
        del self._under_way[id(round_)]
        if self._progress is not None:
            self._progress.finish(round_)

    def _complete(self, call: str, round_: Round, landings: Mapping[int, staging.Landing]) -> Iterator[int]:
        left = True
        while left:
            self._wait_until(call, round_.advance, round_=round_)
            if round_.fault:
                raise AgreementError(f"{call} on {self.axis!r}: {round_.fault} than rank {self.rank} expects")
            left = round_.left
            while round_.come:
                i, number = round_.come.popleft()
                if i not in landings or landings[i].land(number):
                    yield i
        self._end(round_)

    def _broadcast(self, x: Array, root: int, m: Messages) -> Iterator[int]:
        """Start MPI's own broadcast, one for each piece.

        The ledger counts x as sent directly by root, as MPI does not report its algorithm. All ranks
        must start collectives in the same order, so the root waits here until its device has packed
        each piece.
        """
        if self.size == 1 or not x.size:
            return super()._broadcast(x, root, m)
        self._number()
        mine = self.rank == root
        landings = {} if mine else staging.make_landings([x], self.staged)
        packed = staging.pack([x], self.staged) if mine else {}
        box, events = packed.get(id(x), (landings[0].box if landings else x, ()))
        parts = pieces(box, staging.PIECE if self.staged else 0)
        requests = []
        for number, part in enumerate(parts):
            if events:
                self._wait_until("bcast", partial(getattr, events[number], "done"))
            requests.append(self.mpi.Ibcast(part, root))
        if mine:
            return self._arrivals("bcast", Round([], [], requests, {}), {})
        expected = [(0, number, -1) for number in range(len(parts))]
        by_piece = [i for i in landings if landings[i].by_piece]
        return self._arrivals("bcast", Round(requests, expected, [], {}, by_piece=by_piece), landings)

    # ------------------------------------------------------------------ waiting

    def _wait_until(
        self, call: str, ready: Callable[[], bool], pause: Callable[[int], None] | None = None, round_: Round | None = None,
        awaited: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        """Wait until `ready` is true; call pause(polls) between polls, with the number of polls so far.

        * ready: also lets MPI work on round_, if one is given.
        * awaited: gives the ranks that this one waits for, if known.

        Without a round the loop still polls MPI: other ranks may wait for messages that MPI is sending for this rank.
        """
        if ready():
            return
        if (before := self.user) is None:
            self.user = get_ident(), call
        polls, waited, seen = 0, 0.0, time.monotonic()
        pause = pause or (self._probe if round_ is None else partial(self.node.pause, patience=self._patience))
        if self._progress is not None:
            self._progress.resting = True
        try:
            while True:
                if unsent:  # rarely; each microsecond between two polls is one that another rank on this core waits
                    send_on(but=round_)
                polls += 1
                pause(polls)
                if polls % 64 == 0:
                    self._check_threads(call)
                    waited, seen = waited + min(_LOOK, time.monotonic() - seen), time.monotonic()
                    if 0 < config.settings.timeout < waited:
                        missing = [*awaited()]
                        give_up(self._describe(call) + (f", for {name_ranks(missing)}" if missing else ""), sys.exception())
                if ready():
                    return
        finally:
            self.user = before
            if self._progress is not None:
                self._progress.resting = False

    def _check_threads(self, call: str) -> None:
        """Call `check_one_thread` of this communicator and of those above it, while this thread waits."""
        comm: Group | None = self
        while comm is not None:
            if comm.clash:
                comm.check_one_thread(call)
            comm = comm.above

    @property
    def _patience(self) -> Patience:
        return NEAR if self.nodes == 1 else FAR

    def _probe(self, polls: int) -> None:
        self.mpi.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        self.node.pause(polls, self._patience)

    def _wait(self, call: str, request: MPI.Request, *memory: Array) -> None:
        """Wait for one request.

        The communicator keeps the memory to which MPI writes until the request has ended, even if a
        signal's handler raises meanwhile; mpi4py's Iallreduce does not.
        """
        self._waits[id(request)] = request, memory
        self._wait_until(call, request.Test, partial(self.node.pause, patience=self._patience))
        del self._waits[id(request)]

    def _describe(self, call: str) -> str:
        return f"{call} on {self.axis!r} ({self.size} ranks, this is rank {self.rank} of them)"

    # ------------------------------------------------------------------ agreement and groups

    def share(self, value: Any) -> list[Any]:
        payload = _pickle(value)
        try:
            everyone = self._gather_bytes(payload)
        except PdlaError:
            raise
        except BaseException as error:  # a signal's handler raised it: the others may be in either half, and cannot agree
            cause = f"{type(error).__name__}: {error}"
            mark_out_of_step(self, f"rank {self.rank} left a share on {self.axis!r} that others are in ({cause})")
            raise
        values = [pickle.loads(row.data) for row in everyone]  # pickle ignores the zeros behind its end
        if faults := [(rank, each.text) for rank, each in enumerate(values) if isinstance(each, _Fault)]:
            raise PdlaError("; ".join(f"share: rank {rank}'s object: {text}" for rank, text in faults))
        return values

    def _gather_bytes(self, payload: bytes) -> np.ndarray:
        """Collective: gather the bytes of every rank, by rank, padded with zeros to the longest."""
        longest = self._meet_in_verb("share", len(payload))
        mine, everyone = np.zeros(longest, np.uint8), np.empty((self.size, longest), np.uint8)
        mine[: len(payload)] = np.frombuffer(payload, np.uint8)
        self._wait("share", self.mpi.Iallgather([mine, MPI.BYTE], [everyone, MPI.BYTE]), mine, everyone)
        return everyone

    def same(self, text: str) -> bool:
        return self._meet(text, text)[0]

    def barrier(self) -> None:
        self._meet_in_verb("barrier")

    def _meet_in_verb(self, call: str, size: int = 0) -> int:
        """Collective: find the largest of the ranks' sizes, once all are in this verb.

        Raise AgreementError if some are in another call that compares texts.
        """
        alike, largest = self._meet(f"the verb {call.partition('(')[0]}", call, size)
        if not alike:
            raise_disagreement(self, call)
        return largest

    def _meet(self, text: str, call: str, size: int = 0) -> tuple[bool, int]:
        """Collective: return whether all ranks gave the same text, and the largest of their sizes.

        Ranks meet only here, so that ranks in different calls notice it. By messages, the digests are
        equal if their minimum is the complement of the minimum of their complements.
        """
        self.check_in_step()
        if sections.get():
            self.count_meeting()
        digest = np.frombuffer(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest(), np.int64)
        if self._shared_buffer is not None and self._shared_buffer.window is not None:
            *digests, sizes = self._shared_buffer.meet(call, (*digest.tolist(), size))
            return len({*zip(*digests, strict=True)}) == 1, max(sizes)
        mine = np.concatenate([digest, ~digest, [-size]])
        least = np.empty_like(mine)
        self._wait(call, self.mpi.Iallreduce([mine, MPI.INT64_T], [least, MPI.INT64_T], MPI.MIN), mine, least)
        return bool((least[:2] == ~least[2:4]).all()), -int(least[4])

    def split(self, ranks: Sequence[int] | None, axis: str) -> MPIComm | None:
        self._wait_until(f"split({axis!r})", send_on)
        # First all ranks meet: a rank in MPI's own call forwards no message, and a rank that has not
        # reached this call may wait for one.
        self._meet_in_verb(f"split({axis!r})")
        node = self.node
        if node.is_crowded and self.nodes == 1:  # ranks without a group leave their cores to the others
            node = replace(node, ranks=node.ranks - self.share(ranks is None).count(True))
        with watch(self._describe(f"split({axis!r})")):
            group = self.mpi.Split(*((MPI.UNDEFINED, 0) if ranks is None else (min(ranks), list(ranks).index(self.rank))))
        if ranks is None:
            return None
        comm = type(self)(group, node, [self.homes[r] for r in ranks], axis, self.xp)
        comm.staged, comm.shared_limit = self.staged, self.shared_limit
        return comm

    def shared_buffer(self) -> SharedBuffer | None:
        if self.nodes > 1 or self.xp is not numpy:
            return None
        self._shared_buffer = self._shared_buffer or WindowBuffer(self)
        return self._shared_buffer

    def common(self, size: int) -> Any:
        return map_memory(self, size) if self.shared_limit and self.nodes == 1 else None

    def close(self) -> None:
        if self.mpi != MPI.COMM_NULL and not MPI.Is_finalized():
            super().close()
            if "node_comm" in vars(self):
                self.node_comm.close()
            if self._shared_buffer is not None:
                with watch(self._describe("freeing a communicator")):  # it hangs if other ranks free another one first
                    self._shared_buffer.free()
            self.mpi.Free()


class _Fault(NamedTuple):
    """The value that a rank shares if its object cannot be pickled, as the others wait for one."""

    text: str


def _pickle(value: Any) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickle's, and whatever an object's own methods raise
        return pickle.dumps(_Fault(str(error)), pickle.HIGHEST_PROTOCOL)
