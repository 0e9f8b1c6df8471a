"""The one rule: each grid axis takes a role in C(m, n) += A(m, k) B(k, n), and the role says what it must find.

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

READ = 0.25  # of a copy: what it costs to read a word of another rank's in place, as the local product does in any case

Sizes = tuple[tuple[str, int], ...]
Nest = tuple[Cut, ...]
Seen = tuple[bool, bool]  # of A and of B: whether all ranks see it as it lies


@dataclass(frozen=True)
class Roles:
    """What each axis carries, and the layouts in which A, B and C meet for the local products."""

    carries: tuple[tuple[str, str], ...]
    A: Layout
    B: Layout
    C: Layout

    def __str__(self) -> str:
        return ", ".join(f"{axis} carries {'a copy' if role == '-' else role}" for axis, role in self.carries)


@lru_cache(maxsize=1024)
def choose(
    A: Layout, B: Layout, C: Layout | None, m: int, n: int, k: int, sizes: Sizes, shared: Seen | None = None
) -> tuple[Roles, float]:
    """The cheapest roles for operands laid out so, and their words; C=None leaves its layout to the roles.

    shared: A and B may be read in place: the cheapest are those that copy least; which of the two all ranks see as they lie.
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
    return chosen, price((A, B, C), (chosen.A, chosen.B, chosen.C), (m, n, k), size)


def cutting(X: Layout, size: Mapping[str, int]) -> Layout:
    """Without the cuts along axes of one rank."""
    return Layout(effective(X.rows, size), effective(X.cols, size))


def _arrangements(A: Layout, B: Layout, C: Layout | None, carries: Mapping[str, str]):
    """Layouts of A, B and C for these roles: each dimension nested as one or the other matrix that has it is."""
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
    """What a rank receives when A and B come as given and C is to go as given."""
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
    """The words of these moves."""
    return sum(move.words for move in moves(given, layouts, mnk, size))


def gathered(
    given: tuple, layouts: tuple, mnk: tuple[int, int, int], size: Mapping[str, int], seen: Seen
) -> tuple[float, float]:
    """Words of A and B that come by gathers alone, in panels or read in place, and words of a rank's own that others gather, but
    for what they see as it lies."""
    return _coming(given, layouts, mnk, size, seen, lambda X, x: bool(extra_axes(X, x, size)))


def read_in_place(
    given: tuple, layouts: tuple, mnk: tuple[int, int, int], size: Mapping[str, int], seen: Seen
) -> tuple[float, float]:
    """Words of A and B that a rank reads of others', if all that moves is read where it lies, and its own that it writes there."""
    return _coming(given, layouts, mnk, size, seen, lambda X, x: True)


def _coming(
    given: tuple,
    layouts: tuple,
    mnk: tuple[int, int, int],
    size: Mapping[str, int],
    seen: Seen,
    so: Callable[[Layout, Layout], bool],
) -> tuple[float, float]:
    m, n, k = mnk
    come = own = 0.0
    for elements, X, x, there in zip((m * k, k * n), given, layouts, seen, strict=False):
        words = moved(elements, X, x, size)
        if words and so(X, x):
            come += words
            own += 0 if there else elements / prod(size[axis] for axis in X.axes)
    return come, own


def added(given: tuple, layouts: tuple, mnk: tuple[int, int, int], size: Mapping[str, int]) -> float:
    """Words of addends of C that a rank receives."""
    return sum(move.words for move in moves(given, layouts, mnk, size) if move.addends)


def copied(
    given: tuple, layouts: tuple, mnk: tuple[int, int, int], size: Mapping[str, int], in_place: Seen | None
) -> float:
    """Words that a rank copies: of all that moves as it goes and as it comes, of addends of C as they are added, too. in_place: of
    A and B its own blocks, where they move and are not seen as they lie, and a part of what it reads of others'."""
    total = sum(move.words * (3 if move.addends else 2) for move in moves(given, layouts, mnk, size))
    if in_place is not None:
        read, own = read_in_place(given, layouts, mnk, size, in_place)
        total += own + READ * read - 2 * read
    return total


def after_sums(c: Layout, wanted: Layout | None) -> tuple[tuple[str, ...], Layout]:
    """The axes over which C's addends are scattered rather than summed everywhere, outer first, and C's layout then."""
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
    """Where C is left when nobody asks: each partial axis cuts its rows, innermost."""
    return Layout((*c.rows, *(Block(axis) for axis in c.partial)), c.cols)


def moved(elements: int, old: Layout, new: Layout, size: Mapping[str, int]) -> float:
    """Words received between two layouts of a matrix, for balanced blocks, by the rank that has least of what it needs.

    A dimension cut in two unlike ways has ranks whose two shares do not meet; one cut in one way only has none.
    """
    need = kept = elements / prod(size[axis] for axis in new.axes)
    for before, after in ((old.rows, new.rows), (old.cols, new.cols)):
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
        if before[common:] and after[common:]:
            kept = 0.0
        kept /= prod(size[cut.axis] for cut in before[common:])
    return need - kept
