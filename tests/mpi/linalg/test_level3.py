"""The rest of level 3 over MPI."""

import itertools
from unittest.mock import patch

import numpy as np
import pytest
from helpers.level3 import VIEWS, check_matvec, check_rank_k, check_stack, check_symm
from helpers.matmuls import DTYPES, exact, needs_a_board

import pdla
from pdla import Cyclic, Layout
from pdla.comm import workspace
from pdla.linalg.products import block_exchange
from pdla.linalg.products.symmetrize import symmetrize

pytestmark = pytest.mark.mpi

BLOCKS, TURNS = Layout("row", "col"), Layout(Cyclic("row", 3), Cyclic("col", 2))


def grids(comm):
    return [pdla.ProcessGrid(shape) for shape in sorted({pdla.balanced_shape(comm.size), (comm.size, 1), (1, comm.size)})]


def test_triangles(comm):
    for grid, dtype, (n, k) in itertools.product(grids(comm), DTYPES, ((13, 17), (60, 5), (3, 40), (1, 0))):
        check_rank_k(exact((n, k), grid, BLOCKS, dtype), False, True, TURNS, 2, 3)
        check_rank_k(exact((k, n), grid, TURNS, dtype).T, True, False, BLOCKS, mirror=True)


def test_triangles_by_messages_receive_what_the_dry_run_does(comm, monkeypatch):
    monkeypatch.setattr(comm, "shared_limit", 0)

    def product(world):
        grid = pdla.ProcessGrid(pdla.balanced_shape(world.size), comm=world)
        with pdla.record() as ledger:
            pdla.syrk(pdla.zeros((37, 31), grid, BLOCKS), layout=TURNS)
        return ledger.bytes_received, ledger.messages, ledger.flops

    assert product(comm) == pdla.dry_run(comm.size, product, rank=comm.rank)[0]


def test_triangles_of_a_matrix_that_all_see(comm):
    for grid, dtype, (n, k) in itertools.product(grids(comm), DTYPES, ((13, 17), (60, 5), (1, 0))):
        check_rank_k(exact((n, k), grid, BLOCKS, dtype).shared(), False, True, TURNS, 2, 3)
        check_rank_k(exact((k, n), grid, BLOCKS, dtype).shared().T, True, False, BLOCKS, mirror=True)


@needs_a_board
def test_the_memory_for_large_triangles_is_kept_for_the_next_one(comm, monkeypatch):
    """They are there in rounds, of less than what is kept."""
    monkeypatch.setattr(workspace, "KEPT", 2**21)
    monkeypatch.setattr(block_exchange, "ROUND", 2**20)
    C = exact((2000, 2000), pdla.ProcessGrid(pdla.balanced_shape(comm.size)), TURNS, np.float64)
    lower = np.tril(C.gather())
    for _ in range(3):
        symmetrize(C, False)
        grown = comm.size > 1 and comm.shared_buffer().grown
    symmetrize(C, False)
    assert comm.size == 1 or comm.shared_buffer().grown == grown
    assert np.array_equal(C.gather(), lower + np.tril(lower, -1).T)


@needs_a_board
def test_no_more_memory_in_common_is_kept_than_is_told(comm):
    """What holds A while it is read, 12 MB, and what holds a triangle on its way, 9 MB."""
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size))
    wide, tall = pdla.zeros((1500, 1000), grid, BLOCKS), pdla.zeros((1500, 1), grid, BLOCKS)
    with patch.object(workspace, "KEPT", 2**20):
        for product in (lambda: pdla.syrk(wide, layout=TURNS), lambda: pdla.syrk(tall, mirror=True)):
            product()
            assert comm.size == 1 or comm.shared_buffer().size <= comm.size * 2**20


def test_half_of_a_matrix(comm):
    for grid, dtype, lower in itertools.product(grids(comm), DTYPES, (True, False)):
        check_symm(grid, 13, 7, (BLOCKS, TURNS), dtype, True, lower, "left")
        check_symm(grid, 13, 7, (TURNS, BLOCKS), dtype, False, lower, "right")


def test_matrix_times_vector(comm):
    for grid, view, dtype in itertools.product(grids(comm), VIEWS, (np.float64, np.complex64)):
        check_matvec(VIEWS[view](exact((13, 7), grid, BLOCKS, dtype)), Layout(("col", "row")))


def test_stacks(comm):
    for grid, axis in itertools.product(grids(comm), (None, "row", "col")):
        other = "col" if axis == "row" else "row"
        check_stack(grid, axis, Layout(other), (5, 6, 7, 8), np.float32, ("T", "A"))
        check_stack(grid, axis, Layout(cols=other), (1, 3, 2, 9), np.complex128, ("A", "H"))


def test_chains(comm):
    for grid in grids(comm):
        A, B, C = exact((5, 30), grid, BLOCKS), exact((4, 30), grid, TURNS), exact((4, 6), grid, Layout())
        expected = A.gather() @ B.gather().T @ C.gather()
        assert np.array_equal(pdla.einsum("ij,kj,kl->il", A, B, C).gather(), expected)
        assert np.array_equal(pdla.multi_dot([A, B.T, C]).gather(), expected)
