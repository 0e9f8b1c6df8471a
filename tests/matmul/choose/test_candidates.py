"""Which ways are looked at, and what they do with the matrices as they lie."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from helpers.matmuls import LAYOUT, exact, forget_ways, lacks
from helpers.problems import cluster

import pdla
from pdla import Cyclic, Layout, ProcessGrid
from pdla.matmul.algorithms import NAMED
from pdla.matmul.algorithms import NAMED as BY_NAME
from pdla.matmul.choose import candidates, price
from pdla.matmul.choose.candidates import list_ways
from pdla.matmul.choose.mapping import Place, bound_held, relabel
from pdla.matmul.choose.problem import PlacedOperand, Sizes
from pdla.model.machine import Machine

ELSEWHERE = {
    "other ranks": {"shape": (2, 2, 2), "axes": ("m", "n", "k"), "order": (7, 2, 5, 0, 3, 6, 1, 4)},
    "another shape": {"shape": (4, 2, 1), "axes": ("m", "n", "k"), "order": (0, 4, 1, 5, 2, 6, 3, 7)},
    "axes named otherwise": {"shape": (2, 2, 2), "axes": ("n", "k", "m")},
}


@pytest.mark.parametrize("elsewhere", ELSEWHERE)
@pytest.mark.parametrize("moved", "ABC")
def test_a_boxs_own_layout_on_another_grid_is_not_its_own(moved, elsewhere):
    table = next(iter(BY_NAME["3d"].list_tables((2, 2, 2))))

    def program(comm):
        here, there = ProcessGrid(table.shape, table.axes), ProcessGrid(**ELSEWHERE[elsewhere])
        A, B, C = (exact((12, 12), there if moved == X else here, getattr(table, X), seed=ord(X)) for X in "ABC")
        expected = A.gather() @ B.gather()
        pdla.matmul(A, B, out=C, algorithm="3d", box=(2, 2, 2), schedule="gather")
        assert np.array_equal(C.gather(), expected)

    pdla.run(8, program)


def test_relabelled_ranks_keep_more_in_place(monkeypatch):
    def program(comm):
        grid = ProcessGrid((2, 4), order=(7, 2, 5, 0, 3, 6, 1, 4))
        A, B = exact((24, 16), grid, LAYOUT, seed=1), exact((16, 32), grid, LAYOUT, seed=2)
        made = pdla.plan_matmul(A, B, algorithm="3d", box=(2, 2, 2))
        assert np.array_equal(made(A, B).gather(), A.gather() @ B.gather())
        return made.moved

    plain = pdla.run(8, program)[0]
    monkeypatch.setattr(candidates, "WORTH", 0)
    forget_ways()
    relabelled = pdla.run(8, program)[0]
    forget_ways()
    assert relabelled < plain


def test_of_two_ways_to_place_ranks_that_by_which_no_rank_receives_more_in_all(monkeypatch):
    """Not that by which the most of A and B and, perhaps on another rank, the most of C are fewer: then some rank received 312."""

    def program(comm):
        A, B, C = (pdla.zeros((24, 24), grid=ProcessGrid((3, 4)), layout=LAYOUT) for _ in range(3))
        made = pdla.plan_matmul(A, B, out=C, algorithm="3d", box=(2, 2, 3))
        assert made.words + made.moved == made.predicted.bytes_received / 8
        with pdla.record() as ledger:
            made(A, B, out=C)
        return ledger.bytes_received / 8

    monkeypatch.setattr(candidates, "WORTH", 0)
    forget_ways()
    assert max(pdla.run(12, program)) == 288
    forget_ways()


def test_faces_that_come_straight_from_the_users_layouts(monkeypatch):
    """In one round: a rank receives of A and B what its faces have and it has not, and nothing is gathered after that."""
    monkeypatch.setattr(candidates, "apply_rule", lambda *asked: [])
    tables = candidates._list_tables
    monkeypatch.setattr(candidates, "_list_tables", lambda *asked: candidates._use_whole_faces(list(tables(*asked))))
    forget_ways()

    def program(comm):
        for shape, box in (((2, 6), (2, 3, 2)), ((3, 4), (1, 3, 4)), ((12, 1), (5, 2, 1))):
            grid = ProcessGrid(shape)
            A, B = exact((14, 17), grid, LAYOUT, seed=1), exact((17, 9), grid, Layout(Cyclic("row", 2), "col"), seed=2)
            plan = pdla.plan_matmul(A, B, layout=LAYOUT, algorithm="3d", box=box)
            with pdla.record() as ledger:
                C = plan(A, B)
            assert np.array_equal(C.gather(), A.gather() @ B.gather())
            total, cost = ledger.total(comm), plan.predicted
            assert (cost.bytes_received, cost.messages) == (total["max_bytes_received"], total["max_messages"])
            assert set(ledger.by_verb()) <= {"alltoall", "reduce_scatter"}
            coming = [event.bytes for event in ledger.events if event.what == "alltoall"][:2]
            assert coming == [8 * lacks(X, face, plan.grid) for X, face in ((A, plan.roles.A), (B, plan.roles.B))]

    pdla.run(12, program)
    forget_ways()


def test_a_box_that_is_asked_for_is_taken_though_the_own_grid_is_cheaper():
    def program(comm):
        A = exact((12, 12), ProcessGrid((2, 2)), LAYOUT)
        assert pdla.plan_matmul(A, A).grid == A.grid
        assert pdla.plan_matmul(A, A, box=(1, 1, 4)).grid.shape == (1, 1, 4)

    pdla.run(4, program)


def test_within_a_limit_a_grid_of_one_layer_is_looked_at_however_many_are_cheaper():
    q = Sizes((1000, 1000, 1000), 1728, 8, Machine(), 0, ())
    few, all_of_them = ([table.shape[2] for table, _ in candidates.list_native_tables(q, "2.5d", lean)] for lean in (False, True))
    assert 1 not in few and len({*few}) == candidates.BOXES and 1 in all_of_them


@pytest.mark.parametrize("mnk", [(0, 12, 8), (12, 0, 8), (12, 8, 0)], ids=str)
def test_prices_of_empty_products_are_numbers(mnk):
    assert all(np.isfinite(way.price) for way in list_ways(cluster(1, 4, *mnk), "auto", None, None))


@pytest.mark.parametrize("box", [(2, 2, 2), (1, 3, 2), (3, 2, 1)], ids=str)
def test_the_third_cut_of_a_face_is_along_the_dimension_by_which_less_is_moved(box):
    """Of A and B on the way there, of C on the way back."""
    q, table, order = cluster(1, 8, 13, 11, 6), next(iter(NAMED["3d"].list_tables(box))), np.arange(np.prod(box))
    other = table.turn_faces(*"ABC")
    for layout in (LAYOUT, Layout("row"), Layout(("row", "col")), Layout(cols=("row", "col")), Layout(Cyclic("col", 2)), Layout()):
        asked = replace(q, **{name: replace(getattr(q, name), layout=layout) for name in "ABC"})
        kept = price.Holdings(asked)
        turned = kept(candidates._turn_faces(asked, kept, table, order))
        for name, *faces in zip("ABC", turned, kept(table), kept(other), strict=True):
            chosen, *both = (int(kept.count_words(face, order, name == "C").max()) for face in faces)
            assert chosen == min(both), (layout, name)


def test_what_lies_in_a_boxs_own_layouts_stays_there_in_whichever_order_its_ranks_are():
    table = next(iter(NAMED["3d"].list_tables((2, 2, 2))))
    place = Place(table.axes, table.shape, np.array([7, 2, 5, 0, 3, 6, 1, 4]), 8, b"")
    q = cluster(1, 8, 16, 16, 16)
    q = replace(q, **{name: PlacedOperand((16, 16), getattr(table, name), place) for name in "ABC"})
    way = list_ways(q, "3d", (2, 2, 2), "gather")[0]
    assert way.stays == (True, True, True) and way.moved == 0


def priced(q, tables):
    """The ways by these tables, with ranks in each order that is tried."""
    kept = price.Holdings(q)
    each = [(table, order) for table in tables for order in candidates._list_orders(q, table)]
    return [price.price_way(q, kept, candidates._turn_faces(q, kept, table, order), order) for table, order in each]


@pytest.mark.parametrize(("ranks", "worth"), [(64, 2**16), (256, 2**16), (512, 2**18)])
def test_ranks_are_placed_anew_where_that_takes_less_time_than_the_words_that_stay(ranks, worth, monkeypatch):
    q = cluster(1, ranks, 64, 64, 64)
    way = list_ways(q, "3d", (8, 8, 1), "gather")[0]
    for moved in (worth - 1, worth):
        asked = []
        monkeypatch.setattr(candidates, "relabel", lambda total, order, homes, asked=asked: asked.append(order) or order)
        candidates._relabel(q, price.Holdings(q), [replace(way, moved=moved, price=1e9)])
        assert bool(asked) is (moved >= worth)


@pytest.mark.parametrize("nodes", [(1, 30), (6, 4)], ids=str)
@pytest.mark.parametrize("shared", [0, 2**40])
@pytest.mark.parametrize("mnk", [(256, 256, 256), (64, 64, 8192), (4096, 512, 32), (97, 211, 131)], ids=str)
def test_no_table_with_ranks_placed_anew_has_a_lower_price_than_hoped(nodes, shared, mnk):
    q = replace(cluster(*nodes, *mnk), shared=shared)
    kept, tables = price.Holdings(q), list(candidates._list_tables(q, "auto", None, None))
    for way in priced(q, [*tables, *candidates._read_in_place(q, tables), *candidates._use_whole_faces(tables)]):
        one = price.PriceBound.of(q, kept, way.table, way.order)
        placed = relabel(one.total, way.order, q.homes)
        assert one.total[placed, np.arange(len(placed))].sum() <= bound_held(one.total)
        assert one.price <= price.price_way(q, kept, way.table, placed).price * (1 + 1e-12)


def test_ranks_are_not_placed_anew_for_a_table_that_cannot_become_the_best():
    """Of the others the one of which most is hoped comes first."""
    q = cluster(1, 343, 4096, 4096, 4096)
    tables = list(candidates._list_tables(q, "auto", None, None))
    found = sorted(priced(q, [*tables, *candidates._use_whole_faces(tables)]), key=lambda way: way.price)
    again = candidates._relabel(q, price.Holdings(q), found)
    hoped = [price.PriceBound.of(q, price.Holdings(q), way.table, way.order).price for way in again]
    assert 1 <= len(again) < sum(way.moved >= candidates.WORTH for way in found[: candidates.BOXES])
    assert hoped == sorted(hoped)
    assert all(least < min(way.price for way in (found[0], *again[:i])) for i, least in enumerate(hoped))


def test_of_the_ways_the_cheapest_are_tried_with_ranks_placed_anew(monkeypatch):
    given = []
    monkeypatch.setattr(candidates, "_relabel", lambda q, kept, found: given.extend(found) or [])
    candidates._list_ways.__wrapped__(cluster(1, 12, 64, 64, 64), "auto", None, None)
    assert all(one.price <= another.price for one, another in itertools.pairwise(given))


LYING = [LAYOUT, Layout("row"), Layout(cols=("col", "row")), Layout(Cyclic("row", 2), Cyclic("col", 3)), Layout()]


@pytest.mark.parametrize("shared", [0, 2**40])
@pytest.mark.parametrize("nodes", [(1, 12), (3, 4), (1, 30), (1, 64), (16, 4)], ids=str)
@pytest.mark.parametrize("mnk", [(96, 96, 96), (4096, 4096, 64), (97, 5, 1311), (1, 640, 7), (16384, 1024, 4096)], ids=str)
def test_the_cheapest_way_is_the_first_of_all_ways(nodes, mnk, shared):
    """From layouts of A, B and C that are drawn, C's also left open: no way that is left unpriced is cheaper."""
    draw = random.Random(f"{nodes} {mnk} {shared}")
    for algorithm in ("auto", "auto", "auto", "3d", "2.5d", "tesseract", "b-stationary"):
        q = replace(cluster(*nodes, *mnk), shared=shared)
        q = replace(q, **{name: replace(getattr(q, name), layout=draw.choice(LYING)) for name in "ABC"})
        q = replace(q, C=None) if draw.random() < 0.3 else q
        forget_ways()
        cheapest, found = candidates.find_cheapest(q, algorithm, None, None), list_ways(q, algorithm, None, None)
        same = cheapest == found[0] and np.array_equal(cheapest.order, found[0].order)
        assert same, (algorithm, q, cheapest.describe(8), found[0].describe(8))


def test_ranks_that_are_placed_anew_share_their_nodes_again():
    q = cluster(6, 2, 1600, 6400, 1600)
    way = next(way for way in list_ways(q, "3d", (1, 12, 1), "gather") if way.table != way.table.with_whole_faces)
    way = replace(way, order=np.arange(12), price=1e9)
    [again] = candidates._relabel(q, price.Holdings(q), [way])
    first, second = again.order.reshape(6, 2).T
    assert {*again.order} == {*range(12)} and (q.homes[first] == q.homes[second]).all()
