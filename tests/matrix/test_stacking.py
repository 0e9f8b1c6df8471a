"""Stacked matrices, triangles, diagonals, and NumPy's elementwise calls; against NumPy's on the whole matrix."""

import ml_dtypes
import numpy as np
import pytest

import pdla
from pdla import Cuts, Cyclic, Layout, ProcessGrid
from pdla.errors import ArgumentError, GridError, LayoutError, ShapeError

LAYOUTS = [
    Layout(), Layout("row", "col"), Layout("col"), Layout(cols=("col", "row")), Layout(Cyclic("col", 2), Cyclic("row", 1)),
    Layout(Cuts("row", (0, 7, 7)), "col"),
]
DTYPES = ["float64", ml_dtypes.bfloat16, "complex64", "int8", "bool"]
VIEWS = [lambda X: X, lambda X: X.T, lambda X: X.conj().T]


def numbers(shape, dtype="float64", seed=0):
    draw = np.random.default_rng([seed, *shape])
    x = draw.integers(1, 5, shape)
    return (x + 1j * draw.integers(-4, 5, shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def compared(shape, dtype, layout, mine, numpys):
    """mine(A) of each view, on all ranks of which one is idle, has the dtype and the elements of numpys(a)."""
    whole = numbers(shape, dtype)

    def program(comm):
        A = pdla.from_global(whole, ProcessGrid((2, 2)), layout)
        made = [mine(view(A)) for view in VIEWS]
        return [X.gather() if isinstance(X, pdla.DistMatrix) else X for X in made]

    want = [numpys(view(whole)) for view in VIEWS]
    for made in pdla.run(5, program):
        for found, right in zip(made, want, strict=True):
            assert found.dtype == right.dtype and np.array_equal(found, right)


every = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=repr)


@every
@layouts
@pytest.mark.parametrize("k", [0, 1, -2, 4, 10**30, -(10**30)])
def test_triangles_and_diagonals(layout, dtype, k):
    near = min(max(k, -7), 7)
    compared((7, 5), dtype, layout, lambda A: pdla.tril(A, k), lambda a: np.tril(a, near))
    compared((7, 5), dtype, layout, lambda A: pdla.triu(A, k), lambda a: np.triu(a, near))
    if abs(k) < 5:
        compared((7, 5), dtype, layout, lambda A: A.diagonal(k), lambda a: a.diagonal(k))


def test_triangles_of_long_blocks_and_of_partial_sums():
    whole = numbers((300, 290))

    def program(comm):
        grid = ProcessGrid((2, 2))
        A = pdla.from_global(whole, grid, Layout(Cyclic("row", 3), "col"))
        addends = pdla.from_local(whole, (300, 290), grid, Layout(partial=("row", "col")))
        return pdla.tril(A, 5).gather(), pdla.triu(A, -70).gather(), pdla.triu(addends).redistribute(Layout()).gather()

    for lower, upper, added in pdla.run(4, program):
        assert np.array_equal(lower, np.tril(whole, 5)) and np.array_equal(upper, np.triu(whole, -70))
        assert np.array_equal(added, 4 * np.triu(whole))


def test_a_diagonal_comes_once_to_each_rank():
    def program(comm):
        A = pdla.ones((64, 64), ProcessGrid((2, 2)), Layout("row", "col"))
        with pdla.record() as ledger:
            A.diagonal()
        return ledger.bytes_received

    assert sum(pdla.run(4, program)) == 8 * (2 * 32 + 2 * 64)
    assert pdla.dry_run(4, lambda comm: pdla.ones((6, 9), ProcessGrid((2, 2)), Layout("row")).diagonal(4).shape)[0] == (5,)


@every
@layouts
@pytest.mark.parametrize("val", [1, [1, 0, 1, 1, 0]])
def test_fill_diagonal_writes_to_the_matrix(layout, dtype, val):
    def filled(fill):
        def change(X):
            made = X.copy().T
            fill(made, val)
            return made

        return change

    def numpys(x, val):  # NumPy fills a tall matrix from a list once more below
        x[np.arange(5), np.arange(5)] = val

    compared((7, 5), dtype, layout, filled(pdla.fill_diagonal), filled(numpys))


def test_fill_diagonal_of_a_conjugate_view():
    def program(comm):
        A = pdla.zeros((2, 2), ProcessGrid(2), Layout("row"), dtype=complex)
        pdla.fill_diagonal(A.H, 2 + 1j)
        return A.gather()[1, 1]

    assert pdla.run(2, program) == [2 - 1j] * 2


@every
@layouts
def test_elementwise(layout, dtype):
    pairs = [(lambda A: abs(A), abs), (lambda A: A.real, lambda a: a.real), (lambda A: A**2, lambda a: a**2)]
    if np.dtype(dtype).kind != "V":
        pairs += [(lambda A: A.imag, lambda a: a.imag), (lambda A: A**0.5, lambda a: a**0.5), (lambda A: 3**A, lambda a: 3**a)]
        pairs += [(lambda A: A**A, lambda a: a**a), (lambda A: A.conj().imag, lambda a: a.conj().imag)]
    for mine, numpys in [*pairs, (lambda A: 1 / A, lambda a: 1 / a)]:
        compared((7, 5), dtype, layout, mine, numpys)
    compared((7, 5), dtype, layout, lambda A: np.array([A.ndim, A.size, *A.shape]), lambda a: np.array([a.ndim, a.size, *a.shape]))


def test_parts_of_complex_numbers_are_views():
    def program(comm):
        A = pdla.from_global(numbers((7, 5), complex), ProcessGrid((2, 2)), Layout("row", "col"))
        A.real.local[...] = 7
        A.T.imag[:, 2:4] = 1
        product = (A.real @ A.imag.T).gather()
        return A.gather(), product, (A.real.gather() @ A.imag.gather().T)

    for whole, product, right in pdla.run(4, program):
        assert (whole.real == 7).all() and (whole.imag[2:4] == 1).all() and np.array_equal(product, right)
    shapes = pdla.dry_run(4, lambda comm: pdla.ones((4, 4), ProcessGrid(4), Layout("row"), dtype=complex).real.T.local.strides)
    assert shapes[0] == (16, 64)


def test_a_power_in_place():
    def program(comm):
        A = pdla.from_global(numbers((4, 4)), ProcessGrid(2), Layout("row"))
        memory = A.local
        A **= 3
        return np.array_equal(memory, numbers((4, 4))[comm.rank * 2 :][:2] ** 3)

    assert all(pdla.run(2, program))


@pytest.mark.parametrize("call", [abs, lambda A: A**2, lambda A: 2**A, lambda A: 1 / A, lambda A: A**A, lambda A: A.diagonal()])
def test_what_sums_do_not_go_through_is_refused_of_partial_sums(call):
    def program(comm):
        with pytest.raises(LayoutError, match="partial sums"):
            call(pdla.ones((4, 4), ProcessGrid(2), Layout(partial="row")))

    pdla.run(2, program)


# ---------------------------------------------------------------------------------------------- stacks


@every
@layouts
def test_stacked(layout, dtype):
    def beside(A):
        return pdla.hstack([A, pdla.zeros((A.shape[0], 0), A.grid, Layout(), dtype=bool), A])

    compared((7, 5), dtype, layout, beside, lambda a: np.hstack([a, a]))
    compared((7, 5), dtype, layout, lambda A: pdla.vstack((A, A.real)), lambda a: np.vstack([a, a.real]))
    compared((7, 5), dtype, layout, lambda A: pdla.block([[A, A], [pdla.hstack([A, A])]]), lambda a: np.block([[a, a], [a, a]]))
    compared((7, 5), dtype, layout, lambda A: pdla.block([A, A]), lambda a: np.block([a, a]))
    more = {"layout": Layout(("row", "col"))}
    compared((7, 5), dtype, layout, lambda A: pdla.vstack([A, A], **more), lambda a: np.vstack([a, a]))


def test_matrices_on_other_grids_of_other_dtypes_and_as_partial_sums():
    a, b = numbers((4, 6)), numbers((4, 3), "int8", 1)

    def program(comm):
        A = pdla.from_global(a, ProcessGrid((2, 2)), Layout("row", "col"))
        B = pdla.from_global(b, ProcessGrid(3), Layout(cols="row"))
        C = pdla.from_local(b[:, :2] * 1j, (4, 2), A.grid, Layout(partial=("row", "col")))
        made = pdla.hstack([A, B, C])
        return made.gather(), made.layout == A.layout, made.grid == A.grid

    for made, lies, there in pdla.run(4, program):
        assert lies and there and np.array_equal(made, np.hstack([a, b, 4j * b[:, :2]]))


def test_a_part_is_sent_straight_to_its_place():
    def program(comm):
        A = pdla.ones((8, 8), ProcessGrid(2), Layout("row"))
        with pdla.record() as ledger:
            pdla.hstack([A, A])
            wide = ledger.bytes_received
            tall = pdla.vstack([A, A])
        return wide, ledger.bytes_received, tall.layout == A.layout

    assert pdla.run(2, program)[0] == (0, 8 * 4 * 8, True)


def test_a_dry_run_stacks_shapes():
    def program(comm):
        A = pdla.ones((80, 8), ProcessGrid((8, 8)), Layout("row", "col"))
        return pdla.block([[A, A], [A, A]]).local.shape

    assert pdla.dry_run(64, program)[0] == (20, 2)


@pytest.mark.parametrize(("call", "error", "match"), [
    (lambda A: pdla.hstack([A, A.T]), ShapeError, r"hstack: matrices beside each other have the shapes \[\(4, 6\), \(6, 4\)\]"),
    (lambda A: pdla.vstack([A, A.T]), ShapeError, r"vstack: rows of matrices are \[6, 4\] columns wide"),
    (lambda A: pdla.vstack([]), ShapeError, "vstack of no matrices, but a list"),
    (lambda A: pdla.block([[A, 0]]), ShapeError, "block: 0 is a number|block: 0 is an int, not a DistMatrix"),
    (lambda A: pdla.block(A), ShapeError, "block of no matrices, but a DistMatrix: give a list"),
    (lambda A: pdla.hstack([A, A], layout=Layout(partial="row")), LayoutError, "cannot be left as partial sums"),
    (lambda A: pdla.hstack([A, A], layout=Layout("depth")), LayoutError, "depth"),
    (lambda A: pdla.tril(A, 0.5), ArgumentError, r"tril\(k=0.5\): a whole number"),
    (lambda A: A.diagonal("x"), ArgumentError, r"diagonal\(offset='x'\)"),
    (lambda A: pdla.fill_diagonal(A, [1, 2]), ShapeError, "a vector of 4"),
    (lambda A: pdla.fill_diagonal(A, 1j), LayoutError, "cannot represent 1j"),
    (lambda A: pdla.fill_diagonal(A, "x"), ShapeError, "'x' is no number"),
    (lambda A: pdla.hstack([A, pdla.ones((4, 4), ProcessGrid(1, comm=A.grid.comm.split([A.grid.comm.rank], "one")), Layout())]),
     GridError, "different communicators|communicator"),
])
def test_what_is_refused(call, error, match):
    def program(comm):
        with pytest.raises(error, match=match):
            call(pdla.ones((4, 6), ProcessGrid(2), Layout("row")))

    pdla.run(2, program)


@every
def test_a_dry_run_knows_the_dtypes_of_elementwise_results(dtype):
    calls = (abs, lambda X: X**2, lambda X: 1 / X, lambda X: X**X, lambda X: X.real, lambda X: X.imag)
    calls = calls[:5] if np.dtype(dtype).kind == "V" else calls

    def program(comm):
        A = pdla.ones((4, 4), ProcessGrid(4), Layout("row"), dtype=dtype)
        return [call(A).dtype for call in calls]

    assert pdla.dry_run(4, program)[0] == [call(np.ones((4, 4), dtype)).dtype for call in calls]
