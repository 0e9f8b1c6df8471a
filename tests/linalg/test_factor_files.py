"""Factors that are saved on some ranks and resumed on others solve as those that never left."""

import os

import numpy as np
import pytest
import scipy.linalg
from helpers.files import errors
from helpers.systems import BLOCKS, KINDS, cyclic, drawn, on, positive

import pdla
from pdla import Layout, ProcessGrid, linalg
from pdla.errors import FileError, LayoutError, ShapeError

N = 23
GRIDS = {1: (1, 1), 2: (1, 2), 3: (3, 1), 4: (2, 2), 6: (2, 3)}


def saved(path, a, factor, P=4, layout=BLOCKS):
    """Factors of a, gathered, and what they answer."""

    def program(comm):
        factors = factor(on(GRIDS[P], a, layout, comm))
        linalg.save_factors(path, factors)
        return factors[0].gather(), factors[1], *answers(factors)

    return pdla.run(P, program)[0]


def answers(factors):
    b = np.arange(1.0, 1 + len(factors[0].gather()))
    solved = (linalg.cho_solve if isinstance(factors[1], bool) else linalg.lu_solve)(factors, b)
    return solved, linalg.slogdet(factors).logabsdet


LAYOUTS = (cyclic(4), BLOCKS, Layout(rows="row"))  # only in the first of these factors are solved with where they lie


@pytest.mark.parametrize(("factor", "dtype"), [
    *((linalg.lu_factor, dtype) for dtype in KINDS), (linalg.cho_factor, "float64"), (linalg.cho_factor, "complex64"),
    (lambda A: linalg.cho_factor(A, lower=False), "complex128"),
])
def test_factors_are_resumed_on_any_number_of_ranks(tmp_path, factor, dtype):
    path, a = tmp_path / "factors.npz", (positive(N, dtype) * 3).astype(dtype)
    X, which, *wanted = saved(path, a, factor)

    def program(comm):
        layout = LAYOUTS[comm.size % len(LAYOUTS)]
        factors = linalg.load_factors(path, ProcessGrid(GRIDS[comm.size]), layout)
        assert np.array_equal(factors[0].gather(), X) and factors[0].layout == layout
        assert type(factors[1]) is type(which) and np.array_equal(factors[1], which)
        for one, other in zip(answers(factors), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=100 * np.finfo(dtype).eps)

    for P in GRIDS:
        pdla.run(P, program)


def test_numbers_that_are_not_rounded_are_solved_bit_by_bit(tmp_path):
    """A = L U of small integers, whose pivots are 1."""
    l, u = (np.tril(np.arange(81.0).reshape(9, 9) % 3, -1) % 2 + np.eye(9) for _ in range(2))
    a = l @ u.T
    _, _, x, *_ = saved(tmp_path / "lu.npz", a, linalg.lu_factor, 2)

    def program(comm):
        factors = linalg.load_factors(tmp_path / "lu.npz", ProcessGrid(GRIDS[comm.size]), cyclic(2))
        return linalg.lu_solve(factors, np.arange(1.0, 10)), linalg.det(factors)

    for P in (1, 3, 6):
        found, det = pdla.run(P, program)[0]
        assert np.array_equal(found, x) and np.array_equal(a @ found, np.arange(1.0, 10)) and det == 1


def test_scipy_reads_them_and_writes_them(tmp_path):
    a, b = positive(N), np.arange(float(N))
    saved(tmp_path / "lu.npz", a, linalg.lu_factor)
    file = np.load(tmp_path / "lu.npz")
    assert file.files == ["LU", "pivots"]
    np.testing.assert_allclose(scipy.linalg.lu_solve((file["LU"], file["pivots"]), b), np.linalg.solve(a, b), rtol=1e-12)
    made, pivots = scipy.linalg.lu_factor(a)
    np.savez_compressed(tmp_path / "scipy.npz", LU=made, pivots=pivots.astype(">i4"))

    def program(comm):
        factors = linalg.load_factors(tmp_path / "scipy.npz", ProcessGrid(2), Layout("row"))
        assert factors[1].dtype.isnative
        return linalg.lu_solve(factors, b)

    np.testing.assert_allclose(pdla.run(2, program)[0], np.linalg.solve(a, b), rtol=1e-12)


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (0, 0), (1, 1)])
def test_rectangles_and_empty_ones(tmp_path, shape):
    path, a = tmp_path / "lu.npz", drawn(shape, "float64")

    def program(comm):
        LU, pivots = linalg.lu_factor(on((2, 1), a, BLOCKS, comm))
        linalg.save_factors(path, (LU, pivots))
        again, found = linalg.load_factors(path, LU.grid, BLOCKS)
        assert np.array_equal(again.gather(), LU.gather()) and found.tolist() == pivots.tolist()

    pdla.run(3, program)
    assert os.listdir(tmp_path) == ["lu.npz"]


def load_error(path, P=3, layout=BLOCKS):
    return errors(P, lambda comm: linalg.load_factors(path, ProcessGrid(GRIDS[P]), layout))


@pytest.mark.parametrize(("arrays", "says"), [
    ({}, "no factors: the file has nothing, save_factors writes LU and pivots, L, or U"),
    ({"matrix": np.eye(3)}, "no factors: the file has matrix, save"),
    ({"LU": np.eye(3)}, "no factors: the file has LU, save"),
    ({"L": np.eye(3), "U": np.eye(3)}, "no factors: the file has L, U, save"),
    ({"L": np.ones((3, 2))}, "factors: A is 3 x 2, it must be square"),
    ({"LU": np.eye(3), "pivots": np.arange(4)}, "factors[1] is an ndarray: the 3 pivots of lu_factor"),
    ({"LU": np.eye(3), "pivots": np.arange(3.0)}, "factors[1] is an ndarray: the 3 pivots"),
    ({"LU": np.eye(3), "pivots": np.array([0, 1, 3])}, "pivots from 0 to 3: rows have the numbers from 0 to 2"),
    ({"LU": np.eye(3).astype(str), "pivots": np.arange(3)}, "elements of dtype <U32 are not supported"),
])
def test_files_without_factors(tmp_path, arrays, says):
    path = tmp_path / "x.npz"
    np.savez(path, **arrays)
    kind, text = load_error(path)
    assert kind is FileError and str(path) in text and says in text


def test_damage_is_one_error_on_all_ranks(tmp_path):
    path = tmp_path / "x.npz"
    assert load_error(path)[1].endswith("x.npz: No such file or directory")
    assert "factors are saved to .npz" in load_error(tmp_path / "x.h5")[1]
    saved(path, positive(N), linalg.lu_factor)
    assert load_error(path, layout=Layout(partial="row"))[0] is LayoutError
    whole = path.read_bytes()
    path.write_bytes(whole[:-200])
    assert "no .npz archive" in load_error(path)[1]
    at = whole.index(b"pivots.npy") + 200
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert "Bad CRC-32 for file 'pivots.npy'" in load_error(path)[1]


@pytest.mark.parametrize(("given", "says"), [
    (lambda X: X, r"factors\[1\] is a NoneType: the 6 pivots of lu_factor, or cho_factor's True or False"),
    (lambda X: (X, "lower"), r"factors\[1\] is a str"),
    (lambda X: (X, np.arange(5)), r"factors\[1\] is an ndarray: the 6 pivots"),
    (lambda X: (X, np.arange(6) - 1), "pivots from -1 to 4"),
    (lambda X: (X[:4, :], True), "A is 4 x 6, it must be square"),
])
def test_what_are_no_factors(tmp_path, given, says):
    def program(comm):
        with pytest.raises(ShapeError, match=says) as caught:
            linalg.save_factors(tmp_path / "x.npz", given(pdla.eye(6, ProcessGrid(2), Layout("row"))))
        return str(caught.value)

    assert len(set(pdla.run(2, program))) == 1 and not os.listdir(tmp_path)


def test_a_dry_run_writes_nothing(tmp_path):
    def program(comm):
        factors = linalg.lu_factor(pdla.zeros((8, 8), ProcessGrid((2, 2)), BLOCKS))
        linalg.save_factors(tmp_path / "x.npz", factors)

    pdla.dry_run(4, program)
    assert not os.listdir(tmp_path)
    saved(tmp_path / "x.npz", positive(N), linalg.lu_factor)
    assert pdla.dry_run(4, lambda comm: linalg.load_factors(tmp_path / "x.npz", ProcessGrid((2, 2)), BLOCKS)[0].shape)[0] == (N, N)
