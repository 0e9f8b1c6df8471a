"""Functions of stacks: of each matrix what NumPy's give, in groups of ranks or by all; errors of one layer are all ranks'."""

import numpy as np
import pytest

import pdla
from pdla import Cuts, Layout, ProcessGrid, config, errors, linalg
from pdla.linalg.plan import stacked
from pdla.linalg.routines import CHOLESKY

PLACES = (
    ((4,), Layout(), "row"), ((2, 2), Layout("row", "col"), None), ((2, 2), Layout("row"), "col"), ((3,), Layout("row"), None),
)


def made(batch, n, dtype=float):
    draw = np.random.default_rng(0)
    a = draw.standard_normal((batch, n, n)).astype(dtype)
    if a.dtype.kind == "c":
        a += 1j * draw.standard_normal((batch, n, n))
    return a @ a.conj().transpose(0, 2, 1) + n * np.eye(n), draw.standard_normal((batch, n, 2)).astype(dtype)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize(("batch", "dtype"), [(5, float), (1, float), (3, complex)])
def test_each_matrix_as_numpy(place, batch, dtype):
    whole, right = made(batch, 7, dtype)

    def program(comm):
        grid = ProcessGrid(place[0])
        S, B = (pdla.stack(x, grid, *place[1:]) for x in (whole, right))
        L, (factors, lower) = linalg.cholesky(S), linalg.cho_factor(S)
        assert lower is True and (L.grid, L.axis) == (S.grid, S.axis) and L.layout == S.layout
        solutions = linalg.solve(S, B), linalg.solve(S, B, assume_a="pos"), linalg.cho_solve((factors, lower), B)
        return [X.gather() for X in (L, *solutions)]

    for L, *solutions in pdla.run(4, program):
        assert np.allclose(L, np.linalg.cholesky(whole), rtol=1e-13, atol=1e-13)
        for x in solutions:
            assert np.allclose(whole @ x, right, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("dtype", [float, complex])
def test_results_that_lie_by_columns(place, dtype):
    """As upper factors do, and eigenvectors where LAPACK finds them."""
    whole, _ = made(5, 7, dtype)

    def program(comm):
        S = pdla.stack(whole, ProcessGrid(place[0]), *place[1:])
        w, V = linalg.eigh(S)
        return w, V.gather(), linalg.cholesky(S, lower=False).gather()

    for w, v, u in pdla.run(4, program):
        assert np.allclose(whole @ v, v * w[:, None], rtol=1e-13, atol=1e-12)
        assert np.allclose(v.conj().transpose(0, 2, 1) @ v, np.eye(7), rtol=1e-13, atol=1e-13)
        assert np.allclose(u.conj().transpose(0, 2, 1) @ u, whole, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_in_groups_and_together(groups, monkeypatch):
    """Whatever is cheapest: no messages go between groups while these work."""
    monkeypatch.setattr(stacked, "_predict_seconds", lambda routine, shape, dtype, batch, count, ranks: count != groups)
    whole, right = made(4, 12)

    def program(comm):
        S, B = (pdla.stack(x, ProcessGrid((4,)), Layout("row")) for x in (whole, right))
        X = linalg.solve(S, B, layout=Layout())
        return X.layout, X.gather()

    for layout, x in pdla.run(4, program):
        assert layout == Layout() and np.allclose(whole @ x, right, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_results_are_where_they_are_without_groups(groups, monkeypatch):
    """By default in the layout of a right-hand side, or of A; in `out`; and in no layout that does not fit."""
    monkeypatch.setattr(stacked, "_predict_seconds", lambda routine, shape, dtype, batch, count, ranks: count != groups)
    whole, right = made(4, 12)

    def program(comm):
        grid = ProcessGrid((2, 2))
        S, C = (pdla.stack(whole, grid, layout) for layout in (Layout("col"), Layout(cols=Cuts("col", (0, 9, 12)))))
        B, out = (pdla.stack(x, grid, Layout((), "row")) for x in (right, np.zeros_like(right)))
        X, Y = linalg.solve(S, B, out=out), linalg.cho_solve(linalg.cho_factor(S), B)
        assert np.array_equal(X.gather(), out.gather())
        vectors = [linalg.eigh(each, subset_by_index=(0, 2))[1].layout for each in (S, C)]
        assert [linalg.solve(S, B).layout, Y.layout, *vectors] == [B.layout] * 2 + [S.layout, Layout(cols=Cuts("col", (0, 3, 3)))]
        for wrong in (5, Layout(partial="row"), Layout(Cuts("row", (0, 3, 7)))):
            with pytest.raises(errors.LayoutError):
                linalg.inv(S, layout=wrong)
        return X.gather()

    assert np.allclose(whole @ pdla.run(4, program)[0], right, rtol=1e-13, atol=1e-13)


def test_many_small_ones_go_to_groups_and_few_large_ones_to_all(tmp_path):
    """And all stay where they are on a network so slow that they would be longer on their way."""
    file = tmp_path / "machine.toml"
    file.write_text(pdla.Machine(bandwidth=1e8).text())

    def groups(batch, n):
        S = pdla.stack(np.zeros((0, 1, 1)), ProcessGrid((4,)), Layout("row"))
        like = linalg.Stack((), (batch, n, n), S.grid, S.layout, None, S.dtype)
        place = stacked._choose_groups(CHOLESKY, like)
        return 1 if place is None else place[0].sizes["group"]

    assert pdla.run(4, lambda comm: [groups(64, 64), groups(1, 4096), groups(4, 1024)]) == [[4, 1, 4]] * 4
    with config.override(machine=str(file)):
        assert pdla.run(4, lambda comm: groups(4, 1024)) == [1] * 4


@pytest.mark.parametrize("bad", [0, 3, 4])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_an_error_of_one_layer_is_that_of_all(bad, place):
    whole, _ = made(5, 6)
    whole[bad, 4, 4] = -100

    words = f"matrix {bad} of the stack: the leading minor of order 5 is not positive definite"

    def program(comm):
        with pytest.raises(errors.LinAlgError, match=words):
            linalg.cholesky(pdla.stack(whole, ProcessGrid(place[0]), *place[1:]))
        return True

    assert pdla.run(4, program) == [True] * 4


def test_what_does_not_go_together():
    whole, right = made(2, 4)

    def program(comm):
        grid = ProcessGrid((2,))
        S, B = pdla.stack(whole, grid, Layout(), "row"), pdla.stack(right, grid, Layout("row"))
        with pytest.raises(errors.GridError, match="cut both along one axis of one grid"):
            linalg.solve(S, B)
        with pytest.raises(errors.ShapeError, match="one stack has 2 matrices, another 1"):
            linalg.solve(S, pdla.stack(right[:1], grid, Layout(), "row"))
        with pytest.raises(errors.ShapeError, match="has no matrices"):
            linalg.cholesky(pdla.stack(whole[:0], grid, Layout(), "row"))
        with pytest.raises(errors.ShapeError, match="matrix 0 of the stack"):
            linalg.cholesky(pdla.stack(right, grid, Layout(), "row"))
        with pytest.raises(errors.PdlaError, match="Stack") as told:
            linalg.solve(S, pdla.eye(4))
        assert "of the stack" not in str(told.value)
        diagonals = np.array([np.diag([1.0, 2, 3]), np.diag([1.0, 5, 6])])
        with pytest.raises(errors.ShapeError, match=r"eigh of a stack: results .* \(2,\) of matrix 0, \(1,\) of matrix 1"):
            linalg.eigh(pdla.stack(diagonals, grid, Layout(), "row"), subset_by_value=(0, 2))

    pdla.run(2, program)


def test_dry():
    def program(comm):
        S = pdla.stack(np.zeros((5, 16, 16)), ProcessGrid((4,)), Layout(), "row")
        linalg.solve(S, S)

    assert pdla.dry_run(4, program)[1].flops > 0
