"""What factorizations and triangular systems cost on a grid of pr x pc ranks, by closed forms; and the cheapest grid and block.

A step is priced by what one rank does in it. Two things bound it: a rank's own work (`busy`), of
which the panel's is done by each grid column in turn; and the chain from one panel to the next
(`chain`), through which all ranks wait where panels are narrow or many. Of many steps SAMPLE are
priced, evenly spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd, log2, prod, sqrt
from typing import NamedTuple

import numpy as np

from pdla.array.meta import inner
from pdla.linalg.factorizations.block_cyclic import near_square
from pdla.matmul.roles import READ
from pdla.model.machine import Machine

SAMPLE = 48  # steps that are priced
BLOCKS = (32, 48, 64, 96, 128, 192)
FEW = 32  # columns of right-hand sides up to which a triangle stays, and sums travel
LEAF = 128  # columns at the diagonal whose both triangles are multiplied, as by rank_k.below
LONG = 8  # ranks up to which a grid of one column is tried
GOOD = 1.05  # of the least price: as good
BOOKKEEPING = 2.5e-4  # seconds for which a rank is busy with what a step takes besides: Python, headers, calls of few elements
LAYERED = ("cholesky", "lu")  # routines that work on layers, too
Shape = tuple[int, ...]


class Blocking(NamedTuple):
    """Where the work is done: a grid's shape, with a number of layers where there are several, and the columns of a panel.

    Square blocks have as many rows and columns, over layers so many times more.
    """

    shape: Shape
    block: int

    def __str__(self) -> str:
        ranks = " x ".join(map(str, self.shape))
        return f"in {'square blocks' if len(self.shape) == 2 else 'layers, panels'} of {self.block} on {ranks} ranks"


def worked(routine: str, shape: Shape) -> Shape:
    """The shape of the grid on which a routine works: without layers where it has none."""
    return shape if routine in LAYERED or len(shape) == 2 else near_square(prod(shape))


@dataclass(frozen=True)
class Task:
    """A routine's work: "cholesky" or "lu" of an m x n matrix, or "triangular", an m x m one with n right-hand sides."""

    routine: str
    m: int
    n: int
    dtype: np.dtype
    machine: Machine

    @property
    def order(self) -> int:
        """Columns that are factored, or rows that are solved for."""
        return self.m if self.routine == "triangular" else min(self.m, self.n)


    @property
    def multiplications(self) -> float:
        m, n, k = self.m, self.n, self.order
        by_routine = {"cholesky": k**3 / 6, "lu": m * n * k - (m + n) * k**2 / 2 + k**3 / 3, "triangular": m * m * n / 2}
        return by_routine[self.routine]


def bound(task: Task, shape: Shape) -> float:
    """Words that a rank must receive at least for a factor: 2 multiplications / P sqrt(S), S the words that it holds.

    These are its share of the matrix and, over c layers, addends as large as c shares. For Cholesky
    n^3 / 3 P sqrt(S), for LU 2 n^3 / 3 P sqrt(S): Kwasniewski et al., SC 2021. Of triangular
    systems 0.
    """
    ranks, layers = prod(shape), prod(shape[2:])
    held = task.m * task.n / ranks * (1 if layers == 1 else layers + 1)
    moves = held and ranks > 1 and task.routine != "triangular"
    return 2 * task.multiplications / (ranks * sqrt(held)) if moves else 0.0


@dataclass(frozen=True)
class Step:
    """One block column: its width, and the rows and columns after it, of which this is a rank's share."""

    task: Task
    shape: Shape
    width: int
    rows: int
    cols: int
    last: bool

    def gemm(self, m: int, n: int, k: int) -> float:
        return self.task.machine.gemm(m, n, k, self.task.dtype) if m and n and k else 0.0

    def factor(self, m: int, n: int, k: int) -> float:
        """LAPACK's work of m n k operations or about so many, which takes as long as a product of twice as many."""
        return self.gemm(m, n, k)

    def sent(self, axis: int, words: float) -> float:
        """Seconds in which so many words go along the grid rows (1) or columns (0): to all of them, the links shared."""
        machine, (pr, pc, *_) = self.task.machine, self.shape
        ranks, far = (pc, 0 < machine.node < pc) if axis else (pr, 0 < machine.node < pr * pc)
        if ranks == 1 or not words:
            return 0.0
        return words * self.task.dtype.itemsize / machine.rate(far) * (ranks - 1) / ranks

    @property
    def layers(self) -> int:
        return prod(self.shape[2:])

    def given(self, words: float) -> float:
        """Seconds in which a rank receives an addend of another layer, packs and adds it."""
        rate = self.task.machine.rate(0 < self.task.machine.node < prod(self.shape))
        return self.delay(2) + words * self.task.dtype.itemsize / rate + self.touched(2 * words)

    def delay(self, axis: int) -> float:
        """Seconds until the last rank of a grid row or column, or of another layer, hears of a message."""
        machine, (pr, pc, *_) = self.task.machine, self.shape
        far = 0 < machine.node < (pr * pc, pc, prod(self.shape))[axis]
        return ceil(log2(self.shape[axis])) * (machine.delay(far) + machine.gap)

    def touched(self, words: float) -> float:
        return self.task.machine.touch(int(2 * words * self.task.dtype.itemsize))

    def seconds(self, alone: float, panel: float, ahead: float, rest: float, wire: float, delay: float) -> float:
        """Of the step.

        alone   what one rank does while all of its grid column wait;  panel: what the grid column does
        ahead   the update of the next block column;  rest: of all that are left
        wire    words on their way, in seconds;  delay: of messages, one after another

        A layer updates the rest before its next panel, while others go on with theirs.
        """
        pc, overlap = self.shape[1], self.task.machine.overlap
        work = BOOKKEEPING + rest + (alone + panel) / pc
        chain = BOOKKEEPING + alone + panel + ahead + delay
        if self.layers > 1:
            return max((rest + alone + panel + wire) / self.layers, chain)
        return max(work + max(0.0, wire - overlap * work), chain)


def _cholesky(step: Step) -> float:
    w, rows, cols, (pr, pc, *_) = step.width, step.rows, step.cols, step.shape
    alone = step.factor(w, w, inner(w)) * (1 if step.last else 2)
    wire = step.sent(0, w * w / pc) + step.sent(1, rows * w) + step.sent(0, cols * w)
    turned = pr // gcd(pr, pc)  # grid rows that have what faces a grid column, each of which broadcasts its part
    corner = (1 + turned) * step.delay(0) + step.sent(0, 0 if step.last else w * w)
    along = step.delay(1) + step.sent(1, rows * w)
    if step.layers > 1:  # panels of one block go from layer to layer in a grid column, before they go along the rows
        wire += (step.layers - 1) * step.given((rows + w) * w) / pc
        along = step.given((rows + w) * w) + (along + step.sent(0, cols * w)) / step.layers
    return step.seconds(
        alone, step.gemm(rows, w, w) + step.touched(2 * rows * w), step.gemm(rows, w, w),
        step.gemm(rows, (cols + min(cols, LEAF)) // 2, w) + step.touched(2 * cols * w), wire, corner + along,
    )


def _lu(step: Step) -> float:
    w, rows, cols, (pr, pc, *_) = step.width, step.rows, step.cols, step.shape
    rounds = ceil(log2(pr))
    alone = rounds * (step.factor(2 * w, w, w) + step.sent(0, w * w))
    panel = step.factor(rows + w, w, w) + step.touched(3 * (rows + w) * w)
    below = step.factor(w, cols, w) / pr + step.touched(4 * w * cols)
    wire = step.sent(1, (rows + w) * w) + step.sent(0, 2 * cols * w)
    update = step.gemm(rows, cols, w) + READ * step.touched(rows * cols)  # all of it once a step: wide panels spare that
    ahead, delay = step.gemm(rows, w, w), (rounds + 2) * step.delay(0) + step.delay(1) + step.sent(1, (rows + w) * w)
    if step.layers > 1:  # a panel and its pivot rows are summed over layers, and sent, before the next layer's turn
        delay += (step.layers - 1) * step.given(w * (rows + cols / pr))
        delay += step.sent(1, ceil(log2(pc)) * rows * w) + step.sent(0, w * cols)
    return step.seconds(alone, panel, ahead, update + below, wire, delay)


def _triangular(step: Step) -> float:
    w, rows, cols, (pr, _) = step.width, step.rows, step.cols, step.shape
    solved = step.factor(w, cols, w)
    if step.task.n <= FEW:
        wire, rest = step.sent(0, w * cols) + step.sent(1, w * cols / pr), step.gemm(rows, cols, w)
        return step.seconds(solved, rest, 0.0, 0.0, wire, step.delay(0) + step.delay(1))
    wire = step.sent(1, (rows + w / pr) * w) + step.sent(0, cols * w)
    busy = step.gemm(rows, cols, w) + step.touched((rows + w) * w) + solved / pr
    ahead = step.gemm(min(rows, w), cols, w)
    return step.seconds(solved, 0.0, ahead, busy, wire, step.delay(0) + step.sent(0, cols * w))


_STEPS = {"cholesky": _cholesky, "lu": _lu, "triangular": _triangular}


def _share(length: int, block: int, parts: int) -> int:
    """The most of so many indices in blocks that one of the ranks has."""
    turns, rest = divmod(length, block * parts)
    return turns * block + min(block, rest)


def shares(task: Task, shape: Shape, block: int) -> tuple[int, int]:
    """The most rows and columns that a rank has, in square blocks of so many rows; of a layer, where there are some."""
    wide = block * prod(shape[2:])
    return _share(task.m, wide, shape[0]), _share(task.n, wide, shape[1])


@lru_cache(maxsize=4096)
def seconds(task: Task, shape: Shape, block: int) -> float:
    """On a grid of this shape, in square blocks of so many rows."""
    count, shape = -(-task.order // block) if task.order else 0, worked(task.routine, shape)
    sample = range(count) if count <= SAMPLE else [(2 * i + 1) * count // (2 * SAMPLE) for i in range(SAMPLE)]
    return sum(_STEPS[task.routine](_step(task, shape, block, k)) for k in sample) * count / max(1, len(sample))


def _step(task: Task, shape: Shape, block: int, k: int) -> Step:
    done = min((k + 1) * block, task.order)
    wide = block * prod(shape[2:])
    rows = _share(task.m - done, wide, shape[0])
    whole = task.n if task.n <= FEW else -(-task.n // shape[1])
    cols = whole if task.routine == "triangular" else _share(task.n - done, wide, shape[1])
    return Step(task, shape, done - k * block, rows, cols, done == task.order)


def shapes(ranks: int) -> list[Shape]:
    """Grids that are tried: the near-square one, and ever longer ones of as many ranks."""
    pr, pc = near_square(ranks)
    found = [(pr, pc), (pc, pr)]
    while pr % 2 == 0:
        pr, pc = pr // 2, 2 * pc
        found += [(pr, pc), (pc, pr)]
    return list(dict.fromkeys([*found, *([(ranks, 1), (1, ranks)] if ranks <= LONG else [(1, ranks)])]))


@lru_cache(maxsize=1024)
def cheapest(task: Task, ranks: int) -> tuple[Blocking, ...]:
    """The blockings, the cheapest first; the whole matrix is one block where there is one rank.

    Of those that cost as good as the least, first comes that of the widest blocks: few long
    products and messages fail the price less than many short ones; of LU one whose panels lie on
    one rank each, as its pivots are LAPACK's; for Cholesky one of the most nearly square grids, on
    which the fewest words travel, then of most rows of ranks: all that have a part of a panel work
    on it.
    """
    if ranks == 1:
        return (Blocking((1, 1), max(1, task.m, task.n)),)
    blocks = [block for block in BLOCKS if block <= max(BLOCKS[0], -(-task.order // 2))]
    blockings = [Blocking(shape, block) for shape in shapes(ranks) for block in blocks]
    blockings.sort(key=lambda blocking: seconds(task, *blocking))
    good = [blocking for blocking in blockings if seconds(task, *blocking) <= GOOD * seconds(task, *blockings[0])]
    order = {
        "cholesky": lambda shape, block: (-sum(shape), block, shape[0]),
        "lu": lambda shape, block: (shape[0] == 1, -sum(shape), block),
        "triangular": lambda shape, block: block,
    }
    first = max(good, key=lambda blocking: order[task.routine](*blocking))
    return (first, *(blocking for blocking in blockings if blocking != first))
