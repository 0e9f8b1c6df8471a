"""What others have written: vectors, archives, MATLAB's and netCDF's files, pairs named real and imag."""

import h5py
import numpy as np
import pytest
import scipy.io
from helpers.files import LAYOUTS, load_error, loaded, numbers, same, save_error, saved, write

import pdla


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


@pytest.mark.parametrize("ending", (".mat", ".nc"))
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
