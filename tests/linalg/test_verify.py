"""Factors, solutions and triangles that are checked: an element that errs once is found, named and mended, and right ones pass."""

import importlib
import threading
import warnings
from contextlib import suppress
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
from helpers.systems import BLOCKS, cyclic, drawn, on, positive, sums

import pdla
from pdla import Layout, config
from pdla.array import numpy as host
from pdla.comm.threads import ThreadComm
from pdla.errors import PlanError, VerificationError
from pdla.linalg import (
    cho_factor,
    cho_solve,
    cholesky,
    diagonal,
    inv,
    inverse,
    lu,
    lu_factor,
    lu_solve,
    solutions,
    solve,
    solve_triangular,
    trsm,
)
from pdla.linalg import verify as of_results
from pdla.linalg.panels.blocks import cut_in_blocks
from pdla.linalg.panels.rows import Permutation
from pdla.linalg.plan import right_side
from pdla.linalg.plan.right_side import RightSide
from pdla.linalg.products import rank_k
from pdla.linalg.refinement import refinement
from pdla.linalg.routines import factorization
from pdla.linalg.routines.cholesky import CholeskyFactorization
from pdla.linalg.routines.lu import LUFactorization
from pdla.linalg.verify import Check

lu_split = importlib.import_module("pdla.linalg.lu")  # of which pdla.linalg.lu is a function

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

    def where(self, x):
        i, j = (at % n for at, n in zip(self.element, x.shape, strict=True))
        return (max(i, j), min(i, j)) if self.written == 0 else (i, j)

    def __call__(self, *args, **named):
        found = self.right(*args, **named)
        x = args[self.written]
        if getattr(self.mine, "rank", None) == self.rank and x.size and not self.done:
            self.left -= 1
            if self.left < 0:
                self.done = True
                x[self.where(x)] += self.error
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
    "her": lambda A, B, S, T, **o: [solve(A, B, assume_a="her", lower=False, **o)],
    "refined": lambda A, B, S, T, **o: [solve(A, B, refine="float32", **o)],
    "triangular": lambda A, B, S, T, **o: [solve_triangular(T, B, lower=True, **o)],
    "few": lambda A, B, S, T, **o: [solve_triangular(T, B[:, :3], lower=False, **o)],
    "trsm": lambda A, B, S, T, **o: [trsm(T, B.T, lower=False, side="right", unit_diagonal=True, alpha=2, **o)],
    "inv": lambda A, B, S, T, **o: [inv(A, **o)],
    "inv pos": lambda A, B, S, T, **o: [inv(S, assume_a="pos", **o)],
    "inv sym": lambda A, B, S, T, **o: [inv(A, assume_a="sym", **o)],
    "inv lower": lambda A, B, S, T, **o: [inv(T, assume_a="lower triangular", **o)],
}


@cache
def right_ones(name):
    return pdla.run(4, lambda comm: gathered(CALLS[name](*factors(comm), verify=False)))[0]


calls = pytest.mark.parametrize("name", CALLS)


@calls
@pytest.mark.parametrize(("error", "call"), [(1e-9, 0), (-1e-4, 3), (1.0, 1), (1e300, 0), (-1e300, 2), (np.nan, 1), (np.inf, 0)])
def test_a_wrong_element_of_a_product_is_found_and_mended(monkeypatch, name, error, call):
    def program(comm):
        given = factors(comm)
        errs.mine.rank = comm.rank
        with np.errstate(all="ignore"):
            return gathered(CALLS[name](*given, verify=True))

    right = right_ones(name)
    errs = Errs(monkeypatch, 1, call, error)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = pdla.run(4, program)[0]
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


def sizes(a, block=8):
    """Of each row of a factorization what its claim bounds it by: |A|, |L| |U|, and for Cholesky's |D^H| |D^-H| |D^H|, too."""
    l = np.linalg.cholesky(a)
    size = np.abs(l.T).sum(1)
    for i in range(0, len(a), block):
        d = l[i : i + block, i : i + block]
        size[i : i + block] += (np.abs(d.T) @ np.abs(np.linalg.inv(d).T) @ np.abs(d.T)).sum(1)
    return np.abs(a).sum(1) + np.abs(l) @ size


@pytest.mark.parametrize("name", ["cholesky", "lu_factor", "triangular"])
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("call", [0, 2, 5])
def test_what_is_beyond_twice_the_bound_is_found(monkeypatch, name, rank, call):
    upper = pdla.run(1, lambda comm: np.triu(lu_factor(on((1, 1), GENERAL, Layout(), comm))[0].gather()))[0]
    x = np.linalg.solve(np.tril(TRIANGLE), B)
    size, terms = {
        "cholesky": lambda: (sizes(POSITIVE), 4 * N),
        "lu_factor": lambda: (np.abs(GENERAL).sum(1).max() + 1.5 * N * np.abs(upper).sum(1).max(), 4 * N),
        "triangular": lambda: (np.abs(B).sum(1) + np.abs(np.tril(TRIANGLE)) @ np.abs(x).sum(1), 2 * N + 2 * 40),
    }[name]()
    errs = Errs(monkeypatch, rank, call, 2.01 * (terms + 2 * 4 + 16) * EPS / 2 * np.max(size))

    def program(comm):
        given = factors(comm)
        errs.mine.rank = comm.rank
        CALLS[name](*given, verify=True)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pdla.run(4, program)
    assert [str(w.message)[-28:] for w in said] == ["computed again, it was right"] * errs.done
    assert errs.done or call > 3  # which rank 0 may not make


@pytest.mark.parametrize(("module", "what", "name", "place"), [
    (CholeskyFactorization, "compute", "cholesky", (30, 12)), (CholeskyFactorization, "compute", "inv pos", (47, 0)),
    (LUFactorization, "compute", "lu_factor", (20, 12)), (LUFactorization, "compute", "lu_factor", (12, 20)),
    (LUFactorization, "compute", "tall", (40, 3)),
    (LUFactorization, "compute", "wide", (2, 41)), (solutions, "substitute", "triangular", (30, 12)),
], ids=str)
def test_the_block_is_named_by_its_rank_and_place(monkeypatch, module, what, name, place):
    """As often as it is computed: then all ranks raise the same error, and can go on."""
    right = getattr(module, what)

    def wrong(*args, **named):
        made = right(*args, **named)
        X = made[0] if isinstance(made, tuple) else made
        i, j = (np.flatnonzero(held.indices() == at) for held, at in zip(X.indices, place, strict=True))
        X.stored[np.ix_(i, j)] += 1e-3
        return made

    monkeypatch.setattr(module, what, wrong)

    def program(comm):
        with pytest.raises(VerificationError) as error:
            CALLS[name](*factors(comm), verify=True)
        comm.barrier()
        return str(error.value)

    told = set(pdla.run(5, program))
    owner = place[0] // 8 % 2 * 2 + (place[1] // 20 if name == "triangular" else place[1] // 8 % 2)
    said = f"rank {owner} has wrong elements, one in row {place[0]}, column {place[1]}"
    assert told == {f"{said}; computed again: {said}"}


@pytest.mark.parametrize(("name", "over"), [
    ("cholesky", "overwrite_a"), ("cho_factor", "overwrite_a"), ("lu_factor", "overwrite_a"), ("lu", "overwrite_a"),
    ("solve", "overwrite_a"), ("her", "overwrite_a"), ("inv", "overwrite_a"), ("triangular", "overwrite_b"),
    ("trsm", "overwrite_b"), ("cho_solve", "overwrite_b"), ("lu_solve", "overwrite_b"),
])
def test_what_was_overwritten_is_named_and_kept_on_demand(monkeypatch, name, over):
    def program(comm, errs, verify):
        given = factors(comm)
        if name == "trsm":  # whose B is the transpose of the one given
            given[1] = given[1].copy()
        errs.mine.rank = comm.rank
        return gathered(CALLS[name](*given, verify=verify, **{over: True}))

    said = r"rank.* wrong elements in rows \d+ to \d+; [AB] may have been overwritten: verify='keep'"
    with pytest.raises(VerificationError, match=said):
        pdla.run(4, program, Errs(monkeypatch, 1, 0, 1e-4), True)
    monkeypatch.undo()
    errs = Errs(monkeypatch, 1, 0, 1e-4)
    with pytest.warns(RuntimeWarning, match="computed again, it was right"):
        found = pdla.run(4, program, errs, "keep")[0]
    np.testing.assert_allclose(found, pdla.run(4, program, errs, False)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["triangular", "cho_solve", "pos", "sym"])
def test_nan_where_nothing_is_read_hides_no_fault(monkeypatch, name):
    whole = POSITIVE if name == "pos" else TRIANGLE

    def program(comm, errs=None):
        A, right = on((2, 2), np.where(np.tri(N, dtype=bool), whole, np.nan), cyclic(8), comm), on((2, 2), B, BLOCKS, comm)
        if errs:
            errs.mine.rank = comm.rank
        return {
            "triangular": lambda: solve_triangular(A, right, lower=True, verify=bool(errs)),
            "cho_solve": lambda: cho_solve((A, True), right, verify=bool(errs)),
        }.get(name, lambda: solve(A, right, assume_a=name, verify=bool(errs)))().gather()

    expected = pdla.run(4, program)[0]
    errs = Errs(monkeypatch, 1, 1, 1e-2)
    with pytest.warns(RuntimeWarning, match="computed again, it was right"):
        np.testing.assert_allclose(pdla.run(4, program, errs)[0], expected, rtol=1e-8)


@pytest.mark.parametrize("assume", ["sym", "her"])
@pytest.mark.parametrize("lower", [True, False])
def test_a_wrong_reflection_is_found_and_mended(monkeypatch, assume, lower):
    right, left = factorization.reflect, [1]  # how often it is wrong

    def wrong(X, *args):
        right(X, *args)
        if X.grid.comm.rank == 2 and left[0]:
            left[0] -= 1
            X.stored[5, 3] += 1e-3

    monkeypatch.setattr(factorization, "reflect", wrong)

    def program(comm, verify=True, **options):
        A, right, *_ = factors(comm, cyclic(8))
        return solve(A, right, assume_a=assume, lower=lower, verify=verify, **options).gather()

    with pytest.warns(RuntimeWarning, match="computed again, it was right"):
        found = pdla.run(4, program)[0]
    np.testing.assert_array_equal(found, pdla.run(4, program, False)[0])
    left[0] = 1
    with pytest.raises(VerificationError, match="A may have been overwritten"):
        pdla.run(4, partial(program, overwrite_a=True))


OVER = {
    **dict.fromkeys(
        ("cholesky", "upper", "cho_factor", "lu_factor", "wide", "tall", "lu", "solve", "pos", "her", "inv"), "overwrite_a",
    ),
    **dict.fromkeys(("cho_solve", "lu_solve", "triangular"), "overwrite_b"),
}


@calls
@pytest.mark.parametrize("at", [np.nan, np.inf, 1e300])
def test_what_is_no_number_or_infinite_in_the_operands_is_no_fault(name, at):
    """Nor an error where they may be overwritten, and cannot be computed twice."""

    def program(comm):
        over = {OVER[name]: True} if name in OVER and at != 1e300 else {}
        given = factors(comm)
        for X in {4: given, 5: given[1:2], 6: given[::2] + given[3:]}[comm.size]:
            X[20:21, 10:11] = at
        with np.errstate(all="ignore"), suppress(pdla.errors.LinAlgError):
            CALLS[name](*given, verify=True, **over, **({} if name == "trsm" else {"check_finite": False}))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", ".*computed again")
        pdla.run(4, program)
        pdla.run(5, program)  # in B alone
        pdla.run(6, program)  # in A alone


@pytest.mark.parametrize("error", [1e-9, 1e300, np.nan])
@pytest.mark.parametrize("name", ["matrix", "vector", "inverse"])
def test_a_wrong_division_by_a_diagonal_is_found_and_mended(monkeypatch, name, error):
    right, left = diagonal.replicate_nonzero_diagonal, [1]  # how often the divisors are wrong

    def wrong(A, dtype):
        found = right(A, dtype)
        if A.grid.comm.rank == 0 and left[0]:
            left[0] -= 1
            found[5] += error * found[5]
        return found

    monkeypatch.setattr(diagonal, "replicate_nonzero_diagonal", wrong)

    def program(comm, verify=True):
        A, B, *_ = factors(comm, BLOCKS)
        call = partial(inv, A) if name == "inverse" else partial(solve, A, B if name == "matrix" else np.arange(float(N)))
        with np.errstate(all="ignore"):
            return gathered([call(assume_a="diagonal", verify=verify)])

    with pytest.warns(RuntimeWarning, match="ranks? .* computed again, it was right"):
        found = pdla.run(4, program)[0]
    np.testing.assert_array_equal(found, pdla.run(4, program, False)[0])
    left[0] = 2
    if np.isfinite(error):  # what is NaN twice may be right
        with pytest.raises(VerificationError, match="wrong elements, one in row "):
            pdla.run(4, program)


@pytest.mark.parametrize("at", [np.nan, np.inf])
def test_a_diagonal_that_is_no_number_is_no_fault(at):
    def program(comm):
        A, B, *_ = factors(comm, BLOCKS)
        A[20:21, 20:21] = at
        for over in (False, True):
            solve(A, B, assume_a="diagonal", overwrite_b=over, check_finite=False, verify=True)

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        pdla.run(4, program)


@calls
def test_right_results_of_partial_sums_pass(name):
    """The ones of a unit diagonal count once."""

    def program(comm):
        return gathered(CALLS[name](*(sums((2, 2), a, comm) for a in (GENERAL, B, POSITIVE, TRIANGLE)), verify=True))

    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*computed again")
        assert len(pdla.run(5, program)[0]) == len(right_ones(name))


def test_a_factor_that_underflows_is_no_fault():
    """Of (1e200, 1e200; 1e-200, 1e-200) the element of L is 0, and A - L U is 1e-200 where |L| |U| is as small."""
    a = np.outer([1e200, 1e-200], [1.0, 1.0])
    pdla.run(2, lambda comm: lu_factor(on((1, 2), a + np.diag([0, 1e-200]), cyclic(1), comm), verify=True))


def test_a_solution_that_underflows_is_no_fault():
    """Of 1e200 A X = 1e-124 B the X is 1e-324, or 0, and the rest as large as B."""

    def program(comm):
        b = on((2, 2), B * 1e-124, BLOCKS, comm)
        solve(on((2, 2), GENERAL * 1e200, cyclic(8), comm), b, verify=True)
        solve(on((2, 2), POSITIVE * 1e200, cyclic(8), comm), b, assume_a="pos", verify=True)

    pdla.run(4, program)


def test_a_triangle_that_cancels_what_it_is_added_to_is_no_fault():
    def program(comm):
        A = on((2, 2), drawn((24, 24), float), BLOCKS, comm)
        C = pdla.syrk(A)
        pdla.syrk(A, alpha=-1, beta=1, out=C)

    with config.override(verify=True):
        pdla.run(4, program)


def test_a_panel_by_the_inverse_of_an_ill_conditioned_block_is_no_fault():
    """L_21 is A_21 times the inverse of L_11^H, and errs by its condition more than |L_21| |L_11^H| allows."""
    l = np.eye(60) * 30
    l[:20, :20] = np.tril(drawn((20, 20), float)) + np.diag(np.full(20, 0.2))
    l[20:, :20] = drawn((40, 20), float, 3)
    pdla.run(4, lambda comm: cholesky(on((2, 2), l @ l.T, cyclic(20), comm), verify=True))


def test_the_setting_checks_plans_and_what_is_made_of_factors(monkeypatch):
    def program(comm, name, errs):
        A, _, S, _ = factors(comm)
        plan = pdla.linalg.plan_cholesky(S)
        comm.barrier()
        errs.mine.rank = comm.rank
        {"plan": lambda: plan(S), "det": lambda: pdla.linalg.det(A), "power": lambda: pdla.linalg.matrix_power(A, -1)}[name]()

    with config.override(verify=True):
        for name in ("plan", "det", "power"):
            with pytest.warns(RuntimeWarning, match="wrong elements"):
                pdla.run(4, program, name, Errs(monkeypatch, 1, 0, 1e-4))
            monkeypatch.undo()


def test_a_matrix_that_is_not_positive_definite_is_believed_the_second_time():
    def program(comm):
        with pytest.raises(pdla.errors.LinAlgError, match="leading minor of order 1 "):
            cholesky(on((2, 2), -POSITIVE, BLOCKS, comm), verify=True)

    pdla.run(4, program)


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("rank", range(4))
def test_a_wrong_copy_of_a_triangle_that_is_added_to_is_named(monkeypatch, hermitian, rank):
    """Only one rank's copy is wrong; the other triangle, which is not read, holds NaN."""

    def program(comm, errs=None):
        A = on((2, 2), drawn((16, 8), complex), Layout(), comm)
        C = on((2, 2), np.tril(drawn((16, 16), complex, 1)) + np.triu(np.full((16, 16), np.nan), 1), Layout(), comm)
        comm.barrier()
        if errs:
            errs.mine.rank = comm.rank
        (pdla.herk if hermitian else pdla.syrk)(A, alpha=2, beta=3, out=C)

    with config.override(verify=True):
        pdla.run(4, program)
        errs = Errs(monkeypatch, rank, 0, 1e-3, "gemm" if hermitian else "square")
        with pytest.raises(VerificationError, match=r"wrong elements in rows \d+ to \d+; the old elements of out are lost"):
            pdla.run(4, program, errs)
    assert errs.done


class Spoils:
    """An element of one message on one rank, once: of those within checks (within=True), or of the others."""

    def __init__(self, monkeypatch, rank, number, to, at=-1, within=False):
        self.rank, self.left, self.to, self.at, self.within = rank, number, to, at, within
        self.mine, self.done, copy = threading.local(), False, ThreadComm._copy

        def copied(comm, out, *message):
            copy(comm, out, *message)
            if getattr(self.mine, "rank", None) != self.rank or self.done or not out.size:
                return
            if getattr(self.mine, "checks", False) != self.within:
                return
            self.left -= 1
            if self.left < 0:
                self.done = True
                out[np.unravel_index(self.at % out.size, out.shape)] = self.to

        monkeypatch.setattr(ThreadComm, "_copy", copied)
        for name in ("__init__", "find_faults"):
            monkeypatch.setattr(Check, name, self.marked(getattr(Check, name)))

    def marked(self, right):
        def marked(*args):
            self.mine.checks = True
            try:
                return right(*args)
            finally:
                self.mine.checks = False

        return marked


def outcome(call, spoils, so=list):
    """What is given, or the error, after which ranks still go on together."""
    try:
        found, error = call(), ""
    except (VerificationError, pdla.errors.LinAlgError) as raised:
        found, error = [], f"{type(raised).__name__}: {raised}"
    spoils.mine.rank = None
    return error or gathered(so(found))


def remade(found):
    """A by its factors, which depend on the pivots of a tournament, in which a wrong row may win."""
    x, rows = found[0].gather(), Permutation.of_pivots(found[1]).rows(len(found[1]))
    return [((np.tril(x, -1) + np.eye(len(x))) @ np.triu(x))[np.argsort(rows)]]


PRODUCTS = {
    "lu_factor": lambda found: found and remade(found),
    "lu": lambda found: found and [(np.tril(found[1].gather()) @ np.triu(found[2].gather()))[found[0]]],
}


@pytest.mark.parametrize("grid", [(1, 2), (2, 1), (2, 2), (2, 3), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("name", ["cholesky", "lu_factor", "lu", "vector", "pos", "inv lower"])
def test_a_message_that_errs_is_mended_or_an_error_of_all_ranks(monkeypatch, grid, name):
    """Its last element, which is a pivot or another number that ranks act on, too."""
    ranks = int(np.prod(grid))

    def program(comm, spoils):
        comm.shared_limit = (spoils.left % 2) << 24  # panels are sent, or read in place
        given = [on(grid, a[:20, :20], cut_in_blocks(grid, 4), comm) for a in (GENERAL, B, POSITIVE, TRIANGLE)]
        comm.barrier()
        spoils.mine.rank = comm.rank
        vector = {"vector": lambda A, *_, **o: [solve(A, np.arange(20.0), **o)]}
        with np.errstate(all="ignore"):
            return outcome(lambda: {**CALLS, **vector}[name](*given, verify=True), spoils, PRODUCTS.get(name, list))

    with monkeypatch.context() as patch:
        right = pdla.run(ranks + 1, program, Spoils(patch, -1, 0, 0))[0]
    for turn, (to, at) in enumerate([(np.nan, -1), (2.0, -2), (-1e7, -1), (np.inf, 0), (2.0, -1), (np.nan, 0)]):
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = pdla.run(ranks + 1, program, Spoils(patch, turn % ranks, turn * 7 // 3, to, at))
        assert len({type(each) for each in said}) == 1
        if isinstance(said[0], str):
            assert len(set(said)) == 1
        else:
            for found in said:
                np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["cholesky", "lu_factor", "lu", "vector", "pos", "triangular", "inv", "inv pos"])
@pytest.mark.parametrize(("rank", "number", "to"), [(0, 0, np.nan), (1, 1, 1e300), (2, 2, 2.0), (3, 4, np.inf), (1, 3, 2.0)])
def test_a_check_that_errs_is_made_again(monkeypatch, name, rank, number, to):
    """Nothing is computed again: the result was right."""
    computed = []
    monkeypatch.setattr(of_results, "_recompute", lambda *_: computed.append(True))

    def program(comm, spoils):
        given = factors(comm)
        comm.barrier()
        spoils.mine.rank = comm.rank
        with np.errstate(all="ignore"):
            return gathered(CALLS[name](*given, verify=True))

    right, spoils = right_ones(name), Spoils(monkeypatch, rank, number, to, 3, within=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        np.testing.assert_array_equal(pdla.run(4, program, spoils)[0], right)
    assert spoils.done and not computed
    assert all(str(w.message).endswith("; looked at again, it was right") for w in said)


def test_where_ranks_were_told_different_numbers_those_of_who_told_them_hold():
    def program(comm, verify):
        with of_results.verifying(verify):
            return of_results.settle(comm, np.array([7, comm.rank]), 2).tolist()

    assert pdla.run(3, program, True) == 3 * [[7, 2]] and pdla.run(3, program, False) == [[7, rank] for rank in range(3)]


ELSEWHERE = Layout("col", "row")


@pytest.mark.parametrize(("module", "function", "call"), [
    (factorization, "to_layout", lambda A, B, S, T, **o: [cholesky(S, layout=ELSEWHERE, **o)]),
    (factorization, "to_layout", lambda A, B, S, T, **o: [cholesky(S, lower=False, layout=ELSEWHERE, **o)]),
    (lu_split, "triangle", CALLS["lu"]), (lu_split, "to_layout", CALLS["lu"]),
    (right_side, "to_layout", CALLS["triangular"]), (right_side, "to_layout", CALLS["few"]),
    (solutions, "gather_diagonal", CALLS["vector"]),
    (right_side, "to_layout", lambda A, B, S, T, **o: [solve(S, B, assume_a="pos", layout=ELSEWHERE, **o)]),
    (inverse, "to_layout", CALLS["inv"]), (inverse, "to_layout", CALLS["inv pos"]), (inverse, "to_layout", CALLS["inv lower"]),
    (diagonal, "to_layout", lambda A, B, S, T, **o: [inv(T, assume_a="diagonal", layout=ELSEWHERE, **o)]),
    (refinement.RightSide, "place", CALLS["refined"]),
])
@pytest.mark.parametrize("element", [(0, 1), (5, 2), (2, 7)])
def test_all_that_is_given_is_checked(monkeypatch, module, function, call, element):
    """Zeros of the other triangle, and what comes of a result in another layout."""
    right, left = getattr(module, function), [1]

    def wrong(*args):
        made = right(*args)
        if made.grid.comm.rank == 2 and left and made.dtype == float:  # the solution, not one by low factors
            left.clear()
            made.stored[tuple(at % n for at, n in zip(element, made.stored.shape, strict=True))] += 1.0
        return made

    def program(comm, verify):
        return gathered(call(*factors(comm), verify=verify))

    expected = pdla.run(4, program, False)[0]
    monkeypatch.setattr(module, function, wrong)
    with pytest.warns(RuntimeWarning, match=r"it was right|factored again"):
        found = pdla.run(4, program, True)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_an_element_below_the_diagonal_of_u_is_named(monkeypatch):
    right, left = lu_split.triangle, [1]

    def wrong(A, lower, unit=False):
        made = right(A, lower, unit)
        if left and not lower and made.grid.comm.rank == 2:
            left.clear()
            made.stored[5, 2] = 1.0  # of rows 8 to 15, columns 0 to 7
        return made

    monkeypatch.setattr(lu_split, "triangle", wrong)
    with pytest.warns(RuntimeWarning, match="rank 2 has wrong elements, one in row 13, column 2; computed again"):
        found = pdla.run(4, lambda comm: gathered(lu(factors(comm)[0], verify=True)))[0]
    np.testing.assert_array_equal(found, right_ones("lu"))


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("element", [(0, 3), (6, 7)])
def test_an_element_above_the_diagonal_is_named(monkeypatch, rank, element):
    errs = Errs(monkeypatch, rank, 0, 5.0, "potrf", element)
    errs.where = lambda x: element

    def program(comm):
        A = 8 * pdla.eye(32, pdla.ProcessGrid((2, 2), comm=comm), cyclic(8))
        errs.mine.rank = comm.rank
        return cholesky(A, verify=True).gather()

    i, j = (at + 8 * (rank == 3) for at in element)
    with pytest.warns(RuntimeWarning, match=f"rank {rank} has wrong elements, one in row {i}, column {j}; computed again"):
        np.testing.assert_allclose(pdla.run(4, program)[0], np.sqrt(8) * np.eye(32), rtol=1e-15)


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_the_other_triangle_of_a_product_is_checked(monkeypatch, mirror, lower):
    fill, left = rank_k.symmetrize if mirror else rank_k._compute, [1]

    def wrong(*args):
        fill(*args)
        C = args[0] if mirror else args[1]
        if left and C.grid.comm.rank == (1 if lower else 2):
            left.clear()
            C.stored[:] += np.triu(np.ones((24, 24)), 1)[np.ix_(*(held.indices() for held in C.indices))]

    monkeypatch.setattr(rank_k, "symmetrize" if mirror else "_compute", wrong)

    def program(comm):
        A = on((2, 2), drawn((24, 10), float), BLOCKS, comm)
        return pdla.syrk(A, lower=lower, mirror=mirror).gather()

    with config.override(verify=True), pytest.warns(RuntimeWarning, match="wrong elements, one in row"):
        found = pdla.run(4, program)[0]
    np.testing.assert_allclose(found, pdla.run(4, program)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("grid", "ranks"), [((1, 1), 2), ((1, 2), 2), ((2, 1), 3), ((2, 2), 4)])
@pytest.mark.parametrize("name", ["trsm", "triangular", "diagonal", "cho_solve", "lu_solve", "vectors"])
def test_a_right_result_may_be_infinite_though_what_it_is_of_is_overwritten(grid, ranks, name):
    """Where images of vectors overflow, too; what is infinite where they do not is wrong."""
    a = np.eye(6)
    a[2, 2] = 1e-300

    def program(comm, b):
        A, B = on(grid, a, cyclic(2), comm), on(grid, np.full((6, 2), b), Layout("row", "col"), comm)
        over = {"overwrite_b": True, "verify": True}
        with np.errstate(all="ignore"):
            return {
                "trsm": lambda: trsm(A, B.T, lower=True, side="right", **over).T,
                "triangular": lambda: solve_triangular(A, B, lower=False, **over),
                "diagonal": lambda: solve(A, B, assume_a="diagonal", **over),
                "cho_solve": lambda: cho_solve((A, True), B, **over), "lu_solve": lambda: lu_solve((A, np.arange(6)), B, **over),
                "vectors": lambda: solve(A, B, overwrite_a=True, **over),
            }[name]().gather()

    found = pdla.run(ranks, program, 1e300)[0]
    assert not np.isfinite(found[2]).any()
    assert np.isfinite(pdla.run(ranks, program, 1e-305)[0]).all()


@pytest.mark.parametrize("to", [np.inf, np.nan, 1e200])
@pytest.mark.parametrize(("name", "over"), [
    ("cholesky", "overwrite_a"), ("lu_factor", "overwrite_a"), ("triangular", "overwrite_b"),
])
def test_what_cannot_be_infinite_is_refused_where_it_is_lost(monkeypatch, name, over, to):
    """1e200 in the last element of L, whose square overflows, and which no other row shows."""
    ways = {
        "cholesky": (CholeskyFactorization, "compute"), "lu_factor": (LUFactorization, "compute"),
        "triangular": (solutions, "substitute"),
    }
    module, what = ways[name]
    right, left = getattr(module, what), [1]

    def wrong(*args):
        made = right(*args)
        X = made[0] if isinstance(made, tuple) else made
        if X.grid.comm.rank == 3 and left:
            left.clear()
            X.stored[-1, -1] = to
        return made

    monkeypatch.setattr(module, what, wrong)

    def program(comm):
        with np.errstate(all="ignore"), pytest.raises(VerificationError, match=r"not finite|too large|wrong elements"):
            CALLS[name](*factors(comm), verify=True, **{over: True})
        comm.barrier()

    pdla.run(4, program)


def test_ranks_end_a_refinement_together(monkeypatch):
    """Though one of them hears of a residual that is small enough."""
    right, left = refinement.reduce_columns, [3]

    def wrong(X, op):
        found = right(X, op)
        if X.grid.comm.rank == 1 and op == "maximum" and left[0]:
            left[0] -= 1
            found = found * 0
        return found

    monkeypatch.setattr(refinement, "reduce_columns", wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pdla.run(4, lambda comm: gathered(CALLS["refined"](*factors(comm), verify=True)))[0]
    np.testing.assert_allclose(found, right_ones("refined"), rtol=1e-9, atol=1e-9)


def test_a_check_receives_a_few_vectors():
    def program(comm, n):
        A, received = 4.0 * pdla.eye(n, pdla.ProcessGrid((2, 2), comm=comm), cyclic(n // 8)), []
        for name in ("cholesky", "lu_factor", "triangular"):
            for verify in (False, True):
                with pdla.record() as ledger:
                    CALLS[name](A, A, A, A, verify=verify)
                received.append(ledger.bytes_received / 8 / n)
        return np.diff(received)[::2].max()

    assert max(pdla.run(4, program, 64)) <= 16
    assert max(pdla.run(4, program, 256)) <= 16


def test_what_is_no_way_to_verify():
    def program(comm):
        given = factors(comm)
        for name, verify in product(CALLS, (1, "yes", np.ones(2))):
            with pytest.raises(PlanError, match=r"verify=.*: True, False, 'keep' or None"):
                CALLS[name](*given, verify=verify)

    pdla.run(4, program)


@pytest.mark.parametrize(("who", "said"), [([1], "rank 1 has"), ([0, 1], "ranks 0, 1 have"), ([0, 2, 3], "ranks 0, 2, 3 have")])
def test_one_rank_has_and_several_have_what_is_not_finite(monkeypatch, who, said):
    """Blocks that err at the first computation alone are told of in the warning."""
    right, done = RightSide.place, [False] * 4

    def wrong(side, X):
        X, rank = right(side, X), X.grid.comm.rank
        if rank in who and not done[rank]:
            done[rank] = True
            X.stored[...] = np.nan
        return X

    def program(comm):
        T = on((4, 1), TRIANGLE, Layout("row"), comm)
        trsm(T, on((4, 1), B, Layout("row"), comm), lower=True, verify=True)

    monkeypatch.setattr(RightSide, "place", wrong)
    with pytest.warns(RuntimeWarning, match=f"^{said} elements that are not finite"):
        pdla.run(4, program)


@pytest.mark.parametrize("to", [1.0, np.inf, np.nan])
@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("row", [3, 30, 47])
def test_each_copy_of_a_result_is_checked(monkeypatch, to, rank, row):
    """A rank multiplies its copy by its own part of the factors alone, in which a wrong element may meet zeros."""
    right, left = solutions.gather_diagonal, [1]

    def wrong(*args):
        made = right(*args)
        if left and made.grid.comm.rank == rank:
            left.clear()
            made.stored[row] += to
        return made

    monkeypatch.setattr(solutions, "gather_diagonal", wrong)

    def program(comm):
        with np.errstate(all="ignore"):
            return gathered(CALLS["vector"](*factors(comm), verify=True))

    with pytest.warns(RuntimeWarning, match="computed again, it was right"):
        found = pdla.run(4, program)
    for each in found:
        np.testing.assert_allclose(each, right_ones("vector"), rtol=1e-9)
