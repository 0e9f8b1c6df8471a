"""Norms as NumPy's; estimates of condition numbers between a third of them and them; warnings where SciPy gives them."""

import warnings

import numpy as np
import pytest
import scipy.linalg
from helpers.systems import BLOCKS, GRIDS, KINDS, cyclic, drawn, hilbert, layered, on, positive, raised, ratio
from scipy.linalg import LinAlgWarning, lapack

import pdla
from pdla import Layout
from pdla.linalg import cho_factor, cond, condition, inv, lu_factor, norm, solve
from pdla.linalg.condition import estimate_norm
from pdla.linalg.panels.factors import Factors
from pdla.linalg.panels.rows import Permutation


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_norms_are_numpys(grid):
    def program(comm):
        for shape in ((0, 0), (0, 3), (1, 1), (7, 9), (33, 5)):
            a = np.random.default_rng(1).integers(-9, 10, shape).astype(float)
            for layout in (cyclic(4), BLOCKS, Layout("col"), Layout()):
                A = on(grid, a, layout, comm)
                for ord in (1, np.inf):
                    assert norm(A, ord) == (np.linalg.norm(a, ord) if a.size else 0)
                assert norm(A, "max") == np.abs(a).max(initial=0)
                assert norm(A) == norm(A, "fro") == A.norm()
        return True

    pdla.run(grid[0] * grid[1] + 1, program)


@pytest.mark.parametrize("dtype", [*KINDS, "float16", "int8", "bool"])
def test_norms_of_dtypes_and_views(dtype):
    a = np.full((6, 5), -128, dtype) if dtype == "int8" else drawn((6, 5), dtype)
    wide = a.astype(np.result_type(dtype, float))

    def program(comm):
        A = on((2, 2), a, BLOCKS, comm)
        for X, y in ((A, wide), (A.T, wide.T), (A.H, wide.T), (A[1:, :3], wide[1:, :3])):
            for ord in (1, np.inf):
                assert norm(X, ord) == pytest.approx(np.linalg.norm(y, ord), rel=1e-14)
            assert norm(X, "max") == np.abs(y).max()

    pdla.run(4, program)


def test_norms_neither_overflow_nor_lose_nan():
    a = np.diag([1e308, 1, -1e-308])

    def program(comm):
        for scale in (1, 1e-300):
            A = on((2, 1), a * scale, BLOCKS, comm)
            assert {norm(A, ord) for ord in (None, 1, np.inf, "max")} == {1e308 * scale}
        for place in range(9):
            N = on((2, 1), np.where(np.arange(9).reshape(3, 3) == place, np.nan, a), BLOCKS, comm)
            assert np.isnan([norm(N, ord) for ord in (None, 1, np.inf, "max")]).all()

    pdla.run(2, program)
    sums = Layout(partial="row")
    assert "norm of partial sums" in raised(lambda comm: norm(pdla.ones((4, 4), pdla.ProcessGrid(2, comm=comm), sums), 1))[1]
    assert "ord=3: one of None, 'fro', 1, 2, inf, 'max'" in raised(lambda comm: norm(on((2, 1), a, BLOCKS, comm), 3))[1]


def kahan(n, s=0.6):
    c = np.sqrt(1 - s * s)
    return np.diag(s ** np.arange(n)) @ (np.eye(n) - c * np.triu(np.ones((n, n)), 1))


ZOO = {
    "drawn": drawn((40, 40), "float64"), "complex": drawn((33, 33), "complex128"), "hilbert": hilbert(8), "kahan": kahan(30),
    "graded": drawn((40, 40), "float64") * np.geomspace(1e-6, 1e6, 40), "one": np.array([[-3.0]]), "two": np.eye(2)[::-1] * 4,
    "single": drawn((20, 20), "float32"), "integers": np.diag([1, 2, 50]), "lacon": np.tril(-np.ones((30, 30)), -1) + np.eye(30),
}


def lapacks(a, p):
    """What LAPACK estimates."""
    a = a.astype("complex128" if a.dtype.kind == "c" else "float64")
    getrf, gecon = lapack.get_lapack_funcs(("getrf", "gecon"), (a,))
    return 1 / gecon(getrf(a)[0], np.linalg.norm(a, p), norm="1" if p == 1 else "I")[0]


@pytest.mark.parametrize("name", ZOO)
def test_estimates_are_lower_bounds_and_close(name):
    a = ZOO[name]
    exact = {p: np.linalg.cond(a.astype(np.result_type(a.dtype, float)), p) for p in (1, np.inf)}

    def program(comm):
        for layout, grid in ((cyclic(8), (2, 2)), (BLOCKS, (3, 1))):
            for p in (1, np.inf):
                found = cond(on(grid, a, layout, comm), p)
                assert 0.3 * exact[p] <= found <= exact[p] * (1 + 1e-5)
                assert found == pytest.approx(lapacks(a, p), rel=1e-4)
        return found

    found = pdla.run(5, program)
    assert found == found[:1] * 5


@pytest.mark.parametrize("dtype", KINDS)
def test_adjoint_factors_solve_systems_of_the_adjoint(dtype):
    a, b = drawn((33, 33), dtype), drawn((33,), dtype, 1)

    def program(comm):
        X, pivots = lu_factor(on((2, 2), a, cyclic(8), comm))
        x = condition._make_solver(Factors.of_lu(X, pivots).adjoint, a.dtype)(b)
        return ratio(a[Permutation.of_pivots(pivots).rows(33)].conj().T, x[:, None], b[:, None])

    assert max(pdla.run(4, program)) < 30


def test_an_estimate_of_signs_that_alternate_is_not_fooled():
    """The last of the products finds what the others miss."""
    v = np.append(0, np.tile([1, -1], 6))
    b = np.eye(13) + 1000 * np.outer(v, v)
    assert 0.3 * np.linalg.norm(b, 1) < estimate_norm(b.__matmul__, b.T.__matmul__, np.empty(13)) <= np.linalg.norm(b, 1)


def test_singular_matrices_nan_and_faults():
    a = drawn((12, 12), "float64")
    nan = np.where(np.arange(144).reshape(12, 12) == 31, np.nan, a)

    def program(comm):
        assert cond(on((1, 2), np.where(np.arange(12) == 5, 0, a), BLOCKS, comm)) == np.inf
        assert cond(on((1, 2), np.diag([1, 1e-310]), BLOCKS, comm)) > 1e307
        assert np.isnan(cond(on((1, 2), nan, BLOCKS, comm), check_finite=False))

    pdla.run(3, program)
    assert "A has nan at [2, 7]" in raised(lambda comm: cond(on((1, 2), nan, BLOCKS, comm)))[1]
    assert "p=3: one of 1, inf" in raised(lambda comm: cond(on((1, 2), a, BLOCKS, comm), 3))[1]
    assert "0 x 0" in raised(lambda comm: cond(on((1, 2), a[:0, :0], BLOCKS, comm)))[1]


@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (2, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("dtype", KINDS)
def test_powers_of_2_do_not_change_a_condition(dtype, grid):
    """To the ends of the range, where norms of A, of its inverse and sums of solutions leave it."""
    kind, a = np.finfo(dtype), drawn((40, 40), dtype)
    powers = [2.0**power for power in (kind.minexp + 1, -40, 0, 40, kind.maxexp - 1)]

    def program(comm):
        found = [cond(on(grid, (a * power).astype(dtype), cyclic(8), comm), p) for p in (1, np.inf) for power in powers]
        ones = [cond(on(grid, (np.eye(300) * power).astype(dtype), cyclic(64), comm)) for power in powers]
        return found, ones

    found, ones = pdla.run(5, program)[0]
    wanted = [found[2]] * len(powers) + [found[len(powers) + 2]] * len(powers)
    np.testing.assert_allclose(found, wanted, rtol=1e3 * kind.eps)
    np.testing.assert_allclose(ones, 1, rtol=1e3 * kind.eps)


def test_dry_runs_of_1024_ranks():
    def program(comm):
        A = pdla.zeros((4096, 4096), pdla.ProcessGrid((32, 32), comm=comm), cyclic(32))
        return cond(A), norm(A, 1)

    assert pdla.dry_run(1024, program, rank=37)[0] == (0, 0)


def warned(function, *args):
    """The texts of the warnings, one a rank, which name the line of the call here."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        function(*args)
    assert all(one.category is LinAlgWarning and one.filename == __file__ for one in said)
    return [str(one.message) for one in said]


LINE = np.linspace(0, 1, 60)[:, None]
ILL = {
    "hilbert": hilbert(12), "larger": hilbert(20), "kernel": np.exp(-((LINE - LINE.T) ** 2) / 2),
    "rows": np.diag(np.geomspace(1, 1e-20, 20)) @ drawn((20, 20), "float64"), "two": np.diag([1, 1e-20]),
    "complex": 1j * hilbert(14), "single": hilbert(8).astype("float32"),
    "noise": drawn((30, 29), "float64") @ drawn((29, 30), "float64", 1),
}


@pytest.mark.parametrize("name", ILL)
@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (2, 1), (2, 2)], ids=str)
def test_what_is_singular_to_working_precision_is_warned_of_on_every_rank(name, grid):
    """As by SciPy; overwritten, too; on idle ranks, too."""
    a = ILL[name]
    assert warned(scipy.linalg.solve, a, np.ones(len(a), a.dtype))

    def program(comm, what):
        for layout in (cyclic(4), BLOCKS):
            A = on(grid, a, layout, comm)
            known = {"assume_a": "sym" if (a == a.T).all() else "gen", "overwrite_a": layout == BLOCKS}
            inv(A, **known) if what == "inv" else solve(A, np.ones(len(a), a.dtype), **known)

    ranks = grid[0] * grid[1] + 1
    for what in ("inv", "solve"):
        said = warned(pdla.run, ranks, program, what)
        assert len(said) == 2 * ranks and all("A is ill-conditioned (rcond=" in text for text in said)
        assert len(set(said)) <= 2  # one of each layout, as pivots may differ, and none of a rank alone
        found = [float(text.partition("rcond=")[2].partition(")")[0]) for text in said]
        assert max(found) < np.finfo(a.dtype).eps


SMALL = np.diag([1.0, 1e-20, 2])


@pytest.mark.parametrize("assume", ["gen", "sym", "her", "pos", "lower triangular", "upper triangular", "diagonal"])
def test_whatever_is_known_of_it(assume):
    def program(comm, small, **named):
        A, b = on((2, 2), small, BLOCKS, comm), np.ones(3)
        solve(A, b, assume_a=assume, **named)
        solve(on((2, 2), small, cyclic(1), comm), on((2, 2), small, BLOCKS, comm), assume_a=assume, overwrite_a=True, **named)
        if not named:
            inv(A, assume_a=assume)

    said = ["A is ill-conditioned (rcond=5e-21): the result may not be accurate"]
    assert warned(pdla.run, 4, program, SMALL) == 12 * said
    if assume in ("gen", "sym", "her", "pos"):
        assert warned(lambda: pdla.run(4, lambda comm: program(comm, SMALL, refine="float32"))) == 8 * said
    assert not warned(pdla.run, 4, program, np.diag([1.0, 1e-15, 2]))
    if "triangular" in assume or assume == "diagonal":  # of what is infinite there is no condition
        assert not warned(lambda: pdla.run(2, lambda comm: solve(
            on((1, 2), np.diag([1, np.inf]), BLOCKS, comm), np.ones(2), assume_a=assume, check_finite=False
        )))


def test_layers_and_partial_sums_are_warned_of_and_a_warning_may_be_an_error():
    a = np.kron(np.diag([1, 1e-20]), positive(24))

    def program(comm):
        solve(layered((2, 2, 2), 8, a, comm), np.ones(48), assume_a="pos")
        inv(layered((2, 2, 2), 8, a, comm))
        addend, grid = np.diag(np.geomspace(1, 1e-20, 48)), pdla.ProcessGrid((8,), comm=comm)
        sums = pdla.from_local(addend * (comm.rank == 3), (48, 48), grid, Layout(partial="row"))
        solve(sums, np.ones(48), assume_a="lower triangular")

    assert len(warned(pdla.run, 8, program)) == 24
    with warnings.catch_warnings():
        warnings.simplefilter("error", LinAlgWarning)
        kind, text = raised(lambda comm: solve(on((1, 2), SMALL, BLOCKS, comm), np.ones(3)), 2)
    assert kind is LinAlgWarning and "rcond=5e-21" in text


WELL = {
    "drawn": drawn((200, 200), "float64"), "single": drawn((200, 200), "float32"), "complex": drawn((60, 60), "complex128"),
    "positive": positive(60, condition=1e8), "hilbert": hilbert(9), "none": np.zeros((0, 0)), "scaled": 1e-300 * positive(30),
    "grown": 1e150 * (drawn((40, 40), "float64") + 4 * np.eye(40)),
}


@pytest.mark.parametrize("name", WELL)
def test_of_others_nothing_is_estimated(name, monkeypatch):
    monkeypatch.setattr(condition, "estimate_norm", None)
    a = WELL[name]

    def program(comm):
        A, b = on((2, 2), a, BLOCKS, comm), np.ones(len(a), a.dtype)
        for assume in ("gen", "pos") if name in ("positive", "hilbert", "scaled", "none") else ("gen",):
            solve(A, b, assume_a=assume)
            inv(A, assume_a=assume)

    assert not warned(pdla.run, 4, program)


def test_a_layer_without_panels_leaves_nothing_to_later_factorizations(monkeypatch):
    """The one panel's header once came to the other layer in place of the header of no panels, whose pivots all others' joined."""
    monkeypatch.setattr(condition, "estimate_norm", None)
    a = positive(30)

    def program(comm):
        cho_factor(layered((2, 2, 2), 32, a, comm))
        solve(on((2, 4), 1e-300 * a, BLOCKS, comm), np.ones(len(a)), assume_a="pos")

    assert not warned(pdla.run, 8, program)


def test_kahans_matrix_escapes_but_cond_tells():
    """None of its pivots is small."""
    a = kahan(130, 0.93)
    assert warned(scipy.linalg.solve, a, np.ones(130))

    def program(comm):
        A = on((2, 2), a, BLOCKS, comm)
        solve(A, np.ones(130))
        return cond(A)

    found: list[float] = []
    assert not warned(lambda: found.extend(pdla.run(4, program)))
    assert min(found) > 1 / np.finfo(float).eps
