"""Matrix Market: what others write is read, and what must not be there is named."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from helpers.files import LAYOUTS, load_error, loaded, numbers, same, save_error, saved

import pdla
from pdla.io import mtx

DTYPES = ("bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64", "complex64", "complex128")
LEAST, MOST = -(2**63), 2**63 - 1  # of int64


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_matrix_market(tmp_path, dtype):
    path, x = tmp_path / "x.mtx", numbers((6, 7), dtype)
    if np.dtype(dtype).kind in "fc":
        x = x / np.asarray(8, x.real.dtype)
    saved(4, path, x)
    y = loaded(4, path)
    assert y.dtype == {"f": "float64", "c": "complex128"}.get(x.dtype.kind, "uint64" if dtype == "uint64" else "int64")
    assert same(y.astype(dtype), x)


@pytest.mark.parametrize("dtype", ("bool", "uint16", "int8", "float32", "complex64", "complex128"))
def test_matrix_market_without_rows(tmp_path, dtype):
    """scipy's writer does not come back from complex matrices without rows: rank 0 would wait for ever."""
    path, x = tmp_path / "x.mtx", np.ones((0, 3), dtype)
    saved(2, path, x)
    shape, found = mtx.header(path, None)
    assert shape == (0, 3) and found == mtx.DTYPES[mtx.FIELDS[x.dtype.kind]]
    assert loaded(3, path).shape == (0, 3)


@pytest.mark.parametrize("dtype", ("bfloat16", "float16", "float32", "complex64"))
def test_short_floats_keep_their_values_in_matrix_market(tmp_path, dtype):
    path, x = tmp_path / "x.mtx", (numbers((5, 3), dtype) / 7).astype(dtype)
    saved(2, path, x)
    assert np.array_equal(loaded(2, path), x)


def test_sparse_is_made_dense(tmp_path):
    path, x = tmp_path / "x.mtx", np.where(np.arange(600).reshape(30, 20) % 7, 0.0, numbers((30, 20)))
    scipy.io.mmwrite(path, scipy.sparse.coo_array(x))
    assert same(loaded(4, path, LAYOUTS["cyclic"]), x)


def test_symmetric_pattern(tmp_path):
    path = tmp_path / "x.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern symmetric\n3 3 2\n1 1\n3 1\n")
    assert same(loaded(2, path), np.array([[1.0, 0, 1], [0, 0, 0], [1, 0, 0]]))


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


def test_one_line_of_rubbish_is_no_matrix_market(tmp_path):
    """Such as a short file that gzip has packed, under a name that does not say so."""
    path = tmp_path / "x.mtx"
    path.write_bytes(b"\x1f\x8b rubbish")
    assert "Not a Matrix Market file" in load_error(path)


@pytest.mark.parametrize("kind", ["array real symmetric", "array real skew-symmetric", "array complex hermitian"])
@pytest.mark.parametrize("shape", [(2, 3), (3, 2)])
def test_half_of_a_matrix_that_is_not_square(tmp_path, kind, shape):
    path = tmp_path / "x.mtx"
    path.write_text(f"%%MatrixMarket matrix {kind}\n{shape[0]} {shape[1]}\n" + "1 1\n"[2 * ("real" in kind) :] * 3)
    assert f"{kind.split()[2]}, but {shape[0]} x {shape[1]}: it must be square" in load_error(path)


@pytest.mark.parametrize(("kind", "text"), [("array real general", "0 2\n\n1"), ("coordinate real symmetric", "0 0 0\n\n1 1 1")])
def test_an_empty_matrix_has_no_entries(tmp_path, kind, text):
    path = tmp_path / "x.mtx"
    path.write_text(f"%%MatrixMarket matrix {kind}\n{text}\n")
    assert "line 4: one too many: the file announces 0 entries" in load_error(path)


@pytest.mark.parametrize("dtype", ("longdouble", "clongdouble"))
def test_long_double_is_too_long_for_matrix_market(tmp_path, dtype):
    assert f"{np.dtype(dtype)}: Matrix Market" in save_error(tmp_path / "x.mtx", x=np.ones((3, 3), dtype))


def test_a_dense_matrix_is_read_without_scipy(tmp_path):
    """Its import takes longer than to read a matrix of 4 MB."""
    path = tmp_path / "x.mtx"
    path.write_text("%%MatrixMarket matrix array real symmetric\n2 2\n1\n2\n3\n")
    load = f"pdla.load({str(path)!r}, pdla.ProcessGrid(1), pdla.Layout())"
    program = f"import sys, pdla; print({load}.local.tolist(), 'scipy.io' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split("\n")[0] == "[[1.0, 2.0], [2.0, 3.0]] False", done.stderr


@pytest.mark.parametrize(("field", "number"), [
    ("integer", MOST + 1), ("integer", LEAST - 1), ("integer", "9" * 5000), ("unsigned-integer", 2**64),
])
def test_integers_out_of_range(tmp_path, field, number):
    path = tmp_path / "x.mtx"
    path.write_text(f"%%MatrixMarket matrix array {field} general\n3 1\n{'0' * 30}1\n\n{number}\n{number}\n")
    assert f"line 5: {str(number)[:80]}: out of the range of {np.dtype(mtx.DTYPES[field])}" in load_error(path)


@pytest.mark.parametrize("field", ["real", "complex", "integer"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric", "hermitian"])
def test_a_dense_matrix_is_what_scipy_reads(tmp_path, field, symmetry):
    path, rng = tmp_path / "x.mtx", np.random.default_rng(1)
    entries = {"general": 16, "skew-symmetric": 6}.get(symmetry, 10)
    diagonal = {0, 4, 7, 9} if symmetry == "hermitian" else ()
    lines = []
    for i, pair in enumerate(rng.integers(-99, 99, (entries, 2)) if field == "integer" else rng.standard_normal((entries, 2))):
        lines.append(f"{pair[0]} {0 if i in diagonal else pair[1]}" if field == "complex" else f"{pair[0]}")
    path.write_text(f"%%MatrixMarket matrix array {field} {symmetry}\n4 4\n" + "\n".join(lines))
    assert np.array_equal(loaded(2, path), scipy.io.mmread(path))


@pytest.mark.parametrize(("text", "told"), [
    ("skew-symmetric\n2 2\n1\n", "skew-symmetric, but of unsigned integers"),
    ("general\n1 1\n-1\n", "line 3: '-1': expected an integer of at least 0"),
])
def test_unsigned_integers_are_not_negative(tmp_path, text, told):
    path = tmp_path / "x.mtx"
    path.write_text(f"%%MatrixMarket matrix array unsigned-integer {text}")
    assert told in load_error(path)
