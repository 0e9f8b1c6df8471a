"""Grids and their communicators: none is left over, and one outlives what it was made from."""

from unittest.mock import patch

import numpy as np
import pytest

import pdla
from pdla import Layout, ProcessGrid

pytestmark = pytest.mark.mpi


def test_communicators_do_not_run_out(comm):
    """MPICH has some two thousand of them in each process; two ranks are enough to see, and quick."""
    size = min(comm.size, 2)
    group = comm.split(list(range(size)) if comm.rank < size else None, "group")
    if group is not None:
        with pdla.config.override(check=False):
            for i in range(2500):
                grid = ProcessGrid((1, size) if i % 2 else (size, 1), (f"r{i}", f"c{i}"), group)
                assert grid[f"c{i}" if i % 2 else f"r{i}"].size == size
        assert len(group._families.kept) == pdla.grid.FAMILIES
        group.close()
    comm.barrier()


def test_what_products_make_of_a_communicator_goes_with_it(comm):
    group = comm.split(list(range(comm.size)), "group")
    line = ProcessGrid(comm.size, "line", group)
    theirs = ProcessGrid.trust((comm.size,), line["line"], range(comm.size))["row"]
    mine = ProcessGrid.trust((1, comm.size), group, range(comm.size))["col"]
    with ProcessGrid(comm.size, "inner", mine):
        line.close()
        assert theirs.mpi == type(theirs.mpi)() != mine.mpi
        group.close()
        assert mine.share(comm.rank) == list(range(comm.size))  # a user's grid lies over it
    mine.close()


def test_closed_grids_give_their_communicators_back(comm):
    kept = len(comm._families.kept) if hasattr(comm, "_families") else 0
    with patch.object(pdla.grid, "FAMILIES", 10**6):
        for i in range(20):
            with ProcessGrid(comm.size, f"closed{i}", comm) as grid:
                group = grid[f"closed{i}"]
                assert group.share(comm.rank) == list(range(comm.size))
            assert group.mpi == type(group.mpi)()
    assert len(comm._families.kept) == kept


def test_a_grid_over_a_communicator_of_a_grid_outlives_many_others(comm):
    group = comm.split(list(range(comm.size)), "outer")
    inner = ProcessGrid(comm.size, "inner", ProcessGrid(comm.size, "line", group)["line"])
    with patch.object(pdla.grid, "FAMILIES", 8):
        for i in range(10):
            assert ProcessGrid(comm.size, f"other{i}", group)[f"other{i}"].size == comm.size
    A = pdla.ones((5, 5), inner, Layout("inner"))
    assert np.array_equal((A @ A).gather(), np.full((5, 5), 5.0))


def test_a_grid_over_a_communicator_of_a_grid_outlives_the_one_from_which_that_was_made(comm):
    group = comm.split(list(range(comm.size)), "outer")
    inner = ProcessGrid(comm.size, "inner", ProcessGrid(comm.size, "line", group)["line"])
    group.close()
    A = pdla.ones((5, 5), inner, Layout("inner"))
    assert np.array_equal((A @ A).gather(), np.full((5, 5), 5.0))
