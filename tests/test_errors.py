"""Every error is one of pdla's."""

import pytest

import pdla
from pdla.errors import PdlaError, plural


def test_every_error_is_one_of_pdlas():
    kinds = [kind for kind in vars(pdla.errors).values() if isinstance(kind, type)]
    assert all(issubclass(kind, PdlaError) for kind in kinds) and len(kinds) > 5


@pytest.mark.parametrize(
    ("count", "words", "expected"),
    [(0, ("rank",), "ranks"), (1, ("rank",), "rank"), (2, ("rank",), "ranks"), (1, ("is", "are"), "is"), (2, ("is", "are"), "are")],
)
def test_a_word_agrees_with_its_count(count, words, expected):
    assert plural(count, *words) == expected
