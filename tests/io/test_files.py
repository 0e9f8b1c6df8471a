"""What all formats ask of a file: the same one on all ranks, unchanged while it is loaded, of numbers in two dimensions."""

import os
from contextlib import suppress

import ml_dtypes
import numpy as np
import pytest
from helpers.files import ENDINGS, LAYOUTS, errors, load_error, loaded, numbers, same, save_error, saved, write

import pdla
from pdla import Layout, ProcessGrid
from pdla.io import files, hdf5, load, mtx, npy, npz


@pytest.mark.parametrize("name", LAYOUTS)
def test_copies_are_written_once(tmp_path, monkeypatch, name):
    path, x, sizes, true_put = tmp_path / "x.npy", numbers((24, 24)), [], pdla.array.numpy.put

    def put(target, rows, cols, source):
        if isinstance(target, np.memmap):
            sizes.append(source.size)
        true_put(target, rows, cols, source)

    monkeypatch.setattr(pdla.array.numpy, "put", put)
    saved(6, path, x, LAYOUTS[name])
    assert sum(sizes) == x.size and same(np.load(path), x)


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_no_file_is_neither_opened_nor_replaced(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.symlink_to("/dev/null")  # a pipe would keep those waiting who open it
    assert "no file, but a pipe, a socket or a device" in load_error(path)
    path.unlink()
    os.mkfifo(path)
    assert "no file, but a pipe, a socket or a device" in save_error(path)
    assert path.is_fifo() and os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("ending", (".npy", ".h5"))
@pytest.mark.parametrize("x", [np.array(3.0), np.zeros((2, 3, 4))], ids=["scalar", "three"])
def test_not_two_dimensions(tmp_path, ending, x):
    write(tmp_path / f"x{ending}", x)
    text = load_error(tmp_path / f"x{ending}")
    assert f"the array has shape {x.shape}; a matrix has two dimensions" in text
    assert ("x[:, None]" in text) == (x.ndim == 1)


@pytest.mark.parametrize(
    "x",
    [
        np.array([[None]]),
        np.zeros((2, 2), "i4,f4"),
        np.array([["word"]]),
        np.zeros((2, 2), "M8[s]"),
        np.zeros((2, 2), np.dtype([("é中", "f4")])),
    ],
    ids=["object", "structured", "text", "time", "version 3"],
)
def test_not_numbers(tmp_path, x):
    version = (3, 0) if x.dtype.names == ("é中",) else (1, 0)
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array(file, x, version=version)
    kind = x.dtype if version == (1, 0) else r"[('Ã©ä¸\xad', '<f4')]"  # read as Latin-1
    assert f"elements of dtype {kind} are not supported: bool, integers" in load_error(tmp_path / "x.npy")


def test_elements_that_files_do_not_know(tmp_path):
    """An .npy file tells how long they are, not what they are."""
    assert "float8_e4m3fn" in save_error(tmp_path / "x.npy", x=np.ones((3, 3), ml_dtypes.float8_e4m3fn))


def test_ranks_that_see_different_files(tmp_path):
    path = tmp_path / "x.npy"

    def call(comm):
        load(path if comm.rank else tmp_path / "y.npy", ProcessGrid((1, 3)), Layout(cols="col"))

    _, text = errors(3, call)
    assert "ranks 1, 2: load(" in text and "y.npy" in text


def test_one_name_for_different_files(tmp_path, monkeypatch):
    """As on nodes that each have a /tmp of their own."""
    from pdla.io import npy

    path = tmp_path / "x.npy"
    np.save(path, np.eye(5))
    monkeypatch.setattr(npy, "header", lambda *_: ((5 + pdla.world().rank // 2, 5), np.dtype(float)))
    _, text = errors(3, lambda comm: load(path, ProcessGrid(3), Layout("row")))
    assert text == f"ranks disagree: ranks 0, 1: load {path}: 5 x 5, float64; rank 2: load {path}: 6 x 5, float64"


def test_a_file_that_only_some_ranks_see(tmp_path, monkeypatch):
    from pdla.io import npy

    path, true_header = tmp_path / "x.npy", npy.header
    np.save(path, np.eye(5))

    def header(path, dataset):
        if pdla.world().rank == 1:
            raise FileNotFoundError(2, "No such file or directory")
        return true_header(path, dataset)

    monkeypatch.setattr(npy, "header", header)
    assert load_error(path) == f"rank 1: {path}: No such file or directory"


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("other", [numbers((9, 9)), numbers((6, 4), seed=1)], ids=["larger", "as large"])
def test_a_file_that_is_replaced_while_it_is_loaded(tmp_path, monkeypatch, ending, other):
    """Ranks that read it sooner have parts of the old one, those that read it later of the new one."""
    path, new = tmp_path / f"x{ending}", tmp_path / f"new{ending}"
    write(path, numbers((6, 4)))
    write(new, other)
    true_filled = files.read_blocks

    def filled(path, *rest):
        if pdla.world().rank == 0:
            with suppress(FileNotFoundError):
                os.replace(new, path)
        pdla.world().share(None)
        return true_filled(path, *rest)

    for form in (npy, npz, mtx, hdf5):
        monkeypatch.setattr(form, "read_blocks", filled)
    assert str(path) in load_error(path)
    write(path, other)
    assert same(loaded(3, path), other)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_that_is_written_to_while_it_is_loaded(tmp_path, monkeypatch, ending):
    """It stays the same file, and as long as it was."""
    path, true_filled = tmp_path / f"x{ending}", files.read_blocks
    write(path, numbers((6, 4)))
    os.utime(path, ns=(0, 0))

    def filled(path, *rest):
        if pdla.world().rank == 0:
            content = path.read_bytes()
            with path.open("r+b") as file:
                file.write(content)
        return true_filled(path, *rest)

    for form in (npy, npz, mtx, hdf5):
        monkeypatch.setattr(form, "read_blocks", filled)
    assert load_error(path) == f"{path}: written to, or replaced, while it was loaded"
