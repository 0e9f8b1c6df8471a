"""`python -m pdla.bench info`."""

from helpers.commands import run, valid

from pdla.bench.commands import info


def test_a_blas_that_tells_no_processor_is_named_without_one():
    known = {"internal_api": "mkl", "version": "2026.2", "num_threads": 1}
    assert info._name_library({**known, "architecture": None}) == "mkl 2026.2"
    assert info._name_library({**known, "architecture": "Zen"}) == "mkl 2026.2 (Zen)"


def test_info_in_threads(capsys, tmp_path):
    status, out, _ = run(capsys, "info", "--threads", "2", "--json", str(tmp_path / "out.json"))
    assert status == 0
    for word in ("BLAS", "waiting", "devices    none used", "2 on 1 host"):
        assert word in out
    assert valid(tmp_path / "out.json")["rows"] == []
