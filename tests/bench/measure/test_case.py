"""Cases: their operands, and the work in them."""

import numpy as np
import pytest

import pdla
from pdla.bench.measure.case import Case, digits, digits_path, integer_operands


def test_long_products_get_smaller_integers():
    def largest(comm, k):
        A, _ = integer_operands(Case(2, 2, k, "float32"), pdla.ProcessGrid((1, 1), comm=comm))
        return np.abs(A.local).max()

    assert pdla.run(1, largest, 2**18) == [4]
    assert pdla.run(1, largest, 2**20) == [1]


def test_flops_count_real_arithmetic():
    assert Case(2, 3, 4).flops == 48
    assert Case(2, 3, 4, "complex64").flops == 192


def test_digits_are_read_without_importing_sklearn():
    path = digits_path()
    if path is None:
        pytest.skip("scikit-learn is not installed")
    X = digits(path)
    assert X.shape == (1797, 64)
    assert set(np.unique(X)) == set(range(17))
