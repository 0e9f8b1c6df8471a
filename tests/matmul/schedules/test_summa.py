"""Panel by panel in broadcasts: how wide they are, and how many are under way."""

from helpers.matmuls import LAYOUT

import pdla
from pdla import ProcessGrid
from pdla.matmul.schedules import summa


def test_a_panel_is_as_wide_as_the_call_says_else_the_plan():
    def program(comm):
        A = pdla.zeros((4000, 4000), ProcessGrid((2, 2), comm=comm), LAYOUT)
        return [pdla.plan_matmul(A, A, algorithm="summa", panel=panel).panel for panel in (3, None)]

    assert pdla.dry_run(4, program)[0] == [3, 512]


def test_before_a_panel_is_given_the_next_three_are_started():
    begun = []
    counts = [(panel, len(begun)) for panel, _ in summa.start_ahead(begun.append, range(5))]
    assert counts == [(0, 4), (1, 5), (2, 5), (3, 5), (4, 5)]
