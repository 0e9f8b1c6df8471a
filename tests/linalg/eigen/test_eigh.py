"""Eigenvalues and vectors of any layout and rank count: LAPACK's ratios on hard spectra, subsets, B, signs, plans, and faults."""

from itertools import cycle

import numpy as np
import pytest
import scipy.linalg
from helpers.systems import BLOCKS, KINDS, WAYS, drawn, on, raised
from helpers.zoo import GENERAL, animal

import pdla
from pdla import Cuts, Layout, config
from pdla.errors import LayoutError, LinAlgError, PlanError, VerificationError
from pdla.linalg import cho_factor, eigh, eigh_words, eigvalsh, plan_eigh, predict_eigh
from pdla.linalg.eigen import eigh as module
from pdla.linalg.routines import tridiagonal

SIZES = [0, 1, 2, 3, 17, 40, 67]


@pytest.fixture(autouse=True)
def solve_few(monkeypatch):
    monkeypatch.setattr(tridiagonal, "SMALL", 8)
    for each in (tridiagonal, module):
        monkeypatch.setattr(each, "BLOCK", 8)


def hermitian(n, dtype, seed=0):
    a = drawn((n, n), dtype, seed)
    return a + a.conj().T


def positive(n, dtype):
    a = drawn((n, n), dtype, 7)
    return a @ a.conj().T + np.eye(n, dtype=dtype)


def half(a, lower):
    """One triangle; what is in the other one must not be read, nor imaginary parts on the diagonal."""
    seen = np.where(np.tri(len(a), dtype=bool) if lower else ~np.tri(len(a), k=-1, dtype=bool), a, np.nan)
    return seen + 3j * np.eye(len(a), dtype=a.dtype) if a.dtype.kind == "c" else seen


def ratios(a, w, v, b=None):
    """Of the residual, of orthogonality, and of the eigenvalues against SciPy's, as LAPACK's testers measure them."""
    kind, n = np.finfo(a.dtype), len(a)
    wide = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    unit, a, v = max(1, n) * float(kind.eps), a.astype(wide), v.astype(wide)
    m = np.eye(n) if b is None else b.astype(wide)
    size = np.abs(a).sum(0).max(initial=0) * np.abs(v).max(initial=0) + np.finfo(float).tiny
    left = np.abs(a @ v - m @ v * w).max(initial=0) / (size * unit)
    return float(left), float(np.abs(v.conj().T @ m @ v - np.eye(v.shape[1])).max(initial=0) / unit)


def found(a, way="blocks", grid=(2, 2), idle=0, b=None, lower=True, **options):
    def program(comm):
        A = WAYS[way](grid, half(a, lower) if way in ("blocks", "cyclic", "columns", "copies") else a, comm)
        B = None if b is None else on(grid, half(b, lower), BLOCKS, comm)
        w, V = eigh(A, B, lower=lower, **options)
        only = eigvalsh(A, B, lower=lower, **{key: given for key, given in options.items() if key != "layout"})
        assert np.abs(w - only).max(initial=0) <= 50 * np.finfo(a.dtype).eps * max(1, len(a)) * np.abs(w).max(initial=0) or options
        return w, V.gather()

    return pdla.run(grid[0] * grid[1] + idle, program)[0]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("n", SIZES)
def test_of_all_sizes_on_all_grids(n, dtype):
    a = hermitian(n, dtype)
    for (way, grid), idle, lower in zip(
        [("blocks", (2, 2)), ("cyclic", (3, 1)), ("columns", (1, 2)), ("sums", (2, 2)), ("adjoint", (1, 3)), ("part", (1, 1))],
        cycle((0, 1)), cycle((True, True, False)), strict=False,
    ):
        w, v = found(a, way, grid, idle, lower=lower)
        assert max(ratios(a, w, v)) < 10 and (np.diff(w) >= 0).all()
        assert w.dtype == np.empty(0, dtype).real.dtype and v.dtype == a.dtype and v.shape == a.shape
        assert np.allclose(w, np.linalg.eigvalsh(a), atol=20 * n * np.finfo(dtype).eps * max(1, np.abs(w).max(initial=0)))


def wilkinson(n):
    return np.diag(np.abs(np.arange(n) - n // 2).astype(float)) + np.eye(n, k=1) + np.eye(n, k=-1)


def glued(copies, n=21, glue=1e-8):
    a = np.kron(np.eye(copies), wilkinson(n))
    for i in range(n, copies * n, n):
        a[i, i - 1] = a[i - 1, i] = glue
    return a


def of_spectrum(w):
    q = np.linalg.qr(drawn((len(w), len(w)), "float64", 3))[0]
    a = (q * w) @ q.T
    return (a + a.T) / 2


def test_more_columns_than_one_rank_reduces(monkeypatch):
    """And more rows of T than one rank solves, in blocks as they are without these tests' smaller ones."""
    monkeypatch.undo()
    n = tridiagonal.SMALL + 90
    a = hermitian(n, "float64")
    w, v = found(a, "blocks", (3, 1))
    far = 10 * n * np.finfo(float).eps
    assert np.allclose(a @ v, v * w, atol=far * np.abs(a).sum(0).max()) and np.allclose(v.T @ v, np.eye(n), atol=far)
    assert np.allclose(w, np.linalg.eigvalsh(a), atol=far * np.abs(w).max())


HARD = {
    "zero": np.zeros((30, 30)), "diagonal": np.diag(np.arange(30.0)[::-1]), "identity": np.eye(30), "ones": np.ones((30, 30)),
    "rank one": np.outer(np.arange(30.0), np.arange(30.0)), "wilkinson": wilkinson(21), "glued": glued(4),
    "weak glue": glued(3, 21, 1e-14),
    "two clusters": of_spectrum(np.where(np.arange(40) < 20, 1.0, 2.0)), "one large": of_spectrum(np.r_[np.full(39, 1e-15), 1.0]),
    "geometric": of_spectrum(np.geomspace(1e-16, 1, 40)),
    "near clusters": of_spectrum(1 + np.arange(40) // 8 + 1e-13 * np.arange(40)),
    "toeplitz": 2 * np.eye(40) - np.eye(40, k=1) - np.eye(40, k=-1),
    "clement": np.diag(np.sqrt(np.arange(1, 40.0) * np.arange(39.0, 0, -1)), 1) * 1.0,
    "arrow": np.diag(np.arange(40.0)) + np.eye(40)[:, :1] @ np.ones((1, 40)),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_spectra(name):
    a = np.triu(HARD[name]) + np.triu(HARD[name], 1).T
    for grid, dtype in (((1, 1), "float64"), ((1, 3), "float32"), ((2, 2), "complex128")):
        w, v = found(a.astype(dtype), "blocks", grid, verify=True)
        assert max(ratios(a.astype(dtype), w, v)) < 10


CASES = list(zip(GENERAL, cycle(KINDS), cycle([(2, 2), (1, 3), (1, 1)]), strict=False))


@pytest.mark.parametrize(("name", "dtype", "grid"), CASES)
def test_the_zoo(name, dtype, grid):
    a = animal("general", name, 33, dtype)
    a = a + a.conj().T
    assert max(ratios(a, *found(a, "blocks", grid, verify=True))) < 10


@pytest.mark.parametrize("power", [1e-290, 1e-160, 1e160, 1e300])
def test_near_the_ends_of_the_range(power):
    a = np.round(hermitian(30, "float64") * 2**8) * power
    near = 2.0**-400 if power > 1 else 2.0**500
    for grid in ((2, 2), (1, 1)):
        w, v = found(a, "blocks", grid, verify=True)
        assert max(ratios(a * near, w * near, v)) < 10
    assert len(found(a, "blocks", (2, 2), subset_by_value=(w[3] / 2 + w[4] / 2, w[8] / 2 + w[9] / 2))[0]) == 5


@pytest.mark.parametrize("dtype", KINDS)
def test_all_vectors_on_one_rank_are_lapacks(dtype, monkeypatch):
    """But of more columns than its integers count; other ranks, where one alone works, have the same, and the same error."""
    # the fastest blocking of a size is kept: no other test has this one
    a, calls, lapacks = hermitian(43, dtype), [], module.kernels.syevd
    monkeypatch.setattr(module.kernels, "syevd", lambda xp, x: calls.append(len(x)) or lapacks(xp, x))
    monkeypatch.setattr(type(tridiagonal.TRIDIAGONAL), "list_blockings", lambda self, m, ranks: (((1, 1), max(1, m)),))
    for large, idle, lower, options in (
        (43, 0, False, {}), (43, 2, True, {"overwrite_a": True}), (42, 1, True, {}), (43, 1, True, {"subset_by_index": (0, 42)}),
    ):
        monkeypatch.setattr(module, "LARGE", large)
        w, v = found(a, "blocks", (1, 1), idle, lower=lower, verify=True, **options)
        assert max(ratios(a, w, v)) < 10 and w.dtype == np.finfo(dtype).dtype and v.dtype == a.dtype
        assert calls == [43] * (large == 43 and "subset_by_index" not in options)
        calls.clear()
    a[3, 2] = np.inf
    for ranks in (1, 3):
        kind, said = raised(lambda comm: eigh(on((1, 1), a, BLOCKS, comm), check_finite=False), ranks)
        assert kind is LinAlgError and "infinite or NaN" in said


def test_results_are_checked_where_elements_are_subnormal_or_products_overflow():
    a = np.round(hermitian(30, "float64") * 2**8)
    found(a * 5e-324, "blocks", (1, 2), verify=True)
    found((a * 2.0**116).astype("float32"), "blocks", (1, 2), verify=True)


def test_a_check_counts_copies_once():
    found(hermitian(30, "complex128"), "copies", (3, 2), verify=True)


@pytest.mark.parametrize("dtype", KINDS)
def test_subsets_are_parts_of_all(dtype):
    a = hermitian(40, dtype)
    w, v = found(a)
    for first, last in ((0, 3), (5, 5), (37, 39), (0, 39)):
        some, vectors = found(a, subset_by_index=(first, last))
        assert np.array_equal(some, w[first : last + 1]) and np.allclose(vectors, v[:, first : last + 1], atol=1e-5)
    lo, hi = float(w[4] + w[5]) / 2, float(w[9] + w[10]) / 2
    some, vectors = found(a, "columns", (1, 2), subset_by_value=(lo, hi))
    assert len(some) == vectors.shape[1] and np.allclose(some, w[5:10], atol=1e-5)
    assert found(a, subset_by_value=(1e6, np.inf))[1].shape == (40, 0)
    assert len(found(a, subset_by_value=[-np.inf, np.inf])[0]) == 40
    assert found(np.diag(np.arange(6)).astype(dtype), subset_by_value=(1, 4))[0].tolist() == [2, 3, 4]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("lower", [True, False])
def test_generalized(dtype, lower):
    a, b = hermitian(34, dtype), positive(34, dtype)
    expected = scipy.linalg.eigh(a, b, eigvals_only=True)
    for grid, idle in (((2, 2), 0), ((1, 1), 1), ((3, 1), 0)):
        w, v = found(a, "blocks", grid, idle, b, lower)
        assert max(ratios(a, w, v, b)) < 30 * np.linalg.cond(b) ** 0.5
        assert np.allclose(w, expected, atol=1e-10 if np.finfo(dtype).eps < 1e-10 else 2e-3)
        some, vectors = found(a, "blocks", grid, idle, b, lower, subset_by_index=(3, 7))
        assert np.allclose(some, w[3:8]) and np.allclose(vectors, v[:, 3:8], atol=1e-2)

    def kept(comm):
        A, B = on((2, 1), a, BLOCKS, comm), on((1, 2), b, BLOCKS, comm)
        return [eigh(A, cho_factor(B, lower=which), lower=lower)[1].gather() for which in (True, False)]

    assert all(np.allclose(each, v, atol=1e-2) for each in pdla.run(2, kept)[1])
    assert_leading_positive(v)


def assert_leading_positive(v):
    """Of each vector the first component that is at least 0.6 times as large as the largest one is real and positive."""
    large = np.abs(v) >= 0.6 * np.abs(v).max(0)
    leading = v[large.argmax(0), np.arange(v.shape[1])]
    assert (leading.real > 0).all() and np.allclose(leading.imag, 0)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_signs_do_not_depend_on_ranks(dtype):
    a, near = hermitian(40, dtype), None
    symmetric = 2 * np.eye(30, dtype=dtype) - np.eye(30, k=1) - np.eye(30, k=-1)  # of components that are as large as others
    for each in (a, symmetric):
        near = None
        for grid in ((1, 1), (1, 2), (3, 1), (2, 2)):
            _, v = found(each, "blocks", grid)
            near = v if near is None else near
            assert np.allclose(v, near, atol=1e-9)
        assert_leading_positive(v)


def test_layouts_of_vectors():
    a = hermitian(20, "float64")

    def program(comm):
        A = on((2, 2), a, Layout(Cuts("row", (0, 3, 20)), Cuts("col", (0, 12, 20))), comm)
        for layout in (None, Layout(), BLOCKS):
            assert eigh(A, layout=layout)[1].layout == (layout or A.layout)
        with pytest.raises(LayoutError, match="does not cut 20 indices"):
            eigh(A, layout=Layout(cols=Cuts("col", (0, 3, 7))), subset_by_value=(-np.inf, np.inf))
        positive = Layout(cols=Cuts("col", (0, 3, int((np.linalg.eigvalsh(a) > 0).sum()))))
        assert eigh(A, layout=positive, subset_by_value=(0, np.inf), memory_limit=2**30)[1].layout == positive
        return eigh(A, subset_by_index=(0, 6))[1].shape

    assert pdla.run(4, program)[0] == (20, 7)


def test_what_is_given_stays_unless_it_may_be_overwritten():
    a = hermitian(20, "float64")

    def program(comm):
        A = pdla.from_global(a, pdla.ProcessGrid((1, 2), comm=comm), Layout(cols=pdla.Cyclic("col", 8)))
        eigh(A), eigvalsh(A), eigh(A, on((1, 2), positive(20, "float64"), BLOCKS, comm))
        assert np.array_equal(A.gather(), a)
        v = eigh(A, overwrite_a=True)[1].gather()
        integers = eigvalsh(on((1, 2), np.round(5 * a).astype(int), BLOCKS, comm))
        assert np.allclose(integers, np.linalg.eigvalsh(np.round(5 * a)))
        return v

    assert np.allclose(np.abs(pdla.run(2, program)[0]), np.abs(np.linalg.eigh(a)[1]))


def test_what_may_be_overwritten_is_there_for_the_check():
    a, b = hermitian(20, "complex128"), positive(20, "complex128")
    for lower in (True, False):
        options = {"lower": lower, "overwrite_a": True, "verify": True, "subset_by_index": (0, 19)}
        assert max(ratios(a, *found(a, "blocks", (1, 1), **options))) < 10
        assert max(ratios(a, *found(a, "blocks", (1, 1), b=b, lower=lower, verify=True), b)) < 10


def test_plans_say_what_they_cost_and_keep_a_limit():
    def program(comm):
        A = on((2, 2), hermitian(100, "float64"), BLOCKS, comm)
        plan = plan_eigh(A)
        with pdla.record() as ledger:
            w, _ = plan(A)
        assert ledger.bytes_received <= 1.02 * plan.predicted.bytes_received and "one stage" in plan.explain()
        eigh(A, memory_limit=plan.predicted.peak_workspace)
        with pytest.raises(PlanError, match="bytes too few"):
            eigh(A, memory_limit=1000)
        return len(w)

    assert pdla.run(4, program)[0] == 100


@pytest.mark.parametrize(("dtype", "ranks", "last", "shares"), [
    ("float64", 1, 9, 3), ("float64", 4, 2047, 4), ("complex128", 1, 2047, 2.5),
])
def test_workspace_is_a_copy_of_a_and_all_forms_of_vectors(dtype, ranks, last, shares, monkeypatch):
    """LAPACK's vectors and its memory; rows that leave, beside columns that come; real vectors that become complex ones."""
    monkeypatch.undo()

    def program(comm, n=2048):
        A = pdla.zeros((n, n), pdla.ProcessGrid((1, ranks), comm=comm), BLOCKS, dtype=dtype)
        with pdla.record() as ledger:
            eigh(A, check_finite=False, subset_by_index=(0, last))
        return ledger.peak_workspace / A.local.nbytes

    assert shares <= pdla.dry_run(ranks, program)[0] < shares + 0.25


def test_predictions():
    told = predict_eigh(50_000, 16, machine="h200x8")
    assert told.ranks_used > 1 and told.seconds > 4 / 3 * 50_000**3 / (16 * pdla.Machine.load("h200x8").flops)
    assert predict_eigh(0, 4).bytes_received == predict_eigh(100, 1).bytes_received == 0
    assert eigh_words(1000, 4, vectors=0) < eigh_words(1000, 4) and eigh_words(1000, 1) == 0


def test_a_described_network_decides_how_many_ranks_work(tmp_path):
    a, file = hermitian(67, "float64"), tmp_path / "machine.toml"
    slow = pdla.Machine(node=1, far_latency=1e-2)
    file.write_text(slow.text())
    with config.override(machine=str(file)):
        assert pdla.run(4, lambda comm: plan_eigh(on((2, 2), a, BLOCKS, comm)).shape) == [(1, 1)] * 4
        w, v = found(a, "blocks", (2, 2))
    assert max(ratios(a, w, v)) < 10
    assert predict_eigh(2000, 4, machine=slow).grid == (1, 1)
    assert predict_eigh(2000, 4, machine=pdla.Machine(node=1, far_latency=0.0)).grid == (4, 1)


def test_a_dry_run_has_values_and_counts_as_ranks_do():
    def received(comm, A, call=eigh, **options):
        grid, rows = pdla.ProcessGrid((3, 1), comm=comm), pdla.Cyclic("row", 8)
        X = A.redistribute(Layout(rows), grid)
        with pdla.record() as ledger:
            made = call(X, lower=False, check_finite=False, **options)
        return ledger.bytes_received, [each.shape for each in (made if isinstance(made, tuple) else (made,))]

    for call, options in ((eigvalsh, {}), (eigh, {"layout": Layout(cols=pdla.Cyclic("row", 8))})):
        real = pdla.run(3, lambda comm: received(comm, pdla.from_global(hermitian(300, "float64")), call, **options))  # noqa: B023 - run at once
        dry = [
            pdla.dry_run(3, lambda comm: received(comm, pdla.zeros((300, 300)), call, **options), rank=rank)[0]  # noqa: B023
            for rank in range(3)
        ]
        assert [each[1] for each in real] == [each[1] for each in dry]
        assert [each[0] for each in dry] == pytest.approx([each[0] for each in real], rel=0.05)
        words = eigh_words(300, 3, 8, 300 if call is eigh else 0)
        assert sum(each[0] for each in real) == pytest.approx(3 * 8 * words, rel=0.05 if call is eigh else 1e-12)


def test_faults_are_told_alike_on_every_rank():
    a = hermitian(6, "float64")
    cases = {
        "two numbers, 0 <= first <= last < 6": {"subset_by_index": (2, 6)}, "subset_by_index=5": {"subset_by_index": 5},
        "lo < hi": {"subset_by_value": (2, 1)}, "give one of them": {"subset_by_index": (0, 1), "subset_by_value": (0, 1)},
        "lower=1": {"lower": 1},
    }
    for text, options in cases.items():
        for call in (eigh, eigvalsh):
            for b in (None, np.eye(6)):

                def program(comm, call=call, options=options, b=b):
                    call(on((2, 1), a, BLOCKS, comm), None if b is None else on((2, 1), b, BLOCKS, comm), **options)

                assert text in raised(program)[1]
    nan = np.where(np.arange(6) == 2, np.nan, a)
    assert "A has nan at [2, 2]" in raised(lambda comm: eigh(on((2, 1), nan, BLOCKS, comm)), 3)[1]
    kind, said = raised(lambda comm: eigh(on((2, 1), nan, BLOCKS, comm), check_finite=False), 3)
    assert kind is LinAlgError and "infinite or NaN" in said
    assert "must be square" in raised(lambda comm: eigvalsh(on((2, 1), a[:4], BLOCKS, comm)))[1]
    assert "b (4, 4)" in raised(lambda comm: eigh(on((2, 1), a, BLOCKS, comm), on((2, 1), np.eye(4), BLOCKS, comm)))[1]
    kind, said = raised(lambda comm: eigh(on((2, 1), a, BLOCKS, comm), on((2, 1), -np.eye(6), BLOCKS, comm)))
    assert kind is LinAlgError and "not positive definite" in said
    assert "b is an int" in raised(lambda comm: eigh(on((2, 1), a, BLOCKS, comm), 5))[1]


SPOILS = {
    "values": (eigvalsh, "_compute_values", lambda w: np.add(w, 1e-3, out=w)),
    "vectors": (eigh, "_compute_vectors", lambda made: made[1].stored.__iadd__(1e-3)),
    "lengths": (eigh, "_compute_vectors", lambda made: made[1].stored.__imul__(2)),
}


@pytest.mark.parametrize("what", SPOILS)
def test_wrong_results_are_found(what, monkeypatch):
    """Vectors twice as long are still eigenvectors."""
    call, name, spoil = SPOILS[what]
    monkeypatch.setattr(module, name, spoilt(getattr(module, name), spoil))
    a = hermitian(30, "float64")
    for options in ({}, {"subset_by_index": (2, 9)}):
        kind, said = raised(lambda comm, o=options: call(on((2, 1), a, BLOCKS, comm), verify=True, **o))
        assert kind is VerificationError and "wrong elements" in said


def spoilt(work, spoil):
    def computed(*given):
        made = work(*given)
        spoil(made)
        return made

    return computed
