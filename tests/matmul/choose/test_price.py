"""What a way costs."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from helpers.matmuls import LAYOUT, exact, forget_ways
from helpers.problems import cluster

import pdla
from pdla import Cyclic, Layout, ProcessGrid
from pdla.matmul import boxes, roles
from pdla.matmul.algorithms import NAMED
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose import candidates, price, problem
from pdla.matmul.choose.candidates import list_ways
from pdla.matmul.choose.mapping import Place
from pdla.matmul.choose.problem import Operand, PlacedOperand, Problem
from pdla.matmul.options import Options
from pdla.model.machine import Machine


def test_what_lies_in_a_boxs_own_layouts_is_not_compared_with_them(monkeypatch):
    """That took most of the time, and a gigabyte of memory, for 4096 ranks and a limit."""
    monkeypatch.setattr(price.Holdings, "count_words", lambda *args: pytest.fail("compared"))
    assert pdla.predict_matmul(1001, 999, 1003, 63).ranks_used > 60


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
    return price.weigh_table(q, table, order, table.words(*q.mnk))


@pytest.mark.parametrize("homes", [(), (0, 0, 0, 0, 1, 1, 1, 1), (0, 1, 0, 1, 2, 2, 0, 1)], ids=str)
@pytest.mark.parametrize("lying", WAYS)
@pytest.mark.parametrize("schedule", ["gather", "shared"])
def test_a_way_is_priced_by_what_a_redistribution_brings(schedule, lying, homes):
    """To the rank that receives most, in words and in messages; words from other nodes count four times. Read in shared memory: by
    what a rank writes there and reads, and what C's conversion brings."""
    order, (m, n, k) = np.array([3, 1, 7, 5, 0, 2, 6, 4]), (12, 8, 16)
    (where, stays), shapes = WAYS[lying], ((m, k), (k, n), (m, n))
    table = replace(next(iter(NAMED["3d"].list_tables((2, 2, 2)))), schedule=schedule)
    in_place = schedule == "shared" and where != "hhh"
    layouts = table.with_whole_faces.layouts if in_place else table.layouts

    def program(comm):
        comm.homes, comm.shared_limit = homes, 0
        grid, there = ProcessGrid((2, 4)), ProcessGrid((2, 2, 2), table.axes, order=order)
        places = [{"b": (grid, LAYOUT), "w": (grid, Layout()), "h": (there, layout)} for layout in layouts]
        ends = [place[at] for place, at in zip(places, where, strict=False)]
        operands = [pdla.zeros(shape, *end) for shape, end in zip(shapes, ends, strict=False)]
        asked = [*map(Operand.of, operands), None][:3]
        q = Problem.of(*asked, 8, Machine(bandwidth=4.0, network=1.0))
        way, brought = price.price_way(q, price.Holdings(q), table, order), []
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
        assert (way.words, way.moved) == (table.with_whole_faces.words(m, n, k) + read, moved)
        straight = weighed(q, table.with_whole_faces, order)
        for seen in (False, True):  # whether all ranks see A as it is
            asked = replace(q, A=replace(q.A, shared=seen))
            brought = (own[0] * (not seen) + own[1] + roles.READ * read) / 2 + moved
            found = price.price_way(asked, price.Holdings(asked), table, order).price
            assert found == q.price(schedule, table.box, straight + brought, max(each[2][3] for *_, each in every))
    else:
        assert way.moved == max(sum(come for come, *_ in each) for *_, each in every)
        brought = max(sum(come + 3 * far for come, far, *_ in each) for *_, each in every)
        messages = max(sum(sent for *_, sent in each) for *_, each in every)
        assert way.price == q.price(schedule, table.box, weighed(q, table, order) + brought, messages)


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
                [way] = candidates.apply_rule(builder.problem, "auto", schedule)
                used = boxes.find_box(way.roles.carries, grid.sizes)
                with pdla.record() as ledger:
                    builder.plan(way)(A, B, out=C)
                more = 0 if schedule == "shared" else ledger.total(comm)["max_messages"] - (sum(used) - 3)
                words = price.weigh(builder.problem, schedule, way.words, lying, way.roles, grid.sizes, None)
                assert way.price == builder.problem.price(schedule, used, words, more), (schedule, lying)

    pdla.run(6, program)


def test_without_a_message_the_price_counts_none_though_a_boxs_own_gather_would_go_in_steps():
    place = Place(("row",), (512,), np.arange(512), 512, b"")
    A, B, C = (PlacedOperand((4096, 64), Layout(rows), place) for rows in ("row", (), "row"))
    q = Problem((4096, 64, 64), 512, 8, Machine(), 0, (0,) * 512, A=A, B=replace(B, shape=(64, 64)), C=C)
    [way] = candidates.apply_rule(q, "auto", "gather")
    used = boxes.Box(512, 1, 1)
    assert 0 < q.messages("gather", used)[1] < 511 and way.price == q.price("gather", used, 0, -sum(q.messages("gather", used)))


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
    table = next(iter(NAMED["3d"].list_tables((2, 2, 1)))).with_whole_faces
    for layout, stays in ((Layout("row"), True), (Layout("row", partial="col"), False), (LAYOUT, False)):
        asked = replace(q, A=replace(q.A, layout=layout))
        assert price.price_way(asked, price.Holdings(asked), table, np.arange(4)).stays[0] is stays


def test_conversions_inside_nodes_count_less():
    """From 4 x 8 blocks on 8 nodes 16 x 1 x 2 moves all of A, but inside nodes."""
    q = cluster(8, 4, 16384, 1024, 4096)
    way = list_ways(q, "auto", None, None)[0]
    assert way.table is not None and way.table.shape == (16, 1, 2)
    order, [A, _, _] = way.order, price.Holdings(q)(way.table)
    assert A.count_received(order).min() > 0 and not A.count_far(order, q.homes)[0].any()
    apart = list_ways(replace(q, nodes=tuple(range(32))), "auto", None, None)[0]
    assert apart.table is None or apart.table.shape != (16, 1, 2)
