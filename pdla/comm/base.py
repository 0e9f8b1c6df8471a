"""The communicator: ten verbs on arrays, the same in every world.

A verb starts when it is called and returns a `Pending`; `wait()` gives its result. Overlap is the order of the lines:
start the next panel, multiply this one, wait. Pieces may differ in size from rank to rank and may be empty; arrays may be
strided views. Every verb but send and recv is collective: all ranks of the communicator call the same verbs in the same
order. 16-bit floats are added up in float32, and rounded once where `out` is of 16 bits, too. A world (MPI, threads, dry)
provides one round of messages, `_exchange`, and overrides a verb where it knows better.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property, partial
from itertools import count
from types import ModuleType
from typing import Any

from pdla import config
from pdla.array import namespace
from pdla.array.composed import summing
from pdla.comm import broadcast, ring
from pdla.comm.board import Board
from pdla.comm.broadcast import Messages
from pdla.comm.clock import now
from pdla.comm.hall import Hall
from pdla.comm.ledger import Event, buffer, buffers, current, tag
from pdla.comm.relay import Relay, pays
from pdla.comm.workspace import aligned
from pdla.cuts import block_bounds
from pdla.errors import AgreementError, GridError, PdlaError, ShapeError

# Users' tags lie below this one, verbs' above, up to the least maximum that MPI promises, 2^15 - 1. A verb's is its call's
# number, so that ranks out of step wait instead of taking one verb's data for another's.
VERB_TAGS = 1 << 14

begun: ContextVar[list[int] | None] = ContextVar("pdla_begun", default=None)  # verbs of the call that this rank is in

Array = Any
Pieces = Sequence[tuple[int, Array]]  # to or from which rank, and what
Onward = Mapping[int, Sequence[int]]
Landed = Callable[[int], None]


class Pending:
    """A verb that has been started: `wait()` ends it and gives its result, once; iterating gives arrivals as they come.

    `arrivals` yields the ranks whose pieces have come, in order of arrival, and ends when the verb has ended on this rank.
    """

    def __init__(
        self, arrivals: Iterator[int], result: Callable[[], Any], event: tuple[str, str, int, int, str, int] | None = None
    ) -> None:
        self._arrivals = arrivals
        self._result = result
        self._event = event
        self._ledger = current() if event else None
        self._tag = tag() if event else ""
        self._start = now() if self._ledger is not None else 0.0

    def __iter__(self) -> Iterator[int]:
        # `yield from` would end the verb where a loop over this is left early.
        for rank in self._arrivals:  # noqa: UP028
            yield rank
        if self._ledger is not None and self._event is not None:
            what, axis, size, messages, way, far = self._event
            event = Event(what, axis, size, messages, start=self._start, end=now(), way=way, tag=self._tag, far=far)
            self._ledger.events.append(event)
            self._ledger = None

    def wait(self) -> Any:
        """End the verb; gives the array it fills (or the list of arrays)."""
        for _ in self:
            pass
        return self._result()


def done(result: Any) -> Pending:
    """A Pending with nothing left to do."""
    return Pending(iter(()), lambda: result)


class Communicator(ABC):
    """A group of ranks that send each other arrays.

    rank, size  this rank's number, and how many there are
    axis        the axis of a grid along which they differ, or another name of the group; "all" for a world's
    """

    xp: ModuleType  # the array module this world's matrices are made of
    homes: Sequence[int] = ()  # by rank, a number for the node it runs on; empty: all run on one
    adds = True  # whether what comes can be added up where it lands, before it is sent on
    shared_limit = 0  # bytes that the ranks of a node may share; 0: messages are worth more

    def __init__(self, rank: int, size: int, axis: str = "all") -> None:
        self.rank, self.size, self.axis = rank, size, axis
        self.failed: Callable[[], None] | None = None  # asks the others, if this rank goes on after an error amid messages
        self.above: Communicator | None = None  # whose grid this one lies along axes of
        self.ending: list[Callable[[], None]] = []  # collective: gives back what was made of it and is kept with it
        self._calls = count()
        self._numbered: int | None = None
        self._routes: dict[str, ring.Route] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank {self.rank} of {self.size}, {self.axis!r})"

    @cached_property
    def nodes(self) -> int:
        """On how many nodes the ranks run."""
        return len(set(self.homes)) or 1

    @cached_property
    def _circle(self) -> ring.Nodes:
        return ring.Nodes(self.homes)

    def _route(self, way: str) -> ring.Route:
        if way not in self._routes:
            self._routes[way] = self._circle.route(self.rank, way)
        return self._routes[way]

    def _around(self, nbytes: int) -> str:
        """How so many bytes, all pieces together, are gathered around the nodes; empty: directly."""
        return ring.way(nbytes, self.size, self.nodes)

    def _relayed(self, nbytes: int, growth: int) -> bool:
        """Whether a sum of so many bytes, all pieces together, goes from node to node, where it takes `growth` times as many."""
        if not (self.adds and self._around(nbytes)):
            return False
        return self._circle.in_order and pays(nbytes, self.nodes, len(self._circle.ranks[0]), growth)

    def _far(self, rank: int) -> bool:
        """Whether a rank runs on another node than this one."""
        return self.nodes > 1 and self.homes[rank] != self.homes[self.rank]

    def in_step(self) -> None:
        """What comes before a rank's next words or messages: nothing, unless it goes on after an error amid messages (agree.py)."""
        if self.above is not None:
            self.above.in_step()
        if (asks := self.failed) is not None:
            self.failed = None
            try:
                asks()
            except BaseException:
                self.failed = asks
                raise

    def _number(self) -> int:
        """That of the verb which begins: the next one, or what was kept for it."""
        self.in_step()
        if (verbs := begun.get()) is not None:
            verbs[0] += 1
        number, self._numbered = self._numbered, None
        return next(self._calls) if number is None else number

    # ------------------------------------------------------------------ what a world provides

    @abstractmethod
    def _exchange(
        self, call: str, sends: Pieces, recvs: Pieces, onward: Onward, landed: Landed | None = None
    ) -> Iterator[int]:
        """Start a message for each of `sends` and of `recvs`, in order between any two ranks; iterating completes them.

        It gives the number of each of `recvs` when that is there. recvs[i] is sent on to the ranks onward[i] as soon as it is
        there and all of `onward` before it have been; before that `landed` is told how many of `onward` these are.
        """

    @abstractmethod
    def _until(self, call: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready` says so, which somebody else's memory makes it say."""

    @abstractmethod
    def split(self, ranks: Sequence[int] | None, axis: str) -> Communicator | None:
        """Collective: the communicator of my group, `ranks` of this one in their new order; None: I am in no group."""

    @abstractmethod
    def share(self, value: Any) -> list[Any]:
        """Collective, at once: every rank's small Python object, by rank. PdlaError for one that cannot be pickled, over MPI."""

    @abstractmethod
    def same(self, text: str) -> bool:
        """Collective, at once: whether every rank gave the same text."""

    @property
    @abstractmethod
    def identity(self) -> Any:
        """Equal for two handles of one communicator, on one rank."""

    def board(self) -> Board | None:
        """Memory that all ranks write to and read from; None where they do not run on one node."""
        return None

    def common(self, size: int) -> Any:
        """Collective: so many bytes that all ranks see, for as long as an array lies over them; None where they do not run on one
        node, or share no memory. PdlaError, on every rank, where there are not so many.
        """
        return None

    @cached_property
    def near(self) -> Communicator:
        """Collective, at the first call: the ranks of this node."""
        made = self.split(self._circle.ranks[self._circle.node[self.rank]], self.axis)
        assert made is not None
        return made

    def hall(self, nbytes: int, pieces: int) -> Hall | None:
        """Collective: memory for an all-gather of so many bytes, for each node's ranks in common; None: each has its own.

        pieces  arrays that will be taken from it
        """
        if self.nodes in (1, self.size) or not self._around(nbytes):
            return None
        size = nbytes + aligned(1) * pieces
        most = max(map(len, self._circle.ranks))
        return Hall(self.near.board(), self.near.size, size) if size * most <= self.shared_limit else None  # type: ignore[arg-type]

    def close(self) -> None:
        """Collective: give back what the world holds for this communicator, and what is kept with it."""
        while self.ending:
            self.ending.pop()()

    def _one_of(self, verb: str, **rank: int) -> None:
        """That a rank is one of these: to MPI some others are nobody, who takes what is sent, or anybody."""
        ((name, value),) = rank.items()
        if not 0 <= value < self.size:
            raise GridError(f"{verb} on {self.axis!r}: {name}={value}: the communicator has ranks 0 to {self.size - 1}")

    def _one_each(self, verb: str, pieces: Sequence[Any]) -> None:
        if len(pieces) != self.size:
            raise ShapeError(f"{verb} on {self.axis!r}: {len(pieces)} arrays: give one for each of {self.size} ranks")

    # ------------------------------------------------------------------ the verbs

    def _round(
        self, verb: str, sends: Mapping[int, Array], recvs: Mapping[int, Array], result: Callable[[], Any]
    ) -> Pending:
        coming = [*recvs.items()]
        return self._pending(verb, self._exchange(verb, [*sends.items()], coming, {}), coming, result)

    def _pending(
        self, verb: str, arrivals: Iterator[int], recvs: Pieces, result: Callable[[], Any], way: str = "",
        owners: Sequence[int] = (),
    ) -> Pending:  # fmt: skip
        """What has been started, counted if it is to be. owners[i]: whose recvs[i] is, where not his who sends it."""
        whose = owners or [source for source, _ in recvs]
        come = (whose[i] for i in arrivals)
        if current() is None:
            return Pending(come, result)
        received, far = sum(x.nbytes for _, x in recvs), 0
        if self.nodes > 1:
            far = sum(x.nbytes for source, x in recvs if self._far(source))
        return Pending(come, result, (verb, self.axis, received, len(recvs), way, far))

    def bcast(self, x: Array, root: int) -> Pending:
        """x of `root` into x of every rank, the way that PDLA_BCAST says. Each other rank receives x.nbytes."""
        self._one_of("bcast", root=root)
        way, chunk = self._way(x.nbytes), config.settings.bcast_chunk
        m = broadcast.messages(way, x, self.rank, self.size, root, chunk)
        return self._pending("bcast", self._exchange("bcast", *m), m.recvs, lambda: x, way)

    def asked_way(self, nbytes: int) -> str:
        """How so many bytes are to be broadcast here."""
        asked = config.settings.bcast
        return broadcast.best(nbytes, self.size, self.nodes) if asked == "auto" else asked

    def _way(self, nbytes: int) -> str:
        """The same, as this world can."""
        way = self.asked_way(nbytes)
        return "flat" if way == "mpi" else way

    def reduce(self, x: Array, root: int, out: Array | None = None) -> Pending:
        """The sum over ranks of x, in rank order, into out on `root`, which receives size - 1 addends."""
        self._one_of("reduce", root=root)
        if self.rank != root:
            return self._round("reduce", {root: x} if x.size else {}, {}, lambda: None)
        return self._sum("reduce", {}, x, x if out is None else out)

    def allreduce(self, x: Array, out: Array | None = None) -> Pending:
        """The sum over ranks of x, into out (x itself by default) on every rank; both C-contiguous.

        A balanced reduce-scatter and an all-gather, which begins where the first is waited for: all ranks wait for their
        all-reduces in the same order. Each rank receives (size - 1) own + x - own, where sums are sent directly.
        """
        out = x if out is None else out
        halves = self.halves(x, out)
        first, second = next(halves), next(self._calls)

        def steps() -> Iterator[int]:
            first.wait()
            self._numbered = second  # other verbs may have begun meanwhile, and not on all ranks
            yield from next(halves)

        return Pending(steps(), lambda: out)

    def halves(self, x: Array, out: Array, op: str = "add") -> Iterator[Pending]:
        """The two verbs of an all-reduce, for those who compute meanwhile: the second is to be asked for when the first has ended.

        op  "add" or "maximum".  ShapeError, on this rank, for an `out` with gaps: its parts would be a copy's.
        """
        self._gapless(out)
        flat, target = x.reshape(-1), out.reshape(-1)
        bounds = [block_bounds(flat.size, self.size, r) for r in range(self.size)]
        parts = [flat[lo:hi] for lo, hi in bounds]
        mine = target[slice(*bounds[self.rank])]
        yield self.reduce_scatter(parts, mine, "allreduce", op)
        yield self.allgather(mine, [None if r == self.rank else target[lo:hi] for r, (lo, hi) in enumerate(bounds)], "allreduce")

    def _gapless(self, out: Array) -> None:
        if not self.xp.contiguous(out):
            raise ShapeError(f"an all-reduce of shape {out.shape} into an array with gaps: give one in C order")

    def allgather(
        self, x: Array, outs: Sequence[Array | None], verb: str = "allgather", hall: Hall | None = None
    ) -> Pending:
        """x of rank r into outs[r] of every rank; outs[my rank] may be None: own data stays where it is.

        Between nodes long pieces go around them (pdla/comm/ring.py). Each rank receives what others have, however.
        hall  where all of outs lie, taken from it by all ranks alike
        """
        self._one_each(verb, outs)
        own = outs[self.rank]
        if own is not None and own is not x:
            namespace(own).copy(own, x)
        others = [r for r in range(self.size) if r != self.rank]
        if self.nodes > 1 and (way := self._around(x.nbytes + sum(outs[r].nbytes for r in others))):  # type: ignore[union-attr]
            route = self._route(way)
            hops = [hop for hop in route.hops if outs[hop.owner].size]  # type: ignore[union-attr]
            recvs, owners = [(hop.source, outs[hop.owner]) for hop in hops], [hop.owner for hop in hops]
            if hall is None:
                arrivals = self._exchange(verb, *ring.messages(route, x, hops, outs))
            else:
                arrivals = self._landing(verb, x, ring.landings(route, x, hops, outs), hops, hall)
            return self._pending(verb, arrivals, recvs, lambda: outs, way, owners)
        sends = dict.fromkeys(others, x) if x.size else {}
        return self._round(verb, sends, {r: out for r in others if (out := outs[r]) is not None and out.size}, lambda: outs)

    def _landing(self, verb: str, x: Array, m: Messages, hops: Sequence[ring.Hop], hall: Hall) -> Iterator[int]:
        """The numbers of hops as they come; what the ranks of this node bring is waited for in the hall, not received."""
        own = 1 if x.size else 0
        hall.tell(own)
        return self._seen(verb, hops, self._exchange(verb, *m, lambda there: hall.tell(own + there)), hall)

    def _seen(self, verb: str, hops: Sequence[ring.Hop], ours: Iterator[int], hall: Hall) -> Iterator[int]:
        """Around the nodes pieces come in one order to all. So nobody waits for a piece that another can bring later only."""
        told, came, mine, place = [0] * self.near.size, set[int](), count(), self._circle.place
        for i, hop in enumerate(hops):
            if hop.far:
                number = next(mine)
                while number not in came:
                    came.add(next(ours))
            else:
                there = place[hop.source]
                told[there] += 1
                self._until(verb, partial(hall.has, there, told[there]))
            yield i
        for _ in ours:
            pass
        for there in range(self.near.size):
            self._until(verb, partial(hall.has, there, 0))

    def reduce_scatter(self, parts: Sequence[Array], out: Array, verb: str = "reduce_scatter", op: str = "add") -> Pending:
        """The sum (or the maximum) over ranks of parts[my rank], in rank order, into out. Each rank receives (size - 1) out.

        Between nodes of several ranks long sums go from node to node (pdla/comm/relay.py): each rank receives, of all pieces at
        its place on their nodes, all addends of its own node and a total, about as much; of 16-bit floats in float32.
        """
        self._one_each(verb, parts)
        wide = summed_in(out.dtype, op)
        if self.nodes > 1 and self._relayed(sum(part.nbytes for part in parts), wide.itemsize // parts[0].itemsize):
            addends = [self._widened(part, wide) for part in parts]
            total = out if out.dtype == wide else buffer(self.xp, out.shape, wide)
            mine = Relay(self._circle, self.rank, addends, total, self.xp, op)
            arrivals = self._exchange(verb, mine.sends, mine.recvs, mine.onward, mine.landed)
            return self._pending(verb, arrivals, mine.recvs, lambda: self._given(out, total), "relay")
        sends = {r: part for r, part in enumerate(parts) if r != self.rank and part.size}
        return self._sum(verb, sends, parts[self.rank], out, op)

    def _sum(self, verb: str, sends: Mapping[int, Array], x: Array, out: Array, op: str = "add") -> Pending:
        """Receive an addend from every other rank and sum them in rank order, so that every world gets the same bits."""
        others = [r for r in range(self.size) if r != self.rank and x.size]
        addends = dict(zip(others, buffers(self.xp, [x.shape] * len(others), x.dtype), strict=True))
        wide, into = summed_in(out.dtype, op), getattr(self.xp, op)

        def total() -> Array:
            first = addends.get(0, x)
            if first is not x and x.dtype == wide:
                sum_ = first
            else:
                sum_ = out if out.dtype == wide else buffer(self.xp, x.shape, wide)
                self.xp.copy(sum_, first)
            for r in range(1, self.size if x.size else 0):
                into(sum_, x if r == self.rank else addends[r])
            addends.clear()
            return self._given(out, sum_)

        return self._round(verb, sends, dict(addends), total)

    def _widened(self, x: Array, dtype: Any) -> Array:
        """x itself, or a copy in another dtype."""
        if x.dtype == dtype:
            return x
        made = buffer(self.xp, x.shape, dtype)
        self.xp.copy(made, x)
        return made

    def _given(self, out: Array, total: Array) -> Array:
        if total is not out:
            self.xp.copy(out, total)
        return out

    def alltoall(self, sends: Mapping[int, Array], recvs: Mapping[int, Array]) -> Pending:
        """One message to each rank of `sends`, one from each of `recvs`, both sides knowing; ranks not named get none.

        What is received may share no memory with what is sent.
        """
        return self._round("alltoall", sends, recvs, lambda: recvs)

    def shift(self, x: Array, out: Array, step: int = 1) -> Pending:
        """x to the rank `step` further around the ring, out from the rank `step` back.

        ShapeError, on this rank, where they share memory.
        """
        if namespace(out).overlap(out, x):
            raise ShapeError(f"shift on {self.axis!r}: x and out, of shape {out.shape}, share memory: what comes would overwrite x")
        ahead, back = (self.rank + step) % self.size, (self.rank - step) % self.size
        if ahead == self.rank:
            namespace(out).copy(out, x)
            return done(out)
        return self._round("shift", {ahead: x} if x.size else {}, {back: out} if out.size else {}, lambda: out)

    def send(self, x: Array, to: int, tag: int = 0) -> Pending:
        """x to one rank, which calls recv with the same tag, from 0 to 2^14 - 1 (else PdlaError, on this rank)."""
        self._one_of("send", to=to)
        return self._message(f"send(tag={_checked(tag)})", {to: x}, {}, x)

    def recv(self, out: Array, source: int, tag: int = 0) -> Pending:
        """out from one rank, which calls send with the same tag, from 0 to 2^14 - 1 (else PdlaError, on this rank)."""
        self._one_of("recv", source=source)
        return self._message(f"recv(tag={_checked(tag)})", {}, {source: out}, out)

    @abstractmethod
    def _message(self, call: str, sends: Mapping[int, Array], recvs: Mapping[int, Array], result: Array) -> Pending: ...

    def barrier(self) -> None:
        """Collective, at once: no rank goes on before every rank has come. AgreementError where others have come to compare."""
        if not self.same("barrier"):
            raise AgreementError(f"barrier on {self.axis!r}, {self.size} ranks: other ranks are in another call")


def summed_in(dtype: Any, op: str) -> Any:
    """The dtype in which numbers are added up, or in which the largest is found."""
    return summing(dtype) if op == "add" else dtype


def _checked(tag: int) -> int:
    if not 0 <= tag < VERB_TAGS:
        raise PdlaError(f"tag={tag}: give one from 0 to {VERB_TAGS - 1}")
    return tag
