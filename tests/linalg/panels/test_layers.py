"""2.5-D Cholesky factors: as on one layer, words by formula, fewer than on one, faults by name on every rank; layers over MPI."""

import numpy as np
import pytest
from helpers.jobs import run_job
from helpers.systems import (
    BLOCKS,
    KINDS,
    cyclic,
    factor_ratio,
    layered,
    on,
    one_triangle,
    planned_and_limited,
    positive,
    raised,
    ratio,
)

import pdla
from pdla import Layout
from pdla.errors import LinAlgError
from pdla.linalg import cho_factor, cho_solve, cholesky, cholesky_words, inv, plan_cholesky, plan_solve, solve
from pdla.linalg.panels.blocks import cut_in_blocks, find_depth_axis, find_dimensions

GRIDS = [(2, 2, 2), (2, 3, 2), (3, 2, 3), (2, 2, 4), (2, 2, 5)]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_any_number_of_layers_and_block_borders(grid):
    def program(comm):
        worst = 0.0
        for n in (0, 1, 3, 7, 8, 9, 16, 33, 41, 100):
            a = positive(n)
            A = layered(grid, 4, one_triangle(a, True), comm)
            L = cholesky(A)
            l = L.gather()
            assert L.layout == A.layout and not np.triu(l, 1).any() and np.array_equal(A.gather(), one_triangle(a, True))
            worst = max(worst, factor_ratio(a, l))
        return worst

    assert max(pdla.run(np.prod(grid) + 1, program)) < 30


@pytest.mark.parametrize("dtype", KINDS)
def test_dtypes_triangles_and_what_is_made_of_factors(dtype):
    a, b = positive(50, dtype).astype(dtype), np.arange(50).astype(dtype)

    def program(comm):
        A = layered((2, 2, 2), 4, a, comm)
        x = cho_solve(cho_factor(A), b)
        X = solve(A, on((2, 4), np.outer(b, b), BLOCKS, comm), assume_a="pos")
        errors = [factor_ratio(a, cholesky(A).gather()), factor_ratio(a, cholesky(A, lower=False).gather().conj().T)]
        errors += [ratio(a, x[:, None], b[:, None]), ratio(a, X.gather(), np.outer(b, b))]
        return max(*errors, ratio(a, inv(A, assume_a="pos").gather(), np.eye(50, dtype=dtype)))

    assert max(pdla.run(8, program)) < 30


def test_factors_are_checked_where_they_lie():
    def program(comm):
        A = layered((2, 2, 3), 4, positive(50), comm)
        return np.array_equal(cholesky(A, verify=True).gather(), cholesky(A).gather())

    assert all(pdla.run(12, program))


def test_integers_come_exactly_and_in_place():
    l = np.tril(np.random.default_rng(0).integers(-3, 4, (90, 90)), -1) + np.diag(np.repeat([1, 2, 4], 30))

    def program(comm):
        for grid, b in (((2, 2, 4), 4), ((2, 4, 2), 8), ((2, 2, 3), 5)):
            A = layered(grid, b, (l @ l.T).astype(float), comm)
            L = cholesky(A, overwrite_a=True)
            assert L.stored is A.stored and np.array_equal(L.gather(), l)

    pdla.run(16, program)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_words_are_those_of_a_dry_run_and_of_the_formula(grid):
    size, b = int(np.prod(grid)), 4
    n = b * 30

    def program(comm):
        A = pdla.from_function(lambda i, j: 50.0 * (i == j), (n, n), pdla.ProcessGrid(grid, comm=comm), cut_in_blocks(grid, b))
        with pdla.record() as ledger:
            cholesky(A)
        return ledger.bytes_received, ledger.messages, ledger.flops

    ran = pdla.run(size, program)
    assert ran == [pdla.dry_run(size, program, rank=rank)[0] for rank in range(size)]
    assert sum(received for received, *_ in ran) == round(8 * size * cholesky_words(n, grid, b))


@pytest.mark.parametrize(("ranks", "flat", "deep", "times"), [
    (64, (8, 8), (4, 4, 4), 1.55), (256, (16, 16), (8, 8, 4), 1.75), (1024, (32, 32), (16, 16, 4), 1.85),
])
def test_four_layers_spare_words(ranks, flat, deep, times):
    n, b = 16384, 64
    assert cholesky_words(n, flat, b) > times * cholesky_words(n, deep, b)

    def program(comm, grid):
        A = pdla.zeros((n, n), pdla.ProcessGrid(grid, comm=comm), cut_in_blocks(grid, b))
        cho_factor(A, overwrite_a=True, check_finite=False)

    most = {
        grid: max(pdla.dry_run(ranks, program, grid, rank=rank)[1].bytes_received for rank in (0, ranks // 2 + 5, ranks - 1))
        for grid in (flat, deep)
    }
    assert most[flat] > 1.4 * most[deep]


@pytest.mark.parametrize("grid", [(2, 2, 2), (3, 2, 3)], ids=str)
@pytest.mark.parametrize("place", [0, 3, 4, 11, 12, 31, 35, 38, 39])
def test_a_minor_that_is_not_positive_definite_is_named_on_every_rank(grid, place):
    a = np.eye(40)
    a[place, place] = -0.5
    said = raised(lambda comm: cholesky(layered(grid, 4, a, comm)), np.prod(grid) + 1)
    assert said == (LinAlgError, f"the leading minor of order {place + 1} is not positive definite (pivot -0.5)")


def test_the_first_of_many_bad_minors_is_named_and_ranks_go_on():
    a = positive(60) - 3 * np.diag(np.arange(60) > 21) * positive(60)
    first = next(k for k in range(61) if np.linalg.eigvalsh(a[:k, :k]).min(initial=1) < 0)

    def program(comm):
        A = layered((2, 2, 2), 4, a, comm)
        with pytest.raises(LinAlgError, match=f"order {first} is not"):
            cholesky(A)
        with pytest.raises(LinAlgError, match="pivot nan"):
            cholesky(layered((2, 2, 2), 4, np.where(np.eye(60), np.nan, a), comm), check_finite=False)
        return factor_ratio(positive(60), cholesky(layered((2, 2, 2), 4, positive(60), comm)).gather())

    assert max(pdla.run(8, program)) < 30


def test_ranks_stop_where_a_minor_is_not_positive_definite():
    def program(comm):
        with pdla.record() as ledger, pytest.raises(LinAlgError, match="order 1 is"):
            cholesky(layered((2, 2, 2), 4, -np.eye(200), comm))
        return ledger.flops

    assert max(pdla.run(8, program)) < 200**3 / 3 / 8 / 4


def test_plans_foretell_layers_and_keep_memory_limits():
    a = positive(96)

    def program(comm):
        A = layered((2, 2, 2), 8, a, comm)
        told, ledger = planned_and_limited(A, plan_cholesky, cholesky)
        x = plan_solve(A, A, assume_a="pos")(A, A)
        assert abs(x.gather() - np.eye(96)).max() < 1e-12
        return told.bytes_received, ledger.bytes_received, told.peak_workspace >= ledger.peak_workspace

    told, counted, enough = zip(*pdla.run(8, program), strict=True)
    assert set(told) == {max(counted)} and all(enough)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_dimensions_are_those_of_the_layout(grid):
    def program(comm):
        A = pdla.zeros((101, 101), pdla.ProcessGrid(grid, comm=comm), cut_in_blocks(grid, 3))
        assert find_depth_axis(A) == "depth"
        rows, cols = find_dimensions(A)
        mine = A.indices[0].indices()
        assert (rows.find_owners(mine) == rows.rank).all() and np.array_equal(rows.find_places(mine), np.arange(len(mine)))
        assert [rows.at[k].start for k in range(rows.count)] == [(mine < 3 * k).sum() for k in range(rows.count)]
        assert [k for k in range(rows.count) if rows.owner[k] == rows.rank] == rows.mine
        own = A.indices[1].indices()
        assert (cols.find_owners(own) == cols.rank).all() and (own // 3 % grid[2] == A.grid.coords["depth"]).all()

    pdla.run(int(np.prod(grid)), program)


def test_other_layouts_are_no_layers():
    def program(comm):
        zeros = [
            pdla.zeros((40, 40), pdla.ProcessGrid(grid, comm=comm), layout) for grid, layout in (
                ((2, 4), cyclic(4)), ((2, 2, 2), Layout(pdla.Cyclic("row", 4), (pdla.Cyclic("col", 4), pdla.Cyclic("depth", 4)))),
                ((2, 2, 2), Layout(pdla.Cyclic("row", 8), (pdla.Cyclic("col", 8), pdla.Cyclic("depth", 4, source=1)))),
                ((2, 2, 2), Layout("row", ("col", "depth"))), ((2, 2, 2), cut_in_blocks((2, 2, 2), 4).T),
            )
        ]
        return [find_depth_axis(A) for A in zeros]

    assert pdla.run(8, program) == [[None] * 5] * 8


def test_over_mpi_there_are_the_same_bits():
    ended = run_job("""
import pdla
from pdla.linalg import cholesky, lu_factor
from pdla.linalg.panels.blocks import cut_in_blocks
pdla.abort_on_exception()

def program(comm):
    A = pdla.random((90, 90), pdla.ProcessGrid((2, 2, 2), comm=comm), cut_in_blocks((2, 2, 2), 8), seed=1)
    P = pdla.from_function(lambda i, j: 90.0 * (i == j) + np.cos(i - j), A.shape, A.grid, A.layout)
    return [cholesky(P).gather(), *(lambda X, pivots: (X.gather(), pivots))(*lu_factor(A))]

wanted, mine = pdla.run(8, program)[0] if comm.rank == 0 else None, program(comm)
assert wanted is None or all(map(np.array_equal, mine, wanted))
""", ranks=8, OMP_NUM_THREADS="1")
    assert ended.returncode == 0, ended.stdout
