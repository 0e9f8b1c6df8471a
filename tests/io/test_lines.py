"""Lines of text: numbers as others write them, and lines that are none."""

import gzip

import numpy as np
import pytest
from helpers.files import (
    load_error,
    loaded,
    same,
)

import pdla


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
