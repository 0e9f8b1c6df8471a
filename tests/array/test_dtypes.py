"""Dtypes: which one two have in common, and bfloat16 by its name."""

import subprocess
import sys
from itertools import permutations

import numpy as np
import pytest

from pdla.array.dtypes import near_one, promote

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
        assert promote(*dtypes) == np.dtype(common)


def test_bfloat16_by_name_where_the_program_has_not_imported_ml_dtypes():
    job = subprocess.run([sys.executable, "-c", BY_NAME], capture_output=True, text=True, check=False)
    assert job.stdout == "bfloat16\n", job.stderr


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_powers_of_2_bring_sizes_near_1(dtype):
    kind = np.finfo(dtype)
    sizes = np.array([kind.smallest_subnormal, kind.tiny, 0.3, 1, 3, kind.max, np.inf])
    powers = near_one(sizes, np.dtype(dtype))
    assert powers.dtype == kind.dtype and (np.frexp(powers)[0] == 0.5).all() and (1 / powers < np.inf).all()
    near = np.array(sizes[:-1] * powers[:-1])
    assert near.max() < 2**30 and near.min() > 2.0**-80 and near_one(0.0, np.dtype(dtype)) == 1
    assert near[2:5].tolist() == [0.6, 0.5, 0.75]
