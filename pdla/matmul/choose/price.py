"""The price of a way, for the rank that receives most: words of the product and of conversions, messages, idle ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np

from pdla.layout import Layout, extra_axes, ranks_along, usual_order
from pdla.matmul import boxes, roles
from pdla.matmul.algorithms.table import Table
from pdla.matmul.choose.mapping import Holding, Side, bound_held, sum_held
from pdla.matmul.choose.nodes import weigh_far
from pdla.matmul.choose.problem import Problem, Sizes, simplify_all
from pdla.matmul.schedules import SCHEDULES
from pdla.matrix.redistribute import trace_sums

Order = Sequence[int] | np.ndarray | None  # the rank at each place of a grid, flat; None: as usual


@dataclass(frozen=True)
class Way:
    """One way to multiply, and its price.

    table   None: by the rule on the matrices' own grid, with `roles` and `schedule`
    order   the communicator's rank at each place of the table's grid, flat
    words   that a rank receives for the product
    moved   the words that a rank receives for the conversions
    price   in multiples of the lower bound
    stays   which of A, B and C need no conversion
    """

    algorithm: str
    schedule: str
    roles: roles.Roles
    table: Table | None
    order: np.ndarray | None = field(compare=False)
    words: float
    moved: float
    price: float
    stays: tuple[bool, bool, bool] = (True, True, True)

    def describe(self, itemsize: int) -> str:
        """Describe the way, with the bytes that a rank receives."""
        grid = " on its own grid" if self.table is None else " on " + " x ".join(map(str, self.table.shape))
        schedule = "" if self.schedule == self.algorithm else f" by {self.schedule}"
        received, moved = (round(words * itemsize) for words in (self.words, self.moved))
        return f"{self.algorithm}{schedule}{grid}: receives {received} bytes, and conversions {moved}"


def count_conversion_messages(q: Problem, schedule: str, given: tuple[Any, ...], chosen: roles.Roles, used: boxes.Box) -> float:
    """Count the messages that bring A and B to the roles' layouts, and C to its layout after its sums.

    A box's price already counts messages of gathers: these are subtracted. A or B may take other
    messages, if no all-gather brings it, or none, if each rank has a copy.
    """
    place, received = q.A.place, np.zeros(q.ranks)

    def make_holding(shape: tuple[int, int], user: Layout, native: Layout) -> Holding:
        held, needed = (Side(shape, layout, place.axes, place.shape) for layout in (user, native))
        return Holding(held, needed, place.order, q.ranks)

    each = zip((q.A, q.B), given, chosen.layouts, (used.n, used.m), q.messages(schedule, used), strict=False)
    for X, layout, needed, ranks, counted in each:
        if SCHEDULES[schedule].reads_in_place:
            continue
        gathered = extra_axes(layout, needed, place.sizes)
        if gathered is None:
            received += make_holding(X.shape, layout, needed).count_messages(place.order, False) - counted
        elif (parts := prod(place.sizes[axis] for axis in gathered)) != ranks:
            received += parts - 1 - counted
    if q.C is not None:
        steps = trace_sums(q.C.shape, chosen.C, given[2], tuple(place.sizes.items()))
        layouts = [chosen.C.summed, *(layout for _, _, layout in steps)]
        received += make_holding(q.C.shape, given[2], layouts[-1]).count_messages(place.order, True)
    return float(received.max())


def price_native(q: Sizes, table: Table, order: Order = None) -> float:
    return q.price(table.schedule, table.box, weigh_table(q, table, order, table.words(*q.mnk)))


def weigh_table(q: Sizes, table: Table, order: Order, words: float) -> float:
    """Weigh the words that a rank receives by a table: see `weigh`."""
    if not q.readable and q.homes is None:
        return words
    return weigh(q, table.schedule, words, table.layouts, table.roles, table.sizes, order)


def weigh(
    q: Sizes, schedule: str, words: float, given: tuple[Any, ...], chosen: roles.Roles, sizes: Mapping[str, int], order: Order
) -> float:
    """Weigh the words by which a product is priced: those that a rank receives; words from other nodes count more.

    If ranks share memory, they are half the words that a rank copies: a word in a message is copied
    twice, when sent and when received.
    """
    if not q.readable and q.homes is None:
        return words
    current, layouts = simplify_all(given, sizes), chosen.layouts
    if q.readable:
        return roles.count_copied(current, layouts, q.mnk, sizes, q.seen if SCHEDULES[schedule].reads_in_place else None) / 2
    shape = tuple(sizes.values())
    assert q.homes is not None
    node_at = q.homes[usual_order(shape).ravel() if order is None else np.asarray(order)].reshape(shape)
    return words + (q.machine.distance - 1) * weigh_far(roles.list_moves(current, layouts, q.mnk, sizes), tuple(sizes), node_at)


class Holdings:
    """The elements of their blocks in a table's layouts that ranks already hold. Each pair of layouts is compared once."""

    def __init__(self, q: Problem) -> None:
        self.q = q
        self.sides: list[Side] = [Side(X.shape, X.layout.summed, X.place.axes, X.place.shape) for X in q.operands]
        self.known: dict[tuple[Any, ...], Holding] = {}
        self.found: dict[tuple[Any, ...], np.ndarray] = {}

    @cached_property
    def largest_blocks(self) -> list[int]:
        """The elements of the largest block of each operand."""
        return [int(side.elements.max(initial=0)) for side in self.sides]

    def __call__(self, table: Table) -> list[Holding]:
        holdings = []
        for i, (X, layout) in enumerate(zip(self.q.operands, table.layouts, strict=False)):
            key = i, table.shape, table.axes, layout
            holding = self.known.get(key)
            if holding is None:
                native = Side(X.shape, layout, table.axes, table.shape)
                holding = self.known[key] = Holding(self.sides[i], native, X.place.order, self.q.ranks)
            holdings.append(holding)
        return holdings

    def count_words(self, kept: Holding, order: np.ndarray, back: bool) -> np.ndarray:
        """Count the words each rank receives on the way to the table's layout, or back from it."""
        key = (id(kept), order.tobytes(), back)
        if key not in self.found:
            self.found[key] = kept.count_returned(order) if back else kept.count_received(order)
        return self.found[key]


def price_way(q: Problem, holdings: Holdings, table: Table, order: np.ndarray) -> Way:
    """Price a table with ranks in this order."""
    words, stay = table.words(*q.mnk), is_native(q, table, order)
    if SCHEDULES[table.schedule].reads_in_place and not stay:
        return _price_in_place(q, holdings, table.with_whole_faces, order)
    if stay:
        moved, received, stays, more = 0.0, 0.0, (True, True, True), 0
    elif q.is_large:
        (moved, more), stays = _estimate_by_sizes(q, table), (False, False, q.C is None)
        received = q.weigh_anywhere(moved)
    else:
        matrices = holdings(table)
        arriving, returning, stays = _count_moves(q, holdings, matrices, order)
        moved, more = float((arriving + returning).max()), _count_messages(matrices, order)
        # If few ranks hold A or B, their sends take longer than any rank's receives.
        leaving = matrices[0].count_sent(order) + matrices[1].count_sent(order)
        received = float((np.maximum(arriving, leaving) + returning).max())
        if q.homes is not None:
            received = max(received, _weigh_by_node(q, matrices, order, arriving, returning))
    price = q.price(table.schedule, table.box, weigh_table(q, table, order, words) + received, more)
    return Way(table.algorithm, table.schedule, table.roles, table, order, words, moved, price, stays)


def _price_in_place(q: Problem, holdings: Holdings, table: Table, order: np.ndarray) -> Way:
    """Price the way that writes A and B, in any layouts, to shared memory and reads them there.

    A rank copies its blocks once, unless they need not move or all ranks see the matrix in place.
    """
    matrices, words = holdings(table), table.words(*q.mnk)
    arriving, returning, stays = _count_moves(q, holdings, matrices, order)
    read, moved = float(arriving.max()), float(returning.max())
    written = sum([most for most, stay, seen in zip(holdings.largest_blocks, stays, q.seen, strict=False) if not (stay or seen)])
    copied = (written + roles.READ * read) / 2 + moved
    messages = sum([int(matrix.count_messages(order, True).max()) for matrix in matrices[2:]])
    price = q.price(table.schedule, table.box, weigh_table(q, table, order, words) + copied, messages)
    return Way(table.algorithm, table.schedule, table.roles, table, order, words + read, moved, price, stays)


def bound_price(q: Problem, holdings: Holdings, table: Table, order: np.ndarray) -> float:
    """Bound from below the price of a table, turned or not, with ranks in this order.

    On average a rank receives at least its new block less the most that any rank has. The product's
    words are not rounded.
    """
    if q.is_large or is_native(q, table, order):
        return price_native(q, table, order)
    in_place = SCHEDULES[table.schedule].reads_in_place
    table = table.with_whole_faces if in_place else table
    received = 0.0
    for X, layout, most, seen in zip(q.operands[:2], table.layouts, holdings.largest_blocks, q.seen, strict=False):
        least = prod(X.shape) / ranks_along(layout.axes, table.sizes) - most
        if least > 0:
            received += (roles.READ * least + (0 if seen else most)) / 2 if in_place else least
    a, b, c = table.bound_faces(*q.mnk)
    words = a + b + 1.5 * c if q.readable else weigh_table(q, table, order, a + b + c)
    return q.price(table.schedule, table.box, words + received) * (1 - 1e-9)


def is_native(q: Problem, table: Table, order: np.ndarray) -> bool:
    """Whether A, B and C have the table's layouts on its grid, with axes of the same names."""
    for X, layout in zip(q.operands, table.layouts, strict=False):
        if not (X.place.axes == table.axes and X.layout == layout and X.place.has_order(table.axes, table.shape, order)):
            return False
    return True


def _count_moves(
    q: Problem, holdings: Holdings, matrices: Sequence[Holding], order: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[bool, bool, bool]]:
    """Count the words that each rank receives: of A and B before the product, of C after it; also return which do not move."""
    to = [holdings.count_words(matrix, order, False) for matrix in matrices]
    back = [holdings.count_words(matrix, order, True) for matrix in matrices]
    both = zip(to, back, q.operands, strict=True)
    stay = [not (arriving.any() or returning.any() or X.layout.partial) for arriving, returning, X in both]
    if q.C is None:
        return to[0] + to[1], np.zeros(1), (stay[0], stay[1], True)
    return to[0] + to[1], back[2], (stay[0], stay[1], stay[2])


def _count_messages(matrices: Sequence[Holding], order: np.ndarray) -> int:
    """Count the most messages that a rank receives: of A and B before the product, of C after it."""
    received = [matrix.count_messages(order, i == 2) for i, matrix in enumerate(matrices)]
    return int(np.add.reduce(received).max())


def _weigh_by_node(
    q: Problem, matrices: Sequence[Holding], order: np.ndarray, arriving: np.ndarray, returning: np.ndarray
) -> float:
    """Weigh the words of conversions: those from other nodes count machine.distance times."""
    assert q.homes is not None
    far = [matrix.count_far(order, q.homes) for matrix in matrices]
    far_back = far[2][1] if q.C is not None else np.zeros(1)
    more = q.machine.distance - 1
    return float((arriving + returning + more * (far[0][0] + far[1][0] + far_back)).max())


def _estimate_by_sizes(q: Problem, table: Table) -> tuple[float, int]:
    """Estimate the words and messages of the conversions, as if no rank held any element of its new block.

    No block is cut more than needed. If a rank that holds A or B sends more words than any receives, the
    words sent count.
    """
    words, messages = 0.0, 0
    for i, (X, layout) in enumerate(zip(q.operands, table.layouts, strict=False)):
        held = prod(X.place.sizes[axis] for axis in X.layout.summed.axes)
        native = prod(table.sizes[axis] for axis in layout.axes)
        parts, whole = (native, held) if i == 2 else (held, native)
        sent = 0.0 if i == 2 else prod(table.shape) / native / len(X.place.order)
        words += prod(X.shape) * max(1 / whole, sent)
        messages += ceil(parts / whole)
    return words, messages


@dataclass(frozen=True)
class PriceBound:
    """A lower bound on a table's price with ranks placed anew: the fewest elements move, and all ranks receive equally many.

    order  the present rank at each place
    total  see `sum_held`
    """

    price: float
    table: Table
    order: np.ndarray
    total: np.ndarray

    @staticmethod
    def of(q: Problem, holdings: Holdings, table: Table, order: np.ndarray) -> PriceBound:
        matrices = holdings(table)
        total, moved = sum_held(matrices), 0.0
        if not SCHEDULES[table.schedule].reads_in_place:  # reads in place count less
            needed = sum(int((matrix.user if i == 2 else matrix.native).elements.sum()) for i, matrix in enumerate(matrices))
            moved = (needed - bound_held(total)) / q.ranks
        price = q.price(table.schedule, table.box, weigh_table(q, table, order, table.words(*q.mnk)) + moved)
        return PriceBound(price, table, order, total)
