"""`python -m pdla.bench cholesky|lu|solve|trsm`: every system is checked, and its bytes stand beside the formula's."""

import numpy as np
import pytest
from helpers.commands import on_a_screen

from pdla.bench import cli
from pdla.bench.stop import FAILED, REFUSED
from pdla.linalg.routines.lu import LUFactorization

CASES = [
    ("cholesky", "-n", "64,96", "--nb", "8", "--grid", "2x2"), ("cholesky", "-n", "33", "--dtype", "complex64"),
    ("lu", "-n", "64,96", "--nb", "8", "--grid", "1x4"), ("lu", "-n", "40", "--dtype", "complex128"),
    ("solve", "-n", "40", "-m", "3"), ("trsm", "-n", "40", "--dtype", "float32"),
    ("tridiagonal", "-n", "40", "--dtype", "complex128"),
]


def rows(said):
    """The table of an output: a dict by column for each row; and the lines below it."""
    _, head, *lines = said.splitlines()
    end = lines.index("")
    names = [name.strip() for name in head.split("  ") if name]
    return [dict(zip(names, line.split(), strict=True)) for line in lines[:end]], lines[end + 1 :]


def main(words):
    """All columns, side by side."""
    with on_a_screen():
        return cli.main(["--wide", *words])


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_systems_are_checked_and_counted(capsys, words):
    assert main(["--threads", "4", *words, "--repeats", "2", "--machine", "laptop"]) == 0
    table, notes = rows(capsys.readouterr().out)
    assert [row["n"] for row in table] == words[2].split(",")
    told = {note.partition(":")[0] for note in notes[1:]}
    for row in table:
        assert told == set(row) - {"n", "block", "grid", "GFLOP/s"}  # these need no words
        assert float(row["ratio"]) < 30 and float(row["predicted s"]) > 0
        if "--nb" in words:
            assert row["bytes received"] == row["by formula"]


def test_a_wrong_factor_fails(capsys, monkeypatch):
    right = LUFactorization.run
    wrong = lambda X, *more: (X * (1 + 1e-9), *more)  # noqa: E731
    monkeypatch.setattr(LUFactorization, "run", lambda self, *given: wrong(*right(self, *given)))
    assert main(["--threads", "2", "lu", "-n", "40", "--repeats", "1"]) == FAILED
    assert "WRONG: 1 of 1 ratios are 30 or more" in capsys.readouterr().out


def test_a_dry_run_tells_the_mean_of_all_ranks_as_a_run_and_the_formula_do(capsys):
    def told(*where):
        assert main([*where, "cholesky", "-n", "64", "--nb", "8", "--grid", "2x2", "--repeats", "1"]) == 0
        return rows(capsys.readouterr().out)[0][0]

    dry, run = told("--dry-run", "-P", "4"), told("--threads", "4")
    assert dry == {name: run[name] for name in dry} and dry["bytes received"] == dry["by formula"]
    assert set(run) - set(dry) == {"seconds", "GFLOP/s", "ratio"}


def test_a_dry_run_of_many_ranks_tells_the_mean_of_some(capsys):
    for name, grid in (("cholesky", "16x16"), ("lu", "8x8x4")):
        assert main(["--dry-run", "-P", "256", name, "-n", "1024", "--nb", "16", "--grid", grid]) == 0
        (row,), notes = rows(capsys.readouterr().out)
        assert "bytes received: by a rank, the mean of 64 of the 256 ranks" in notes
        assert abs(int(row["bytes received"]) / int(row["by formula"]) - 1) < 0.03
    assert main(["--dry-run", "-P", "1024", "lu", "-n", "512"]) == 0
    assert np.prod([int(side) for side in rows(capsys.readouterr().out)[0][0]["grid"].split("x")]) == 1024


@pytest.mark.parametrize(("name", "least"), [("lu", 2 / 3), ("cholesky", 1 / 3)])
def test_layers_are_counted_by_formula_and_bounded_by_the_memory_that_they_take(capsys, name, least):
    assert main(["--threads", "8", name, "-n", "64", "--nb", "4", "--grid", "2x2x2", "--repeats", "1"]) == 0
    (row,), _ = rows(capsys.readouterr().out)
    received, formula = int(row["bytes received"]), int(row["by formula"])
    assert row["grid"] == "2x2x2" and float(row["ratio"]) < 30
    assert received == formula if name == "cholesky" else 0.9 < received / formula < 1.1
    words = least * 64**3 / (8 * (3 * 64**2 / 8) ** 0.5)  # a share of the matrix, and addends as large as two
    assert row["x bound"] == f"{received / words / 8:.2f}"


def test_what_is_refused(capsys):
    assert main(["--threads", "4", "cholesky", "-n", "8", "--grid", "1x2x2"]) == REFUSED
    assert "layers are 2 or more, of 2x2 ranks or more" in "".join(capsys.readouterr())
    assert main(["--threads", "2", "trsm", "-n", "8", "--grid", "2x2"]) == REFUSED
    assert main(["--threads", "2", "--json", "x.json", "lu"]) == REFUSED
    said = capsys.readouterr()
    assert "--grid 2x2 needs 4 ranks" in said.err + said.out and "lu prints its own table" in said.err + said.out
