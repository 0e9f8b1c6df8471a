"""Routines: factorizations, and the solution of triangular systems, step by step in block columns.

A routine answers what choices of grids and blocks, predictions, plans and the benchmark need. A routine imports none of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt
from typing import Any

import numpy as np

from pdla.comm.collectives import broadcast, circulant
from pdla.grid import ProcessGrid
from pdla.layout import Layout, effective
from pdla.linalg.panels.blocks import find_block, find_depth_axis, find_near_square, is_in_square_blocks
from pdla.linalg.panels.factors import Factors
from pdla.matrix.core import DistMatrix
from pdla.matrix.create import random
from pdla.model.machine import Machine, operations

GridShape = tuple[int, ...]  # pr and pc; and c, where there are c layers


class Routine(ABC):
    """One routine; each is a single object, and routines/__init__.py lists them.

    m x n are the sizes of the matrix. A triangular system has m unknowns and n right-hand sides.

    name         in texts, and as a command of the benchmark
    about        what that command does
    layered      whether layers of ranks can take its panels in turns (2.5-D)
    short_steps  whether steps are so short that only one of the ranks that share a core should work
    algorithm    in a word, for explanations
    """

    name: str
    about: str
    layered: bool = False
    short_steps: bool = False
    algorithm: str = "right-looking"

    @abstractmethod
    def multiplications(self, m: int, n: int) -> float:
        """Multiplications of the whole routine."""

    @abstractmethod
    def words(self, m: int, n: int, shape: GridShape, block: int) -> float:
        """Words that a rank of a grid of this shape receives, in the mean."""

    @abstractmethod
    def price(self, step: StepCost) -> float:
        """Seconds of one step."""

    def size(self, m: int, n: int) -> int:
        """How many columns are factored, or rows solved for."""
        return min(m, n)

    def sizes(self, A: DistMatrix, B: Any = None) -> tuple[int, int]:
        """Local: m and n, for A and right-hand sides B."""
        return A.shape

    def columns(self, n: int, done: int, block: int, ranks: int) -> int:
        """How many columns a rank updates after the first `done` of n columns, which blocks of `block` cut over so many ranks."""
        return count_share(n - done, block, ranks)

    def bound(self, m: int, n: int, shape: GridShape) -> float:
        """The least words that a rank must receive: 2 multiplications / P sqrt(S), S the words that it holds.

        S counts the rank's share of the matrix and, over c layers, addends as large as c shares. The bound is
        n^3 / 3 P sqrt(S) for Cholesky, 2 n^3 / 3 P sqrt(S) for LU: Kwasniewski et al., SC 2021.
        """
        ranks, layers = prod(shape), prod(shape[2:])
        memory = m * n / ranks * (1 if layers == 1 else layers + 1)
        return 2 * self.multiplications(m, n) / (ranks * sqrt(memory)) if memory and ranks > 1 else 0.0

    def preference(self, shape: GridShape, block: int) -> Any:
        """A key: of blockings that cost about the same, the one with the largest key is taken."""
        return block

    def choose_grid(self, shape: GridShape) -> GridShape:
        """The shape of the grid that the routine uses on ranks of this shape: without layers, if it is not layered."""
        return shape if self.layered or len(shape) == 2 else find_near_square(prod(shape))

    def keeps_layout(self, A: Any) -> bool:
        """Whether the routine works in A's own layout, on A or a copy."""
        return is_in_square_blocks(A) or (self.layered and find_depth_axis(A) is not None)

    def find_blocking(self, A: Any) -> tuple[GridShape, int]:
        """The grid's shape and the columns of a panel, for an A whose layout is kept."""
        sizes = A.grid.sizes
        shape = [prod(sizes[cut.axis] for cut in effective(cuts, sizes)[:1]) for cuts in (A.layout.rows, A.layout.cols)]
        depth = [sizes[cut.axis] for cut in effective(A.layout.cols, sizes)[1:]]
        return (*shape, *depth), find_block(A)

    def list_blockings(self, m: int, ranks: int) -> Sequence[tuple[GridShape, int]]:
        """List the only blockings for m rows on so many ranks; an empty list if the routine works on any grid, in any blocks."""
        return ()

    def factor_to_solve(self, plan: Any, A: DistMatrix, dtype: np.dtype, overwrite: bool) -> Factors:
        """Collective: factor A to solve a system. Only routines in BY_STRUCTURE have this method."""
        raise NotImplementedError(self.name)

    def draw(self, n: int, grid: ProcessGrid, layout: Layout, dtype: np.dtype) -> DistMatrix:
        """Collective: draw a random n x n matrix on which the routine succeeds, for the benchmark."""
        return random((n, n), grid, layout, low=-0.5, high=0.5, dtype=dtype, seed=1)

    def __repr__(self) -> str:
        return self.name


def count_share(length: int, block: int, parts: int) -> int:
    """The largest share of `length` indices, dealt out in blocks to `parts` ranks."""
    turns, rest = divmod(length, block * parts)
    return turns * block + min(block, rest)


@lru_cache(maxsize=1024)
def _count_sharers(node: int, shape: GridShape, axis: int) -> int:
    """See StepCost.count_sharers."""
    pr, pc, *_ = shape
    if not _is_far(node, shape, axis):
        return 0
    spacing = (pc, 1, pr * pc)[axis]  # the difference in rank of neighbours along the axis
    return node // max(1, min(node // spacing, shape[axis]))


@lru_cache(maxsize=1024)
def _is_far(node: int, shape: GridShape, axis: int) -> bool:
    """See StepCost.is_far."""
    pr, pc, *_ = shape
    return 0 < node < (pr * pc, pc, prod(shape))[axis]


@dataclass(frozen=True)
class Task:
    """A routine's work on matrices of these sizes, on this machine."""

    routine: Routine
    m: int
    n: int
    dtype: np.dtype
    machine: Machine

    @property
    def size(self) -> int:
        """How many columns are factored, or rows solved for."""
        return self.routine.size(self.m, self.n)

    @property
    def multiplications(self) -> float:
        """Multiplications of the whole routine."""
        return self.routine.multiplications(self.m, self.n)

    def at_full_rate(self, ranks: int) -> float:
        """Seconds of an even share of the operations on so many ranks, at the highest rate of a product."""
        return operations(1, 1, self.multiplications, self.dtype) / (ranks * self.machine.most(self.dtype))

    def bound(self, shape: GridShape) -> float:
        """The least words that a rank of a grid of this shape must receive."""
        return self.routine.bound(self.m, self.n, shape)

    def words(self, shape: GridShape, block: int) -> float:
        """Words that a rank receives, in the mean."""
        if prod(shape) == 1 or not self.size:
            return 0.0
        return self.routine.words(self.m, self.n, self.routine.choose_grid(shape), min(block, self.size))


@dataclass(frozen=True)
class StepCost:
    """One block column: its width, and a rank's share of the rows and columns after it."""

    task: Task
    shape: GridShape
    width: int
    rows: int
    cols: int
    last: bool

    def gemm(self, m: int, n: int, k: int) -> float:
        """Seconds of a local product."""
        return self.task.machine.gemm(m, n, k, self.task.dtype) if m and n and k else 0.0

    def lapack(self, m: int, n: int, operations: float) -> float:
        """Seconds of so many operations of LAPACK on an m x n block."""
        return self.task.machine.lapack(m, n, operations, self.task.dtype) if m and n else 0.0

    def is_far(self, axis: int) -> bool:
        """Whether a grid row (1), a grid column (0) or the layers (2) span several nodes."""
        return _is_far(self.task.machine.node, self.shape, axis)

    def calls(self, count: float) -> float:
        """Seconds of overhead of so many local calls."""
        return count * self.task.machine.call

    def transfer(self, axis: int, words: float) -> float:
        """Seconds in which so many words reach all ranks along the grid rows (1) or columns (0), over shared links."""
        ranks = self.shape[axis]
        return self._time_on_link(axis, words) * (ranks - 1) / ranks

    def _time_on_link(self, axis: int, words: float) -> float:
        return words * self.task.dtype.itemsize / self.task.machine.rate(self.count_sharers(axis))

    def count_sharers(self, axis: int) -> int:
        """How many ranks of a node receive from other nodes at once along an axis: one for each grid row or column, or none."""
        return _count_sharers(self.task.machine.node, self.shape, axis)

    def message(self, axis: int, words: float = 0.0, count: float = 1.0) -> float:
        """Seconds until the last of `count` messages of so many words has arrived, from one rank to others along an axis."""
        machine = self.task.machine
        if self.shape[axis] == 1:
            return 0.0
        return machine.delay(self.is_far(axis)) + count * (machine.gap + self._time_on_link(axis, words))

    def spread(self, axis: int, words: float) -> float:
        """Seconds in which `broadcast.choose` sends so many words from one rank to all others along an axis."""
        ranks, size = self.shape[axis], words * self.task.dtype.itemsize
        if self._is_flat(axis, size):
            return self.message(axis, words, ranks - 1) if words else 0.0
        chunk = min(1.0, max(broadcast.CHUNK / size, 1 / (8 * ranks)))  # of the words
        return self.message(axis) * (ranks - 1) + self._time_on_link(axis, words) * (1 + (ranks - 2) * chunk)

    def sum(self, axis: int, words: float) -> float:
        """Seconds in which all ranks along an axis get the sum of so many words of each: two rounds of messages."""
        ranks = self.shape[axis]
        if circulant.pays(words * self.task.dtype.itemsize, ranks):
            steps = (ranks - 1).bit_length()
            return 2 * steps * self.message(axis, words * (ranks - 1) / (ranks * steps))
        return 2 * self.message(axis, words / ranks, ranks - 1)

    def next_arrival(self, axis: int, words: float) -> float:
        """Seconds until the next rank along the axis has the words: the first rank of a chain, else the middle rank, on average."""
        if not words:
            return 0.0
        return self.message(axis, words, self.shape[axis] / 2 if self._is_flat(axis, words * self.task.dtype.itemsize) else 1)

    def _is_flat(self, axis: int, size: float) -> bool:
        return broadcast.choose(int(size), self.shape[axis], 1 + self.is_far(axis), tree=False) == "flat"

    @property
    def layers(self) -> int:
        """How many layers of ranks there are."""
        return prod(self.shape[2:])

    def addend(self, words: float) -> float:
        """Seconds in which a rank packs, receives and adds an addend of another layer."""
        return self.message(2, words) + self.touch(2 * words)

    def delay(self, axis: int) -> float:
        """Seconds until a short message of one rank has reached all ranks of a grid row or column."""
        return self.message(axis, count=self.shape[axis] - 1)

    def touch(self, words: float) -> float:
        """Seconds in which so many words are read and written."""
        return self.task.machine.touch(int(2 * words * self.task.dtype.itemsize))

    def seconds(self, alone: float, panel: float, ahead: float, rest: float, wire: float, delay: float) -> float:
        """Seconds of the step: the larger of a rank's own work, and of the chain from one panel to the next.

        alone   seconds of one rank, while the others of its grid column wait
        panel   seconds of the whole grid column
        ahead   seconds to update the next block column
        rest    seconds to update the other block columns
        wire    seconds of words on links
        delay   seconds of messages, one after another

        A layer updates the rest before its next panel; meanwhile other layers work on their panels.
        """
        pc, overlap = self.shape[1], self.task.machine.overlap
        step = self.task.machine.step
        work = step + rest + (alone + panel) / pc
        chain = step + alone + panel + ahead + delay + (1 - overlap) * (1 - 1 / pc) * rest
        if self.layers > 1:
            return max((step + rest + alone + panel + wire) / self.layers, chain - step)
        return max(work + max(0.0, wire - overlap * work), chain)
