"""QR in block columns: panels and updates on every grid, words by formula in any world, products with Q, claims of reflections."""

from functools import partial
from math import prod

import numpy as np
import pytest
import scipy.linalg
from helpers.systems import KINDS, cyclic, drawn, on

import pdla
from pdla.linalg import qr, qr_words
from pdla.linalg.orthogonal.qr import FACTOR
from pdla.linalg.panels.blocks import find_dimensions
from pdla.linalg.routines.qr import FORMING, QR, Product, reflect

GRIDS = [(1, 4), (2, 2), (4, 1)]
SHAPES = [(41, 41), (64, 64), (50, 23), (23, 50), (8, 33), (33, 8), (1, 9), (9, 1), (64, 40)]


def whole_q(x, tau):
    """Q of reflections, column by column, m x m: H_0 H_1 ..."""
    wide = np.result_type(x.dtype, np.float64)
    q = np.eye(len(x), dtype=wide)
    for j, t in enumerate(tau):
        v = np.concatenate([np.zeros(j), [1], x[j + 1 :, j]]).astype(wide)
        q -= t * np.outer(q @ v, v.conj())
    return q


def ratios(a, q, r):
    unit, size = max(a.shape) * float(np.finfo(a.dtype).eps), np.abs(a).sum(0).max(initial=0)
    return np.abs(q @ r - a).sum(0).max() / (size * unit), np.abs(q.conj().T @ q - np.eye(len(q))).sum(0).max() / unit


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("grid", [*GRIDS, (1, 1), (3, 2)], ids=str)
def test_reflections_in_place_on_every_grid(grid, dtype):
    """R and V, whose columns are reflections with tau, as LAPACK's are; blocks of 8 and 3, of which the last are narrower."""
    def program(comm):
        for shape in SHAPES:
            for layout in (cyclic(8), cyclic(3)):
                X, tau = qr(on(grid, drawn(shape, dtype), layout, comm), mode="raw")
                assert X.layout == layout and tau.dtype == X.dtype == np.dtype(dtype) and len(tau) == min(shape)
                yield shape, X.gather(), tau

    for shape, x, tau in pdla.run(prod(grid), lambda comm: [*program(comm)])[0]:
        assert max(ratios(drawn(shape, dtype), whole_q(x, tau), np.triu(x))) < 30


@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (1, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_panels_on_one_rank_have_lapack_s_reflections(grid, dtype):
    def program(comm):
        for shape in SHAPES:
            a = drawn(shape, dtype)
            (expected, t), _ = scipy.linalg.qr(a, mode="raw")
            X, tau = qr(on(grid, a, cyclic(8), comm), mode="raw")
            assert np.allclose(X.gather(), expected, atol=1e-13) and np.allclose(tau, t, atol=1e-13)

    pdla.run(prod(grid), program)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("grid", [*GRIDS, (2, 3)], ids=str)
def test_products_are_those_of_the_reflections(grid, dtype):
    """Q C and Q^H C of m rows, with any columns; and Q's own columns, from those of the identity."""
    def program(comm):
        for m, n in ((41, 41), (50, 23), (23, 50), (9, 1)):
            a, c = drawn((m, n), dtype), drawn((m, 5), dtype, 1)
            X, tau = qr(on(grid, a, cyclic(4), comm), mode="raw")
            Q, close = whole_q(X.gather(), tau), 100 * np.finfo(dtype).eps
            rows = X.layout.indices(X.shape, X.grid.sizes, X.grid.coords)[0].indices()
            for adjoint, wanted in ((False, Q @ c), (True, Q.conj().T @ c)):
                mine = c[rows].copy()
                Product(X, tau).run(mine, adjoint)
                assert np.abs(mine - wanted[rows]).max(initial=0) < close
            k = min(m, n)
            E = on(grid, np.eye(m, k, dtype=dtype), cyclic(4), comm)
            Product(X, tau).run(E.stored, False, lower=True)
            assert np.abs(E.gather() - Q[:, :k]).max() < close

    pdla.run(prod(grid), program)


def counted(grid, shape, block, comm):
    A = pdla.random(shape, pdla.ProcessGrid(grid, comm=comm), cyclic(block), seed=3)
    with pdla.record() as ledger:
        qr(A, mode="raw", check_finite=False)
    return ledger.by_verb(), ledger.messages, ledger.flops, ledger.peak_workspace


@pytest.mark.parametrize("grid", [*GRIDS, (3, 2)], ids=str)
@pytest.mark.parametrize(("shape", "even"), [
    ((96, 96), True), ((192, 96), True), ((96, 192), True), ((101, 67), False), ((67, 101), False),
])
def test_words_are_those_of_the_formula_and_of_dry_runs(grid, shape, even):
    """Of blocks that divide m and n exactly; dry runs as each rank count what it counts: words by verb, messages, operations."""
    ranks, block = prod(grid), 8
    program = partial(counted, grid, shape, block)
    ran = pdla.run(ranks, program)
    dry = [pdla.dry_run(ranks, program, rank=rank)[0] for rank in range(ranks)]
    assert [each[:3] for each in ran] == [each[:3] for each in dry]
    told = {"agree", "share"}  # of agreement, not of the algorithm
    received = sum(size for verbs, *_ in ran for verb, size in verbs.items() if verb not in told)
    assert received == pytest.approx(8 * ranks * qr_words(*shape, grid, block), rel=1e-12 if even else 0.03)


@pytest.mark.parametrize("grid", [*GRIDS, (3, 2)], ids=str)
def test_words_of_forming_q(grid):
    """Exactly where blocks divide m and n; of a matrix that is wider than high Q is square."""
    ranks, block = prod(grid), 8

    def program(comm, shape):
        A = pdla.random(shape, pdla.ProcessGrid(grid, comm=comm), cyclic(block), seed=3)
        made = FACTOR(A)
        with pdla.record() as ledger:
            made.form_q()
        return ledger.bytes_received

    for shape, near in (((96, 96), 1e-12), ((192, 96), 1e-12), ((96, 192), 1e-12), ((101, 67), 0.03), ((67, 101), 0.03)):
        words = FORMING.words(shape[0], min(shape), grid, block)
        assert sum(pdla.run(ranks, program, shape)) == pytest.approx(8 * ranks * words, rel=near)


def test_a_plan_tells_what_its_call_receives():
    """On every grid and in every mode, of matrices that are square, ragged and tall: the most of all ranks."""
    def program(comm, grid, mode, shape):
        A = pdla.random(shape, pdla.ProcessGrid(grid, comm=comm), cyclic(8), seed=3)
        plan = pdla.linalg.plan_qr(A, mode=mode, check_finite=False)
        with pdla.record() as ledger:
            plan(A)
        return plan.predicted.bytes_received, plan.predicted.flops, ledger.bytes_received, ledger.flops

    shapes = (32, 32), (41, 23), (80, 8)
    for i, grid in enumerate(GRIDS):
        for j, mode in enumerate(("reduced", "r", "raw")):
            told = pdla.run(4, program, grid, mode, shapes[(i + j) % 3])
            assert {each[0] for each in told} == {max(each[2] for each in told)}, (grid, mode)
            assert {each[1] for each in told} == {max(each[3] for each in told)}


def test_the_least_and_the_largest_of_r_are_the_same_on_every_rank():
    a = drawn((45, 45), "complex128")

    def program(comm, grid):
        X = on(grid, a, cyclic(8), comm)
        X, _tau, least, largest = QR.compute(X, overwrite=True, place=(X.layout, X.grid), dtype=X.dtype)
        d = np.abs(X.diagonal())
        assert (least, largest) == pytest.approx((d.min(), d.max()), rel=1e-15)
        return least, largest

    for grid in GRIDS:
        assert len(set(pdla.run(4, program, grid))) == 1


def test_images_of_reflections_are_products_with_q():
    """As checks of results take them: of k rows that every rank has, idle ones too, and no larger than columns are."""
    a, x = drawn((33, 21), "float64"), drawn((21, 2), "float64", 1)

    def program(comm):
        X, tau = qr(on((2, 2), a, cyclic(4), comm), mode="raw")
        q, sizes = reflect(X, tau, (x, np.abs(x)))
        assert np.allclose(q, whole_q(X.gather(), tau)[:, :21] @ x) and sizes.shape == (33, 1)
        assert sizes.max() >= np.abs(q).max() and find_dimensions(X)[0].count == 9
        return q

    found = pdla.run(5, program)
    assert all(np.array_equal(q, found[0]) for q in found)
