"""Tables: columns where there is something to tell, in as many tables as fit a terminal."""

from dataclasses import replace

import pytest
from helpers import results
from rich.console import Console

from pdla.bench.measure.case import Case
from pdla.bench.measure.product import predict
from pdla.bench.report.table import tables


def test_splits_and_predictions_have_columns_where_there_are_any():
    (row,) = results.rows((1, 2), {"gather": (0.5,)})
    headings = [[column.header for column in tables([one])[0].columns] for one in (row, replace(row, predicted=None))]
    assert "predicted ms" in headings[0] and "predicted ms" not in headings[1]
    assert "comp/comm/wait" in headings[1]


@pytest.mark.parametrize("room", [40, 80, 120, 220])
def test_a_narrow_terminal_gets_all_columns_in_tables_that_fit(room):
    row = replace(predict(Case(30, 20, 25, transa="T", grid=(2, 2)), 4), checks=("exact (NumPy)", "bound (Freivalds)"))
    made, (whole,) = tables([row, row], room), tables([row, row], 1000)
    columns = [column.header for one in made for column in one.columns]
    for column in whole.columns:
        assert columns.count(column.header) == (len(made) if column.header in ("algorithm", "grid") else 1)
    assert len(made) == 1 or all(Console(width=1000).measure(one).maximum <= max(room, 60) for one in made)
    assert [one.title is None for one in made] == [False, *[True] * (len(made) - 1)]
