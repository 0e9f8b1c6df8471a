"""`python -m pdla.bench cholesky|lu|solve|trsm`: every system is checked, and its bytes stand beside the formula's."""

import numpy as np
import pytest

from pdla.bench.cli import main
from pdla.bench.commands import factor
from pdla.bench.stop import FAILED, REFUSED

CASES = [
    ("cholesky", "-n", "64,96", "--nb", "8", "--grid", "2x2"), ("cholesky", "-n", "33", "--dtype", "complex64"),
    ("lu", "-n", "64,96", "--nb", "8", "--grid", "1x4"), ("lu", "-n", "40", "--dtype", "complex128"),
    ("solve", "-n", "40", "-m", "3"), ("trsm", "-n", "40", "--dtype", "float32"),
]


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_systems_are_checked_and_counted(capsys, words):
    assert main(["--threads", "4", *words, "--repeats", "2", "--machine", "laptop"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head == factor.HEAD and [row.split()[0] for row in rows] == words[2].split(",")
    for row in rows:
        *_, ratio = map(float, row.split()[3 if "x" in row.split()[2] else 4 :])
        assert ratio < 30
        if "--nb" in words:
            received, formula = row.split()[6:8]
            assert received == formula


def test_a_wrong_factor_fails(capsys, monkeypatch):
    right = factor.lu_factor
    monkeypatch.setattr(factor, "lu_factor", lambda A, **how: (lambda X, p: (X * (1 + 1e-9), p))(*right(A, **how)))
    assert main(["--threads", "2", "lu", "-n", "40", "--repeats", "1"]) == FAILED
    assert "WRONG: 1 of 1 ratios are 30 or more" in capsys.readouterr().out


def test_a_dry_run_counts_what_a_run_does(capsys):
    def told(*where):
        assert main([*where, "cholesky", "-n", "64", "--nb", "8", "--grid", "1x1", "--repeats", "1"]) == 0
        return capsys.readouterr().out.splitlines()[1].split()

    assert told("--dry-run", "-P", "4")[:3] == told("--threads", "4")[:3]
    assert main(["--dry-run", "-P", "1024", "lu", "-n", "4096"]) == 0
    assert np.prod([int(side) for side in capsys.readouterr().out.splitlines()[1].split()[2].split("x")]) == 1024


def test_layers_are_counted_by_formula(capsys):
    assert main(["--threads", "8", "lu", "-n", "64", "--nb", "4", "--grid", "2x2x2", "--repeats", "1"]) == 0
    *_, grid, _, _, received, formula, _, ratio = capsys.readouterr().out.splitlines()[1].split()
    assert grid == "2x2x2" and 0.9 < float(received) / float(formula) < 1.1 and float(ratio) < 30
    assert main(["--threads", "8", "cholesky", "-n", "64", "--nb", "4", "--grid", "2x2x2", "--repeats", "1"]) == 0
    *_, grid, _, _, received, formula, _, ratio = capsys.readouterr().out.splitlines()[1].split()
    assert grid == "2x2x2" and received == formula and float(ratio) < 30


def test_what_is_refused(capsys):
    assert main(["--threads", "4", "cholesky", "-n", "8", "--grid", "1x2x2"]) == REFUSED
    assert "layers are 2 or more, of 2x2 ranks or more" in "".join(capsys.readouterr())
    assert main(["--threads", "2", "trsm", "-n", "8", "--grid", "2x2"]) == REFUSED
    assert main(["--threads", "2", "--json", "x.json", "lu"]) == REFUSED
    said = capsys.readouterr()
    assert "--grid 2x2 needs 4 ranks" in said.err + said.out and "lu prints its own table" in said.err + said.out
