"""The cheapest plan within a memory limit: panels no thinner than need be, bounds that are bounds, and what is missing."""

import numpy as np
import pytest
from helpers.matmuls import LAYOUT, exact

import pdla
from pdla import Cyclic, Layout, ProcessGrid
from pdla.comm.collectives import ring
from pdla.layout import shares
from pdla.matmul import dry, planner
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose.problem import Operand
from pdla.matmul.options import Options
from pdla.matmul.plan import costs
from pdla.matmul.schedules import cannon
from pdla.model.machine import Machine


@pytest.mark.parametrize("algorithm", ["tesseract", "a-stationary"])
def test_what_is_added_to_c_is_foreseen_and_kept_below_the_limit(algorithm):
    """On its way home it needs memory of its own."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = exact((40, 4), grid, LAYOUT, seed=1), exact((40, 4), grid, LAYOUT, seed=2).T
        C = pdla.zeros((40, 40), grid, Layout("col", "row"))
        plan = pdla.plan_matmul(A, B, out=C, beta=1, algorithm=algorithm)
        with pdla.record() as ledger:
            plan(A, B, out=C, beta=1)
        assert ledger.total(comm)["max_peak_workspace"] <= plan.predicted.peak_workspace
        assert np.array_equal(C.gather(), A.gather() @ B.gather())
        with pytest.raises(pdla.errors.PlanError, match="bytes too few"):
            pdla.matmul(A, B, out=C, beta=1, algorithm=algorithm, memory_limit=8 * 40 * 40 // 4)

    pdla.run(4, program)


@pytest.mark.parametrize("algorithm", ["summa", "cannon"])
def test_a_limit_narrows_panels_of_cyclic_matrices_no_further_than_those_of_blocks(algorithm):
    """A panel has indices of many runs: one of a matrix dealt out row by row is no narrower than one of a matrix in blocks."""

    def program(comm):
        grid, panels = ProcessGrid((2, 2), comm=comm), []
        for layout in (LAYOUT, Layout(Cyclic("row", 1), Cyclic("col", 1))):
            A = pdla.zeros((512, 512), grid, layout)
            whole = pdla.plan_matmul(A, A, algorithm=algorithm, panel=128).predicted.peak_workspace
            panels.append(pdla.plan_matmul(A, A, algorithm=algorithm, panel=128, memory_limit=whole // 2).panel)
        assert panels == [64, 64]

    pdla.dry_run(4, program)


@pytest.mark.parametrize(
    "layouts",
    [
        (LAYOUT, LAYOUT, LAYOUT), (Layout("row"), Layout("col"), LAYOUT), (Layout(None, "row"), Layout("row"), Layout("row")),
        (Layout(Cyclic("row", 3), "col"), Layout("col", Cyclic("row", 16)), Layout(None, ("row", "col"))),
        (Layout(("row", "col")), Layout(), Layout("row", partial="col")),
    ],
    ids=str,
)
@pytest.mark.parametrize("mnk", [(61, 40, 200), (300, 7, 9), (5, 5, 5)], ids=str)
def test_the_bound_on_workspace_without_a_dry_run_is_one(layouts, mnk):
    """Plans whose bound is above a limit are not looked at, though one of them might keep it."""
    m, n, k = mnk

    def program(comm):
        grid, shapes = ProcessGrid((2, 3), comm=comm), ((m, k), (k, n), (m, n))
        sides = [Operand(shape, layout.summed, grid) for shape, layout in zip(shapes, layouts, strict=True)]
        plans = list(planner.list_plans(PlanBuilder(*sides, np.dtype(float), Options(memory_limit=1), Machine())))
        return [(planner._bound_workspace(plan), plan.predicted.peak_workspace) for plan in plans]

    found, _ = pdla.dry_run(6, program)
    assert all(0 <= bound <= peak for bound, peak in found)
    assert any(bound > peak / 3 for bound, peak in found)


def test_the_bound_on_workspace_is_one_on_several_nodes(monkeypatch):
    """There the ranks of a node share what they gather."""
    monkeypatch.setattr(ring, "LONG", 0)

    def program(comm):
        comm.homes, comm.shared_limit = [0, 0, 0, 1, 1, 1], 2**30
        plans = []
        for shape, mnk in ((2, 3), (60, 50, 70)), ((1, 6), (30, 30, 300)):
            grid, (m, n, k) = ProcessGrid(shape, comm=comm), mnk
            sides = [Operand(size, LAYOUT, grid) for size in ((m, k), (k, n), (m, n))]
            plans += planner.list_plans(PlanBuilder(*sides, np.dtype(float), Options(memory_limit=1), Machine()))
        return [(planner._bound_workspace(plan), plan.predicted.peak_workspace) for plan in plans if plan.schedule == "gather"]

    found, _ = pdla.dry_run(6, program)
    assert all(0 <= bound <= peak for bound, peak in found) and any(bound > peak / 3 for bound, peak in found)


def test_that_no_plan_keeps_a_limit_is_told_by_running_the_leanest_alone(monkeypatch):
    """Seven plans were run dry, and the ranks arranged anew for each of forty: of a million ranks that took nine seconds."""
    runs, grids, program, trusted = [], [], costs._make_program, ProcessGrid.trust
    monkeypatch.setattr(costs, "_make_program", lambda plan: runs.append(plan.full_name) or program(plan))
    monkeypatch.setattr(ProcessGrid, "trust", lambda *args: grids.append(args[0]) or trusted(*args))
    with pytest.raises(pdla.errors.PlanError, match=r"the leanest plan found, 3d by summa .* needs [0-9]+ bytes"):
        pdla.predict_matmul(10**4, 10**4, 10**4, 1000, memory_limit=10**4)
    assert runs == ["3d by summa"] * 10  # first, second and last along m and n, of one layer, and the rank in the middle
    assert len(grids) <= 5 * len(set(grids))  # with those of the dry runs


def test_of_the_leanest_plans_most_are_run_dry_on_one_rank_and_asked_once_whether_they_keep_step(monkeypatch):
    """Of 720720 ranks in layers all forty of Cannon's plans were run on eight ranks each, which took minutes."""
    runs, asked, program = [], [], costs._make_program
    monkeypatch.setattr(costs, "_make_program", lambda plan: runs.append(plan.grid.shape) or program(plan))
    cannon.is_in_step.cache_clear()
    monkeypatch.setattr(cannon, "shares", lambda n, *how: asked.append(n) or shares(n, *how))
    with pytest.raises(pdla.errors.PlanError, match=r"the leanest plan found, 2.5d by cannon .*m=28, n=28, k=1"):
        pdla.predict_matmul(2817, 4096, 10**6, 800, algorithm="2.5d", dtype="int8", memory_limit=100)
    assert len(runs) < 8 * len(set(runs))
    assert len(asked) <= 2 * sum(layers for _, _, layers in set(runs))


def test_memory_limit_is_kept_or_says_what_is_missing():
    def program(comm):
        grid = ProcessGrid((2, 3))
        A, B = exact((64, 64), grid, LAYOUT, seed=1), exact((64, 64), grid, LAYOUT, seed=2)
        expected, peaks = A.gather() @ B.gather(), []
        for limit in (60000, 3000):
            made = pdla.plan_matmul(A, B, memory_limit=limit)
            with pdla.record() as ledger:
                C = made(A, B)
            assert np.array_equal(C.gather(), expected)
            assert ledger.peak_workspace <= made.predicted.peak_workspace <= limit
            peaks.append(made.predicted.peak_workspace)
        with pytest.raises(pdla.errors.PlanError, match=r"memory_limit=10: [0-9]+ bytes too few; the leanest plan found"):
            pdla.plan_matmul(A, B, memory_limit=10)
        return peaks

    assert pdla.run(6, program)[0] == sorted(pdla.run(6, program)[0], reverse=True)


def test_each_plan_is_followed_by_panels_on_its_own_grid():
    def program(comm, options):
        side = Operand((64, 64), LAYOUT, ProcessGrid((2, 2), comm=comm))
        builder = PlanBuilder(side, side, None, np.dtype(float), options, Machine())
        return [(plan.full_name, plan.walk.dimension) for plan in planner.list_plans(builder)]

    own = pdla.dry_run(4, program, Options(memory_limit=1))[0]
    assert [name for name, _ in own[:2]] == ["gather", "summa"]
    box = pdla.dry_run(4, program, Options(box=(2, 1, 2), memory_limit=1))[0]
    assert box[0][0] == "3d by gather" and box[1:4] == [("3d by summa", walked) for walked in "knm"]


@pytest.mark.parametrize(
    ("asked", "schedule"),
    [({"algorithm": "gather"}, "gather"), ({"algorithm": "cannon"}, "cannon"), ({"schedule": "gather"}, "gather"),
     ({"algorithm": "3d", "schedule": "cannon"}, "cannon")],
    ids=str,
)
def test_a_limit_is_not_kept_by_another_schedule_than_is_asked_for(asked, schedule):
    def program(comm, limit):
        A = pdla.zeros((64, 64), ProcessGrid((2, 2), comm=comm), LAYOUT)
        return pdla.plan_matmul(A, A, **asked, memory_limit=limit)

    needed = pdla.dry_run(4, program, None)[0].predicted.peak_workspace
    assert pdla.dry_run(4, program, needed)[0].schedule == schedule
    with pytest.raises(pdla.errors.PlanError, match=f"the leanest plan found, (3d by )?{schedule} on"):
        pdla.dry_run(4, program, 1000)


@pytest.mark.parametrize(
    ("ranks", "n", "limit"), [(4, 1000, 200_000), (4, 4000, 10_000_000), (16, 3000, 500_000), (64, 10000, 10_000_000)]
)
def test_a_limit_is_kept_by_panels_no_thinner_than_need_be(ranks, n, limit):
    """Of 64 ranks most ways hold more than the limit in converted blocks alone: they are told apart without a dry run."""

    def program(comm):
        grid = ProcessGrid(pdla.balanced_shape(ranks), comm=comm)
        A = pdla.zeros((n, n), grid, LAYOUT)
        return pdla.plan_matmul(A, A, memory_limit=limit)

    made, _ = pdla.dry_run(ranks, program)
    assert limit / 2.5 < made.predicted.peak_workspace <= limit, made.explain()


def test_a_limit_may_ask_for_thinner_panels_than_a_long_walk_has():
    def program(comm, limit):
        grid = ProcessGrid((2, 2), comm=comm)
        A, B = pdla.zeros((2**22, 2**22), grid, LAYOUT), pdla.zeros((2**22, 2**22), grid, LAYOUT)
        return pdla.plan_matmul(A, B, algorithm="summa", layout=LAYOUT, memory_limit=limit)

    wide = pdla.dry_run(4, program, None)[0]
    thin = pdla.dry_run(4, program, wide.predicted.peak_workspace // 3)[0]
    assert (wide.panel, thin.panel) == (2048, 512)


def test_what_one_rank_cannot_hold_is_not_run_as_the_others(monkeypatch):
    """Of 64 ranks a hundred ways and widths were run as each, where one tells that they do not fit."""
    runs, program = [], costs._make_program
    monkeypatch.setattr(costs, "_make_program", lambda plan: runs.append(plan) or program(plan))

    def peak(comm):
        A = pdla.zeros((4096, 4096), ProcessGrid((8, 8), comm=comm), LAYOUT)
        return pdla.plan_matmul(A, A, memory_limit=10**7).predicted.peak_workspace

    assert 5 * 10**6 < pdla.dry_run(64, peak)[0] <= 10**7
    assert len(runs) < 5 * 64


def on_machine(mnk, ranks, name):
    """What plans a product of matrices in 2-D blocks on a described machine."""
    machine = Machine.load(name)
    grid = ProcessGrid(pdla.balanced_shape(ranks), comm=dry.make_communicator(ranks, machine))
    m, n, k = mnk
    A, B, C = (Operand(shape, LAYOUT, grid) for shape in ((m, k), (k, n), (m, n)))
    return PlanBuilder(A, B, C, np.dtype(float), Options(), machine)


@pytest.mark.parametrize(("mnk", "ranks", "name"), [((948, 816, 809), 17, "a100x4"), ((1274, 545, 1735), 20, "v100x4")])
def test_of_the_ways_of_least_price_the_fastest_on_the_machine_is_taken(mnk, ranks, name):
    builder = on_machine(mnk, ranks, name)
    seconds = []
    for way in builder.list_contenders(planner.COSTED):
        plan = builder.plan(way)
        ledgers = [dry.run_on_machine(plan.grid.comm, costs._make_program(plan), rank, plan.machine) for rank in range(ranks)]
        seconds.append(max(ledger.seconds for ledger in ledgers))
    taken = planner.make(builder)
    assert taken.machine_cost.seconds == min(seconds) < 0.9 * seconds[0]


def test_rows_of_a_grid_that_nodes_cut_are_timed_as_their_slowest_rank():
    """Of 5 x 7 ranks in nodes of 4 none at a corner or in the middle receives most from other nodes."""
    builder = on_machine((6175, 4145, 4466), 35, "v100x4")
    (plan,) = (builder.plan(way) for way in builder.list_contenders(12) if way.schedule == way.algorithm == "summa")
    clocks = [costs.clock(plan, rank).seconds for rank in range(35)]
    corners = [0, 6, 17, 28, 34]
    assert plan.machine_cost.seconds == max(clocks) > 1.5 * max(clocks[rank] for rank in corners)
