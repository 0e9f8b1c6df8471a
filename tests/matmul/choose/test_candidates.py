"""Which ways are looked at, and what they do with the matrices as they lie."""

import numpy as np
import pytest
from helpers.matmuls import LAYOUT, exact, forget_ways, lacks

import pdla
from pdla import Cyclic, Layout, ProcessGrid
from pdla.matmul.algorithms import NAMED as BY_NAME
from pdla.matmul.choose import candidates
from pdla.matmul.choose.problem import Sizes
from pdla.model.machine import Machine

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


def test_a_box_that_is_asked_for_is_taken_though_the_own_grid_is_cheaper():
    def program(comm):
        A = exact((12, 12), ProcessGrid((2, 2)), LAYOUT)
        assert pdla.plan_matmul(A, A).grid == A.grid
        assert pdla.plan_matmul(A, A, box=(1, 1, 4)).grid.shape == (1, 1, 4)

    pdla.run(4, program)


def test_within_a_limit_a_grid_of_one_layer_is_looked_at_however_many_are_cheaper():
    q = Sizes((1000, 1000, 1000), 1728, 8, Machine(), 0, ())
    few, all_of_them = ([table.shape[2] for table, _ in candidates.native_tables(q, "2.5d", lean)] for lean in (False, True))
    assert 1 not in few and len({*few}) == candidates.BOXES and 1 in all_of_them
