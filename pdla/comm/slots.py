"""Slots: memory for broadcasts one after another; a rank writes the next slot while others still read earlier ones.

    slots = Slots(comm, xp, size, dtype)   # arrays of up to `size` elements; comm=None: one rank
    slots = Slots(..., addends=n)          # also sums of up to n elements
    with slots:                            # collective
        x = slots.take(n, writes)          # n elements of the next slot; writes: this rank writes them
        pending = slots.bcast(x, parts)    # collective: each rank in `parts` has written these rows of x
        pending.wait()                     # now all of x may be read; bcast may send more of the slot
        slots.release()                    # local: release the oldest slot held
        slots.sum(x)                       # collective: x becomes the sum over ranks, in rank order

Ranks that share memory publish what they have written, and the others read it in place, without a
copy or a message. A writer waits only until all ranks have released the slot that it writes again.
Other ranks have slots of their own, and `bcast` sends the parts. The ledger counts the same bytes.

A rank that leaves the with-block by an error publishes that: ranks that wait for it get an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from pdla.comm.communicator import Communicator
from pdla.comm.ledger import buffer, buffers, current, held, timed
from pdla.comm.pending import Pending, to_pending
from pdla.comm.shared_buffer import GONE, LANES, SharedBuffer
from pdla.comm.workspace import KEPT, align
from pdla.cuts import block_bounds
from pdla.errors import PdlaError

COUNT = 4  # slots: one is read, the next two written, and a rank may be one behind
WRITTEN, RELEASED, ADDED = 0, 1, 2  # lanes of published counts: broadcasts written, slots released, addends written
TURNS = 2  # places of an addend: when a rank writes the next one, all others have read the last but one
Parts = Mapping[int, Sequence[slice]]  # rank -> the rows of an array that it writes


class Slots:
    """COUNT slots of a communicator; all ranks take, broadcast and release in the same order."""

    comm: Communicator | None
    xp: ModuleType
    dtype: np.dtype
    taken: int
    released: int
    bcasts: int
    sums: int
    memory: Any

    def __init__(self, comm: Communicator | None, xp: ModuleType, size: int, dtype: np.dtype, addends: int = 0) -> None:
        self.comm, self.xp, self.dtype = comm, xp, dtype
        self.size: int = align(size * dtype.itemsize)
        self.addends: int = align(addends * dtype.itemsize)
        self.taken = self.released = self.bcasts = self.sums = 0
        self.shared_buffer: SharedBuffer | None = None
        self.known: tuple[list[int], ...] = ()  # by lane and rank: the last count seen
        self.own: list[Any] = []
        self.rows: list[list[Any]] = []  # by turn and rank: the addends' memory
        self.ends: ExitStack[bool | None] = ExitStack()

    def __enter__(self) -> Slots:
        comm, size = self.comm, COUNT * self.size
        size += TURNS * self.addends * (0 if comm is None else comm.size)
        shared_buffer = comm.shared_buffer() if comm is not None and comm.publishes and 0 < size <= comm.shared_limit else None
        if comm is None or shared_buffer is None:
            self.own = buffers(self.xp, [(self.size // self.dtype.itemsize,)] * COUNT, self.dtype)
            return self
        self.ends.enter_context(held(size // comm.size))
        self.memory, self.shared_buffer = shared_buffer.open(size), shared_buffer
        self.known = tuple([-1] * comm.size for _ in range(LANES))
        if self.addends:
            ends = range(COUNT * self.size, size, self.addends)
            rows = [self.xp.view_at(self.memory, at, (self.addends // self.dtype.itemsize,), self.dtype) for at in ends]
            self.rows = [rows[: comm.size], rows[comm.size :]]
        for lane in range(LANES):
            shared_buffer.publish(0, lane)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        shared_buffer, self.shared_buffer, self.own, self.rows, self.memory = self.shared_buffer, None, [], [], None
        self.ends.close()
        if shared_buffer is None:
            return
        if error is not None:
            for lane in range(LANES):
                shared_buffer.publish(GONE, lane)
        shared_buffer.leave()
        if error is None:
            shared_buffer.trim(KEPT)

    def take(self, n: int, writes: bool) -> Any:
        """Take the first n elements of the next slot; writes: this rank writes them."""
        number, self.taken = self.taken, self.taken + 1
        if self.shared_buffer is None:
            return self.own[number % COUNT][:n]
        if writes:
            ranks = range(self.comm.size)  # type: ignore[union-attr]
            self._wait_until("writing to a slot", RELEASED, ranks, max(0, number + 1 - COUNT))
        return self.xp.view_at(self.memory, number % COUNT * self.size, (n,), self.dtype)

    def bcast(self, x: Any, parts: Parts) -> Pending:
        """Collective: publish, or send, this rank's rows of x, an array of the slot taken last."""
        if self.comm is None or not x.size:
            return to_pending(x)
        if self.shared_buffer is None:
            return self._send_parts(x, parts)
        self.bcasts += 1
        if self.comm.rank in parts:
            self.shared_buffer.publish(self.bcasts, WRITTEN)
        others = [rank for rank in parts if rank != self.comm.rank]
        event = None
        if current() is not None:
            words = sum(_count_rows(x, rows) for rank in others for rows in parts[rank]) * prod(x.shape[1:])
            event = "bcast", self.comm.axis, words * x.itemsize, len(others), "slots", 0
        return Pending(self._arrivals(others, self.bcasts), x, event)

    def release(self) -> None:
        """Release the oldest slot held: this rank reads it no more."""
        self.released += 1
        if self.shared_buffer is not None:
            self.shared_buffer.publish(self.released, RELEASED)

    def sum(self, x: Any) -> None:
        """Collective, blocking: sum x over all ranks, in rank order; x is in C order.

        The ledger counts the bytes of an all-reduce by messages.
        """
        comm, shared_buffer = self.comm, self.shared_buffer
        if comm is None or not x.size:
            return
        if shared_buffer is None:
            comm.allreduce(x).wait()
            return
        self.sums += 1
        number, flat, add = self.sums, x.reshape(-1), self.xp.add
        rows = [row[: x.size] for row in self.rows[number % TURNS]]
        self.xp.copy(rows[comm.rank], flat)
        shared_buffer.publish(number, ADDED)
        with self._record_sum(x):
            self._wait_until("allreduce", ADDED, range(comm.size), number)
        if comm.rank > 1:
            self.xp.copy(flat, rows[0])
        add(flat, rows[0 if comm.rank == 1 else 1])  # the first two in either order
        for row in rows[2:]:
            add(flat, row)

    def _record_sum(self, x: Any) -> AbstractContextManager[object]:
        """Record, if a ledger is open, the bytes that this rank receives in an all-reduce of x."""
        if current() is None:
            return nullcontext()
        comm = self.comm
        assert comm is not None
        own = len(range(*block_bounds(x.size, comm.size, comm.rank)))
        size = (own * (comm.size - 1) + x.size - own) * x.itemsize
        return timed("allreduce", comm.axis, bytes=size, messages=2 * (comm.size - 1))

    def _arrivals(self, ranks: Sequence[int], number: int) -> Iterator[int]:
        self._wait_until("bcast", WRITTEN, ranks, number)
        yield from ranks

    def _wait_until(self, call: str, lane: int, ranks: Sequence[int], count: int) -> None:
        """Wait until these ranks have published this count; raise PdlaError if one of them left by an error."""
        shared_buffer, known = self.shared_buffer, self.known[lane]
        assert shared_buffer is not None
        behind = [*ranks] if shared_buffer.may_have_left(lane) else [rank for rank in ranks if known[rank] < count]
        if not behind:
            return

        def ready() -> bool:
            while behind and (published := shared_buffer.count_published(behind[-1], lane)) >= count:
                if published == GONE:
                    return True
                known[behind.pop()] = published
            return not behind

        shared_buffer.wait_until(call, ready)
        if behind:
            assert self.comm is not None
            raise PdlaError(f"{call} on {self.comm.axis!r}: rank {behind[-1]} of {self.comm.size} has left this call by an error")

    def _send_parts(self, x: Any, parts: Parts) -> Pending:
        """Broadcast what each rank has written, as one array a rank."""
        assert self.comm is not None
        pieces = []
        for root, rows in parts.items():
            piece, pairs = (x[rows[0]], []) if len(rows) == 1 else self._plan_packing(x, rows)
            mine = root == self.comm.rank
            if pairs and mine:
                self.xp.copy_all(pairs)
            pieces.append((self.comm.bcast(piece, root), [] if mine else pairs))

        def arrivals() -> Iterator[int]:
            for pending, pairs in pieces:
                yield from pending
                if pairs:
                    self.xp.copy_all((rows_of_x, packed) for packed, rows_of_x in pairs)

        return Pending(arrivals(), x)

    def _plan_packing(self, x: Any, rows: Sequence[slice]) -> tuple[Any, list[tuple[Any, Any]]]:
        """Make an array without gaps for rows of x. Return the array, and a pair (its part, rows of x) for each slice."""
        ends = [0]
        for part in rows:
            ends.append(ends[-1] + _count_rows(x, part))
        piece = buffer(self.xp, (ends[-1], *x.shape[1:]), x.dtype)
        return piece, [(piece[lo:hi], x[part]) for lo, hi, part in zip(ends, ends[1:], rows, strict=False)]


def _count_rows(x: Any, rows: slice) -> int:
    return len(range(*rows.indices(len(x))))
