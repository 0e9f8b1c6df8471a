"""Algorithms with grids of their own, and the choice among them, against NumPy bit by bit; words by formula; the lower bound."""

import importlib.util
import itertools
import json
import subprocess
import sys
from copy import copy
from dataclasses import fields
from math import prod
from pathlib import Path

import numpy as np
import pytest
from matmuls import DTYPES, LAYOUT, check_product, exact, forget_ways, lacks
from unit.test_harness import LONGEST

import pdla
from pdla import Balanced, Cyclic, Layout, ProcessGrid
from pdla.comm.collectives import circulant
from pdla.layout import shares
from pdla.matmul import boxes, planner
from pdla.matmul.algorithms import NAMED as BY_NAME
from pdla.matmul.algorithms.table import BOXED, Table, boxed
from pdla.matmul.boxes import Box
from pdla.matmul.builder import PlanBuilder
from pdla.matmul.choose import candidates, price
from pdla.matmul.choose.mapping import Place
from pdla.matmul.choose.problem import Operand, PlacedOperand, Problem, Sizes
from pdla.matmul.options import Options
from pdla.matmul.plan import Plan
from pdla.matmul.schedules import cannon
from pdla.matmul.schedules.walk import choose
from pdla.model.bounds import accessed_lower_bound, received_lower_bound
from pdla.model.machine import Machine

NAMED = ("3d", "2.5d", "tesseract", "a-stationary", "b-stationary", "c-stationary")
DEALT = Layout(Cyclic("row", 2), Cyclic("col", 3))
SIZES = ((0, 3, 2), (3, 2, 0), (1, 1, 1), (13, 4, 17), (2, 3, 5), (24, 12, 36))


@pytest.mark.parametrize("algorithm", [*NAMED, "auto"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16])
def test_bitwise_for_sizes_and_transposes(ranks, algorithm):
    def program(comm):
        turns = itertools.cycle(DTYPES)
        grid = ProcessGrid(pdla.balanced_shape(ranks))
        for mnk, hows in zip(itertools.cycle(SIZES), ("NN", "TN", "NC", "CT") * (3 if ranks < 9 else 1), strict=False):
            check_product(grid, mnk, next(turns), algorithm, *hows)

    pdla.run(ranks, program)


BOXES = [("3d", (2, 3, 2), s) for s in ("gather", "summa", "cannon")] + [("2.5d", (2, 2, 3), s) for s in ("summa", "cannon")]
BOXES += [("tesseract", (2, 3, 2), None), ("tesseract", (1, 3, 4), None), ("a-stationary", (3, 1, 4), None)]
BOXES += [("b-stationary", (1, 3, 4), None), ("c-stationary", (4, 3, 1), None), ("3d", (1, 1, 11), "gather")]
BOXES += [("3d", (1, 11, 1), "summa")]


@pytest.mark.parametrize(("algorithm", "box", "schedule"), BOXES)
def test_boxes_from_and_to_any_layout(algorithm, box, schedule):
    """A fixed box, A, B and C in layouts that are not its own, C kept where beta asks, ranks left idle."""
    layouts = [LAYOUT, Layout("col"), Layout(Cyclic("row", 2), Cyclic("col", 3)), Layout(), Layout(Balanced(("row", "col"), 3))]

    def program(comm):
        grid, draw = ProcessGrid((3, 4)), np.random.default_rng(3)
        for _ in range(6):
            a, b, c = (layouts[i] for i in draw.integers(0, len(layouts), 3))
            A, B = exact((17, 11), grid, a, seed=1), exact((11, 14), grid, b, seed=2)
            expected = A.gather() @ B.gather()
            options = {"algorithm": algorithm, "box": box, "schedule": schedule, "panel": 2}
            C = pdla.matmul(A, B, layout=c, **options)
            assert np.array_equal(C.gather(), expected) and C.check_copies() and C.layout == c, (a, b, c)
            pdla.matmul(A, B, out=C, alpha=-2, beta=3, **options)
            assert np.array_equal(C.gather(), expected) and C.check_copies(), (a, b, c, "beta")

    pdla.run(12, program)


def test_matrices_on_different_grids():
    def program(comm):
        one, two, three = ProcessGrid((2, 3)), ProcessGrid((5,)), ProcessGrid((2, 2), order=(3, 1, 0, 2))
        A, B = exact((9, 7), one, LAYOUT, seed=1), exact((7, 8), two, Layout("row"), seed=2)
        C = pdla.zeros((9, 8), three, LAYOUT)
        expected = A.gather() @ B.gather()
        pdla.matmul(A, B, out=C)
        assert np.array_equal(C.gather(), expected) and np.array_equal((A @ B).gather(), expected)

    pdla.run(6, program)


def test_to_a_grid_with_the_same_names_and_layouts_but_other_ranks():
    def program(comm):
        grid = ProcessGrid((2, 2, 2), order=(7, 2, 5, 0, 3, 6, 1, 4))
        layout = Layout(("depth", "row"), "col")
        A, B, C = (exact((12, 12), grid, layout, seed=seed) for seed in range(3))
        expected = A.gather() @ B.gather()
        for _ in range(2):
            pdla.matmul(A, B, algorithm="tesseract", box=(1, 2, 4), out=C)
            assert np.array_equal(C.gather(), expected)

    pdla.run(8, program)


ELSEWHERE = {
    "other ranks": {"shape": (2, 2, 2), "axes": ("m", "n", "k"), "order": (7, 2, 5, 0, 3, 6, 1, 4)},
    "another shape": {"shape": (4, 2, 1), "axes": ("m", "n", "k"), "order": (0, 4, 1, 5, 2, 6, 3, 7)},
    "axes named otherwise": {"shape": (2, 2, 2), "axes": ("n", "k", "m")},
}


@pytest.mark.parametrize("elsewhere", ELSEWHERE)
@pytest.mark.parametrize("moved", "ABC")
def test_a_boxs_own_layout_on_another_grid_is_not_its_own(moved, elsewhere):
    table = next(iter(BY_NAME["3d"].tables((2, 2, 2))))

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
    monkeypatch.setattr(candidates, "direct", lambda *asked: [])
    tables = candidates._tables
    monkeypatch.setattr(candidates, "_tables", lambda *asked: candidates._straight(list(tables(*asked))))
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


# ---------------------------------------------------------------------------------------------- words


FORMULA = [(*each, (24, 36, 48)) for each in (
    ("3d", (2, 3, 2)), ("3d", (1, 3, 4)), ("2.5d", (2, 2, 3)), ("tesseract", (2, 2, 3)), ("a-stationary", (3, 1, 4)),
    ("b-stationary", (1, 4, 3)), ("c-stationary", (4, 3, 1)),
)]
TURNED = [("3d", (1, 4, 1), (100, 8, 3)), ("3d", (4, 1, 1), (8, 100, 3)), ("3d", (1, 1, 10), (3, 100, 40))]  # A, B and C


@pytest.mark.parametrize(("algorithm", "box", "mnk"), FORMULA + TURNED)
def test_words_recorded_copied_dry_and_by_formula(algorithm, box, mnk):
    """From the algorithm's own layouts: nothing is converted, and every rank receives what the formula says."""
    m, n, k = mnk
    table = next(iter(BY_NAME[algorithm].tables(box))).evened(m, n, k)

    def program(comm):
        grid = ProcessGrid(table.shape, table.axes)
        A, B = pdla.zeros((m, k), grid, table.A), pdla.zeros((k, n), grid, table.B)
        C = pdla.zeros((m, n), grid, table.C)
        world = getattr(comm, "world", None)
        before = world and world.bytes_copied[comm.rank]
        with pdla.record() as ledger:
            pdla.matmul(A, B, algorithm=algorithm, box=box, out=C)
        return ledger.bytes_received, ledger.messages, world and world.bytes_copied[comm.rank] - before

    real = pdla.run(12, program)
    assert all(recorded == copied for recorded, _, copied in real)
    assert [pdla.dry_run(12, program, rank=rank)[0][:2] for rank in range(12)] == [figures[:2] for figures in real]
    assert max(recorded for recorded, _, _ in real) == 8 * pdla.matmul_words(algorithm, m, n, k, box)


def test_faces_are_cut_evenly_along_the_dimension_that_can_be():
    """100 x 3 into four, 3 x 100 into four and into ten: along the 3 some ranks would receive all, or four times as much."""
    assert [pdla.matmul_words(algorithm, *mnk, box) for algorithm, box, mnk in TURNED] == [300 * 3 / 4, 300 * 3 / 4, 30 * 9]


A_CUT, B_CUT, C_CUT = Layout("m", ("k", "n")), Layout(("k", "m"), "n"), Layout(("m", "k"), "n")  # of a box of which k is walked
A_TURNED, B_TURNED, C_TURNED = Layout(("m", "n"), "k"), Layout("k", ("n", "m")), Layout("m", ("n", "k"))
IN_TWO = Layout("m", ("k", "l", "n")), Layout(("k", "l", "m"), "n"), Layout(("m", "k"), ("n", "l"))


@pytest.mark.parametrize(
    ("box", "mnk", "schedule", "in_two", "shape", "layouts"),
    [
        ((2, 3, 2), (24, 36, 48), "gather", True, (2, 3, 2), (A_CUT, B_CUT, C_CUT)),
        ((1, 4, 1), (100, 8, 3), "gather", True, (1, 4, 1), (A_TURNED, B_CUT, C_CUT)),
        ((4, 1, 1), (8, 100, 3), "gather", True, (4, 1, 1), (A_CUT, B_TURNED, C_CUT)),
        ((1, 4, 1), (100, 8, 3), "summa", True, (1, 4, 1), (A_CUT, B_CUT, C_CUT)),  # panels of A are walked
        ((1, 1, 10), (3, 100, 40), "summa", True, (1, 1, 10), (A_CUT, B_CUT, C_TURNED)),
        ((2, 3, 32), (10, 150, 320), "gather", True, (2, 3, 8, 4), IN_TWO),
        ((2, 3, 32), (10, 150, 320), "gather", False, (2, 3, 32), (A_CUT, B_CUT, C_TURNED)),
        ((2, 3, 32), (10, 150, 320), "cannon", True, (2, 3, 32), (A_CUT, B_CUT, C_TURNED)),
        ((2, 3, 30), (10, 150, 300), "gather", True, (2, 3, 30), (A_CUT, B_CUT, C_TURNED)),  # few sum C
        ((2, 3, 96), (6, 150, 960), "gather", True, (2, 3, 96), (A_TURNED, B_CUT, C_TURNED)),  # in two sums 433 words, not 430
    ],
    ids=str,
)
def test_how_faces_are_cut(box, mnk, schedule, in_two, shape, layouts):
    table = boxed("3d", box, schedule).evened(*mnk, in_two)
    assert (table.shape, table.layouts) == (shape, layouts)


@pytest.mark.parametrize(("walked", "moves"), [("k", (True, True, False)), ("n", (False, True, True)), ("m", (True, False, True))])
def test_along_the_walked_dimension_both_matrices_that_have_it_come_in_panels(walked, moves):
    box, mnk = {"m": 2, "n": 2, "k": 32, walked: 1}, (10, 150, 320)
    table = boxed("3d", tuple(box.values()), "summa", walked)
    assert table.evened(*mnk) == table
    walk = choose(*table.layouts, table.roles, table.sizes, mnk, walked)
    assert tuple(map(bool, walk.axes)) == moves


def test_predicted_is_measured_with_conversions():
    def program(comm, ranks, mnk):
        grid = ProcessGrid(pdla.balanced_shape(ranks))
        m, n, k = mnk
        A, B = exact((m, k), grid, LAYOUT, seed=1), exact((k, n), grid, LAYOUT, seed=2)
        C = pdla.zeros((m, n), grid, LAYOUT)
        for algorithm in ("3d", "2.5d", "auto"):
            planned = pdla.plan_matmul(A, B, out=C, algorithm=algorithm)
            with pdla.record() as ledger:
                planned(A, B, out=C)
            total, cost = ledger.total(comm), planned.predicted
            assert cost.bytes_received == total["max_bytes_received"], planned.explain()
            assert cost.messages == total["max_messages"], planned.explain()
            # Over MPI what has gaps is packed to be sent, in threads it is not.
            assert total["max_peak_workspace"] <= cost.peak_workspace, planned.explain()
        return planned.explain()

    for ranks, mnk in ((5, (30, 20, 40)), (8, (7, 90, 11)), (12, (16, 16, 400))):
        explained = pdla.run(ranks, program, ranks, mnk)[0]
        assert "bound" in explained and "next" in explained and "time" in explained


def test_boxes_stay_near_the_lower_bound_for_every_rank_count():
    """The figures that the documentation quotes, on fewer rank counts."""
    for mnk in ((32768,) * 3, (100000, 100000, 5000), (6000, 6000, 1200000), (10007, 20011, 4999)):
        found = {ranks: boxes.cheapest(*mnk, ranks, Machine())[0] for ranks in range(32, 1025, 7)}
        over = [boxes.words(*mnk, box) / received_lower_bound(*mnk, ranks) for ranks, box in found.items()]
        assert np.percentile(over, 95) <= 1.12 and max(over) <= 1.25, mnk
        assert min(box.ranks / ranks for ranks, box in found.items()) >= 0.89, mnk


def test_the_study_of_volumes_plans_conversions_too(tmp_path):
    script, told = Path(__file__).parents[2] / "bench/volume.py", tmp_path / "told.json"
    subprocess.run([sys.executable, script, "--to", "38", "--convert", "9", "--json", told], check=True, stdout=subprocess.DEVNULL)
    for shape in json.loads(told.read_text()):
        assert list(shape["converted"]) == ["2", "11", "20", "29", "38"]
        assert all(words >= moved >= 0 and words > 0.99 for words, moved in shape["converted"].values())


def test_the_study_of_many_ranks_compares_the_box_that_is_taken_with_the_one_of_fewest_words():
    spec = importlib.util.spec_from_file_location("volume", Path(__file__).parents[2] / "bench/volume.py")
    volume = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(volume)
    assert volume.fewest_words((64, 64, 64), 64) == (4, 4, 4)
    box, over, messages, seconds = volume.far_out((512, 512, 64), 4096)
    assert box.ranks < 4096 and over > 1.15 and messages < 13 and max(seconds) < 0.9


def test_a_study_of_few_ranks_has_no_heading_for_many_and_tells_each_ratio():
    """docs/choosing.md had a column that the command did not print: from and to 2-D blocks, over the least of any box."""
    script = Path(__file__).parents[2] / "bench/volume.py"
    words = ["--to", "9", "--convert", "7", "--least", "7"]
    done = subprocess.run([sys.executable, script, *words], check=True, capture_output=True, text=True)
    assert "P < 32" in done.stdout and "P >= 32" not in done.stdout
    ratios = [float(line.split()[-1]) for line in done.stdout.splitlines() if "2-D blocks over that" in line]
    assert len(ratios) == 4 and all(ratio > 0.99 for ratio in ratios)


@pytest.mark.parametrize("words", [("--every", "0"), ("--to", "0"), ("--convert", "-1")])
def test_the_study_of_volumes_refuses_what_it_cannot_count(words):
    script = Path(__file__).parents[2] / "bench/volume.py"
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True)
    assert done.returncode == 2 and f"argument {words[0]}: '{words[1]}' is not a whole number" in done.stderr


@pytest.mark.parametrize("words", [("--plot", "none/x.svg"), ("--plot", "x.bmp"), ("--json", "none/x.json"), ("--json", ".")])
def test_the_study_of_volumes_refuses_a_file_that_it_could_not_write(tmp_path, words):
    """It said so after minutes, by a traceback, and all that it had counted was lost."""
    script = Path(__file__).parents[2] / "bench/volume.py"
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, cwd=tmp_path, timeout=LONGEST)
    assert done.returncode == 2 and done.stdout == "" and f"argument {words[0]}: {words[1]}: " in done.stderr


def test_search_is_exhaustive():
    """Against a loop over every box, for a few sizes."""
    machine = Machine()
    for mnk, ranks in itertools.product(((64, 32, 5), (1, 9, 100), (7, 7, 7)), (1, 2, 7, 12, 37, 150)):
        bound = received_lower_bound(*mnk, ranks)

        def price(box, mnk=mnk, ranks=ranks, bound=bound):
            begun, (m, n, k) = sum(boxes.messages(*mnk, box)), mnk
            over, words = boxes.excess(*mnk, box, ranks), boxes.words(*mnk, box)
            faces = (m * k * box.n + k * n * box.m + m * n * box.k) / box.ranks
            far = ranks >= circulant.MANY and faces > boxes.NEAR * accessed_lower_bound(*mnk, box.ranks)
            found = boxes.price(ranks, over, words, begun, box.k > 1, bound, prod(mnk) / ranks, machine)
            return found * (boxes.LOPSIDED if far else 1)

        pairs = [(pm, pn) for pm in range(1, min(ranks, mnk[0]) + 1) for pn in range(1, min(ranks // pm, mnk[1]) + 1)]
        most = [Box(pm, pn, min(ranks // (pm * pn), mnk[2])) for pm, pn in pairs]
        fewer = [box._replace(k=max(1, box.k >> i)) for box in most for i in range(1, 8)]
        best = min(price(box) for box in (*most, *fewer))
        assert price(boxes.cheapest(*mnk, ranks, machine)[0]) == pytest.approx(best), (mnk, ranks)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_far_out_a_box_has_neither_many_words_nor_many_messages(order):
    """1048576 x 2048 x 2048 went to 502 x 13 x 10 ranks: 1.69 times the bound's words, in 29 messages. The steps of 2621 ranks that
    gather 512 bytes each did not count as such, as these are 1.3 MB in all."""
    mnk = [(2**20, 2**11, 2**11)[i] for i in order]
    for ranks in (65536, 65537):
        found = pdla.predict_matmul(*mnk, ranks)
        assert found.bytes_received < 1.05 * found.lower_bound and found.messages <= 20


def test_no_lopsided_box_is_taken_for_a_few_messages_less():
    """4 x 4 x 32 boxes of a small cube need 11 messages, 8 x 8 x 8 boxes 21, and half as many words."""
    box = boxes.cheapest(400, 400, 400, 512, Machine())[0]
    assert boxes.words(400, 400, 400, box) < 1.1 * received_lower_bound(400, 400, 400, 512)


@pytest.mark.parametrize("face", [(1, 4099, 8192), (4099, 1, 8192), (64, 1, 16386)])
def test_a_face_is_summed_in_no_row_of_ranks_too_long_to_plan_if_it_can_be_cut_otherwise(face):
    assert max(boxes.split(*face)) <= boxes.LONGEST < max(boxes.split(*face[:2], 2 * 4099))  # 2 * 4099: a prime too long


def test_of_a_box_and_its_mirror_image_elements_of_eight_bytes_cut_m():
    for dtype, tie in (("float32", (1, 2, 1)), ("float64", (2, 1, 1)), ("complex64", (2, 1, 1)), ("complex128", (1, 2, 1))):
        found = pdla.predict_matmul(64, 64, 64, 2, dtype=dtype)
        assert found.grid == tie and found.lower_bound == np.dtype(dtype).itemsize * received_lower_bound(64, 64, 64, 2)
        assert pdla.predict_matmul(64, 128, 64, 2, dtype=dtype).grid == (1, 2, 1)
        assert pdla.predict_matmul(128, 64, 64, 2, dtype=dtype).grid == (2, 1, 1)


def test_a_box_that_is_asked_for_is_taken_though_the_own_grid_is_cheaper():
    def program(comm):
        A = exact((12, 12), ProcessGrid((2, 2)), LAYOUT)
        assert pdla.plan_matmul(A, A).grid == A.grid
        assert pdla.plan_matmul(A, A, box=(1, 1, 4)).grid.shape == (1, 1, 4)

    pdla.run(4, program)


def test_a_million_ranks():
    found = pdla.predict_matmul(10**6, 10**6, 10**6, 10**6)
    assert found.grid == (100, 100, 10, 10) and found.ranks_used == 10**6  # C is summed over 10 ranks, twice
    assert found.bytes_received == 8 * 3 * 10**8 * (1 - 1 / 100) == pytest.approx(found.lower_bound, rel=0.02)
    prime = pdla.predict_matmul(32768, 32768, 32768, 999983)
    assert prime.ranks_used > 0.89 * 999983 and prime.bytes_received < 1.1 * prime.lower_bound


def test_a_block_of_more_bytes_than_there_are_addresses_is_a_memory_error():
    with pytest.raises(MemoryError, match="no array of 731644239 x 1099511627776 fits any memory"):
        pdla.predict_matmul(0, 2**40, 731644239, 1)
    longest = 2**63 - 1
    with pytest.raises(MemoryError, match="no array of 4611686018427387904 x 4611686018427387904 fits any memory"):
        pdla.predict_matmul(longest, longest, longest, 4)


def test_no_rank_is_idle_for_messages_that_take_no_time_beside_the_work():
    """Of long products by small matrices half of the ranks were left out: messages weighed against the few words of the bound."""
    for ranks, mnk in ((64, (10**8, 32, 32)), (1024, (10**8, 64, 64)), (64, (32, 10**8, 32))):
        assert pdla.predict_matmul(*mnk, ranks).ranks_used == ranks, mnk
    assert pdla.predict_matmul(10**4, 2, 2, 64).ranks_used < 16  # here they would


@pytest.mark.parametrize(("ranks", "mnk"), [(107, (32, 32, 560233)), (16661, (1016, 8183, 10**8)), (67, (117, 155, 524530))])
def test_of_a_prime_number_of_ranks_along_k_a_few_are_idle_so_that_the_others_sum_c_twice(ranks, mnk):
    """The first received 2.7 times the bound's words, as 107 ranks share 32 rows unevenly, the second twice the bound's. Of the
    first, 2 x 53 ranks receive 7 messages and 1.041 times the bound, 8 x 13 ranks 19 messages and 1.025 times the bound."""
    found = pdla.predict_matmul(*mnk, ranks)
    assert found.ranks_used > 0.95 * ranks and found.bytes_received < (1.042 if ranks == 107 else 1.03) * found.lower_bound
    assert found.messages < (8 if ranks == 107 else 25)


def test_no_rank_is_idle_whichever_matrix_stays():
    """C stayed on 9 of 64 ranks: messages weighed against the words and the work of a product with a k of 1."""
    for name, grid in (("a-stationary", (8, 1, 8)), ("b-stationary", (1, 8, 8)), ("c-stationary", (8, 8, 1))):
        assert pdla.predict_matmul(1000, 1000, 1000, 64, algorithm=name).grid == grid
    assert pdla.predict_matmul(10**5, 10**5, 10**5, 4096, algorithm="c-stationary").grid == (64, 64, 1)


def test_a_memory_limit_is_kept_by_a_grid_of_fewer_layers():
    """No plan kept it, it was said, where the cheapest grid's did not: 8 x 8 ranks need less than 4 x 4 x 4."""
    for algorithm in ("auto", "2.5d", "tesseract"):
        layers = []
        for limit in (10**7, 600_000, 10**5):
            found = pdla.predict_matmul(1000, 1000, 1000, 64, algorithm=algorithm, memory_limit=limit)
            assert found.peak_workspace <= limit
            layers.append(found.grid[2])
        assert layers == sorted(layers, reverse=True) and layers[-1] == 1
    with pytest.raises(pdla.errors.PlanError, match=r"memory_limit=100: .* too few; the leanest plan found"):
        pdla.predict_matmul(100, 100, 100, 64, memory_limit=100)


def test_within_a_limit_a_grid_of_one_layer_is_looked_at_however_many_are_cheaper():
    q = Sizes((1000, 1000, 1000), 1728, 8, Machine(), 0, ())
    few, all_of_them = ([table.shape[2] for table, _ in candidates.native_tables(q, "2.5d", lean)] for lean in (False, True))
    assert 1 not in few and len({*few}) == candidates.BOXES and 1 in all_of_them


@pytest.mark.parametrize("ranks", [64, 5000, 720720, 10**6])
@pytest.mark.parametrize("mnk", [(10**6, 10**6, 10**6), (10**5, 10**6, 10**4), (1000, 10**6, 1000), (300, 300, 3)], ids=str)
def test_boxes_of_few_layers_are_nearly_as_cheap_as_a_finer_search_finds(monkeypatch, mnk, ranks):
    machine, bound = Machine(), received_lower_bound(*mnk, ranks)

    def price(box):
        begun, words = sum(boxes.messages(*mnk, box)), boxes.words(*mnk, box)
        return boxes.price(ranks, boxes.excess(*mnk, box, ranks), words, begun, box.k > 1, bound, prod(mnk) / ranks, machine)

    found = boxes.by_layers(*mnk, ranks, machine, True, True)
    assert len(found) == min(ranks, mnk[2]).bit_length()
    monkeypatch.setattr(boxes, "LOOKS", (513, 256))
    for i, box in enumerate(found):
        finer = boxes.cheapest(*mnk, ranks, machine, most=Box(ranks, ranks, 2**i), rows_first=True)[0]
        assert box.k <= 2**i and price(box) <= 1.05 * price(finer), (box, finer)


def test_that_no_plan_keeps_a_limit_is_told_by_running_the_leanest_alone(monkeypatch):
    """Seven plans were run dry, and the ranks arranged anew for each of forty: of a million ranks that took nine seconds."""
    runs, grids, dry, trusted = [], [], Plan._dry, ProcessGrid.trusted
    monkeypatch.setattr(Plan, "_dry", lambda plan, rank: runs.append(plan.named) or dry(plan, rank))
    monkeypatch.setattr(ProcessGrid, "trusted", lambda *args: grids.append(args[0]) or trusted(*args))
    with pytest.raises(pdla.errors.PlanError, match=r"the leanest plan found, 3d by summa .* needs [0-9]+ bytes"):
        pdla.predict_matmul(10**4, 10**4, 10**4, 1000, memory_limit=10**4)
    assert runs == ["3d by summa"] * 9  # first, second and last along m and n, of one layer
    assert len(grids) <= 4 * len(set(grids))  # with those of the dry runs


def test_of_the_leanest_plans_most_are_run_dry_on_one_rank_and_asked_once_whether_they_keep_step(monkeypatch):
    """Of 720720 ranks in layers all forty of Cannon's plans were run on eight ranks each, which took minutes."""
    runs, asked, dry = [], [], Plan._dry
    monkeypatch.setattr(Plan, "_dry", lambda plan, rank: runs.append(plan.grid.shape) or dry(plan, rank))
    cannon.in_step.cache_clear()
    monkeypatch.setattr(cannon, "shares", lambda n, *how: asked.append(n) or shares(n, *how))
    with pytest.raises(pdla.errors.PlanError, match=r"the leanest plan found, 2.5d by cannon .*m=28, n=28, k=1"):
        pdla.predict_matmul(2817, 4096, 10**6, 800, algorithm="2.5d", dtype="int8", memory_limit=100)
    assert len(runs) < 8 * len(set(runs))
    assert len(asked) <= 2 * sum(layers for _, _, layers in set(runs))


def test_what_lies_in_a_boxs_own_layouts_is_not_compared_with_them(monkeypatch):
    """That took most of the time, and a gigabyte of memory, for 4096 ranks and a limit."""
    monkeypatch.setattr(price.KeptOf, "words", lambda *args: pytest.fail("compared"))
    assert pdla.predict_matmul(1001, 999, 1003, 63).ranks_used > 60


def test_of_a_small_product_ranks_along_k_may_be_idle():
    """Messages take longer than the product on one rank, or on two that do not sum C."""
    assert boxes.cheapest(64, 100, 2, 24, Machine.load("laptop"))[0] == (1, 1, 1)
    assert boxes.cheapest(10000, 7, 500, 6, Machine.load("a100x4"))[0] == (2, 1, 1)
    assert pdla.predict_matmul(10000, 7, 500, 6, machine="a100x4").grid == (2, 1, 1)
    untold = pdla.predict_matmul(10000, 7, 500, 6)
    assert untold.grid == (6, 1, 1) and untold.seconds is None
    found = pdla.predict_matmul(1, 1000, 1000, 1000, machine=Machine())
    assert found.ranks_used < 100 and found.seconds < 15e-6  # 780 ranks, which receive less, take 66e-6 s


def test_of_many_ranks_boxes_far_from_the_ideal_one_are_looked_at_too():
    """Where there are more ranks than products, and where messages weigh most."""
    assert pdla.predict_matmul(3, 3, 3, 10**6).grid == (3, 3, 3)
    assert pdla.predict_matmul(0, 5, 5, 4097).ranks_used == 1
    for mnk in ((10**6, 1, 1), (20, 20, 20), (10**4, 10**4, 1), (7, 10**9, 3)):
        few, many = (boxes.cheapest(*mnk, ranks, Machine())[0] for ranks in (boxes.EVERY, boxes.EVERY + 1))
        assert np.allclose(few, many, rtol=0.02), mnk
        assert sum(boxes.messages(*mnk, boxes.cheapest(*mnk, 10**6, Machine())[0])) < 10**4


# ---------------------------------------------------------------------------------------------- plans


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
        return [(plan.named, plan.walk.dimension) for plan in planner.lean(builder)]

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


@pytest.mark.parametrize("mnk", [(100, 100, 10**9), (300, 300, 10**8), (50, 200, 10**7), (1000, 1000, 10**7)], ids=str)
def test_small_results_are_summed_evenly_over_any_number_of_ranks(mnk):
    """100 x 100 can be cut evenly over 1000 ranks, along both dimensions, but not over 1019, of which each then received four times
    as many addends."""
    for ranks in (53, 131, 509, 997, 1019, 4099, 8951, 9949):
        found = pdla.predict_matmul(*mnk, ranks)
        assert found.bytes_received <= 1.1 * found.lower_bound, (ranks, found)
        assert found.ranks_used >= 0.95 * ranks, (ranks, found)


@pytest.mark.parametrize("ranks", [20_000, 100_000, 999_983, 10**6])
def test_a_long_matrix_is_cut_over_all_of_very_many_ranks(ranks):
    """Most of them have no row of the small matrix, which is gathered in steps: who has some is all that planning looks at."""
    found = pdla.predict_matmul(10**9, 100, 100, ranks)
    assert found.grid == (ranks, 1, 1)
    assert found.bytes_received == 100 * 100 * 8 and found.messages <= 20  # log2(ranks)


def test_a_walk_has_few_panels_however_long_it_is():
    """Each panel is run dry: 2^40 indices in panels of 512 took for ever."""

    def program(comm, k):
        grid = ProcessGrid((8, 8), comm=comm)
        A, B = pdla.zeros((2**22, k), grid, LAYOUT), pdla.zeros((k, 2**22), grid, LAYOUT)
        plan = pdla.plan_matmul(A, B, algorithm="summa", layout=LAYOUT)
        return plan.panel, plan.walk.dimension

    assert [pdla.dry_run(64, program, 2**e)[0] for e in (10, 20, 21, 22)] == [(512, "k"), (512, "k"), (1024, "k"), (2048, "k")]
    found = pdla.predict_matmul(10**5, 10**10, 2**40, 2**16, algorithm="3d")
    assert found.schedule == "summa" and found.bytes_received < 1.01 * found.lower_bound


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
    runs, dry = [], Plan._dry
    monkeypatch.setattr(Plan, "_dry", lambda plan, rank: runs.append(rank) or dry(plan, rank))

    def program(comm):
        A = pdla.zeros((4096, 4096), ProcessGrid((8, 8), comm=comm), LAYOUT)
        return pdla.plan_matmul(A, A, memory_limit=10**7).predicted.peak_workspace

    assert 5 * 10**6 < pdla.dry_run(64, program)[0] <= 10**7
    assert len(runs) < 5 * 64


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
            held = made.workspace.held
            for _ in range(3):
                made(A, B, out=C)
                assert made.workspace.held == held > 0
            assert np.array_equal(C.gather(), A.gather() @ B.gather())
            made.free()
            assert made.workspace.held == 0
            assert np.array_equal(made(A, B).gather(), A.gather() @ B.gather())

    pdla.run(4, program)


def test_repeated_products_find_their_plan(monkeypatch):
    made, make = [], planner.make
    monkeypatch.setattr(planner, "make", lambda *args: made.append(1) or make(*args))

    def program(comm):
        grid = ProcessGrid((1, 2))
        A = exact((6, 6), grid, LAYOUT)
        for _ in range(3):
            A = A @ A

    pdla.run(2, program)
    assert len(made) == 2  # one a rank


def test_matrices_that_differ_in_one_thing_have_plans_of_their_own():
    def program(comm):
        grid, other = ProcessGrid((2, 2)), ProcessGrid((2, 2), order="F")
        A, B = exact((12, 8), grid, LAYOUT, complex, 1), exact((8, 20), grid, LAYOUT, complex, 2)
        turned, elsewhere = exact((8, 12), grid, LAYOUT.T, complex, 3).T, exact((12, 8), other, LAYOUT, complex, 4)
        short, real, cyclic = exact((9, 8), grid, LAYOUT, complex, 5), exact((12, 8), grid, LAYOUT, seed=6), A.redistribute(DEALT)
        gaps = pdla.from_local(np.repeat(A.local, 2, axis=1)[:, ::2], (12, 8), grid, LAYOUT)
        matrices, plans = (A, turned, A.conj(), elsewhere, A.shared(), short, real, cyclic, gaps), []
        for X in matrices:
            for algorithm in ("gather", "summa", "auto") if X is not elsewhere else ("auto",):
                options = {"algorithm": algorithm, "panel": 4, "layout": "native"}
                assert np.array_equal(pdla.matmul(X, B, **options).gather(), X.gather() @ B.gather()), X
            plans.append(pdla.plan_matmul(X, B, **options))
        assert len({*map(id, plans)}) == len(matrices)

    pdla.run(4, program)


@pytest.mark.parametrize("kind", [Operand, PlacedOperand, Place, Sizes, Problem, Options, Machine])
def test_what_plans_and_choices_are_kept_for_is_compared_in_every_field(kind):
    one = object.__new__(kind)
    for field in fields(kind):
        object.__setattr__(one, field.name, 0)
    for field in fields(kind):
        other = copy(one)
        object.__setattr__(other, field.name, 1)
        assert (other == one) is ((kind, field.name) == (Place, "order")), field.name  # for which `placing` stands


def test_bad_wishes_are_the_same_error_on_every_rank():
    PlanError = pdla.errors.PlanError

    def program(comm):
        A = exact((4, 4), ProcessGrid((2, 2)), LAYOUT)
        for options, text in (
            ({"algorithm": "3d", "box": (2, 2, 2)}, r"box=\(2, 2, 2\): three sides"),
            ({"algorithm": "summa", "box": (2, 2, 1)}, "works on the grid of A and B"),
            ({"schedule": "ring"}, "schedule='ring': one of gather"),
            ({"algorithm": "summa", "schedule": "cannon"}, "which is a schedule itself"),
            ({"algorithm": "2.5d", "schedule": "gather"}, "2.5d does not go by gather"),
            ({"panel": 0}, "panel=0"),
        ):
            with pytest.raises(PlanError, match=text):
                pdla.matmul(A, A, **options)

    pdla.run(4, program)


@pytest.mark.parametrize("algorithm", pdla.algorithms)
def test_sixteen_bit_floats_are_summed_in_float32(algorithm):
    """Small integers stay exact; 1 + 2048 ones, which float16 could not add up one by one, too."""
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def program(comm):
        grid = ProcessGrid((2, 3))
        for dtype in (np.float16, ml_dtypes.bfloat16):
            check_product(grid, (5, 7, 6), dtype, algorithm)
            check_product(grid, (3, 4, 6), dtype, algorithm, "T", "T")
        A, B = (pdla.ones(shape, grid, LAYOUT, dtype=np.float16) for shape in ((3, 3000), (3000, 4)))
        C = pdla.matmul(A, B, algorithm=algorithm, panel=100)
        assert C.dtype == np.float16 and (C.gather() == 3000).all()

    pdla.run(6, program)


@pytest.mark.parametrize(
    ("A", "B", "what"), [(Layout("m"), Layout("k", "n"), "A's columns"), (Layout("m", "k"), Layout(cols="n"), "B's rows")]
)
def test_an_axis_that_carries_k_must_cut_it(A, B, what):
    """Else each rank along it would add the whole product, in silence."""
    table = Table("mine", (2, 2, 2), BOXED, A, B, Layout("m", "n"), "gather")
    with pytest.raises(pdla.errors.LayoutError, match=rf"algorithm 'mine': axes \['k'\] carry k, and must cut {what}"):
        table.roles  # noqa: B018
    roles = Table("mine", (2, 2, 1), BOXED, A, B, Layout("m", "n"), "gather").roles
    assert Layout("m") == roles.A
