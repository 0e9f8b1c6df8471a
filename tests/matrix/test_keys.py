"""Keys: rows and columns from what stands in brackets, as NumPy's; and parts of parts."""

import numpy as np
import pytest

from pdla.errors import ShapeError
from pdla.layout import Layout
from pdla.matrix.keys import Origin, in_words, parse_key

EVERY = range(7), range(5)


@pytest.mark.parametrize(("key", "index"), [
    (3, (3, EVERY[1])), (np.int8(-1), (6, EVERY[1])), ((0, -5), (0, 0)), (np.s_[:, 2], (EVERY[0], 2)),
    (np.s_[..., 2], (EVERY[0], 2)), (np.s_[2, ...], (2, EVERY[1])), (np.s_[1, ..., 2], (1, 2)), (..., EVERY), ((), EVERY),
    (np.s_[5:2, -3:], (range(5, 5), range(2, 5))), (np.s_[::3, 1:99:2], (range(0, 7, 3), range(1, 5, 2))),
], ids=str)
def test_keys(key, index):
    assert parse_key(key, (7, 5)) == index
    rows, cols = (part if isinstance(part, int) else slice(part.start, part.stop, part.step) for part in index)
    x = np.arange(35).reshape(7, 5)
    assert np.array_equal(x[key], x[rows, cols])


@pytest.mark.parametrize("key", [7, -8, (0, 5), (0, -6), np.s_[:, 5]], ids=str)
def test_numbers_outside_are_numpy_s_errors(key):
    with pytest.raises(IndexError) as numpys:
        np.empty((7, 5))[key]
    with pytest.raises(IndexError) as ours:
        parse_key(key, (7, 5))
    assert str(ours.value) == str(numpys.value)


@pytest.mark.parametrize(("key", "words"), [
    (np.s_[::-1, 2], "::-1, 2"), (np.s_[1:2, None], "1:2, None"), (np.s_[..., ..., 0], "..., ..., 0"), (np.s_[:, ::0], ":, ::0"),
], ids=str)
def test_other_keys_are_quoted_as_written(key, words):
    with pytest.raises(ShapeError) as error:
        parse_key(key, (7, 5))
    assert str(error.value).startswith(f"A[{words}] of a matrix of shape (7, 5): ")


def test_a_part_of_a_part():
    part = Origin((7, 5), Layout("row"), *EVERY).part(range(1, 7, 2), range(5)).part(range(1, 3), range(1, 4))
    assert str(part) == "[3:7:2, 1:4] of 7 x 5" and str(part.T) == "[1:4, 3:7:2] of 5 x 7" and part.T.layout == Layout(None, "row")
    assert in_words(part.rows) == "3:7:2"
