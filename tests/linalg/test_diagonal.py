"""Systems with a diagonal matrix: what is beside it is not read, zeros are named on every rank."""

import numpy as np
import pytest
from helpers.level3 import VIEWS
from helpers.systems import BLOCKS, KINDS, cyclic, drawn, on, raised

import pdla
from pdla import Layout
from pdla.errors import LinAlgError, PlanError
from pdla.linalg import inv, solve


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("layout", [BLOCKS, Layout("col"), Layout(), cyclic(4)], ids=repr)
def test_views_vectors_and_inverses(dtype, layout):
    a, b = drawn((9, 9), dtype) + 2 * np.eye(9, dtype=dtype), drawn((9, 4), dtype, 1)

    def program(comm):
        A, B = on((2, 2), a, layout, comm), on((2, 2), b, Layout("col", "row"), comm)
        views = {"A": a.diagonal(), "H": a.diagonal().conj(), "conj": a.diagonal().conj()}
        for view, d in ((VIEWS[name], d) for name, d in views.items()):
            X = solve(view(A), B, assume_a="diagonal")
            assert X.layout == B.layout and np.array_equal(X.gather(), b / d[:, None]) and np.array_equal(B.gather(), b)
            assert np.array_equal(solve(view(A), b[:, 0], assume_a="diagonal"), b[:, 0] / d)
            assert np.array_equal(inv(view(A), assume_a="diagonal").gather(), np.diag(1 / d))
        X = solve(A, B, assume_a="diagonal", overwrite_b=True)
        assert X.dtype == np.dtype(dtype) and np.array_equal(B.gather(), X.gather())

    pdla.run(5, program)


@pytest.mark.parametrize("dtype", KINDS)
def test_divisors_whose_reciprocals_leave_the_range(dtype):
    kind, turned = np.finfo(dtype), np.array([1, 1j, 1 + 1j, 1] if np.dtype(dtype).kind == "c" else [1, -1, 1, 1]).astype(dtype)
    for power in (kind.tiny / 2**12, kind.max / 4 * 3):
        d = turned * power

        def program(comm, d=d):
            A, B = on((2, 1), np.diag(d), cyclic(1), comm), on((1, 2), np.diag(d) / 4, BLOCKS, comm)
            X, x = solve(A, B, assume_a="diagonal").gather(), solve(A, d / 4, assume_a="diagonal", verify=True)
            inverse = inv(A, assume_a="diagonal", verify=True).gather().diagonal() if kind.max / 2 < abs(d[0]) else 1 / turned
            return X, x, inverse

        for X, x, inverse in pdla.run(3, program):
            np.testing.assert_allclose(X, np.eye(4) / 4, rtol=4 * kind.eps)
            np.testing.assert_allclose(x, 0.25, rtol=4 * kind.eps)
            np.testing.assert_allclose(inverse * (d if power > 1 else turned), 1, rtol=64 * kind.eps)


def test_words_are_those_of_a_dry_run():
    def program(comm):
        A = pdla.eye(40, pdla.ProcessGrid((2, 2), comm=comm), BLOCKS)
        with pdla.record() as ledger:
            solve(A, A, assume_a="diagonal")
        return ledger.by_verb()

    ran = pdla.run(4, program)
    assert ran == [pdla.dry_run(4, program, rank=rank)[0] for rank in range(4)]


def test_faults_on_every_rank():
    a = np.diag([1.0, 2, 0, 3])

    def of(**named):
        return lambda comm: solve(on((2, 1), a, BLOCKS, comm), np.ones(4), assume_a="diagonal", **named)

    assert raised(of(), 3) == (LinAlgError, "the diagonal matrix is singular: element (2, 2) is 0")
    assert "singular: element (2, 2)" in raised(lambda comm: inv(on((2, 1), a, BLOCKS, comm), assume_a="diagonal"))[1]
    kind, said = raised(of(refine="float32"))
    assert kind is PlanError and "with assume_a='diagonal', which needs no factors: leave refine out" in said
