"""Operands in memory that ranks share: the same products, the same bytes as gather, turns of the shared buffer."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from helpers.matmuls import DTYPES, LAYOUT, exact, lacks, op
from helpers.problems import from_blocks

import pdla
from pdla import Cyclic, Layout, ProcessGrid, checks
from pdla.matmul import roles
from pdla.matmul.boxes import Box
from pdla.matmul.choose.candidates import apply_rule, list_native_tables, list_ways
from pdla.matmul.choose.problem import Sizes
from pdla.matmul.plan.run_state import LastCall
from pdla.matmul.schedules import shared, streams
from pdla.model.machine import Machine

SIZES = ((13, 4, 17), (0, 3, 2), (3, 2, 0), (1, 1, 1), (24, 12, 36))


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (6, 1), (1, 6), (2, 2), (2, 3, 2)], ids=str)
def test_bitwise(shape):
    def program(comm):
        grid, dtypes = ProcessGrid(shape), itertools.cycle(DTYPES)
        for hows, (m, n, k) in itertools.product(("NN", "NT", "TN", "CC", "CN", "NC"), SIZES):
            dtype = next(dtypes)
            A = op(exact((m, k) if hows[0] == "N" else (k, m), grid, LAYOUT, dtype, 1), hows[0])
            B = op(exact((k, n) if hows[1] == "N" else (n, k), grid, LAYOUT, dtype, 2), hows[1])
            C = pdla.zeros((m, n), grid, LAYOUT, dtype=dtype)
            plan = pdla.plan_matmul(A, B, out=C, schedule="shared")
            for _ in range(2):
                C.stored.fill(np.nan)
                plan(A, B, out=C)
                assert np.array_equal(C.gather(), A.gather() @ B.gather()), (hows, m, n, k)
            plan(A, B, out=C, alpha=2, beta=3)
            assert np.array_equal(C.gather(), 5 * (A.gather() @ B.gather()))

    pdla.run(12, program)


def test_other_layouts_boxes_and_sixteen_bits():
    def program(comm):
        grid = ProcessGrid((2, 3))
        layouts = (LAYOUT, Layout("col"), Layout(Cyclic("row", 2), Cyclic("col", 3)), Layout(cols=("col", "row")), Layout())
        for a, b in itertools.product(layouts, layouts):
            A, B = exact((12, 15), grid, a, seed=1), exact((15, 8), grid, b, seed=2)
            for options in ({}, {"box": (1, 2, 3)}):
                assert np.array_equal(pdla.matmul(A, B, schedule="shared", **options).gather(), A.gather() @ B.gather()), (a, b)
            for c, options in itertools.product((LAYOUT, layouts[2]), ({}, {"box": (1, 2, 3)})):
                C = pdla.zeros((12, 8), grid, c)
                plan = pdla.plan_matmul(A, B, out=C, schedule="shared", **options)
                for times in (2, -1):  # what is copied of A and B must be copied anew
                    for X in (A, B):
                        X.stored[...] *= times
                    assert np.array_equal(plan(A, B, out=C).gather(), A.gather() @ B.gather()), (a, b, c, options)
        A, B = (pdla.ones(shape, grid, LAYOUT, dtype=np.float16) for shape in ((3, 3000), (3000, 4)))
        assert (pdla.matmul(A, B, schedule="shared").gather() == 3000).all()

    pdla.run(6, program)


def test_bytes_are_those_of_gather_and_workspace_the_own_blocks():
    def program(comm):
        grid, figures = ProcessGrid((2, 3)), []
        A, B = pdla.zeros((60, 60), grid, LAYOUT), pdla.zeros((60, 60), grid, LAYOUT)
        for options in ({"algorithm": "gather"}, {"schedule": "shared"}):
            plan = pdla.plan_matmul(A, B, **options)
            with pdla.record() as ledger:
                plan(A, B)
            total, cost = ledger.total(comm), plan.predicted
            assert (cost.bytes_received, cost.messages) == (total["max_bytes_received"], total["max_messages"])
            assert cost.peak_workspace == total["max_peak_workspace"]
            figures.append((ledger.bytes_received, ledger.messages))
        assert plan.schedule == "shared" and ledger.peak_workspace == pytest.approx(2 * 8 * 60 * 60 / 6, rel=0.05)
        return figures

    assert all(gathered == shared for gathered, shared in pdla.run(6, program))


def lying(comm):
    """Operands of 10 x 9 and 9 x 8 on grids of six ranks and fewer: cut alike and not, copies, transposes, parts of matrices."""
    grids = ProcessGrid((2, 3)), ProcessGrid((5,), axes="p"), ProcessGrid((3, 2), order=(5, 1, 2, 0, 4, 3))
    cyclic, nested = Layout(Cyclic("row", 2), Cyclic("col", 1)), Layout(cols=("col", "row"))
    left = ((grids[0], LAYOUT), (grids[0], cyclic), (grids[1], Layout("p")), (grids[2], Layout("col")), (grids[0], Layout()))
    for i, (grid, a) in enumerate(left):
        A = exact((9, 10), grid, a, seed=1).T if i % 2 else exact((10, 9), grid, a, seed=1)
        yield A, exact((9, 8), grids[0], LAYOUT, seed=2)
        yield A, exact((12, 11), grids[1], Layout(cols="p"), seed=2)[2:11, 1:9]
        yield A, exact((9, 8), grids[2], nested if i % 2 else cyclic, seed=2)


def test_of_blocks_each_face_takes_positions_far_apart():
    """A and B lie in blocks, C cyclically: a face's rows are some of each block's."""

    def program(comm):
        grid, cyclic = ProcessGrid((2, 3)), Layout(Cyclic("row", 2), Cyclic("col", 2))
        A, B = exact((22, 17), grid, LAYOUT, seed=1), exact((17, 26), grid, LAYOUT, seed=2)
        plan = pdla.plan_matmul(A, B, layout=cyclic, schedule="shared", algorithm="auto")
        C = plan(A, B)
        assert C.layout == cyclic and np.array_equal(C.gather(), A.gather() @ B.gather())
        return plan.roles.C

    assert pdla.run(6, program)[0].rows == (Cyclic("row", 2),)


def test_from_any_layouts_on_any_grids_what_a_rank_lacks_is_read_in_place():
    def program(comm):
        for A, B in lying(comm):
            for box in ((3, 2, 1), (1, 1, 6), (2, 1, 2)):
                plan = pdla.plan_matmul(A, B, layout="native", box=box, algorithm="3d", schedule="shared")
                with pdla.record() as ledger:
                    C = plan(A, B)
                assert np.array_equal(C.gather(), A.gather() @ B.gather()), (A, B, box)
                wanted = lacks(A, plan.roles.A, plan.grid) + lacks(B, plan.roles.B, plan.grid)
                assert ledger.by_verb().get("read", 0) == 8 * wanted, (A, B, box)
                assert set(ledger.by_verb()) <= {"read", "reduce_scatter"}
                total, cost = ledger.total(comm), plan.predicted
                assert (cost.bytes_received, cost.messages) == (total["max_bytes_received"], total["max_messages"])
                assert cost.peak_workspace == total["max_peak_workspace"], (A, B, box)

    pdla.run(6, program)


def test_factors_that_lie_right_on_another_grid_are_not_written_to_the_board():
    def program(comm):
        grid = ProcessGrid((4, 1))
        A, B = pdla.ones((64, 64), grid, Layout("row")), pdla.ones((64, 64), grid, Layout())
        plan = pdla.plan_matmul(A, B, algorithm="3d", box=(4, 1, 1), layout="native", schedule="shared")
        for _ in range(2):
            with pdla.record() as ledger:
                assert (plan(A, B).gather() == 64).all()
            assert ledger.peak_workspace == plan.predicted.peak_workspace == 0

    pdla.run(4, program)


def test_a_part_of_a_factor_is_copied_once_a_call(monkeypatch):
    taken, part = [], streams._take_part
    monkeypatch.setattr(streams, "_take_part", lambda X, layout: (taken.append(X), part(X, layout))[1])

    def program(comm):
        grid = ProcessGrid((2, 1))
        B, C = pdla.ones((20, 3), grid, Layout()), pdla.zeros((20, 3), grid, Layout(Cyclic("row", 3)))
        for step in range(1, 4):
            A = pdla.ones((20, 20), grid, Layout())
            pdla.matmul(A, B, out=C, schedule="shared")
            comm.barrier()
            assert len(taken) == 2 * step
            comm.barrier()

    pdla.run(2, program)


def test_what_the_last_call_filled_may_go_amid_the_next(monkeypatch):
    """As when garbage is collected there."""

    def program(comm):
        grid = ProcessGrid((1, 1))
        A, filled, saw = pdla.ones((4, 4), grid, Layout()), [pdla.zeros((4, 4), grid, Layout())], LastCall.matches
        plan = pdla.plan_matmul(A, A, schedule="shared")
        plan(A, A, out=filled[0])
        monkeypatch.setattr(LastCall, "matches", lambda self, *factors: (saw(self, *factors), filled.clear())[0])
        assert (plan.run(A, A, None, 1, 0, plan.state.workspace).local == 4).all()
        assert (plan(A, A).local == 4).all()

    pdla.run(1, program)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize(
    "place", [(checks, "scalars"), (shared, "Turn"), (shared, "multiply")], ids=["a plan's call", "a product", "a turn"]
)
def test_a_rank_that_failed_before_a_product_or_in_it_remembers_it(place, error, monkeypatch):
    """Else its next product would take the blocks that the others wrote for this one."""

    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid((1, 1)), Layout())
        plan = pdla.plan_matmul(A, A, schedule="shared")

        def fail(*_):
            raise error

        with monkeypatch.context() as failing, pytest.raises(error):
            failing.setattr(*place, fail)
            plan(A, A) if place[1] == "scalars" else plan.run(A, A, None, 1, 0, plan.state.workspace)
        assert comm.failed is not None

    pdla.run(1, program)


def test_auto_shares_where_the_world_says_that_it_pays(monkeypatch):
    def program(comm):
        grid = ProcessGrid((2, 2))
        A = pdla.zeros((40, 40), grid, LAYOUT)
        comm.shared_limit = 2 * 8 * 40 * 40
        first = pdla.plan_matmul(A, A).schedule
        comm.shared_limit -= 1
        return first, pdla.plan_matmul(A, A, panel=3).schedule

    assert pdla.run(4, program)[0] == ("shared", "gather")


@pytest.mark.parametrize("homes", [[], [0, 0, 1, 1]], ids=["told not to", "two nodes"])
def test_not_even_nothing_is_shared_where_ranks_share_no_memory(homes):
    """Matrices without elements fit into no memory at all."""

    def program(comm):
        comm.homes = homes
        grid = pdla.ProcessGrid((2, 2), comm=comm)
        A, B = pdla.ones((24, 0), grid, Layout("row", "col")), pdla.ones((0, 2), grid, Layout("row", "col"))
        return {pdla.plan_matmul(A, B, algorithm=name).schedule for name in ("auto", "3d", "2.5d", "a-stationary", "c-stationary")}

    assert all("shared" not in schedules for schedules in pdla.run(4, program))


@pytest.mark.parametrize(
    ("ranks", "boxes"), [(4, ((4, 1, 1), (2, 2, 1))), (16, ((4, 4, 1), (4, 2, 2))), (64, ((8, 8, 1), (4, 4, 4)))]
)
def test_what_is_read_in_place_is_worth_more_words_than_sums(ranks, boxes):
    """Of a cube by messages the fewest words are best; shared, a grid of m and n, which needs no sums, and on few ranks of one of
    them, which copies one operand only."""
    q = Sizes((2048, 2048, 2048), ranks, 8, Machine(), 2**30, ())
    assert tuple(list_native_tables(each, "auto")[0][0].shape for each in (q, replace(q, shared=0))) == boxes
    assert list_native_tables(replace(q, mnk=(512, 512, 131072)), "auto")[0][0].box_option == (1, 1, ranks)


def test_what_is_read_in_place_takes_no_messages():
    """2 x 4 x 2 would save one message of six of a gather, and is the one that sends any."""
    assert list_native_tables(Sizes((64, 64, 64), 16, 8, Machine(), 2**30, ()), "auto")[0][0].shape == (4, 4, 1)


def test_sums_take_as_many_messages_whether_or_not_faces_are_read_in_place():
    q, box = Sizes((64, 64, 64), 12, 8, Machine(), 2**30, ()), Box(2, 2, 3)
    assert q.price("shared", box, 100.0) == q.price("gather", box, 100.0, -2)  # of A's faces one comes, and of B's


def test_what_is_read_in_place_is_priced_as_what_is_sent_is():
    """Beside what others read, 5 x 3 x 1 by messages would leave a rank idle: 1.81 s on two cores, read in place 1.64."""
    table, _ = list_native_tables(Sizes((4096, 4096, 4096), 16, 8, Machine(), 2**33, ()), "auto")[0]
    assert (table.shape, table.schedule) == ((4, 4, 1), "shared")


def test_a_limit_below_the_own_blocks_is_kept_by_panels_of_what_lies_as_the_box_has_it():
    def program(comm):
        comm.shared_limit = 2**30
        grid, a, b, c = pdla.native_layouts(96, 96, 96)
        A, B = exact((96, 96), grid, a, seed=1), exact((96, 96), grid, b, seed=2)
        C = pdla.zeros((96, 96), grid, c)
        assert pdla.plan_matmul(A, B, out=C).schedule == "shared"
        plan = pdla.plan_matmul(A, B, out=C, memory_limit=8 * 96 * 96 // 8)
        assert plan.schedule == "summa" and plan.predicted.peak_workspace <= 8 * 96 * 96 // 8
        plan(A, B, out=C)
        assert np.array_equal(C.gather(), A.gather() @ B.gather())

    pdla.run(4, program)


def test_two_conversions_cost_more_than_to_read_in_place():
    def program(comm):
        comm.shared_limit, grid = 2**30, ProcessGrid((2, 2))
        A, B = pdla.zeros((6400, 24), grid, LAYOUT), pdla.zeros((24, 24), grid, LAYOUT)
        plan = pdla.plan_matmul(A, B, layout=LAYOUT)
        return plan.full_name, plan.moved

    assert set(pdla.run(4, program)) == {("shared", 0.0)}


@pytest.mark.parametrize(("shared", "k", "schedule"), [(0, 2048, "gather"), (2**33, 6144, "shared")])
def test_16_mib_gathered_and_48_mib_in_shared_memory_are_the_most_for_a_rank(shared, k, schedule):
    for m, taken in ((2048, schedule), (2049, "summa")):
        assert apply_rule(replace(from_blocks(4, m, 2048, k), shared=shared), "auto")[0].schedule == taken


def test_what_every_rank_has_already_is_not_put_into_shared_memory():
    q = from_blocks(4, 6, 5, 7)
    q = replace(q, A=replace(q.A, layout=Layout("row")), B=replace(q.B, layout=Layout(cols="col")))
    assert apply_rule(q, "auto")[0].schedule == "gather"
    blocks = from_blocks(4, 6, 5, 7)
    seen = replace(blocks, A=replace(blocks.A, shared=True), B=replace(blocks.B, shared=True))
    assert apply_rule(seen, "auto")[0].schedule == "shared"  # what all ranks see is read where it lies, though nothing is put there


def test_c_is_summed_along_two_axes_where_no_node_has_several_ranks_of_many_and_it_is_not_brought_elsewhere():
    q = from_blocks(4, 6, 5, 7)
    homes = (), (0,) * 4, (0, 1, 2, 3), (0, 0, 2, 2)
    assert [replace(q, C=None, nodes=nodes).two_sums for nodes in homes] == [True] * 3 + [False]
    on_four_axes = replace(q.C, place=replace(q.C.place, axes=tuple("mnkl"), shape=(1, 2, 2, 1)))
    assert not q.two_sums and replace(q, C=on_four_axes).two_sums


@pytest.mark.parametrize(("ranks", "mnk", "split"), [(107, (32, 32, 560233), (2, 53)), (100, (1000, 1000, 10**6), (10, 10))])
def test_c_is_planned_to_be_summed_once_where_nodes_have_several_ranks(ranks, mnk, split):
    """One sum goes from node to node; and 106 of 107 ranks, a prime, would be taken for two sums alone."""
    q = Sizes(mnk, ranks, 8, Machine(), 0, ())
    assert list_native_tables(q, "auto")[0][0].shape == (1, 1, *split)
    shapes = {table.shape for table, _ in list_native_tables(replace(q, nodes=tuple(r // 2 for r in range(ranks))), "auto")}
    assert (1, 1, ranks) in shapes and (1, 1, 106) not in shapes and {len(shape) for shape in shapes} == {3}


def test_a_product_is_on_one_grid_where_c_is_there_too():
    q = from_blocks(4, 6, 5, 7)
    there = replace(q.A.place, order_digest=b"another order")
    assert q.has_one_grid and replace(q, C=None).has_one_grid
    assert not any(replace(q, **{name: replace(getattr(q, name), place=there)}).has_one_grid for name in "ABC")


def test_of_words_that_come_from_anywhere_those_from_other_nodes_count_more():
    q = replace(from_blocks(4, 6, 5, 7), machine=Machine(bandwidth=4.0, network=1.0))
    assert q.weigh_anywhere(8.0) == 8 and replace(q, nodes=(0, 0, 2, 2)).weigh_anywhere(8.0) == 4 + 4 * 4


def test_two_operands_are_read_in_place_rather_than_one_sent():
    """C stays where it is: 139 ms on two cores, and 175 where A and C are sent, though that is half the bytes."""
    q = from_blocks(16, 65536, 256, 256)
    way = list_ways(q, "auto", None, None)[0]
    assert (way.table, way.schedule, way.roles.carries) == (None, "shared", (("row", "m"), ("col", "n")))
    assert list_ways(replace(q, shared=0), "auto", None, None)[0].roles.carries == (("row", "m"), ("col", "m"))
    # With a schedule given there is no choice of the two.
    named = apply_rule(q, "gather"), apply_rule(q, "auto", "gather"), apply_rule(q, "auto", "shared")
    assert [[way.roles.carries for way in found] for found in named] == [[(("row", "m"), ("col", col))] for col in "mmn"]


@pytest.mark.parametrize(
    ("box", "shared", "tried"),
    [
        ((2, 3, 2), 0, {("gather", False), ("gather", True)}),
        ((2, 3, 2), 2**33, {("shared", True)}),
        ((1, 1, 12), 2**33, {("gather", False), ("gather", True), ("shared", True)}),  # nothing is gathered there
    ],
)
def test_faces_come_in_shares_or_straight_or_are_read_in_place(box, shared, tried):
    q = replace(from_blocks(12, 12, 18, 24), shared=shared)
    assert {(way.schedule, way.table == way.table.with_whole_faces) for way in list_ways(q, "3d", box, None)} == tried
    assert {way.schedule for way in list_ways(q, "3d", box, "gather")} == {"gather"}
    assert {way.schedule for way in list_ways(q, "2.5d", box, None)} == {"summa", "cannon"}


def test_the_words_of_the_roles_are_those_into_the_layout_that_is_asked_for():
    q = from_blocks(4, 6, 5, 80)
    q = replace(q, A=replace(q.A, layout=Layout(cols=("row", "col"))), B=replace(q.B, layout=Layout(("row", "col"))))
    for C, words in ((None, 15 + 7.5), (replace(q.C, layout=Layout()), 2 * (15 + 15))):  # halves of 30
        assert apply_rule(replace(q, C=C), "gather")[0].words == words


def test_a_word_that_is_sent_costs_as_much_where_ranks_could_share_memory():
    q = from_blocks(4, 6, 5, 7)
    assert len({apply_rule(each, "gather")[0].price for each in (q, replace(q, shared=0))}) == 1


def test_of_what_lies_where_it_is_read_no_copy_counts():
    """C is summed, 150 words as they are counted. If A and B were read instead, 75, first 400 would be copied."""
    chosen, _ = roles.choose(Layout(cols="row"), Layout("row"), Layout("row"), 10, 10, 40, (("row", 2),), (False, False))
    assert chosen.carries == (("row", "k"),)


@pytest.mark.parametrize("shared", [0, 2**33])
def test_what_is_redistributed_takes_no_panels(shared):
    """A and B are cut along k by messages of another round: panels would only be smaller products."""
    q = replace(from_blocks(16, 512, 512, 131072), shared=shared)
    assert apply_rule(q, "auto")[0].schedule == ("shared" if shared else "gather")
    assert apply_rule(replace(q, mnk=(8192, 8192, 131072)), "auto")[0].schedule == "summa"  # sums of 32 MiB a rank


def test_memory_that_is_shared_is_a_ranks_own():
    """Each rank of 16 reads 150 MB of others' in 33 MB a rank; of 4 by 2 x 2 it would be 67."""
    table, _ = list_native_tables(Sizes((8192, 8192, 8192), 16, 4, Machine(), 2**33, ()), "auto")[0]
    assert (table.shape, table.schedule) == ((4, 4, 1), "shared")
    assert apply_rule(from_blocks(4, 4096, 4096, 4096), "auto")[0].schedule == "summa"


def test_a_dry_run_of_several_nodes_shares_nothing_as_a_job_there_does_not():
    def program(comm):
        A = pdla.zeros((64, 64), ProcessGrid((2, 4)), LAYOUT)
        with pytest.raises(pdla.errors.PlanError, match="several nodes"):
            pdla.plan_matmul(A, A, schedule="shared")

    pdla.dry_run(8, program, machine="a100x4")
    pdla.dry_run_all(8, program, machine="a100x4")
