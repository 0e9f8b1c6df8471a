"""How the measuring scripts are started: --help and words that fit nothing tell what a script is for."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "sides" / "given.py"


@pytest.fixture(scope="module")
def started():
    spec = importlib.util.spec_from_file_location("given", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.started


@pytest.mark.parametrize(("words", "called"), [([], (3, 4)), (["5"], (5, 4)), (["5", "6"], (5, 6))])
def test_words_are_numbers_in_their_order(started, monkeypatch, words, called):
    got = []
    monkeypatch.setattr("sys.argv", ["script.py", *words])
    started(lambda n=3, turns=4: got.append((n, turns)), int, "what it is for")
    assert got == [called]


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_what_the_script_is_for(started, monkeypatch, capsys, word):
    monkeypatch.setattr("sys.argv", ["script.py", word])
    started(pytest.fail, int, "what it is for")
    assert capsys.readouterr().out == "what it is for\n"


@pytest.mark.parametrize("words", [["x"], ["1.5"], ["1", "2"], []])
def test_what_fits_nothing_is_told(started, monkeypatch, words):
    monkeypatch.setattr("sys.argv", ["bench/script.py", *words])
    with pytest.raises(SystemExit) as ended:
        started(lambda n: pytest.fail(f"began with {n}"), int, "what it is for")
    assert ended.value.code.startswith("script.py: ") and ended.value.code.endswith("\n\nwhat it is for")


@pytest.mark.parametrize(("script", "word"), [("blas.py", "12x3"), ("large_counts.py", "12")])
def test_a_script_that_is_given_what_it_cannot_read_says_so_in_a_line(script, word):
    command = [sys.executable, SCRIPT.parents[1] / script, word]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith(f"{script}: ")
