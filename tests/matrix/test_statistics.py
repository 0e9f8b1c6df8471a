"""Sums, means and extremes of all elements and of each row or column, against NumPy's on the whole matrix."""

import warnings

import ml_dtypes
import numpy as np
import pytest

import pdla
from pdla import Cuts, Cyclic, Layout, ProcessGrid
from pdla.errors import AgreementError, ArgumentError, LayoutError, ShapeError
from pdla.matrix import reductions

LAYOUTS = [
    Layout(), Layout("row", "col"), Layout("col"), Layout(cols=("col", "row")), Layout(Cyclic("col", 2), Cyclic("row", 1)),
    Layout(Cuts("row", (0, 7, 7)), "col"),
]
DTYPES = [
    "float64", "float32", "float16", ml_dtypes.bfloat16, "complex64", "complex128", "int8", "uint16",
    "int64", "bool", "longdouble",
]
VIEWS = [lambda X: X, lambda X: X.T, lambda X: X.conj().T, lambda X: X[1:6, 2:5]]
NAMES = ("sum", "mean", "max", "min")


def numbers(shape, dtype):
    draw = np.random.default_rng(3)
    x = draw.integers(0 if np.dtype(dtype).kind in "bu" else -4, 5, shape)
    return (x + 1j * draw.integers(-4, 5, shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def expected(x, name, axis):
    """NumPy's; of 16 bits and fewer rounded once, as sums of such floats need not be exact."""
    dtype = x.dtype
    if dtype.kind in "fV" and dtype.itemsize <= 2:
        return np.asarray(getattr(x.astype("float32"), name)(axis=axis)).astype(dtype)[()]
    return getattr(x, name)(axis=axis)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_all_and_along_each_axis_as_numpy(layout, dtype):
    whole = numbers((7, 5), dtype)
    names = NAMES[:2] if whole.dtype.kind == "c" else NAMES

    def program(comm):
        A = pdla.from_global(whole, ProcessGrid((2, 2)), layout)  # rank 4 is idle
        views = VIEWS if len(layout.cols) < 2 else VIEWS[:3]
        return [getattr(view(A), name)(axis) for view in views for name in names for axis in (None, 0, 1, -1, np.int64(-2))]

    views = VIEWS if len(layout.cols) < 2 else VIEWS[:3]
    want = [expected(view(whole), name, axis) for view in views for name in names for axis in (None, 0, 1, -1, -2)]
    for made in pdla.run(5, program):
        for found, right in zip(made, want, strict=True):
            assert type(found) is type(right) and found.dtype == right.dtype and np.array_equal(found, right)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (1, 1)])
def test_of_nothing_as_numpy(shape, name):
    whole = np.ones(shape)

    def told(X, axis):
        with np.errstate(invalid="ignore"):
            try:
                return np.asarray(getattr(X, name)(axis=axis)).tolist()
            except ValueError:
                return "an error"

    def numpys(axis):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return told(whole, axis)

    made = pdla.run(5, lambda comm: [
        told(pdla.from_global(whole, ProcessGrid((2, 2)), Layout("row", "col")), axis) for axis in (None, 0, 1)
    ])
    assert all(str(mine) == str([numpys(axis) for axis in (None, 0, 1)]) for mine in made)


@pytest.mark.parametrize("at", [np.nan, np.inf, -np.inf])
def test_extremes_of_what_is_no_number_and_of_what_is_infinite(at):
    whole = np.arange(20.0).reshape(4, 5)
    whole[2, 3] = at

    def program(comm):
        A = pdla.from_global(whole, ProcessGrid((2, 2)), Layout("row", "col"))
        return [getattr(A, name)(axis) for name in ("max", "min") for axis in (None, 0, 1)]

    for made in pdla.run(4, program):
        for found, (name, axis) in zip(made, [(n, axis) for n in ("max", "min") for axis in (None, 0, 1)], strict=True):
            assert np.array_equal(found, getattr(whole, name)(axis=axis), equal_nan=True)


def test_extremes_of_integers_that_no_float_has():
    whole = np.array([[2**63 - 1, -(2**63)], [2**63 - 2, 5]])

    def program(comm):
        A = pdla.from_global(whole, ProcessGrid((2, 2)), Layout("row", "col"))
        return A.max(), A.min(), A.max(0).tolist(), A.min(1).tolist()

    assert pdla.run(4, program)[3] == (2**63 - 1, -(2**63), [2**63 - 1, 5], [-(2**63), 5])


@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_every_rank_has_the_same_bits_whatever_the_strides_of_its_copies(name, axis):
    """A block by columns, or with gaps, on one rank alone would be added up in another order."""
    whole = np.random.default_rng(0).standard_normal((300, 200)).astype("float32")

    def program(comm):
        grid = ProcessGrid((2, 2))
        block = whole[:150] if grid.coords["row"] == 0 else whole[150:]
        lying = (block, np.asfortranarray(block), np.repeat(block, 2, axis=1)[:, ::2], block[::-1].copy()[::-1])[comm.rank]
        return getattr(pdla.from_local(lying, (300, 200), grid, Layout("row")), name)(axis)

    first, *others = (np.asarray(made).tobytes() for made in pdla.run(4, program))
    assert all(other == first for other in others)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.int4], ids=lambda dtype: dtype.__name__)
def test_extremes_of_floats_without_infinity_and_of_short_integers(dtype):
    whole = np.array([[-3, 2], [1, -5], [0, -6]]).astype(dtype)

    def program(comm):
        A = pdla.from_global(whole, ProcessGrid(5), Layout("row"))
        return A.max(0), A.min(0), A.max()

    for most, least, top in pdla.run(5, program):
        assert most.dtype == least.dtype == top.dtype == dtype
        assert (most.tolist(), least.tolist(), top) == ([1, 2], [-3, -6], 2)


def test_long_blocks_are_reduced_in_parts(monkeypatch):
    monkeypatch.setattr(reductions, "STRIP", 7)
    whole = numbers((9, 20), "int64")

    def program(comm):
        A = pdla.from_global(whole, ProcessGrid((2, 2)), Layout("row", "col"))
        return [getattr(view, name)(axis).tolist() for view in (A, A.T) for name in NAMES for axis in (None, 0, 1)]

    want = [getattr(view, name)(axis=axis).tolist() for view in (whole, whole.T) for name in NAMES for axis in (None, 0, 1)]
    assert pdla.run(4, program)[1] == want


@pytest.mark.parametrize(("layout", "words"), [
    (Layout(), 0),  # everything is here
    (Layout(cols="col"), 30),  # the other half of the columns
    (Layout("row"), 60),  # a half of the addends of one half, and then the other half
    (Layout("row", "col"), 15 + 45),
], ids=repr)
def test_a_rank_receives_addends_and_then_what_it_lacks(layout, words):
    def program(comm):
        A = pdla.ones((8, 60), ProcessGrid((2, 2)), layout)
        with pdla.record() as ledger:
            A.sum(axis=0)
        return ledger.bytes_received / 8

    assert pdla.run(4, program)[0] == words


def test_a_dry_run_knows_shapes_and_dtypes():
    def program(comm):
        A = pdla.ones((10**6, 30), ProcessGrid((10, 10)), Layout("row", "col"), dtype="float16")
        made = [getattr(A, name)(axis) for axis in (0, 1, None) for name in NAMES]
        return [(x.shape, x.dtype.name) for x in made]

    made = pdla.dry_run(100, program)[0]
    assert made == [(shape, "float16") for shape in ((30,), (10**6,), ()) for _ in range(4)]


def test_16_bits_are_added_up_in_32():
    ones = np.ones((4096, 3), ml_dtypes.bfloat16)
    made = pdla.run(2, lambda comm: (A := pdla.from_global(ones, ProcessGrid(2), Layout("row"))).sum(0).tolist() + [A.mean(0)[0]])
    assert made[1] == [4096, 4096, 4096, 1]


@pytest.mark.parametrize(("call", "error", "match"), [
    (lambda A: A.sum(axis=2), ShapeError, r"sum\(axis=2\): 0 for one of each column"),
    (lambda A: A.mean(axis="row"), ArgumentError, r"mean\(axis='row'\)"),
    (lambda A: (A * 1j).max(), ShapeError, r"max of complex128: complex numbers have no order"),
    (lambda A: A.redistribute(Layout()).min(A.grid.comm.rank), AgreementError, r"axis=0; rank 1: .*axis=1"),
    (lambda A: A[:0, :].max(), ShapeError, r"max of a matrix of shape \(0, 4\)"),
    (lambda A: pdla.zeros((4, 4), A.grid, Layout(partial="row")).max(0), LayoutError, "max of partial sums"),
])
def test_what_is_refused_is_so_on_every_rank(call, error, match):
    def program(comm):
        with pytest.raises(error, match=match):
            call(pdla.ones((4, 4), ProcessGrid(2), Layout("row")))

    pdla.run(2, program)
