"""The polar factor, the sign, the exponential and roots: SciPy's, in any layout, for matrices of every condition."""

import warnings

import numpy as np
import pytest
import scipy.linalg
from helpers.systems import BLOCKS, cyclic, drawn, on, positive, raised, sums

import pdla
from pdla import Layout
from pdla.errors import LinAlgError, PlanError
from pdla.linalg import expm, inverse_root, newton_schulz, plan_polar, polar, predict_polar, signm, sqrtm
from pdla.linalg.functions.exponential import DEGREES
from pdla.linalg.functions.polar import _draw_unitary

WAYS = [((1, 1), BLOCKS, 0), ((3, 1), Layout("row"), 0), ((2, 2), BLOCKS, 1), ((2, 2), cyclic(3), 0)]


def everywhere(program, ways=WAYS):
    for grid, layout, idle in ways:
        pdla.run(grid[0] * grid[1] + idle, lambda comm, grid=grid, layout=layout: program(lambda a: on(grid, a, layout, comm)))


def of_condition(shape, condition, dtype):
    """Singular values from 1 / condition to 1; condition 0: all are 0."""
    k = min(shape)
    u, v = np.linalg.qr(drawn((shape[0], k), dtype))[0], np.linalg.qr(drawn((shape[1], k), dtype, 1))[0]
    return ((u * (np.geomspace(1, 1 / condition, k) if condition else np.zeros(k))) @ v.conj().T).astype(dtype)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("condition", [1.5, 1e3, 1e8, 1e15, 0])
@pytest.mark.parametrize("shape", [(24, 24), (27, 16), (16, 27), (1, 1), (0, 0)])
def test_polar_factors(shape, condition, dtype):
    a, right = of_condition(shape, condition, dtype), shape[0] >= shape[1]

    def program(on):
        U, H = (X.gather() for X in polar(on(a), side="right" if right else "left"))
        assert np.allclose(U @ H if right else H @ U, a, rtol=0, atol=1e-14)
        gram = U.conj().T @ U if right else U @ U.conj().T
        assert np.allclose(gram, np.eye(min(shape)), atol=1e-13) and np.array_equal(H, H.conj().T)
        assert np.linalg.eigvalsh(H).min(initial=0) > -1e-14
        if condition and condition < 1e4:
            assert np.allclose(U, scipy.linalg.polar(a, "right" if right else "left")[0], atol=1e-10)

    everywhere(program, WAYS if condition in (1e3, 1e15) else WAYS[2:3])


def kernel(n, width):
    """sin(2 pi width (i - j)) / pi (i - j): of its eigenvalues a share of 2 width is near 1, the others near 0."""
    apart = np.arange(1, n)
    return scipy.linalg.toeplitz(np.r_[2 * width, np.sin(2 * np.pi * width * apart) / (np.pi * apart)])


SINGULAR = {
    "hilbert": scipy.linalg.hilbert(60), "kernel, 6e11": kernel(80, 0.44), "kernel, 8e15": kernel(80, 0.42),
    "kernel": kernel(60, 0.25), "chebyshev": np.polynomial.chebyshev.chebvander(np.linspace(0, 1, 60), 59),
    "tiny": np.diag([1.0] * 9 + [1e-20, 1e-40, 0]), "ones": np.ones((40, 40)), "shift": np.diag(np.ones(29), 1),
    "one element": np.pad(np.ones((1, 1)), (0, 30)), "blocks": np.tile(np.pad(np.ones((5, 5)) + np.eye(5), (0, 5)), (2, 2)),
    "product": drawn((30, 9), "float64") @ drawn((9, 30), "float64", 1),
    "tall": drawn((50, 9), "float64") @ drawn((9, 20), "float64", 1),
    "complex": drawn((30, 9), "complex128") @ drawn((9, 30), "complex128", 1),
    "single": scipy.linalg.hilbert(40).astype("float32"),
    "graded": drawn((40, 40), "float64") * np.geomspace(1, 1e-300, 40)[:, None],
}


@pytest.mark.parametrize("name", SINGULAR)
def test_polar_factors_of_matrices_that_are_singular_to_working_precision(name):
    """Of these columns depend on few others, so that inverses without mixing would lose up to eleven digits."""
    a = SINGULAR[name]
    n = a.shape[1]
    near = 2 * n * np.finfo(a.dtype).eps

    def program(on):
        U, H = (X.gather() for X in polar(on(a)))
        wide = np.result_type(a.dtype, "float64")
        assert np.linalg.norm(U.conj().T.astype(wide) @ U - np.eye(n)) < near
        assert np.linalg.norm(a - U.astype(wide) @ H) < near * np.linalg.norm(a)
        assert np.array_equal(H, H.conj().T) and np.linalg.eigvalsh(H.astype(wide)).min() > -near * np.linalg.norm(a, 2)

    everywhere(program, [*WAYS, ((4, 1), cyclic(8), 0), ((2, 2), cyclic(32), 0)] if name in ("hilbert", "tiny") else WAYS[2:3])


def test_a_polar_factor_of_a_singular_matrix_is_the_same_in_every_layout():
    a = scipy.linalg.hilbert(12)  # of condition 2e16, to which rounding adds little before columns are mixed
    found = []
    for grid, layout, idle in WAYS:
        found += pdla.run(grid[0] * grid[1] + idle, lambda comm, g=grid, to=layout: polar(on(g, a, to, comm))[1].gather())[:1]
    assert all(np.allclose(H, found[0], rtol=0, atol=1e-14) for H in found[1:])


@pytest.mark.parametrize("n", [1, 2, 5, 16])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_the_mixture_of_columns_is_unitary(n, dtype):
    def program(comm):
        X = on((2, 1), np.zeros((n, n), dtype), BLOCKS, comm)
        V = _draw_unitary(X, 3)
        assert V.dtype == dtype and np.allclose((V @ V.H).gather(), np.eye(n), atol=20 * np.finfo(dtype).eps)
        return V.gather()

    assert np.array_equal(*pdla.run(2, program))


def test_another_mixture_is_drawn_where_rounding_leaves_a_singular_matrix(monkeypatch):
    def draw(X, seed):
        seeds.append(seed)
        return _draw_unitary(X, seed) * (seed >= 2)

    seeds = []
    monkeypatch.setattr("pdla.linalg.functions.polar._draw_unitary", draw)
    U = pdla.run(2, lambda comm: polar(on((2, 1), np.diag([1.0, 1, 0]), BLOCKS, comm))[0].gather())[0]
    assert np.allclose(U.T @ U, np.eye(3), atol=1e-14) and set(seeds) == {0, 1, 2, 3}


def test_where_all_mixtures_are_singular_all_ranks_are_told(monkeypatch):
    monkeypatch.setattr("pdla.linalg.functions.polar._draw_unitary", lambda X, seed: X * 0)
    kind, said = raised(lambda comm: polar(on((2, 1), np.diag([1.0, 1, 0]), BLOCKS, comm)), 3)
    assert kind is LinAlgError and "too near a singular matrix" in said


@pytest.mark.parametrize(("shape", "condition"), [((24, 24), 30), ((24, 24), None), ((16, 24), 1e9)])
def test_a_plan_of_polar_factors_receives_no_more_than_it_says(shape, condition):
    """Rows that LU exchanges, and the last step, depend on A."""
    a, side = of_condition(shape, condition or 0, "float64"), "right" if shape[0] >= shape[1] else "left"
    a[0, 0] += condition is None

    def program(comm):
        A = on((2, 2), a, BLOCKS, comm)
        plan = plan_polar(A, side=side, condition=condition)
        with pdla.record() as ledger:
            U, H = plan(A)
        assert np.allclose((U @ H if side == "right" else H @ U).gather(), a, rtol=0, atol=1e-14)
        if comm.rank == 0:
            assert "right-looking" in plan.explain() and ("A^H" in plan.explain()) == (side == "left")
        return ledger.bytes_received, ledger.peak_workspace, plan.predicted if comm.rank == 0 else None

    received, peaks, (told, *_) = zip(*pdla.run(4, program), strict=True)
    assert 0.8 * told.bytes_received < max(received) <= 1.02 * told.bytes_received and max(peaks) <= told.peak_workspace


def test_a_memory_limit_of_polar_factors():
    def program(comm):
        A = pdla.random((12, 12), pdla.ProcessGrid((2, 1), comm=comm), Layout("row"))
        most = plan_polar(A).predicted.peak_workspace
        U, H = polar(A, memory_limit=most)
        with pytest.raises(PlanError, match="bytes too few"):
            polar(A, memory_limit=most // 3)
        return (U @ H - A).norm() < 1e-12

    assert all(pdla.run(2, program))


def test_predictions_of_polar_factors():
    assert predict_polar(4096, 16).ranks_used == 16 and predict_polar(0, 4).bytes_received == 0
    assert predict_polar(90, 1, machine="laptop").seconds > 10 * pdla.linalg.predict_cholesky(90, 1, machine="laptop").seconds


def test_polar_factors_without_data():
    assert pdla.dry_run(4, lambda comm: polar(pdla.zeros((9, 6)))[1].shape)[0] == (6, 6)


@pytest.mark.parametrize("power", [1e-300, 1e300])
def test_a_polar_factor_near_the_ends_of_the_range(power):
    a = of_condition((16, 16), 1e3, "float64")

    def program(on):
        U, H = polar(on(a * power))
        assert np.allclose(U.gather(), scipy.linalg.polar(a)[0], atol=1e-10) and np.isfinite(H.gather()).all()

    everywhere(program, WAYS[2:3])


@pytest.mark.parametrize(("coefficients", "steps", "least", "most"), [
    ("jordan", 5, 0.67, 1.14), ("polar_express", 5, 0.86, 1.13), ("polar_express", 8, 0.999, 1.001),
    ("newton_schulz", None, 1 - 1e-12, 1 + 1e-12),
    (((1.5, -0.5, 0.0),) * 25, 25, 1 - 1e-9, 1 + 1e-12),
])
@pytest.mark.parametrize("shape", [(20, 12), (12, 20)])
def test_singular_values_after_newton_schulz(coefficients, steps, least, most, shape):
    """From 0.01 to 1 of the Frobenius norm, as the sources of the coefficients tell them."""
    a = of_condition(shape, 25, "float64")

    def program(on):
        A = on(a)
        U = newton_schulz(A, coefficients=coefficients, steps=steps)
        s = np.linalg.svd(U.gather(), compute_uv=False)
        assert least < s.min() and s.max() < most and U.layout == A.layout

    everywhere(program, WAYS[1:3])


def test_exponentials_at_the_limit_of_each_degree():
    """Of matrices whose 1-norm is an eigenvalue, at a limit and where one halving more is needed."""
    sizes = [share * limit for limit, _ in DEGREES.values() for share in (1, 1.99)]

    def program(on):
        for x in sizes:
            expected = np.exp([x, x / 2, 0])
            assert np.allclose(expm(on(np.diag([x, x / 2, 0]))).gather(), np.diag(expected), rtol=1e-13, atol=1e-13 * expected[0])

    everywhere(program, WAYS[2:3])


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("size", [0, 1e-3, 0.1, 0.5, 2, 5, 300])
def test_exponentials(dtype, size):
    a = drawn((20, 20), dtype)
    a *= np.float32(size / np.abs(a).sum(0).max())
    expected = scipy.linalg.expm(a.astype("complex128"))

    def program(on):
        X = expm(on(a))
        bound = 100 * np.finfo(dtype).eps * max(1, size) * np.abs(expected).max()
        assert np.abs(X.gather() - expected).max() < bound and X.dtype == a.dtype

    everywhere(program, WAYS[1:3])


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_signs_and_roots(dtype):
    a, s = positive(18, dtype, 1e4), drawn((18, 18), dtype)
    s = s @ np.diag([1.0, -2] * 9) @ np.linalg.inv(s)

    def program(on):
        R = sqrtm(on(a)).gather()
        assert np.allclose(R @ R, a, atol=1e-13) and np.array_equal(R, R.conj().T)
        for p in (1, 2, 4):
            X = inverse_root(on(a), p).gather()
            assert np.allclose(np.linalg.matrix_power(X, p) @ a, np.eye(18), atol=1e-8)
        S = signm(on(s)).gather()
        assert np.allclose(S @ S, np.eye(18), atol=1e-8) and np.allclose(S, scipy.linalg.signm(s), atol=1e-8)
        assert np.allclose(signm(on(s * 2.0**200)).gather(), S, atol=1e-8)

    everywhere(program, WAYS[1:3])


def test_functions_of_the_empty_matrix_are_empty():
    def program(on):
        A = on(np.zeros((0, 0)))
        assert {X.shape for X in (expm(A), signm(A), inverse_root(A, 2), newton_schulz(A))} == {(0, 0)}

    everywhere(program, WAYS[2:3])


def test_faults_are_told_alike_on_every_rank():
    a = np.eye(4)
    a[1, 1] = -1
    cases = [
        ("inverse_root: no convergence", lambda A: inverse_root(A, 2), a), ("sqrtm: A is not positive", sqrtm, a),
        ("sqrtm: A is not positive", sqrtm, -np.eye(4)), ("inverse_root: no convergence", lambda A: inverse_root(A, 2), 0 * a),
        ("p=0", lambda A: inverse_root(A, 0), a),
        ("A has nan", expm, a * np.nan),
        ("leaves the range", expm, a * 1e4), ("must be square", signm, np.ones((4, 3))), ("side=", lambda A: polar(A, side=2), a),
        ("condition=0.5", lambda A: plan_polar(A, condition=0.5), a),
        ("one of 'jordan'", lambda A: newton_schulz(A, coefficients="x"), a), ("steps=9", lambda A: newton_schulz(A, steps=9), a),
        ("side='left'", polar, np.ones((3, 4))),
    ]
    for text, call, given in cases:
        with warnings.catch_warnings(action="error"):  # by NumPy, of numbers that overflow
            _kind, said = raised(lambda comm, call=call, given=given: call(on((2, 1), given, BLOCKS, comm)), 3)
        assert text in said, said
    turn = np.array([[0.0, 1], [-1, 0]])  # eigenvalues i and -i
    assert raised(lambda comm: signm(on((2, 1), turn, BLOCKS, comm)))[0] is LinAlgError


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("shape", [(6, 6), (9, 4)])
def test_a_polar_factor_of_what_nobody_looked_at_is_an_error(value, shape):
    a = drawn(shape, "float64")
    a[3, 1] = value

    def program(comm):
        with np.errstate(invalid="ignore"):
            polar(on((2, 1), a, BLOCKS, comm), check_finite=False)

    assert raised(program, 3) == (LinAlgError, "polar: A has elements that are not finite")


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_integers_and_partial_sums_are_taken_for_what_they_are(dtype):
    a = np.round(drawn((12, 8), "float64") * 9).astype(dtype)
    s = (a.T @ a + 400 * np.eye(8)).astype(dtype)

    def program(comm):
        A, S = (sums((2, 2), x, comm) for x in (a, s))
        kind = np.result_type(dtype, "float32" if dtype == "float32" else "float64")
        near = 1e3 * np.finfo(kind).eps
        U, H = polar(A)
        assert np.allclose((U @ H).gather(), a, atol=near * 100) and U.dtype == kind
        assert np.allclose(np.linalg.svd(newton_schulz(A).gather())[1], 1, atol=0.1)
        root = sqrtm(S).gather()
        assert np.allclose(root @ root, s, rtol=near) and np.allclose(signm(S).gather(), np.eye(8), atol=near)

    pdla.run(4, program)
