"""Ranks with a GPU each: NCCL moves devices' arrays from device to device.

MPI moves the host's arrays, and serves the verbs send and recv.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pdla.array import namespace
from pdla.comm.collectives.broadcast import Messages
from pdla.comm.group import Array, Forwards, OnArrival, Pieces
from pdla.comm.mpi import staging
from pdla.comm.mpi.abort import watch
from pdla.comm.mpi.communicator import MPIComm
from pdla.comm.pending import Pending

Call = tuple[str, int, Array]  # a call of NCCL: ("send", "recv" or "broadcast", the peer or the root, memory without gaps)


class Group(NamedTuple):
    """Calls that NCCL makes together, and the numbers of the messages that have come at their end."""

    calls: list[Call]
    received: list[int]


class NCCLComm(MPIComm):
    """A communicator of MPI, with one of NCCL over the same ranks."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.nccl: Any = None
        self._met: set[tuple[str, int]] = set()
        self._held: dict[int, Any] = {}

    def _goes_around(self, nbytes: int) -> bool:
        return False  # each rank's device has its own link to other nodes

    def goes_stepwise(self, nbytes: int) -> bool:
        return False  # steps start in wait(), and all ranks must make NCCL's calls in one order

    def _exchange(
        self, call: str, sends: Pieces, recvs: Pieces, forwards: Forwards, on_arrival: OnArrival | None = None
    ) -> Iterator[int]:
        if not _on_device(x for _, x in (*sends, *recvs)):
            return super()._exchange(call, sends, recvs, forwards, on_arrival)
        self._number()  # number the call among MPI's verbs, as a rank without messages in it does
        landings = [staging.Landing(self.xp, out) for _, out in recvs]
        boxes = {id(x): (staging.make_gapless(self.xp, x), x) for _, x in sends}
        self.xp.copy_all([(box, x) for box, x in boxes.values() if box is not x])
        outgoing = [(to, boxes[id(x)][0]) for to, x in sends]
        incoming = [(source, landing.box) for (source, _), landing in zip(recvs, landings, strict=True)]
        return self._launch(call, groups(outgoing, incoming, forwards), landings)

    def _broadcast(self, x: Array, root: int, m: Messages) -> Iterator[int]:
        if not x.size or not _on_device([x]):
            return super()._broadcast(x, root, m)
        self._number()
        landing, mine = staging.Landing(self.xp, x), self.rank == root
        if mine and landing.box is not x:
            self.xp.copy_all([(landing.box, x)])
        return self._launch("bcast", [Group([("broadcast", root, landing.box)], [] if mine else [0])], [landing])

    def allreduce(self, x: Array, out: Array | None = None) -> Pending:
        """Add up x of all ranks on every rank, as over MPI, but start the second half here, not in `wait()`.

        Some ranks may wait before another verb, others after it, but all ranks must make NCCL's calls
        in one order.
        """
        if not _on_device([x]):
            return super().allreduce(x, out)
        out = x if out is None else out
        halves = self.halves(x, out)
        next(halves).wait()
        return Pending(iter(next(halves)), out)

    def _launch(self, call: str, groups: Sequence[Group], landings: Sequence[staging.Landing]) -> Iterator[int]:
        events, new = [], {(what, rank) for group in groups for what, rank, _ in group.calls} - self._met
        self._met |= new
        meeting = watch(self._describe(call)) if new else nullcontext()  # the first call with a peer blocks until it makes it, too
        with self.xp.use_stream("messages", self.xp.mark()) as stream, meeting:
            for group in groups:
                self._make_calls(group.calls, stream)
                events.append(self.xp.mark())
        self._held[id(events)] = events, groups, landings  # events too: while they live no other list has their id
        return self._arrive(call, events, groups, landings)

    def _make_calls(self, calls: Sequence[Call], stream: Any) -> None:
        with _core().group():
            for what, rank, box in calls:
                flat = box.reshape(-1).view(np.uint8)
                buffers = (flat, flat) if what == "broadcast" else (flat,)
                getattr(self.nccl, what)(*buffers, rank, stream=stream.ptr)

    def _arrive(
        self, call: str, events: Sequence[Any], groups: Sequence[Group], landings: Sequence[staging.Landing]
    ) -> Iterator[int]:
        for event, group in zip(events, groups, strict=True):
            self._wait_until(call, partial(getattr, event, "done"))
            for i in group.received:
                landings[i].land(0)
                yield i
        del self._held[id(events)]

    def split(self, ranks: Sequence[int] | None, axis: str) -> NCCLComm | None:
        self._check_open()
        with self.xp.use_stream("messages", self.xp.mark()):
            idle = self.xp.mark()
        self._wait_until(f"split({axis!r})", partial(getattr, idle, "done"))  # NCCL splits only idle communicators
        comm = super().split(ranks, axis)
        with watch(self._describe(f"split({axis!r})")):
            group = self.nccl.split(*((None, 0) if ranks is None else (min(ranks), list(ranks).index(self.rank))))
        if not isinstance(comm, NCCLComm):
            return None
        comm.nccl = group
        return comm

    def close(self) -> None:
        with watch(self._describe("freeing a communicator")):  # NCCL waits for the other ranks of the node
            self.nccl.destroy()
        super().close()


def groups(sends: Pieces, recvs: Pieces, forwards: Forwards) -> list[Group]:
    """Divide a round into groups of NCCL calls; a group has at most one message to each rank and one from it.

    A message is forwarded in the group after the one that receives it. Later receives are in that
    group or in later ones. In the algorithms of broadcast.py no rank thus waits in one group for a
    message that another sends in a later group. Empty messages are left out.
    """
    by_number: dict[int, Group] = {0: Group([], [])}
    used = Counter[tuple[str, int]]()

    def put(what: str, rank: int, box: Array, first: int) -> int:
        if not box.size:
            return 0
        number = max(first, used[what, rank])
        used[what, rank] = number + 1
        by_number.setdefault(number, Group([], [])).calls.append((what, rank, box))
        return number

    for to, box in sends:
        put("send", to, box, 0)
    first, group_of = 0, []
    for i, (source, box) in enumerate(recvs):
        group_of.append(put("recv", source, box, first))
        by_number[group_of[i]].received.append(i)
        first = group_of[i] + 1 if i in forwards else first
    for i, ranks in forwards.items():
        for to in ranks:
            put("send", to, recvs[i][1], group_of[i] + 1)
    return [by_number[number] for number in sorted(by_number)]


def _on_device(arrays: Iterable[Array]) -> bool:
    return any(namespace(x).name == "cupy" for x in arrays)


# ---------------------------------------------------------------------------------------------- making one


def _core() -> Any:
    from nccl import core

    return core


def make_communicator(comm: MPIComm) -> tuple[NCCLComm | None, str]:
    """Collective: make a communicator with NCCL over comm's ranks. Return it and "", or None and the reason, on every rank."""
    if fault := _find_fault(comm):
        return None, fault
    made = NCCLComm(comm.mpi, comm.node, comm.homes, comm.axis, comm.xp)
    name, fault = comm.share(try_call(comm, lambda: bytes(_core().get_unique_id()) if comm.rank == 0 else b""))[0]
    if not fault:
        with watch("NCCL's first meeting"):
            init, named = _core().Communicator.init, _core().UniqueId.from_bytes
            made.nccl, fault = try_call(comm, lambda: init(comm.size, comm.rank, named(name)))
        fault = next(filter(None, comm.share(fault)), "")
    return (None if fault else made), fault


def try_call(comm: MPIComm, call: Callable[[], Any]) -> tuple[Any, str]:
    """Return the result of call() and ""; if it raises, None and the error in words."""
    try:
        return call(), ""
    except Exception as error:  # NCCL's and CUDA's errors have no common base
        return None, f"NCCL on rank {comm.rank}: {error}"


def _find_fault(comm: MPIComm) -> str:
    """Collective: find why NCCL cannot run on comm's ranks, the same on every rank; "" if it can."""
    if comm.size == 1:
        return "there is one rank only"
    places, lacks = zip(*comm.share(((comm.homes[comm.rank], comm.xp.bus()), _find_lack())), strict=True)
    sharing = [(places.index(place), rank) for rank, place in enumerate(places) if places.index(place) < rank]
    return next(filter(None, lacks), "") or (f"ranks {sharing[0][0]} and {sharing[0][1]} share a GPU" if sharing else "")


def _find_lack() -> str:
    """Find what this rank lacks to run NCCL; "" for nothing."""
    try:
        found = _core().get_version().libnccl
    except Exception as error:  # not only ImportError: without CUDA the import raises others
        return f"nccl4py is missing ({error})"
    return "" if found else "nccl4py finds no libnccl"
