"""`python -m pdla.bench hpl`: HPL's rules and its table."""

import re

import numpy as np
import pytest

import pdla
from pdla.bench.cli import main
from pdla.bench.commands import hpl
from pdla.bench.stop import FAILED
from pdla.errors import LinAlgError


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_every_size_with_every_block_is_solved_and_passes(capsys, ranks):
    assert main(["--threads", str(ranks), "hpl", "-n", "37,5", "--nb", "4,64", "--repeats", "2"]) == 0
    said = capsys.readouterr().out
    rows = re.findall(r"^pdla lookahead +(\d+) +(\d+) +(\d+) +(\d+) +\d+\.\d\d +\d\.\d{4}e[+-]\d\d$", said, re.MULTILINE)
    assert [row[:2] for row in rows] == [(n, nb) for n in ("37", "5") for nb in ("4", "64") for _ in range(2)]
    assert {int(p) * int(q) for _, _, p, q in rows} == {ranks}
    assert said.count("...... PASSED") == 8 and "     8 tests completed and passed residual checks" in said


def test_the_grid_is_the_one_that_is_asked_for(capsys):
    assert main(["--threads", "4", "hpl", "-n", "40", "--grid", "2x2"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^pdla lookahead +40 +32 +2 +2 ", said, re.MULTILINE) and "...... PASSED" in said


def test_refined_solutions_pass_and_say_so(capsys, monkeypatch):
    asked, solve = set(), hpl.solve
    monkeypatch.setattr(hpl, "solve", lambda A, b, **how: asked.add(how["refine"]) or solve(A, b, **how))
    assert main(["--threads", "2", "hpl", "-n", "70,5", "--refine", "float32"]) == 0
    said = capsys.readouterr().out
    assert said.count("pdla float32 ") == said.count("...... PASSED") == 2 and asked == {"float32"}


def test_a_wrong_solution_fails(capsys, monkeypatch):
    solve = hpl.solve
    monkeypatch.setattr(hpl, "solve", lambda A, b, **how: solve(A, b, **how) * (1 + 1e-9))
    assert main(["--threads", "2", "hpl", "-n", "40"]) == FAILED
    said = capsys.readouterr().out
    assert "...... FAILED" in said and "     1 tests completed and failed residual checks" in said


def test_a_singular_matrix_fails(capsys, monkeypatch):
    def singular(*_, **__):
        raise LinAlgError("the matrix is singular")

    monkeypatch.setattr(hpl, "solve", singular)
    assert main(["--threads", "2", "hpl", "-n", "40"]) == FAILED
    assert "inf ...... FAILED" in capsys.readouterr().out


def test_the_rate_counts_hpl_s_operations():
    assert hpl.Run(3000, hpl.Blocking((1, 1), 1), 2.0, 0.0).rate == pytest.approx((2 / 3 * 3000**3 + 1.5 * 3000**2) / 2e9)


def test_the_residual_is_hpl_s():
    def program(comm):
        A, b = hpl._draw(pdla.ProcessGrid((3, 1), comm=comm), 23, 4, 5)
        x = pdla.from_global(np.arange(23.0)[:, None], A.grid, pdla.Layout())
        return hpl._compute_residual(A, b, x), A.gather(), b.gather(), x.gather()

    found, A, b, x = pdla.run(3, program)[0]
    largest = [np.abs(v).sum(1).max() for v in (A @ x - b, A, x, b)]
    assert found == pytest.approx(largest[0] / (2.0**-53 * (largest[1] * largest[2] + largest[3]) * 23), rel=1e-12)
    assert np.abs(A).max() <= 0.5 and A.min() < -0.4 < 0.4 < A.max()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["hpl", "--json", "x.json"], "hpl prints HPL's own table"),
        (["hpl", "--dry-run", "-P", "4"], "hpl measures a machine, and a dry run has none"),
        (["--threads", "2", "hpl", "--grid", "2x2"], "--grid 2x2 needs 4 ranks, there are 2"),
        (["hpl", "-n", "0"], "'0' is not a whole number of 1 or more"),
    ],
)
def test_what_it_has_no_use_for_is_refused(capsys, words, told):
    assert main(words) == 2
    said = capsys.readouterr()
    assert told in said.err and "Time" not in said.out
