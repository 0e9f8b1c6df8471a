"""NumPy's files: every version and order, read by parts."""

import time
import tracemalloc

import numpy as np
import pytest
from helpers.files import LAYOUTS, load_error, loaded, numbers, same

import pdla
from pdla import Cyclic, Layout, ProcessGrid
from pdla.io import load, npy


@pytest.mark.parametrize("name", LAYOUTS)
def test_fortran_order(tmp_path, name):
    path, x = tmp_path / "x.npy", numbers((9, 8))
    np.save(path, np.asfortranarray(x))
    assert same(loaded(4, path, LAYOUTS[name]), x)


def test_one_thread_at_a_time_parses_a_header(tmp_path, monkeypatch):
    """Python's parser, by which NumPy reads it, is not safe in several."""
    np.save(tmp_path / "x.npy", np.ones((4, 4)))
    read, inside, most = npy.READERS[1, 0], [], []

    def slowly(file):
        inside.append(1)
        time.sleep(0.01)
        most.append(len(inside))
        inside.pop()
        return read(file)

    monkeypatch.setitem(npy.READERS, (1, 0), slowly)
    pdla.run(4, lambda comm: load(tmp_path / "x.npy", ProcessGrid((2, 2)), Layout("row", "col")))
    assert max(most) == 1


@pytest.mark.parametrize("version", [(2, 0), (3, 0)])
def test_later_versions_of_npy(tmp_path, version):
    path, x = tmp_path / "x.npy", numbers((9, 8))
    with path.open("wb") as file:
        np.lib.format.write_array(file, x, version=version)
    assert same(loaded(3, path), x)


def test_a_version_of_npy_that_nobody_knows(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.eye(3))
    path.write_bytes(path.read_bytes().replace(b"NUMPY\x01", b"NUMPY\x04"))
    assert "version (4, 0) of the .npy format: those known are" in load_error(path)


def test_more_after_the_matrix_is_not_read(tmp_path):
    path, x = tmp_path / "x.npy", numbers((9, 8))
    with path.open("wb") as file:
        np.save(file, x)
        np.save(file, x + 1)
    assert same(loaded(3, path), x)


def test_npy_is_read_by_parts(tmp_path, monkeypatch):
    """No rank copies more of the file than its block."""
    path, x, read_elements = tmp_path / "x.npy", numbers((24, 24)), []
    np.save(path, x)

    class Counted(np.memmap):
        def __getitem__(self, index):
            part = np.ndarray.__getitem__(self, index)
            read_elements.append(part.size)
            return part

    monkeypatch.setattr(np, "memmap", Counted)
    for name in ("blocks", "cyclic", "nested"):
        read_elements.clear()
        assert same(loaded(4, path, LAYOUTS[name]), x)
        assert read_elements == [x.size // 4] * 4


@pytest.mark.parametrize("panel", [20, 250])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("name", LAYOUTS)
def test_npy_is_read_in_many_panels(tmp_path, name, order, panel, monkeypatch):
    monkeypatch.setattr(npy, "PANEL", panel)
    path, x = tmp_path / "x.npy", numbers((23, 13))
    np.save(path, np.asarray(x, order=order))
    assert same(loaded(6, path, LAYOUTS[name]), x)


@pytest.mark.parametrize("order", "CF")
def test_npy_is_read_without_a_second_block(tmp_path, order, monkeypatch):
    monkeypatch.setattr(npy, "PANEL", 2**16)
    path, layout = tmp_path / "x.npy", Layout(Cyclic("row", 3), Cyclic("col", 3))
    np.save(path, np.ones((128, 8192), order=order))

    def program(comm):
        return pdla.load(path, ProcessGrid((1, 2), comm=comm), layout).local.nbytes

    tracemalloc.start()
    try:
        assert sum(pdla.run(2, program)) == 2**23
        assert tracemalloc.get_traced_memory()[1] < 1.2 * 2**23
    finally:
        tracemalloc.stop()
