"""HDF5: chunks, panels, what else is in the file, and who else has it open."""

import os
import sys
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from helpers.files import LAYOUTS, load_error, loaded, numbers, read, same, save_error, saved, write

import pdla
from pdla import Cyclic, Layout, ProcessGrid
from pdla.io import files, hdf5, load, save


@pytest.mark.parametrize("panel", [20, 250])
@pytest.mark.parametrize("name", LAYOUTS)
def test_hdf5_in_many_panels(tmp_path, name, panel, monkeypatch):
    for module in (hdf5, files):
        monkeypatch.setattr(module, "PANEL", panel)
    path, x = tmp_path / "x.h5", numbers((23, 13))
    saved(6, path, x, LAYOUTS[name])
    assert same(read(path), x)
    assert same(loaded(6, path, LAYOUTS[name]), x)


@pytest.mark.parametrize("panel", [250, 2**20])
@pytest.mark.parametrize("name", LAYOUTS)
def test_hdf5_in_chunks(tmp_path, name, panel, monkeypatch):
    for module in (hdf5, files):
        monkeypatch.setattr(module, "PANEL", panel)
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


def test_without_h5py(tmp_path, monkeypatch):
    path = tmp_path / "x.h5"
    write(path, np.eye(3))
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert "pip install h5py" in load_error(path)
    assert "pip install h5py" in save_error(path)


def test_structured_hdf5(tmp_path):
    write(tmp_path / "x.h5", np.zeros((2, 2), "i4,f4"))
    assert "not supported" in load_error(tmp_path / "x.h5")


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


def test_a_failure_half_way_through_hdf5(tmp_path, monkeypatch):
    path, old, true_setitem = tmp_path / "x.h5", numbers((8, 3)), h5py.Dataset.__setitem__
    write(path, old)
    for module in (hdf5, files):
        monkeypatch.setattr(module, "PANEL", 50)

    def setitem(self, rows, value):
        if rows[0].start > 2:
            raise OSError(28, "No space left on device")
        true_setitem(self, rows, value)

    monkeypatch.setattr(h5py.Dataset, "__setitem__", setitem)
    assert save_error(path) == f"rank 0: {path}: No space left on device"
    assert same(read(path), old) and os.listdir(tmp_path) == ["x.h5"]


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
