"""The benchmark under MPI: the same exit status on every rank, what only MPI offers, and that rank 0 alone prints."""

import json

import jsonschema
import pytest

import pdla
from pdla.bench.cli import main
from pdla.bench.commands import suite
from pdla.bench.measure import facts
from pdla.bench.report.content import SCHEMA
from pdla.errors import plural

pytestmark = pytest.mark.mpi


@pytest.fixture
def keep_hooks(monkeypatch):
    """main() sets hooks that end the job; pytest wants its own back."""
    import sys
    import threading

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


def test_the_suite(comm, capsys, monkeypatch, keep_hooks, mpi_tmp_path):
    monkeypatch.setattr(suite, "SIDE", 48)
    path = mpi_tmp_path / "out.json"
    assert main(["--json", str(path)]) == 0
    printed = capsys.readouterr().out
    begun = f"pdla {pdla.__version__}: suite on {comm.size} {plural(comm.size, 'rank')}, processes of MPI\n"
    assert printed.startswith(begun) == ("GFLOP/s" in printed) == (comm.rank == 0)
    content = json.loads(path.read_text())
    jsonschema.validate(content, json.loads(SCHEMA.read_text()))
    assert (content["world"], content["ranks"]) == ("mpi", comm.size)
    assert all(row["right"] for row in content["rows"])
    for row in content["rows"]:
        if row["bytes_by_formula"] is not None and row["k"] == 48 and 48 % comm.size == 0:
            assert row["bytes_received"] == row["bytes_by_formula"]


@pytest.mark.parametrize("words", [["gemm", "--grid", "50x50"], ["gemm", "-m", "x"], ["gemm", "--a", "no", "--b", "no"]])
def test_bad_arguments_stop_every_rank_and_one_prints(comm, capsys, keep_hooks, words):
    assert main(words) == 2
    printed = capsys.readouterr()
    assert "x bound" not in printed.out and (comm.rank == 0 or not printed.out)
    assert printed.err.count("\n") == (1 if comm.rank == 0 else 0)


@pytest.mark.parametrize("words", [["lu", "-n", "99999999999"], ["hpl", "-n", "99999999999"]], ids=lambda words: words[0])
def test_sizes_that_no_memory_holds_are_one_line(comm, capsys, keep_hooks, words):
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == (comm.rank == 0) and ("no array has as many bytes" in told) == (comm.rank == 0)


def test_help_is_printed_once(comm, capsys):
    assert main(["--help"]) == 0
    assert bool(capsys.readouterr().out) == (comm.rank == 0)


@pytest.mark.parametrize("where", [["--dry-run", "-P", "4"], ["--threads", "2"]])
def test_what_takes_one_process_is_run_and_printed_once(comm, capsys, keep_hooks, where):
    for words, status in (["-m", "9", "-n", "9", "-k", "9"], 0), (["--grid", "3x3"], 2):
        assert main([*where, "gemm", *words]) == status
        printed = capsys.readouterr()
        assert ("x bound" in printed.out, bool(printed.err)) == (comm.rank == 0 == status, comm.rank == 0 < status)


def test_info(comm, capsys, keep_hooks):
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    assert bool(printed) == (comm.rank == 0)
    if comm.rank == 0:
        assert "mpi4py" in printed


def test_waits_are_measured_in_both_ways(comm):
    waits = facts.measure_waits(pdla.world(), "mpi")
    assert set(waits) == ({"pdla", "MPI_Barrier"} if comm.size > 1 else set())
    assert all(used >= 0 for used in waits.values())
