"""How the measuring scripts are started: --help and wrong arguments print what a script is for."""

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.jobs import LONGEST, ended_here

from bench.common import schemes
from bench.common.given import started

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("words", "called"), [([], (3, 4)), (["5"], (5, 4)), (["5", "6"], (5, 6))])
def test_words_are_numbers_in_their_order(monkeypatch, words, called):
    got = []
    monkeypatch.setattr("sys.argv", ["script.py", *words])
    started(lambda n=3, turns=4: got.append((n, turns)), int, "what it is for")
    assert got == [called]


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_what_the_script_is_for(monkeypatch, capsys, word):
    monkeypatch.setattr("sys.argv", ["script.py", word])
    started(pytest.fail, int, "what it is for")
    assert capsys.readouterr().out == "what it is for\n"


@pytest.mark.parametrize("words", [["x"], ["1.5"], ["1", "2"], []])
def test_what_fits_nothing_is_told(monkeypatch, words):
    monkeypatch.setattr("sys.argv", ["bench/script.py", *words])
    with pytest.raises(SystemExit) as ended:
        started(lambda n: pytest.fail(f"began with {n}"), int, "what it is for")
    assert ended.value.code.startswith("script.py: ") and ended.value.code.endswith("\n\nwhat it is for")


REFUSED = {
    "blas.py 12x3": "'12x3' is not a product: give m x n x k",
    "large_counts.py 12": "too many positional arguments",
    "call_cost.py -5": "'-5' is not a whole number of 1 or more",
    "broadcasts.py 0": "'0' is not a whole number of 1 or more",
    "rates.py x": "'x' is not a whole number of 0 or more",
    "planning.py 10000001": "'10000001' is too many: up to 10000000 ranks",
    "exchanges.py 0": "'0' is not a number above 0",
    "overlap.py nan": "'nan' is not a number above 0",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_script_that_is_given_what_it_cannot_read_says_so_in_a_line(line):
    script, word = line.split()
    done = ended(script, word)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith(f"{script}: {REFUSED[line]}")


NAMED = {
    "network.py --sides x": "--sides x: give some of pdla,by hand,ScaLAPACK",
    "network.py --shapes 8x8": "'8x8' is not a product: give m x n x k",
    "network.py --hosts 0 --sides pdla": "--hosts 0 --ranks-per-host 1",
    "pblas.py --sizes 64,0": "argument --sizes: '0' is not a whole number of 1 or more",
    "peers.py --ranks 2,0": "argument --ranks: '0' is not a whole number of 1 or more",
    "peers.py --dtypes float32,float16": "--dtypes float16: give some of float64,float32",
    "peers.py --shapes 0": "--shapes 0: give n, or m x n x k",
    "network.py --json none/x.json": "argument --json: none/x.json: there is no folder",
    "pblas.py --json none/x.json": "argument --json: none/x.json: there is no folder",
    "peers.py --json none/x.json": "argument --json: none/x.json: there is no folder",
    "gpu.py --json none/x.json": "argument --json: none/x.json: there is no folder",
    "train_gpt.py --json none/x.json": "argument --json: none/x.json: there is no folder",
    "train_digits.py --json none/x.json": "argument --json: none/x.json: there is no folder",
    "experiments.py --quick --json none/x.json": "argument --json: none/x.json: there is no folder",
    "counted.py none rates.py": "there is no folder none to write to",
    "train_gpt.py --dtype float33": "argument --dtype: invalid choice: 'float33'",
}


@pytest.mark.parametrize("line", NAMED)
def test_a_script_refuses_what_it_cannot_measure_before_it_measures(capsys, line):
    """An emulated network was built for a side that there is not, a machine calibrated for no hosts, jobs started of 0 ranks."""
    status, out, err = ended_here(capsys, *line.split())
    assert status and out == "" and NAMED[line] in err


@pytest.mark.parametrize("words", [(), ("--help",), ("folder",)])
def test_a_count_without_a_program_tells_how_it_is_started(capsys, words):
    status, _, err = ended_here(capsys, "counted.py", *words)
    assert status == 1 and "FOLDER (program.py | -m module)" in err


def test_without_openblas_of_the_system_another_library_is_asked_for():
    """The program itself was taken for the library: its name was None."""
    code = "import ctypes.util, os, runpy, sys; os.environ.pop('PDLA_BLAS', None); ctypes.util.find_library = lambda name: None; "
    code += "sys.argv[:] = ['blas.py']; runpy.run_module('bench.blas', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)
    assert done.returncode == 1 and done.stderr.startswith("blas.py: there is no OpenBLAS of the system's here: PDLA_BLAS= names")


def ended(script, *words):
    command = [sys.executable, "-m", f"bench.{script.removesuffix('.py')}", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)


@pytest.mark.parametrize("first", ["Serial", "Tensor3D(row=1, col=1)"])
def test_a_distance_from_serial_is_told_only_where_serial_has_run(capsys, first):
    results = {first: {"losses": [2.0, 1.0], "accuracy": 0.5}, "Cube3D": {"losses": [2.0, 1.1], "accuracy": 0.5}}
    for name in results:
        schemes.show(name, results)
    one, other = capsys.readouterr().out.splitlines()
    assert one.endswith("accuracy 0.5000, from Serial 0e+00" if first == "Serial" else "accuracy 0.5000")
    assert other.endswith("accuracy 0.5000, from Serial 1e-01" if first == "Serial" else "accuracy 0.5000")
