"""Workspace: what it holds while buffers are taken and given back in any order."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pdla
from pdla import Cyclic, Layout
from pdla.array import meta, numpy
from pdla.array import numpy as xp
from pdla.comm import ledger as counting
from pdla.comm import workspace
from pdla.comm.ledger import buffers, record, take
from pdla.comm.workspace import SPARE, Workspace, align, within

CYCLIC = Layout(Cyclic("row", 3), Cyclic("col", 5))


steps = st.lists(st.one_of(st.integers(0, 2000), st.none()), max_size=40)  # bytes that are taken; None: one array is given back


@given(steps=steps, limit=st.sampled_from((None, 0, 1000, 3000)), spare=st.sampled_from((0, 1000)), data=st.data())
def test_no_more_is_held_than_was_in_use_at_once(steps, limit, spare, data):
    room, live, most = Workspace(spare), [], 0
    if limit is not None:
        room.most = limit
    for size in steps:
        if size is not None:
            live.append(room.take(xp, (size,), np.uint8))
        elif live:
            del live[data.draw(st.integers(0, len(live) - 1))]
        used = sum(align(x.nbytes) for x in live)
        most = max(most, used)
        assert room.used == used <= room.held <= (most + spare if limit is None else max(most, limit))
        assert len({x.ctypes.data for x in live if x.size}) == sum(1 for x in live if x.size)


def test_memory_is_kept_beyond_the_peak_for_what_comes_next():
    room = Workspace()
    room.take(xp, (SPARE,), np.uint8)
    longer = room.take(xp, (SPARE + 64,), np.uint8)
    assert (room.used, room.held) == (longer.nbytes, longer.nbytes + SPARE)


def test_memory_that_a_stream_has_used_is_taken_again_on_that_stream_alone(monkeypatch):
    """On another one work would not wait until what still reads it is done."""
    room, places = Workspace(), []
    for stream in (1, 2, 1):
        monkeypatch.setattr(xp, "lane", partial(int, stream))
        places.append(room.take(xp, (64,), np.uint8).ctypes.data)
    assert places[0] == places[2] != places[1]


@pytest.mark.parametrize("rows", [slice(2), np.array([1, 3, 4])], ids=["some", "single"])
@pytest.mark.parametrize("cols", [slice(1, 3), np.array([0, 5])], ids=["some", "single"])
def test_copies_of_parts_take_room_and_views_do_not(rows, cols):
    room = Workspace()
    room.most = 100
    room.take(xp, (50,), np.uint8)
    with within(room), record() as ledger:
        part = take(xp, np.zeros((8, 8)), rows, cols)
        counted = 0 if isinstance(rows, slice) and isinstance(cols, slice) else part.nbytes
        spare = 64 if 64 + counted <= room.most else 0  # what the 50 bytes took: it has to go where there is no room for both
        assert ledger.workspace == room.used == counted and room.held == counted + spare
        del part
        assert ledger.workspace == room.used == 0


def test_memory_that_is_not_to_be_had_is_not_counted():
    class Full:
        memory, lane = staticmethod(lambda size: (_ for _ in ()).throw(MemoryError)), staticmethod(lambda: 0)

    room = Workspace()
    with pytest.raises(MemoryError):
        room.take(Full, (100,), np.uint8)
    assert room.held == room.used == 0


def test_a_plan_holds_what_it_foretold():
    """Where A and B come from elsewhere, buffers of many sizes follow one another."""

    def program(comm):
        grid = pdla.ProcessGrid((2, 2))
        for m, n, k in ((96, 96, 96), (10, 10, 3000), (13, 300, 40)):
            A, B, C = (pdla.ones(shape, grid, CYCLIC) for shape in ((m, k), (k, n), (m, n)))
            for algorithm in ("gather", "summa", "3d", "2.5d", "tesseract"):
                plan = pdla.plan_matmul(A, B, out=C, algorithm=algorithm)
                plan.state.workspace.spare = 0
                for _ in range(3):
                    plan(A, B, out=C)
                    kept = plan.state.workspace
                    assert kept.held <= kept.peak <= plan.predicted.peak_workspace + 64 * 40  # rounded up
            assert np.all(C.gather() == k)

    pdla.run(4, program)


def test_several_buffers_are_one_which_lives_as_long_as_the_last_of_them():
    room = Workspace()
    with within(room), record() as ledger:
        first, empty, last = buffers(xp, [(2, 3), (0, 4), (5,)], np.float32)
        assert (first.shape, empty.shape, last.shape) == ((2, 3), (0, 4), (5,))
        assert first.flags.c_contiguous and not np.shares_memory(first, last)
        assert (ledger.peak_workspace, room.used) == (11 * 4, 64)
        del first, empty
        assert room.used == 64
        del last
        assert (ledger.workspace, room.used) == (0, 0)
        assert buffers(xp, [], np.float32) == []


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


def test_without_spare_nothing_is_kept_beyond_the_peak_of_what_is_in_use_and_copies_count():
    mb = 2**20
    for spare, held in ((0, 2 * mb), (mb, 3 * mb)):
        own = Workspace(spare=spare)
        with within(own):
            assert (workspace.choose_workspace() is own) == (spare == 0)
            counting.buffer(numpy, (mb,), np.uint8)  # given back at once
            y = counting.buffer(numpy, (2 * mb,), np.uint8)
            assert own.held == held
            x = np.empty(mb, np.uint8)
            counting.count(x)
            with counting.held(mb):
                assert own.used == 4 * mb == own.peak
            del x
            assert own.used == y.nbytes
