"""Files, on all ranks of the job: where one rank cannot read or write, all raise the same error."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

import pdla
from pdla import Cyclic, Layout, ProcessGrid, balanced_shape
from pdla.errors import FileError
from pdla.io import load, save

pytestmark = pytest.mark.mpi

ENDINGS = (".npy", ".npz", ".mtx.gz", ".h5")
LAYOUTS = {
    "blocks": Layout("row", "col"),
    "nested": Layout(rows=("col", "row")),
    "cyclic": Layout(Cyclic("row", 2), Cyclic("col", 3)),
    "copies": Layout(cols="col"),
}


@pytest.fixture
def folder(comm, tmp_path):
    """Rank 0's folder, on every rank."""
    yield Path(comm.share(str(tmp_path))[0])
    comm.barrier()


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_round_trip(comm, folder, ending, name):
    grid, x = ProcessGrid(balanced_shape(comm.size)), np.arange(17 * 13.0).reshape(17, 13)
    save(folder / f"x{ending}", pdla.from_global(x, grid, LAYOUTS[name]))
    A = load(folder / f"x{ending}", grid, LAYOUTS["blocks"])
    assert A.dtype == x.dtype and np.array_equal(A.gather(), x)
    if ending == ".npy":
        assert np.array_equal(np.load(folder / "x.npy"), x)
    assert len(os.listdir(folder)) == 1


def test_a_large_one(comm, folder):
    """Blocks of many pages, whose borders ranks share."""
    grid, shape = ProcessGrid(balanced_shape(comm.size)), (1001, 999)
    A = pdla.random(shape, grid, LAYOUTS["cyclic"], distribution="integers", high=1000)
    save(folder / "x.npy", A)
    assert np.array_equal(np.load(folder / "x.npy"), A.gather())
    B = load(folder / "x.npy", grid, LAYOUTS["cyclic"])
    assert np.array_equal(B.local, A.local)


@pytest.mark.parametrize("ending", ENDINGS)
def test_damage_is_seen_by_all(comm, folder, ending):
    path, grid = folder / f"x{ending}", ProcessGrid(comm.size)
    with pytest.raises(FileError, match="No such file"):
        load(path, grid, Layout("row"))
    save(path, pdla.ones((40, 30), grid, Layout("row")))
    if comm.rank == 0:
        os.truncate(path, path.stat().st_size // 2)
    comm.barrier()
    with pytest.raises(FileError) as caught:
        load(path, grid, Layout("row"))
    assert len(set(comm.share(str(caught.value)))) == 1


@pytest.mark.parametrize("ending", ENDINGS)
def test_nowhere_to_write(comm, folder, ending):
    A = pdla.ones((4, 3), ProcessGrid(comm.size), Layout("row"))
    with pytest.raises(FileError) as caught:
        save(folder / "nowhere" / f"x{ending}", A)
    assert len(set(comm.share(str(caught.value)))) == 1


def test_a_writer_that_fails(comm, folder, monkeypatch):
    """The last rank cannot write its part: all say so, and the old file is still there."""
    path, grid = folder / "x.npy", ProcessGrid(comm.size)
    save(path, pdla.ones((8, 3), grid, Layout("row")))
    if comm.rank == comm.size - 1:

        def put(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(pdla.array.numpy, "put", put)
    with pytest.raises(FileError, match=f"{path}: No space left on device"):
        save(path, pdla.zeros((8, 3), grid, Layout("row")))
    comm.barrier()
    assert np.load(path).all() and os.listdir(folder) == ["x.npy"]


def test_a_file_that_the_last_rank_has_open_for_writing(comm, folder):
    """Rank 0 writes, and sees another process's lock."""
    path, grid = folder / "x.h5", ProcessGrid(comm.size)
    file = h5py.File(path, "w") if comm.rank == comm.size - 1 else None
    comm.barrier()
    with pytest.raises(FileError, match="open for writing elsewhere"):
        save(path, pdla.ones((4, 3), grid, Layout("row")))
    if file:
        file["log"] = np.arange(3.0)[:, None]
        file.close()
    comm.barrier()
    save(path, pdla.ones((4, 3), grid, Layout("row")))
    assert np.array_equal(load(path, grid, Layout(), dataset="log").gather(), np.arange(3.0)[:, None])
