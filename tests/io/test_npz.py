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


@pytest.mark.parametrize("at", ["write", "close"])
def test_a_failure_half_way(tmp_path, monkeypatch, at):
    """On rank 0 alone, amid the rows or at the end: it is told on all, once, and the old file stays."""
    path, old, true_open = tmp_path / "x.npz", numbers((8, 3)), ZipFile.open
    write(path, old)
    monkeypatch.setattr(files, "PANEL", 50)

    def opened(archive, name, mode="r", **options):
        file = true_open(archive, name, mode, **options)
        if mode == "w":
            true_call, left = getattr(file, at), [3 if at == "write" else 0]

            def failing(*args):
                true_call(*args)
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(28, "No space left on device")

            setattr(file, at, failing)
        return file

    monkeypatch.setattr(ZipFile, "open", opened)
    assert save_error(path) == f"rank 0: {path}: No space left on device"
    assert same(read(path), old) and os.listdir(tmp_path) == ["x.npz"]
