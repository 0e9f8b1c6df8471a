"""The choice: every way to multiply two matrices from the layouts in which they come, priced; a plan takes the cheapest.

A way is the rule on the matrices' own grid, or a table on a grid of its own, to which A and B are brought, and C back. Its price
counts, for the rank that receives most, the words of the product and of the conversions; and messages, and idle ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from math import ceil, inf, prod
from operator import attrgetter, itemgetter
from threading import Lock

import numpy as np

from pdla.errors import PlanError
from pdla.grid import usual_order
from pdla.layout import Layout, extra_axes, ranks_along
from pdla.matmul import boxes, roles
from pdla.matmul.algorithms import BOX, NAMED
from pdla.matmul.algorithms.table import Algorithm, Table
from pdla.matmul.choose.mapping import Kept, Side, kept_in_all, most_kept, relabelled
from pdla.matmul.choose.nodes import far, fillings
from pdla.matmul.choose.problem import Problem, Sizes, lying_so
from pdla.matmul.schedules import ON_GRID, SCHEDULES
from pdla.matrix.redistribute import sums_to

ALGORITHMS = (*ON_GRID, *NAMED)
BOXES = 8  # how many of the cheapest boxes are priced with the conversions
FEW = 1024  # ranks up to which ranks are relabelled: an assignment takes time that grows with their cube
RELABELLED = 8  # how many of the cheapest tables are tried with the ranks relabelled
WORTH = 2**16  # words of conversion from which that is tried: to import SciPy's assignment takes longer than to send fewer
SWIFT = 256  # ranks up to which the assignment itself takes little time: beyond, WORTH grows with their square
WIDE = 8  # itemsize with which OpenBLAS is faster at a wide block of C than at a tall one, both stored by rows
LARGE = 4096  # ranks from which conversions are priced by sizes alone

_price = attrgetter("price")

Order = Sequence[int] | np.ndarray | None  # the rank at each place of a grid, flat; None: as usual


@dataclass(frozen=True)
class Way:
    """One way to multiply, and its price.

    table   None: by the rule on the matrices' own grid, with `roles` and `schedule`
    order   the communicator's rank at each place of the table's grid, flat;  stays: which of A, B and C need no conversion
    words   a rank receives for the product;  moved: for the conversions;  price: in multiples of the lower bound
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

    def in_words(self, itemsize: int) -> str:
        """The way in words, with the bytes that a rank receives."""
        grid = " on its own grid" if self.table is None else " on " + " x ".join(map(str, self.table.shape))
        schedule = "" if self.schedule == self.algorithm else f" by {self.schedule}"
        received, moved = (round(words * itemsize) for words in (self.words, self.moved))
        return f"{self.algorithm}{schedule}{grid}: receives {received} bytes, and conversions {moved}"


def ways(q: Problem, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None) -> list[Way]:
    """All ways that the arguments allow, cheapest first. Ranks that are threads of one process ask the same: only the first
    searches, the others wait and find the result kept."""
    with _one_at_a_time:
        return _ways(q, algorithm, shape, schedule)


def cheapest(q: Problem, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None) -> Way:
    """The first of `ways`, found without a price of those that cannot be it."""
    with _one_at_a_time:
        return _cheapest(q, algorithm, shape, schedule)


_one_at_a_time = Lock()


@lru_cache(maxsize=256)
def _ways(q: Problem, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None) -> list[Way]:
    kept = KeptOf(q)
    found = _on_own_grid(q, algorithm, shape, schedule)
    found += [_way(q, kept, _turned(q, kept, *one), one[1]) for one in _candidates(q, algorithm, shape, schedule)]
    found += _relabelled(q, kept, sorted(found, key=_price))
    return sorted(found, key=_price)


@lru_cache(maxsize=256)
def _cheapest(q: Problem, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None) -> Way:
    """Candidates are priced in the order of the least price that each may have, until that is above a price that is known."""
    kept = KeptOf(q)
    found = dict(enumerate(_on_own_grid(q, algorithm, shape, schedule)))
    best = min(map(_price, found.values()), default=inf)
    candidates = list(enumerate(_candidates(q, algorithm, shape, schedule), len(found)))
    for least, number, one in sorted([(_least(q, kept, *one), number, one) for number, one in candidates], key=itemgetter(0, 1)):
        if least > best:
            break
        found[number] = _way(q, kept, _turned(q, kept, *one), one[1])
        best = min(best, found[number].price)
    in_order = sorted([found[number] for number in sorted(found)], key=_price)
    return min([*in_order[:1], *_relabelled(q, kept, in_order)], key=_price)


def _on_own_grid(q: Problem, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None) -> list[Way]:
    boxed = algorithm in NAMED or shape is not None or (schedule is not None and SCHEDULES[schedule].needs_box)
    return direct(q, algorithm, schedule) if q.one_grid and not boxed else []


def _candidates(
    q: Problem, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None
) -> list[tuple[Table, np.ndarray]]:
    """The tables on grids of their own, each with ranks in each order of `_orders`."""
    if algorithm in ON_GRID:
        return []
    tables = list(_tables(q, algorithm, shape, schedule))
    again = [] if schedule else [table for table in tables if table.algorithm == BOX.name]
    return [(table, order) for table in (*tables, *_read_in_place(q, again), *_straight(again)) for order in _orders(q, table)]


def native_tables(q: Sizes, algorithm: str, lean: bool = False) -> list[tuple[Table, Order]]:
    """The tables that are looked at, each with the rank at each place of its grid, cheapest first where A, B and C lie as they want
    them; lean: also those with fewer ranks along k, which need less memory as less of C is summed."""
    tables = _tables(q, algorithm, None, None, lean)
    ways = [(table, order) for table in tables for order in ([None] if q.homes is None else fillings(table.shape, q.homes))]
    return sorted(ways, key=lambda way: _native_price(q, *way))


# ---------------------------------------------------------------------------------------------- on the own grid


def direct(q: Problem, algorithm: str, schedule: str | None = None) -> list[Way]:
    """The rule on the matrices' own grid: with the roles that send least and, where ranks share memory, those that copy least."""
    asked = schedule or (algorithm if algorithm in ON_GRID else None)
    first = _by_roles(q, asked, asked is not None and SCHEDULES[asked].reads_in_place)
    if asked is not None or not q.readable:
        return [first]
    second = _by_roles(q, asked, True)
    return [first] if second.roles == first.roles else [first, second]


def _by_roles(q: Problem, asked: str | None, shared: bool) -> Way:
    """The rule with the cheapest roles. asked: the schedule, if the caller names one; shared: words that are copied count."""
    sizes = q.A.place.sizes
    wanted = None if q.C is None else q.C.layout
    given = (q.A.layout.summed, q.B.layout.summed, wanted)
    chosen, words = roles.choose(*given, *q.mnk, tuple(sizes.items()), q.seen if shared else None)
    name = how = asked or q.schedule(given, chosen, sizes)
    if chosen.copies and not SCHEDULES[how].keeps_copies:
        how = SCHEDULES[how].in_panels
    used = boxes.of(chosen.carries, sizes)
    more = 0 if q.ranks > LARGE else _redistributed(q, how, given, chosen, used)
    price = q.priced(how, used, _weighed(q, how, words, given, chosen, sizes, q.A.place.order), more)
    return Way(name, how, chosen, None, None, words, 0.0, price)


def _redistributed(q: Problem, how: str, given: tuple, chosen: roles.Roles, used: boxes.Box) -> float:
    """Messages by which A and B come where they are needed, less those of the gathers that a box's price counts: other ones, where
    no all-gather brings them, or none, where they lie there in copies. And those by which C goes to its layout when it has been
    summed."""
    place, received = q.A.place, np.zeros(q.ranks)

    def kept(shape: tuple[int, int], user: Layout, native: Layout) -> Kept:
        lies, needed = (Side(shape, layout, place.axes, place.shape) for layout in (user, native))
        return Kept(lies, needed, place.order, q.ranks)

    each = zip((q.A, q.B), given, chosen.layouts, (used.n, used.m), q.messages(how, used), strict=False)
    for X, layout, needed, ranks, counted in each:
        if SCHEDULES[how].reads_in_place:
            continue
        gathered = extra_axes(layout, needed, place.sizes)
        if gathered is None:
            received += kept(X.shape, layout, needed).messages(place.order, False) - counted
        elif (parts := prod(place.sizes[axis] for axis in gathered)) != ranks:
            received += parts - 1 - counted
    if q.C is not None:
        steps = sums_to(q.C.shape, chosen.C, given[2], tuple(place.sizes.items()))
        layouts = [chosen.C.summed, *(layout for _, _, layout in steps)]
        received += kept(q.C.shape, given[2], layouts[-1]).messages(place.order, True)
    return float(received.max())


# ---------------------------------------------------------------------------------------------- on a grid of its own


def _tables(
    q: Sizes, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None, lean: bool = False
) -> Iterator[Table]:
    """The tables with the cheapest products, each by the schedule that suits it."""
    named = BOX if algorithm == "auto" else NAMED[algorithm]
    known = {table.schedule for table in named.tables((1, 1, 1))}
    if schedule not in (None, *known):
        raise PlanError(f"schedule={schedule!r}: {named.name} does not go by {schedule}, but by {' or '.join(sorted(known))}")
    for sides in _shapes(q, named, shape, lean):
        tables = [*named.tables(sides)]
        suits = schedule or (_suited(q, tables[0]) if named is BOX else None)
        for table in tables:
            if suits in (None, table.schedule):
                yield table.evened(*q.mnk, in_two=q.in_two)


def _suited(q: Sizes, table: Table) -> str:
    return q.schedule(table.layouts, table.roles, table.sizes)


def _shapes(q: Sizes, named: Algorithm, shape: tuple[int, ...] | None, lean: bool) -> Iterable[tuple[int, int, int]]:
    if shape is not None:
        return [(shape[0], shape[1], shape[2])]
    if named is BOX:
        rows_first = q.itemsize == WIDE
        search = partial(boxes.cheapest, *q.mnk, q.ranks, q.machine, rows_first=rows_first, in_two=q.in_two)
        thin = boxes.by_layers(*q.mnk, q.ranks, q.machine, rows_first, q.in_two) if lean else ()
        flat = search(BOXES, boxes.Box(q.ranks, q.ranks, 1)) if q.readable else ()
        return dict.fromkeys((*search(BOXES), *flat, *thin))

    def price(sides: tuple[int, int, int]) -> float:
        return min(_native_price(q, table) for table in named.tables(sides))

    return sorted(named.shapes(*q.mnk, q.ranks, q.machine), key=price)[: None if lean else BOXES]


def _native_price(q: Sizes, table: Table, order: Order = None) -> float:
    return q.priced(table.schedule, table.box, _table_weighed(q, table, order, table.words(*q.mnk)))


def _table_weighed(q: Sizes, table: Table, order: Order, words: float) -> float:
    """`_weighed` for a table by which a rank receives so many words."""
    if not q.readable and q.homes is None:
        return words
    return _weighed(q, table.schedule, words, table.layouts, table.roles, table.sizes, order)


def _weighed(
    q: Sizes, schedule: str, words: float, given: tuple, chosen: roles.Roles, sizes: Mapping[str, int], order: Order
) -> float:
    """The words by which a product is priced: those that a rank receives, of which those from other nodes count more. Where ranks
    share memory, half the words that it copies: a word in a message is copied twice, as it is sent and as it is received."""
    if not q.readable and q.homes is None:
        return words
    lying, layouts = lying_so(given, sizes), chosen.layouts
    if q.readable:
        return roles.copied(lying, layouts, q.mnk, sizes, q.seen if SCHEDULES[schedule].reads_in_place else None) / 2
    shape = tuple(sizes.values())
    assert q.homes is not None
    where = q.homes[usual_order(shape).ravel() if order is None else np.asarray(order)].reshape(shape)
    return words + (q.machine.distance - 1) * far(roles.moves(lying, layouts, q.mnk, sizes), tuple(sizes), where)


def _read_in_place(q: Problem, tables: Iterable[Table]) -> list[Table]:
    """Boxes again, read in place, where no face is if A, B and C lie in the box's own layouts: but from other layouts A and B come
    there with one copy in shared memory, and with two by messages."""
    names = [name for name, schedule in SCHEDULES.items() if schedule.reads_in_place and q.fits]
    return [replace(table, schedule=name) for table in tables for name in names if not SCHEDULES[table.schedule].reads_in_place]


def _straight(tables: Iterable[Table]) -> list[Table]:
    """Boxes again, to which A and B come as whole faces in one round of messages, or in panels of them, instead of in shares that
    are then gathered."""
    ways = [(table, SCHEDULES[table.schedule].straight) for table in tables]
    return [replace(table.straight, schedule=schedule) for table, schedule in ways if schedule]


def _turned(q: Problem, kept: KeptOf, table: Table, order: np.ndarray) -> Table:
    """A box's table, with the third cut of each face along that of its two dimensions by which fewer words have to be moved. Where
    none have, nothing is counted: what thousands of ranks have in common takes a second, and much memory."""
    if table.algorithm != BOX.name or q.ranks > LARGE or _at_home(q, table, order):
        return table
    other, better = table.turned(*"ABC"), {}
    for name, face, turned_face in zip("ABC", kept(table), kept(other), strict=False):
        back = name == "C"
        if face is not turned_face and kept.words(turned_face, order, back).max() < kept.words(face, order, back).max():
            better[name] = getattr(other, name)
    return replace(table, **better) if better else table


def _orders(q: Problem, table: Table) -> list[np.ndarray]:
    """The orders of ranks on the table's grid that are tried: A's own alone, if its grid has the same shape."""
    if q.A.place.shape == table.shape:
        return [q.A.place.order]
    return fillings(table.shape, q.homes)


class KeptOf:
    """What ranks hold already of A, B and C in a table's layouts. Each pair of layouts is compared once."""

    def __init__(self, q: Problem) -> None:
        self.q = q
        self.sides = [Side(X.shape, X.layout.summed, X.place.axes, X.place.shape) for X in q.operands]
        self.known: dict[tuple, Kept] = {}
        self.found: dict[tuple, np.ndarray] = {}

    @cached_property
    def most(self) -> list[int]:
        """The elements of the largest block of each operand."""
        return [int(side.elements.max(initial=0)) for side in self.sides]

    def __call__(self, table: Table) -> list[Kept]:
        each = []
        for i, (X, layout) in enumerate(zip(self.q.operands, table.layouts, strict=False)):
            key = i, table.shape, table.axes, layout
            if key not in self.known:
                native = Side(X.shape, layout, table.axes, table.shape)
                self.known[key] = Kept(self.sides[i], native, X.place.order, self.q.ranks)
            each.append(self.known[key])
        return each

    def words(self, kept: Kept, order: np.ndarray, back: bool) -> np.ndarray:
        """Words each rank receives on the way to the table's layout, or back from it."""
        key = (id(kept), order.tobytes(), back)
        if key not in self.found:
            self.found[key] = kept.returning(order) if back else kept.arriving(order)
        return self.found[key]


def _way(q: Problem, kept: KeptOf, table: Table, order: np.ndarray) -> Way:
    words, at_home = table.words(*q.mnk), _at_home(q, table, order)
    if SCHEDULES[table.schedule].reads_in_place and not at_home:
        return _way_in_place(q, kept, table.straight, order)
    if at_home:
        moved, brought, stays, more = 0.0, 0.0, (True, True, True), 0
    elif q.ranks > LARGE:
        (moved, more), stays = _by_sizes(q, table), (False, False, q.C is None)
        brought = q.anywhere(moved)
    else:
        each = kept(table)
        arriving, returning, stays = _moves(q, kept, each, order)
        moved, more = float((arriving + returning).max()), _messages(each, order)
        # Where few ranks hold A or B, what these send takes longer than what any receives.
        leaving = each[0].leaving(order) + each[1].leaving(order)
        brought = float((np.maximum(arriving, leaving) + returning).max())
        if q.homes is not None:
            brought = max(brought, _by_node(q, each, order, arriving, returning))
    price = q.priced(table.schedule, table.box, _table_weighed(q, table, order, words) + brought, more)
    return Way(table.algorithm, table.schedule, table.roles, table, order, words, moved, price, stays)


def _way_in_place(q: Problem, kept: KeptOf, table: Table, order: np.ndarray) -> Way:
    """The way by which A and B, in any layouts, are written to shared memory and read there: a rank copies its blocks once, unless
    they need not move or all ranks see the matrix as it is."""
    each, words = kept(table), table.words(*q.mnk)
    arriving, returning, stays = _moves(q, kept, each, order)
    read, moved = float(arriving.max()), float(returning.max())
    written = sum([most for most, stay, seen in zip(kept.most, stays, q.seen, strict=False) if not (stay or seen)])
    copied = (written + roles.READ * read) / 2 + moved
    back = sum([int(matrix.messages(order, True).max()) for matrix in each[2:]])
    price = q.priced(table.schedule, table.box, _table_weighed(q, table, order, words) + copied, back)
    return Way(table.algorithm, table.schedule, table.roles, table, order, words + read, moved, price, stays)


def _least(q: Problem, kept: KeptOf, table: Table, order: np.ndarray) -> float:
    """A lower bound on the price of a table, turned or not, with ranks in this order: on average ranks receive at least what they
    need less the most that any has, and the product's words are counted without rounding."""
    if q.ranks > LARGE or _at_home(q, table, order):
        return _native_price(q, table, order)
    in_place = SCHEDULES[table.schedule].reads_in_place
    table = table.straight if in_place else table
    brought = 0.0
    for X, layout, most, seen in zip(q.operands[:2], table.layouts, kept.most, q.seen, strict=False):
        come = prod(X.shape) / ranks_along(layout.axes, table.sizes) - most
        if come > 0:
            brought += (roles.READ * come + (0 if seen else most)) / 2 if in_place else come
    a, b, c = table.least_faces(*q.mnk)
    words = a + b + 1.5 * c if q.readable else _table_weighed(q, table, order, a + b + c)
    return q.priced(table.schedule, table.box, words + brought) * (1 - 1e-9)


def _at_home(q: Problem, table: Table, order: np.ndarray) -> bool:
    """Whether A, B and C lie in the table's layouts on its grid, with axes of the same names."""
    for X, layout in zip(q.operands, table.layouts, strict=False):
        if not (X.place.axes == table.axes and X.layout == layout and X.place.filled_so(table.axes, table.shape, order)):
            return False
    return True


def _moves(
    q: Problem, kept: KeptOf, each: Sequence[Kept], order: np.ndarray
) -> tuple[np.ndarray, np.ndarray, tuple[bool, bool, bool]]:
    """Words each rank receives of A and B on the way there, words of C on the way back, and which of the three need not move."""
    to = [kept.words(matrix, order, False) for matrix in each]
    back = [kept.words(matrix, order, True) for matrix in each]
    stay = [not (come.any() or gone.any() or X.layout.partial) for come, gone, X in zip(to, back, q.operands, strict=True)]
    if q.C is None:
        return to[0] + to[1], np.zeros(1), (stay[0], stay[1], True)
    return to[0] + to[1], back[2], (stay[0], stay[1], stay[2])


def _messages(each: Sequence[Kept], order: np.ndarray) -> int:
    """The most messages that a rank receives: of A and B on the way there, of C on the way back."""
    received = [matrix.messages(order, i == 2) for i, matrix in enumerate(each)]
    return int(np.add.reduce(received).max())


def _by_node(q: Problem, each: Sequence[Kept], order: np.ndarray, there: np.ndarray, back: np.ndarray) -> float:
    """The words of conversions as they are priced: those from other nodes count machine.distance times."""
    assert q.homes is not None
    far = [matrix.far(order, q.homes) for matrix in each]
    far_back = far[2][1] if q.C is not None else np.zeros(1)
    more = q.machine.distance - 1
    return float((there + back + more * (far[0][0] + far[1][0] + far_back)).max())


def _by_sizes(q: Problem, table: Table) -> tuple[float, int]:
    """Words and messages of the conversions, if no rank holds anything of what it needs, and no block is cut more than it must.
    Where the ranks that hold A or B send more words than any receives, those."""
    words, messages = 0.0, 0
    for i, (X, layout) in enumerate(zip(q.operands, table.layouts, strict=False)):
        held = prod(X.place.sizes[axis] for axis in X.layout.summed.axes)
        native = prod(table.sizes[axis] for axis in layout.axes)
        parts, whole = (native, held) if i == 2 else (held, native)
        sent = 0.0 if i == 2 else prod(table.shape) / native / len(X.place.order)
        words += prod(X.shape) * max(1 / whole, sent)
        messages += ceil(parts / whole)
    return words, messages


def _relabelled(q: Problem, kept: KeptOf, found: list[Way]) -> list[Way]:
    """The best few ways again, with ranks placed so that most elements stay where they are, if that may beat the best way: of many
    ranks the best that is known so far, of few, whose assignments take no time, the best with ranks as they were."""
    if q.ranks > FEW:
        return []
    again, best = [], found[0].price
    worth = WORTH * max(1, q.ranks / SWIFT) ** 2
    few = [(way.table, way.order) for way in found if way.table and way.order is not None and way.moved >= worth][:RELABELLED]
    hoped = [_Hoped.of(q, kept, *one) for one in few if _native_price(q, *one) < best]
    for one in sorted(hoped, key=_price):
        if one.price >= best and q.ranks > SWIFT:
            break
        again.append(_way(q, kept, one.table, relabelled(one.total, one.order, q.homes)))
        best = min(best, again[-1].price)
    return again


@dataclass(frozen=True)
class _Hoped:
    """The least price that a table may have with ranks placed anew: if all elements stay that may, and all ranks receive as much.

    order  the rank at each place as yet;  total: see `kept_in_all`
    """

    price: float
    table: Table
    order: np.ndarray
    total: np.ndarray

    @staticmethod
    def of(q: Problem, kept: KeptOf, table: Table, order: np.ndarray) -> _Hoped:
        each = kept(table)
        total, moved = kept_in_all(each), 0.0
        if not SCHEDULES[table.schedule].reads_in_place:  # there what is read in place counts less
            needed = sum(int((one.user if i == 2 else one.native).elements.sum()) for i, one in enumerate(each))
            moved = (needed - most_kept(total)) / q.ranks
        price = q.priced(table.schedule, table.box, _table_weighed(q, table, order, table.words(*q.mnk)) + moved)
        return _Hoped(price, table, order, total)


def runners_up(found: Sequence[Way], itemsize: int) -> tuple[str, ...]:
    """The three next cheapest ways, in words; of those with one algorithm, schedule and grid shape, the cheapest."""
    seen: dict[tuple, str] = {}
    for way in found:
        seen.setdefault((way.algorithm, way.schedule, way.table and way.table.shape), way.in_words(itemsize))
    return tuple(seen.values())[1:4]
