"""Dry runs: the shapes and the ledger of one rank of many, without data."""

import operator

import numpy as np
import pytest

import pdla
from pdla.array import meta
from pdla.array.meta import Meta
from pdla.errors import PdlaError, ShapeError

MILLION = 10**6


def test_a_list_is_of_the_dtype_that_numpy_gives_it():
    for x in ([[1, 2]], [[True, False]], [[1, 2.5]], [[1j, 2]]):
        A = pdla.dry_run(4, lambda comm, x=x: pdla.from_global(x, pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col")))[0]
        assert (A.shape, A.dtype) == ((1, 2), np.array(x).dtype)


@pytest.mark.parametrize("rank", [0, 123_456, MILLION - 1])
def test_one_rank_of_a_million(rank):
    def program(comm):
        grid = pdla.ProcessGrid((1000, 1000))
        A = pdla.random((4_000_000, 3_000_000), grid, pdla.Layout("row", "col"))
        assert A.local.shape == (4000, 3000)
        grid["col"].bcast(A.local, 7).wait()
        grid["row"].allreduce(A.local).wait()
        return dict(grid.coords)

    coords, ledger = pdla.dry_run(MILLION, program, rank=rank)
    assert coords == {"row": rank // 1000, "col": rank % 1000}
    piece = 4000 * 3000 * 8
    assert ledger.by_axis() == {"col": piece, "row": 2 * 999 * piece // 1000}
    assert ledger.messages == 1 + 2 * 999


@pytest.mark.parametrize(
    ("kind", "dtype", "call"),
    [
        (OverflowError, "int8", lambda A: A + 300),
        (OverflowError, "uint8", lambda A: -1 - A),
        (OverflowError, "float32", lambda A: A * 1e60),
        (TypeError, "bool", lambda A: A - A),
        (TypeError, "int64", lambda A: operator.itruediv(A, 2)),
        (TypeError, "float32", lambda A: operator.imul(A, 2j)),
        (TypeError, "float64", lambda A: A.__setitem__(np.s_[:, :], A.astype(complex))),
    ],
)
def test_operators_fail_dry_as_they_do_on_data(kind, dtype, call):
    def program(comm):
        with pytest.raises(kind):
            call(pdla.ones((6, 4), pdla.ProcessGrid((2, 1), comm=comm), pdla.Layout("row"), dtype=dtype))

    pdla.run(2, program)
    pdla.dry_run(2, program)


def test_the_ledger_of_a_dry_run_is_that_of_a_real_one():
    layout, wanted = pdla.Layout(pdla.Cyclic("row", 2), "col"), pdla.Layout(cols=("col", pdla.Cyclic("row", 3)))

    def program(comm):
        A = pdla.ones((17, 23), pdla.ProcessGrid((2, 3)), layout, dtype="complex64")
        with pdla.record() as ledger:
            B = (2 * A.H).redistribute(wanted)
            B.T.redistribute(pdla.Layout("row"))
            pdla.ones((17, 23), A.grid, pdla.Layout("row", partial="col")).redistribute(pdla.Layout(cols="row"))
            whole = A.gather()
        assert whole.shape == (17, 23)
        return (B.local.shape, [(e.what, e.axis, e.bytes, e.messages) for e in ledger.events]), ledger.peak_workspace

    real, dry = pdla.run(6, program), [pdla.dry_run(6, program, rank=r)[0] for r in range(6)]
    assert [told for told, _ in dry] == [told for told, _ in real]
    # Over MPI what has gaps is packed to be sent, in threads it is not.
    assert all(foreseen >= taken for (_, foreseen), (_, taken) in zip(dry, real, strict=True))


def test_what_is_an_error_in_any_world_is_one_in_a_dry_run():
    def over_two_communicators(comm):
        grid = pdla.ProcessGrid((2, 2))
        rows, cols = (pdla.ProcessGrid(2, comm=grid[axis]) for axis in ("row", "col"))
        assert rows != cols and rows == pdla.ProcessGrid(2, comm=grid["row"])
        pdla.zeros((4, 4), rows, pdla.Layout("row")) @ pdla.zeros((4, 4), cols, pdla.Layout("row"))

    def summed_into_gaps(comm):
        comm.allreduce(comm.xp.empty((4, 4), "float64")[:, ::2])

    for program, error in (over_two_communicators, pdla.errors.GridError), (summed_into_gaps, ShapeError):
        for start in (pdla.run, pdla.dry_run):
            with pytest.raises(error, match=r"different communicators|an array with gaps"):
                start(4, program)


def test_messages_with_gaps_need_memory():
    def program(comm, gaps_sent, gaps_received):
        x, out = (comm.xp.empty((4, 6 if gaps else 3), "float64")[:, :3] for gaps in (gaps_sent, gaps_received))
        with pdla.record() as ledger:
            comm.alltoall({0: x, 1: x}, {1: out}).wait()
            assert ledger.workspace == 0
        return ledger.peak_workspace

    assert pdla.dry_run(2, program, False, False)[0] == 0
    assert pdla.dry_run(2, program, True, False)[0] == pdla.dry_run(2, program, False, True)[0] == 8 * 4 * 3
    assert pdla.dry_run(2, program, True, True)[0] == 2 * 8 * 4 * 3


def test_what_is_picked_out_to_travel_is_workspace():
    """Rows that lie apart are copied to be sent, those that this rank does not keep: half of its block."""

    def program(comm):
        A = pdla.ones((60, 50), pdla.ProcessGrid(2), pdla.Layout("row"))
        with pdla.record() as ledger:
            A.redistribute(pdla.Layout(pdla.Cyclic("row", 3)))
            assert ledger.workspace == 0
        return ledger.peak_workspace

    assert pdla.run(2, program) == [pdla.dry_run(2, program, rank=r)[0] for r in range(2)] == 2 * [8 * 15 * 50]


def test_matrices_without_data():
    def program(comm):
        grid = pdla.ProcessGrid((2, 2))
        A = pdla.from_global(Meta((8, 6)), grid, pdla.Layout("row", "col"))
        B = pdla.from_function(lambda i, j: i + j, (8, 6), grid, A.layout, dtype="float32")
        assert (A + B).dtype == np.float64 and (A * 2).local.shape == (4, 3)
        assert A.T.conj().local.shape == (3, 4)
        assert A.norm() == 0 and pdla.eye(6, grid, A.layout).trace() == 0
        with pytest.raises(ShapeError):
            A + B.T
        return A.local

    block, ledger = pdla.dry_run(4, program)
    assert isinstance(block, Meta) and ledger.bytes_received == 0


def test_a_rank_that_is_none_of_them():
    with pytest.raises(PdlaError, match="rank 4 is not one of 4"):
        pdla.dry_run(4, lambda comm: None, rank=4)
    with pytest.raises(PdlaError, match="dry_run needs at least one rank, not 0"):
        pdla.dry_run(0, lambda comm: None)


@pytest.mark.parametrize("block", [np.ones((2, 3)), np.ones((3, 2)).T, Meta((2, 3)), Meta((3, 2)).T, [[1.0, 2.0, 3.0]] * 2])
def test_a_block_of_one_s_own_becomes_one_without_data(block):
    def program(comm):
        A = pdla.from_local(block, (4, 6), pdla.ProcessGrid((2, 2), comm=comm), pdla.Layout("row", "col"))
        return A, A.redistribute(pdla.Layout()).local.shape

    (A, whole), ledger = pdla.dry_run(4, program)
    assert isinstance(A.base, Meta) and meta.is_contiguous(A.base) and A.local.shape == (2, 3)
    assert whole == (4, 6) and ledger.bytes_received == 18 * 8


def test_what_another_rank_deals_out_is_known_to_it_alone():
    def program(comm):
        whole = np.ones((4, 6)) if comm.rank == 1 else None
        return pdla.from_global(whole, pdla.ProcessGrid((2, 2), comm=comm), pdla.Layout("row", "col"), root=1)

    assert pdla.dry_run(4, program, rank=1)[0].local.shape == (2, 3)
    with pytest.raises(ShapeError, match="dry run as rank 0 has no array from root=1: give dry_run rank=1"):
        pdla.dry_run(4, program)


def test_copies_without_data_are_alike():
    def program(comm):
        return pdla.zeros((10**12, 10**12), pdla.ProcessGrid((2, 2), comm=comm), pdla.Layout("row")).check_copies()

    assert pdla.dry_run(4, program)[0]


@pytest.mark.parametrize("count", [0, 1, 2, 5, 8])
def test_steps_that_cost_alike_are_counted_by_those_in_the_middle(count):
    """What grows linearly is counted exactly, in steps within steps, too."""

    def program(comm):
        done = []
        for i in comm.sample(range(count)):
            for j in comm.sample([1, 2, 3]):
                comm.allreduce(comm.xp.empty((6 * (i + j),), float)).wait()
                done.append((i, j))
        return done

    def received(comm):
        with pdla.record() as ledger:
            done = program(comm)
        return ledger.bytes_received, ledger.messages, done

    real = pdla.run(3, received)
    dry, ledger = pdla.dry_run(3, lambda comm: received(comm), machine="laptop")
    assert dry[:2] == real[0][:2] and len(real[0][2]) == 3 * count and len(dry[2]) == min(count, 2 - count % 2)
    once = pdla.dry_run(3, lambda comm: comm.allreduce(comm.xp.empty((6,), float)).wait(), machine="laptop")[1].seconds
    assert ledger.seconds >= 3 * count * once
