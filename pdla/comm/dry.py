"""One rank of P, without data: the same verbs and events, but no messages. One rank of 1,000,000 costs what one of 4 costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from functools import cached_property, partial
from sys import maxsize
from types import ModuleType
from typing import Any, overload

from pdla.array import meta
from pdla.array.composed import reduction_dtype
from pdla.comm import current_world
from pdla.comm.agreement import known_ranks
from pdla.comm.clock import Clock
from pdla.comm.clock import current as current_clock
from pdla.comm.collectives.pipeline import Figures, count_received
from pdla.comm.communicator import Communicator
from pdla.comm.group import Array, Forwards, OnArrival, Pieces, Step
from pdla.comm.ledger import Ledger, buffer, current, record
from pdla.comm.pending import Pending
from pdla.comm.shared_buffer import SharedBuffer
from pdla.comm.threads import ENDED, Result, check_run
from pdla.cuts import block_bounds, bounds_of_blocks
from pdla.errors import GridError, PdlaError
from pdla.model.machine import Machine


class DryBuffer(SharedBuffer):
    """A shared buffer whose memory has a size and no bytes."""

    def open(self, size: int) -> meta.Meta:
        return meta.Meta((size,), "uint8")

    def seal(self) -> None:
        pass

    def publish(self, pieces: int, lane: int = 0) -> None:
        pass

    def count_published(self, rank: int, lane: int = 0) -> int:
        """Return more than any count of pieces."""
        return maxsize

    def may_have_left(self, lane: int = 0) -> bool:
        return False

    def wait_until(self, call: str, ready: Callable[[], bool]) -> None:
        ready()

    def leave(self) -> None:
        pass

    def trim(self, most: int) -> None:
        pass


class DryComm(Communicator):
    """The communicator of a dry rank: it sends nothing, but counts what would be received and, with a clock, when.

    members  the world's ranks in this communicator, in its order
    alive    empty once the program has ended
    """

    xp: ModuleType = meta
    publishes = False

    def __init__(
        self, rank: int, size: int, axis: str = "all", members: Sequence[int] | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(rank, size, axis)
        self.members: Sequence[int] = range(size) if members is None else members
        self.name: tuple[int, ...] = (size,)
        self.alive: list[int] = [rank]
        self.clock = clock
        # With a clock sums are timed as if sent directly: the clock assumes that all ranks are at the
        # same point, and nodes that add in turn are not.
        self.adds: bool = clock is None
        if clock is not None and clock.machine.node:
            home = clock.machine.home
            self.homes = clock.machine.homes(size) if members is None else [home(r) for r in members]

    @property
    def identity(self) -> Any:
        return ("dry", self.name)

    def _check_open(self) -> None:
        if not self.alive:
            raise GridError(ENDED)

    def _exchange(
        self, call: str, sends: Pieces, recvs: Pieces, forwards: Forwards, on_arrival: OnArrival | None = None
    ) -> Iterator[int]:
        self._check_open()
        gaps = {id(x): x for _, x in (*sends, *recvs) if not meta.is_contiguous(x)}
        boxes = [buffer(meta, x.shape, x.dtype) for x in gaps.values()]  # over MPI, arrays with gaps travel through buffers
        held = [*boxes, *(x for _, x in (*sends, *recvs))]  # as in any world, all live until the end of the round
        clock = self.clock
        if clock is None:
            return _hold_until_end(held, iter(range(len(recvs))))
        departure = max((clock.send(x.nbytes, self._count_sharing(to, clock.machine.node)) for to, x in sends), default=0.0)
        arrivals = [clock.receive(x.nbytes, self._count_sharing(source, clock.machine.node)) for source, x in recvs]
        return _hold_until_end(held, self._arrivals(clock, arrivals, departure))

    def _arrivals(self, clock: Clock, arrivals: list[float], departure: float) -> Iterator[int]:
        for i, arrival in enumerate(arrivals):
            clock.wait(arrival)
            yield i
        clock.wait(departure)

    def halves(self, x: Array, out: Array, op: str = "add") -> Iterator[Pending]:
        """Yield the two halves of an all-reduce. Each counts all its messages at once: a dry run of many ranks costs no more."""
        self._check_open()
        if self.goes_stepwise(x.nbytes):
            yield from super().halves(x, out, op)
            return
        self._check_gapless(out)
        own = len(range(*block_bounds(x.size, self.size, self.rank)))
        first, nbytes, way = self._count_addends(x, own, reduction_dtype(x.dtype, op).itemsize)
        addends = [buffer(meta, (nbytes // x.itemsize,), x.dtype)]

        def add() -> None:
            if self.clock is not None and nbytes:
                self.clock.touch(2 * nbytes, first.messages)
            meta.copy(x.reshape(-1)[:own], x.reshape(-1)[:own])
            addends.clear()

        yield self._make_half(first, add, way)
        around = self._goes_around(x.nbytes)
        size, messages = (x.size - own) * x.itemsize, min(self.size, x.size) - (1 if own else 0)
        outside = self._circle.count_carried(self.rank) if around else self._outside
        yield self._make_half(self._spread(size, messages, outside), lambda: None, "ring" if around else "")

    def _count_addends(self, x: Array, own: int, wide: int) -> tuple[Figures, int, str]:
        """Count what this rank receives for its `own` elements of a sum of x. Also return the bytes of buffers, and the algorithm.

        wide: the bytes of an element while it is added up.
        """
        growth, peers = wide // x.itemsize, self.size - 1
        if self._goes_by_pipeline(x.nbytes, growth):
            lengths = [hi - lo for lo, hi in bounds_of_blocks(x.size, self.size)]
            figures, nbytes = count_received(self._circle, self.rank, lengths, wide)
            return figures, nbytes + (wide * (x.size + own) if growth > 1 else 0), "pipeline"
        size = own * x.itemsize * peers
        return self._spread(size, peers if own else 0, self._outside), size + (wide * own if growth > 1 else 0), ""

    def _spread(self, size: int, messages: int, outside: int) -> Figures:
        """Count `size` bytes received in equal parts from all other ranks, `outside` of them on other nodes."""
        far, far_messages = (figure * outside // max(1, self.size - 1) for figure in (size, messages))
        return Figures(size, messages, far, far_messages)

    def _make_half(self, received: Figures, end: Callable[[], None], way: str) -> Pending:
        """Make the Pending of a verb that receives these bytes and messages, and calls `end` at its end."""
        clock, due = self.clock, 0.0
        size, messages, far, far_messages = received
        if clock is not None and size:
            parts = (size - far, 0, messages - far_messages), (far, clock.machine.node, far_messages)
            due = max(passed(*part) for part in parts if part[0] for passed in (clock.receive, clock.send))

        def wait() -> Iterator[int]:
            if clock is not None:
                clock.wait(due)
            end()
            yield from ()

        return Pending(wait(), None, ("allreduce", self.axis, size, messages, way, far))

    @cached_property
    def _outside(self) -> int:
        """The number of ranks on other nodes."""
        return sum(home != self.homes[self.rank] for home in self.homes)

    def _exchange_tagged(self, verb: str, tag: int, sends: Pieces, recvs: Pieces) -> Iterator[int]:
        return self._exchange(verb, sends, recvs, {})

    def split(self, ranks: Sequence[int] | None, axis: str) -> DryComm | None:
        self._check_open()
        if ranks is None:
            return None
        rank, number = next(i for i, r in enumerate(ranks) if r == self.rank), next(self._calls)
        comm = DryComm(rank, len(ranks), axis, [self.members[r] for r in ranks], self.clock)
        comm.homes, comm.shared_limit = ([self.homes[r] for r in ranks] if self.homes else ()), self.shared_limit
        comm.adds, comm.publishes, comm.name, comm.alive = self.adds, self.publishes, (*self.name, number), self.alive
        return comm

    def shared_buffer(self) -> SharedBuffer | None:
        return DryBuffer() if self.nodes == 1 else None

    def common(self, size: int) -> meta.Meta | None:
        return meta.Meta((size,), "uint8") if self.nodes == 1 else None

    def _wait_until(self, call: str, ready: Callable[[], bool]) -> None:
        pass

    def sample(self, steps: Sequence[Step]) -> Iterator[Step]:
        """Yield the one or two middle steps, and count them for all: exact if the cost is linear in the step."""
        count, clock, ledger = len(steps), self.clock, current()
        middle = steps[(count - 1) // 2 : count // 2 + 1]
        for step in middle:
            first, since, times = len(ledger.events) if ledger else 0, clock and clock.reading, count // len(middle)
            yield step
            if ledger:
                ledger.events[first:] = [event.repeated(times) for event in ledger.events[first:]]
            if clock and since:
                clock.repeat(since, times)

    def share(self, value: Any) -> list[Any]:
        """Return this rank's value as every rank's."""
        self._check_open()
        return [value] * self.size

    def same(self, text: str) -> bool:
        self._check_open()
        return True


def _hold_until_end(held: list[meta.Meta], arrivals: Iterator[int]) -> Iterator[int]:
    """Yield the same arrivals, and clear `held` at their end."""
    yield from arrivals
    held.clear()


@overload
def dry_run(
    size: int, program: Callable[[Communicator], Result], *, rank: int = 0, machine: Machine | str | None = None
) -> tuple[Result, Ledger]: ...
@overload
def dry_run(
    size: int, program: Callable[..., Result], *args: Any, rank: int = 0, machine: Machine | str | None = None, **named: Any
) -> tuple[Result, Ledger]: ...
def dry_run(
    size: int, program: Callable[..., Result], *args: Any, rank: int = 0, machine: Machine | str | None = None, **named: Any
) -> tuple[Result, Ledger]:
    """Run a program as one rank of many, without data or other ranks.

    Blocks have only a shape and a dtype. Numbers that depend on elements, as norm and trace, are 0.

    Parameters
    ----------
    size : int
        Ranks of the simulated world.
    program : callable
        The dry run calls ``program(comm, *args, **named)`` once.
    *args
        Further arguments of `program`.
    rank : int, optional
        The rank to run. Ranks differ if sizes do not divide.
    machine : Machine or str, optional
        A machine, its name or its TOML file. The ledger then has predicted times of this rank, from
        0 on, and ``ledger.seconds`` is the total. Every other rank is assumed to be at the same
        point as this one at any time.
    **named
        Further arguments of `program`, by name.

    Returns
    -------
    result
        The result of `program`. Collective calls with its matrices raise GridError from now on.
    ledger : Ledger
        The bytes and messages that this rank received, and its flops.

    Raises
    ------
    PdlaError
        For an impossible number of ranks, or rank.

    Examples
    --------
    A product by SUMMA on 1,024 ranks, each of which holds 125 x 125 of A, B and C:

    >>> def program(comm):
    ...     grid = pdla.ProcessGrid((32, 32))
    ...     A = pdla.zeros((4000, 4000), grid, pdla.Layout("row", "col"))
    ...     pdla.matmul(A, A, algorithm="summa")
    >>> _, ledger = pdla.dry_run(1024, program)
    >>> ledger.bytes_received == 8 * pdla.matmul_words("summa", 4000, 4000, 4000, (32, 32))
    True
    """
    check_run("dry_run", size, program, args, rank=rank != 0, machine=machine is not None)
    if not 0 <= rank < size:
        raise PdlaError(f"rank {rank} is not one of {size}")
    clock = None if machine is None else Clock(Machine.of(machine))
    comm = DryComm(rank, size, clock=clock)
    try:
        return copy_context().run(run_as_rank, comm, clock, partial(program, comm, *args, **named))
    finally:
        comm.alive.clear()


def run_as_rank(comm: Communicator, clock: Clock | None, program: Callable[[], Result]) -> tuple[Result, Ledger]:
    """Run the program as one rank in the current context. Return its result and its ledger."""
    current_world.set(comm)
    known_ranks.set(())
    current_clock.set(clock)
    meta.metered.set(clock)
    with record() as ledger:
        result = program()
    if clock is not None:
        ledger.seconds, ledger.computed = clock.time, clock.computed
    return result, ledger
