"""bfloat16 in files: every number, in every format, with and without ml_dtypes."""

import h5py
import numpy as np
import pytest
from helpers.files import BFLOAT16, BITS, LAYOUTS, load_error, loaded, numbers, read, same, same_bits, saved

import pdla
from pdla import Layout, ProcessGrid
from pdla.io import files, hdf5, load, npy


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


@pytest.mark.parametrize("ending", (".npy", ".h5"))
def test_dry_in_bfloat16(tmp_path, ending):
    saved(2, tmp_path / f"x{ending}", BITS)
    dtype, _ = pdla.dry_run(6, lambda comm: load(tmp_path / f"x{ending}", ProcessGrid((2, 3)), Layout("row", "col")).dtype)
    assert dtype == BFLOAT16
