"""The factorization of docs/own_factorization.md, by the walk over one triangle: right on every grid, and its predictions."""

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import run
from helpers.systems import BLOCKS, GRIDS, KINDS, cyclic, factor_ratio, on, positive, raised

import pdla
from pdla.bench.commands import COMMANDS, factor
from pdla.errors import LinAlgError, PlanError

PAGE = Path(__file__).parents[3] / "docs" / "own_factorization.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page's ldl.py as a module."""
    file = tmp_path_factory.mktemp("page") / "ldl.py"
    file.write_text(re.search(r"```python\n(# ldl\.py.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1])
    spec = spec_from_file_location("ldl", file)
    module = sys.modules["ldl"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["ldl"]


def hermitian(n, dtype, signs=(1, -1)):
    """Well conditioned leading minors of both signs; what is above the diagonal is not read."""
    a = positive(n, dtype) * 0.1 + np.diag(np.resize(signs, n))
    return np.where(np.tri(n, dtype=bool), a, np.nan).astype(dtype)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_factors_on_every_grid(page, grid, dtype):
    def program(comm):
        worst = 0.0
        for n in (0, 1, 7, 8, 9, 33):
            a = hermitian(n, dtype)
            for layout in (cyclic(8), BLOCKS):
                L, d = page.ldl(on(grid, a, layout, comm))
                l, whole = L.gather(), np.tril(a) + np.tril(a, -1).conj().T
                assert not np.triu(l, 1).any() and np.array_equal(l.diagonal(), np.ones(n)) and d.dtype.kind == "f" and len(d) == n
                error = abs((l * d) @ l.conj().T - whole).max(initial=0)
                worst = max(worst, error / (max(1, n) * np.finfo(dtype).eps))
        return worst

    assert max(pdla.run(grid[0] * grid[1] + 1, program)) < 30


@pytest.mark.parametrize("grid", [(1, 1), (1, 4), (4, 1), (2, 2), (3, 2)], ids=str)
def test_words_are_the_formula_s_and_what_is_planned_is_counted(page, grid):
    def program(comm, n=96, block=8):
        A = on(grid, hermitian(n, "float64"), cyclic(block), comm)
        plan = page.plan_ldl(A)
        with pdla.record() as ledger:
            plan(A)
        return plan.predicted.bytes_received, ledger.bytes_received, 8 * page.LDL_H.words(n, n, grid, block)

    planned, counted, formula = zip(*pdla.run(grid[0] * grid[1], program), strict=True)
    assert planned[0] == max(counted) and np.isclose(np.mean(counted), formula[0])


def test_results_are_checked_limits_kept_and_faults_the_same(page, monkeypatch):
    def program(comm):
        A = on((2, 2), hermitian(48, "float64"), BLOCKS, comm)
        L, d = page.ldl(A, verify=True)
        assert np.array_equal(L.gather(), page.ldl(A)[0].gather())
        with pytest.raises(PlanError, match="bytes too few"):
            page.ldl(A, memory_limit=100)
        with pytest.raises(LinAlgError, match="pivot 21 is 0"):
            page.ldl(on((2, 2), np.diag(np.arange(48.0) - 21), cyclic(8), comm))
        return d.tolist()

    assert len({tuple(d) for d in pdla.run(4, program)}) == 1
    right, left = page.LDL.solve_panel, [1]

    def wrong(self, L1, header, A21, L21):
        right(self, L1, header, A21, L21)
        if left:
            left.clear()
            L21 += 1e-3

    monkeypatch.setattr(page.LDL, "solve_panel", wrong)
    with pytest.warns(RuntimeWarning, match="computed again, it was right"):
        pdla.run(4, lambda comm: page.ldl(on((2, 2), hermitian(48, "float64"), cyclic(8), comm), verify=True))


@pytest.mark.parametrize("ranks", [4, 6])
def test_a_zero_in_the_first_of_many_panels_is_an_error_on_idle_ranks_too(page, ranks):
    kind, said = raised(lambda comm: page.ldl(on((2, 2), np.zeros((90, 90)), cyclic(8), comm)), ranks)
    assert kind is LinAlgError and said.startswith("pivot 0 is 0")


def test_it_is_as_exact_as_cholesky_of_a_positive_definite_matrix(page):
    a = positive(40, condition=1e6)

    def program(comm):
        A = on((2, 3), a, cyclic(8), comm)
        L, d = page.ldl(A)
        return factor_ratio(a, L.gather() * np.sqrt(d)), factor_ratio(a, pdla.linalg.cholesky(A).gather())

    ldl, cholesky = pdla.run(6, program)[0]
    assert ldl < 3 * cholesky + 3


def test_a_routine_is_a_command_of_the_benchmark(page, capsys, monkeypatch):
    monkeypatch.setitem(COMMANDS, "ldl", factor._command((page.LDL_H,), "ldl", page.LDL_H.about))
    status, out, err = run(capsys, "ldl", "-n", "96", "--nb", "8", "--grid", "2x2", "-P", "4", "--dry-run")
    assert (status, err) == (0, "")
    row = next(line.split() for line in out.splitlines() if "2x2" in line)
    assert row[2] == row[3] == str(round(8 * page.LDL_H.words(96, 96, (2, 2), 8)))
