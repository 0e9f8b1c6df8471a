"""Factors, solutions and triangles that are checked: an element that errs once is found, named and mended, and right ones pass."""

import threading
import warnings

import numpy as np
import pytest
from helpers.systems import BLOCKS, cyclic, drawn, on, positive

import pdla
from pdla import config
from pdla.array import numpy as host
from pdla.errors import PlanError, VerificationError
from pdla.linalg import cho_factor, cho_solve, cholesky, inv, lu, lu_factor, lu_solve, solve, solve_triangular, trsm

N = 48
EPS = np.finfo(float).eps
GENERAL, B, POSITIVE = drawn((N, N), float), drawn((N, 40), float, 1), positive(N)
TRIANGLE = drawn((N, N), float) / N + np.eye(N)  # and its other triangle is not read


class Errs:
    """The local GEMM, or another kernel, which adds `error` to an element of what it writes, once, in one call of one rank."""

    def __init__(self, monkeypatch, rank, call, error, kernel="gemm", element=(5, 3)):
        self.rank, self.left, self.error, self.element = rank, call, error, element
        self.right, self.written = getattr(host, kernel), {"gemm": 2, "trsm": 1, "square": 1}.get(kernel, 0)
        self.mine, self.done = threading.local(), False
        monkeypatch.setattr(host, kernel, self)

    def __call__(self, *args, **named):
        found = self.right(*args, **named)
        x = args[self.written]
        if getattr(self.mine, "rank", None) == self.rank and x.size and not self.done:
            self.left -= 1
            if self.left < 0:
                self.done = True
                i, j = (at % n for at, n in zip(self.element, x.shape, strict=True))
                x[max(i, j) if self.written == 0 else i, min(i, j) if self.written == 0 else j] += self.error
        return found


def factors(comm, layout=None):
    layout = cyclic(8) if layout is None else layout
    return [on((2, 2), a, where, comm) for a, where in ((GENERAL, layout), (B, BLOCKS), (POSITIVE, layout), (TRIANGLE, layout))]


def gathered(found):
    return np.concatenate([x.gather().ravel() if isinstance(x, pdla.DistMatrix) else np.ravel(x) for x in found])


CALLS = {
    "cholesky": lambda A, B, S, T, **o: [cholesky(S, **o)],
    "upper": lambda A, B, S, T, **o: [cholesky(S, lower=False, **o)],
    "cho_factor": lambda A, B, S, T, **o: [cho_factor(S, **o)[0]],
    "cho_solve": lambda A, B, S, T, **o: [cho_solve((T, True), B, **o)],
    "lu_factor": lambda A, B, S, T, **o: [*lu_factor(A, **o)],
    "wide": lambda A, B, S, T, **o: [*lu_factor(A[:24, :], **o)],
    "tall": lambda A, B, S, T, **o: [*lu_factor(A[:, :24], **o)],
    "lu": lambda A, B, S, T, **o: [*lu(A, **o)],
    "lu_solve": lambda A, B, S, T, **o: [lu_solve((T, np.arange(N)[::-1].copy()), B, **o)],
    "solve": lambda A, B, S, T, **o: [solve(A, B, **o)],
    "vector": lambda A, B, S, T, **o: [solve(A, np.arange(float(N)), **o)],
    "pos": lambda A, B, S, T, **o: [solve(S, B, assume_a="pos", **o)],
    "refined": lambda A, B, S, T, **o: [solve(A, B, refine="float32", **o)],
    "triangular": lambda A, B, S, T, **o: [solve_triangular(T, B, lower=True, **o)],
    "few": lambda A, B, S, T, **o: [solve_triangular(T, B[:, :3], lower=False, **o)],
    "trsm": lambda A, B, S, T, **o: [trsm(T, B.T, lower=False, side="right", unit_diagonal=True, alpha=2, **o)],
    "inv": lambda A, B, S, T, **o: [inv(A, **o)],
    "inv pos": lambda A, B, S, T, **o: [inv(S, assume_a="pos", **o)],
    "inv lower": lambda A, B, S, T, **o: [inv(T, assume_a="lower triangular", **o)],
}
NAMED = r"ranks? \d.* (has|have) (wrong elements|elements that are not finite)|is not positive definite|is singular"
calls = pytest.mark.parametrize("name", CALLS)


@calls
@pytest.mark.parametrize("error", [1e-9, -1e-4, 1.0, 1e300, -1e300, np.nan, np.inf])
@pytest.mark.parametrize("call", [0, 3])
def test_a_wrong_element_of_a_product_is_found_and_mended(monkeypatch, name, error, call):
    """In the first call, and in the fourth of rank 1, where it has so many."""

    def program(comm, errs=None):
        given = factors(comm)
        comm.barrier()
        if errs:
            errs.mine.rank = comm.rank
        with np.errstate(all="ignore"):
            return gathered(CALLS[name](*given, verify=bool(errs)))

    right = pdla.run(4, program)[0]
    errs = Errs(monkeypatch, 1, call, error)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = pdla.run(4, program, errs)[0]
    said = [str(w.message) for w in said if "computed again, it was right" in str(w.message)]
    assert errs.done == bool(said) or name == "refined", said
    np.testing.assert_allclose(found, right, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["syrk", "herk", "syr2k", "her2k", "symm", "trmm"])
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("error", [1e-2, 1e300, np.nan])
def test_the_setting_checks_the_rest_of_level_3(monkeypatch, name, dtype, error):
    def program(comm, errs=None):
        A, C = (on((2, 2), drawn((24, 24), dtype, seed), BLOCKS, comm) for seed in (1, 2))
        comm.barrier()
        if errs:
            errs.mine.rank = comm.rank
        with np.errstate(all="ignore"):
            return gathered([{
                "syrk": lambda: pdla.syrk(A[:, :10], alpha=2, lower=False), "herk": lambda: pdla.herk(A, mirror=True),
                "syr2k": lambda: pdla.linalg.syr2k(A, C), "her2k": lambda: pdla.linalg.her2k(A, C),
                "symm": lambda: pdla.symm(A, C), "trmm": lambda: pdla.linalg.trmm(A, C, lower=True),
            }[name]()])

    right = pdla.run(4, program)[0]
    errs = Errs(monkeypatch, 3, 0, error, "square" if name == "syrk" else "gemm")
    with config.override(verify=True), pytest.warns(RuntimeWarning, match=r"rank.*; computed again, it was right"):
        np.testing.assert_allclose(pdla.run(4, program, errs)[0], right, rtol=1e-4, atol=1e-4)
