"""Packages under names of functions elsewhere: a call says what to call instead; dir(pdla) lists what is public."""

import re

import pytest

import pdla
from pdla.called import INSTEAD


@pytest.mark.parametrize("name", INSTEAD)
def test_a_package_that_is_called_says_what_to_call(name):
    there, text = getattr(pdla, name), INSTEAD[name]
    with pytest.raises(TypeError, match=rf"pdla\.{name} is a package, and is not called: {re.escape(text)}"):
        there([[1, 2], [3, 4]], dtype=float)
    call = re.match(r"pdla\.\w+\(.*?\)", text)[0]
    assert callable(getattr(pdla, re.match(r"pdla\.(\w+)", call)[1]))
    assert there.__name__ == f"pdla.{name}" and there.__doc__


def test_dir_lists_what_is_public():
    assert dir(pdla) == sorted([*pdla.__all__, "__version__"])
    assert {"linalg", "zeros", "DistMatrix"} <= set(dir(pdla)) and "checks" not in dir(pdla)
