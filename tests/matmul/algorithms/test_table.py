"""Tables of layouts: how faces are cut, and what cannot be one."""

import pytest

import pdla
from pdla import Layout
from pdla.matmul.algorithms import NAMED
from pdla.matmul.algorithms.table import BOXED, Table, tabulate_box
from pdla.matmul.schedules.walk import choose

TURNED = [("3d", (1, 4, 1), (100, 8, 3)), ("3d", (4, 1, 1), (8, 100, 3)), ("3d", (1, 1, 10), (3, 100, 40))]  # A, B and C


def test_faces_are_cut_evenly_along_the_dimension_that_can_be():
    """100 x 3 into four, 3 x 100 into four and into ten: along the 3 some ranks would receive all, or four times as much."""
    assert [pdla.matmul_words(algorithm, *mnk, box) for algorithm, box, mnk in TURNED] == [300 * 3 / 4, 300 * 3 / 4, 30 * 9]


A_CUT, B_CUT, C_CUT = Layout("m", ("k", "n")), Layout(("k", "m"), "n"), Layout(("m", "k"), "n")  # of a box of which k is walked
A_TURNED, B_TURNED, C_TURNED = Layout(("m", "n"), "k"), Layout("k", ("n", "m")), Layout("m", ("n", "k"))
IN_TWO = Layout("m", ("k", "l", "n")), Layout(("k", "l", "m"), "n"), Layout(("m", "k"), ("n", "l"))


@pytest.mark.parametrize(
    ("box", "mnk", "schedule", "two_sums", "shape", "layouts"),
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
def test_how_faces_are_cut(box, mnk, schedule, two_sums, shape, layouts):
    table = tabulate_box("3d", box, schedule).even_faces(*mnk, two_sums)
    assert (table.shape, table.layouts) == (shape, layouts)


@pytest.mark.parametrize(("walked", "moves"), [("k", (True, True, False)), ("n", (False, True, True)), ("m", (True, False, True))])
def test_along_the_walked_dimension_both_matrices_that_have_it_come_in_panels(walked, moves):
    box, mnk = {"m": 2, "n": 2, "k": 32, walked: 1}, (10, 150, 320)
    table = tabulate_box("3d", tuple(box.values()), "summa", walked)
    assert table.even_faces(*mnk) == table
    walk = choose(*table.layouts, table.roles, table.sizes, mnk, walked)
    assert tuple(map(bool, walk.axes)) == moves


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


@pytest.mark.parametrize("mnk", [(97, 131, 64), (1000, 3, 5)], ids=str)
@pytest.mark.parametrize("box", [(4, 3, 5), (2, 1, 30), (60, 1, 1)], ids=str)
def test_no_table_receives_less_than_its_least_words(box, mnk):
    for table in NAMED["3d"].list_tables(box):
        for each in (table, table.turn_faces(*"ABC"), table.even_faces(*mnk)):
            assert all(least <= words for least, words in zip(table.bound_faces(*mnk), each.faces(*mnk), strict=True))
