"""The dimension along which panels move, and how wide they may be."""

import pytest
from helpers.matmuls import LAYOUT

import pdla
from pdla import Cuts, Layout, ProcessGrid
from pdla.matmul.roles import Roles, choose
from pdla.matmul.schedules import walk


def test_a_walk_counts_the_words_of_whole_panels_of_its_ranks_rows_and_columns():
    sizes, mnk = {"row": 2, "col": 4}, (12, 20, 8)
    met, _ = choose(LAYOUT, LAYOUT, LAYOUT, *mnk, tuple(sizes.items()))
    assert walk.choose(LAYOUT, LAYOUT, LAYOUT, met, sizes, mnk).words == 12 * 8 / 2 + 8 * 20 / 4
    assert walk.choose(LAYOUT, LAYOUT, LAYOUT, met, sizes, mnk, "m").words == 0
    turned = Roles((("row", "k"), ("col", "n")), Layout(cols="row"), LAYOUT, Layout(cols="col", partial="row"))
    found = walk.choose(LAYOUT.T, LAYOUT, LAYOUT, turned, sizes, mnk)
    assert (found.dimension, found.words) == ("m", 12 * 8 / 2 + 12 * 20 / 4)


@pytest.mark.parametrize(("a", "b"), [(LAYOUT, LAYOUT), (LAYOUT, Layout(cols="col")), (Layout("row"), LAYOUT)], ids=str)
@pytest.mark.parametrize(("algorithm", "panels"), [("summa", 4), ("cannon", 2)])
def test_panels_that_move_are_all_the_workspace(algorithm, panels, a, b):
    """As docs/memory.md has it, whether both matrices move or one. 100 indices are cut into four panels of 25, as none may be wider
    than 30."""

    def program(comm):
        grid = ProcessGrid((2, 2))
        A, B = pdla.zeros((60, 200), grid, a), pdla.zeros((200, 80), grid, b)
        with pdla.record() as ledger:
            pdla.matmul(A, B, algorithm=algorithm, panel=30)
        return ledger.peak_workspace

    moved = 60 // 2 * bool(a.cols) + 80 // 2 * bool(b.rows)
    assert set(pdla.run(4, program)) == {8 * panels * 25 * moved}


@pytest.mark.parametrize(
    ("a", "b", "width"),
    [
        ("row", "row", 8), ("row", Cuts("row", [0, 1, 16]), 8), (Cuts("row", [0, 1, 16]), Cuts("row", [0, 3, 16]), 13),
        (None, "row", 8),
    ],
    ids=str,
)
def test_the_widest_panel_is_what_any_two_shares_have_in_common(a, b, width):
    """Not only the first rank's two."""
    walked = walk.Walk("k", (), (), (), Layout(cols=a), Layout(b), Layout(), 0.0)
    assert walk.find_widest(walked, (4, 4, 16), {"row": 2}) == width


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
