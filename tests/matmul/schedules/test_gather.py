"""All at once: thin tiles are put together where that pays, and a plan foresees it."""

from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.matmuls import LAYOUT, exact, whole

import pdla
from pdla import Balanced, Cuts, Cyclic, Layout, ProcessGrid
from pdla.indices import IndexSet
from pdla.matmul.roles import Roles
from pdla.matmul.schedules import gather
from pdla.matmul.schedules.streams import PlanCache, Sink
from pdla.model.machine import Machine


@pytest.mark.parametrize(
    ("k", "cut", "nodes", "products"),
    [
        (600, Balanced("row"), 1, 1),
        (600, Balanced("row"), 4, 4),  # tiles of 75 rows, of which two together are wide enough
        (1000, Balanced("row"), 4, 4),
        (3, Balanced("row"), 4, 1),  # most have none
        (0, Balanced("row"), 4, 0),
        (600, Cyclic("row", 5), 4, 1),  # interleaved
        (900, Cuts("row", (0, 0, 100, 150, 150, 270, 398, 400, 900)), 4, 6),  # one is wide by itself: none is put together
        (500, Cuts("row", (0, 0, 100, 150, 150, 270, 398, 400, 500)), 4, 2),  # what is left after 398 would be thin again
    ],
)
def test_thin_tiles_of_b_are_multiplied_together_and_between_nodes_while_others_come(monkeypatch, k, cut, nodes, products):
    groups = gather._make_groups
    monkeypatch.setattr(gather, "_make_groups", lambda tiles, *_: groups(tiles, nodes, 0.0))

    def program(comm):
        grid = ProcessGrid((8,))
        A, B = exact((2003, k), grid, Layout("row"), seed=1), exact((k, 9), grid, Layout(rows=cut), seed=2)
        expected = A.gather() @ B.gather()
        plan = pdla.plan_matmul(A, B, algorithm="gather", layout=A.layout)
        with pdla.record() as ledger:
            C = plan(A, B)
        assert np.array_equal(C.gather(), expected)
        return sum(event.what == "gemm" for event in ledger.events)

    assert pdla.run(8, program) == [products] * 8


@pytest.mark.parametrize(
    ("n", "k", "nodes", "products"),
    [
        (40, 64, 4, 1),  # 8 tiles of A of 8 columns, all of B here
        (40, 64, 1, 8),  # one node: each by itself
        (40, 640, 4, 8),  # tiles wider than C
        (200, 640, 4, 4),  # of 80 columns, of which two together are wide enough
        (40, 3, 4, 1),
        (40, 0, 4, 0),
    ],
)
def test_thin_tiles_of_a_are_multiplied_together_between_nodes(n, k, nodes, products):
    roles = Roles((("row", "k"),), Layout(), Layout(), Layout())

    def program(comm):
        comm.homes = [r * nodes // 8 for r in range(8)]
        grid = ProcessGrid((8,))
        A, B = exact((1003, k), grid, Layout(cols="row"), seed=1), exact((k, n), grid, Layout(), seed=2)
        turned = exact((k, 1003), grid, Layout("row"), seed=3).T
        done = []
        for X in (A, turned):
            sink = Sink(comm.xp, np.full((1003, n), np.nan), 1, 0)
            with pdla.record() as ledger:
                gather.run(X, B, roles, sink, PlanCache(), Machine(network=1e3))
            assert np.array_equal(sink.block, X.gather() @ B.gather())
            done.append(sum(event.what == "gemm" for event in ledger.events))
        return done

    assert pdla.run(8, program) == [[products, min(k, 8)]] * 8  # tiles of a transpose are not joined


@pytest.mark.parametrize(
    "pace, widths",
    [
        (0.0, [128] * 5),
        (1.6, [128, 208, 304]),  # 204.8 come meanwhile, then 332.8 would
        (1.0, [128] * 5),
        (4.5, [128, 512]),
        (3.5, [128, 512]),  # the 64 after 448 are too few to go over C for
        (inf, [128, 512]),
    ],
)
def test_groups_of_tiles_grow_as_the_network_outruns_the_products(pace, widths):
    tiles = {r: IndexSet.interval(i * 16, i * 16 + 16) for i, r in enumerate(reversed(range(40)))}
    groups = gather._make_groups(tiles, 8, pace)
    assert [len(part) for _, part in groups] == widths
    assert [r for ranks, _ in groups for r in ranks] == list(range(40))[::-1]
    assert [len(part) for _, part in gather._make_groups(tiles, 1, pace)] == [640]


def test_a_node_receives_by_one_link_what_its_ranks_multiply():
    machine = Machine(flops=1e9, network=1e6, memory=1e12, call=0.0)
    comms = [SimpleNamespace(size=8, nodes=nodes) for nodes in (8, 2)]
    pace = [gather._estimate_pace(100, 50, 50, comm, np.dtype("float64"), machine) for comm in comms]
    assert pace == pytest.approx([1e-5 / 4e-4, 1e-5 / 1e-4])


@pytest.mark.parametrize("nodes", [1, 4, 8])
def test_a_plan_foresees_what_is_put_together_between_nodes(nodes):
    def program(comm):
        comm.homes = [r * nodes // 8 for r in range(8)]
        grid = ProcessGrid((2, 4))
        A, B = exact((200, 64), grid, LAYOUT, seed=1), exact((64, 240), grid, LAYOUT, seed=2)
        plan = pdla.plan_matmul(A, B, algorithm="gather")
        with pdla.record() as ledger:
            plan(A, B)
        return plan.predicted.peak_workspace, ledger.peak_workspace

    figures = pdla.run(8, program)
    assert all(peak <= promised for promised, peak in figures), figures


@pytest.mark.parametrize("ranks", [(36, 2), (2, 36), (1, 33)])
@pytest.mark.parametrize("cuts", [LAYOUT, Layout(Cyclic("row", 3), Cyclic("col", 2))], ids=["blocks", "cyclic"])
def test_short_tiles_come_at_once_and_are_one_product(ranks, cuts):
    """In steps, so that none could be multiplied earlier; with gaps or without."""
    shapes = (200, 72), (72, 200)
    expected = whole(shapes[0], float, 0) @ whole(shapes[1], float, 1)

    def program(comm):
        grid = ProcessGrid(ranks)
        A, B = exact(shapes[0], grid, cuts), exact(shapes[1], grid, cuts, seed=1)
        plan = pdla.plan_matmul(A, B, algorithm="gather", layout=cuts)
        with pdla.record() as ledger:
            C = plan(A, B)
        most = ledger.total(comm)["max_peak_workspace"]
        assert np.array_equal(C.local, pdla.from_global(expected, grid, cuts).local) and most == plan.predicted.peak_workspace
        return sum(event.what == "gemm" for event in ledger.events)

    assert max(pdla.run(ranks[0] * ranks[1], program)) <= min(ranks)


@pytest.mark.parametrize("shape", [(3, 32), (32, 3)], ids=str)
@pytest.mark.parametrize("k", [0, 2])
def test_of_many_ranks_some_have_no_tiles(shape, k):
    """Fewer rows and columns than there are ranks along them; or nothing at all."""
    a, b = whole((2, k), float, 0), whole((k, 2), float, 1)

    def program(comm):
        A, B = (pdla.from_global(x, ProcessGrid(shape), LAYOUT) for x in (a, b))
        return pdla.matmul(A, B, algorithm="gather").gather()

    assert all(np.array_equal(C, a @ b) for C in pdla.run(96, program))
