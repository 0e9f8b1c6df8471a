"""What a communicator computes from layouts once and keeps: routes between layouts, and those of triangles."""

from unittest.mock import patch

import pytest

import pdla
from pdla import Cyclic, Layout, ProcessGrid
from pdla.comm import cache
from pdla.comm.cache import find_or_make
from pdla.linalg.products import rank_k_plan
from pdla.matrix import redistribute

BLOCKS, TURNS = Layout("row", "col"), Layout(Cyclic("row", 2), Cyclic("col", 2))


def counted(monkeypatch, owner, name):
    """The calls of a static method, by the ranks of all."""
    calls, made = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given: (calls.append(given), made(*given))[1])
    return calls


def test_a_route_is_worked_out_once_for_its_layouts_grids_and_shape(monkeypatch):
    calls = counted(monkeypatch, redistribute.Route, "between")

    def program(comm):
        A, B = (pdla.random((9, 9), ProcessGrid((2, 2)), BLOCKS, seed=seed) for seed in (1, 2))
        for X in (A, B, A):  # B's grid is another one like A's
            assert (X.redistribute(TURNS).gather() == X.gather()).all()
        assert (A.T.redistribute(TURNS).gather() == A.gather().T).all()
        assert (A[:5, :].redistribute(TURNS).gather() == A.gather()[:5]).all()

    pdla.run(4, program)
    ways = {"A to TURNS", "TURNS to all", "A to all", "A.T to TURNS", "A[:5] to TURNS", "its TURNS to all"}
    assert len(calls) == 4 * len(ways)


def test_a_triangles_way_is_worked_out_once(monkeypatch):
    calls = counted(monkeypatch, rank_k_plan.RankKPlan, "of")

    def program(comm):
        A = pdla.random((9, 7), ProcessGrid((2, 2)), BLOCKS)
        for X, layout in ((A, BLOCKS), (A * 2, BLOCKS), (A, TURNS)):
            pdla.syrk(X, layout=layout)

    pdla.run(4, program)
    assert len(calls) == 4 * 2


@pytest.mark.parametrize(("plans", "made"), [(2, "abcb"), (1, "abacab"), (0, "aabacab")], ids=str)
def test_the_latest_are_kept(plans, made):
    def program(comm):
        order = []
        for key in "aabacab":
            assert find_or_make(comm, key, lambda key=key: order.append(key) or key.upper()) == key.upper()
        return "".join(order)

    with patch.object(cache, "MOST", plans):
        assert pdla.run(1, program) == [made]
