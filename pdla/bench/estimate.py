"""Closed forms: what the first rank of a grid holds, receives and computes, without a run. For choosing what to run.

The first rank has the largest block of every cut. What it receives is exact, but for Cannon's, which may be more. Of its work
products and sums over ranks are known here. A run takes at least the time of that, and at least that of its bytes over each link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from math import isqrt, prod

from pdla.comm import ring
from pdla.cuts import Block, Cut
from pdla.layout import Layout, Shape
from pdla.model.machine import Machine

Sizes = Mapping[str, int]  # ranks along each axis, the slowest first: along the last one neighbours follow each other


@dataclass(frozen=True)
class Move:
    """Words that the first rank receives from those that differ from it along some axes, and how many of them it adds up, in how
    many steps; the others it gathers, and has `whole` words then."""

    axes: tuple[str, ...]
    words: int
    added: int = 0
    steps: int = 0
    whole: int = 0


@dataclass(frozen=True)
class Seconds:
    """Of the work, sums of what has come among it, and of the bytes over the links to ranks on the same node and on others.

    saved  of those from others, where all-gathers go around the nodes; what goes by panels does not
    begun  of what each message takes however small, and the product of each; some of it behind other things
    """

    work: float
    near: float
    far: float
    saved: float = 0.0
    begun: float = 0.0

    @property
    def least(self) -> float:
        """No run is faster: links and the rank itself work at the same time at best."""
        return max(self.work, self.near, self.far - self.saved)

    @property
    def promise(self) -> float:
        """Nothing overlapped, and nothing saved: what is gathered at once, and saves, hides behind less work than panels do."""
        return self.work + self.near + self.far + self.begun


def seconds(moves: Iterable[Move], work: float, sizes: Sizes, machine: Machine, itemsize: int) -> Seconds:
    """`work`: seconds of products."""
    near = far = saved = 0.0
    for move in moves:
        group, here = prod(sizes[axis] for axis in move.axes), neighbours(move.axes, sizes, machine.node)
        outside = (group - here) / (group - 1)
        near += move.words * (1 - outside)
        far += move.words * outside
        if ring.way(itemsize * move.whole, group, -(-group // here)):
            saved += (move.words - move.added) * outside * (1 - 1 / here)
        work += machine.touch(2 * itemsize * move.added, move.steps)
    near, far, saved = near / machine.rate(False), far / machine.rate(True), saved / machine.rate(True)
    return Seconds(work, itemsize * near, itemsize * far, itemsize * saved)


# ---------------------------------------------------------------------------------------------- what is held and moved


def length(n: int, cuts: Iterable[Cut], sizes: Sizes) -> int:
    """How many of n indices the first rank holds under nested cuts into balanced blocks."""
    for cut in cuts:
        assert isinstance(cut, Block)
        units = -(-n // cut.unit)
        n = min(n, -(-units // sizes[cut.axis]) * cut.unit)
    return n


def block(shape: Shape, layout: Layout, sizes: Sizes) -> int:
    """Words of the first rank's block."""
    return length(shape[0], layout.rows, sizes) * length(shape[1], layout.cols, sizes)


def gather(shape: Shape, held: Layout, needed: Layout, sizes: Sizes) -> Iterator[Move]:
    """A matrix gathered over the axes that cut it and are not to."""
    axes = tuple(axis for axis in held.axes if axis not in needed.axes and sizes[axis] > 1)
    if axes:
        whole = block(shape, needed, sizes)
        yield Move(axes, whole - block(shape, held, sizes), whole=whole)


def settle(shape: Shape, addends: Layout, wanted: Layout, sizes: Sizes) -> Iterator[Move]:
    """Addends summed: scattered along the axes that cut the sum, the same on all ranks of the others."""
    partial = [axis for axis in addends.partial if sizes[axis] > 1]
    cut = tuple(axis for axis in wanted.axes if axis in partial)
    whole = tuple(axis for axis in partial if axis not in cut)
    words = block(shape, wanted, sizes)
    if cut:
        others = prod(sizes[axis] for axis in cut) - 1
        yield Move(cut, others * words, others * words, others)
    yield from reduced(words, whole, sizes)


def reduced(words: int, axes: tuple[str, ...], sizes: Sizes) -> Iterator[Move]:
    """An all-reduce of so many words along axes: each rank sums its share, and gathers the others'."""
    axes = tuple(axis for axis in axes if sizes[axis] > 1)
    if axes:
        ranks = prod(sizes[axis] for axis in axes)
        own = -(-words // ranks)
        yield Move(axes, (ranks - 1) * own + words - own, (ranks - 1) * own, ranks - 1, words)


# ---------------------------------------------------------------------------------------------- grids and nodes


@lru_cache(maxsize=4096)
def divisors(n: int, most: int) -> tuple[int, ...]:
    """Those of n that are at most `most`, the smallest first."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return tuple(sorted(d for d in {*small, *(n // d for d in small)} if d <= most))


def neighbours(axes: Iterable[str], sizes: Sizes, node: int) -> int:
    """How many of the ranks that differ from the first one along the axes are on its node, itself too; 0 a node: all."""
    steps = _steps(sizes)
    if not node:
        return prod(sizes[axis] for axis in axes)
    reach = [range(0, min(sizes[axis] * steps[axis], node), steps[axis]) for axis in axes]
    return sum(sum(ranks) < node for ranks in product(*reach))


def placements(sizes: Sizes, node: int) -> Iterator[dict[str, int]]:
    """Orders of the axes that put other ranks on a node; the given one first."""
    seen = set()
    long = [axis for axis in sizes if sizes[axis] > 1]
    for order in permutations(long):
        placed = {axis: sizes[axis] for axis in (*(axis for axis in sizes if axis not in long), *order)}
        reach = tuple(neighbours((axis,), placed, node) for axis in long)
        if reach not in seen:
            seen.add(reach)
            yield placed


def _steps(sizes: Sizes) -> dict[str, int]:
    """By how many ranks neighbours along each axis differ."""
    steps: dict[str, int] = {}
    step = 1
    for axis in reversed([*sizes]):
        steps[axis] = step
        step *= sizes[axis]
    return steps
