"""`python -m bench`: how cases read their words and print their rows; and each of them has a table and a help."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from helpers.cases import refused
from helpers.jobs import LONGEST

import pdla
from bench.__main__ import main
from bench.cases import machine, training
from bench.common import case
from pdla.bench.arguments import positive
from pdla.bench.measure import calibration

ROOT = Path(__file__).parents[2]
NAMES = "one", "two"
REFUSED = {
    "blas 12x3": "argument PRODUCTS: '12x3' is not a product: give m x n x k",
    "boxes": "the following arguments are required: PRODUCT",
    "factor 1024,64y8": "argument SIZES: '64y8' is not n, or m x n, such as 65536x64",
    "factor 64x65": "argument SIZES: '64x65' is not n, or m x n, such as 65536x64, of more rows than columns",
    "large_counts 12": "unrecognized arguments: 12",
    "call_cost -5": "argument N: '-5' is not a whole number of 1 or more",
    "broadcasts 0": "argument REPEATS: '0' is not a whole number of 1 or more",
    "rates x": "argument SEED: 'x' is not a whole number of 0 or more",
    "planning 10000001": "argument RANKS: '10000001' is too many: up to 10000000 ranks",
    "exchanges 0": "argument MOST: '0' is not a number above 0",
    "overlap nan": "argument DELAY: 'nan' is not a number above 0",
    "pblas --sizes 64,0": "argument --sizes: '0' is not a whole number of 1 or more",
    "train_gpt --dtype float33": "argument --dtype: invalid choice: 'float33'",
    "--json none/x.json lines": "argument --json: none/x.json: there is no folder",
    "none": "argument NAME: invalid choice: 'none'",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_case_that_is_given_what_it_cannot_read_says_so(capsys, line):
    out, err = refused(capsys, *line.split())
    assert out == "" and REFUSED[line] in err


@pytest.fixture
def squares(monkeypatch):
    """A case, registered as those of bench/cases are."""
    monkeypatch.setattr(case, "CASES", {})

    @case.case("name:<6 | of:4 | n:5 | half:8.2f")
    def squares(count: positive = 2, *, name: NAMES = "one", twice: bool = False):
        """Numbers, their squares, and half."""
        yield f"{count} of them"
        yield from ((name, None, n * n * (1 + twice), n / 2) for n in range(count))

    return partial(run, case.CASES["squares"])


def run(one, *words):
    one.run(case.make_parser().parse_args([*words[:-1], *words[-1].split()]))


@pytest.mark.parametrize(
    ("words", "first", "last"),
    [
        ("squares", "2 of them", "one           1    0.50"),
        ("squares 3", "3 of them", "one           4    1.00"),
        ("squares 1 --twice --name two", "1 of them", "two           0    0.00"),
    ],
)
def test_rows_are_printed_below_one_head(squares, capsys, tmp_path, words, first, last):
    squares("--json", str(tmp_path / "rows.json"), words)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == first and said[1] == "name    of    n    half" and said[-1] == last
    told = json.loads((tmp_path / "rows.json").read_text())
    assert told["columns"] == ["name", "of", "n", "half"] and len(told["rows"]) == len(said) - 2


def test_a_column_of_text_is_two_blanks_from_the_one_before():
    table = case.Table.of("n:6 | what:<8 | s:9.2f | of:<3")
    assert table.line((1, "first", 2.5, "it")) == "     1  first        2.50  it"
    assert table.head() == "     n  what            s  of"


def test_each_case_has_a_help_of_a_line_and_a_table_whose_columns_have_widths(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0 and "Run a case" in capsys.readouterr().out and len(case.CASES) > 20
    for one in case.CASES.values():
        assert one.work.__doc__.partition("\n")[0].rstrip().endswith(".")
        if one.table.columns != (("", ""),):
            assert len(one.table.head()) >= len(one.table.columns)


def test_long_messages_are_refused_to_one_rank():
    with pytest.raises(SystemExit, match="mpirun -n 2 python -m bench large_counts"):
        pdla.run(1, lambda comm: [*case.CASES["large_counts"].work(comm)])


def test_without_openblas_of_the_system_another_library_is_asked_for():
    """The program itself was taken for the library: its name was None."""
    code = "import ctypes.util, os, runpy, sys; os.environ.pop('PDLA_BLAS', None); ctypes.util.find_library = lambda name: None; "
    code += "sys.argv[:] = ['bench', 'blas']; runpy.run_module('bench', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)
    assert done.returncode == 1 and done.stderr.startswith("blas: there is no OpenBLAS of the system's here: PDLA_BLAS= names")


def test_dry_cases_start_no_mpi():
    code = "import sys; from bench.__main__ import main; main(['million', '1']); assert 'mpi4py.MPI' not in sys.modules"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, timeout=LONGEST, stdout=subprocess.DEVNULL)


def test_distances_are_from_the_losses_of_serial(monkeypatch):
    curves = {"Serial": [2.0, 1.0], "Cube3D": [2.0, 1.1]}
    ways = {name: (1, lambda comm, losses=losses: losses) for name, losses in curves.items()}
    monkeypatch.setattr(training, "SHOWN", ways)
    rows = [*training.compare_losses(lambda losses, steps, dtype: (losses, 0.5), 2, "float64", None)]
    assert rows == [("Serial", 2.0, 1.0, 0.5, 0.0), ("Cube3D", 2.0, 1.1, 0.5, pytest.approx(0.1))]


def test_predicted_times_stand_beside_measured_ones(monkeypatch):
    few = {name: tuple(24 if isinstance(x, int) else x for x in way) for name, way in machine.CASES.items() if "4" in name[-2:]}
    monkeypatch.setattr(machine, "CASES", few)
    monkeypatch.setattr(calibration, "measure_machine", lambda comm, screen: pdla.Machine())
    head, *rows, last = pdla.run(2, lambda comm: [*machine.predicted(comm, 1)])[0]
    assert head == "2 ranks" and [row[0] for row in rows] == [*few] and all(row[1] > 0 and row[2] > 0 for row in rows)
    assert {name.split()[0] for name in few} >= {"summa", "cholesky", "lu", "qr", "tridiagonal", "trsm"} and "median error" in last
