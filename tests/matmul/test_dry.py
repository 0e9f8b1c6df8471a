"""Which ranks are run dry, and that no other rank of ragged problems has more."""

import numpy as np
import pytest

import pdla
from pdla import Layout, ProcessGrid
from pdla.matmul import dry
from pdla.model.machine import Machine


def test_of_few_ranks_all_are_run_and_of_many_corners_the_middle_and_the_second_node():
    comm = dry.make_communicator(24, Machine(node=5))
    grid = ProcessGrid((4, 6), comm=comm)
    corners = {grid.ranks[i, j] for i in (0, -1) for j in (0, -1)}
    assert dry.sample_ranks(comm, [grid], 24) == list(range(24))
    assert dry.sample_ranks(comm, [grid], 23) == sorted({*corners, 12, 5})
    seconds = {grid.ranks[i, j] for i in (0, 1, -1) for j in (0, 1, -1)}
    assert dry.sample_ranks(comm, [grid], 23, second=True) == sorted({*seconds, 12, 5})


def test_the_nodes_are_those_of_the_ranks_here_or_else_the_machine_s():
    assert dry.make_communicator(5, Machine(node=2)).homes == (0, 0, 1, 1, 2)
    assert not dry.make_communicator(2, Machine(node=2)).homes

    def nodes(comm, homes):
        comm.homes = homes
        return [*dry.find_nodes(comm, Machine(node=2))]

    assert pdla.dry_run(4, nodes, [0, 1, 1, 0])[0] == [0, 1, 1, 0] and pdla.dry_run(4, nodes, [])[0] == [0, 0, 1, 1]


@pytest.mark.parametrize(("shape", "mnk"), [((5, 5), (52, 31, 43)), ((3, 7), (100, 23, 17)), ((2, 13), (5, 200, 61))])
@pytest.mark.parametrize("algorithm", ["summa", "gather", "auto"])
def test_of_ragged_blocks_on_25_ranks_no_other_rank_has_more(algorithm, shape, mnk):
    """Counted of every rank by itself."""
    m, n, k = mnk

    def operands(comm):
        grid, layout = ProcessGrid(shape, comm=comm), Layout("row", "col")
        return [pdla.zeros(size, grid, layout) for size in ((m, k), (k, n))]

    def planned(comm):
        return pdla.plan_matmul(*operands(comm), algorithm=algorithm)

    def counted(comm):
        A, B = operands(comm)
        plan = pdla.plan_matmul(A, B, algorithm=algorithm)
        with pdla.record() as ledger:
            plan(A, B)
        return ledger.bytes_received, ledger.messages, ledger.peak_workspace, ledger.flops

    ranks = int(np.prod(shape))
    told = pdla.dry_run(ranks, planned)[0].predicted
    most = np.max([pdla.dry_run(ranks, counted, rank=rank)[0] for rank in range(ranks)], axis=0)
    assert (told.bytes_received, told.messages, told.peak_workspace, told.flops) == tuple(most)
