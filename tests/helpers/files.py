"""Files that tests write and read: as pdla does on some ranks, and as other programs would."""


import bz2
import gzip
import io

import h5py
import ml_dtypes
import numpy as np
import scipy.io
import scipy.sparse

import pdla
from pdla import Balanced, Cyclic, Layout, ProcessGrid
from pdla.errors import DeadlockError, FileError, RemoteError
from pdla.io import load, save

ENDINGS = (".npy", ".npz", ".mtx", ".mtx.gz", ".mtx.bz2", ".h5", ".hdf5")
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
    elif path.suffix == ".npz":
        np.savez(path, matrix=x)
    elif path.suffix in (".h5", ".hdf5"):
        with h5py.File(path, "w") as file:
            file["matrix"] = x
    else:
        with {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)(path, "wb") as file:
            if x.size:
                scipy.io.mmwrite(text := io.BytesIO(), x, symmetry="general")
                file.write(text.getvalue())
            else:  # from which SciPy 1.14 to 1.16 do not come back
                file.write("%%MatrixMarket matrix array real general\n{} {}\n".format(*x.shape).encode())


def read(path):
    """What other programs would read."""
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".npz":
        return np.load(path)["matrix"]
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


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BITS = np.arange(2**16, dtype=np.uint16).reshape(2**6, 2**10).view(BFLOAT16)  # every number
BITS = np.where(np.isnan(BITS.astype("float32")), BFLOAT16.type(0), BITS)


def same_bits(x, y):
    return x.dtype == y.dtype == BFLOAT16 and np.array_equal(x.view(np.uint16), y.view(np.uint16))
