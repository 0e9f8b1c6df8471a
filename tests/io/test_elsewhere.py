"""Datasets whose elements lie in other files: they have their sources, where HDF5 looks for them."""

import os

import h5py
from helpers.files import load_error, loaded, numbers, same, write


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
        assert "'/no file' is virtual, and needs the file none.h5, which is missing" in load_error(path, dataset=name)
    assert "needs the dataset 'none' of source.h5, which is missing" in load_error(path, dataset="no dataset")
    source.unlink()
    for name in ("virtual", "nested"):
        assert "'/virtual' is virtual, and needs the file source.h5, which is missing" in load_error(path, dataset=name)


def test_a_virtual_dataset_that_grows_with_its_sources(tmp_path):
    """HDF5 takes it for empty where none is there."""
    path, x = tmp_path / "x.h5", numbers((4, 3))
    rows, part = h5py.h5s.create_simple((2, 3), (h5py.h5s.UNLIMITED, 3)), h5py.h5s.create_simple((2, 3))
    rows.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (2, 3), (2, 3))
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    how.set_virtual(rows, b"100%%%b.h5", b"matrix", part)
    with h5py.File(path, "w") as file:
        h5py.h5d.create(file.id, b"matrix", h5py.h5t.NATIVE_DOUBLE, rows, dcpl=how)
    assert "needs the file 100%0.h5, which is missing" in load_error(path)
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
    assert "source.h5, which is missing" in load_error(path, dataset="absolute")
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
