"""The communicator: ten verbs on arrays, the same in every world.

A verb starts when it is called and returns a `Pending`; `wait()` returns its result. Overlap is the
order of the lines: start the next panel, multiply this one, wait. Pieces may differ in size from
rank to rank and may be empty; arrays may be strided views.

Every verb but send and recv is collective: all ranks call the same verbs in the same order. A sum
of 16-bit floats is computed in float32, and rounded once at the end if `out` has 16 bits. A world
(MPI, threads, dry) provides one round of messages, `_exchange` (group.py), and may override a verb.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, repeat
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from pdla.array import namespace
from pdla.array.composed import reduction_dtype
from pdla.comm.collectives import broadcast, circulant, ring
from pdla.comm.collectives.broadcast import Messages
from pdla.comm.collectives.pipeline import Pipeline
from pdla.comm.collectives.shared_gather import GatherBuffer
from pdla.comm.group import Array, Group, Pieces, sections
from pdla.comm.ledger import buffer, buffers, current
from pdla.comm.pending import Pending, to_pending
from pdla.cuts import bounds_of_blocks
from pdla.errors import AgreementError, GridError, PdlaError, ShapeError, kind_of

# Users' tags are below this one. Verbs' tags go from here to 2^15 - 1, which every MPI allows. A
# verb's tag has the number of its call, so that ranks out of step wait instead of taking one verb's
# data for another's.
VERB_TAGS = 1 << 14

_RANK, _NBYTES = itemgetter(0), attrgetter("nbytes")


class Communicator(Group):
    """A group of ranks that send each other arrays, by ten verbs that are the same in every world.

    A verb starts when it is called and returns a `Pending`; its `wait()` returns the result. Every
    verb but send and recv is collective: all ranks call the same verbs in the same order. Pieces
    may differ in size from rank to rank, and may be empty or strided.

    Parameters
    ----------
    rank : int
        This rank's number.
    size : int
        The number of ranks.
    axis : str, optional
        The axis of a grid along which the ranks differ, or another name of the group; "all" for a
        whole world.

    Raises
    ------
    ShapeError
        By a verb, on this rank, for an argument that is no array; `share` takes other objects.

    Notes
    -----
    A sum of 16-bit floats is computed in float32, and rounded once, at the end.

    Examples
    --------
    >>> def program(comm):
    ...     x = np.full(3, comm.rank + 1)
    ...     return comm.allreduce(x).wait()
    >>> pdla.run(2, program)[0]
    array([3, 3, 3])
    """

    def __init__(self, rank: int, size: int, axis: str = "all") -> None:
        super().__init__(rank, size, axis)
        self._calls = count()
        self._numbered: int | None = None

    def _number(self) -> int:
        """Number the verb that starts now: the next number, or the one reserved for it."""
        self.check_in_step()
        for section in sections.get():
            if section.comm is self:
                section.meetings, section.verbs = section.meetings + 1, 0
            section.verbs += 1
        number, self._numbered = self._numbered, None
        return next(self._calls) if number is None else number

    def _make_rank_error(self, verb: str, name: str, rank: int) -> GridError:
        """Make the error for a rank outside this communicator; to MPI some negative numbers mean any rank, or none."""
        return GridError(f"{verb} on {self.axis!r}: {name}={rank}: the communicator has ranks 0 to {self.size - 1}")

    def _make_count_error(self, verb: str, pieces: Sequence[Any]) -> ShapeError:
        return ShapeError(f"{verb} on {self.axis!r}: {len(pieces)} arrays: give one for each of {self.size} ranks")

    def _check_arrays(self, verb: str, *given: Any) -> None:
        """Raise ShapeError unless all are arrays. NumPy's scalars have an array's attributes, but no rank can write to them."""
        for x in given:
            if isinstance(x, np.generic) or not hasattr(x, "nbytes"):
                raise ShapeError(
                    f"{verb} on {self.axis!r}: {reprlib.repr(x)} is {kind_of(x)}: give an array, of a number np.array([x]); "
                    "share(x) takes any small object, and gives every rank's"
                )

    def _make_pending(
        self, verb: str, arrivals: Iterator[int], recvs: Pieces, result: Any, way: str = "", owners: Sequence[int] = (),
        finish: Callable[[], None] | None = None,
    ) -> Pending:
        """Make the Pending of a started round, with its event if a ledger is open.

        owners[i]: the owner of piece recvs[i], if other ranks forward pieces.
        """
        sources = owners or [*map(_RANK, recvs)]
        event = None
        if current() is not None:
            received, far = sum(x.nbytes for _, x in recvs), sum(x.nbytes for source, x in recvs if self._is_far(source))
            event = verb, self.axis, received, len(recvs), way, far
        return Pending(map(sources.__getitem__, arrivals), result, event, finish)

    def bcast(self, x: Array, root: int) -> Pending:
        """Copy x of one rank into x of every rank. Collective.

        The length of x decides the algorithm.

        Parameters
        ----------
        x : array
            The array to send, or to fill: every rank but `root` receives x.nbytes bytes.
        root : int
            The rank that sends.

        Returns
        -------
        Pending
            Of `x`.

        Raises
        ------
        GridError
            For a root that is no rank, on this rank.
        """
        self._check_arrays("bcast", x)
        if not 0 <= root < self.size:
            raise self._make_rank_error("bcast", "root", root)
        way = broadcast.choose(x.nbytes, self.size, self.nodes, self.tree)
        m = broadcast.list_messages(way, x, self.rank, self.size, root)
        arrivals = self._exchange("bcast", *m) if way != "mpi" else self._broadcast(x, root, m)
        return self._make_pending("bcast", arrivals, m.recvs, x, way)

    def _broadcast(self, x: Array, root: int, m: Messages) -> Iterator[int]:
        """Start a broadcast by the world's own algorithm, if it has one; else by the messages `m`."""
        return self._exchange("bcast", *m)

    def reduce(self, x: Array, root: int, out: Array | None = None) -> Pending:
        """Add up x of all ranks on one rank, in rank order. Collective.

        Parameters
        ----------
        x : array
            This rank's addend.
        root : int
            The rank that gets the sum; it receives size - 1 addends.
        out : array, optional
            On `root`, the array for the sum; x itself by default.

        Returns
        -------
        Pending
            Of `out` on `root`, of None elsewhere.

        Raises
        ------
        GridError
            For a root that is no rank, on this rank.
        """
        self._check_arrays("reduce", x)
        if not 0 <= root < self.size:
            raise self._make_rank_error("reduce", "root", root)
        if self.rank != root:
            return self._make_pending("reduce", self._exchange("reduce", [(root, x)] if x.size else [], [], {}), [], None)
        return self._sum("reduce", [], x, x if out is None else out)

    def allreduce(self, x: Array, out: Array | None = None) -> Pending:
        """Add up x of all ranks on every rank. Collective.

        Parameters
        ----------
        x : array
            The addend of this rank, in C order.
        out : array, optional
            The array for the sum, in C order; x itself by default.

        Returns
        -------
        Pending
            Of `out`.

        Raises
        ------
        ShapeError
            For an `out` with gaps, on this rank.

        Notes
        -----
        A balanced reduce-scatter, then an all-gather. The all-gather starts in `wait()`, so all
        ranks must wait for their all-reduces in the same order. If ranks send addends directly, a
        rank receives size - 1 times its own part of x, and then the other parts.
        """
        out = x if out is None else out
        self._check_arrays("allreduce", x, out)
        halves = self.halves(x, out)
        first, second = next(halves), next(self._calls)

        def steps() -> Iterator[int]:
            first.wait()
            self._numbered = second  # some ranks may have started other verbs, which took the next numbers
            yield from next(halves)

        return Pending(steps(), out)

    def halves(self, x: Array, out: Array, op: str = "add") -> Iterator[Pending]:
        """Yield the two verbs of an all-reduce, for callers that compute in between. Collective.

        Ask for the second when the first has ended.

        Parameters
        ----------
        x : array
            The addend of this rank, in C order.
        out : array
            The array for the result, in C order.
        op : {"add", "maximum"}, optional
            The operation that combines addends.

        Yields
        ------
        Pending
            Of each half.

        Raises
        ------
        ShapeError
            For an `out` with gaps, on this rank.
        """
        self._check_gapless(out)
        flat, target = x.reshape(-1), out.reshape(-1)
        if self.goes_stepwise(x.nbytes):
            for row in circulant.allreduce(self.xp, self.rank, self.size, flat, target, op):
                yield self._start_stepwise("allreduce", row, out)
            return
        bounds = bounds_of_blocks(flat.size, self.size)
        parts = [flat[lo:hi] for lo, hi in bounds]
        mine = target[slice(*bounds[self.rank])]
        yield self.reduce_scatter(parts, mine, "allreduce", op)
        yield self.allgather(mine, [None if r == self.rank else target[lo:hi] for r, (lo, hi) in enumerate(bounds)], "allreduce")

    def _start_stepwise(self, verb: str, row: circulant.Row, result: Any, owners: Sequence[int] = ()) -> Pending:
        """Start a verb that goes step by step along a row. The pieces of `owners` all come at the end."""
        number = self._number()

        def arrivals() -> Iterator[int]:
            for messages in row.steps():
                self._numbered = number  # one number for all steps, as each step's messages are between other ranks
                for _ in self._exchange(verb, *messages):
                    pass
            yield from owners

        sizes = row.receives
        received, far = sum(size for _, size in sizes), sum(size for source, size in sizes if self._is_far(source))
        return Pending(arrivals(), result, (verb, self.axis, received, len(sizes), "circulant", far))

    def _check_gapless(self, out: Array) -> None:
        if not self.xp.is_contiguous(out):
            raise ShapeError(f"an all-reduce of shape {out.shape} into an array with gaps: give one in C order")

    def allgather(
        self, x: Array, outs: Sequence[Array | None] | Mapping[int, Array], verb: str = "allgather",
        gather_buffer: GatherBuffer | None = None,
    ) -> Pending:
        """Copy x of rank r into outs[r] of every rank. Collective.

        Parameters
        ----------
        x : array
            This rank's piece.
        outs : sequence or mapping of int to array
            An array for each rank's piece: a rank receives every other rank's piece once. The one
            for this rank may be None, which leaves its data in x. A mapping may leave out ranks
            whose x is empty.
        verb : str, optional
            The verb's name in the ledger.
        gather_buffer : GatherBuffer, optional
            The buffer of all of `outs`; all ranks took them from it in the same order.

        Returns
        -------
        Pending
            Of `outs`.

        Raises
        ------
        ShapeError
            For a sequence that is not one for each rank, on this rank.

        Notes
        -----
        Long pieces go around the nodes (pdla/comm/collectives/ring.py). Short pieces of many ranks
        go step by step (pdla/comm/collectives/circulant.py); all ranks must wait for such verbs in
        the same order.
        """
        if len(outs) != self.size and not isinstance(outs, Mapping):
            raise self._make_count_error(verb, outs)
        arrays = outs if isinstance(outs, Mapping) else dict(enumerate(outs))
        own = arrays.get(self.rank)
        if own is not None and own is not x:
            namespace(own).copy(own, x)
        incoming, size = {}, x.nbytes
        for r, out in arrays.items():
            if r != self.rank and out.size:  # type: ignore[union-attr]
                incoming[r], size = out, size + out.nbytes  # type: ignore[union-attr]
        if self.goes_stepwise(size):
            return self._start_stepwise(verb, circulant.allgather(self.xp, self.rank, self.size, x, incoming), outs, [*incoming])
        if self.nodes > 1 and self._goes_around(size):
            route = self._route
            hops = [hop for hop in route.hops if hop.owner in incoming]
            recvs, owners = [(hop.source, incoming[hop.owner]) for hop in hops], [hop.owner for hop in hops]
            if gather_buffer is None:
                arrivals = self._exchange(verb, *ring.list_messages(route, x, hops, incoming))
            else:
                m = ring.list_messages_between_nodes(route, x, hops, incoming)
                arrivals = self._receive_shared(verb, x, m, hops, gather_buffer)
            return self._make_pending(verb, arrivals, recvs, outs, "ring", owners)
        sends, recvs = [*zip(self._others, repeat(x))] if x.size else [], sorted(incoming.items(), key=_RANK)
        return self._make_pending(verb, self._exchange(verb, sends, recvs, {}), recvs, outs)

    def _receive_shared(
        self, verb: str, x: Array, m: Messages, hops: Sequence[ring.Hop], gather_buffer: GatherBuffer
    ) -> Iterator[int]:
        """Receive an all-gather into a gather buffer; yield the numbers of the hops whose pieces have come.

        Pieces that other ranks of this node receive need no message: this rank waits for them in the
        gather buffer.
        """
        own = 1 if x.size else 0
        gather_buffer.publish(own)
        received = self._exchange(verb, *m, lambda on_arrival: gather_buffer.publish(own + on_arrival))
        return gather_buffer.arrivals(hops, self._circle.place, received, partial(self._wait_until, verb))

    def reduce_scatter(self, parts: Sequence[Array], out: Array, verb: str = "reduce_scatter", op: str = "add") -> Pending:
        """Add up parts[r] of all ranks on rank r, in rank order. Collective.

        Parameters
        ----------
        parts : sequence of array
            An addend for each rank.
        out : array
            The array for this rank's sum: it receives size - 1 addends.
        verb : str, optional
            The verb's name in the ledger.
        op : {"add", "maximum"}, optional
            The operation that combines addends.

        Returns
        -------
        Pending
            Of `out`.

        Raises
        ------
        ShapeError
            For parts that are not one for each rank, on this rank.

        Notes
        -----
        Between several nodes of several ranks, long sums go from node to node
        (pdla/comm/collectives/pipeline.py). A rank then receives about as many bytes; 16-bit floats
        travel as float32, in twice as many. Short sums of many ranks go step by step, in another
        order of addition (pdla/comm/collectives/circulant.py). All ranks must wait for such verbs
        in the same order.
        """
        if len(parts) != self.size:
            raise self._make_count_error(verb, parts)
        size = sum(map(_NBYTES, parts))
        if self.goes_stepwise(size):
            return self._start_stepwise(verb, circulant.reduce_scatter(self.xp, self.rank, parts, out, op), out)
        wide = reduction_dtype(out.dtype, op)
        if self.nodes > 1 and self._goes_by_pipeline(size, wide.itemsize // parts[0].itemsize):
            addends = [self._widen(part, wide) for part in parts]
            total = out if out.dtype == wide else buffer(self.xp, out.shape, wide)
            mine = Pipeline(self._circle, self.rank, addends, total, self.xp, op)
            arrivals = self._exchange(verb, mine.sends, mine.recvs, mine.forwards, mine.add_up)
            finish = None if total is out else partial(self.xp.copy, out, total)
            return self._make_pending(verb, arrivals, mine.recvs, out, "pipeline", finish=finish)
        sends = [(r, parts[r]) for r in self._others if parts[r].size]
        return self._sum(verb, sends, parts[self.rank], out, op)

    def _sum(self, verb: str, sends: Pieces, x: Array, out: Array, op: str = "add") -> Pending:
        """Receive an addend from every other rank, and add them up in rank order: all worlds get the same bits."""
        others = self._others if x.size else []
        recvs = [*zip(others, buffers(self.xp, [x.shape] * len(others), x.dtype), strict=True)]
        addends = dict(recvs)
        wide, combine = reduction_dtype(out.dtype, op), getattr(self.xp, op)

        def add_up() -> None:
            first = addends.get(0, x)
            if first is not x and x.dtype == wide:
                sum_ = first
            else:
                sum_ = out if out.dtype == wide else buffer(self.xp, x.shape, wide)
                self.xp.copy(sum_, first)
            for r in range(1, self.size if x.size else 0):
                combine(sum_, x if r == self.rank else addends[r])
            addends.clear()
            if sum_ is not out:
                self.xp.copy(out, sum_)

        return self._make_pending(verb, self._exchange(verb, sends, recvs, {}), recvs, out, finish=add_up)

    def _widen(self, x: Array, dtype: Any) -> Array:
        """Convert `x` to a dtype; return `x` itself if it has that dtype."""
        if x.dtype == dtype:
            return x
        wide = buffer(self.xp, x.shape, dtype)
        self.xp.copy(wide, x)
        return wide

    def alltoall(self, sends: Mapping[int, Array], recvs: Mapping[int, Array]) -> Pending:
        """Send a message to each of some ranks, and receive one from each of some. Collective.

        Parameters
        ----------
        sends : mapping of int to array
            The arrays to send, by receiver. Each receiver must name this rank in its `recvs`.
        recvs : mapping of int to array
            The arrays to fill, by sender. They share no memory with those sent.

        Returns
        -------
        Pending
            Of `recvs`.
        """
        messages = [*recvs.items()]
        return self._make_pending("alltoall", self._exchange("alltoall", [*sends.items()], messages, {}), messages, recvs)

    def shift(self, x: Array, out: Array, step: int = 1) -> Pending:
        """Send an array around the ring, and receive one. Collective.

        Parameters
        ----------
        x : array
            The array to send to rank + step.
        out : array
            The array to receive from rank - step.
        step : int, optional
            The distance around the ring, the same on every rank.

        Returns
        -------
        Pending
            Of `out`.

        Raises
        ------
        ShapeError
            If `x` and `out` share memory, on this rank.
        """
        self._check_arrays("shift", x, out)
        if namespace(out).overlap(out, x):
            raise ShapeError(f"shift on {self.axis!r}: x and out, of shape {out.shape}, share memory: receiving would overwrite x")
        ahead, back = (self.rank + step) % self.size, (self.rank - step) % self.size
        if ahead == self.rank:
            namespace(out).copy(out, x)
            return to_pending(out)
        recvs = [(back, out)] if out.size else []
        return self._make_pending("shift", self._exchange("shift", [(ahead, x)] if x.size else [], recvs, {}), recvs, out)

    def send(self, x: Array, to: int, tag: int = 0) -> Pending:
        """Send an array to one rank, which calls `recv`. Not collective.

        Parameters
        ----------
        x : array
            The array to send.
        to : int
            The receiver.
        tag : int, optional
            From 0 to 2^14 - 1, the same as the receiver's.

        Returns
        -------
        Pending
            Of `x`; after its `wait()` the program may write to `x` again.

        Raises
        ------
        GridError
            For `to` that is no rank, on this rank.
        PdlaError
            For another tag, on this rank.
        """
        self._check_arrays("send", x)
        if not 0 <= to < self.size:
            raise self._make_rank_error("send", "to", to)
        return self._make_pending("send", self._exchange_tagged("send", _check_tag(tag), [(to, x)], []), [], x)

    def recv(self, out: Array, source: int, tag: int = 0) -> Pending:
        """Receive an array from one rank, which calls `send`. Not collective.

        Parameters
        ----------
        out : array
            The array to fill.
        source : int
            The sender.
        tag : int, optional
            From 0 to 2^14 - 1, the same as the sender's.

        Returns
        -------
        Pending
            Of `out`.

        Raises
        ------
        GridError
            For a source that is no rank, on this rank.
        PdlaError
            For another tag, on this rank.
        """
        self._check_arrays("recv", out)
        if not 0 <= source < self.size:
            raise self._make_rank_error("recv", "source", source)
        messages = [(source, out)]
        return self._make_pending("recv", self._exchange_tagged("recv", _check_tag(tag), [], messages), messages, out)

    def barrier(self) -> None:
        """Wait until all ranks have called it. Collective, blocking.

        Raises
        ------
        AgreementError
            If other ranks are in another agreement.
        """
        if not self.same("barrier"):
            raise AgreementError(f"barrier on {self.axis!r}, {self.size} ranks: other ranks are in another call")


def _check_tag(tag: int) -> int:
    if not 0 <= tag < VERB_TAGS:
        raise PdlaError(f"tag={tag}: give one from 0 to {VERB_TAGS - 1}")
    return tag
