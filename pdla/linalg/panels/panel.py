"""Panels: what the ranks along one axis of a grid read in one step of a factorization; and the look-ahead.

panels = Panels(cols, xp, size, dtype)          along the grid rows, of up to `size` elements each
with panels:                                    collective
    panel = panels.take(k, (rows, w), header=2) the next slot, as a block of w columns of these rows, and two numbers behind it
    panel.bcast()                               collective: start sending it, which the owner of block k has written
    panel.wait()                                it may be read
    panel.rows(some)                            rows of its first block, by their places among this rank's
    panel.release()                             its slot may be written to again

A panel lies as it travels: its owner factors or packs blocks in place, others read them in place.
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
Extent = tuple[slice, int]  # of a block: its rows, as places among this rank's, and its width


class Panels:
    """The panels of one dimension: each goes from the owner of its block to all ranks along this axis."""

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
        """Collective: start sending a panel of one block, x of its owner, which a rank that is alone reads in place."""
        if self.dimension.comm is None:
            return self.view(block, x, conjugate)
        panel = self.take(k, block)
        if panel.mine:
            self.xp.copy(panel.blocks[0], x, conjugate)
        panel.bcast()
        return panel

    def view(self, block: Extent, x: Any, conjugate: bool = False) -> Panel:
        """Local: a panel of one block that is read in place: x, or a conjugate copy."""
        panel = Panel(self.slots, self.dimension.rank, self.dimension.rank)
        panel.blocks, panel.firsts = [self.xp.reinterpret(x, conjugate)], [block[0].start]
        return panel


class Panel:
    """Blocks of a matrix, one behind another in a slot, and a header of a few numbers behind them.

    message  all of it
    blocks   its blocks;  firsts: of each the place of its first row among this rank's
    """

    header: Any
    message: Any
    mine: bool
    owner: int
    second: int
    slots: Slots

    __slots__ = ("blocks", "firsts", "header", "message", "mine", "owner", "pending", "second", "slots")

    def __init__(
        self, slots: Slots, owner: int, here: int, extents: Sequence[Extent] = (), header: int = 0, writes: bool | None = None
    ) -> None:
        self.slots, self.owner, self.mine = slots, owner, owner == here
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
        """Local: rows of a block, by their places among this rank's."""
        first = self.firsts[number]
        return self.blocks[number][rows.start - first : rows.stop - first]

    def bcast(self, whole: bool = True) -> None:
        """Collective: start sending it, or all behind its first block, from its owner."""
        self.pending.append(self.slots.bcast(self.message if whole else self.message[self.second :], {self.owner: ALL}))

    def bcast_parts(self, parts: Parts) -> None:
        """Collective: start sending rows of the first block, each from the rank that has written it."""
        self.pending.append(self.slots.bcast(self.blocks[0], parts))

    def wait(self) -> Panel:
        """Wait for what is on its way."""
        for pending in self.pending:
            pending.wait()
        self.pending.clear()
        return self

    def read_header(self, unknown: Callable[[], np.ndarray]) -> np.ndarray:
        """Local: the header on the host, as real numbers; of arrays without data what `unknown` gives."""
        return to_host(self.slots.xp, self.header, unknown)

    def release(self) -> None:
        """Local: tell that this rank has read it."""
        self.slots.release()


def to_host(xp: ModuleType, header: Any, unknown: Callable[[], np.ndarray]) -> np.ndarray:
    """Local: a few numbers on the host, as real numbers; of arrays without data what `unknown` gives."""
    numbers = xp.host_or(header, None)
    return unknown() if numbers is None else numbers.real.astype(float)


class BlockColumns:
    """One rank's part of a matrix in square blocks, of whose block columns as many are factored as there are rows for.

    size  the columns that are factored;  count: the block columns
    """

    def __init__(self, X: DistMatrix, rows: Dimension, cols: Dimension) -> None:
        self.xp: Any = X.xp
        self.a: Any = X.stored
        self.rows, self.cols, self.block = rows, cols, cols.block
        self.size: int = min(rows.n, cols.n)
        self.count: int = -(-self.size // self.block)

    def width(self, k: int) -> int:
        """The columns of panel k: of a matrix with fewer rows than columns the last may be narrower than its block."""
        return min(self.block, self.size - k * self.block)

    def find_columns(self, k: int) -> slice:
        """Where this rank has panel k among its columns."""
        cols = self.cols.at[k]
        return slice(cols.start, min(cols.stop, cols.start + self.width(k)))

    def count_rows(self, k: int) -> list[int]:
        """How many rows of panel k each rank of the grid column has."""
        return np.bincount(self.rows.find_owners(np.arange(k * self.block, self.rows.n)), minlength=self.rows.parts).tolist()


class Step:
    """What step k sends: a panel, or one along each axis. stop: it has failed, and no other step follows."""

    k: int
    panels: tuple[Panel, ...]

    stop = False

    def __init__(self, k: int, *panels: Panel) -> None:
        self.k, self.panels = k, panels

    def wait(self) -> None:
        """Wait for all that is on its way."""
        for panel in self.panels:
            panel.wait()

    def release(self) -> None:
        """Local: tell that this rank has read all."""
        for panel in self.panels:
            panel.release()


S = TypeVar("S", bound=Step)


def look_ahead(steps: Sequence[int], factor: Callable[[int, S | None], S]) -> Iterator[S]:
    """Collective: give each step when its panels have come and those of the next are on their way.

    factor(k, last): update block column k by the panel of step `last`, factor it, and start sending it
    """
    if not steps:
        return
    begin_step()
    coming: S | None = factor(steps[0], None)
    for k in (*steps[1:], None):
        if coming is None:
            return
        step, coming = coming, None
        step.wait()
        if k is not None and not step.stop:
            begin_step()
            coming = factor(k, step)
        yield step
        step.release()
