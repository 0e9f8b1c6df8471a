"""The table of products: six columns, columns where there is something to tell, and all with --wide."""

from dataclasses import replace

import pytest
from helpers import results
from helpers.commands import on_a_screen

from pdla.bench.measure.case import Case
from pdla.bench.measure.product import predict
from pdla.bench.report.table import show
from pdla.bench.screen import Screen

TIMED = ["algorithm", "grid", "median ms", "GFLOP/s", "received", "x bound"]
DRY = ["algorithm", "grid", "received", "x bound", "messages", "workspace"]


def shown(capsys, rows, wide=False, columns=200):
    with on_a_screen(columns):
        show(Screen(), rows, wide)
    return capsys.readouterr().out


def headings(out):
    return [text.strip() for text in out.splitlines()[2].split("  ") if text]


def test_six_columns_and_what_is_predicted(capsys):
    (row,) = results.rows((1, 2), {"gather": (0.5,)})
    dry = predict(Case(30, 20, 25, grid=(2, 2)), 4)
    assert headings(shown(capsys, [replace(row, predicted=None)])) == TIMED
    assert headings(shown(capsys, [dry])) == DRY
    assert headings(shown(capsys, [row])) == [*TIMED[:4], "predicted ms", *TIMED[4:]]


def test_wide_tables_have_all(capsys):
    (row,) = results.rows((1, 2), {"gather": (0.5,)})
    out = shown(capsys, [row], wide=True)
    assert {*TIMED, "of peak", "comp/comm/wait", "formula", "messages", "workspace", "layout and checks"} < set(headings(out))
    assert "50%/30%/20%" in out and "; exact (NumPy)" in out


@pytest.mark.parametrize(("columns", "algorithm"), [(60, "shared"), (80, "c-stationary")])
def test_default_columns_fit(capsys, columns, algorithm):
    rows = [replace(row, algorithm=algorithm, predicted=None) for row in results.rows((2, 2), {"auto": (123.4567,)})]
    out = shown(capsys, rows, columns=columns)
    assert max(map(len, out.splitlines())) <= columns and out.count("algorithm") == 1 and f"auto: {algorithm} " in out


def test_what_is_wrong_has_no_time(capsys):
    (row,) = results.rows((1, 2), {"gather": ()})
    assert shown(capsys, [replace(row, checks=("WRONG, exact (NumPy): 1 of 2",))]).splitlines()[3].split()[2] == "WRONG"
