"""Entries of Matrix Market that are none, each named."""

import pytest
from helpers.files import load_error

LEAST, MOST = -(2**63), 2**63 - 1  # of int64


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
