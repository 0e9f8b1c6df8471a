"""`python -m pdla.bench gemm`: in threads, dry, with matrices from files and to a file."""

import numpy as np
import pytest
from helpers.commands import SIZES, run, valid

import pdla
from pdla.bench.measure.product import Bench
from pdla.model.machine import Machine


@pytest.mark.parametrize("where", [["--threads", "4"], ["--dry-run", "-P", "4"]])
@pytest.mark.parametrize(("algorithm", "used"), [("summa", True), ("gather", False), ("cannon", True)])
def test_panels_that_an_algorithm_has_not_are_told(capsys, where, algorithm, used):
    status, out, _ = run(capsys, *where, "gemm", *SIZES, "--algorithm", algorithm, "--panel", "7")
    assert status == 0 and ("in panels of 7" in out) == used
    assert (f"panel       7 is not used: {algorithm} has no panels" in out) != used


def test_gemm_in_threads_explains_itself(capsys, tmp_path):
    options = ["--grid", "2x3", "--algorithm", "summa", "--panel", "5", "--transa", "C", "--dtype", "complex64"]
    status, out, _ = run(capsys, "gemm", *SIZES, *options, "--threads", "6", "--json", str(tmp_path / "out.json"))
    assert status == 0, out
    assert "roles" in out
    (row,) = valid(tmp_path / "out.json")["rows"]
    assert (row["m"], row["n"], row["k"], row["transa"], row["panel"]) == (30, 20, 25, "C", 5)
    assert (row["grid"], row["algorithm"], row["dtype"]) == ([2, 3], "summa", "complex64")
    assert {span[0] for span in row["split"]["timeline"]["spans"]} == set(range(6))
    assert row["predicted"] is None


@pytest.mark.parametrize("P", [1, 7, 4096])
def test_dry_runs_have_figures_and_no_times(capsys, tmp_path, P):
    status, out, _ = run(capsys, "gemm", "--dry-run", "-P", str(P), "--json", str(tmp_path / "out.json"))
    assert status == 0
    assert "median" not in out
    content = valid(tmp_path / "out.json")
    assert (content["world"], content["ranks"]) == ("dry", P)
    assert content["rows"][0]["seconds"] == content["rows"][0]["checks"] == []


def test_a_dry_run_plans_for_the_machine_for_which_it_predicts(capsys):
    _, out, _ = run(capsys, "gemm", "--dry-run", "-P", "64", "--machine", "a100x4")
    assert f" s on {Machine.load('a100x4').title}, 16 nodes of 4 ranks, overlap 1" in out and pdla.config.settings.machine == ""


@pytest.mark.parametrize("dtypes", [("float64", "float64"), ("float32", "complex64"), ("int32", "int32")])
def test_matrices_from_files(capsys, tmp_path, dtypes):
    a = np.arange(35).reshape(5, 7).astype(dtypes[0])
    b = (np.arange(21).reshape(3, 7) % 5).astype(dtypes[1])
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    files = ["--a", str(tmp_path / "a.npy"), "--b", str(tmp_path / "b.npy"), "--out", str(tmp_path / "c.npy")]
    status, out, _ = run(capsys, "gemm", *files, "--transb", "T", "--threads", "4")
    assert status == 0, out
    assert np.array_equal(np.load(tmp_path / "c.npy"), a @ b.T)


def test_files_that_do_not_fit(capsys, tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 4)))
    files = ["--a", str(tmp_path / "a.npy"), "--b", str(tmp_path / "a.npy")]
    status, _, err = run(capsys, "gemm", *files, "--threads", "2")
    assert (status, err.count("\n")) == (2, 1)
    assert "3 x 4" in err


def test_an_out_without_a_folder_is_told_before_the_work(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(Bench, "measure", None)
    status, out, err = run(capsys, "gemm", *SIZES, "--threads", "2", "--out", str(tmp_path / "none" / "c.npy"))
    assert (status, err.count("\n")) == (2, 1) and "x bound" not in out and "--out" in err and "there is no folder" in err
    status, out, err = run(capsys, "gemm", *SIZES, "--threads", "2", "--out", str(tmp_path / "c.xyz"))
    assert (status, err.count("\n")) == (2, 1) and "x bound" not in out and "c.xyz" in err and ".npy" in err
