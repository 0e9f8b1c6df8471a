"""The search: every way to multiply two matrices from their layouts; a plan takes the cheapest.

A way is the rule on the matrices' own grid, or a table on a grid of its own, with conversions of A,
B and C.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import inf
from operator import attrgetter, itemgetter
from threading import Lock
from typing import Any

import numpy as np

from pdla.errors import PlanError
from pdla.matmul import boxes, roles
from pdla.matmul.algorithms import BOX, NAMED
from pdla.matmul.algorithms.table import Algorithm, Table
from pdla.matmul.choose.mapping import relabel
from pdla.matmul.choose.nodes import list_orders
from pdla.matmul.choose.price import (
    Holdings,
    Order,
    PriceBound,
    Way,
    bound_price,
    count_conversion_messages,
    is_native,
    price_native,
    price_way,
    weigh,
)
from pdla.matmul.choose.problem import Problem, Sizes
from pdla.matmul.schedules import ON_GRID, SCHEDULES

ALGORITHMS = (*ON_GRID, *NAMED)
# docs/choices.md measures the effect of each constant.
BOXES = 8  # how many of the cheapest boxes are priced with conversions, and how many of these tables with relabelled ranks
FEW = 1024  # ranks up to which ranks are relabelled: an assignment takes time that grows with their cube
WORTH = 2**16  # words of conversion from which ranks are relabelled: importing SciPy's assignment takes longer than sending fewer
SWIFT = 256  # ranks up to which the assignment itself takes little time: for more, WORTH grows with their square
WIDE = 8  # itemsize for which OpenBLAS is faster with a wide block of C than with a tall one, both stored by rows

_price = attrgetter("price")

def list_ways(q: Problem, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None) -> list[Way]:
    """List all ways that the arguments allow, cheapest first.

    Ranks that are threads of one process make the same search: only the first one runs it, and the
    others wait for its result.
    """
    with _one_at_a_time:
        return _list_ways(q, algorithm, shape, schedule)


def find_cheapest(q: Problem, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None) -> Way:
    """Find the first of `list_ways`, without pricing the ways that cannot be the first."""
    with _one_at_a_time:
        return _find_cheapest(q, algorithm, shape, schedule)


_one_at_a_time = Lock()


@lru_cache(maxsize=256)
def _list_ways(q: Problem, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None) -> list[Way]:
    holdings = Holdings(q)
    ways = _try_own_grid(q, algorithm, shape, schedule)
    candidates = _list_candidates(q, algorithm, shape, schedule)
    ways += [price_way(q, holdings, _turn_faces(q, holdings, *candidate), candidate[1]) for candidate in candidates]
    ways += _relabel(q, holdings, sorted(ways, key=_price))
    return sorted(ways, key=_price)


@lru_cache(maxsize=256)
def _find_cheapest(q: Problem, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None) -> Way:
    """Price candidates by ascending lower bound; stop when the bound exceeds the best price."""
    holdings = Holdings(q)
    ways = dict(enumerate(_try_own_grid(q, algorithm, shape, schedule)))
    best = min(map(_price, ways.values()), default=inf)
    candidates = list(enumerate(_list_candidates(q, algorithm, shape, schedule), len(ways)))
    bounds = [(bound_price(q, holdings, *candidate), number, candidate) for number, candidate in candidates]
    for least, number, candidate in sorted(bounds, key=itemgetter(0, 1)):
        if least > best:
            break
        ways[number] = price_way(q, holdings, _turn_faces(q, holdings, *candidate), candidate[1])
        best = min(best, ways[number].price)
    in_order = sorted([ways[number] for number in sorted(ways)], key=_price)
    return min([*in_order[:1], *_relabel(q, holdings, in_order)], key=_price)


def _try_own_grid(q: Problem, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None) -> list[Way]:
    boxed = algorithm in NAMED or shape is not None or (schedule is not None and SCHEDULES[schedule].needs_box)
    return apply_rule(q, algorithm, schedule) if q.has_one_grid and not boxed else []


def _list_candidates(
    q: Problem, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None
) -> list[tuple[Table, np.ndarray]]:
    """List the tables on grids of their own, each with ranks in each order of `_list_orders`."""
    if algorithm in ON_GRID:
        return []
    tables = list(_list_tables(q, algorithm, shape, schedule))
    boxed = [] if schedule else [table for table in tables if table.algorithm == BOX.name]
    tables += [*_read_in_place(q, boxed), *_use_whole_faces(boxed)]
    return [(table, order) for table in tables for order in _list_orders(q, table)]


def list_native_tables(q: Sizes, algorithm: str, low_memory: bool = False) -> list[tuple[Table, Order]]:
    """List the tables to try, each with the rank at each place of its grid.

    The first is the cheapest for A, B and C in the table's layouts. low_memory: also tables with
    fewer ranks along k, which sum less of C.
    """
    tables = _list_tables(q, algorithm, None, None, low_memory)
    ways = [(table, order) for table in tables for order in ([None] if q.homes is None else list_orders(table.shape, q.homes))]
    return sorted(ways, key=lambda way: price_native(q, *way))


# ---------------------------------------------------------------------------------------------- on the own grid


def list_own_grid_ways(q: Problem) -> list[Way]:
    """List the ways by the rule on the matrices' own grid, with each schedule that suits it."""
    names = [name for name in ON_GRID if not SCHEDULES[name].reads_in_place or q.fits]
    return [way for name in names for way in apply_rule(q, name)] if q.has_one_grid else []


def apply_rule(q: Problem, algorithm: str, schedule: str | None = None) -> list[Way]:
    """Apply the rule on the matrices' own grid: the roles that send least and, if ranks share memory, those that copy least."""
    given = schedule or (algorithm if algorithm in ON_GRID else None)
    first = _make_way(q, given, given is not None and SCHEDULES[given].reads_in_place)
    if given is not None or not q.readable:
        return [first]
    second = _make_way(q, given, True)
    return [first] if second.roles == first.roles else [first, second]


def _make_way(q: Problem, asked: str | None, shared: bool) -> Way:
    """Make the way of the cheapest roles. asked: the caller's schedule, if any; shared: copied words count."""
    sizes = q.A.place.sizes
    target = None if q.C is None else q.C.layout
    given = (q.A.layout.summed, q.B.layout.summed, target)
    chosen, words = roles.choose(*given, *q.mnk, tuple(sizes.items()), q.seen if shared else None)
    name = used_schedule = asked or q.choose_schedule(given, chosen, sizes)
    if chosen.copies and not SCHEDULES[used_schedule].keeps_copies:
        used_schedule = SCHEDULES[used_schedule].in_panels
    used = boxes.find_box(chosen.carries, sizes)
    more = 0 if q.is_large else count_conversion_messages(q, used_schedule, given, chosen, used)
    price = q.price(used_schedule, used, weigh(q, used_schedule, words, given, chosen, sizes, q.A.place.order), more)
    return Way(name, used_schedule, chosen, None, None, words, 0.0, price)


# ---------------------------------------------------------------------------------------------- on a grid of its own


def _list_tables(
    q: Sizes, algorithm: str, shape: tuple[int, ...] | None, schedule: str | None, low_memory: bool = False
) -> Iterator[Table]:
    """List the tables with the cheapest products, each by the schedule that suits it."""
    named = BOX if algorithm == "auto" else NAMED[algorithm]
    schedules = {table.schedule for table in named.list_tables((1, 1, 1))}
    if schedule not in (None, *schedules):
        raise PlanError(f"schedule={schedule!r}: {named.name} takes {' or '.join(sorted(schedules))}")
    for sides in _list_shapes(q, named, shape, low_memory):
        tables = [*named.list_tables(sides)]
        chosen = schedule or (_choose_schedule(q, tables[0]) if named is BOX else None)
        for table in tables:
            if chosen in (None, table.schedule):
                yield table.even_faces(*q.mnk, two_sums=q.two_sums)


def _choose_schedule(q: Sizes, table: Table) -> str:
    return q.choose_schedule(table.layouts, table.roles, table.sizes)


def _list_shapes(q: Sizes, named: Algorithm, shape: tuple[int, ...] | None, low_memory: bool) -> Iterable[tuple[int, int, int]]:
    if shape is not None:
        return [(shape[0], shape[1], shape[2])]
    if named is BOX:
        rows_first = q.itemsize == WIDE
        search = partial(boxes.find_cheapest, *q.mnk, q.ranks, q.machine, rows_first=rows_first, two_sums=q.two_sums)
        thin = boxes.find_by_layers(*q.mnk, q.ranks, q.machine, rows_first, q.two_sums) if low_memory else ()
        flat = search(BOXES, boxes.Box(q.ranks, q.ranks, 1)) if q.readable else ()
        return dict.fromkeys((*search(BOXES), *flat, *thin))

    def price(sides: tuple[int, int, int]) -> float:
        return min(price_native(q, table) for table in named.list_tables(sides))

    return sorted(named.list_shapes(*q.mnk, q.ranks, q.machine), key=price)[: None if low_memory else BOXES]


def _read_in_place(q: Problem, tables: Iterable[Table]) -> list[Table]:
    """Make the tables of boxes again, with faces that are read in place.

    A face in the box's own layouts is not read in place. But a conversion takes one copy in shared
    memory, and two by messages.
    """
    names = [name for name, schedule in SCHEDULES.items() if schedule.reads_in_place and q.fits]
    return [replace(table, schedule=name) for table in tables for name in names if not SCHEDULES[table.schedule].reads_in_place]


def _use_whole_faces(tables: Iterable[Table]) -> list[Table]:
    """Make the tables of boxes again, with A and B converted to whole faces in one round of messages, or in panels.

    The other tables convert to shares, which are then gathered.
    """
    ways = [(table, SCHEDULES[table.schedule].to_faces) for table in tables]
    return [replace(table.with_whole_faces, schedule=schedule) for table, schedule in ways if schedule]


def _turn_faces(q: Problem, holdings: Holdings, table: Table, order: np.ndarray) -> Table:
    """Put the third cut of each face of a box's table along the dimension by which conversions move fewer words.

    Without conversions nothing is counted: overlaps of thousands of ranks take a second, and much
    memory.
    """
    if table.algorithm != BOX.name or q.is_large or is_native(q, table, order):
        return table
    turned, fewer_words = table.turn_faces(*"ABC"), {}
    for name, face, turned_face in zip("ABC", holdings(table), holdings(turned), strict=False):
        back = name == "C"
        if face is turned_face:
            continue
        words, fewer = (holdings.count_words(each, order, back).max() for each in (face, turned_face))
        if fewer < words:
            fewer_words[name] = getattr(turned, name)
    return replace(table, **fewer_words) if fewer_words else table


def _list_orders(q: Problem, table: Table) -> list[np.ndarray]:
    """List the orders of ranks to try on the table's grid: A's own alone, if its grid has the same shape."""
    if q.A.place.shape == table.shape:
        return [q.A.place.order]
    return list_orders(table.shape, q.homes)


def _relabel(q: Problem, holdings: Holdings, ways: list[Way]) -> list[Way]:
    """Price the best few ways again, with ranks placed so that the fewest elements move, if that may beat the best way.

    For many ranks the best way is the best known so far. For few ranks, whose assignments take no
    time, it is the best without new places.
    """
    if q.ranks > FEW:
        return []
    relabelled, best = [], ways[0].price
    worth = WORTH * max(1, q.ranks / SWIFT) ** 2
    candidates = [(way.table, way.order) for way in ways if way.table and way.order is not None and way.moved >= worth][:BOXES]
    bounds = [PriceBound.of(q, holdings, *each) for each in candidates if price_native(q, *each) < best]
    for each in sorted(bounds, key=_price):
        if each.price >= best and q.ranks > SWIFT:
            break
        relabelled.append(price_way(q, holdings, each.table, relabel(each.total, each.order, q.homes)))
        best = min(best, relabelled[-1].price)
    return relabelled


def keep_distinct(ways: Sequence[Way]) -> list[Way]:
    """Keep the cheapest way of each algorithm, schedule and grid shape."""
    distinct: dict[tuple[Any, ...], Way] = {}
    for way in ways:
        distinct.setdefault((way.algorithm, way.schedule, way.table and way.table.shape), way)
    return [*distinct.values()]


def describe_runners_up(ways: Sequence[Way], itemsize: int) -> tuple[str, ...]:
    """Describe the three next cheapest ways."""
    return tuple(way.describe(itemsize) for way in keep_distinct(ways)[1:4])
