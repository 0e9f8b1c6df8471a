"""Checks of products: right ones pass, and each kind of wrong one is found."""

import numpy as np
import pytest

import pdla
from pdla.bench.measure.case import LAYOUT, Case, integer_operands, random_operands
from pdla.bench.measure.check import SMALL, Checker, differences


def checked(P, case, spoil, small, exact=True):
    """What the checker says of a product on P ranks, after `spoil` has been at rank 0's block of it."""

    def program(comm):
        grid = pdla.ProcessGrid(case.grid, comm=comm)
        A, B = (integer_operands if exact else random_operands)(case, grid)
        C = pdla.matmul(A, B, layout=pdla.Layout(rows="row", cols="col"))
        if comm.rank == 0:
            spoil(C.local)
        return Checker(comm, small).check(case.problem, A, B, C, exact)

    said = set(pdla.run(P, program))
    assert len(said) == 1
    return said.pop()


@pytest.mark.parametrize(("dtype", "error"), [("int8", -128), ("int8", 1), ("uint8", 255), ("int64", -(2**63)), ("bool", True)])
def test_products_of_integers_that_are_wrong_are_found(dtype, error):
    right, wrong = np.zeros((2, 3), dtype), np.zeros((2, 3), dtype)
    wrong[1, 2] = error
    assert differences(right, right, 0.0) == ""
    assert differences(wrong, right, 0.0).startswith("1 of 6 elements differs, the first at (1, 2): ")


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_infinities_and_nan_of_a_file_are_compared_as_such(dtype):
    right = np.array([1, np.inf, -np.inf, np.nan], dtype)
    bound = np.array([1e-3, np.inf, np.inf, np.nan])
    assert differences(right, right, bound) == ""
    for i, wrong in enumerate([np.nan, 1, np.inf, 1]):
        c = right.copy()
        c[i] = wrong
        assert differences(c, right, bound).startswith(f"1 of 4 elements differs, the first at ({i},): ")


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("small", [SMALL, 0])
def test_products_of_files_with_infinities_are_right(number, small):
    rng = np.random.default_rng(0)
    a, b = rng.random((20, 15)) - 0.5, rng.random((15, 12)) - 0.5
    a[2, 3] = a[5, 5] = a[5, 6] = number
    if small:  # else each row of C X has some, and nothing is to be seen
        b[3, 4] = b[7, :3] = number

    def program(comm):
        grid = pdla.ProcessGrid((2, 2), comm=comm)
        A, B = (pdla.from_global(x, grid, LAYOUT) for x in (a, b))
        C, spoilt = A @ B, A @ B
        spoilt *= 2
        return [Checker(comm, small).check((), A, B, X, False)[:5] for X in (C, spoilt)]

    assert pdla.run(4, program)[0] == ["bound", "WRONG"]


@pytest.mark.parametrize("small", [SMALL, 0])
@pytest.mark.parametrize("dtypes", [("int8", "float64"), ("bool", "float32"), ("float64", "uint8"), ("bool", "bool")])
def test_products_of_files_of_several_kinds_are_right(dtypes, small):
    rng = np.random.default_rng(0)
    a, b = (rng.random((20, 15)) * 2).astype(dtypes[0]), (rng.random((15, 12)) * 2).astype(dtypes[1])
    if dtypes[0] == "int8":
        a[...] = -128  # whose magnitude an int8 cannot hold

    def program(comm):
        grid = pdla.ProcessGrid((2, 2), comm=comm)
        A, B = (pdla.from_global(x, grid, LAYOUT) for x in (a, b))
        C, spoilt = A @ B, A @ B
        if comm.rank == 0:
            spoilt.local[0, 0] = not spoilt.local[0, 0]
        return [Checker(comm, small).check((), A, B, X, False)[:5] for X in (C, spoilt)]

    assert pdla.run(4, program)[0] == ["bound", "WRONG"]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
def test_products_of_integers_may_wrap(dtype):
    def program(comm):
        grid, top = pdla.ProcessGrid((2, 2), comm=comm), np.iinfo(dtype).max
        A, B = (pdla.from_function(lambda i, j: top - (7 * i + j) % 5, (9, 9), grid, LAYOUT, dtype=dtype) for _ in "AB")
        C = pdla.matmul(A, B)
        found = [Checker(comm, small).check((), A, B, C, exact=True) for small in (SMALL, 0)]
        if comm.rank == 0:
            C.local[0, 0] += 1
        return *found, Checker(comm, 0).check((), A, B, C, exact=True)[:5]

    assert set(pdla.run(4, program)) == {("exact (NumPy)", "exact (Freivalds)", "WRONG")}


def nothing(block):
    pass


def one_more(block):
    block[0, 0] += 1


def one_ulp(block):
    block[-1, -1] = np.nextafter(block[-1, -1], np.inf)


def a_nan(block):
    block[0, 0] = np.nan


def two_swapped(block):
    block[:, [0, 1]] = block[:, [1, 0]]


@pytest.mark.parametrize("small", [SMALL, 0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("trans", ["NN", "TN", "NC", "CT"])
def test_right_products_pass(dtype, small, trans):
    case = Case(13, 11, 17, dtype, grid=(2, 3), transa=trans[0], transb=trans[1])
    how = "NumPy" if small else "Freivalds"
    assert checked(6, case, nothing, small) == f"exact ({how})"
    assert checked(6, case, nothing, small, exact=False) == f"bound ({how})"


@pytest.mark.parametrize("small", [SMALL, 0])
@pytest.mark.parametrize("spoil", [one_more, one_ulp, a_nan, two_swapped])
def test_exact_products_must_be_exact(small, spoil):
    assert checked(2, Case(13, 11, 17, grid=(1, 2)), spoil, small).startswith("WRONG, exact")


@pytest.mark.parametrize("small", [SMALL, 0])
@pytest.mark.parametrize("spoil", [one_more, a_nan, two_swapped])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounded_products_must_obey_the_bound(small, spoil, dtype):
    assert checked(2, Case(13, 11, 17, dtype, grid=(1, 2)), spoil, small, exact=False).startswith("WRONG, bound")


@pytest.mark.parametrize("sizes", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (1, 1, 1)])
@pytest.mark.parametrize("small", [SMALL, 0])
def test_tiny_and_empty_products(sizes, small):
    case = Case(*sizes, grid=(2, 2))
    if 0 in sizes or small:
        assert not checked(4, case, nothing, small).startswith("WRONG")
        assert not checked(4, case, nothing, small, exact=False).startswith("WRONG")
