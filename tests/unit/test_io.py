"""Files, in the threads world: every layout reads and writes what NumPy would; damage is one error on every rank."""

import fcntl
import gzip
import io
import os
import sys
import time
import tracemalloc
from contextlib import suppress
from types import SimpleNamespace

import h5py
import ml_dtypes
import numpy as np
import pytest
import scipy.io
import scipy.sparse

import pdla
from pdla import Balanced, Cuts, Cyclic, Layout, ProcessGrid
from pdla.errors import DeadlockError, FileError, LayoutError, RemoteError
from pdla.io import files, hdf5, load, mtx, npy, save

ENDINGS = (".npy", ".mtx", ".mtx.gz", ".mtx.bz2", ".h5", ".hdf5")
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
LEAST, MOST = -(2**63), 2**63 - 1  # of int64
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
        with mtx._opener(path)(path, "wb") as file:
            if x.size:
                scipy.io.mmwrite(text := io.BytesIO(), x, symmetry="general")
                file.write(text.getvalue())
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


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BITS = np.arange(2**16, dtype=np.uint16).reshape(2**6, 2**10).view(BFLOAT16)  # every number
BITS = np.where(np.isnan(BITS.astype("float32")), BFLOAT16.type(0), BITS)


def same_bits(x, y):
    return x.dtype == y.dtype == BFLOAT16 and np.array_equal(x.view(np.uint16), y.view(np.uint16))


@pytest.mark.parametrize("ending", (".npy", ".h5"))
@pytest.mark.parametrize("name", LAYOUTS)
def test_bfloat16(tmp_path, ending, name, monkeypatch):
    path = tmp_path / f"x{ending}"
    for form in (npy, hdf5):
        monkeypatch.setattr(form, "PANEL", 2**15)
    saved(6, path, BITS, LAYOUTS[name])
    assert same_bits(loaded(6, path, LAYOUTS[name]), BITS)


def test_bfloat16_in_npy_is_what_numpy_saves(tmp_path):
    """Bytes without a name, of which JAX and others know what they are."""
    saved(4, tmp_path / "x.npy", BITS)
    np.save(tmp_path / "y.npy", BITS)
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()
    np.save(tmp_path / "y.npy", np.asfortranarray(BITS))
    assert same_bits(loaded(4, tmp_path / "y.npy"), BITS)
    np.save(tmp_path / "y.npy", np.zeros((2, 2), "V3"))
    assert "elements of dtype |V3 are not supported" in load_error(tmp_path / "y.npy")


def test_bfloat16_in_hdf5_is_read_as_numbers_by_others(tmp_path):
    path, x = tmp_path / "x.h5", (numbers((5, 4)) / 8).astype(BFLOAT16)
    saved(4, path, x)
    assert same(read(path), x.astype("float32"))
    with h5py.File(path) as file:
        kind = file["matrix"].id.get_type()
    assert (kind.get_size(), kind.get_fields(), kind.get_ebias()) == (2, (15, 7, 8, 0, 7), 127)


@pytest.mark.parametrize("how", ["little", "big", "opaque"])
def test_bfloat16_in_hdf5_of_others(tmp_path, how):
    path, x = tmp_path / "x.h5", (numbers((5, 4)) / 8).astype(BFLOAT16)
    kind = pdla.io.bfloat16.for_h5py(BFLOAT16).id
    if how == "big":
        kind.set_order(h5py.h5t.ORDER_BE)
    with h5py.File(path, "w") as file:
        if how == "opaque":
            file["matrix"] = x
        else:
            file.create_dataset("matrix", data=x.astype("float32"), dtype=h5py.Datatype(kind))
        file["other"] = file["matrix"]
    for layout in (LAYOUTS["blocks"], LAYOUTS["strided"]):
        assert same_bits(loaded(4, path, layout, dataset="matrix"), x)
        saved(4, path, 2 * x, layout)
        assert same_bits(loaded(4, path, dataset="other"), 2 * x), "in its place"
        saved(4, path, x, layout)


def test_bfloat16_without_rows_in_matrix_market(tmp_path):
    saved(2, tmp_path / "x.mtx", np.ones((0, 3), BFLOAT16))
    assert same(loaded(2, tmp_path / "x.mtx"), np.ones((0, 3)))


def test_bfloat16_and_other_dtypes_in_turn(tmp_path):
    path, x = tmp_path / "x.h5", numbers((5, 4), "float32")
    for y in (x.astype(BFLOAT16), 2 * x, (3 * x).astype(BFLOAT16), x[:3].astype(BFLOAT16), x.astype("int16")):
        saved(4, path, y)
        assert loaded(2, path).dtype == y.dtype and np.array_equal(loaded(2, path), y)


def test_bfloat16_without_ml_dtypes(tmp_path, monkeypatch):
    class Without:
        """NumPy, where nobody has imported ml_dtypes."""

        def dtype(self, given):
            if given == "bfloat16":
                raise TypeError(f"data type {given!r} not understood")
            return np.dtype(given)

        def __getattr__(self, name):
            return getattr(np, name)

    for path in (tmp_path / "x.npy", tmp_path / "x.h5"):
        saved(2, path, BITS)
        monkeypatch.setattr(files, "np", Without())
        assert "need ml_dtypes: pip install ml_dtypes" in load_error(path)
        monkeypatch.undo()


@pytest.mark.parametrize("dtype", ("bfloat16", "float16", "float32", "complex64"))
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


@pytest.mark.parametrize(("kind", "text", "x"), [
    ("array real", "2 1\n+1.5\n-1.5", [[1.5], [-1.5]]),
    ("array real", "+2 +1\n+1.5D+00\n+.5e+1", [[1.5], [5.0]]),
    ("array real", "2 1\n+inf\n+1e-1", [[np.inf], [0.1]]),
    ("array integer", "1 1\n+7", [[7]]),
    ("coordinate complex", "1 1 +1\n+1 +1 1.0 +2.0", [[1 + 2j]]),
])
def test_numbers_with_a_plus(tmp_path, kind, text, x):
    """As C's %+e and Fortran's SP write them."""
    path = tmp_path / "x.mtx"
    path.write_text(f"%%MatrixMarket matrix {kind} general\n% +1 more\n{text}\n")
    assert same(loaded(2, path), np.array(x))


def test_a_plus_between_digits_is_none_of_a_number(tmp_path):
    path = tmp_path / "x.mtx"
    path.write_text("%%MatrixMarket matrix array real general\n1+1 1\n" + "1\n" * 11)
    load_error(path)


@pytest.mark.parametrize(("kind", "text", "x"), [
    ("array real symmetric", "3 3\n1 2 3 4 5 6", [[1, 2, 3], [2, 4, 5], [3, 5, 6]]),
    ("array integer skew-symmetric", "3 3\n1 2 3", [[0, -1, -2], [1, 0, -3], [2, 3, 0]]),
    ("array real skew-symmetric", "1 1\n", [[0.0]]),
    ("array complex hermitian", "2 2\n1,0 2,1 3,0", [[1, 2 - 1j], [2 + 1j, 3]]),
    ("coordinate real skew-symmetric", "2 2 2\n1,1,0 1,2,5", [[0.0, 5.0], [-5.0, 0.0]]),
    ("coordinate complex hermitian", "2 2 2\n1,1,3,-0 2,1,5,1", [[3, 5 - 1j], [5 + 1j, 0]]),
    ("coordinate integer symmetric", f"2 2 4\n1,1,{MOST} 2,1,{MOST} 2,1,1 2,1,-2", [[MOST, MOST - 1], [MOST - 1, 0]]),
])
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_symmetries(tmp_path, kind, text, x, chunk, monkeypatch):
    monkeypatch.setattr(pdla.io.lines, "CHUNK", chunk)
    path, (sizes, entries) = tmp_path / "x.mtx", text.split("\n")
    path.write_text(f"%%MatrixMarket matrix {kind}\n{sizes}\n" + "\n \t\n".join(entries.split()).replace(",", " "))
    assert np.array_equal(loaded(2, path), x)


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


def test_a_virtual_dataset_has_its_sources(tmp_path):
    """HDF5 reads zeros for those that are not there."""
    path, source, x = tmp_path / "x.h5", tmp_path / "source.h5", numbers((5, 4))
    write(source, x)
    with h5py.File(path, "w") as file:
        file["own"] = x
        for name, *place in (
            ("virtual", "source.h5", "matrix"), ("far", str(source), "matrix"), ("inner", ".", "own"), ("nested", ".", "virtual"),
            ("no file", "none.h5", "matrix"), ("no dataset", "source.h5", "none"), ("nowhere", ".", "no file"),
        ):
            virtual = h5py.VirtualLayout(x.shape, x.dtype)
            virtual[:] = h5py.VirtualSource(*place, x.shape)
            file.create_virtual_dataset(name, virtual)
    for name in ("virtual", "far", "inner", "nested"):
        assert same(loaded(2, path, dataset=name), x)
    for name in ("no file", "nowhere"):
        assert "'/no file' is virtual, and lies in the file none.h5, which is not there" in load_error(path, dataset=name)
    assert "lies in the dataset 'none' of source.h5, which is not there" in load_error(path, dataset="no dataset")
    source.unlink()
    for name in ("virtual", "nested"):
        assert "'/virtual' is virtual, and lies in the file source.h5, which is not there" in load_error(path, dataset=name)


def test_a_virtual_dataset_that_grows_with_its_sources(tmp_path):
    """HDF5 takes it for empty where none is there."""
    path, x = tmp_path / "x.h5", numbers((4, 3))
    rows, part = h5py.h5s.create_simple((2, 3), (h5py.h5s.UNLIMITED, 3)), h5py.h5s.create_simple((2, 3))
    rows.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (2, 3), (2, 3))
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    how.set_virtual(rows, b"100%%%b.h5", b"matrix", part)
    with h5py.File(path, "w") as file:
        h5py.h5d.create(file.id, b"matrix", h5py.h5t.NATIVE_DOUBLE, rows, dcpl=how)
    assert "lies in the file 100%0.h5, which is not there" in load_error(path)
    for n in range(2):
        write(tmp_path / f"100%{n}.h5", x[2 * n : 2 * n + 2])
    assert same(loaded(2, path), x)


def test_a_virtual_dataset_s_sources_are_where_hdf5_looks_for_them(tmp_path, monkeypatch):
    path, x, far = tmp_path / "x.h5", numbers((5, 4)), tmp_path / "far"
    far.mkdir()
    with h5py.File(path, "w") as file:
        for name, source in ("relative", "source.h5"), ("absolute", str(tmp_path / "gone" / "source.h5")):
            virtual = h5py.VirtualLayout(x.shape, x.dtype)
            virtual[:] = h5py.VirtualSource(source, "matrix", x.shape)
            file.create_virtual_dataset(name, virtual)
    (far / "link.h5").symlink_to(path)

    def check(path=path):
        for name in ("relative", "absolute"):
            assert same(loaded(2, path, dataset=name), x)

    write(tmp_path / "source.h5", x)
    check()
    check(far / "link.h5")
    os.rename(tmp_path / "source.h5", far / "source.h5")
    assert "source.h5, which is not there" in load_error(path, dataset="absolute")
    for prefix in (str(far), f"/nowhere:{far}"):
        monkeypatch.setenv("HDF5_VDS_PREFIX", prefix)
        check()
    monkeypatch.undo()
    monkeypatch.chdir(far)
    check()


def test_raw_files_that_are_too_short(tmp_path):
    path, x = tmp_path / "x.h5", numbers((5, 4))
    raw = [(str(tmp_path / name), offset, size) for name, offset, size in (("a", 0, 64), ("b", 8, h5py.h5f.UNLIMITED))]
    with h5py.File(path, "w") as file:
        file.create_dataset("matrix", data=x, external=raw)
    assert same(loaded(2, path), x)
    for name, size in ("b", 104), ("a", 64):
        os.truncate(tmp_path / name, size - 1)
        assert f"dataset '/matrix': truncated: {tmp_path / name} has {size - 1} bytes of the {size}" in load_error(path)


def test_what_is_no_dataset_or_has_a_type_that_h5py_cannot_name_is_in_nobody_s_way(tmp_path):
    path, x = tmp_path / "x.h5", numbers((5, 4))
    write(path, x)
    with h5py.File(path, "a") as file:
        file["type"] = np.dtype("f8")
        file["nothing"] = h5py.Empty("f8")
    assert "the array has shape ()" in load_error(path, dataset="nothing")
    with h5py.File(path, "a") as file:
        del file["nothing"]
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


@pytest.mark.parametrize("chunk", [1, 1 << 20])
@pytest.mark.parametrize(("kind", "sizes", "entry", "entries"), [
    ("array real general", "3 3", "1", 9),
    ("array integer symmetric", "3 3", "1", 6),
    ("array real skew-symmetric", "3 3", "1", 3),
    ("array complex hermitian", "3 3", "1 0", 6),
    ("coordinate real general", "3 3 4", "2 1 1", 4),
    ("coordinate pattern symmetric", "3 3 4", "2 1", 4),
    ("coordinate real skew-symmetric", "3 3 4", "2 1 1", 4),
    ("coordinate complex hermitian", "3 3 4", "2 1 1 1", 4),
])
def test_matrix_market_has_as_many_entries_as_it_announces(tmp_path, kind, sizes, entry, entries, chunk, monkeypatch):
    monkeypatch.setattr(pdla.io.lines, "CHUNK", chunk)
    path, head = tmp_path / "x.mtx", f"%%MatrixMarket matrix {kind}\n%\n{sizes}\n"
    for there in range(entries):
        path.write_text(head + f"{entry}\n" * there)
        assert f"line {3 + there}: truncated: the file ends here, after {there} of {entries} entries" in load_error(path)
    path.write_text(head + f"{entry}\n \n" * (entries + 2))
    assert f"line {4 + 2 * entries}: one too many: the file announces {entries} entries" in load_error(path)


@pytest.mark.parametrize(("kind", "text"), [("array real general", "0 2\n\n1"), ("coordinate real symmetric", "0 0 0\n\n1 1 1")])
def test_an_empty_matrix_has_no_entries(tmp_path, kind, text):
    path = tmp_path / "x.mtx"
    path.write_text(f"%%MatrixMarket matrix {kind}\n{text}\n")
    assert "line 4: one too many: the file announces 0 entries" in load_error(path)


@pytest.mark.parametrize(("kind", "text", "says"), [
    ("coordinate real skew-symmetric", "3 3 2\n2 1 1\n3 3 1", "line 4: row 3, column 3: not 0, as the diagonal"),
    ("coordinate complex hermitian", "3 3 2\n2 1 1 1\n\n3 3 1 -1", "line 5: row 3, column 3: not real, as the diagonal"),
    ("array complex hermitian", "2 2\n1 0\n1 1\n\n1 1", "line 6: row 2, column 2: not real, as the diagonal"),
    ("array complex hermitian", "3 3\n1 0\n1 1\n1 1\n1 nan\n1 1\n1 0", "line 6: row 2, column 2: not real, as the diagonal"),
    ("coordinate integer general", f"2 3 4\n1 2 1\n2 3 {MOST}\n2 3 1\n1 2 3",
     "line 5: row 2, column 3: the sum of its entries is too large for int64"),
    ("coordinate integer symmetric", f"2 2 2\n2 1 {LEAST}\n2 1 -1", "line 4: row 1, column 2: the sum of its entries is too large"),
    ("coordinate unsigned-integer general", f"2 2 3\n2 1 {2**64 - 1}\n1 1 2\n2 1 1",
     "line 5: row 2, column 1: the sum of its entries is too large for uint64"),
    ("coordinate integer skew-symmetric", f"2 2 1\n2 1 {LEAST}", f"line 3: row 1, column 2: {LEAST} has no negative of int64"),
    ("array integer skew-symmetric", f"3 3\n1\n2\n{LEAST}", f"line 5: row 2, column 3: {LEAST} has no negative of int64"),
    ("coordinate real symmetric", "3 3 3\n2 1 5\n1 3 1\n1 2 5", "line 5: row 1, column 2: its mirror image stands in"),
])
def test_elements_that_matrix_market_must_not_have(tmp_path, kind, text, says):
    path = tmp_path / "x.mtx"
    path.write_text(f"%%MatrixMarket matrix {kind}\n{text}\n")
    assert f"rank 0: {path}: {says}" in load_error(path)


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
@pytest.mark.parametrize("x", [np.array(3.0), np.zeros((2, 3, 4))], ids=["scalar", "three"])
def test_not_two_dimensions(tmp_path, ending, x):
    write(tmp_path / f"x{ending}", x)
    text = load_error(tmp_path / f"x{ending}")
    assert f"the array has shape {x.shape}; a matrix has two dimensions" in text


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


def test_structured_hdf5(tmp_path):
    write(tmp_path / "x.h5", np.zeros((2, 2), "i4,f4"))
    assert "not supported" in load_error(tmp_path / "x.h5")


def test_elements_that_files_do_not_know(tmp_path):
    """An .npy file tells how long they are, not what they are."""
    assert "float8_e4m3fn" in save_error(tmp_path / "x.npy", x=np.ones((3, 3), ml_dtypes.float8_e4m3fn))


@pytest.mark.parametrize("dtype", ("longdouble", "clongdouble"))
def test_long_double_is_too_long_for_matrix_market(tmp_path, dtype):
    assert f"{np.dtype(dtype)}: Matrix Market" in save_error(tmp_path / "x.mtx", x=np.ones((3, 3), dtype))


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


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_that_is_written_to_while_it_is_loaded(tmp_path, monkeypatch, ending):
    """It stays the same file, and as long as it was."""
    path, true_filled = tmp_path / f"x{ending}", files.filled
    write(path, numbers((6, 4)))
    os.utime(path, ns=(0, 0))

    def filled(path, *rest):
        if pdla.world().rank == 0:
            content = path.read_bytes()
            with path.open("r+b") as file:
                file.write(content)
        return true_filled(path, *rest)

    for form in (npy, mtx, hdf5):
        monkeypatch.setattr(form, "filled", filled)
    assert load_error(path) == f"{path}: written to, or replaced, while it was loaded"


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
        if rows[0].start > 2:
            raise OSError(28, "No space left on device")
        true_setitem(self, rows, value)

    monkeypatch.setattr(h5py.Dataset, "__setitem__", setitem)
    assert save_error(path) == f"rank 0: {path}: No space left on device"
    assert same(read(path), old) and os.listdir(tmp_path) == ["x.h5"]


# ---------------------------------------------------------------------------------------------- files that others hold


@pytest.mark.parametrize("mode", ["w", "r+"])
def test_an_hdf5_file_that_is_open_for_writing(tmp_path, mode):
    """What is written there would be lost: the file would be another."""
    path, x = tmp_path / "x.h5", numbers((5, 4))
    write(path, x)
    with h5py.File(path, mode) as file:
        file["first"] = x
        assert f"rank 0: {path}: open for writing elsewhere, in this program or another" in save_error(path, dataset="A")
        file["second"] = x
    with h5py.File(path) as file:
        assert set(file) == {"first", "second"} | ({"matrix"} if mode == "r+" else set())
    assert os.listdir(tmp_path) == ["x.h5"]
    saved(2, path, x, dataset="A")
    assert same(loaded(2, path, dataset="first"), x) and same(loaded(2, path, dataset="A"), x)


def test_an_hdf5_file_whose_writer_lets_others_read(tmp_path):
    """Its lock is gone, but a mark in the file tells."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["first"] = np.eye(3)
        file.swmr_mode = True
        assert "already open for write" in save_error(path, dataset="A")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_that_another_has_locked_to_write_to(tmp_path, ending):
    path, x = tmp_path / f"x{ending}", numbers((5, 4))
    write(path, x)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "open for writing elsewhere" in save_error(path)
        fcntl.flock(file, fcntl.LOCK_SH)
        saved(2, path, 2 * x)
    assert same(read(path), 2 * x)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_system_without_locks_is_written_to(tmp_path, monkeypatch, ending):
    path, x = tmp_path / f"x{ending}", numbers((5, 4))
    write(path, x)

    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    saved(2, path, 2 * x)
    assert same(read(path), 2 * x)


def test_who_reads_an_hdf5_file_goes_on_to_while_it_is_saved_to_and_nobody_writes_to_it(tmp_path, monkeypatch):
    path, x, true_save, tried = tmp_path / "x.h5", numbers((5, 4)), hdf5.save, []
    write(path, x)

    def save(*rest):
        true_save(*rest)
        if pdla.world().rank == 0:
            assert same(read(path), x)
            with pytest.raises(OSError):
                h5py.File(path, "r+")
            tried.append(1)

    monkeypatch.setattr(hdf5, "save", save)
    with h5py.File(path) as file:
        saved(2, path, 2 * x)
        assert same(file["matrix"][...], x) and tried
    assert same(read(path), 2 * x)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_that_another_replaces_while_it_is_saved_to(tmp_path, monkeypatch, ending, there):
    """As another save does, into another dataset of the same file."""
    path, new, x = tmp_path / f"x{ending}", tmp_path / f"new{ending}", numbers((5, 4))
    write(new, x)
    if there:
        write(path, 3 * x)
    form = pdla.io.known(path)[1]
    true_save = form.save

    def save(*rest):
        true_save(*rest)
        if pdla.world().rank == 0:
            os.replace(new, path)

    monkeypatch.setattr(form, "save", save)
    assert save_error(path) == f"rank 0: {path}: written to, or replaced, while it was saved to: save again"
    assert same(read(path), x) and os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_hard_links_are_not_broken(tmp_path, ending):
    path, x = tmp_path / f"x{ending}", numbers((5, 4))
    write(path, x)
    os.link(path, tmp_path / "other")
    assert f"{path}: it has 2 names (hard links), of which a save would change one" in save_error(path)
    assert same(read(path), x) and path.samefile(tmp_path / "other")
    (tmp_path / "other").unlink()
    saved(2, path, 2 * x)
    assert same(read(path), 2 * x)


# ---------------------------------------------------------------------------------------------- dry


@pytest.mark.parametrize("ending", (".npy", ".h5"))
def test_dry_in_bfloat16(tmp_path, ending):
    saved(2, tmp_path / f"x{ending}", BITS)
    dtype, _ = pdla.dry_run(6, lambda comm: load(tmp_path / f"x{ending}", ProcessGrid((2, 3)), Layout("row", "col")).dtype)
    assert dtype == BFLOAT16


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


# ---------------------------------------------------------------------------------------------- what others have written


@pytest.mark.parametrize("ending", (".npy", ".npz", ".h5"))
@pytest.mark.parametrize("dtype", ["float64", "complex64", "bfloat16"])
def test_a_vector_is_a_column(tmp_path, ending, dtype):
    path, x = tmp_path / f"x{ending}", numbers((9, 1), "float64").astype(dtype)
    if ending == ".npz":
        np.savez(path, matrix=x[:, 0])
    elif ending == ".npy":
        np.save(path, x[:, 0])
    else:
        with h5py.File(path, "w") as file:
            found = file.create_dataset("x", (9,), pdla.io.bfloat16.for_h5py(x.dtype))
            if dtype == "bfloat16":
                found.id.write(h5py.h5s.create_simple((9,)), h5py.h5s.ALL, x[:, 0].view("uint16"), mtype=found.id.get_type())
            else:
                found[...] = x[:, 0]
    for name in ("blocks", "nested", "strided", "copies"):
        assert same(loaded(4, path, LAYOUTS[name]), x)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("name", LAYOUTS)
def test_an_archive_of_numpy_s(tmp_path, save, name):
    first, other = numbers((7, 5)), np.asfortranarray(numbers((6, 9), "complex64"))
    save(tmp_path / "x.npz", first=first, other=other, empty=np.zeros((0, 3)))
    for key, x in (("first", first), ("other", other), ("empty", np.zeros((0, 3)))):
        assert same(loaded(4, tmp_path / "x.npz", LAYOUTS[name], dataset=key), x)


def test_an_archive_without_the_array_or_damaged(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, one=np.eye(2), two=np.eye(3))
    assert "which array? Give dataset=name; the file has one, two" in load_error(path)
    assert "no array 'three'; the file has one, two" in load_error(path, dataset="three")
    np.savez(path, one=np.eye(2))
    assert same(loaded(2, path), np.eye(2))
    path.write_bytes(path.read_bytes()[:-30])
    assert "no .npz archive" in load_error(path)


@pytest.mark.parametrize("ending", (".npz", ".mat", ".nc"))
def test_what_is_only_read(tmp_path, ending):
    assert f"{ending} is read only; save to .npy, .mtx" in save_error(tmp_path / f"x{ending}")


@pytest.mark.parametrize("name", LAYOUTS)
def test_matlab_stores_transposes_and_pairs(tmp_path, name):
    x = numbers((6, 9), "complex128")
    pairs = np.zeros((9, 6), [("real", "f8"), ("imag", "f8")])
    pairs["real"], pairs["imag"] = x.T.real, x.T.imag
    with h5py.File(tmp_path / "x.mat", "w", userblock_size=512) as file:
        file["A"], file["B"] = pairs, x.T.real.astype(">f4")
        file["none"] = np.array([0, 3], "uint64")
        file["none"].attrs["MATLAB_empty"] = 1
    assert same(loaded(4, tmp_path / "x.mat", LAYOUTS[name], dataset="A"), x)
    assert same(loaded(4, tmp_path / "x.mat", LAYOUTS[name], dataset="B"), x.real.astype("float32"))
    assert "'/none' is empty" in load_error(tmp_path / "x.mat", dataset="none")


@pytest.mark.parametrize("kind", ["<f4", ">f8"])
def test_pairs_named_real_and_imag_in_hdf5(tmp_path, kind):
    pairs = np.zeros((4, 5), [("real", kind), ("imag", kind)])
    pairs["real"], pairs["imag"] = numbers((4, 5)), numbers((4, 5), seed=1)
    write(tmp_path / "x.h5", pairs)
    assert same(loaded(3, tmp_path / "x.h5"), (pairs["real"] + 1j * pairs["imag"]).astype({"<f4": "c8", ">f8": "c16"}[kind]))
    write(tmp_path / "x.h5", np.zeros((4, 5), [("real", "f4"), ("imag", "f8")]))
    assert "not supported" in load_error(tmp_path / "x.h5")


def test_netcdf_has_dimensions_that_are_no_matrices_and_may_be_packed(tmp_path):
    path, x = tmp_path / "x.nc", numbers((4, 5))
    with h5py.File(path, "w") as file:
        file["t"], file["place"], file["place"].attrs["units"] = x, np.arange(5.0), "m"
        file["place"].make_scale()
    assert same(loaded(3, path), x)
    with h5py.File(path, "r+") as file:
        file["t"].attrs["scale_factor"] = 0.5
    assert "packed: its attributes scale_factor" in load_error(path)


@pytest.mark.parametrize("ending", (".mat", ".nc"))
def test_older_forms_of_these_files(tmp_path, ending):
    scipy.io.savemat(tmp_path / "x.mat", {"A": np.eye(3)})
    (tmp_path / "x.mat").rename(tmp_path / f"x{ending}")
    assert "no HDF5 file: " in load_error(tmp_path / f"x{ending}")


@pytest.mark.parametrize("P", (1, 4))
def test_matrix_market_packed_as_xz(tmp_path, P):
    path, x = tmp_path / "x.MTX.XZ", numbers((7, 5), "complex128")
    saved(P, path, x)
    assert path.read_bytes()[:6] == b"\xfd7zXZ\0" and same(loaded(P, path), x)
    path.write_bytes(path.read_bytes()[:-20])
    load_error(path)
