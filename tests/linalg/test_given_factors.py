"""Determinants and condition numbers of factors that are there, and of what is known of a matrix, are those of the matrix."""

import numpy as np
import pytest
from helpers.systems import BLOCKS, KINDS, cyclic, drawn, on, positive, raised

import pdla
from pdla import linalg
from pdla.errors import AgreementError, LinAlgError, PlanError, ShapeError

N = 21


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("grid", [(1, 1), (2, 2), (3, 1)], ids=str)
def test_factors_tell_what_the_matrix_does(dtype, grid):
    a = positive(N, dtype).astype(dtype) * 3
    rtol = 1e3 * np.finfo(dtype).eps

    def program(comm):
        A = on(grid, a, cyclic(4), comm)
        sign, size = np.linalg.slogdet(a.astype(np.complex128))
        for factors in (linalg.lu_factor(A), linalg.cho_factor(A), linalg.cho_factor(A, lower=False), list(linalg.lu_factor(A))):
            found = linalg.slogdet(factors)
            assert np.isclose(found.sign, sign, rtol=rtol) and np.isclose(found.logabsdet, size, rtol=rtol)
            assert np.isclose(linalg.det(factors), np.exp(size), rtol=10 * rtol)
            for p in (1, np.inf):
                assert 0.2 < linalg.cond(factors, p) / np.linalg.cond(a, p) < 1.01
            assert linalg.det(factors, verify=True) == linalg.det(factors)

    pdla.run(grid[0] * grid[1] + 1, program)


def test_what_is_known_of_a_matrix_is_used():
    a = drawn((N, N), "float64") + 3 * np.eye(N)
    hidden = np.where(np.tri(N, dtype=bool), a, np.nan)

    def program(comm):
        A, L, S = on((2, 2), a, BLOCKS, comm), on((2, 2), hidden, BLOCKS, comm), on((2, 2), positive(N), BLOCKS, comm)
        symmetric, definite = (np.linalg.det(x) for x in (np.tril(a) + np.tril(a, -1).T, positive(N)))
        return [
            (linalg.det(L, assume_a="sym"), symmetric), (linalg.det(L, assume_a="her"), symmetric),
            (linalg.det(S, assume_a="pos"), definite), (linalg.det(S, assume_a="pos", lower=False), definite),
            *((linalg.det(X, assume_a=kind), np.prod(a.diagonal())) for X, kind in (
                (L, "lower triangular"), (A, "upper triangular"), (L, "diagonal"),
            )),
        ]

    for found in pdla.run(4, program):
        np.testing.assert_allclose(*zip(*found, strict=True), rtol=1e-10)


def test_faults_on_every_rank():
    a = positive(N)

    def of(call):
        return raised(lambda comm: call(on((2, 1), a, BLOCKS, comm), comm))

    assert "21 row numbers, as lu_factor returns them" in of(lambda A, comm: linalg.det((A, np.arange(N + 1))))[1]
    assert of(lambda A, comm: linalg.cond((A, np.arange(N) + 1)))[0] is ShapeError
    assert of(lambda A, comm: linalg.cond((A, np.arange(N)), 2))[0] is PlanError
    assert of(lambda A, comm: linalg.det((A, True), verify="maybe"))[0] is PlanError
    assert of(lambda A, comm: linalg.det((A, comm.rank == 0)))[0] is AgreementError
    assert of(lambda A, comm: linalg.slogdet((A, np.roll(np.arange(N), comm.rank))))[0] is AgreementError
    assert of(lambda A, comm: linalg.det((A[:, :5], np.arange(N))))[0] is ShapeError
    assert of(lambda A, comm: linalg.det(A * -1.0, assume_a="pos"))[0] is LinAlgError
    assert of(lambda A, comm: linalg.det((A * np.nan, True)))[0] is LinAlgError
