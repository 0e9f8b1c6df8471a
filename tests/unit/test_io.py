"""Files, in the threads world: every layout reads and writes what NumPy would; damage is one error on every rank."""

import gzip
import os
import sys
import time
import tracemalloc
from contextlib import suppress
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse

import pdla
from pdla import Balanced, Cuts, Cyclic, Layout, ProcessGrid
from pdla.errors import DeadlockError, FileError, LayoutError, RemoteError
from pdla.io import files, hdf5, load, mtx, npy, save

ENDINGS = (".npy", ".mtx", ".mtx.gz", ".h5", ".hdf5")
DTYPES = ("bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64", "complex64", "complex128")
LAYOUTS = {
    "blocks": Layout("row", "col"),
    "swapped": Layout("col", "row"),
    "rows": Layout(rows="row"),
    "columns": Layout(cols="col"),
    "copies": Layout(),
    "nested": Layout(rows=("col", "row")),
    "nested columns": Layout(cols=(Cyclic("row", 2), "col")),
    "cyclic": Layout(Cyclic("row", 2), Cyclic("col", 3, source=0)),
    "strided": Layout(Cyclic("row", 1), Cyclic("col", 1)),
    "units": Layout(Balanced("row", 4), "col"),
}
GRIDS = {1: (1, 1), 2: (1, 2), 3: (3, 1), 4: (2, 2), 6: (2, 3), 5: (2, 2)}  # of five ranks one is idle


def numbers(shape, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2 if dtype == "bool" else 100, shape)
    return (x + 1j * rng.integers(0, 100, shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def write(path, x):
    """What other programs would have written."""
    if path.suffix == ".npy":
        np.save(path, x)
    elif path.suffix in (".h5", ".hdf5"):
        with h5py.File(path, "w") as file:
            file["matrix"] = x
    else:
        with gzip.open(path, "wb") if path.suffix == ".gz" else path.open("wb") as file:
            if x.size:
                scipy.io.mmwrite(file, x, symmetry="general")
            else:  # from which SciPy 1.14 to 1.16 do not come back
                file.write("%%MatrixMarket matrix array real general\n{} {}\n".format(*x.shape).encode())


def read(path):
    """What other programs would read."""
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix in (".h5", ".hdf5"):
        with h5py.File(path, "r") as file:
            return file["matrix"][...]
    return scipy.io.mmread(path)


def same(x, y):
    return x.shape == y.shape and x.dtype == y.dtype and np.array_equal(x, y)


def loaded(P, path, layout=LAYOUTS["blocks"], shape=None, **options):
    """The matrix in a file, as loaded on P ranks; each rank's block is its part of the whole, in native byte order."""

    def program(comm):
        A = load(path, ProcessGrid(shape or GRIDS[P]), layout, **options)
        whole = A.gather()
        rows, cols = (held.indices() for held in A.indices)
        assert A.dtype.isnative and np.array_equal(A.local, whole[np.ix_(rows, cols)])
        assert A.check_copies()
        return whole

    return pdla.run(P, program)[0]


def saved(P, path, x, layout=LAYOUTS["blocks"], **options):
    def program(comm):
        grid = ProcessGrid(GRIDS[P])
        save(path, pdla.from_global(x, grid, layout), **options)

    pdla.run(P, program)
    assert not list(path.parent.glob(".*.part"))


def errors(P, call):
    """The class and text of the error that every one of P ranks raises in call(comm)."""

    def program(comm):
        try:
            call(comm)
        except (DeadlockError, RemoteError):
            raise
        except Exception as error:
            return type(error), str(error)
        raise AssertionError("no error")

    said = set(pdla.run(P, program))
    assert len(said) == 1, said
    return said.pop()


def load_error(path, P=3, layout=LAYOUTS["blocks"], **options):
    kind, text = errors(P, lambda comm: load(path, ProcessGrid(GRIDS[P]), layout, **options))
    assert kind is FileError and str(path) in text
    return text


def save_error(path, P=3, x=None, **options):
    x = numbers((5, 4)) if x is None else x

    def call(comm):
        save(path, pdla.from_global(x, ProcessGrid(GRIDS[P]), Layout("row")), **options)

    kind, text = errors(P, call)
    assert kind is FileError and str(path) in text
    return text


# ---------------------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("ending", (".npy", ".mtx", ".h5"))
@pytest.mark.parametrize("P", GRIDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_round_trip(tmp_path, ending, P, name):
    path, x = tmp_path / f"x{ending}", numbers((17, 13))
    write(path, x)
    assert same(loaded(P, path, LAYOUTS[name]), x)
    out = tmp_path / f"y{ending}"
    saved(P, out, x, LAYOUTS[name])
    assert same(read(out), x)


@pytest.mark.parametrize("ending", (".npy", ".h5"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(tmp_path, ending, dtype):
    path, x = tmp_path / f"x{ending}", numbers((6, 7), dtype)
    saved(4, path, x)
    assert same(read(path), x)
    assert same(loaded(4, path), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_matrix_market(tmp_path, dtype):
    path, x = tmp_path / "x.mtx", numbers((6, 7), dtype)
    if np.dtype(dtype).kind in "fc":
        x = x / np.asarray(8, x.real.dtype)
    saved(4, path, x)
    y = loaded(4, path)
    assert y.dtype == {"f": "float64", "c": "complex128"}.get(x.dtype.kind, "uint64" if dtype == "uint64" else "int64")
    assert same(y.astype(dtype), x)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (1, 9), (2, 1)])
def test_small_and_empty(tmp_path, ending, shape):
    path, x = tmp_path / f"x{ending}", numbers(shape)
    saved(6, path, x)
    assert loaded(6, path).shape == shape
    assert np.array_equal(loaded(6, path), x)
    write(path, x)
    assert same(loaded(4, path, LAYOUTS["cyclic"]), x)


@pytest.mark.parametrize("dtype", ("bool", "uint16", "int8", "float32", "complex64", "complex128"))
def test_matrix_market_without_rows(tmp_path, dtype):
    """scipy's writer does not come back from complex matrices without rows: rank 0 would wait for ever."""
    path, x = tmp_path / "x.mtx", np.ones((0, 3), dtype)
    saved(2, path, x)
    shape, found = mtx.header(path, None)
    assert shape == (0, 3) and found == mtx.DTYPES[mtx.FIELDS[x.dtype.kind]]
    assert loaded(3, path).shape == (0, 3)


@pytest.mark.parametrize("dtype", (">f8", "<f8", ">i2", ">c8"))
@pytest.mark.parametrize("ending", (".npy", ".h5"))
def test_byte_orders(tmp_path, ending, dtype):
    path, x = tmp_path / f"x{ending}", numbers((9, 8), dtype)
    write(path, x)
    assert same(loaded(4, path), x.astype(np.dtype(dtype).newbyteorder("=")))
    saved(4, path, x)
    assert same(read(path), x.astype(np.dtype(dtype).newbyteorder("=")))


@pytest.mark.parametrize(
    ("ending", "dtype"), [(".npy", ">f8"), (".npy", ">i4"), (".mtx", ">f8"), (".mtx.gz", ">c16"), (".h5", ">c8"), (".h5", ">c32")]
)
def test_blocks_in_another_byte_order_are_saved_as_the_numbers_that_they_are(tmp_path, ending, dtype):
    path, x = tmp_path / f"x{ending}", (numbers((6, 4), dtype) / 4).astype(dtype)

    def program(comm):
        save(path, pdla.from_local(x[comm.rank * 3 : comm.rank * 3 + 3], (6, 4), ProcessGrid((2, 1)), Layout("row")))

    pdla.run(2, program)
    assert same(loaded(1, path), x.astype(x.dtype.newbyteorder("=")))


@pytest.mark.parametrize("dtype", ("float16", "float32", "complex64"))
def test_short_floats_keep_their_values_in_matrix_market(tmp_path, dtype):
    path, x = tmp_path / "x.mtx", (numbers((5, 3), dtype) / 7).astype(dtype)
    saved(2, path, x)
    assert np.array_equal(loaded(2, path), x)


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


def test_version_2_of_npy(tmp_path):
    path, x = tmp_path / "x.npy", numbers((9, 8))
    with path.open("wb") as file:
        np.lib.format.write_array(file, x, version=(2, 0))
    assert same(loaded(3, path), x)


def test_more_after_the_matrix_is_not_read(tmp_path):
    path, x = tmp_path / "x.npy", numbers((9, 8))
    with path.open("wb") as file:
        np.save(file, x)
        np.save(file, x + 1)
    assert same(loaded(3, path), x)


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


@pytest.mark.parametrize("panel", [20, 250])
@pytest.mark.parametrize("name", LAYOUTS)
def test_hdf5_in_many_panels(tmp_path, name, panel, monkeypatch):
    monkeypatch.setattr(hdf5, "PANEL", panel)
    path, x = tmp_path / "x.h5", numbers((23, 13))
    saved(6, path, x, LAYOUTS[name])
    assert same(read(path), x)
    assert same(loaded(6, path, LAYOUTS[name]), x)


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


@pytest.mark.parametrize("panel", [250, 2**20])
@pytest.mark.parametrize("name", LAYOUTS)
def test_hdf5_in_chunks(tmp_path, name, panel, monkeypatch):
    monkeypatch.setattr(hdf5, "PANEL", panel)
    path, x = tmp_path / "x.h5", numbers((23, 13))
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=x, chunks=(5, 4), compression="gzip")
    assert same(loaded(6, path, LAYOUTS[name]), x)


def test_a_chunk_of_hdf5_is_unpacked_once(tmp_path, monkeypatch):
    """Not for each run of its rows, of which there are five."""
    path, x, read_rows = tmp_path / "x.h5", numbers((80, 8)), []
    with h5py.File(path, "w") as file:
        file.create_dataset("chunks", data=x, chunks=(20, 8), compression="gzip")
        file["plain"] = x

    def program(comm, dataset):
        return load(path, ProcessGrid(2), Layout(Cyclic("row", 2)), dataset=dataset).gather()

    whole = h5py.Dataset.__getitem__

    def counted(self, index):
        read_rows.append(len(part := whole(self, index)))
        return part

    monkeypatch.setattr(h5py.Dataset, "__getitem__", counted)
    for dataset, expected in ("chunks", [18] * 8), ("plain", [2] * 40):
        read_rows.clear()
        assert same(pdla.run(2, program, dataset)[0], x)
        assert read_rows == expected


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


@pytest.mark.parametrize("name", LAYOUTS)
def test_hdf5_with_mpi_is_written_by_all_ranks(tmp_path, monkeypatch, name):
    """As far as it goes without such an h5py: a file opened by MPI is opened by each rank alone."""
    path, x, opened, true_file = tmp_path / "x.h5", numbers((17, 13)), [], h5py.File

    def file(name, mode, driver=None, comm=None):
        if driver == "mpio":
            opened.append(comm)
        return true_file(name, mode)

    monkeypatch.setattr(h5py, "get_config", lambda: SimpleNamespace(mpi=True))
    monkeypatch.setattr(h5py, "File", file)

    def program(comm):
        comm.mpi = comm.rank
        save(path, pdla.from_global(x, ProcessGrid((2, 3)), LAYOUTS[name]))

    pdla.run(6, program)
    assert sorted(opened) == list(range(6))
    assert same(read(path), x)


def test_sparse_is_made_dense(tmp_path):
    path, x = tmp_path / "x.mtx", np.where(np.arange(600).reshape(30, 20) % 7, 0.0, numbers((30, 20)))
    scipy.io.mmwrite(path, scipy.sparse.coo_array(x))
    assert same(loaded(4, path, LAYOUTS["cyclic"]), x)


def test_symmetric_pattern(tmp_path):
    path = tmp_path / "x.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern symmetric\n3 3 2\n1 1\n3 1\n")
    assert same(loaded(2, path), np.array([[1.0, 0, 1], [0, 0, 0], [1, 0, 0]]))


@pytest.mark.parametrize(("kind", "lines"), [
    ("coordinate real", "3 3 3\n1 1 1.5D+02\n2 2 -3.0d-1\n\n 3\t1 .5 \r\n"),
    ("array real", "3 3\n" + "150\n0\n.5\n0.0D0\n-3.d-1\n0\n0E0\n0\n0"),
])
def test_fortran_s_exponents(tmp_path, kind, lines, monkeypatch):
    path, x = tmp_path / "x.mtx.gz", np.array([[150, 0, 0], [0, -0.3, 0], [0.5, 0, 0]])
    path.write_bytes(gzip.compress(f"%%MatrixMarket matrix {kind} general\n% D0\n\n{lines}".encode()))
    for size in (1, 1 << 20):
        monkeypatch.setattr(pdla.io.lines, "CHUNK", size)
        assert same(loaded(2, path), x)


def test_endings_in_capitals_and_a_string(tmp_path):
    x = numbers((4, 5))
    for ending in ENDINGS:
        write(tmp_path / f"x{ending}", x)
        os.rename(tmp_path / f"x{ending}", tmp_path / f"X{ending.upper()}")
        assert same(loaded(2, str(tmp_path / f"X{ending.upper()}")), x)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "far").mkdir()
    link, x = tmp_path / "x.npy", numbers((4, 5))
    link.symlink_to(tmp_path / "far" / "y.npy")
    saved(2, link, x)
    assert link.is_symlink() and same(np.load(tmp_path / "far" / "y.npy"), x)


@pytest.mark.parametrize("ending", ENDINGS)
def test_permissions_stay(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    for mode in (0o600, 0o640):
        write(path, np.eye(3))
        path.chmod(mode)
        saved(2, path, numbers((4, 5)))
        assert path.stat().st_mode & 0o777 == mode
        path.unlink()


# ---------------------------------------------------------------------------------------------- datasets


def test_the_other_datasets_stay(tmp_path):
    path, x, y = tmp_path / "x.h5", numbers((5, 4)), numbers((3, 9), "int32")
    saved(3, path, x, dataset="a")
    saved(3, path, y, dataset="deep/b")
    saved(3, path, y, dataset="a")
    saved(3, path, x, dataset="deep/b")
    assert same(loaded(3, path, dataset="a"), y)
    assert same(loaded(3, path, dataset="deep/b"), x)


def test_the_only_dataset_needs_no_name(tmp_path):
    path, x = tmp_path / "x.h5", numbers((5, 4))
    saved(3, path, x, dataset="deep/b")
    assert same(loaded(3, path), x)


@pytest.mark.parametrize("x", [numbers((5, 4)), numbers((3, 9), "int32")], ids=["same", "other"])
def test_attributes_stay(tmp_path, x):
    path, attributes = tmp_path / "x.h5", {"units": "m/s", "range": np.arange(2.0), "empty": h5py.Empty("f8")}
    write(path, numbers((5, 4)))
    with h5py.File(path, "a") as file:
        file["scale"] = np.arange(5)
        file["scale"].make_scale("time")
        file["matrix"].dims[0].attach_scale(file["scale"])
        file["matrix"].attrs.update(attributes)
    saved(2, path, x)
    assert same(read(path), x)
    with h5py.File(path) as file:
        assert file["matrix"].dims[0]["time"] == file["scale"]
        assert all(np.array_equal(file["matrix"].attrs[name], value) for name, value in attributes.items())


def test_other_names_of_a_dataset_are_of_what_is_saved_to_it(tmp_path):
    path, x = tmp_path / "x.h5", numbers((5, 4))
    write(path, x)
    with h5py.File(path, "a") as file:
        file["other"] = file["matrix"]
    saved(2, path, 2 * x, dataset="/./matrix")
    assert same(loaded(2, path, dataset="other"), 2 * x) and same(loaded(2, path, dataset="matrix"), 2 * x)


def test_a_save_writes_to_no_other_file(tmp_path):
    path, other, x = tmp_path / "x.h5", tmp_path / "other.h5", numbers((5, 4))
    write(other, x)
    with h5py.File(path, "w") as file:
        file["link"] = h5py.ExternalLink("other.h5", "matrix")
        file["far"] = h5py.ExternalLink("other.h5", "/")
        file["soft"] = h5py.SoftLink("/link")
        file["gone"], file["nowhere"] = h5py.ExternalLink("none.h5", "matrix"), h5py.SoftLink("/nothing")
        file.create_dataset("raw", data=x, external=[(str(tmp_path / "raw"), 0, x.nbytes)])
        virtual = h5py.VirtualLayout(x.shape, x.dtype)
        virtual[:] = h5py.VirtualSource("other.h5", "matrix", x.shape)
        file.create_virtual_dataset("virtual", virtual)
    raw = (tmp_path / "raw").read_bytes()
    for name in ("link", "soft", "far/matrix", "far/new"):
        assert f"is a link into the file {other}; save to that one" in save_error(path, dataset=name)
    for name, target in (("gone", "'matrix'"), ("nowhere/matrix", "'/nothing'")):
        assert f"is a link to {target}, which is not there" in save_error(path, dataset=name)
    for name in ("raw", "virtual"):
        saved(2, path, 2 * x, dataset=name)
        assert same(loaded(2, path, dataset=name), 2 * x)
    assert same(read(other), x) and (tmp_path / "raw").read_bytes() == raw


def test_what_is_no_dataset_or_has_a_type_that_h5py_cannot_name_is_in_nobody_s_way(tmp_path):
    path, x = tmp_path / "x.h5", numbers((5, 4))
    write(path, x)
    with h5py.File(path, "a") as file:
        file["type"] = np.dtype("f8")
    assert same(loaded(2, path), x)
    with h5py.File(path, "a") as file:
        h5py.h5d.create(file.id, b"odd", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((3,)))
    assert same(loaded(2, path, dataset="matrix"), x)
    assert "no dataset 'type'; the file has matrix, odd" in load_error(path, dataset="type")
    load_error(path, dataset="odd")


def test_datasets_that_are_not_there(tmp_path):
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        assert "the file has none" in load_error(path)
        file["a"], file["g/b"], file["dangling"] = np.eye(3), np.eye(4), h5py.SoftLink("/nowhere")
    assert "which dataset? Give dataset=name; the file has a, g/b" in load_error(path)
    for name in ("c", "g", "dangling"):
        assert f"no dataset {name!r}; the file has a, g/b" in load_error(path, dataset=name)
    write(path, np.eye(3))
    assert "no dataset 'c'; the file has matrix" in load_error(path, dataset="c"), "though it is the only one"


@pytest.mark.parametrize("name", ["", "/", None, 3, "a\0b"])
def test_a_dataset_has_a_name(tmp_path, name):
    assert f"dataset={name!r}: give the name that it is to have" in save_error(tmp_path / "x.h5", dataset=name)


@pytest.mark.parametrize("name", [3, "matrix\0s"])
def test_what_names_no_dataset(tmp_path, name):
    """HDF5 would read a name to its first zero."""
    saved(2, tmp_path / "x.h5", np.eye(4))
    assert f"dataset={name!r}: give the name" in load_error(tmp_path / "x.h5", dataset=name)


def test_a_group_is_not_overwritten(tmp_path):
    path, x = tmp_path / "x.h5", numbers((5, 4))
    saved(2, path, x, dataset="g/b")
    assert "Group" in save_error(path, dataset="g")
    assert same(loaded(2, path, dataset="g/b"), x)


def test_other_formats_have_no_datasets(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.eye(3))
    assert "dataset='a' is for HDF5" in load_error(path, dataset="a")


def test_without_h5py(tmp_path, monkeypatch):
    path = tmp_path / "x.h5"
    write(path, np.eye(3))
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert "pip install h5py" in load_error(path)
    assert "pip install h5py" in save_error(path)


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


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_no_file_is_neither_opened_nor_replaced(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.symlink_to("/dev/null")  # a pipe would keep those waiting who open it
    assert "no file, but a pipe, a socket or a device" in load_error(path)
    path.unlink()
    os.mkfifo(path)
    assert "no file, but a pipe, a socket or a device" in save_error(path)
    assert path.is_fifo() and os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("P", (1, 5))
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("share", (0, 0.05, 0.5, 0.98))
def test_truncated(tmp_path, ending, P, share):
    path = tmp_path / f"x{ending}"
    write(path, numbers((40, 40)))
    os.truncate(path, int(share * path.stat().st_size))
    load_error(path, P)


def test_one_line_of_rubbish_is_no_matrix_market(tmp_path):
    """Such as a short file that gzip has packed, under a name that does not say so."""
    path = tmp_path / "x.mtx"
    path.write_bytes(b"\x1f\x8b rubbish")
    assert "Not a Matrix Market file" in load_error(path)


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


@pytest.mark.parametrize(("kind", "line", "expected"), [
    ("array real", "1.5+100", "a real number; an exponent is E or D and an integer"),
    ("array real", "12abc", "a real number"),
    ("array real", "1 2", "a real number"),
    ("array integer", "1.5", "an integer"),
    ("coordinate complex", "1 1 1.5D+02 1e", "a row, a column, a real number, a real number"),
    ("coordinate pattern", "1 1 3", "a row, a column"),
])
def test_a_line_of_matrix_market_that_is_no_entry(tmp_path, kind, line, expected):
    path = tmp_path / "x.mtx"
    path.write_text(f"%%MatrixMarket matrix {kind} general\n% a comment\n2 1{' 2' * ('coo' in kind)}\n\n{line}\n")
    assert load_error(path).startswith(f"rank 0: {path}: line 5: {line!r}: expected {expected}")


@pytest.mark.parametrize("kind", ["array real symmetric", "array real skew-symmetric", "array complex hermitian"])
@pytest.mark.parametrize("shape", [(2, 3), (3, 2)])
def test_half_of_a_matrix_that_is_not_square(tmp_path, kind, shape):
    path = tmp_path / "x.mtx"
    path.write_text(f"%%MatrixMarket matrix {kind}\n{shape[0]} {shape[1]}\n" + "1 1\n"[2 * ("real" in kind) :] * 3)
    assert f"{kind.split()[2]}, but {shape[0]} x {shape[1]}: it must be square" in load_error(path)


@pytest.mark.parametrize("header", [
    "{'descr': '<f8', 'shape': (3, 3)}", "{'descr': 'nonsense'", "(", "{}", "9" * 50,
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-2, 3), }",
])
def test_damaged_header(tmp_path, header):
    path = tmp_path / "x.npy"
    text = header.ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(72))
    load_error(path)


@pytest.mark.parametrize("ending", (".npy", ".h5"))
@pytest.mark.parametrize("x", [np.array(3.0), np.zeros((2, 3, 4)), np.zeros(5)], ids=["scalar", "three", "one"])
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
    says = f"elements of dtype {x.dtype} are not supported" if version == (1, 0) else "version (3, 0) of the .npy format"
    assert says in load_error(tmp_path / "x.npy")


def test_structured_hdf5(tmp_path):
    write(tmp_path / "x.h5", np.zeros((2, 2), "i4,f4"))
    assert "not supported" in load_error(tmp_path / "x.h5")


def test_elements_that_files_do_not_know(tmp_path):
    import ml_dtypes

    assert "bfloat16" in save_error(tmp_path / "x.npy", x=np.ones((3, 3), ml_dtypes.bfloat16))


@pytest.mark.parametrize("dtype", ("longdouble", "clongdouble"))
def test_long_double_is_too_long_for_matrix_market(tmp_path, dtype):
    assert f"{np.dtype(dtype)}: Matrix Market" in save_error(tmp_path / "x.mtx", x=np.ones((3, 3), dtype))


@pytest.mark.parametrize("ending", (".txt", "", ".npz", ".mtx.bz2"))
def test_unknown_endings(tmp_path, ending):
    for text in (load_error(tmp_path / f"x{ending}"), save_error(tmp_path / f"x{ending}")):
        assert ".npy, .mtx, .mtx.gz, .h5, .hdf5" in text


@pytest.mark.parametrize("path", [3, None, b"x.npy"])
def test_what_is_no_path(path):
    for call in load, lambda path, grid, layout: save(path, pdla.zeros((2, 2), grid, layout)):
        kind, text = errors(2, lambda comm, call=call: call(path, ProcessGrid(2), Layout("row")))
        assert kind is FileError and f"path={path!r}: give a text or a pathlib.Path" in text


@pytest.mark.parametrize("P", GRIDS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_nowhere_to_write(tmp_path, ending, P):
    save_error(tmp_path / "nowhere" / f"x{ending}", P)


@pytest.mark.parametrize("ending", ENDINGS)
def test_links_in_a_circle(tmp_path, ending):
    (tmp_path / f"x{ending}").symlink_to(tmp_path / "y")
    (tmp_path / "y").symlink_to(tmp_path / f"x{ending}")
    save_error(tmp_path / f"x{ending}")
    assert sorted(os.listdir(tmp_path)) == sorted([f"x{ending}", "y"])


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_name_too_long(tmp_path, ending):
    assert "name too long" in save_error(tmp_path / f"{'x' * (254 - len(ending))}{ending}").lower()


@pytest.mark.parametrize("layout", [Layout("depth"), Layout(Cuts("row", (0, 4)))], ids=["axis", "cuts"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_layouts_that_do_not_fit(tmp_path, ending, layout):
    path = tmp_path / f"x{ending}"
    write(path, np.eye(5))
    assert errors(2, lambda comm: load(path, ProcessGrid((1, 2)), layout))[0] is LayoutError
    assert errors(2, lambda comm: load(path, ProcessGrid((1, 2)), Layout(partial="col")))[0] is LayoutError


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
    true_filled = files.filled

    def filled(path, *rest):
        if pdla.world().rank == 0:
            with suppress(FileNotFoundError):
                os.replace(new, path)
        pdla.world().share(None)
        return true_filled(path, *rest)

    for form in (npy, mtx, hdf5):
        monkeypatch.setattr(form, "filled", filled)
    assert str(path) in load_error(path)
    write(path, other)
    assert same(loaded(3, path), other)


# ---------------------------------------------------------------------------------------------- saves that fail


@pytest.mark.parametrize("check", (True, False))
@pytest.mark.parametrize(("ending", "room"), [(".npy", 0), (".h5", 0), (".h5", 100_000)])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, ending, room, check):
    """HDF5 is never the one to find it full, by which it takes the process down: not at its headers, and not at the elements."""
    path, old = tmp_path / f"x{ending}", numbers((3, 3))
    write(path, old)

    def full(file, first, size):
        if first + size > room:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pdla.config.override(check=check):
        assert save_error(path, x=numbers((200, 100))) == f"rank 0: {path}: No space left on device"
    assert same(read(path), old) and os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("how", [{}, {"chunks": (10, 10)}, {"chunks": (10, 10), "compression": "gzip"}])
def test_a_full_disk_is_seen_before_hdf5_needs_more_for_what_it_has(tmp_path, monkeypatch, how):
    """It drops what it cannot write of a chunk when it closes a file, and raises no error."""
    path, x, true_take = tmp_path / "x.h5", numbers((200, 100)), os.posix_fallocate
    with h5py.File(path, "w") as file:
        file.create_dataset("matrix", x.shape, x.dtype, **how)

    def full(file, first, size):
        if first + size > 100_000:
            raise OSError(28, "No space left on device")
        true_take(file, first, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert save_error(path, x=x) == f"rank 0: {path}: No space left on device"
    monkeypatch.undo()
    saved(2, path, x)
    assert same(read(path), x)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_failure_at_the_end_leaves_the_old_file(tmp_path, monkeypatch, ending):
    path, old = tmp_path / f"x{ending}", numbers((3, 3))
    write(path, old)

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refused)
    assert save_error(path) == f"rank 0: {path}: Permission denied"
    assert same(read(path), old) and os.listdir(tmp_path) == [path.name]


def test_a_failure_on_one_writer_leaves_the_old_file(tmp_path, monkeypatch):
    path, old, true_put = tmp_path / "x.npy", numbers((3, 3)), pdla.array.numpy.put
    np.save(path, old)

    def put(x, rows, cols, source):
        if pdla.world().rank == 2:
            raise OSError(5, "Input/output error")
        true_put(x, rows, cols, source)

    monkeypatch.setattr(pdla.array.numpy, "put", put)
    assert save_error(path) == f"rank 2: {path}: Input/output error"
    assert same(np.load(path), old) and os.listdir(tmp_path) == ["x.npy"]


def test_a_failure_half_way_through_hdf5(tmp_path, monkeypatch):
    path, old, true_setitem = tmp_path / "x.h5", numbers((8, 3)), h5py.Dataset.__setitem__
    write(path, old)
    monkeypatch.setattr(hdf5, "PANEL", 50)

    def setitem(self, rows, value):
        if rows.start > 2:
            raise OSError(28, "No space left on device")
        true_setitem(self, rows, value)

    monkeypatch.setattr(h5py.Dataset, "__setitem__", setitem)
    assert save_error(path) == f"rank 0: {path}: No space left on device"
    assert same(read(path), old) and os.listdir(tmp_path) == ["x.h5"]


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
