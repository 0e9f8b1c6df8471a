"""Panels: what the ranks along one axis of a grid read in one step of a factorization; and the look-ahead.

panels = Panels(cols, xp, size, dtype)          along the grid rows, of up to `size` elements each
with panels:                                    collective
    panel = panels.take(k, (rows, w), header=2) the next slot: w columns of these rows, then two numbers
    panel.bcast()                               collective: start sending it from the owner of block k, which has written it
    panel.wait()                                then it can be read
    panel.rows(some)                            rows of its first block, by their places among this rank's
    panel.release()                             then its slot can be written again

A panel is stored as it is sent: its owner factors or packs blocks in place, other ranks read them in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from pdla.comm.clock import begin_step
from pdla.comm.pending import Pending
from pdla.comm.slots import Parts, Slots
from pdla.linalg.panels.blocks import Dimension
from pdla.matrix.core import DistMatrix

ALL = (slice(None),)
Extent = tuple[slice, int]  # a block's rows, as places among this rank's rows, and its width


class Panels:
    """The panels of one dimension. The owner of a panel's block sends it to all ranks along this axis."""

    dimension: Dimension
    xp: ModuleType
    slots: Slots

    def __init__(self, dimension: Dimension, xp: ModuleType, size: int, dtype: np.dtype) -> None:
        self.dimension, self.xp, self.slots = dimension, xp, Slots(dimension.comm, xp, size, dtype)

    def __enter__(self) -> Panels:
        self.slots.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.slots.__exit__(*error)

    def take(self, k: int, *blocks: Extent, header: int = 0, writes: bool | None = None) -> Panel:
        """Local: panel k, in the next slot. writes: whether this rank writes to it; by default its owner does."""
        return Panel(self.slots, self.dimension.owner[k], self.dimension.rank, blocks, header, writes)

    def send(self, k: int, block: Extent, x: Any, conjugate: bool = False) -> Panel:
        """Collective: start sending a panel of one block, the owner's x; a single rank reads x in place."""
        if self.dimension.comm is None:
            return self.view(block, x, conjugate)
        panel = self.take(k, block)
        if panel.mine:
            self.xp.copy(panel.blocks[0], x, conjugate)
        panel.bcast()
        return panel

    def view(self, block: Extent, x: Any, conjugate: bool = False) -> Panel:
        """Local: a panel of one block: x, read in place, or a conjugate copy."""
        panel = Panel(self.slots, self.dimension.rank, self.dimension.rank)
        panel.blocks, panel.firsts = [self.xp.reinterpret(x, conjugate)], [block[0].start]
        return panel


class Panel:
    """Blocks of a matrix, one after another in a slot, then a header: a few numbers that the owner sends with them.

    message  blocks and header
    blocks   the blocks
    firsts   the place of each block's first row among this rank's rows
    mine     whether this rank is the owner
    """

    header: Any
    message: Any
    mine: bool
    owner: int
    second: int
    slots: Slots

    __slots__ = ("blocks", "firsts", "header", "message", "mine", "owner", "pending", "second", "slots")

    def __init__(
        self, slots: Slots, owner: int, rank: int, extents: Sequence[Extent] = (), header: int = 0, writes: bool | None = None
    ) -> None:
        self.slots, self.owner, self.mine = slots, owner, owner == rank
        self.pending: list[Pending] = []
        self.blocks: list[Any] = []
        self.firsts: list[int] = []
        if not extents:
            return
        size, ends = 0, [0]
        for rows, width in extents:
            size += (rows.stop - rows.start) * width
            ends.append(size)
        self.message = message = slots.take(size + header, self.mine if writes is None else writes)
        self.header, self.second = message[size:], ends[1]
        for (rows, width), begin, end in zip(extents, ends, ends[1:], strict=False):
            self.blocks.append(message[begin:end].reshape(rows.stop - rows.start, width))
            self.firsts.append(rows.start)

    def rows(self, rows: slice, number: int = 0) -> Any:
        """Local: rows of a block, by their places among this rank's rows."""
        first = self.firsts[number]
        return self.blocks[number][rows.start - first : rows.stop - first]

    def bcast(self, whole: bool = True) -> None:
        """Collective: start sending the panel, or all after its first block, from its owner."""
        self.pending.append(self.slots.bcast(self.message if whole else self.message[self.second :], {self.owner: ALL}))

    def bcast_parts(self, parts: Parts) -> None:
        """Collective: start sending the first block, each row from the rank that has written it."""
        self.pending.append(self.slots.bcast(self.blocks[0], parts))

    def wait(self) -> Panel:
        """Wait until the panel has arrived."""
        for pending in self.pending:
            pending.wait()
        self.pending.clear()
        return self

    def read_header(self, unknown: Callable[[], np.ndarray]) -> np.ndarray:
        """Local: the header on the host, as real numbers; for arrays without data the result of `unknown`."""
        return to_host(self.slots.xp, self.header, unknown)

    def release(self) -> None:
        """Local: report that this rank has read the panel."""
        self.slots.release()


def to_host(xp: ModuleType, header: Any, unknown: Callable[[], np.ndarray]) -> np.ndarray:
    """Local: copy a few numbers to the host, as real ones; for arrays without data the result of `unknown`."""
    numbers = xp.host_or(header, None)
    return unknown() if numbers is None else numbers.real.astype(float)


class BlockColumns:
    """One rank's part of a matrix in square blocks, for a factorization of its first min(m, n) columns.

    size   how many columns are factored
    count  how many block columns are factored
    """

    def __init__(self, X: DistMatrix, rows: Dimension, cols: Dimension) -> None:
        self.xp: Any = X.xp
        self.a: Any = X.stored
        self.rows, self.cols, self.block = rows, cols, cols.block
        self.size: int = min(rows.n, cols.n)
        self.count: int = -(-self.size // self.block)

    def width(self, k: int) -> int:
        """The width of panel k; the last one may be narrower than its block if there are fewer rows than columns."""
        return min(self.block, self.size - k * self.block)

    def find_columns(self, k: int) -> slice:
        """The place of panel k among this rank's columns."""
        cols = self.cols.at[k]
        return slice(cols.start, min(cols.stop, cols.start + self.width(k)))

    def count_rows(self, k: int) -> list[int]:
        """How many rows of panel k each rank of the grid column owns."""
        return np.bincount(self.rows.find_owners(np.arange(k * self.block, self.rows.n)), minlength=self.rows.parts).tolist()


class Step:
    """The panels that step k sends: one, or one along each axis.

    stop  whether the step has failed, so that no other step follows
    """

    k: int
    panels: tuple[Panel, ...]

    stop = False

    def __init__(self, k: int, *panels: Panel) -> None:
        self.k, self.panels = k, panels

    def wait(self) -> None:
        """Wait until the step's panels have arrived."""
        for panel in self.panels:
            panel.wait()

    def release(self) -> None:
        """Local: report that this rank has read the step's panels."""
        for panel in self.panels:
            panel.release()


S = TypeVar("S", bound=Step)


def look_ahead(steps: Sequence[int], factor: Callable[[int, S | None], S]) -> Iterator[S]:
    """Collective: yield each step when its panels have arrived, and after the next step has started to send its panels.

    factor(k, last): update block column k by the panel of step `last`, factor it, and start sending it
    """
    if not steps:
        return
    begin_step()
    next_step: S | None = factor(steps[0], None)
    for k in (*steps[1:], None):
        if next_step is None:
            return
        step, next_step = next_step, None
        step.wait()
        if k is not None and not step.stop:
            begin_step()
            next_step = factor(k, step)
        yield step
        step.release()
