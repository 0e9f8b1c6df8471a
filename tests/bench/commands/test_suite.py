"""`python -m pdla.bench suite`: what it is made up of, in threads and without scikit-learn."""

import pytest
from helpers.commands import run, valid

import pdla
from pdla.bench.commands import suite
from pdla.bench.measure.case import Case


@pytest.mark.parametrize("P", [1, 2, 4, 6, 7, 61, 64, 100, 1009])
def test_the_suite_fits_any_count_and_its_square_divides(P):
    cases = list(suite.list_synthetic(P))
    assert {case.algorithm for case in cases if case.grid == pdla.balanced_shape(P)} >= set(pdla.algorithms)
    assert {case.grid for case in cases} == {pdla.balanced_shape(P), (1, P)}
    square = cases[0]
    assert square.m == square.n == square.k
    assert all(square.n % parts == 0 for parts in (*square.grid, P))


def test_without_sklearn_the_suite_says_so(capsys, monkeypatch):
    monkeypatch.setattr(suite, "digits_path", lambda: None)
    monkeypatch.setattr(suite, "list_synthetic", lambda ranks: [Case(8, 8, 8)])
    status, out, _ = run(capsys, "--threads", "1")
    assert status == 0
    assert "pip install scikit-learn" in out


def test_the_suite_in_threads(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "SIDE", 48)
    status, out, _ = run(capsys, "--threads", "4", "--wide", "--json", str(tmp_path / "out.json"))
    assert status == 0, out
    content = valid(tmp_path / "out.json")
    assert (content["world"], content["ranks"], content["mpi"]) == ("threads", 4, None)
    assert {row["algorithm"] for row in content["rows"]} == set(pdla.algorithms)
    assert all(row["right"] and row["checks"] and row["seconds"] for row in content["rows"])
    for heading in ("algorithm", "median ms", "GFLOP/s", "of peak", "received", "x bound", "workspace", "layout and checks"):
        assert heading in out
    assert "formula: received, in closed form\nx bound: received over the least" in out
