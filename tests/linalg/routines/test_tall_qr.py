"""QR of tall matrices: which of its three ways it takes, words of each in any world, ratios of any condition, ranks of few rows."""

from math import prod

import numpy as np
import pytest
from helpers.systems import KINDS, cyclic, drawn, on

import pdla
from pdla import Layout
from pdla.linalg import plan_qr, qr
from pdla.linalg.panels import kernels
from pdla.linalg.routines import tall_qr
from pdla.linalg.routines.tall_qr import TALL, TALL_QR, WIDEST, is_tall

ROWS = Layout("row")


def conditioned(m, n, condition, dtype="float64"):
    """Singular values from 1 / condition to 1."""
    u, v = np.linalg.qr(drawn((m, n), dtype))[0], np.linalg.qr(drawn((n, n), dtype, 1))[0]
    return ((u * np.geomspace(1, 1 / condition, n)) @ v.conj().T).astype(dtype)


def ratio(a, q, r):
    wide = np.result_type(a.dtype, np.float64)
    a, q, r, eps = a.astype(wide), q.astype(wide), r.astype(wide), float(np.finfo(a.dtype).eps)
    left = np.abs(q @ r - a).sum(0).max() / max(float(np.abs(a).sum(0).max()), float(np.finfo(a.dtype).tiny))
    return max(left, np.abs(q.conj().T @ q - np.eye(a.shape[1])).sum(0).max()) / (len(a) * eps)


def ways(monkeypatch):
    """What each rank does, as it does it: "gram" for each Gram matrix, with LAPACK's info of its factor, and "tree"."""
    done = []

    def potrf(xp, a, real=kernels.potrf):
        found = real(xp, a)
        done.append(("gram", found[0]))
        return found

    def tree(*given, real=tall_qr._factor_tree):
        done.append(("tree", 0))
        return real(*given)

    monkeypatch.setattr(kernels, "potrf", potrf)
    monkeypatch.setattr(tall_qr, "_factor_tree", tree)
    return done


@pytest.mark.parametrize(("condition", "dtype", "way"), [
    (1, "float64", ["gram"]), (1, "complex64", ["gram"]), (3, "float64", ["gram"] * 2), (1e3, "float64", ["gram"] * 2),
    (1e5, "float64", ["gram"] * 2), (1e5, "complex128", ["gram"] * 2), (20, "float32", ["gram"] * 2),
    (3e7, "float64", ["gram", "tree"]), (3e7, "complex128", ["gram", "tree"]), (1e4, "float32", ["gram", "tree"]),
    (1e12, "float64", ["gram", "tree"]), (1e17, "float64", ["gram", "tree"]),
])
def test_the_condition_of_r_decides(monkeypatch, condition, dtype, way):
    """Also where the Gram matrix has a Cholesky factor in rounded numbers, whose inverse is made of rounding errors."""
    a, done = conditioned(120, 6, condition, dtype), ways(monkeypatch)

    def program(comm):
        Q, R = qr(on((3, 1), a, ROWS, comm))
        return Q.gather(), R.gather()

    q, r = pdla.run(3, program)[0]
    assert sorted(done) == sorted((name, info) for name in way for info in [next(i for n, i in done if n == name)] * 3)
    assert ratio(a, q, r) < 30 and not np.tril(r, -1).any()
    if condition in (3e7, 1e4):
        assert done[0] == ("gram", 0)  # it has, and is not believed


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_any_condition_on_any_ranks(ranks, dtype):
    def program(comm):
        for m, n in ((40, 5), (64, 8), (8, 1), (33, 4), (9, 1)):
            for condition in (1, 10, 0.1 / np.finfo(dtype).eps):
                a = conditioned(m, n, condition, dtype)
                Q, R = qr(on((comm.size, 1), a, ROWS, comm))
                assert ratio(a, Q.gather(), R.gather()) < 30, (m, n, condition)
        zeros = np.zeros((16, 2), dtype)
        Q, R = qr(on((comm.size, 1), zeros, ROWS, comm))
        assert ratio(zeros, Q.gather(), R.gather()) < 30 and not R.gather().any()

    pdla.run(ranks, program)


def test_r_has_a_positive_diagonal_and_integers_come_exactly():
    """Of orthogonal columns of 2^k and -2^k nothing is rounded."""
    a = np.kron(np.array([[1.0, 1], [1, -1], [1, 1], [1, -1]]), 2 * np.ones((8, 1)))

    def program(comm):
        Q, R = qr(on((2, 1), a[:16], ROWS, comm))
        return Q.gather(), R.gather()

    q, r = pdla.run(2, program)[0]
    assert np.array_equal(r, 8 * np.eye(2)) and np.array_equal(q, a[:16] / 8)


GRIDS = [((4, 1), ROWS), ((2, 2), Layout(("row", "col"))), ((3,), ROWS), ((1, 4), Layout("col"))]


def counted(grid, layout, condition, m, n):
    def program(comm):
        a = conditioned(m, n, condition)
        A = pdla.from_global(a, pdla.ProcessGrid(grid, comm=comm), layout)
        with pdla.record() as ledger:
            TALL_QR.factor(A, (A.layout, A.grid), A.dtype)
        return ledger.by_verb(), ledger.messages, ledger.flops

    return program


@pytest.mark.parametrize(("grid", "layout"), GRIDS, ids=str)
@pytest.mark.parametrize(("m", "n"), [(96, 8), (101, 7)])
def test_words_are_those_of_the_formula_and_of_dry_runs(grid, layout, m, n):
    """Of two Gram matrices, and products with inverses: as which a matrix without data counts."""
    ranks, program = prod(grid), counted(grid, layout, 5.0, m, n)
    ran = pdla.run(ranks, program)
    dry = [pdla.dry_run(ranks, program, rank=rank)[0] for rank in range(ranks)]
    assert ran == dry
    words = sum(verbs.get("allreduce", 0) for verbs, *_ in ran) / 8
    assert words == pytest.approx(ranks * TALL_QR.words(m, n, (ranks, 1), m), rel=1e-15)
    once = pdla.run(ranks, counted(grid, layout, 1.0, m, n))
    assert sum(verbs.get("allreduce", 0) for verbs, *_ in once) / 8 == words / 2


def test_words_of_the_tree():
    """R goes up and the columns of Q come down, of 3 ranks each; and all hear of R."""
    n, ranks = 8, 4
    ran = pdla.run(ranks, counted((ranks, 1), ROWS, 1e12, 128, n))
    assert sum(verbs.get("recv", 0) for verbs, *_ in ran) == 8 * 2 * (ranks - 1) * n * n
    assert sum(verbs.get("bcast", 0) for verbs, *_ in ran) == 8 * (ranks - 1) * n * n


def test_what_is_tall():
    assert is_tall(TALL * WIDEST, WIDEST) and not is_tall(TALL * (WIDEST + 1), WIDEST + 1)
    assert is_tall(TALL, 1) and not is_tall(TALL - 1, 1) and not is_tall(9, 0) and not is_tall(0, 0)


def test_where_it_stays():
    """Rows over all ranks of the grid, columns whole; no views of another kind, no sums."""
    def program(comm):
        grid = pdla.ProcessGrid((2, 2), comm=comm)
        return [
            TALL_QR.keeps_layout(pdla.zeros((64, 4), grid, layout))
            for layout in (Layout(("row", "col")), Layout("row"), Layout("row", "col"), Layout(None, "row"), cyclic(4, "row", None))
        ], TALL_QR.keeps_layout(pdla.zeros((4, 64), grid, Layout(None, ("row", "col"))).T)

    assert pdla.run(4, program)[0] == ([True, False, False, False, False], False)


def test_a_conjugate_stays_where_it_is():
    """It is copied on each rank, and then factored as any matrix is: its rows do not travel."""
    a = drawn((400, 3), "complex128")

    def program(comm):
        received = []
        for A in (on((2, 1), a.conj(), cyclic(4, "row", None), comm), on((2, 1), a, cyclic(4, "row", None), comm).conj()):
            with pdla.record() as ledger:
                Q, R = qr(A, check_finite=False)
            received.append(ledger.bytes_received)
            assert ratio(a.conj(), Q.gather(), R.gather()) < 30 and Q.layout == A.layout
        return received

    for plain, conjugate in pdla.run(2, program):
        assert plain == conjugate


def test_copies_as_large_as_a_are_workspace():
    """Q of the first pass, and a conjugate's copy: plans tell what is counted."""
    a = conditioned(400, 3, 10, "complex128")

    def program(comm):
        A = on((2, 1), a, ROWS, comm)
        for X, copies in ((A, 1), (A.conj(), 2)):
            told = plan_qr(X, mode="r", check_finite=False).predicted.peak_workspace
            with pdla.record() as ledger:
                qr(X, mode="r", check_finite=False)
            assert copies * A.local.nbytes < ledger.peak_workspace <= told < (copies + 1) * A.local.nbytes

    pdla.run(2, program)
