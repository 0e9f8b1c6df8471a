"""What type checkers see of pdla: the programs of README.md and the tutorial pass mypy --strict, and results have their types."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "tutorial.md"]
NAMED = re.compile(r"# (\w+)\.py\n")
PROGRAM = re.compile(r"^def (\w+)\(comm\):", re.MULTILINE)
# A page defines `program` again and again; scikit-learn has no types.
LENIENT = ["--disable-error-code=no-redef", "--disable-error-code=import-untyped"]
TYPES = """
from typing import Any, assert_type

import numpy as np

import pdla

def results(A: pdla.DistMatrix, b: np.ndarray[Any, np.dtype[np.float64]], s: pdla.Stack) -> None:
    factors, cholesky = pdla.linalg.lu_factor(A), pdla.linalg.cho_factor(A)
    for X in (
        pdla.linalg.solve(A, A, out=A), pdla.linalg.lu_solve(factors, A), pdla.linalg.cho_solve(cholesky, A), pdla.matvec(A, A),
        pdla.linalg.solve_triangular(A, A, lower=True), pdla.einsum("ij,jk", A, A),
    ):
        assert_type(X, pdla.DistMatrix)
    for x in (
        pdla.linalg.solve(A, b), pdla.linalg.lu_solve(factors, b), pdla.linalg.cho_solve(cholesky, b), pdla.matvec(A, b),
        pdla.linalg.solve_triangular(A, b, lower=True), A.sum(0), A.mean(1), A.max(axis=0), A.min(1), A.local, A.gather(),
    ):
        assert_type(x, np.ndarray[tuple[Any, ...], np.dtype[Any]])
    assert_type(A.gather(0), np.ndarray[tuple[Any, ...], np.dtype[Any]] | Any)
    assert_type(pdla.einsum("bij,bjk", s, s), pdla.Stack)
    pdla.linalg.solve(A, 3)  # type: ignore[type-var]
    pdla.linalg.det(3)  # type: ignore[arg-type]
    pdla.run(2, 3)  # type: ignore[call-overload]

def program(comm: pdla.Communicator, more: int = 0) -> float:
    return float(comm.rank + more)

assert_type(pdla.run(2, program), list[float])
assert_type(pdla.run(2, program, 3, delay=0.1), list[float])
assert_type(pdla.dry_run(2, program), tuple[float, pdla.Ledger])
"""


def written(page, folder):
    """The page's programs in files, as a checker takes them: a communicator comes in, and anything goes out."""
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    shared = ["from typing import Any", "import pdla"]
    for block in blocks:
        typed = PROGRAM.sub(r"def \1(comm: pdla.Communicator) -> Any:", block)
        if named := NAMED.match(typed):
            (folder / f"{named[1]}.py").write_text(f"from typing import Any\n{typed}")
        else:
            shared.append(typed)
    (folder / f"{page.stem.lower()}_page.py").write_text("\n".join(shared))


def test_programs_and_results_pass_mypy_strict(tmp_path, monkeypatch):
    pytest.importorskip("mypy")
    for page in PAGES:
        written(page, tmp_path)
    (tmp_path / "types_of_results.py").write_text(TYPES)
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    files = sorted(path.name for path in tmp_path.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", *LENIENT, *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"no issues found in {len(files)} source files" in done.stdout


def test_checkers_can_follow_the_install(tmp_path):
    """They read .pth files, and know nothing of hooks that import editable packages."""
    program = "from importlib.machinery import PathFinder; print(PathFinder.find_spec('pdla').origin)"
    done = subprocess.run([sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).with_name("py.typed").is_file()
