"""The one rule: each grid axis takes a role in C(m, n) += A(m, k) B(k, n), and the role says how A, B and C must lie along it.

    the axis carries   A must be     B must be     C comes as
    m                  cut along m   whole         cut along m
    n                  whole         cut along n   cut along n
    k                  cut along k   cut along k   partial: each rank an addend
    - (copy)           whole         whole         whole

The roles that move the fewest words win; ties go to m, then n, then k. Words are counted for balanced blocks, from sizes
alone, so that every rank finds the same roles whatever its coordinates and however many ranks there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product, takewhile
from math import prod
from typing import NamedTuple

from pdla.cuts import Block, Cut, Cuts
from pdla.layout import Layout, axes_of, effective, extra_axes

READ = 0.25  # the cost of reading a word of another rank's block in place, in copies of a word: the local product reads it anyway

Sizes = tuple[tuple[str, int], ...]
Nest = tuple[Cut, ...]
Seen = tuple[bool, bool]  # for A and for B: whether it lies in memory that all ranks see, as it is


@dataclass(frozen=True)
class Roles:
    """What each axis carries, and the layouts that A, B and C must have for the local products."""

    carries: tuple[tuple[str, str], ...]
    A: Layout
    B: Layout
    C: Layout

    @property
    def layouts(self) -> tuple[Layout, Layout, Layout]:
        return self.A, self.B, self.C

    @property
    def copies(self) -> bool:
        """Whether there are copies of C, each computed by its own rank."""
        return any(role == "-" for _, role in self.carries)

    def __str__(self) -> str:
        return ", ".join(f"{axis} carries {'a copy' if role == '-' else role}" for axis, role in self.carries)


@lru_cache(maxsize=1024)
def choose(
    A: Layout, B: Layout, C: Layout | None, m: int, n: int, k: int, sizes: Sizes, shared: Seen | None = None
) -> tuple[Roles, float]:
    """The roles by which a rank receives the fewest words from these layouts of the operands, and how many; C=None leaves C's
    layout to the roles.

    shared  if given, A and B are read in shared memory, and the roles are those by which a rank copies the fewest words
    """
    size = dict(sizes)
    A, B = (cutting(X, size) for X in (A, B))
    C = None if C is None else cutting(C, size)
    axes = [axis for axis, p in sizes if p > 1]
    best: tuple[float, Roles] | None = None
    cost = price if shared is None else partial(copied, in_place=shared)
    for carried in product("mnk-", repeat=len(axes)):
        for layouts in _arrangements(A, B, C, dict(zip(axes, carried, strict=True))):
            words = cost((A, B, C), layouts, (m, n, k), size)
            if best is None or words < best[0] * (1 - 1e-9):
                best = words, Roles(tuple(zip(axes, carried, strict=True)), *layouts)
    assert best is not None
    chosen = best[1]
    return chosen, price((A, B, C), chosen.layouts, (m, n, k), size)


def cutting(X: Layout, size: Mapping[str, int]) -> Layout:
    """The layout without the cuts along axes of one rank, and without partial sums."""
    return Layout(effective(X.rows, size), effective(X.cols, size))


def _arrangements(A: Layout, B: Layout, C: Layout | None, carries: Mapping[str, str]):
    """The layouts of A, B and C that these roles allow and that are tried: of the two matrices that have a dimension, the cuts are
    nested as one or the other's are."""
    sources = {
        "m": (A.rows, C.rows if C else ()),
        "k": (A.cols, B.rows),
        "n": (B.cols, C.cols if C else ()),
    }
    nests = {}
    for dimension, (first, second) in sources.items():
        axes = {axis for axis, role in carries.items() if role == dimension}
        nests[dimension] = dict.fromkeys((_arranged(axes, first, second), _arranged(axes, second, first)))
    partial = tuple(axis for axis, role in carries.items() if role == "k")
    for m, k, n in product(nests["m"], nests["k"], nests["n"]):
        yield Layout(m, k), Layout(k, n), Layout(m, n, partial)


def _arranged(axes: set[str], first: Nest, second: Nest) -> Nest:
    """Cuts along the axes: those of `first` in its order, then those of `second`, then plain blocks."""
    nest = [cut for cut in first if cut.axis in axes]
    nest += [cut for cut in second if cut.axis in axes - set(axes_of(tuple(nest)))]
    nest += [Block(axis) for axis in sorted(axes - set(axes_of(tuple(nest))))]
    return tuple(nest[:1] + [Block(cut.axis) if isinstance(cut, Cuts) else cut for cut in nest[1:]])


class Move(NamedTuple):
    """Words that a rank receives, the axes along which they come (none: along any), and whether they are added up."""

    words: float
    axes: tuple[str, ...]
    addends: bool = False


def moves(given: tuple, layouts: tuple, mnk: tuple[int, int, int], size: Mapping[str, int]) -> Iterator[Move]:
    """What a rank receives when A and B come in the layouts `given`, are multiplied in `layouts`, and C goes to its given one."""
    (A, B, C), (a, b, c), (m, n, k) = given, layouts, mnk
    for elements, X, x in ((m * k, A, a), (k * n, B, b)):
        yield Move(moved(elements, X, x, size), tuple(axis for axis in X.axes if axis not in x.axes))
    scattered, reduced = after_sums(c, C)
    block = m * n / prod(size[axis] for axis in c.axes)
    for axis in c.partial:
        p = size[axis]
        yield Move(block * (1 - 1 / p) * (1 if axis in scattered else 2), (axis,), True)
        block /= p if axis in scattered else 1
    if C is not None:
        yield Move(moved(m * n, reduced, C, size), ())


def price(given: tuple, layouts: tuple, mnk: tuple[int, int, int], size: Mapping[str, int]) -> float:
    """The words that a rank receives in all: see `moves`."""
    return sum(move.words for move in moves(given, layouts, mnk, size))


def gathered(
    given: tuple, layouts: tuple, mnk: tuple[int, int, int], size: Mapping[str, int], seen: Seen
) -> tuple[float, float]:
    """Of A and B where an all-gather is enough to bring them to `layouts`: the words that a rank receives, and the words of its own
    blocks that others need, without those that all ranks see as they are."""
    return _coming(given, layouts, mnk, size, seen, lambda X, x: bool(extra_axes(X, x, size)))


def read_in_place(
    given: tuple, layouts: tuple, mnk: tuple[int, int, int], size: Mapping[str, int], seen: Seen
) -> tuple[float, float]:
    """The words of A and B that a rank reads in shared memory, if all that has to move is read there; and the words that it writes
    there first, its own blocks of what not all ranks see as it is."""
    return _coming(given, layouts, mnk, size, seen, lambda X, x: True)


def _coming(
    given: tuple,
    layouts: tuple,
    mnk: tuple[int, int, int],
    size: Mapping[str, int],
    seen: Seen,
    counts: Callable[[Layout, Layout], bool],
) -> tuple[float, float]:
    m, n, k = mnk
    come = own = 0.0
    for elements, X, x, as_it_is in zip((m * k, k * n), given, layouts, seen, strict=False):
        words = moved(elements, X, x, size)
        if words and counts(X, x):
            come += words
            own += 0 if as_it_is else elements / prod(size[axis] for axis in X.axes)
    return come, own


def added(given: tuple, layouts: tuple, mnk: tuple[int, int, int], size: Mapping[str, int]) -> float:
    """Words of addends of C that a rank receives."""
    return sum(move.words for move in moves(given, layouts, mnk, size) if move.addends)


def copied(
    given: tuple, layouts: tuple, mnk: tuple[int, int, int], size: Mapping[str, int], in_place: Seen | None
) -> float:
    """Words that a rank copies. Each word that moves is copied as it is sent and as it is received, an addend of C also as it is
    added. in_place: A and B are read in shared memory; then only the rank's own blocks are copied, unless all see them as they
    are, and a word that it reads counts as READ of a copy."""
    total = sum(move.words * (3 if move.addends else 2) for move in moves(given, layouts, mnk, size))
    if in_place is not None:
        read, own = read_in_place(given, layouts, mnk, size, in_place)
        total += own + READ * read - 2 * read
    return total


def after_sums(c: Layout, wanted: Layout | None) -> tuple[tuple[str, ...], Layout]:
    """The axes over which C's addends are reduce-scattered rather than all-reduced, outermost first, and C's layout afterwards."""
    if wanted is None:
        return c.partial, native(c)
    rows, cols, scattered = c.rows, c.cols, []
    for cut in (*wanted.rows, *wanted.cols):
        if cut.axis in c.partial:
            scattered.append(cut.axis)
            plain = Block(cut.axis) if isinstance(cut, Cuts) and (rows if cut in wanted.rows else cols) else cut
            rows, cols = (*rows, plain) if cut in wanted.rows else rows, (*cols, plain) if cut in wanted.cols else cols
    return tuple(scattered), Layout(rows, cols)


def native(c: Layout) -> Layout:
    """C's layout where none is asked for: each axis of its partial sums cuts its rows, innermost."""
    return Layout((*c.rows, *(Block(axis) for axis in c.partial)), c.cols)


def moved(elements: int, old: Layout, new: Layout, size: Mapping[str, int]) -> float:
    """Words received from one layout of a matrix to another, for balanced blocks, by the rank that holds least of what it needs.

    Where both layouts cut a dimension further than the cuts that they have in common, some rank's old and new shares of it do not
    meet at all: it keeps nothing.
    """
    need = kept = elements / prod(size[axis] for axis in new.axes)
    for before, after in ((old.rows, new.rows), (old.cols, new.cols)):
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
        if before[common:] and after[common:]:
            kept = 0.0
        kept /= prod(size[cut.axis] for cut in before[common:])
    return need - kept
