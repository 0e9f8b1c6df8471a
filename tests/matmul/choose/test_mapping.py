"""Who takes which place: what conversions bring from other nodes, as counted by a redistribution; ranks placed node by node."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from helpers.matmuls import LAYOUT, exact, forget_ways

import pdla
from pdla import Balanced, Cyclic, Layout, ProcessGrid
from pdla.indices import runs
from pdla.layout import shares as layout_shares
from pdla.matmul import boxes, roles
from pdla.matmul.algorithms import NAMED
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose import candidates, mapping, price, problem
from pdla.matmul.choose.candidates import ways
from pdla.matmul.choose.mapping import Kept, Overlap, Place, Side, kept_in_all, most_kept, relabelled
from pdla.matmul.choose.problem import Operand, PlacedOperand, Problem
from pdla.matmul.options import Options
from pdla.model.machine import Machine

USERS = {
    "blocks": ((2, 4), ("row", "col"), LAYOUT),
    "cyclic": ((2, 4), ("row", "col"), Layout(Cyclic("row", 2), Cyclic("col", 3))),
    "a line, one rank idle": ((7,), ("p",), Layout("p")),
    "other order of axes": ((4, 2), ("row", "col"), Layout("col", "row")),
}


def side(shape, layout, grid):
    return Side(shape, layout, grid.axes, grid.shape)


@pytest.mark.parametrize("homes", [(0, 0, 0, 0, 1, 1, 1, 1), (0, 1, 0, 1, 2, 2, 0, 1), (0, 0, 0, 0, 0, 0, 0, 1)], ids=str)
@pytest.mark.parametrize("user", USERS)
def test_words_from_other_nodes_are_those_that_a_redistribution_brings(user, homes):
    def program(comm):
        comm.homes = homes
        shape, axes, layout = USERS[user]
        there, back = ProcessGrid((2, 2, 2), axes=("m", "n", "k"), order=(3, 1, 7, 5, 0, 2, 6, 4)), ProcessGrid(shape, axes)
        native = Layout("m", ("k", "n"))
        kept = Kept(side((13, 11), layout, back), side((13, 11), native, there), back.ranks.ravel(), 8)
        ends = (there, native), (back, layout)
        for far, to, from_ in zip(kept.far(there.ranks.ravel(), np.array(homes)), ends, ends[::-1], strict=True):
            X = exact((13, 11), *from_)
            with pdla.record() as ledger:
                X.redistribute(to[1], to[0])
            assert ledger.bytes_from_far == 8 * far[comm.rank], (user, homes)

    pdla.run(8, program)


WAYS = {  # what lies in the table's own layouts, or as blocks, or elsewhere; which of A, B and C stay
    "blocks": ("bbb", (False, False, False)),
    "all but B at home": ("hbh", (True, False, True)),
    "all but A at home": ("bhh", (False, True, True)),
    "C alone from home": ("hhb", (True, True, False)),
    "A whole": ("whb", (False, True, False)),
    "all at home": ("hhh", (True, True, True)),
    "C anywhere": ("bb", (False, False, True)),
}


def weighed(q, table, order):
    return price.table_weighed(q, table, order, table.words(*q.mnk))


@pytest.mark.parametrize("homes", [(), (0, 0, 0, 0, 1, 1, 1, 1), (0, 1, 0, 1, 2, 2, 0, 1)], ids=str)
@pytest.mark.parametrize("lying", WAYS)
@pytest.mark.parametrize("schedule", ["gather", "shared"])
def test_a_way_is_priced_by_what_a_redistribution_brings(schedule, lying, homes):
    """To the rank that receives most, in words and in messages; words from other nodes count four times. Read in shared memory: by
    what a rank writes there and reads, and what C's conversion brings."""
    order, (m, n, k) = np.array([3, 1, 7, 5, 0, 2, 6, 4]), (12, 8, 16)
    (where, stays), shapes = WAYS[lying], ((m, k), (k, n), (m, n))
    table = replace(next(iter(NAMED["3d"].tables((2, 2, 2)))), schedule=schedule)
    in_place = schedule == "shared" and where != "hhh"
    layouts = table.straight.layouts if in_place else table.layouts

    def program(comm):
        comm.homes, comm.shared_limit = homes, 0
        grid, there = ProcessGrid((2, 4)), ProcessGrid((2, 2, 2), table.axes, order=order)
        places = [{"b": (grid, LAYOUT), "w": (grid, Layout()), "h": (there, layout)} for layout in layouts]
        ends = [place[at] for place, at in zip(places, where, strict=False)]
        operands = [pdla.zeros(shape, *end) for shape, end in zip(shapes, ends, strict=False)]
        asked = [*map(Operand.of, operands), None][:3]
        q = Problem.about(*asked, 8, Machine(bandwidth=4.0, network=1.0))
        way, brought = price.priced_way(q, price.KeptOf(q), table, order), []
        for i, (X, layout) in enumerate(zip(operands, layouts, strict=False)):
            new = (layout, there) if i < 2 else (X.layout, X.grid)
            with pdla.record() as ledger:
                (X if i < 2 else pdla.zeros((m, n), there, layout)).redistribute(*new)
            brought.append((ledger.bytes_received // 8, ledger.bytes_from_far // 8, X.local.size, ledger.messages))
        return q, way, [*brought, (0, 0, 0, 0)][:3]

    every = pdla.run(8, program)
    q, way, _ = every[0]
    assert way.stays == stays
    assert weighed(replace(q, machine=Machine(bandwidth=1.0, network=1.0)), table, order) == table.words(m, n, k)
    if in_place:
        read, moved = (max(sum(come for come, *_ in each[which]) for *_, each in every) for which in (np.s_[:2], np.s_[2:]))
        own = [0 if stay else max(each[i][2] for *_, each in every) for i, stay in enumerate(stays)]
        assert (way.words, way.moved) == (table.straight.words(m, n, k) + read, moved)
        straight = weighed(q, table.straight, order)
        for seen in (False, True):  # whether all ranks see A as it is
            asked = replace(q, A=replace(q.A, shared=seen))
            brought = (own[0] * (not seen) + own[1] + roles.READ * read) / 2 + moved
            found = price.priced_way(asked, price.KeptOf(asked), table, order).price
            assert found == q.priced(schedule, table.box, straight + brought, max(each[2][3] for *_, each in every))
    else:
        assert way.moved == max(sum(come for come, *_ in each) for *_, each in every)
        brought = max(sum(come + 3 * far for come, far, *_ in each) for *_, each in every)
        messages = max(sum(sent for *_, sent in each) for *_, each in every)
        assert way.price == q.priced(schedule, table.box, weighed(q, table, order) + brought, messages)


@pytest.mark.parametrize("shape", [(7, 12), (2, 3)], ids=str)
@pytest.mark.parametrize("layout", [Layout("col", "row"), Layout(Cyclic("row", 2), "col"), Layout(cols=("col", "row"))], ids=repr)
@pytest.mark.parametrize("box", [(1, 1, 1), (2, 1, 3), (3, 2, 1)])
def test_messages_of_conversions_are_those_that_a_redistribution_brings(shape, layout, box):
    table, order = next(iter(NAMED["3d"].tables(box))), np.array([4, 2, 0, 5, 1, 3])[: int(np.prod(box))]

    def program(comm):
        grid, there = ProcessGrid((2, 3)), ProcessGrid(box, table.axes, order=order)
        user, native = pdla.zeros(shape, grid, layout), pdla.zeros(shape, there, table.A)
        kept, received = Kept(*(side(X.shape, X.layout, X.grid) for X in (user, native)), np.arange(6), 6), []
        for X, new in ((user, native), (native, user)):
            with pdla.record() as ledger:
                X.redistribute(new.layout, new.grid)
            received.append(ledger.messages)
        return received, [int(kept.messages(order, back)[comm.rank]) for back in (False, True)]

    for received, told in pdla.run(6, program):
        assert told == received


CUT = LAYOUT, Layout("col", "row"), Layout(Cyclic("row", 2), "col"), Layout(cols=("col", "row"))
COPIES = Layout(), Layout("row"), Layout("col"), Layout(cols="row"), LAYOUT


@pytest.mark.parametrize("layouts", [CUT, COPIES], ids=["cut", "copies"])
@pytest.mark.parametrize("n", [12, 24])
def test_on_the_own_grid_a_rule_is_priced_by_the_messages_that_it_takes(n, layouts):
    """Those of what no all-gather brings, or is there in copies, instead of a gather's, and of C's way to its layout; what is read
    in place takes none."""

    def program(comm):
        grid = ProcessGrid((2, 3))
        for lying in itertools.product(layouts, repeat=3):
            A, B, C = (pdla.zeros((12, size), grid, layout) for size, layout in zip((12, n, n), lying, strict=True))
            builder = PlanBuilder(*map(Operand.of, (A, B, C)), A.dtype, Options(), Machine())
            for schedule in ("gather", "shared") if C.layout == LAYOUT and layouts is CUT else ("gather",):
                [way] = candidates.direct(builder.problem, "auto", schedule)
                used = boxes.of(way.roles.carries, grid.sizes)
                with pdla.record() as ledger:
                    builder.plan(way)(A, B, out=C)
                more = 0 if schedule == "shared" else ledger.total(comm)["max_messages"] - (sum(used) - 3)
                words = price.weighed(builder.problem, schedule, way.words, lying, way.roles, grid.sizes, None)
                assert way.price == builder.problem.priced(schedule, used, words, more), (schedule, lying)

    pdla.run(6, program)


def test_without_a_message_the_price_counts_none_though_a_boxs_own_gather_would_go_in_steps():
    place = Place(("row",), (512,), np.arange(512), 512, b"")
    A, B, C = (PlacedOperand((4096, 64), Layout(rows), place) for rows in ("row", (), "row"))
    q = Problem((4096, 64, 64), 512, 8, Machine(), 0, (0,) * 512, A=A, B=replace(B, shape=(64, 64)), C=C)
    [way] = candidates.direct(q, "auto", "gather")
    used = boxes.Box(512, 1, 1)
    assert 0 < q.messages("gather", used)[1] < 511 and way.price == q.priced("gather", used, 0, -sum(q.messages("gather", used)))


def test_where_so_many_ranks_are_not_compared_all_is_brought_and_priced_by_sizes(monkeypatch):
    """An eighth of A, of B and of C moves; C whole on the way back, where all ranks hold it."""
    monkeypatch.setattr(problem, "LARGE", 7)
    forget_ways()

    def program(comm):
        grid, moved = ProcessGrid((2, 4)), []
        A, B = exact((24, 16), grid, LAYOUT, seed=1), exact((16, 32), grid, LAYOUT, seed=2)
        for layout in (LAYOUT, Layout()):
            made = pdla.plan_matmul(A, B, layout=layout, algorithm="3d", box=(2, 2, 2), schedule="gather")
            assert np.array_equal(made(A, B).gather(), A.gather() @ B.gather())
            moved.append(made.moved)
        return moved

    assert pdla.run(8, program)[0] == [(24 * 16 + 16 * 32 + 24 * 32) / 8, (24 * 16 + 16 * 32) / 8 + 24 * 32]
    forget_ways()


def test_what_has_to_be_summed_or_gathered_does_not_stay():
    q = cluster(1, 4, 64, 64, 64)
    table = next(iter(NAMED["3d"].tables((2, 2, 1)))).straight
    for layout, stays in ((Layout("row"), True), (Layout("row", partial="col"), False), (LAYOUT, False)):
        asked = replace(q, A=replace(q.A, layout=layout))
        assert price.priced_way(asked, price.KeptOf(asked), table, np.arange(4)).stays[0] is stays


@pytest.mark.parametrize("mnk", [(0, 12, 8), (12, 0, 8), (12, 8, 0)], ids=str)
def test_prices_of_empty_products_are_numbers(mnk):
    assert all(np.isfinite(way.price) for way in ways(cluster(1, 4, *mnk), "auto", None, None))


def test_what_thousands_of_shares_have_in_common_takes_little_memory():
    user, native = ((10**6, (Layout(cut).rows[0],), (4096,)) for cut in ("p", Cyclic("q", 300)))
    kept = Overlap.of(user, native)
    assert kept.table().sum() == 10**6
    assert kept.pairs.nbytes + kept.sizes.nbytes < 2**20  # 2^27 if all pairs were kept


def cluster(hosts, ranks, *mnk):
    """A product of 2-D blocks into 2-D blocks, hosts of so many ranks."""
    (m, n, k), P = mnk, hosts * ranks
    place = Place(("row", "col"), pdla.balanced_shape(P), np.arange(P), P, b"")
    A, B, C = (PlacedOperand(shape, LAYOUT, place) for shape in ((m, k), (k, n), (m, n)))
    return Problem(mnk, P, 8, Machine(), 0, tuple(r // ranks * ranks for r in range(P)), A=A, B=B, C=C)


def test_places_that_share_a_node_share_one_again_and_keep_more_there():
    q = cluster(16, 4, 4096, 4096, 4096)
    homes = q.homes
    [table] = {way.table for way in ways(q, "3d", (4, 4, 4), "summa")} - {None}
    order = np.arange(64)
    kept = price.KeptOf(q)(table)
    held = kept_in_all(kept)
    placed = relabelled(held, order, homes)
    assert sorted(placed) == list(range(64))
    for node in range(16):
        tile = np.flatnonzero(homes[order] == node)
        assert len(set(homes[placed[tile]])) == 1
        stay = [held[list(ranks), tile].sum() for ranks in itertools.permutations(placed[tile])]
        assert stay[0] == max(stay)

    def from_afar(order):
        return sum(one.far(order, homes)[number == 2].sum() for number, one in enumerate(kept))

    assert from_afar(placed) < 0.9 * from_afar(order)


def test_nodes_of_unlike_sizes_and_idle_ranks():
    homes = np.array([0] * 5 + [1] * 3 + [2] * 4)
    here = Place(("row", "col"), (3, 4), np.arange(12), 12, b"")
    user = Side((24, 24), LAYOUT, here.axes, here.shape)
    for shape in ((2, 5, 1), (3, 2, 2), (1, 1, 7)):
        native = Side((24, 24), Layout("m", ("k", "n")), ("m", "n", "k"), shape)
        order = np.arange(int(np.prod(shape)))[::-1].copy()
        placed = relabelled(Kept(user, native, here.order, 12).elements, order, homes)
        assert len(set(placed)) == len(order)
        for node in range(3):
            assert len(set(homes[placed[homes[order] == node]])) <= 1


def test_ranks_that_keep_as_much_as_they_can_stay_where_they_are():
    """Two ranks hold as much of the rows that each of them needs."""
    user, native = Side((24, 24), LAYOUT, ("row", "col"), (2, 2)), Side((24, 24), Layout("m"), ("m", "n", "k"), (2, 2, 1))
    for order in (np.array([0, 1, 2, 3]), np.array([1, 0, 3, 2])):
        assert relabelled(Kept(user, native, np.arange(4), 4).elements, order) is order


def test_conversions_inside_nodes_count_less():
    """From 4 x 8 blocks on 8 nodes 16 x 1 x 2 moves all of A, but inside nodes."""
    q = cluster(8, 4, 16384, 1024, 4096)
    way = ways(q, "auto", None, None)[0]
    assert way.table is not None and way.table.shape == (16, 1, 2)
    order, [A, _, _] = way.order, price.KeptOf(q)(way.table)
    assert A.arriving(order).min() > 0 and not A.far(order, q.homes)[0].any()
    apart = ways(replace(q, nodes=tuple(range(32))), "auto", None, None)[0]
    assert apart.table is None or apart.table.shape != (16, 1, 2)


@pytest.mark.parametrize("box", [(2, 2, 2), (1, 3, 2), (3, 2, 1)], ids=str)
def test_the_third_cut_of_a_face_is_along_the_dimension_by_which_less_is_moved(box):
    """Of A and B on the way there, of C on the way back."""
    q, table, order = cluster(1, 8, 13, 11, 6), next(iter(NAMED["3d"].tables(box))), np.arange(np.prod(box))
    other = table.turned(*"ABC")
    for layout in (LAYOUT, Layout("row"), Layout(("row", "col")), Layout(cols=("row", "col")), Layout(Cyclic("col", 2)), Layout()):
        asked = replace(q, **{name: replace(getattr(q, name), layout=layout) for name in "ABC"})
        kept = price.KeptOf(asked)
        turned = kept(candidates._turned(asked, kept, table, order))
        for name, *faces in zip("ABC", turned, kept(table), kept(other), strict=True):
            chosen, *both = (int(kept.words(face, order, name == "C").max()) for face in faces)
            assert chosen == min(both), (layout, name)


def test_what_lies_in_a_boxs_own_layouts_stays_there_in_whichever_order_its_ranks_are():
    table = next(iter(NAMED["3d"].tables((2, 2, 2))))
    place = Place(table.axes, table.shape, np.array([7, 2, 5, 0, 3, 6, 1, 4]), 8, b"")
    q = cluster(1, 8, 16, 16, 16)
    q = replace(q, **{name: PlacedOperand((16, 16), getattr(table, name), place) for name in "ABC"})
    way = ways(q, "3d", (2, 2, 2), "gather")[0]
    assert way.stays == (True, True, True) and way.moved == 0


def priced(q, tables):
    """The ways by these tables, with ranks in each order that is tried."""
    kept = price.KeptOf(q)
    each = [(table, order) for table in tables for order in candidates._orders(q, table)]
    return [price.priced_way(q, kept, candidates._turned(q, kept, table, order), order) for table, order in each]


@pytest.mark.parametrize(("ranks", "worth"), [(64, 2**16), (256, 2**16), (512, 2**18)])
def test_ranks_are_placed_anew_where_that_takes_less_time_than_the_words_that_stay(ranks, worth, monkeypatch):
    q = cluster(1, ranks, 64, 64, 64)
    way = ways(q, "3d", (8, 8, 1), "gather")[0]
    for moved in (worth - 1, worth):
        asked = []
        monkeypatch.setattr(candidates, "relabelled", lambda total, order, homes, asked=asked: asked.append(order) or order)
        candidates._relabelled(q, price.KeptOf(q), [replace(way, moved=moved, price=1e9)])
        assert bool(asked) is (moved >= worth)


@pytest.mark.parametrize("nodes", [(1, 30), (6, 4)], ids=str)
@pytest.mark.parametrize("shared", [0, 2**40])
@pytest.mark.parametrize("mnk", [(256, 256, 256), (64, 64, 8192), (4096, 512, 32), (97, 211, 131)], ids=str)
def test_no_table_with_ranks_placed_anew_has_a_lower_price_than_hoped(nodes, shared, mnk):
    q = replace(cluster(*nodes, *mnk), shared=shared)
    kept, tables = price.KeptOf(q), list(candidates._tables(q, "auto", None, None))
    for way in priced(q, [*tables, *candidates._read_in_place(q, tables), *candidates._straight(tables)]):
        one = price.Hoped.of(q, kept, way.table, way.order)
        placed = relabelled(one.total, way.order, q.homes)
        assert one.total[placed, np.arange(len(placed))].sum() <= most_kept(one.total)
        assert one.price <= price.priced_way(q, kept, way.table, placed).price * (1 + 1e-12)


def test_ranks_are_not_placed_anew_for_a_table_that_cannot_become_the_best():
    """Of the others the one of which most is hoped comes first."""
    q = cluster(1, 343, 4096, 4096, 4096)
    tables = list(candidates._tables(q, "auto", None, None))
    found = sorted(priced(q, [*tables, *candidates._straight(tables)]), key=lambda way: way.price)
    again = candidates._relabelled(q, price.KeptOf(q), found)
    hoped = [price.Hoped.of(q, price.KeptOf(q), way.table, way.order).price for way in again]
    assert 1 <= len(again) < sum(way.moved >= candidates.WORTH for way in found[: candidates.BOXES])
    assert hoped == sorted(hoped)
    assert all(least < min(way.price for way in (found[0], *again[:i])) for i, least in enumerate(hoped))


def test_of_the_ways_the_cheapest_are_tried_with_ranks_placed_anew(monkeypatch):
    given = []
    monkeypatch.setattr(candidates, "_relabelled", lambda q, kept, found: given.extend(found) or [])
    candidates._ways.__wrapped__(cluster(1, 12, 64, 64, 64), "auto", None, None)
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
        cheapest, found = candidates.cheapest(q, algorithm, None, None), ways(q, algorithm, None, None)
        same = cheapest == found[0] and np.array_equal(cheapest.order, found[0].order)
        assert same, (algorithm, q, cheapest.in_words(8), found[0].in_words(8))


@pytest.mark.parametrize("mnk", [(97, 131, 64), (1000, 3, 5)], ids=str)
@pytest.mark.parametrize("box", [(4, 3, 5), (2, 1, 30), (60, 1, 1)], ids=str)
def test_no_table_receives_less_than_its_least_words(box, mnk):
    for table in NAMED["3d"].tables(box):
        for each in (table, table.turned(*"ABC"), table.evened(*mnk)):
            assert all(least <= words for least, words in zip(table.least_faces(*mnk), each.faces(*mnk), strict=True))


@pytest.mark.parametrize("n", [0, 1, 7, 64, 2**61 + 3, 2**63 - 1])
@pytest.mark.parametrize("nest", [("p",), ("q", "p"), (Balanced("p", 4), "q"), (Cyclic("q", 3), "p"), ()], ids=str)
def test_the_runs_of_all_shares_are_those_of_each(n, nest):
    sizes = {"p": 3, "q": 5}
    layout = Layout(nest)
    if n > 64 and not layout.contiguous:
        return
    rows, _ = Side((n, 1), layout, ("p", "q"), (3, 5)).nests
    found = [*map(list, mapping._runs(rows))]
    cuts = layout.rows
    each = layout_shares(n, cuts, sizes, tuple(cut.axis for cut in cuts), {})
    assert found == [*map(list, runs(each))] and list(mapping._lengths(rows)) == [len(share) for share in each]


def test_ranks_that_are_placed_anew_share_their_nodes_again():
    q = cluster(6, 2, 1600, 6400, 1600)
    way = next(way for way in ways(q, "3d", (1, 12, 1), "gather") if way.table != way.table.straight)
    way = replace(way, order=np.arange(12), price=1e9)
    [again] = candidates._relabelled(q, price.KeptOf(q), [way])
    first, second = again.order.reshape(6, 2).T
    assert {*again.order} == {*range(12)} and (q.homes[first] == q.homes[second]).all()
