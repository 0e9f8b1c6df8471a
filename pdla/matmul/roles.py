"""The one rule: in C(m, n) += A(m, k) B(k, n) each grid axis has a role, which fixes the layouts of A, B and C along it.

    the axis carries   A must be     B must be     C comes as
    m                  cut along m   whole         cut along m
    n                  whole         cut along n   cut along n
    k                  cut along k   cut along k   partial: each rank an addend
    - (copy)           whole         whole         whole

The roles that move the fewest words win; ties go to m, then n, then k. Words are counted from sizes
alone, for balanced blocks: so every rank finds the same roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import filterfalse, product
from typing import Any, NamedTuple

from pdla.cuts import Block, Cut, Cuts
from pdla.layout import Layout, effective, ranks_along

READ = 0.25  # the cost of reading a word of another rank's block in place, in copies: the local product reads it anyway

Sizes = tuple[tuple[str, int], ...]
Nest = tuple[Cut, ...]
Seen = tuple[bool, bool]  # for A and for B: whether all ranks see the matrix in shared memory


@dataclass(frozen=True)
class Roles:
    """The dimension that each axis carries, and the layouts that A, B and C must have for the local products."""

    carries: tuple[tuple[str, str], ...]
    A: Layout
    B: Layout
    C: Layout

    @property
    def layouts(self) -> tuple[Layout, Layout, Layout]:
        return self.A, self.B, self.C

    @cached_property
    def copies(self) -> bool:
        """Whether there are copies of C, each computed by its own rank."""
        return any(role == "-" for _, role in self.carries)

    def __str__(self) -> str:
        return ", ".join(f"{axis} carries {'a copy' if role == '-' else role}" for axis, role in self.carries)


@lru_cache(maxsize=1024)
def choose(
    A: Layout, B: Layout, C: Layout | None, m: int, n: int, k: int, sizes: Sizes, shared: Seen | None = None
) -> tuple[Roles, float]:
    """Choose the roles by which a rank receives the fewest words from these layouts of the operands; return them and the words.

    C=None leaves C's layout to the roles.

    shared  if given, A and B are read in shared memory, and the roles are those of fewest copied words
    """
    size = dict(sizes)
    A, B = (simplify(X, size) for X in (A, B))
    C = None if C is None else simplify(C, size)
    given, mnk = (A, B, C), (m, n, k)
    c_rows, c_cols = ((), ()) if C is None else (C.rows, C.cols)
    nests = cache(partial(_list_nests, {"m": (A.rows, c_rows), "k": (A.cols, B.rows), "n": (B.cols, c_cols)}))
    count_operand = cache(partial(_count_operand, given, mnk, size, shared))  # many roles ask for the same faces
    count_product = cache(partial(_count_product, C, mnk, size, 1 if shared is None else 3, 1 if shared is None else 2))
    best: tuple[float, Any, Any, Any, Any] | None = None
    axes = [axis for axis, p in sizes if p > 1]
    for chosen in product("mnk-", repeat=len(axes)):
        along: dict[str, tuple[str, ...]] = {"m": (), "n": (), "k": (), "-": ()}
        for axis, role in zip(axes, chosen, strict=True):
            along[role] += (axis,)
        for rows, inner, cols in product(nests("m", along["m"]), nests("k", along["k"]), nests("n", along["n"])):
            words = count_operand(0, rows, inner) + count_operand(1, inner, cols) + count_product(rows, cols, along["k"])
            if best is None or words < best[0] * (1 - 1e-9):
                best = words, chosen, rows, inner, cols
    assert best is not None
    _, chosen, rows, inner, cols = best
    summed = tuple([axis for axis, role in zip(axes, chosen, strict=True) if role == "k"])
    layouts = Layout.trust(rows, inner), Layout.trust(inner, cols), Layout.trust(rows, cols, summed)
    return Roles(tuple(zip(axes, chosen, strict=True)), *layouts), price(given, layouts, mnk, size)


def simplify(X: Layout, size: Mapping[str, int]) -> Layout:
    """Leave out cuts along axes of one rank, and partial sums; return X itself if it has neither."""
    rows, cols = effective(X.rows, size), effective(X.cols, size)
    return X if rows is X.rows and cols is X.cols and not X.partial else Layout.trust(rows, cols)


def _count_operand(
    given: tuple[Any, ...], mnk: tuple[int, int, int], size: Mapping[str, int], shared: Seen | None, operand: int, rows: Nest,
    cols: Nest,
) -> float:
    """Count the words that A (operand 0) or B (1) costs with rows and columns cut so: see `price` and `count_copied`."""
    words = count_moved(mnk[2] * mnk[operand], given[operand], Layout.trust(rows, cols), size)
    if shared is None:
        return words
    return READ * words + (0 if shared[operand] or not words else count_held(given, mnk, size)[operand])


def _count_product(
    C: Layout | None, mnk: tuple[int, int, int], size: Mapping[str, int], addend_weight: int, move_weight: int,
    rows: Nest, cols: Nest, partial: tuple[str, ...],
) -> float:
    """Count the words that C costs if it is computed with its rows and columns cut so.

    addend_weight, move_weight: the weights of an addend, and of another word that moves.
    """
    moves = _move_product(mnk[0] * mnk[1], Layout.trust(rows, cols, partial), C, size)
    return sum([move.words * (addend_weight if move.addends else move_weight) for move in moves])


def _list_nests(sources: Mapping[str, tuple[Nest, Nest]], dimension: str, axes: tuple[str, ...]) -> list[Nest]:
    """List the ways to cut a dimension along these axes: nested as in one or in the other matrix that has it."""
    first, second = sources[dimension]
    return [*dict.fromkeys((_arrange(axes, first, second), _arrange(axes, second, first)))]


def _arrange(axes: tuple[str, ...], first: Nest, second: Nest) -> Nest:
    """Arrange cuts along the axes: those of `first` in its order, then those of `second`, then plain blocks."""
    nest: list[Cut] = []
    left = {*axes}
    for cut in (*first, *second):
        if cut.axis in left:
            nest.append(Block(cut.axis) if nest and isinstance(cut, Cuts) else cut)
            left.remove(cut.axis)
    return (*nest, *map(Block, sorted(left)))


class Move(NamedTuple):
    """Words that a rank receives, the axes along which they come (none: along any), and whether they are added up."""

    words: float
    axes: tuple[str, ...]
    addends: bool = False


def list_moves(given: tuple[Any, ...], layouts: tuple[Any, ...], mnk: tuple[int, int, int], size: Mapping[str, int]) -> list[Move]:
    """List what a rank receives: A and B move from the layouts `given` to `layouts`, and C moves from `layouts` to `given`."""
    (A, B, C), (a, b, c), (m, n, k) = given, layouts, mnk
    return [_move_operand(m * k, A, a, size), _move_operand(k * n, B, b, size), *_move_product(m * n, c, C, size)]


def _move_operand(elements: int, X: Layout, x: Layout, size: Mapping[str, int]) -> Move:
    return Move(count_moved(elements, X, x, size), tuple(filterfalse(x.axes.__contains__, X.axes)))


def _move_product(elements: int, c: Layout, C: Layout | None, size: Mapping[str, int]) -> list[Move]:
    """List what a rank receives when C goes from the layout in which it is computed to layout C."""
    scattered, reduced = plan_sums(c, C)
    block, moves = elements / ranks_along(c.axes, size), []
    for axis in c.partial:
        p = size[axis]
        moves.append(Move(block * (1 - 1 / p) * (1 if axis in scattered else 2), (axis,), True))
        block /= p if axis in scattered else 1
    return moves if C is None else [*moves, Move(count_moved(elements, reduced, C, size), ())]


def price(given: tuple[Any, ...], layouts: tuple[Any, ...], mnk: tuple[int, int, int], size: Mapping[str, int]) -> float:
    """Count the words that a rank receives in all: see `list_moves`."""
    return sum([move.words for move in list_moves(given, layouts, mnk, size)])


def count_held(given: tuple[Any, ...], mnk: tuple[int, int, int], size: Mapping[str, int]) -> tuple[float, float]:
    """Count the words of A and of B that a rank holds in these layouts."""
    m, n, k = mnk
    return m * k / ranks_along(given[0].axes, size), k * n / ranks_along(given[1].axes, size)


def count_copied(
    given: tuple[Any, ...], layouts: tuple[Any, ...], mnk: tuple[int, int, int], size: Mapping[str, int], in_place: Seen | None
) -> float:
    """Count the words that a rank copies.

    A word that moves is copied when it is sent and when it is received, an addend of C also when it
    is added. in_place: if given, A and B are read in shared memory. Then a rank copies its own blocks
    alone, and only if other ranks cannot see them. A word that it reads counts as READ copies.
    """
    moves = list_moves(given, layouts, mnk, size)
    total = sum([move.words * (3 if move.addends else 2) for move in moves])
    if in_place is not None:
        for move, seen, own in zip(moves, in_place, count_held(given, mnk, size), strict=False):
            total += (READ - 2) * move.words + (0 if seen or not move.words else own)
    return total


def plan_sums(c: Layout, target: Layout | None) -> tuple[tuple[str, ...], Layout]:
    """Find the axes along which C's addends are reduce-scattered, not all-reduced, outermost first; and C's layout afterwards."""
    if target is None:
        return c.partial, native_layout(c)
    rows, cols, scattered = c.rows, c.cols, []
    for cut in (*target.rows, *target.cols):
        if cut.axis in c.partial:
            scattered.append(cut.axis)
            plain = Block(cut.axis) if isinstance(cut, Cuts) and (rows if cut in target.rows else cols) else cut
            rows, cols = (*rows, plain) if cut in target.rows else rows, (*cols, plain) if cut in target.cols else cols
    return tuple(scattered), Layout.trust(rows, cols)


def native_layout(c: Layout) -> Layout:
    """Find C's layout where the caller gives none: each axis of its partial sums cuts its rows, innermost."""
    return Layout.trust((*c.rows, *map(Block, c.partial)), c.cols)


def count_moved(elements: int, old: Layout, new: Layout, size: Mapping[str, int]) -> float:
    """Count the words that move from one layout to another, for balanced blocks, to the rank that holds least of its new block.

    If both layouts cut a dimension further than their common cuts, some rank's old and new shares
    are disjoint: it keeps nothing.
    """
    need = kept = elements / ranks_along(new.axes, size)
    for before, after in ((old.rows, new.rows), (old.cols, new.cols)):
        common, parts = 0, 1
        while common < min(len(before), len(after)) and before[common] == after[common]:
            common += 1
        if before[common:] and after[common:]:
            kept = 0.0
        for cut in before[common:]:
            parts *= size[cut.axis]
        kept /= parts
    return need - kept
