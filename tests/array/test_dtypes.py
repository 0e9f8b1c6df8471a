"""Dtypes: which one two have in common, and bfloat16 by its name."""

import subprocess
import sys
from itertools import permutations

import numpy as np
import pytest

from pdla.array.dtypes import promoted

BY_NAME = """
import pdla
linear = lambda comm: pdla.nn.Linear(pdla.nn.Serial(pdla.ProcessGrid((1,), comm=comm)), 2, 2, dtype="bfloat16")
print(pdla.run(1, linear)[0].weight.value.dtype)
"""


@pytest.mark.parametrize(
    ("names", "common"), [("bfloat16 int64 float64", "float64"), ("bfloat16 int8 uint8", "bfloat16"), ("int8 uint8", "int16")]
)
def test_dtypes_of_which_numpy_knows_no_pair_have_a_common_one_in_any_order(names, common):
    """It has none for bfloat16 and int64, nor for bfloat16 and the int16 of the other two: with which it begins decides."""
    for dtypes in permutations(map(np.dtype, names.split())):
        assert promoted(*dtypes) == np.dtype(common)


def test_bfloat16_by_name_where_the_program_has_not_imported_ml_dtypes():
    job = subprocess.run([sys.executable, "-c", BY_NAME], capture_output=True, text=True, check=False)
    assert job.stdout == "bfloat16\n", job.stderr
