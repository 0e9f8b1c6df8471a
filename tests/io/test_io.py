"""Files, in the threads world: every layout reads and writes what NumPy would; damage is one error on every rank."""

import os

import numpy as np
import pytest
from helpers.files import ENDINGS, GRIDS, LAYOUTS, errors, load_error, loaded, numbers, read, same, save_error, saved, write

import pdla
from pdla import Cuts, Layout, ProcessGrid
from pdla.errors import FileError, LayoutError
from pdla.io import load, save

DTYPES = ("bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64", "complex64", "complex128")
# ---------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("ending", (".npy", ".npz", ".mtx", ".h5"))
@pytest.mark.parametrize("P", GRIDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_round_trip(tmp_path, ending, P, name):
    path, x = tmp_path / f"x{ending}", numbers((17, 13))
    write(path, x)
    assert same(loaded(P, path, LAYOUTS[name]), x)
    out = tmp_path / f"y{ending}"
    saved(P, out, x, LAYOUTS[name])
    assert same(read(out), x)


@pytest.mark.parametrize("ending", (".npy", ".npz", ".h5"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(tmp_path, ending, dtype):
    path, x = tmp_path / f"x{ending}", numbers((6, 7), dtype)
    saved(4, path, x)
    assert same(read(path), x)
    assert same(loaded(4, path), x)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (1, 9), (2, 1)])
def test_small_and_empty(tmp_path, ending, shape):
    path, x = tmp_path / f"x{ending}", numbers(shape)
    saved(6, path, x)
    assert loaded(6, path).shape == shape
    assert np.array_equal(loaded(6, path), x)
    write(path, x)
    assert same(loaded(4, path, LAYOUTS["cyclic"]), x)


@pytest.mark.parametrize("dtype", (">f8", "<f8", ">i2", ">c8"))
@pytest.mark.parametrize("ending", (".npy", ".h5"))
def test_byte_orders(tmp_path, ending, dtype):
    path, x = tmp_path / f"x{ending}", numbers((9, 8), dtype)
    write(path, x)
    assert same(loaded(4, path), x.astype(np.dtype(dtype).newbyteorder("=")))
    saved(4, path, x)
    assert same(read(path), x.astype(np.dtype(dtype).newbyteorder("=")))


@pytest.mark.parametrize(
    ("ending", "dtype"),
    [(".npy", ">f8"), (".npz", ">f8"), (".npy", ">i4"), (".mtx", ">f8"), (".mtx.gz", ">c16"), (".h5", ">c8"), (".h5", ">c32")],
)
def test_blocks_in_another_byte_order_are_saved_as_the_numbers_that_they_are(tmp_path, ending, dtype):
    path, x = tmp_path / f"x{ending}", (numbers((6, 4), dtype) / 4).astype(dtype)

    def program(comm):
        save(path, pdla.from_local(x[comm.rank * 3 : comm.rank * 3 + 3], (6, 4), ProcessGrid((2, 1)), Layout("row")))

    pdla.run(2, program)
    assert same(loaded(1, path), x.astype(x.dtype.newbyteorder("=")))


@pytest.mark.parametrize("ending", ENDINGS)
def test_three_axes_cuts_and_copies(tmp_path, ending):
    path, x = tmp_path / f"x{ending}", numbers((10, 7))
    layout = Layout(Cuts("depth", (0, 3, 10)), "row")

    def program(comm):
        grid = ProcessGrid((3, 1, 2), order=[5, 4, 3, 2, 1, 0])
        save(path, pdla.from_global(x, grid, layout))
        return load(path, grid, layout).gather()

    assert all(same(y, x) for y in pdla.run(6, program))
    assert same(read(path), x)


@pytest.mark.parametrize("ending", ENDINGS)
def test_rank_0_without_a_place_in_the_grid(tmp_path, ending):
    path, x = tmp_path / f"x{ending}", numbers((10, 7))

    def program(comm):
        grid = ProcessGrid((1, 2), order=[2, 1])
        save(path, pdla.from_global(x, grid, LAYOUTS["blocks"]))
        return load(path, grid, LAYOUTS["blocks"]).gather()

    assert all(same(y, x) for y in pdla.run(3, program))


@pytest.mark.parametrize("ending", ENDINGS)
def test_views_and_partial_sums(tmp_path, ending):
    x = numbers((10, 7), "complex128")
    paths = {name: tmp_path / f"{name}{ending}" for name in ("T", "H", "conj", "sum")}

    def program(comm):
        grid = ProcessGrid((2, 2))
        A = pdla.from_global(x, grid, LAYOUTS["blocks"])
        for name, view in {"T": A.T, "H": A.H, "conj": A.conj()}.items():
            save(paths[name], view)
        addend = pdla.from_global(x, grid, Layout("row")).local * (1 + grid.coords["col"])
        save(paths["sum"], pdla.from_local(addend, x.shape, grid, Layout("row", partial="col")))

    pdla.run(4, program)
    for name, expected in {"T": x.T, "H": x.conj().T, "conj": x.conj(), "sum": 3 * x}.items():
        assert same(read(paths[name]), expected), name


def test_endings_in_capitals_and_a_string(tmp_path):
    x = numbers((4, 5))
    for ending in ENDINGS:
        write(tmp_path / f"x{ending}", x)
        os.rename(tmp_path / f"x{ending}", tmp_path / f"X{ending.upper()}")
        assert same(loaded(2, str(tmp_path / f"X{ending.upper()}")), x)


# ---------------------------------------------------------------------------------------------- datasets


def test_other_formats_have_no_datasets(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.eye(3))
    assert "dataset='a' is for HDF5" in load_error(path, dataset="a")


# ---------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("P", GRIDS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_missing(tmp_path, ending, P):
    assert "No such file" in load_error(tmp_path / f"x{ending}", P)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_folder(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.mkdir()
    assert "Is a directory" in load_error(path)
    (path / "something").touch()
    assert "Is a directory" in save_error(path)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("P", (1, 5))
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("share", (0, 0.05, 0.5, 0.98))
def test_truncated(tmp_path, ending, P, share):
    path = tmp_path / f"x{ending}"
    write(path, numbers((40, 40)))
    os.truncate(path, int(share * path.stat().st_size))
    load_error(path, P)


def test_truncated_by_one_byte_says_so(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, numbers((10, 10)))
    os.truncate(path, path.stat().st_size - 1)
    assert "truncated: it has 927 bytes, (10, 10) of float64 takes 928" in load_error(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_rubbish(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.write_bytes(bytes(range(256)) * 10)
    load_error(path)


@pytest.mark.parametrize("header", [
    "{'descr': '<f8', 'shape': (3, 3)}", "{'descr': 'nonsense'", "(", "{}", "9" * 50,
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-2, 3), }",
])
def test_damaged_header(tmp_path, header):
    path = tmp_path / "x.npy"
    text = header.ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(72))
    load_error(path)


@pytest.mark.parametrize("ending", (".txt", "", ".csv", ".mtx.zst"))
def test_unknown_endings(tmp_path, ending):
    for text in (load_error(tmp_path / f"x{ending}"), save_error(tmp_path / f"x{ending}")):
        assert ".npy, .mtx, .mtx.gz, .mtx.bz2, .mtx.xz, .h5, .hdf5, .npz, .mat, .nc" in text


@pytest.mark.parametrize("path", [3, None, b"x.npy"])
def test_what_is_no_path(path):
    for call in load, lambda path, grid, layout: save(path, pdla.zeros((2, 2), grid, layout)):
        kind, text = errors(2, lambda comm, call=call: call(path, ProcessGrid(2), Layout("row")))
        assert kind is FileError and f"path={path!r}: give a text or a pathlib.Path" in text


@pytest.mark.parametrize("P", GRIDS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_nowhere_to_write(tmp_path, ending, P):
    save_error(tmp_path / "nowhere" / f"x{ending}", P)


@pytest.mark.parametrize("layout", [Layout("depth"), Layout(Cuts("row", (0, 4)))], ids=["axis", "cuts"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_layouts_that_do_not_fit(tmp_path, ending, layout):
    path = tmp_path / f"x{ending}"
    write(path, np.eye(5))
    assert errors(2, lambda comm: load(path, ProcessGrid((1, 2)), layout))[0] is LayoutError
    assert errors(2, lambda comm: load(path, ProcessGrid((1, 2)), Layout(partial="col")))[0] is LayoutError


# ---------------------------------------------------------------------------------------------- dry


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("rank", (0, 5))
def test_dry(tmp_path, ending, rank):
    path = tmp_path / f"x{ending}"
    write(path, numbers((40, 33), "int64"))

    def program(comm):
        A = load(path, ProcessGrid((2, 3)), Layout("row", "col"))
        save(tmp_path / f"y{ending}", A)
        save(path, A)
        return A

    A, _ = pdla.dry_run(6, program, rank=rank)
    assert (A.shape, A.dtype, A.local.shape, A.xp.name) == ((40, 33), np.int64, (20, 11), "meta")
    assert os.listdir(tmp_path) == [path.name]
    assert same(read(path), numbers((40, 33), "int64"))
