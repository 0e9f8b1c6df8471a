"""Archives of NumPy's that rank 0 writes; test_foreign.py has those that NumPy writes."""

import os
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import pytest
from helpers.files import BITS, LAYOUTS, loaded, numbers, read, same, same_bits, save_error, saved, write

from pdla.io import files, npz


@pytest.mark.parametrize("panel", [20, 250])
@pytest.mark.parametrize("name", LAYOUTS)
def test_npz_in_many_panels(tmp_path, name, panel, monkeypatch):
    monkeypatch.setattr(files, "PANEL", panel)
    path, x = tmp_path / "x.npz", numbers((23, 13))
    saved(6, path, x, LAYOUTS[name])
    assert same(read(path), x) and same(loaded(6, path, LAYOUTS[name]), x)
    with ZipFile(path) as archive:
        assert archive.testzip() is None and [info.compress_type for info in archive.infolist()] == [ZIP_STORED]


def test_what_was_in_the_file_is_replaced(tmp_path):
    path, x = tmp_path / "x.npz", numbers((5, 4))
    np.savez(path, other=x, matrix=x + 1)
    saved(2, path, x, dataset="new")
    assert np.load(path).files == ["new"] and same(np.load(path)["new"], x)
    assert npz.names(path) == ["new"]


def test_bfloat16_is_written_as_by_numpy(tmp_path):
    saved(3, tmp_path / "x.npz", BITS)
    assert same_bits(loaded(2, tmp_path / "x.npz"), BITS)
    assert same_bits(np.load(tmp_path / "x.npz")["matrix"].view(BITS.dtype), BITS)


@pytest.mark.parametrize("at", [("write",), ("close",), ("write", "close")])
def test_a_failure_half_way(tmp_path, monkeypatch, at):
    """On rank 0 alone, amid the rows, at the end, or at both: it is told on all, once, and the old file stays."""
    path, old, true_open = tmp_path / "x.npz", numbers((8, 3)), ZipFile.open
    write(path, old)
    monkeypatch.setattr(files, "PANEL", 50)

    def failing(true_call, left):
        def call(*args):
            true_call(*args)
            if not next(calls):
                raise OSError(28, "No space left on device")

        calls = iter([*[True] * left, *[False] * 9])
        return call

    def opened(archive, name, mode="r", **options):
        file = true_open(archive, name, mode, **options)
        for method in at if mode == "w" else ():
            setattr(file, method, failing(getattr(file, method), 3 if method == "write" else 0))
        return file

    monkeypatch.setattr(ZipFile, "open", opened)
    assert save_error(path) == f"rank 0: {path}: No space left on device"
    assert same(read(path), old) and os.listdir(tmp_path) == ["x.npz"]
