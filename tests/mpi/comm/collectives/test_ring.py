"""All-gathers around nodes, of any pieces, under way together."""

import numpy as np
import pytest
from helpers.verbs import PIECE, around, every_layout, every_place, laid, numbers, of_rank

import pdla
from pdla.comm.ledger import record

pytestmark = pytest.mark.mpi


@every_place
@every_layout
def test_allgather_around_nodes(placed, place, how):
    comm = placed(place)
    shapes = [((r * r + r) % 5, 5) for r in range(comm.size)]  # some are empty
    outs = [laid(comm.xp, how, shape) if r != comm.rank else None for r, shape in enumerate(shapes)]
    with record() as ledger:
        came = []
        for owner in comm.allgather(of_rank(comm, how, comm.rank, shapes[comm.rank]), outs):
            np.testing.assert_array_equal(outs[owner], numbers(owner, shapes[owner]))
            came.append(owner)
    full = [r for r in range(comm.size) if shapes[r][0] and r != comm.rank]
    assert sorted(came) == full and [event.way for event in ledger.events] == [around(comm)]
    assert (ledger.messages, ledger.bytes_received) == (len(full), 8 * 5 * sum(shapes[r][0] for r in full))
    far = comm.share(ledger.bytes_from_far)
    for home in set(comm.homes):
        outside = 8 * 5 * sum(rows for (rows, _), there in zip(shapes, comm.homes, strict=True) if there != home)
        assert comm.size == 2 or sum(size for size, there in zip(far, comm.homes, strict=True) if there == home) == outside


@every_place
def test_long_messages_around_nodes_under_way_together(placed, place):
    comm = placed(place)
    sizes = [3 * PIECE + 7, PIECE, 5]
    gathered = [[np.zeros(size, np.int8) for _ in range(comm.size)] for size in sizes]
    sums = comm.xp.asarray(np.full(7, comm.rank + 1.0))
    pending = [comm.allgather(np.full(s, comm.rank + 1, np.int8), outs) for s, outs in zip(sizes, gathered, strict=True)]
    comm.allreduce(sums).wait()
    for each in pending:
        each.wait()
    for outs in gathered:
        assert [np.unique(out).tolist() for out in outs] == [[r + 1] for r in range(comm.size)]
    np.testing.assert_array_equal(sums, np.full(7, comm.size * (comm.size + 1) / 2))


@every_place
def test_products_around_nodes(placed, place):
    comm = placed(place)
    grid = pdla.ProcessGrid((1, comm.size), comm=comm)
    a, b = numbers(1, (17, 23)), numbers(2, (23, 29))
    A, B = (pdla.from_global(x, grid, pdla.Layout("row", "col")) for x in (a, b))
    with record() as ledger:
        C = pdla.matmul(A, B, algorithm="gather")
    np.testing.assert_array_equal(C.gather(), a @ b)
    assert around(comm) in {event.way for event in ledger.events}
