"""Divide and conquer: LAPACK's ratios of a zoo, parts of the spectrum, few rows, words, memory, errors on all ranks."""

import numpy as np
import pytest
from helpers.tridiagonals import ratios, zoo

import pdla
from pdla.errors import LinAlgError
from pdla.linalg.eigen import divide
from pdla.linalg.eigen.divide import divide_words, eigh_tridiagonal, eigvalsh_tridiagonal

RANKS = [1, 2, 3, 4, 5]


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch):
    monkeypatch.setattr(divide, "LEAST", 5)


def row(comm, ranks=0):
    return pdla.ProcessGrid((1, ranks or comm.size), comm=comm)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("ranks", RANKS)
def test_the_zoo(ranks, dtype):
    given = zoo(dtype)

    def program(comm):
        found = {}
        for name, (d, e) in given.items():
            w, Z = eigh_tridiagonal(d, e, row(comm), 7)
            assert w.dtype == Z.dtype == d.dtype and Z.local.flags.c_contiguous
            found[name] = w, Z.gather()
        return found

    made = pdla.run(ranks, program)
    for name, (w, Z) in made[0].items():
        assert all(other[name][0].tobytes() == w.tobytes() for other in made), name
        residual, orthogonality, error = ratios(*given[name], w, Z)
        assert (np.diff(w) >= 0).all() and residual < 1 and orthogonality < 1 and error < 3, (name, residual, orthogonality, error)


@pytest.mark.parametrize("ranks", RANKS)
def test_few_rows_and_ranks_without_any(ranks, monkeypatch):
    def program(comm):
        worst = 0.0
        for least in (1, 5):
            monkeypatch.setattr(divide, "LEAST", least)
            for n in (0, 1, 2, 3, 4, 5, 6, 7, 11, 16):
                rng = np.random.default_rng(n)
                d, e = rng.standard_normal(n), rng.standard_normal(max(0, n - 1))
                for block in (1, 4):
                    w, Z = eigh_tridiagonal(d, e, row(comm), block)
                    assert Z.shape == (n, n) and Z.layout.cols[0].block == block
                    worst = max(worst, *ratios(d, e, w, Z.gather()))
        return worst

    assert max(pdla.run(ranks, program)) < 4


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_a_part_of_the_spectrum_is_that_of_all(ranks):
    def program(comm):
        for d, e in (zoo("float64")[name] for name in ("random", "glued", "1-2-1")):
            w, Z = eigh_tridiagonal(d, e, row(comm), 4)
            whole = Z.gather()
            for selected in (range(0), range(5), range(7, 30), range(len(d) - 1, len(d))):
                again, part = eigh_tridiagonal(d, e, row(comm), 3, selected)
                assert again.tobytes() == w.tobytes() and part.shape == (len(d), len(selected))
                assert np.allclose(part.gather(), whole[:, selected], rtol=0, atol=1e-13)

    pdla.run(ranks, program)


def test_ranks_beside_the_grid_have_the_eigenvalues():
    d, e = zoo("float64")["random"]

    def program(comm):
        w, Z = eigh_tridiagonal(d, e, row(comm, 3), 4)
        return w.tobytes(), ratios(d, e, w, Z.gather())

    made = pdla.run(4, program)
    assert len({w for w, _ in made}) == 1 and max(made[0][1]) < 3


@pytest.mark.parametrize("ranks", [1, 3])
def test_eigenvalues_alone(ranks):
    given = zoo("float64")

    def program(comm):
        with pdla.record() as ledger:
            made = {name: eigvalsh_tridiagonal(d, e, comm) for name, (d, e) in given.items()}
        assert ledger.peak_workspace <= 16 * max(len(d) for d, _ in given.values())
        return made

    made = pdla.run(ranks, program)
    for name, w in made[0].items():
        assert all(other[name].tobytes() == w.tobytes() for other in made)
        assert ratios(*given[name], w)[2] < 3, name


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("place", [0, 17, 40])
@pytest.mark.parametrize("fault", [np.nan, np.inf])
def test_what_is_not_finite_is_an_error_on_every_rank(ranks, place, fault):
    def program(comm):
        d, e = (x.copy() for x in zoo("float64")["random"])
        (d if place else e)[place] = fault
        for call in (lambda: eigh_tridiagonal(d, e, row(comm), 4), lambda: eigvalsh_tridiagonal(d, e, comm)):
            with pytest.raises(LinAlgError, match="not finite"):
                call()

    pdla.run(ranks, program)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 12])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_words_and_memory_where_nothing_is_deflated(ranks, dtype):
    n, size = 60, np.dtype(dtype).itemsize
    d, e = (x.astype(dtype) for x in (np.sin(np.arange(n) ** 2) / 9, np.ones(n - 1)))

    def program(comm, k, block):
        with pdla.record() as ledger:
            eigh_tridiagonal(d, e, row(comm), block, range(k))
        return ledger.bytes_received, ledger.messages, ledger.flops

    for k, block in ((n, 4), (n, 30), (23, 3)):
        made = pdla.run(ranks, program, k, block)
        dry = [pdla.dry_run(ranks, program, k, block, rank=r)[0] for r in range(ranks)]
        assert made == dry
        assert np.isclose(np.mean([received for received, *_ in dry]), size * divide_words(n, k, ranks, block))


def test_memory_is_three_matrices_over_the_ranks():
    def program(comm, n):
        with pdla.record() as ledger:
            eigh_tridiagonal(np.zeros(n), np.zeros(n - 1), row(comm), 64)
        return ledger.peak_workspace

    for ranks in (2, 3, 8, 32):
        n = 2048 * ranks
        assert pdla.dry_run(ranks, program, n, rank=ranks - 1)[0] < 3.15 * 8 * n * n / ranks


def test_ranks_with_clocks():
    def program(comm, n=1024):
        return eigh_tridiagonal(np.zeros(n), np.zeros(n - 1), row(comm), 64)[1].shape

    seconds = [pdla.dry_run_all(ranks, program, machine=pdla.Machine()).seconds for ranks in (1, 2, 4, 8)]
    assert seconds == sorted(seconds, reverse=True)
