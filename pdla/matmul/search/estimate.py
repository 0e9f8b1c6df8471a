"""Closed forms of what the first rank of a grid holds, receives and computes: they choose the candidates to run.

The first rank has the largest block of every cut. The words it receives are exact, except that
Cannon's may be more, and those of short sums along several axes may be less. Work is products and
sums over ranks alone. A run takes at least the time of that work, and at least that of its bytes on
a link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from math import isqrt, prod

from pdla.comm.collectives import circulant, ring
from pdla.cuts import Block, Cut
from pdla.layout import Layout, Shape, axes_of
from pdla.model.machine import Machine

Sizes = Mapping[str, int]  # ranks along each axis; along the last they are consecutive


@dataclass(frozen=True)
class Move:
    """Words that the first rank receives from ranks that differ from it along `axes`.

    The words are addends of a sum, one in each message, or parts of a gather of `whole` words with
    the rank's own. Parts that come in steps are copied one by one afterwards, in `copies` copies.
    """

    axes: tuple[str, ...]
    words: int
    messages: int
    rounds: int
    adds: bool = False
    whole: int = 0
    copies: int = 0


@dataclass(frozen=True)
class Seconds:
    """Seconds of the work, sums of received addends included, and of the bytes from ranks of the same node and of other nodes.

    saved     of the seconds from other nodes, if all-gathers go around the nodes; panels do not
    overhead  of messages, and of the products after them, at any size; partly hidden
    hides     about the share of the shorter of work and messages that the longer hides
    """

    work: float
    near: float
    far: float
    saved: float = 0.0
    overhead: float = 0.0
    hides: float = 0.0

    @property
    def least(self) -> float:
        """A lower bound on the seconds of a run: at best the links and the rank work at the same time."""
        return max(self.work, self.near, self.far - self.saved)

    @property
    def promise(self) -> float:
        """An estimate that ranks candidates. `saved` is left out, since all-gathers, which save, overlap less than panels."""
        messages = self.near + self.far
        return self.work + messages - self.hides * min(self.work, messages) + self.overhead


def estimate_seconds(moves: Iterable[Move], work: float, sizes: Sizes, machine: Machine, itemsize: int) -> Seconds:
    """Estimate the seconds of a run that makes these moves; work: seconds of its products."""
    near = far = saved = 0.0
    for move in moves:
        group, on_node = prod(sizes[axis] for axis in move.axes), count_neighbours(move.axes, sizes, machine.node)
        outside = (group - on_node) / (group - 1)
        near += move.words * (1 - outside)
        far += move.words * outside
        if move.adds:
            work += machine.touch(2 * itemsize * move.words, move.messages)
        elif ring.pays(itemsize * move.whole, group, -(-group // on_node)):
            saved += move.words * outside * (1 - 1 / on_node)
    far_rate = machine.rate(max(1, machine.node))
    near, far, saved = near / machine.rate(0), far / far_rate, saved / far_rate
    return Seconds(work, itemsize * near, itemsize * far, itemsize * saved)


# ---------------------------------------------------------------------------------------------- what is held and moved


def count_indices(n: int, cuts: Iterable[Cut], sizes: Sizes) -> int:
    """Count the indices, of n, that the first rank holds under nested cuts into balanced blocks."""
    for cut in cuts:
        assert isinstance(cut, Block)
        units = -(-n // cut.unit)
        n = min(n, -(-units // sizes[cut.axis]) * cut.unit)
    return n


def count_words(shape: Shape, layout: Layout, sizes: Sizes) -> int:
    """Count the words of the first rank's block."""
    return count_indices(shape[0], layout.rows, sizes) * count_indices(shape[1], layout.cols, sizes)


def gather(
    shape: Shape, held: Layout, needed: Layout, sizes: Sizes, itemsize: int, panels: bool = False
) -> Iterator[Move]:
    """List the moves that gather a matrix along the axes that cut it in `held`, not in `needed`; panels: one by one, no steps."""
    axes = tuple(axis for axis in held.axes if axis not in needed.axes and sizes[axis] > 1)
    if axes:
        yield _estimate_gather(count_words(shape, needed, sizes), count_words(shape, held, sizes), axes, sizes, itemsize, panels)


def _estimate_gather(whole: int, own: int, axes: tuple[str, ...], sizes: Sizes, itemsize: int, panels: bool = False) -> Move:
    ranks = prod(sizes[axis] for axis in axes)
    steps = len(circulant.list_skips(ranks)) if circulant.pays(itemsize * whole, ranks) and not panels else 0
    return Move(axes, whole - own, steps or ranks - 1, steps or 1, whole=whole, copies=ranks if steps else 0)


def settle(shape: Shape, addends: Layout, target: Layout, sizes: Sizes, itemsize: int) -> Iterator[Move]:
    """List the moves that sum addends: scattered at once along the axes that cut the sum, equal on all ranks along the others."""
    partial = [axis for axis in addends.partial if sizes[axis] > 1]
    cut = tuple(axis for axis in target.axes if axis in partial)
    whole = tuple(axis for axis in partial if axis not in cut)
    if cut:
        yield scatter(shape, addends, target, cut, sizes, itemsize)
    yield from allreduce(count_words(shape, target, sizes), whole, sizes, itemsize)


def scatter(
    shape: Shape, addends: Layout, target: Layout, axes: tuple[str, ...], sizes: Sizes, itemsize: int, panels: bool = False
) -> Move:
    """Sum addends of a block along axes; each rank gets its part in `wanted`. panels: one by one, not in steps."""
    ranks = prod(sizes[axis] for axis in axes)
    if panels or not circulant.pays(itemsize * count_words(shape, addends, sizes), ranks):
        words = (ranks - 1) * count_words(shape, target, sizes)
        return Move(axes, words, ranks - 1, 1, adds=True)
    units, each = _count_units(shape, target, axes[0], sizes) if len(axes) == 1 else (ranks, count_words(shape, target, sizes))
    counts, (least, longer) = [count for _, count in circulant.list_skips(ranks)], divmod(units, ranks)
    received = sum(count * least + min(count, longer) for count in counts) if least else circulant.count_most_addends(ranks, units)
    return Move(axes, received * each, len(counts), len(counts), adds=True)


def _count_units(shape: Shape, layout: Layout, axis: str, sizes: Sizes) -> tuple[int, int]:
    """Count the units that a layout's cut along an axis divides, and the words of each."""
    nests = (shape[0], layout.rows, shape[1], layout.cols), (shape[1], layout.cols, shape[0], layout.rows)
    n, nest, across, others = next(side for side in nests if axis in axes_of(side[1]))
    depth = axes_of(nest).index(axis)
    cut = nest[depth]
    assert isinstance(cut, Block)
    return -(-count_indices(n, nest[:depth], sizes) // cut.unit), cut.unit * count_indices(across, others, sizes)


def allreduce(words: int, axes: tuple[str, ...], sizes: Sizes, itemsize: int) -> Iterator[Move]:
    """List the moves of an all-reduce of so many words along axes: each rank sums its share, and gathers the others'."""
    axes = tuple(axis for axis in axes if sizes[axis] > 1)
    ranks = prod(sizes[axis] for axis in axes)
    if not axes:
        return
    if circulant.pays(itemsize * words, ranks):
        own, steps = words // ranks, [part for _, count in circulant.list_skips(ranks) if (part := count * words // ranks)]
        yield Move(axes, sum(steps), len(steps), len(steps), adds=True)
    else:
        own = -(-words // ranks)
        yield Move(axes, (ranks - 1) * own, ranks - 1, 1, adds=True)
    yield _estimate_gather(words, own, axes, sizes, itemsize)


# ---------------------------------------------------------------------------------------------- grids and nodes


@lru_cache(maxsize=4096)
def list_divisors(n: int, most: int) -> tuple[int, ...]:
    """List the divisors of n up to `most`, the smallest first."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return tuple(sorted(d for d in {*small, *(n // d for d in small)} if d <= most))


def count_neighbours(axes: Iterable[str], sizes: Sizes, node: int) -> int:
    """Count the ranks on the first rank's node, of `node` ranks (0: all), that differ from it only along the axes, and itself."""
    steps = _find_steps(sizes)
    if not node:
        return prod(sizes[axis] for axis in axes)
    reach = [range(0, min(sizes[axis] * steps[axis], node), steps[axis]) for axis in axes]
    return sum(sum(ranks) < node for ranks in product(*reach))


def list_placements(sizes: Sizes, node: int) -> Iterator[dict[str, int]]:
    """List orders of the axes that put different ranks on a node; the given order first."""
    seen = set()
    long = [axis for axis in sizes if sizes[axis] > 1]
    for order in permutations(long):
        placed = {axis: sizes[axis] for axis in (*(axis for axis in sizes if axis not in long), *order)}
        reach = tuple(count_neighbours((axis,), placed, node) for axis in long)
        if reach not in seen:
            seen.add(reach)
            yield placed


def find_fastest(moves: Sequence[Move], work: float, sizes: Sizes, machine: Machine, itemsize: int) -> tuple[Seconds, Sizes]:
    """Find the order of axes in which messages take the least time: the seconds, and the sizes in that order."""
    timed = ((estimate_seconds(moves, work, placed, machine, itemsize), placed) for placed in list_placements(sizes, machine.node))
    return min(timed, key=lambda pair: pair[0].promise)


def _find_steps(sizes: Sizes) -> dict[str, int]:
    """Find the difference between the numbers of neighbouring ranks along each axis."""
    steps: dict[str, int] = {}
    step = 1
    for axis in reversed([*sizes]):
        steps[axis] = step
        step *= sizes[axis]
    return steps
