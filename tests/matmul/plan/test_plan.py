"""Plans: what they know, foretell, explain, keep and refuse."""


import ml_dtypes
import numpy as np
import pytest
from helpers.matmuls import LAYOUT, exact

import pdla
from pdla import Cuts, Cyclic, Layout, ProcessGrid
from pdla.comm.threads import ThreadComm


@pytest.mark.parametrize("algorithm", ["gather", "summa", "cannon"])
def test_what_a_local_product_needs_besides_is_foretold(algorithm):
    """Integers are multiplied apart from C where they are added to it, 16-bit floats in float32."""

    def program(comm, dtype, beta):
        grid = ProcessGrid((2, 2))
        A, B, C = (exact((40, 40), grid, LAYOUT, seed=seed).astype(dtype) for seed in (1, 2, 3))
        wanted = A.gather() @ B.gather() + beta * C.gather()
        plan = pdla.plan_matmul(A, B, out=C, beta=beta, algorithm=algorithm)
        with pdla.record() as ledger:
            plan(A, B, out=C, beta=beta)
        assert np.array_equal(C.gather(), wanted)
        assert plan.predicted.peak_workspace == ledger.total(comm)["max_peak_workspace"] <= plan.state.workspace.held
        return plan.predicted.peak_workspace

    floats, whole, halves = (pdla.run(4, program, dtype, 1)[0] for dtype in (float, "int64", "float16"))
    assert whole == floats + 8 * 20 * 20
    assert halves >= floats // 4 + 2 * 4 * 20 * 20


def test_a_plan_knows_the_sizes_of_its_product():
    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = pdla.ones((7, 5), grid, Layout("row", "col")), pdla.ones((7, 3), grid, Layout("row"))
        assert pdla.plan_matmul(A.T, B).mnk == pdla.plan_matmul(A.T, B, out=pdla.zeros((5, 3), grid, Layout())).mnk == (5, 3, 7)

    pdla.run(4, program)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("schedule", ["gather", "summa", "cannon", "shared"])
def test_sixteen_bits_are_rounded_once_wherever_c_lies(schedule, dtype):
    """70000 is infinite in float16, and rounded in bfloat16."""

    def program(comm):
        grid, other = ProcessGrid((2, 2)), ProcessGrid((4,))
        A = pdla.ones((4, 7), grid, LAYOUT, dtype=dtype) * 100
        B = pdla.ones((7, 8), grid, LAYOUT, dtype=dtype) * 100
        for C in (pdla.ones((4, 8), where, layout, dtype=dtype) for where, layout in ((grid, LAYOUT), (other, Layout("row")))):
            C *= 30000
            wanted = (70000 - 2 * C.gather().astype(float)).astype(C.dtype)
            plan = pdla.plan_matmul(A, B, out=C, beta=-2, algorithm="3d", box=(2, 1, 2), schedule=schedule)
            with pdla.record() as ledger:
                plan(A, B, out=C, beta=-2)
            assert np.array_equal(C.gather(), wanted), C
            assert ledger.total(comm)["max_peak_workspace"] <= plan.predicted.peak_workspace

    pdla.run(4, program)


@pytest.mark.parametrize(("dtype", "view"), [(complex, pdla.DistMatrix.conj), (np.float32, pdla.DistMatrix.conj)])
def test_conjugates_and_other_dtypes_are_copied_within_the_promise(dtype, view):
    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = view(exact((60, 60), grid, LAYOUT, dtype)), exact((60, 60), grid, LAYOUT, complex, 2)
        plan = pdla.plan_matmul(A, B, algorithm="summa", panel=2)
        with pdla.record() as ledger:
            C = plan(A, B)
        assert np.array_equal(C.gather(), A.gather() @ B.gather())
        assert plan.predicted.peak_workspace == ledger.total(comm)["max_peak_workspace"] > 16 * 60 * 60 / 4
        with pytest.raises(pdla.errors.PlanError, match="bytes too few"):
            pdla.plan_matmul(A, B, algorithm="summa", memory_limit=16 * 60 * 60 // 4)

    pdla.run(4, program)


@pytest.mark.parametrize("lying", [np.s_[::2, ::2], np.s_[::-1], np.s_[:, ::-1], np.s_[::2], np.s_[:1, ::2]], ids=str)
def test_blocks_that_no_blas_takes_are_copied_within_the_promise(lying):
    block = np.arange(40.0 * 40).reshape(40, 40)[lying]

    def program(comm):
        A = pdla.from_local(block, block.shape, ProcessGrid(1), Layout())
        plan = pdla.plan_matmul(A.T, A[:, :7])
        with pdla.record() as ledger:
            C = plan(A.T, A[:, :7])
        assert np.array_equal(C.local, block.T @ block[:, :7])
        copied = 0 if lying == np.s_[::2] else 8 * len(block) * (block.shape[1] + 7)
        assert ledger.peak_workspace <= plan.predicted.peak_workspace == copied

    pdla.run(1, program)


@pytest.mark.parametrize("algorithm", ["gather", "cannon", "3d"])
@pytest.mark.parametrize("part", [lambda A: A[3:17, :], lambda A: A.T[:, 3:17], lambda A: A[3:17, 0:20], lambda A: A.copy()[:, :]])
def test_whole_rows_have_no_gaps_to_be_packed(part, algorithm):
    def program(comm):
        A = part(exact((20, 20), ProcessGrid((2, 2)), LAYOUT))
        A, B = (A, A.T) if A.shape[0] <= A.shape[1] else (A.T, A)
        plan = pdla.plan_matmul(A, B, algorithm=algorithm, panel=10)
        with pdla.record() as ledger:
            plan(A, B)
        assert plan.predicted.peak_workspace == ledger.total(comm)["max_peak_workspace"]

    pdla.run(4, program)


@pytest.mark.parametrize("adds", [True, False])
def test_a_plan_foretells_sums_as_this_world_can_send_them(adds, monkeypatch):
    """On GPUs none goes from node to node."""
    monkeypatch.setattr(ThreadComm, "adds", adds)

    def program(comm):
        comm.homes = [r // 4 for r in range(8)]
        grid = ProcessGrid((8,))
        A, B = pdla.zeros((400, 2000), grid, Layout(cols="row")), pdla.zeros((2000, 400), grid, Layout("row"))
        plan = pdla.plan_matmul(A, B, algorithm="gather", layout=Layout("row"))
        with pdla.record() as ledger:
            plan(A, B)
        assert plan.predicted.messages == ledger.total(comm)["max_messages"]
        return any(event.way == "pipeline" for event in ledger.events)

    assert pdla.run(8, program) == 8 * [adds]


@pytest.mark.parametrize(("P", "words"), [(1, ["roles       one rank", "in 0 messages"]), (2, ["col carries n", "in 1 message, "])])
def test_a_plan_of_few_ranks_is_explained(P, words):
    def program(comm):
        grid = ProcessGrid((1, P))
        A, B = pdla.zeros((4, 6), grid, LAYOUT), pdla.zeros((6, 8), grid, LAYOUT)
        return pdla.plan_matmul(A, B, algorithm="gather").explain()

    (explained, *_) = pdla.run(P, program)
    assert all(word in explained for word in words), explained


def test_plan_predicts_explains_and_runs():
    def program(comm):
        grid = ProcessGrid((2, 3))
        A, B = exact((12, 18), grid, LAYOUT, seed=1), exact((18, 6), grid, LAYOUT, seed=2)
        C = pdla.zeros((12, 6), grid, LAYOUT)
        plan = pdla.plan_matmul(A, B, out=C, algorithm="summa", panel=2)
        with pdla.record() as ledger:
            plan(A, B, out=C)
        figures = ledger.total(comm)
        assert np.array_equal(C.gather(), A.gather() @ B.gather())
        assert plan.predicted.bytes_received == figures["max_bytes_received"]
        assert plan.predicted.peak_workspace == figures["max_peak_workspace"]
        assert "summa" in plan.explain() and str(plan.predicted.bytes_received) in plan.explain()
        assert repr(plan) == "Plan(C(12, 6) = A(12, 18) B(18, 6), float64, on ProcessGrid(row=2, col=3), summa)"
        with pytest.raises(pdla.errors.PlanError, match="this plan is for") as refused:
            plan(A, A.T[:17, :17])
        return str(refused.value)

    (told,) = set(pdla.run(6, program))
    grid, factor = "ProcessGrid(row=2, col=3)", "Layout(rows='row', cols='col') on ProcessGrid(row=2, col=3)"
    assert f"for 12 x 18, {factor}; 18 x 6, {factor}; out=12 x 6, {factor}, in float64, not for 12 x 18, float64, " in told, told
    assert told.endswith(f" on {grid}, by columns, with gaps; out=None")


def test_plan_predicts_the_messages_of_ranks_in_the_middle():
    def program(comm):
        grid = ProcessGrid((2, 5))
        A, B = pdla.zeros((100, 140), grid, LAYOUT), pdla.zeros((140, 80), grid, LAYOUT)
        plan = pdla.plan_matmul(A, B, algorithm="gather", layout=LAYOUT)
        with pdla.record() as ledger:
            plan(A, B)
        assert "col carries k" in str(plan.roles)  # B's halves come in fifths, and the third fifth is in both halves
        return ledger.messages, plan.predicted.messages

    counted, told = zip(*pdla.run(10, program), strict=True)
    assert {max(counted)} == set(told) == {13}


@pytest.mark.parametrize(
    ("algorithm", "shape", "mnk", "a", "b", "c"),
    [
        ("gather", (5,), (7, 3, 50), Layout(cols=Cuts("row", (0, 1, 2, 47, 48, 50))), Layout("row"), Layout()),  # one has most
        ("cannon", (7, 2), (55, 20, 13), LAYOUT, LAYOUT, Layout(cols=("col", "row"))),  # cuts that do not match
    ],
    ids=["gather", "cannon"],
)
def test_any_rank_may_be_the_one_that_pays_most(algorithm, shape, mnk, a, b, c):
    def program(comm):
        grid, (m, n, k) = ProcessGrid(shape), mnk
        A, B = exact((m, k), grid, a, seed=1), exact((k, n), grid, b, seed=2)
        plan = pdla.plan_matmul(A, B, algorithm=algorithm, layout=c)
        with pdla.record() as ledger:
            plan(A, B)
        cost, total = plan.predicted, ledger.total(comm)
        assert (cost.bytes_received, cost.messages) == (total["max_bytes_received"], total["max_messages"])
        assert total["max_peak_workspace"] <= cost.peak_workspace

    pdla.run(int(np.prod(shape)), program)


def test_buffers_are_kept_within_the_limit():
    """Those of A and B on their way are of other sizes than those of C."""

    def program(comm):
        grid, cyclic = ProcessGrid((2, 2)), Layout(Cyclic("row", 3), Cyclic("col", 3))
        A, B, C = (exact((48, 48), grid, cyclic, seed=seed) for seed in (1, 2, 3))
        options = {"out": C, "beta": 1, "algorithm": "3d", "box": (1, 2, 2)}
        before = C.gather()
        limit = pdla.plan_matmul(A, B, **options).predicted.peak_workspace
        plan = pdla.plan_matmul(A, B, memory_limit=limit, **options)
        most = limit + 64 * 20  # a buffer takes whole cache lines
        for _ in range(2):
            plan(A, B, beta=1, out=C)
            assert plan.state.workspace.held <= most
        pdla.matmul(A, B, memory_limit=limit, **options)
        assert comm._plans.workspace.held <= most
        assert np.array_equal(C.gather(), before + 3 * (A.gather() @ B.gather()))

    pdla.run(4, program)


def test_a_plan_runs_what_it_was_made_for_alone():
    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = exact((12, 12), grid, LAYOUT, seed=1), exact((12, 12), grid, LAYOUT, seed=2)
        made, C = pdla.plan_matmul(A, B), pdla.zeros((12, 12), grid, LAYOUT)
        made(A, B, out=C)
        for kind, text, call in (
            (pdla.errors.PlanError, "float64, not for .*complex128", lambda: made(A * 1j, B)),
            (pdla.errors.PlanError, "float64, not for .*float32", lambda: made(A.astype("float32"), B.astype("float32"))),
            (pdla.errors.ShapeError, "shares memory", lambda: made(A, B, out=A)),
            (pdla.errors.ShapeError, "out is .* float32", lambda: made(A, B, out=C.astype("float32"))),
            (pdla.errors.ShapeError, "alpha=1j is complex", lambda: made(A, B, alpha=1j)),
            (pdla.errors.ShapeError, "alpha='2' is a str", lambda: made(A, B, alpha="2")),
            (pdla.errors.ShapeError, "alpha=.* is a timedelta64", lambda: made(A, B, alpha=np.timedelta64(3))),
            (pdla.errors.ShapeError, "alpha=.* is a str_", lambda: pdla.matmul(A, B, alpha=np.str_("2"))),
            (pdla.errors.ShapeError, "without out", lambda: made(A, B, beta=2)),
            (pdla.errors.ShapeError, "B is an ndarray", lambda: made(A, np.ones((12, 12)))),
        ):
            with pytest.raises(kind, match=text):
                call()
        turned, elsewhere = exact((12, 12), grid, LAYOUT.T), exact((12, 12), ProcessGrid((4, 1)), LAYOUT)
        others = (turned, elsewhere, turned.T, A.shared(), A[:, :6])
        for factors in [(X, B) for X in others] + [(A, X) for X in others]:
            with pytest.raises(pdla.errors.PlanError, match="this plan is for"):
                made(*factors)
        for out in (turned, elsewhere):
            with pytest.raises(pdla.errors.PlanError, match="this plan is for"):
                made(A, B, out=out)
        assert np.array_equal(made(A.astype("float32"), B, out=C, beta=1).gather(), 2 * (A.gather() @ B.gather()))
        whole = A.astype(int)
        for alpha, beta in ((0.5, 0), (1, 0.5)):
            with pytest.raises(pdla.errors.ShapeError, match=r"=0\.5 is no integer, the matrices int64"):
                pdla.matmul(whole, whole, alpha=alpha, beta=beta, out=whole.copy())
        assert np.array_equal(pdla.matmul(whole, whole, alpha=2.0).gather(), 2 * (A.gather() @ A.gather()))
        short = pdla.ones((2, 2), grid, LAYOUT, dtype="int4")
        for alpha, text in ((0.5, "is no integer, the matrices int4"), (100, "matrices of int4 cannot be multiplied by it")):
            with pytest.raises(pdla.errors.ShapeError, match=text):
                pdla.matmul(short, short, alpha=alpha)
        assert (pdla.matmul(short, short, alpha=3).gather() == 6).all()

    pdla.run(4, program)


def test_a_plan_allocates_once():
    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = exact((40, 30), grid, Layout("row"), seed=1), exact((30, 20), grid, LAYOUT, seed=2)
        for options in ({"algorithm": "summa"}, {"algorithm": "gather"}, {"box": (2, 1, 2)}, {"algorithm": "cannon"}):
            made = pdla.plan_matmul(A, B, **options)
            C = made(A, B)
            held = made.state.workspace.held
            for _ in range(3):
                made(A, B, out=C)
                assert made.state.workspace.held == held > 0
            assert np.array_equal(C.gather(), A.gather() @ B.gather())
            made.free()
            assert made.state.workspace.held == 0
            assert np.array_equal(made(A, B).gather(), A.gather() @ B.gather())

    pdla.run(4, program)
