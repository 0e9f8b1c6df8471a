"""The ledger: every message round, local GEMM and buffer of a rank, counted where it happens.

with pdla.record() as ledger:
    C = A @ B
ledger.bytes_received, ledger.messages, ledger.by_axis(), ledger.total(comm),
ledger.save_trace("trace.json")

Bytes and messages are those that this rank received from other ranks. A rank of a dry run records
the same events. Without an open ledger nothing is recorded, and that costs nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from pdla.comm import trace
from pdla.comm.clock import now
from pdla.comm.workspace import find_workspace
from pdla.indices import Selection

_open: ContextVar[Ledger | None] = ContextVar("pdla_ledger", default=None)
_tag: ContextVar[str] = ContextVar("pdla_tag", default="")
_NAMED = 6  # verbs, axes or tags with most bytes, which a ledger's repr names


@dataclass(frozen=True)
class Event:
    """One event of a rank: a verb of the communicator, or local work.

    Parameters
    ----------
    what : str
        The verb; "gemm"; a LAPACK routine; or another piece of local work.
    axis : str
        The grid axis of the verb, or its axes, comma-separated; "" for local work.
    bytes : int
        Received from other ranks.
    messages : int
        Received from other ranks.
    flops : int
        Multiplications and additions done.
    start, end : float
        Seconds on time.perf_counter's clock, or on the clock of a dry run's machine; `end` is when
        the result was there.
    way : str
        The algorithm: a broadcast's is one of `broadcast.WAYS`. "ring" is an all-gather around the
        nodes, "pipeline" a sum from node to node. "circulant" are short pieces in steps.
    tag : str
        The purpose, if a layer or a program has named one by `tagged`.
    far : int
        The part of `bytes` from other nodes, as far as pdla knows which rank runs where.
    """

    what: str
    axis: str = ""
    bytes: int = 0
    messages: int = 0
    flops: int = 0
    start: float = 0.0
    end: float = 0.0
    way: str = ""
    tag: str = ""
    far: int = 0

    def repeated(self, times: int) -> Event:
        """Multiply the event: one event that stands for `times` like this one.

        Parameters
        ----------
        times : int
            The number of events.

        Returns
        -------
        Event
            With `times` times the bytes, messages and flops.
        """
        bytes_, messages, flops, far = (times * figure for figure in (self.bytes, self.messages, self.flops, self.far))
        return replace(self, bytes=bytes_, messages=messages, flops=flops, far=far)


@dataclass(repr=False)
class Ledger:
    """One rank's record of what it received and computed; `record` and `dry_run` make one.

    The repr is a few lines of totals, however many events there are.

    Parameters
    ----------
    events : list of Event
        In the order in which they ended.
    workspace : int
        Bytes of buffers that are allocated now.
    peak_workspace : int
        The largest value of `workspace` so far.
    seconds : float
        The predicted time of a dry run on a machine.
    computed : float
        The part of `seconds` in which this rank does not wait.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.ones((4, 4), pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col"))
    ...     with pdla.record() as ledger:
    ...         A @ A
    ...     return ledger.by_axis(), ledger.messages
    >>> pdla.run(4, program)[0]
    ({'col': 32, 'row': 32}, 2)
    """

    events: list[Event] = field(default_factory=list)
    workspace: int = 0
    peak_workspace: int = 0
    seconds: float = 0.0
    computed: float = 0.0

    @property
    def bytes_received(self) -> int:
        """Bytes this rank received from others."""
        return sum(event.bytes for event in self.events)

    @property
    def bytes_from_far(self) -> int:
        """Bytes this rank received from ranks on other nodes."""
        return sum(event.far for event in self.events)

    @property
    def messages(self) -> int:
        """Messages this rank received from others."""
        return sum(event.messages for event in self.events)

    @property
    def flops(self) -> int:
        """Floating-point operations of this rank's local GEMMs and factorizations, in real arithmetic."""
        return sum(event.flops for event in self.events)

    def by_axis(self) -> dict[str, int]:
        """Add up the bytes received along each axis.

        Returns
        -------
        dict of str to int
            Bytes by axis.
        """
        return self._sums("axis")

    def by_verb(self) -> dict[str, int]:
        """Add up the bytes received by each verb.

        Returns
        -------
        dict of str to int
            Bytes by verb.
        """
        return self._sums("what")

    def by_tag(self) -> dict[str, int]:
        """Add up the bytes received under each tag.

        Returns
        -------
        dict of str to int
            Bytes by tag.
        """
        return self._sums("tag")

    def _sums(self, key: str) -> dict[str, int]:
        sums: dict[str, int] = {}
        for event in self.events:
            if event.bytes:
                sums[getattr(event, key)] = sums.get(getattr(event, key), 0) + event.bytes
        return sums

    def __repr__(self) -> str:
        far = f", {self.bytes_from_far} of them from other nodes" if self.bytes_from_far else ""
        seconds = f"; {self.seconds:.4g} s, {self.computed:.4g} of them computing" if self.seconds else ""
        sums = {"verb": self.by_verb(), "axis": self.by_axis(), "tag": self.by_tag()}
        head = f"Ledger: {len(self.events)} events, {self.bytes_received} bytes received{far}"
        return "\n".join([
            f"{head}, {self.messages} messages, {self.flops} flops",
            *(f"    bytes by {key}: {_name_largest(found)}" for key, found in sums.items() if any(found)),
            f"    workspace: {self.workspace} bytes, at most {self.peak_workspace}{seconds}",
        ])

    def _repr_html_(self) -> str:
        """Show the totals, and a bar for the bytes of each tag, verb and axis."""
        from pdla import show

        total = self.bytes_received
        rows = [
            (key if first else "", name or "without one", show.with_unit(size, "B"), f"{size / total:.0%}", show.bar(size / total))
            for key, sums in (("tag", self.by_tag()), ("verb", self.by_verb()), ("axis", self.by_axis())) if any(sums)
            for first, (name, size) in _sort(sums)
        ]  # fmt: skip
        received, flops, peak = (show.with_unit(*pair) for pair in ((total, "B"), (self.flops, "flop"), (self.peak_workspace, "B")))
        seconds = f", {self.seconds:.3g} s, {self.computed:.3g} of them computing" if self.seconds else ""
        title = f"Ledger: {received} received in {self.messages} messages, {flops}, workspace at most {peak}{seconds}"
        return show.heading(title) + show.table((), rows)

    def total(self, comm: Any) -> dict[str, int]:
        """Add up the figures of all ranks.

        Collective over `comm`.

        Parameters
        ----------
        comm : Communicator
            The ranks, of which each gives its ledger.

        Returns
        -------
        dict of str to int
            Sums over the ranks of bytes_received, bytes_from_far, messages and peak_workspace
            (bytes), and the maxima over the ranks, as max_bytes_received.
        """
        figures = comm.share((self.bytes_received, self.bytes_from_far, self.messages, self.peak_workspace))
        names = ("bytes_received", "bytes_from_far", "messages", "peak_workspace")
        sums = {name: sum(rank[i] for rank in figures) for i, name in enumerate(names)}
        return sums | {f"max_{name}": max(rank[i] for rank in figures) for i, name in enumerate(names)}

    def save_trace(self, path: str, comm: Any = None) -> None:
        """Write the events as a Chrome/Perfetto trace.

        Each rank has one row of computation, and above it rows of messages under way. Collective
        over `comm`, if one is given.

        Parameters
        ----------
        path : str
            The JSON file.
        comm : Communicator, optional
            Its rank 0 writes the events of all its ranks, each as a process; a barrier aligns their
            clocks. By default this rank writes its own events alone.

        Raises
        ------
        OSError
            If the file cannot be written, on every rank.
        """
        if comm is None:
            trace.write(path, {0: self.events})
            return
        comm.barrier()
        ranks, fault = comm.share((now(), self.events)), ""
        if comm.rank == 0:
            try:
                trace.write(path, {rank: trace.shift(events, ranks[0][0] - time) for rank, (time, events) in enumerate(ranks)})
            except Exception as error:  # of any class, as for a path that is no text: the other ranks wait below
                fault = f"{path!r}: {error or type(error).__name__}" if not isinstance(error, OSError) else str(error)
        if fault := comm.share(fault)[0]:
            raise OSError(fault)

    def _count(self, x: Any) -> None:
        """Count an array as workspace, while it or a view of it lives."""
        self._hold(x.nbytes)
        weakref.finalize(x if x.base is None else x.base, self._hold, -x.nbytes)

    def _hold(self, change: int) -> None:
        self.workspace += change
        self.peak_workspace = max(self.peak_workspace, self.workspace)


def _sort(sums: dict[str, int]) -> Iterator[tuple[bool, tuple[str, int]]]:
    """Sort sums, the largest first. Yield for each whether it is the first, and the sum."""
    for i, name in enumerate(sorted(sums, key=sums.__getitem__, reverse=True)):
        yield i == 0, (name, sums[name])


def _name_largest(sums: dict[str, int]) -> str:
    """Name the largest sums."""
    texts = [f"{name or 'without one'}: {size}" for _, (name, size) in _sort(sums)]
    return ", ".join(texts[:_NAMED]) + (f", and {len(texts) - _NAMED} others" if len(texts) > _NAMED else "")


@contextmanager
def record() -> Iterator[Ledger]:
    """Open a ledger for this rank for the length of a with-block.

    An outer ledger does not record what an inner one does. Without an open ledger nothing is
    recorded, and that costs nothing. Not collective.

    Yields
    ------
    Ledger
        The ledger of this rank.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.ones((4, 4), pdla.ProcessGrid(comm.size), pdla.Layout("row"))
    ...     with pdla.record() as ledger:
    ...         A.gather()
    ...     return ledger.bytes_received
    >>> pdla.run(2, program)
    [64, 64]
    """
    ledger = Ledger()
    token = _open.set(ledger)
    try:
        yield ledger
    finally:
        _open.reset(token)


current: Callable[[], Ledger | None] = _open.get  # the open ledger of this rank, if any
tag: Callable[[], str] = _tag.get  # the tag of events recorded now; "" outside of `tagged`


class tagged:
    """Tag the events of messages started, and of work done, in a with-block.

    Not collective.

    Parameters
    ----------
    name : str
        The tag.

    Examples
    --------
    >>> def program(comm):
    ...     A = pdla.ones((4, 4), pdla.ProcessGrid(comm.size), pdla.Layout("row"))
    ...     with pdla.record() as ledger, pdla.tagged("result"):
    ...         A.gather()
    ...     return ledger.by_tag()
    >>> pdla.run(2, program)[0]
    {'result': 64}
    """

    token: Token[str]

    __slots__ = ("name", "token")

    def __init__(self, name: str) -> None:
        self.name: str = name

    def __enter__(self) -> None:
        self.token = _tag.set(self.name)

    def __exit__(self, *failure: object) -> None:
        _tag.reset(self.token)


def buffer(xp: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Allocate workspace: an array that the open ledger counts while it or a view of it lives."""
    workspace, ledger = find_workspace(), _open.get()
    x = xp.empty(shape, dtype) if workspace is None else workspace.take(xp, shape, dtype)
    if ledger is not None:
        ledger._count(x)
    return x


def buffers(xp: Any, shapes: Sequence[tuple[int, ...]], dtype: Any) -> list[Any]:
    """Allocate several arrays as parts of one buffer, which is cheaper than many short ones."""
    ends = list(accumulate(map(prod, shapes), initial=0))
    whole = buffer(xp, (ends[-1],), dtype)
    return [whole[lo:hi].reshape(*shape) for (lo, hi), shape in zip(pairwise(ends), shapes, strict=True)]


def take(xp: Any, x: Any, rows: Selection, cols: Selection) -> Any:
    """Call xp.take; a copy counts as workspace, but two slices give a view."""
    in_place = isinstance(rows, slice) and isinstance(cols, slice)
    return xp.take(x, rows, cols) if in_place else take_all(xp, x, [(rows, cols)])[0]


def take_all(xp: Any, x: Any, places: Sequence[tuple[Selection, Selection]]) -> list[Any]:
    """Call xp.take_all; copies count as workspace."""
    parts = xp.take_all(x, places)
    for part, (rows, cols) in zip(parts, places, strict=True):
        if not (isinstance(rows, slice) and isinstance(cols, slice)):
            count(part)
    return parts


def count(x: Any) -> None:
    """Count an array that other code allocated as workspace, while it or a view of it lives."""
    workspace, ledger = find_workspace(), _open.get()
    if workspace is not None:
        workspace.count(x)
    if ledger is not None:
        ledger._count(x)


class held:
    """Count `size` bytes of workspace that are not in a buffer, for the length of a with-block."""

    size: int
    counters: list[Callable[[int], None]]

    __slots__ = ("counters", "size")

    def __init__(self, size: int) -> None:
        workspace, ledger = find_workspace(), _open.get()
        adders = workspace and workspace.hold, ledger and ledger._hold
        self.size, self.counters = size, [hold for hold in adders if hold]

    def __enter__(self) -> None:
        for hold in self.counters:
            hold(self.size)

    def __exit__(self, *failure: object) -> None:
        for hold in self.counters:
            hold(-self.size)


def note_read(axis: str, size: int, messages: int) -> None:
    """Record bytes that this rank reads in shared memory, without a verb."""
    ledger = _open.get()
    if ledger is not None:
        time = now()
        ledger.events.append(Event("read", axis, size, messages, start=time, end=time, tag=_tag.get()))


class timed:
    """Record the local work of a with-block, or what this rank receives in it."""

    event: dict[str, Any]
    ledger: Ledger | None
    start: float

    __slots__ = ("event", "ledger", "start")

    def __init__(self, what: str, axis: str = "", flops: int = 0, bytes: int = 0, messages: int = 0) -> None:
        self.ledger, self.start = _open.get(), 0.0
        self.event = {"what": what, "axis": axis, "flops": flops, "bytes": bytes, "messages": messages}

    def __enter__(self) -> None:
        if self.ledger is not None:
            self.start = now()

    def __exit__(self, *failure: object) -> None:
        if self.ledger is not None:
            self.ledger.events.append(Event(**self.event, start=self.start, end=now(), tag=_tag.get()))
