"""Of a matrix of which something is known only that is read: one triangle, or a diagonal; what else lies there leaves no trace."""

import numpy as np
import pytest
from helpers.systems import BLOCKS, cyclic, drawn, layered, on, positive, raised, ratio, sums

import pdla
from pdla import Cyclic, Layout
from pdla.errors import LinAlgError
from pdla.linalg import cho_factor, cho_solve, cholesky, inv, solve, solve_triangular

N = 21


def symmetric(n, dtype, hermitian):
    """Indefinite, and well-conditioned."""
    a = drawn((n, n), dtype, 3)
    return a + (a.conj().T if hermitian else a.T)


def half(a, lower, hermitian=False, unread=np.nan):
    """One triangle; the other, and imaginary parts of a Hermitian diagonal, are not to be read."""
    a = a.copy()
    a[np.triu_indices(len(a), 1) if lower else np.tril_indices(len(a), -1)] = unread
    if hermitian and a.dtype.kind == "c":
        a.imag[np.diag_indices(len(a))] = unread
    return a


@pytest.mark.parametrize("grid", [(1, 1), (1, 3), (3, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("assume", ["sym", "her"])
def test_one_triangle_says_all(grid, assume):
    """Of each dtype, in any layout, as views, over idle ranks."""

    def program(comm):
        worst = 0.0
        for dtype, layout, lower in (
            ("float32", cyclic(8), True), ("complex64", BLOCKS, False), ("float64", cyclic(4, None), False),
            ("complex128", cyclic(4), True), ("complex128", Layout("col"), False),
        ):
            a, b = symmetric(18, dtype, assume == "her"), drawn((18, 3), dtype, 1)
            A, B = on(grid, half(a, lower, assume == "her"), layout, comm), on(grid, b, BLOCKS, comm)
            for X, kept, whole in ((A, lower, a), (A.T, not lower, a.T), (A.H, not lower, a.conj().T)):
                known = {"assume_a": assume, "lower": kept}
                worst = max(worst, ratio(whole, solve(X, B, **known).gather(), b))
                worst = max(worst, ratio(whole, solve(X, b[:, 0], verify=True, **known)[:, None], b[:, :1]))
                worst = max(worst, ratio(whole, inv(X, **known).gather(), np.eye(18)))
            if dtype in ("float64", "complex128"):
                known = {"assume_a": assume, "lower": lower}
                worst = max(worst, ratio(a, solve(A, B, refine="float32", **known).gather(), b))
            X = solve(A, B, assume_a=assume, lower=lower, overwrite_a=True, overwrite_b=True)
            worst = max(worst, ratio(a, X.gather(), b))
        return worst

    assert max(pdla.run(grid[0] * grid[1] + 1, program)) < 30


def test_one_triangle_of_integers_layers_partial_sums_and_parts():
    a, b = symmetric(48, "float64", False), np.ones(48)
    counts = np.rint(8 * a).astype(int)

    def program(comm):
        found = []
        for lower in (True, False):
            known = {"assume_a": "sym", "lower": lower}
            A = layered((2, 2, 2), 8, half(a, lower), comm)
            found += [ratio(a, x[:, None], b[:, None]) for x in (solve(A, b, **known), solve(A, b, overwrite_a=True, **known))]
            found.append(ratio(a, solve(sums((2, 2), half(a, lower, unread=7.0), comm), b, **known)[:, None], b[:, None]))
            part = on((2, 3), np.pad(half(a, lower), 5, constant_values=np.nan), BLOCKS, comm)[5:-5, 5:-5]
            found.append(ratio(a, solve(part, b, **known)[:, None], b[:, None]))
            C = on((2, 3), half(counts, lower, unread=-99), BLOCKS, comm)
            found.append(ratio(counts.astype(float), solve(C, b, **known)[:, None], b[:, None]))
        return max(found)

    assert max(pdla.run(9, program)) < 30


def test_what_is_solved_where_both_triangles_are_read_differs():
    """A that is not symmetric is solved as the matrix that its triangle says."""
    a, b = drawn((N, N), "float64"), np.ones(N)
    kept = np.tril(a) + np.tril(a, -1).T

    def program(comm):
        A = on((2, 2), a, BLOCKS, comm)
        return ratio(kept, solve(A, b, assume_a="sym")[:, None], b[:, None]), ratio(a, solve(A, b)[:, None], b[:, None])

    assert max(max(found) for found in pdla.run(4, program)) < 30


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_a_triangle_is_reflected_by_half_of_its_words_as_dry_runs_say(ranks):
    n, nb = 48, 8

    def program(comm, assume):
        grid, layout = pdla.ProcessGrid((1, ranks), comm=comm), Layout(None, Cyclic("col", nb))
        A = pdla.from_function(lambda i, j: 9.0 * (i == j), (n, n), grid, layout)
        with pdla.record() as ledger:
            solve(A, pdla.ones((n, 40), grid, layout), assume_a=assume)
        return ledger.bytes_received, ledger.messages, ledger.peak_workspace

    ran = {assume: pdla.run(ranks, program, assume) for assume in ("gen", "sym", "her")}
    for assume, found in ran.items():
        assert found == [pdla.dry_run(ranks, program, assume, rank=rank)[0] for rank in range(ranks)]
    more = sum(both[0] for both in ran["sym"]) - sum(both[0] for both in ran["gen"])
    mine = sum(k % ranks == j % ranks for k in range(n // nb) for j in range(k))  # blocks that are reflected where they lie
    assert more == 8 * nb**2 * (n // nb * (n // nb - 1) // 2 - mine)
    assert ran["sym"] == ran["her"]


READ = {
    "cholesky": ("pos", lambda A, b, lower, **o: [cholesky(A, lower=lower, **o)]),
    "cho_factor": ("pos", lambda A, b, lower, **o: [cho_solve(cho_factor(A, lower=lower, **o), b, **o)]),
    "cho_solve": ("triangular", lambda A, b, lower, **o: [cho_solve((A, lower), b, **o)]),
    "solve_triangular": ("triangular", lambda A, b, lower, **o: [solve_triangular(A, b, lower=lower, **o)]),
    "unit": ("unit", lambda A, b, lower, **o: [solve_triangular(A, b, lower=lower, unit_diagonal=True, **o)]),
    "triangular": ("triangular", lambda A, b, lower, **o: [
        f(f"{'lower' if lower else 'upper'} triangular") for f in both(A, b, **o)
    ]),
    "diagonal": ("diagonal", lambda A, b, lower, **o: [f("diagonal") for f in both(A, b, **o)]),
    **{
        assume: (assume, lambda A, b, lower, assume=assume, **o: [f(assume) for f in both(A, b, lower=lower, **o)])
        for assume in ("pos", "sym", "her")
    },
    **{
        f"refined {assume}": (assume, lambda A, b, lower, assume=assume, **o: [
            solve(A, b, assume_a=assume, lower=lower, refine="float32", **o)
        ])
        for assume in ("pos", "sym", "her")
    },
}


def both(A, b, **options):
    return lambda assume: solve(A, b, assume_a=assume, **options), lambda assume: inv(A, assume_a=assume, **options)


def given(kind, dtype, lower, unread):
    """What is read, and around it what is not."""
    a = positive(N, dtype)
    if kind == "diagonal":
        return np.where(np.eye(N, dtype=bool), a, np.array(unread, dtype))
    a = half(a, lower, kind in ("pos", "her"), unread)
    if kind == "unit":
        a[np.diag_indices(N)] = unread
    return a


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (2, 2)], ids=str)
def test_what_is_not_read_may_be_nan_and_leaves_no_trace(name, grid):
    kind, call = READ[name]

    def program(comm):
        for dtype, layout, lower, verify in (("float64", cyclic(4), True, False), ("complex128", BLOCKS, False, True)):
            found = []
            for unread in (0, np.nan, np.inf):
                A, b = on(grid, given(kind, dtype, lower, unread), layout, comm), np.arange(N, dtype=dtype)
                made = call(A, b, lower, verify=verify)
                found.append([x.gather() if isinstance(x, pdla.DistMatrix) else x for x in made])
            for clean, *others in zip(*found, strict=True):
                assert np.isfinite(clean).all() and all(np.array_equal(clean, other) for other in others), (dtype, layout, lower)

    pdla.run(grid[0] * grid[1] + 1, program)


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("lower", [True, False])
def test_nan_in_what_is_read_is_an_error_with_its_place(name, lower):
    kind, call = READ[name]
    place = (7, 7) if kind == "diagonal" else (13, 2) if lower else (2, 13)

    def program(comm):
        a = given(kind, "complex128", lower, np.nan)
        a[place] = np.inf
        call(on((2, 2), a, BLOCKS, comm), np.ones(N), lower)

    said = raised(program, 4)
    assert said[0] is LinAlgError
    assert f"A has (inf+0j) at [{place[0]}, {place[1]}]: elements must be finite" in said[1]


def test_vectors_and_views_are_looked_at_where_they_are_read():
    def program(comm):
        A = on((2, 2), given("sym", "float64", True, np.nan), BLOCKS, comm)
        solve(A.T, np.ones(N), assume_a="sym", lower=False)
        solve(A, np.where(np.arange(N) == 4, np.nan, 1.0), assume_a="sym")

    assert raised(program, 4)[1] == "B has nan at [4]: elements must be finite"
