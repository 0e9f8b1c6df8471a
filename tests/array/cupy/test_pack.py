"""The kernel that copies, casts, adds and picks: NumPy's elements, and nothing around them."""

import mmap
from itertools import product

import numpy as np
import pytest
from helpers.device_arrays import FLOATS, KNOWN, LIE, random, same, there, xp
from helpers.matmuls import numbers

import pdla
from pdla import config
from pdla.array import numpy as host
from pdla.array.cupy.pack import _kept
from pdla.errors import ShapeError

SHAPES = [(0, 3), (1, 1), (1, 70), (70, 1), (33, 31), (64, 64), (35, 130), (160, 144)]
PICKED = [slice(None), slice(5, 30, 3), np.array([0, 1, 2, 9, 10, 11, 30]), np.arange(29, 0, -4), np.array([], np.int64)]


@pytest.mark.parametrize("dtype", [*KNOWN, "bool"])
@pytest.mark.parametrize("shape", SHAPES)
def test_copy(shape, dtype):
    x = numbers(shape, dtype)
    for how, lies in product(LIE, LIE):
        target = there(np.ones(shape, dtype), how)
        xp.copy(target, there(x, lies))
        same(target, x, f"{how} {lies}")


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_copy_conjugates(shape, dtype):
    x = numbers(shape, dtype)
    for how, lies in product(LIE, LIE):
        target = there(np.zeros(shape, dtype), how)
        xp.copy(target, there(x, lies), conjugate=True)
        same(target, x.conj(), f"{how} {lies}")
    xp.copy(target, target, conjugate=True)
    same(target, x)
    same(xp.reinterpret(target, True), x.conj())


CASTS = [*product(FLOATS[:2], FLOATS[:2]), *product(FLOATS[2:], FLOATS[2:]), ("float16", "float64")]


@pytest.mark.parametrize(("to", "source"), CASTS)
def test_copy_casts(to, source):
    x = random((40, 70), source)
    for how, lies in product(LIE, LIE):
        target = there(np.zeros(x.shape, to), how)
        xp.copy(target, there(x, lies))
        same(target, x.astype(to), f"{how} {lies}")


@pytest.mark.parametrize("how", ["gaps", "steps", "backwards", "vectors"])
def test_copy_writes_nothing_around_its_target(how):
    """Not in the last vector of a row, either, which the row does not fill."""
    x = xp.asarray(np.full((110, 120), 7.0))
    step, turn = 3 if how == "steps" else 1, -1 if how == "backwards" else 1
    left = 2 if how == "vectors" else 1
    inside = np.s_[2 : 2 + 35 * step : step, left : left + 39 * step : step]
    for source in (there(np.zeros((35, 40)))[:, :39], there(np.zeros((39, 36))).T[:35]):
        xp.copy(x[inside][::turn, ::turn], source)
        wanted = np.full((110, 120), 7.0)
        wanted[inside] = 0
        same(x, wanted)


def test_a_broadcast_source():
    x = xp.asarray(np.arange(40.0))
    target = there(np.zeros((33, 40)))
    xp.copy(target, np.broadcast_to(x, (33, 40)))
    same(target, np.broadcast_to(np.arange(40.0), (33, 40)))


@pytest.mark.parametrize("count", [0, 1, 32, 33, 100])
def test_many_copies_in_a_launch(count):
    sources = [numbers((number % 7 * 9, 3 + number % 41), "float32" if number % 3 else "int64", number) for number in range(count)]
    targets = [there(np.zeros_like(x), LIE[number % 6]) for number, x in enumerate(sources)]
    xp.copy_all([(target, there(x, LIE[number // 6 % 6])) for number, (target, x) in enumerate(zip(targets, sources, strict=True))])
    for target, x in zip(targets, sources, strict=True):
        same(target, x)


@pytest.mark.parametrize("shape", [(5,), (0,), (3, 4), (2, 3, 4), (2, 0, 4), ()])
def test_copies_from_and_to_the_host(shape):
    """With gaps and without, in any number of dimensions."""
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(np.float32)
    for gaps in (False, True)[: 1 + len(shape)]:
        there = xp.empty((*shape[:-1], 2 * shape[-1]), x.dtype)[..., ::2] if gaps else xp.empty(shape, x.dtype)
        box, back = xp.empty_pinned(shape, x.dtype), xp.empty_pinned(shape, x.dtype)
        box[...] = x
        xp.land(there, box)
        same(there, x)
        xp.copy_all([(back, there)])
        xp.finish()
        np.testing.assert_array_equal(back, x)


def test_an_array_of_the_host_that_is_not_pinned_is_refused():
    """A kernel that touched its memory would end all work on the device."""
    there, box = xp.empty((3, 4), np.float32), xp.empty_pinned((6, 4), np.float32)[1:4]
    with pytest.raises(ShapeError, match=r"an array of the host \(NumPy's, float32\[3, 4\]\)"):
        xp.copy_all([(there, np.ones((6, 4), np.float32)[::2])])
    xp.copy_all([(there, box)])
    xp.finish()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "float16", "int8"])
def test_take_and_put_where_rows_begin_at_whole_vectors(dtype):
    """Of columns in a list, those that are neighbours are copied 16 bytes at a time, and no others are."""
    x, rows = numbers((40, 256), dtype, 1), np.arange(1, 40, 2)
    blocks = np.flatnonzero(np.arange(256) // 16 % 3 == 1)
    shuffled = np.concatenate([np.arange(16, 32)[::-1], [7, 5, 6, 8], blocks[:16], [0, 2, 1, 3] * 4])
    pairs = np.flatnonzero(np.arange(256) // 2 % 3 == 1)
    odd = np.concatenate([np.arange(1, 17), np.arange(32, 48), np.arange(51, 64)])
    for cols in (blocks, blocks[:-3], shuffled, pairs, odd):
        wanted = host.take(x, rows, cols)
        same(xp.take(xp.asarray(x), rows, cols), wanted)
        same(xp.take(xp.asarray(x.T.copy()).T, rows, cols), wanted)
        if len(set(cols)) == len(cols):
            found, target = xp.asarray(x), x.copy()
            xp.put(found, rows, cols, xp.asarray(wanted * 2))
            host.put(target, rows, cols, wanted * 2)
            same(found, target)


def test_lists_that_several_parts_share_are_brought_to_the_device_once(monkeypatch):
    x, brought = xp.asarray(numbers((40, 40), "float64", 1)), []
    rows, cols = ([np.flatnonzero(np.arange(40) // nb % 4 == r) for r in range(4)] for nb in (2, 3))
    with monkeypatch.context() as patched:
        patched.setattr("cupy.asarray", lambda given, real=xp.cupy.asarray: (brought.append(given.size), real(given))[1])
        parts = xp.take_all(x, product(rows, cols))
    assert sum(brought) == 80
    for part, (i, j) in zip(parts, product(rows, cols), strict=True):
        same(part, host.take(xp.host(x), i, j))


def freeze(positions):
    positions = np.array(positions)
    positions.flags.writeable = False
    return positions


def test_lists_that_cannot_change_stay_on_the_device_as_long_as_they_live(monkeypatch):
    x, brought = xp.asarray(numbers((40, 40), "float64", 1)), []
    monkeypatch.setattr("cupy.asarray", lambda given, real=xp.cupy.asarray: (brought.append(given.size), real(given))[1])
    kept, rows, changing = len(_kept), freeze([3, 1, 2]), np.array([0, 5, 4, 7])
    for _ in range(3):
        for cols in (slice(None), rows, changing):
            same(xp.take(x, rows, cols), host.take(xp.host(x), rows, cols))
        changing += 1
    assert brought == [3, 4, 4, 4] and len(_kept) == kept + 1
    with xp.use_stream("landing", xp.mark()):
        same(xp.take(x, rows, rows), host.take(xp.host(x), rows, rows))
    xp.take(x, rows[1:], freeze(changing)[::-1])  # views: of what cannot change, too
    assert brought[4:] == [3, 6] and len(_kept) == kept + 2
    del rows, cols
    assert len(_kept) == kept


def test_lists_that_share_memory_with_one_that_changes_do_not_stay():
    x, changing = xp.asarray(np.arange(40.0).reshape(5, 8)), np.array([0, 5, 4, 7])
    view = changing[:3]
    view.flags.writeable = False
    for _ in range(2):
        same(xp.take(x, slice(None), view), host.take(xp.host(x), slice(None), view))
        changing[:] = changing[::-1].copy()


def test_a_redistribution_that_is_repeated_brings_no_positions(monkeypatch):
    brought = []
    monkeypatch.setattr("cupy.asarray", lambda given, real=xp.cupy.asarray: (brought.append(given), real(given))[1])

    def program(comm):
        grid = pdla.ProcessGrid((2, 2), comm=comm)
        A = pdla.random((48, 48), grid, pdla.Layout(pdla.Cyclic("row", 2), pdla.Cyclic("col", 2)), dtype="float32", seed=1)
        counts = []
        for _ in range(3):
            B = A.redistribute(pdla.Layout(pdla.Cyclic("row", 6), pdla.Cyclic("col", 6)))
            comm.barrier()
            counts.append(len(brought))
            comm.barrier()
        np.testing.assert_array_equal(xp.host(B.gather()), xp.host(A.gather()))
        return counts

    with config.override(array="cupy"):
        (first, *others), *_ = pdla.run(4, program)
    assert first and set(others) == {first}


def test_elements_that_are_more_than_2_31_apart():
    shape = 3, 2**31 + 3
    if xp.cupy.__version__ == "stand-in":  # memory of which only a few pages are touched
        x = xp.cupy.ndarray._of(np.frombuffer(mmap.mmap(-1, shape[0] * shape[1]), np.uint8).reshape(shape))
    else:
        x = xp.cupy.empty(shape, np.uint8)
    corner, ends = numbers((3, 5), "uint8", 1), np.array([0, 1, 2**31 - 1, 2**31 + 2])
    xp.copy(x[:, -5:], there(corner))
    xp.put(x, slice(None), ends[:3], there(corner[:, :3]))
    same(xp.take(x, np.array([2, 0]), ends), np.column_stack([corner[[2, 0], :3], corner[[2, 0], 4]]))
    found = there(np.zeros((5, 3), np.uint8))
    xp.copy(found, x[:, -5:].T)
    corner[:, 1] = corner[:, 2]
    same(found, corner.T)


@pytest.mark.parametrize("lies", LIE)
@pytest.mark.parametrize("dtype", ["float64", "float16", "complex128", "int8"])
def test_take_and_put(lies, dtype):
    x, y = numbers((31, 31), dtype, 1), numbers((31, 31), dtype, 2)
    places = list(product(PICKED, PICKED))
    for (rows, cols), part in zip(places, xp.take_all(there(x, lies), places), strict=True):
        wanted = host.take(x, rows, cols)
        same(part, wanted, f"{rows} {cols}")
        same(xp.take(there(x, lies), rows, cols), wanted)
        for how in ("C", "F"):
            expected, target = y.copy(), there(y, lies)
            host.put(expected, rows, cols, wanted)
            xp.put(target, rows, cols, there(wanted, how))
            same(target, expected, f"{rows} {cols}")
    whole = there(x, lies)
    part = xp.take(whole, slice(1, 5), slice(2, 9, 2))
    assert xp.overlap(part, whole) and not xp.overlap(xp.take(whole, PICKED[2], slice(None)), whole)


@pytest.mark.parametrize("dtype", KNOWN)
@pytest.mark.parametrize("beta", [0, 1, -2])
def test_combine(dtype, beta):
    target, source = numbers((35, 70), dtype, 1), numbers((35, 70), dtype, 2)
    for how, lies in product(LIE, LIE):
        found, wanted = there(target, how), target.copy()
        if beta == 0 and np.dtype(dtype).kind in "fc":
            found.fill(np.nan)
        xp.combine(found, beta, there(source, lies))
        host.combine(wanted, beta, source)
        same(found, wanted, f"{how} {lies}")


@pytest.mark.parametrize("dtype", FLOATS)
def test_combine_rounds_as_a_processor_does(dtype):
    """Product and sum are rounded each: fused they would differ. NumPy may fuse what makes up a complex product."""
    target, source, beta = random((40, 77), dtype, 1), random((40, 77), dtype, 2), 0.7
    found, wanted = there(target), target.copy()
    xp.combine(found, beta, there(source, "F"))
    host.combine(wanted, beta, source)
    same(found, wanted)
    if dtype.startswith("complex"):
        xp.combine(found, 0.7 - 0.2j, there(source))
        host.combine(wanted, 0.7 - 0.2j, source)
        np.testing.assert_allclose(found.get(), wanted, rtol=0, atol=8 * np.finfo(dtype).eps)


@pytest.mark.parametrize(("to", "source"), [("float32", "float64"), ("complex64", "complex128"), ("float16", "float32")])
def test_combine_in_the_dtype_of_its_source(to, source):
    target, more = random((20, 30), to, 1), random((20, 30), source, 2)
    found, wanted = there(target), target.copy()
    xp.combine(found, 3, there(more))
    host.combine(wanted, 3, more)
    same(found, wanted)
