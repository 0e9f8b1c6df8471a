"""Dry runs: the shapes and the ledger of one rank of many, without data."""

import contextvars
import operator

import numpy as np
import pytest

import pdla
from pdla.array import meta, numpy
from pdla.array.meta import Meta
from pdla.comm import ledger as counting
from pdla.comm.workspace import Workspace, within
from pdla.errors import PdlaError, ShapeError

MILLION = 10**6


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + 1,
        lambda x: 2.5 * x,
        lambda x: x * x,
        lambda x: -x,
        lambda x: abs(x),
        lambda x: x / 2,
        lambda x: x * True,
        lambda x: x * np.bool_(True),
        lambda x: x * np.float32(2),
        lambda x: np.conjugate(x),
        lambda x: x.T,
        lambda x: x[2:5, ::2],
        lambda x: x[[1, 1, 0]],
        lambda x: x.astype("float32"),
        lambda x: x.reshape(-1),
        lambda x: x.reshape(2, -1, 4),
        lambda x: x.max().reshape(1),
        lambda x: x.max(axis=1),
        lambda x: x.max(axis=-1, keepdims=True),
        lambda x: x.copy(),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex64", "int8"])
def test_a_meta_has_the_shape_and_dtype_that_numpy_gives(operation, dtype):
    real, dry = operation(np.ones((6, 4), dtype)), operation(Meta((6, 4), dtype))
    assert (dry.shape, dry.dtype, dry.nbytes, dry.size) == (real.shape, real.dtype, real.nbytes, real.size)
    assert len(dry) == len(real) and dry.ndim == real.ndim


def test_a_list_is_of_the_dtype_that_numpy_gives_it():
    for x in ([[1, 2]], [[True, False]], [[1, 2.5]], [[1j, 2]]):
        A = pdla.dry_run(4, lambda comm, x=x: pdla.from_global(x, pdla.ProcessGrid((2, 2)), pdla.Layout("row", "col")))[0]
        assert (A.shape, A.dtype) == ((1, 2), np.array(x).dtype)


def test_metas_that_do_not_fit():
    with pytest.raises(ValueError, match="cannot copy"):
        meta.copy(Meta((2, 3)), Meta((3, 2)))
    with pytest.raises(ValueError, match="cannot multiply"):
        meta.gemm(Meta((2, 3)), Meta((2, 3)), Meta((2, 3)))


@pytest.mark.parametrize("xp", [numpy, meta], ids=["numpy", "meta"])
@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (ValueError, lambda xp, x: xp.copy(x(2, 3), x(3, 2))),
        (ValueError, lambda xp, x: xp.copies([(x(2, 3), x(2, 3)), (x(2, 3), x(3, 2))])),
        (ValueError, lambda xp, x: xp.land(x(2, 3), x(3, 2))),
        (ValueError, lambda xp, x: xp.add(x(2, 3), x(3, 2))),
        (ValueError, lambda xp, x: xp.maximum(x(2, 3), x(3, 2))),
        (ValueError, lambda xp, x: xp.combine(x(2, 3), 2, x(3, 2))),
        (ValueError, lambda xp, x: xp.put(x(4, 3), slice(0, 2), slice(None), x(3, 2))),
        (ValueError, lambda xp, x: operator.setitem(x(4, 3), slice(0, 2), x(3, 2))),
        (ValueError, lambda xp, x: x(2, 3) + x(3, 2)),
        (ValueError, lambda xp, x: x(2, 3) @ x(2, 3)),
        (ValueError, lambda xp, x: xp.gemm(x(2, 3), x(2, 4), x(2, 4))),
        (ValueError, lambda xp, x: xp.gemm(x(2, 3), x(3, 4), x(4, 2))),
        (TypeError, lambda xp, x: xp.copy(x(2, 3), x(2, 3).astype(complex))),
    ],
)
def test_metas_that_do_not_fit_are_the_errors_of_numpy(xp, kind, call):
    with pytest.raises(kind):
        call(xp, lambda *shape: xp.empty(shape, "float64"))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: Meta((2, 3)) + Meta((3,), "float32"), [("touch", 48 + 48 + 12)]),
        (lambda: Meta((5, 2, 3)) @ Meta((3, 4), "float32"), [("gemm", 2, 4, 3, "float64", 5, "float64")]),
        (lambda: Meta((2, 3), "float16") @ Meta((3, 4), "float16"), [("gemm", 2, 4, 3, "float16", 1, "float16")]),
        (lambda: Meta((2, 3)).sum(axis=1), [("touch", 48)]),
        (lambda: meta.copies([(Meta((2, 3)), Meta((2, 3))), (Meta((1, 1)), Meta((1, 1)))]), [("touch", 96), ("touch", 16)]),
        (lambda: meta.land(Meta((2, 3)), Meta((2, 3))), [("touch", 96)]),
        (lambda: meta.gemm(Meta((2, 3)), Meta((3, 4)), Meta((2, 4))), [("gemm", 2, 4, 3, "float64", 1, "float64")]),
        (
            lambda: meta.gemm(Meta((2, 3), "float16"), Meta((3, 4), "float16"), Meta((2, 4), "float32")),
            [("gemm", 2, 4, 3, "float16", 1, "float32")],
        ),
        (lambda: meta.square(Meta((7, 3)), Meta((7, 7)), 1), [("gemm", 7, 4, 3, "float64", 1, "float64")]),
        (lambda: meta.erf(Meta((2, 3), "float32")), [("erf", 6, 4)]),
        (lambda: meta.uniform(np.arange(2), np.arange(3), 0), [("touch", 48)]),
    ],
)
def test_what_a_meter_is_told(call, told):
    """The bytes that are read and written, and the sizes of products: of a square half its columns, as half is computed."""
    heard = []

    class Recorder:
        def gemm(self, m, n, k, dtype, count=1, out=None):
            heard.append(("gemm", m, n, k, np.dtype(dtype).name, count, np.dtype(out).name))

        def touch(self, size):
            heard.append(("touch", size))

        def erf(self, count, itemsize):
            heard.append(("erf", count, itemsize))

    def program():
        meta.metered.set(Recorder())
        call()

    call()  # without a meter
    contextvars.copy_context().run(program)
    assert heard == told


def test_a_meta_of_any_size_costs_nothing():
    x, every_third = Meta((MILLION, MILLION)), np.arange(0, MILLION, 3)
    assert meta.take(x, every_third, every_third).shape == (len(every_third),) * 2
    assert meta.take(x, every_third, slice(5, 10**7)).shape == (len(every_third), MILLION - 5)
    meta.put(x, every_third, slice(0, 2), Meta((len(every_third), 2)))
    with pytest.raises(ValueError, match="cannot copy"):
        meta.put(x, every_third, slice(0, 2), Meta((2, 2)))


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


VIEWS = {
    "whole": lambda x: x,
    "some rows": lambda x: x[1:3],
    "some columns": lambda x: x[:, 1:3],
    "every other row": lambda x: x[::2],
    "one row": lambda x: x[1:2, 2:5],
    "transposed": lambda x: x.T,
    "transposed twice": lambda x: x.T.T,
    "a row, transposed": lambda x: x[:1].T,
    "axes turned": lambda x: x.transpose(1, 0),
    "rows of columns": lambda x: x[:, :3][1:],
    "nothing": lambda x: x[2:2, 1:3],
    "backwards": lambda x: x[::-1],
    "flat": lambda x: x.reshape(-1)[3:9],
    "elements": lambda x: x[np.array([0, 2])],
    "a row alone": lambda x: x[1],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_meta_has_gaps_where_numpy_has(view):
    real, ghost = view(np.zeros((4, 6))), view(Meta((4, 6)))
    assert ghost.shape == real.shape and meta.contiguous(ghost) == real.flags.c_contiguous


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
    """Rows that lie apart are copied to be sent, all of this rank's block."""

    def program(comm):
        A = pdla.ones((60, 50), pdla.ProcessGrid(2), pdla.Layout("row"))
        with pdla.record() as ledger:
            A.redistribute(pdla.Layout(pdla.Cyclic("row", 3)))
            assert ledger.workspace == 0
        return ledger.peak_workspace

    assert pdla.run(2, program) == [pdla.dry_run(2, program, rank=r)[0] for r in range(2)] == 2 * [8 * 30 * 50]


@pytest.mark.parametrize("xp", [numpy, meta], ids=["numpy", "meta"])
def test_memory_made_elsewhere_counts_while_a_view_of_it_lives(xp):
    x, workspace = xp.empty((6, 5), "float64"), Workspace()
    workspace.most = 1000
    with within(workspace), pdla.record() as ledger:
        used = workspace.take(xp, (100,), "float64")
        del used
        part = counting.take(xp, x, np.array([0, 2, 5]), slice(None)).T[:2]
        assert workspace.held == 832 + 120 and ledger.workspace == 120
        more = counting.take(xp, x, slice(None), np.array([1, 4])).reshape(-1)
        assert workspace.held == 120 + 96  # what nobody used has gone
        del part
        assert counting.take(xp, x, slice(1, 3), slice(None)).shape == (2, 5) and ledger.workspace == 96
        del more
    assert ledger.workspace == workspace.held == 0 and ledger.peak_workspace == 216


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
    assert isinstance(A.base, Meta) and meta.contiguous(A.base) and A.local.shape == (2, 3)
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
