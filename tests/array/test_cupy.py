"""CuPy's namespace against NumPy's, function by function: on a GPU, or here on a stand-in that runs the kernels themselves."""

import threading
from importlib.resources import files
from itertools import product
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from helpers.arrays import DTYPES, SIZES
from helpers.devices import GPU, cupy_namespace
from helpers.matmuls import numbers

import pdla
from pdla import Balanced, Cuts, Cyclic, Layout, config, nn
from pdla.array import chosen, composed, namespace
from pdla.array import numpy as host
from pdla.array.draw import Draw
from pdla.array.quantile import normal
from pdla.bench.cli import main
from pdla.bench.measure import peak
from pdla.errors import AgreementError, DeviceError, ShapeError
from pdla.indices import IndexSet
from pdla.simulate import split

xp = cupy_namespace()
KNOWN = [dtype for dtype in DTYPES if dtype not in ("longdouble", ">f8")]
FLOATS = ["float32", "float64", "complex64", "complex128"]
SHAPES = [(0, 3), (1, 1), (1, 70), (70, 1), (33, 31), (64, 64), (35, 130)]
PICKED = [slice(None), slice(5, 30, 3), np.array([0, 1, 2, 9, 10, 11, 30]), np.arange(29, 0, -4), np.array([], np.int64)]


def there(x, how="C"):
    """A device's copy of x that lies so or so; "odd" begins at no multiple of 16 bytes."""
    m, n = x.shape
    if how == "odd":
        view = xp.empty((m, n + 1), x.dtype)[:, 1:]
    elif how == "C":
        view = xp.empty((m, n), x.dtype)
    elif how == "F":
        view = xp.empty((n, m), x.dtype).T
    else:
        step, turn = 3 if how == "steps" else 1, -1 if how == "backwards" else 1
        view = xp.empty((step * m + 1, step * n + 3), x.dtype)[1::step, 3::step][::turn, ::turn]
    view[...] = xp.asarray(x)
    return view


LIE = ["C", "F", "gaps", "steps", "backwards", "odd"]


def same(found, wanted, where=""):
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.get(), wanted, err_msg=str(where))


def close(found, wanted, scale, terms=1):
    """Equal but for the rounding of so many sums of what is as large as `scale`."""
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    bound = 8 * terms * np.finfo(wanted.dtype).eps * (1 + np.abs(scale).astype(float).max(initial=0))
    np.testing.assert_allclose(found.get(), wanted, rtol=0, atol=bound)


def random(shape, dtype, seed=0):
    draw = np.random.default_rng([seed, *shape])
    x = draw.standard_normal(shape)
    return (x + 1j * draw.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


# ---------------------------------------------------------------------------------------------- copies


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


@pytest.mark.parametrize("how", ["gaps", "steps", "backwards"])
def test_copy_writes_nothing_around_its_target(how):
    x = xp.asarray(np.full((110, 120), 7.0))
    step, turn = 3 if how == "steps" else 1, -1 if how == "backwards" else 1
    inside = np.s_[2 : 2 + 35 * step : step, 1 : 1 + 39 * step : step]
    for source in (there(np.zeros((35, 39))), there(np.zeros((39, 35))).T):
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
    xp.copies([(target, there(x, LIE[number // 6 % 6])) for number, (target, x) in enumerate(zip(targets, sources, strict=True))])
    for target, x in zip(targets, sources, strict=True):
        same(target, x)


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_a_block_takes_tiles_in_turn(blocks, monkeypatch):
    monkeypatch.setattr("pdla.array.cupy.launch.GRID", blocks)
    sources = [numbers((65, 70 + number), "float32", number) for number in range(5)]
    targets = [there(np.zeros_like(x), "CFCFC"[number]) for number, x in enumerate(sources)]
    xp.copies([(target, there(x, "CCFFF"[number])) for number, (target, x) in enumerate(zip(targets, sources, strict=True))])
    for target, x in zip(targets, sources, strict=True):
        same(target, x)
    rows, cols = np.arange(70), np.arange(71)
    same(xp.uniform(rows, cols, 3), host.uniform(rows, cols, 3))
    held = IndexSet.interval(0, 300), IndexSet.interval(0, 150)
    for draw in (Draw(150, np.dtype("float32"), 3, "uniform", 0, 1), Draw(150, np.dtype("float64"), 3, "integers", 0, 3 << 17)):
        same(xp.drawn(*held, draw), host.drawn(*held, draw))
    x, y = numbers((300, 140), "float32", 1), numbers((300, 140), "float32", 2)
    for found, wanted in zip(xp.column_sums(there(x), there(y)), host.column_sums(x, y), strict=True):
        same(found, wanted)
    close(xp.gelu(there(x), False, there(x[:1]))[0], host.gelu(x.copy(), False, x[:1])[0], x)
    for found, wanted in zip(xp.moments(there(x)), host.moments(x), strict=True):
        close(found, wanted, x * x, terms=140)


@pytest.mark.parametrize("shape", [(5,), (0,), (3, 4), (2, 3, 4), (2, 0, 4), ()])
def test_copies_from_and_to_the_host(shape):
    """With gaps and without, in any number of dimensions."""
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(np.float32)
    for gaps in (False, True)[: 1 + len(shape)]:
        there = xp.empty((*shape[:-1], 2 * shape[-1]), x.dtype)[..., ::2] if gaps else xp.empty(shape, x.dtype)
        box, back = xp.pinned(shape, x.dtype), xp.pinned(shape, x.dtype)
        box[...] = x
        xp.land(there, box)
        same(there, x)
        xp.copies([(back, there)])
        xp.finish()
        np.testing.assert_array_equal(back, x)


def test_an_array_of_the_host_that_is_not_pinned_is_refused():
    """A kernel that touched its memory would end all work on the device."""
    there, box = xp.empty((3, 4), np.float32), xp.pinned((6, 4), np.float32)[1:4]
    with pytest.raises(ShapeError, match=r"an array of the host \(NumPy's, float32\[3, 4\]\)"):
        xp.copies([(there, np.ones((6, 4), np.float32)[::2])])
    xp.copies([(there, box)])
    xp.finish()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "float16", "int8"])
def test_take_and_put_where_rows_begin_at_whole_vectors(dtype):
    """Of columns in a list, those that are neighbours are copied 16 bytes at a time, and no others are."""
    x, rows = numbers((40, 256), dtype, 1), np.arange(1, 40, 2)
    blocks = np.flatnonzero(np.arange(256) // 16 % 3 == 1)
    shuffled = np.concatenate([np.arange(16, 32)[::-1], [7, 5, 6, 8], blocks[:16], [0, 2, 1, 3] * 4])
    for cols in (blocks, shuffled):
        wanted = host.take(x, rows, cols)
        same(xp.take(xp.asarray(x), rows, cols), wanted)
        if len(set(cols)) == len(cols):
            found, target = xp.asarray(x), x.copy()
            xp.put(found, rows, cols, xp.asarray(wanted * 2))
            host.put(target, rows, cols, wanted * 2)
            same(found, target)


@pytest.mark.parametrize("lies", ["C", "F", "gaps"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize(("rows", "columns"), [([], 3), ([2], 1), ([5, 0, 5, 5, 2, 0, 5], 300), ([1] * 40, 7)])
def test_rows_that_come_many_times_are_added_one_after_another(rows, columns, dtype, lies):
    """As on a processor, bit for bit: ranks that have copies of a gradient would else not have copies any more."""
    rows, target = np.array(rows, np.int64), random((6, columns), dtype)
    source = random((len(rows), columns), dtype, 1)
    found = there(target, lies)
    xp.add_at(found, rows, there(source, lies))
    host.add_at(target, rows, source)
    same(found, target)


@pytest.mark.parametrize("lies", LIE)
@pytest.mark.parametrize("dtype", ["float64", "float16", "complex128", "int8"])
def test_take_and_put(lies, dtype):
    x, y = numbers((31, 31), dtype, 1), numbers((31, 31), dtype, 2)
    places = list(product(PICKED, PICKED))
    for (rows, cols), part in zip(places, xp.takes(there(x, lies), places), strict=True):
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


# ---------------------------------------------------------------------------------------------- sums


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


@pytest.mark.parametrize("name", ["add", "maximum"])
def test_sums_of_ranks(name):
    target, source = numbers((5, 6), seed=1), numbers((5, 6), seed=2)
    found = there(target, "steps")
    getattr(xp, name)(found, there(source))
    getattr(host, name)(target, source)
    same(found, target)


@pytest.mark.parametrize("beta", [0, 1, 3])
def test_scale(beta):
    x = numbers((5, 6))
    found = there(x, "steps")
    xp.scale(found, beta)
    same(found, beta * x)


# ---------------------------------------------------------------------------------------------- products


@pytest.mark.parametrize("dtype", KNOWN)
@pytest.mark.parametrize(("m", "n", "k"), [*SIZES, (4, 5, 0), (0, 3, 2)])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (-2, 3), (0, 2)])
def test_gemm_wherever_its_operands_lie(dtype, m, n, k, alpha, beta):
    a, b, c = numbers((m, k), dtype, 1), numbers((k, n), dtype, 2), numbers((m, n), dtype, 3)
    wanted = c.copy()
    host.gemm(a, b, wanted, alpha, beta)
    for how_a, how_b, how_c in product(LIE, LIE, LIE):
        found = there(c, how_c)
        if beta == 0 and np.dtype(dtype).kind in "fc":
            found.fill(np.nan)
        xp.gemm(there(a, how_a), there(b, how_b), found, alpha, beta)
        same(found, wanted, f"{how_a} {how_b} {how_c}")


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_scalars(dtype):
    a, b, c = numbers((3, 4), dtype, 1), numbers((4, 2), dtype, 2), numbers((3, 2), dtype, 3)
    found, wanted = there(c), c.copy()
    xp.gemm(there(a), there(b), found, 2 - 1j, 3j)
    host.gemm(a, b, wanted, 2 - 1j, 3j)
    same(found, wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_summed_in_singles(dtype):
    pytest.importorskip("ml_dtypes")
    a, b = (numbers(shape, "float32", seed).astype(dtype) for seed, shape in enumerate([(6, 300), (300, 5)]))
    for sums in ("float32", dtype):
        found = xp.empty((6, 5), sums)
        xp.gemm(there(a), there(b, "F"), found)
        same(found, (a.astype(float) @ b.astype(float)).astype(sums))


def test_parts_of_sums_are_not_rounded_to_16_bits(monkeypatch):
    from cupy_backends.cuda.libs import cublas

    modes, multiply = [], cublas.gemmEx
    monkeypatch.setattr(cublas, "gemmEx", lambda *args: (modes.append(cublas.getMathMode(args[0])), multiply(*args)))
    half = there(np.ones((3, 3), "float16"))
    for sums in ("float16", "float32", "float16"):
        xp.gemm(half, half, xp.empty((3, 3), sums))
    assert [mode & 16 for mode in modes] == [16, 0, 16]


def test_a_device_that_failed_is_not_waited_for(monkeypatch):
    import cupy

    mark = xp.mark()
    xp.finish()
    assert mark.done
    monkeypatch.setattr(cupy.cuda.runtime, "eventQuery", lambda ptr: 700)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):
        assert mark.done


def test_the_stream_that_a_program_uses_stays_its_own():
    """Of a stream that is used, not entered, CuPy's with-block knows nothing when it ends: what follows would be out of order."""
    import cupy

    before, own = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True)
    x, box = xp.empty((3, 4), "float32"), xp.pinned((3, 4), np.float32)
    box[...] = 5
    own.use()
    try:
        xp.land(x, box)
        assert cupy.cuda.get_current_stream() == own
        with pytest.raises(ZeroDivisionError), xp.beside("landing", xp.mark()) as stream:
            assert cupy.cuda.get_current_stream() == stream != own
            raise ZeroDivisionError
        assert cupy.cuda.get_current_stream() == own
    finally:
        own.synchronize()
        before.use()
    same(x, np.full((3, 4), 5, np.float32))


WAYS = {"algorithm": "gather"}, {"algorithm": "summa", "panel": 7}, {"algorithm": "cannon"}, {"schedule": "shared"}


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_ranks_that_are_threads_may_each_use_a_stream_of_their_own(how):
    import cupy

    def program(comm):
        cupy.cuda.Stream(non_blocking=True).use()
        grid, layout = pdla.ProcessGrid((2, 2)), Layout("row", "col")
        A, B = (pdla.random((60, n), grid, layout, seed=n, distribution="integers", high=9) for n in (50, 70))
        C = pdla.matmul(A.T, B, **how)
        return [X.gather().get() for X in (A, B, C)]

    with config.override(array="cupy"):
        for a, b, c in pdla.run(4, program):
            np.testing.assert_array_equal(c, a.T @ b)


def test_a_message_that_has_been_sent_may_be_overwritten_on_another_stream():
    import cupy

    def program(comm):
        cupy.cuda.Stream(non_blocking=True).use()
        x, out = there(np.full((40, 50), float(comm.rank))), xp.empty((40, 50), "float64")
        comm.shift(x, out).wait()
        xp.copy(x, xp.asarray(np.full((40, 50), 99.0)))
        return out.get()

    with config.override(array="cupy"):
        for rank, found in enumerate(pdla.run(4, program)):
            np.testing.assert_array_equal(found, np.full((40, 50), float((rank - 1) % 4)))


def test_tf32_is_asked_for_by_name(monkeypatch):
    from cupy_backends.cuda.libs import cublas

    asked, multiply = [], cublas.gemmEx
    monkeypatch.setattr(cublas, "gemmEx", lambda *args: (asked.append(args[-2]), multiply(*args)))
    for tf32, dtype in product((False, True), ("float32", "float64")):
        with config.override(tf32=tf32):
            xp.gemm(there(np.ones((3, 3), dtype)), there(np.ones((3, 3), dtype)), xp.empty((3, 3), dtype))
    single, double, fast = (getattr(cublas, f"CUBLAS_COMPUTE_{name}") for name in ("32F", "64F", "32F_FAST_TF32"))
    assert asked == [single, double, fast, double]


# ---------------------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 5), (70, 70), (1, 4097), (0, 4)])
def test_uniform_is_numpys_bit_by_bit(m, n):
    rows, cols = np.arange(m)[::-1] * 10**12 + 7, np.arange(n) * 3
    for key in (0, -1, 2**64 - 1, 12345):
        same(xp.uniform(rows, cols, key), host.uniform(rows, cols, key))


def bits_same(found, wanted):
    """Not a bit differs, not even a zero's sign."""
    same(found, wanted)
    assert found.get().tobytes() == wanted.tobytes()


def held(shape, layout=None, sizes=None, coords=None):
    """The rows and columns of a rank, and the matrix's columns."""
    return *(layout or Layout()).indices(shape, sizes or {}, coords or {}), shape[1]


def spaced(count, step):
    return IndexSet(np.arange(count) * step, np.arange(count) * step + 1)


GRID = {"row": 2, "col": 3}
HERE = [{"row": row, "col": col} for row, col in ((0, 0), (1, 2))]
TILED = {
    "whole": [held((300, 264))],
    "odd": [held((130, 259)), held((1, 1)), held((1, 150))],
    "narrow": [held((5000, 3)), held((17000, 1)), held((2400, 7))],
    "blocks": [held((300, 264), Layout("row", "col"), GRID, here) for here in HERE],
    "ragged": [held((200, 277), Layout(Balanced("row", 5), Cuts("col", (0, 1, 131, 277))), GRID, here) for here in HERE],
    "cyclic": [held((300, 264), Layout(Cyclic("col", 7), Cyclic("row", 3, 1)), GRID, here) for here in HERE],
    "cyclic by tiles": [held((300, 600), Layout(Cyclic("row", 64), Cyclic("col", 64)), GRID, here) for here in HERE],
    "empty": [held((0, 5)), held((5, 0)), held((1, 9), Layout("row"), GRID, HERE[1])],
    "the same places of tiles": [(spaced(5, 2**14), spaced(1, 1), 1), (spaced(3, 1), spaced(5, 128), 700)],
    "far": [(*(IndexSet.interval(10**9 + 3, 10**9 + 3 + n) for n in (40, 270)), 3 * 10**9)],
}
DRAWN = [
    ("uniform", 0, 1), ("uniform", -3, 9.7), ("uniform", 4.0, 4.0), ("integers", -3, 9), ("integers", 5, 6),
    ("integers", 7, 7 + 2**32), ("integers", -(2**63), 5 - 2**63), ("integers", 2**63 - 10**7, 2**63), ("integers", -2, 3 * 2**30),
    ("normal", 0, 1),
]


@pytest.fixture
def host_draws(monkeypatch):
    """The tiles that have been drawn on the host since it was last emptied."""
    tiles, tile = [], Draw.tile
    monkeypatch.setattr(Draw, "tile", lambda draw, i, j: [tiles.append((i, j)), tile(draw, i, j)][1])
    return tiles


@pytest.mark.parametrize(("distribution", "low", "high"), DRAWN)
@pytest.mark.parametrize("where", TILED)
def test_drawn_is_numpys_bit_by_bit(where, distribution, low, high, host_draws):
    for number, (rows, cols, columns) in enumerate(TILED[where]):
        for dtype in FLOATS:
            draw = Draw(columns, np.dtype(dtype), number - 1, distribution, low, high)
            wanted = host.drawn(rows, cols, draw)
            host_draws.clear()
            bits_same(xp.drawn(rows, cols, draw), wanted)
            assert distribution == "integers" or not host_draws


@pytest.mark.parametrize("where", ["whole", "cyclic", "cyclic by tiles", "ragged"])
def test_tiles_in_which_numpy_passes_over_bits_and_no_others_come_from_the_host(where, host_draws):
    seen, passed = 0, 0
    for seed, (rows, cols, columns) in product(range(8), TILED[where]):
        draw = Draw(columns, np.dtype("complex64"), seed, "integers", 0, 3 << 15)  # one draw in 2^16 is passed over
        wanted = host.drawn(rows, cols, draw)
        seen += len(host_draws)
        host_draws.clear()
        bits_same(xp.drawn(rows, cols, draw), wanted)
        passed += len(host_draws)
        host_draws.clear()
    assert 0 < passed < seen


@pytest.mark.parametrize(("tile", "row"), [(3649, 5), (3022, 127)])
def test_a_number_passed_over_shifts_what_comes_after_it(tile, row, host_draws):
    """Of seed 0 tile 3649 passes over its fourth number alone, 3022 the last but one."""
    rows, cols = IndexSet.interval(row, row + 1), IndexSet.interval(128 * tile, 128 * tile + 128)
    draw = Draw(10**6, np.dtype("float64"), 0, "integers", 0, 3 << 17)
    bits_same(xp.drawn(rows, cols, draw), host.drawn(rows, cols, draw))
    assert host_draws == 2 * [(0, tile)]


@pytest.mark.parametrize("n", [1, 5, 6, 7, 8, 11])
@pytest.mark.parametrize("dtype", FLOATS)
def test_philox_reads_and_writes_nothing_past_its_block(dtype, n):
    from pdla.array.cupy.launch import launch  # which imports CuPy, or the stand-in, once that is found

    rows, cols = (xp.asarray(np.arange(20) * step) for step in (128, 1))
    made = xp.asarray(np.full((20, n), 7, dtype))
    for kernel, low, count in (("uniform", np.float64(0), np.float64(1)), ("normal", np.float64(0), np.float64(1)),
                               ("integers", np.int64(-4), np.uint64(8))):
        args = rows, cols, np.uint64(3), made, np.int64(3 * n), np.int64(n), low, count
        launch("philox.cu", f"{kernel}_{dtype}", (2,), (64,), *args)
        draw = Draw(128, np.dtype(dtype), 3, kernel, int(low), int(low) + int(count))
        wanted = host.drawn(IndexSet.interval(0, 3), IndexSet.interval(0, n), draw)
        bits_same(made, np.concatenate([wanted, np.full((17, n), 7, dtype)]))


def test_a_normal_number_has_the_bits_of_the_processors_wherever_it_is():
    """Far out in the tails, too, where one in 10^11 is."""
    import cupy

    ends = np.concatenate([np.geomspace(1, 2**52, 500).astype(np.int64), 2**52 - np.arange(5)]) - 1
    x = np.concatenate([ends, 2**53 - 1 - ends]) * 2.0**-53
    source = files("pdla.cuda").joinpath("philox.cu").read_text()
    source += 'extern "C" __global__ void quantiles(double* x) { x[blockIdx.x] = quantile(x[blockIdx.x]); }'
    found = xp.asarray(x)
    cupy.RawModule(code=source, options=("--std=c++17", "--fmad=false")).get_function("quantiles")((len(x),), (1,), (found,))
    bits_same(found, normal(x))


@pytest.mark.parametrize(
    ("dtype", "distribution", "low", "high"),
    [
        ("float16", "normal", 0, 1), ("int8", "integers", -3, 9), ("int64", "integers", 0, 2**40), ("float16", "uniform", -1, 1),
        ("float64", "integers", 0, 2**32 + 1), ("float32", "integers", -(2**63), 2**63), ("complex64", "uniform", -0.0, -5e-324),
        ("float64", "uniform", np.float32(0.1), 1), ("bool", "uniform", 0, 1),
    ],
)
def test_what_no_kernel_draws_comes_from_the_host(dtype, distribution, low, high, host_draws):
    rows, cols, columns = TILED["cyclic"][1]
    draw = Draw(columns, np.dtype(dtype), 3, distribution, low, high)
    wanted, drawn = host.drawn(rows, cols, draw), list(host_draws)
    bits_same(xp.drawn(rows, cols, draw), wanted)
    assert host_draws == 2 * drawn


def test_what_no_integer_of_64_bits_can_be_is_refused():
    for low, high in ((-(2**63) - 1, 5 - 2**63), (2**63 - 5, 2**63 + 1)):
        with pytest.raises(ValueError, match="out of bounds"):
            xp.drawn(*TILED["blocks"][0][:2], Draw(264, np.dtype("float64"), 0, "integers", low, high))


def test_random_is_the_same_matrix_on_devices():
    def program(comm, how):
        return pdla.random((70, 150), pdla.ProcessGrid((2, 2)), Layout(Cyclic("row", 16), partial="col"), seed=5, **how).gather()

    for how in ({}, {"distribution": "integers", "low": -4, "high": 5, "dtype": "complex64"}, {"distribution": "normal"}):
        with config.override(array="cupy"):
            found = pdla.run(4, program, how)
        for x, wanted in zip(found, pdla.run(4, program, how), strict=True):
            bits_same(x, wanted)


def test_erf():
    x = random((5, 6), "float64")
    np.testing.assert_allclose(xp.erf(there(x)).get(), host.erf(x), rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 5), (70, 33)])
@pytest.mark.parametrize("how", ["C", "F", "odd", "steps"])
def test_gelu(shape, dtype, how):
    x = 3 * random(shape, dtype)
    bound = 8 * np.finfo(dtype).eps * (1 + np.abs(x))
    for slope in (False, True):
        found, wanted = xp.gelu(there(x, how), slope), host.gelu(x, slope)
        for y, expected in zip(found, wanted, strict=True):
            assert (y is None) == (expected is None)
            if y is not None:
                assert y.dtype == expected.dtype and (np.abs(y.get() - expected) <= bound).all()


def test_gelu_where_nothing_is_aligned():
    for n in (1, 2, 3, 5, 257):
        memory, x = xp.memory(4 * n + 16), random((1, n), "float32")
        odd = xp.look(memory, 4, (1, n), np.float32)
        odd[...] = xp.asarray(x)
        np.testing.assert_allclose(xp.gelu(odd, False)[0].get(), host.gelu(x, False)[0], rtol=0, atol=1e-6)


# ---------------------------------------------------------------------------------------------- the layers' work

WIDE = [(0, 3), (1, 1), (3, 0), (1, 8), (2, 9), (9, 32), (5, 1032), (2, 2200)]  # a row is a warp's or a block's
TALL = [(0, 3), (1, 1), (3, 0), (65, 32), (300, 5), (257, 140)]  # columns, in tiles


def cases(shapes):
    """Each shape in both dtypes of the kernels, aligned or not; one in another order and in another dtype."""
    given = [*product(shapes, ("float32", "float64"), ("C", "odd")), ((9, 32), "float32", "F"), ((9, 32), "float16", "C")]
    return pytest.mark.parametrize(("shape", "dtype", "how"), given)


@cases(TALL)
def test_gelu_with_a_bias(shape, dtype, how):
    x, bias = 2 * random(shape, dtype), random((1, shape[1]), dtype, 1)
    for slope, lies in ((False, "C"), (True, "odd")):
        found, wanted = xp.gelu(there(x, how), slope, there(bias, lies)), host.gelu(x.copy(), slope, bias)
        for y, expected in zip(found, wanted, strict=True):
            assert (y is None) == (expected is None)
            if y is not None:
                close(y, expected, x)


@cases(TALL)
def test_sums_over_rows(shape, dtype, how):
    """Of integers, so that they are exact in any order."""
    x, y = (np.round(random(shape, dtype, seed)) for seed in (1, 2))
    for name in ("product_sums", "column_sums"):
        found, wanted = getattr(xp, name)(there(x, how), there(y)), getattr(host, name)(x, y)
        for part, expected in zip(found, wanted, strict=True):
            same(part, expected, name)


def test_sums_over_rows_are_accurate_and_come_in_one_order():
    """A column of a million equal numbers, which one after the other would lose five digits."""
    x = np.full((1 << 20, 1), 0.1, np.float32) if GPU else np.full((66_000, 1), 0.1, np.float32)
    found, again = (xp.product_sums(there(x), there(np.ones_like(x)))[1].get() for _ in range(2))
    np.testing.assert_array_equal(found, again)
    np.testing.assert_allclose(found[0, 0], len(x) * float(x[0, 0]), rtol=3e-6)


@cases(WIDE)
def test_moments(shape, dtype, how):
    x = random(shape, dtype)
    for part, expected in zip(xp.moments(there(x, how)), host.moments(x), strict=True):
        close(part, expected, x * x, terms=max(1, shape[1]))


@pytest.mark.parametrize("n", [7, 64, 2100])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moments_of_a_large_mean_lose_no_digits(n, dtype):
    """Squares are no difference of large numbers, on a rank and put together."""
    mean = 1e4 if dtype == "float32" else 1e9
    x = mean + np.round(64 * random((4, n), "float64")).astype(dtype) / 64  # exact
    exact = ((x - x.mean(axis=1, keepdims=True, dtype=float)).astype(float) ** 2).sum(axis=1, keepdims=True)
    for way, of in ((host, x), (xp, there(x))):
        cut = n // 3
        parts = [of[:, :cut], of[:, cut:]]
        made = [way.moments(part) for part in parts]
        sums = made[0][0] + made[1][0]
        for (own, squares), part in zip(made, parts, strict=True):
            way.recentre(squares, own, sums, part.shape[1], n)
        for squares in (way.moments(of)[1], made[0][1] + made[1][1]):
            np.testing.assert_allclose(way.host(squares), exact, rtol=2e-3 if dtype == "float32" else 1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(("m", "n"), [(0, 3), (1, 0), (300, 5)])
def test_recentre(m, n, dtype):
    squares, own, sums = (np.abs(random((m, 1), dtype, seed)) for seed in range(3))
    found = there(squares)
    xp.recentre(found, there(own), there(sums), n, n + 4)
    host.recentre(squares, own, sums, n, n + 4)
    close(found, squares, np.full(1, 10.0))


def plus(x, y):
    return None if x is None else y


@cases(WIDE)
def test_normalise_and_back(shape, dtype, how):
    """With a mean and an offset, and without, as RMSNorm's; what is kept, and nothing."""
    (m, n), count = shape, 2 * shape[1] + 1
    x, normal = random(shape, dtype), random(shape, dtype, 9)
    gain, offset = (random((1, n), dtype, seed) for seed in (1, 2))
    sums, squares = (1 + np.abs(random((m, 1), dtype, seed)) for seed in (3, 4))
    for mean, shift, keep in ((sums, offset, True), (None, None, False)):
        given = mean, squares, count, 1e-3, gain, shift, keep
        here = plus(mean, there(sums)), there(squares), count, 1e-3, there(gain), plus(shift, there(offset, "odd")), keep
        found, wanted = xp.normalise(there(x, how), *here), host.normalise(x, *given)
        for part, expected in zip(found, wanted, strict=True):
            assert (part is None) == (expected is None)
            if part is not None:
                close(part, expected, expected)
        for weight in (gain, None):
            out, expected = xp.empty((1 + keep, m, 1), dtype), np.empty((1 + keep, m, 1), dtype)
            xp.row_sums(there(x, how), there(normal), plus(weight, there(gain)), out)
            host.row_sums(x, normal, weight, expected)
            close(out, expected, 4 * x, terms=max(1, n))
        passed = xp.norm_gradient(there(x, how), there(normal), there(squares), there(gain), out, count)
        wanted = host.norm_gradient(x, normal, squares, gain, out.get(), count)
        close(passed, wanted, wanted, terms=2)


@cases(WIDE)
def test_cross_entropy(shape, dtype, how):
    """Places in this part of the vocabulary and outside, on both sides; a row that is ignored, whatever is in it."""
    (m, n), x = shape, random(shape, dtype)
    top = x.max(axis=1, keepdims=True, initial=0)
    places = np.arange(m, dtype=np.int64) % (n + 3) - 1
    ignored = np.arange(m) % 4 == 1
    x[ignored] = np.nan
    found, wanted = xp.empty((2, m), dtype), np.empty((2, m), dtype)
    powers, expected = xp.exponentials(there(x, how), there(top), places, found), host.exponentials(x, top, places, wanted)
    close(powers, expected, np.ones(1))
    close(found, wanted, 4 * np.ones(1), terms=max(1, n))
    sums = 1 + np.abs(random((m, 1), dtype, 5))[:, 0]
    xp.softmax_gradient(powers, xp.asarray(sums), places, ignored, 3)
    host.softmax_gradient(expected, sums, places, ignored, 3)
    close(powers, expected, np.ones(1))
    assert (powers.get()[ignored] == 0).all()


def test_what_is_written_to_may_have_gaps():
    x, out = random((5, 6), "float32"), xp.empty((2, 5, 2), np.float32)[:, :, :1]
    wanted = np.empty((2, 5, 1), np.float32)
    xp.row_sums(there(x), there(x), None, out)
    host.row_sums(x, x, None, wanted)
    close(out, wanted, x, terms=6)


def test_sums_that_are_read_may_have_gaps():
    x, scale, gain, sums = (random(shape, "float32", 3) for shape in ((5, 6), (5, 1), (1, 6), (2, 5, 1)))
    apart = xp.empty((2, 5, 2), np.float32)[:, :, :1]
    apart[...] = xp.asarray(sums)
    found = xp.norm_gradient(there(x), there(x), there(scale), there(gain), apart, 6)
    close(found, host.norm_gradient(x, x, scale, gain, sums, 6), x)


def test_memory_is_given_back_when_the_last_view_is_gone():
    from pdla.comm.workspace import Workspace

    workspace = Workspace()
    view = workspace.take(xp, (4, 5), np.float64)[1:].T
    at = view.data.ptr
    assert workspace.take(xp, (4, 5), np.float64).data.ptr + 40 != at
    del view
    again = [workspace.take(xp, (4, 5), np.float64) for _ in range(2)]
    assert at - 40 in [x.data.ptr for x in again] and workspace.held == 2 * 192


def test_look_and_filled():
    memory = xp.memory(64)
    x = xp.look(memory, 16, (2, 2), np.float64)
    x.fill(3)
    np.testing.assert_array_equal(memory.get()[16:48].view(np.float64), [3, 3, 3, 3])
    same(xp.filled((2, 3), np.float32, lambda x: x.fill(4)), np.full((2, 3), 4, np.float32))
    assert xp.contiguous(x) and not xp.contiguous(x[:, :1])


def test_the_same_functions_as_numpys():
    homes = host.__name__, composed.__name__
    public = [name for name, x in vars(host).items() if callable(x) and x.__module__ in homes and name[0] != "_"]
    hosts_alone = {"mixed_key", "apart", "at", "significant"}
    assert {name for name in public if not hasattr(xp, name)} == hosts_alone
    assert all(getattr(xp, name).__module__ != composed.__name__ for name in public if hasattr(xp, name))


def test_namespaces(monkeypatch):
    assert namespace(xp.empty((1, 1), float)) is xp
    assert chosen() is host
    with config.override(array="cupy"):
        assert chosen() is xp


@pytest.mark.skipif(GPU, reason="what is played here is a machine with two GPUs")
def test_the_thread_that_lets_mpi_work_uses_its_ranks_device(monkeypatch):
    import cupy

    from pdla.comm.mpi import messages

    monkeypatch.setattr(cupy, "DEVICES", 2)
    seen, looked = [], threading.Event()

    def look():
        seen.append(cupy.cuda.runtime.getDevice())
        looked.set()

    xp.use(1)
    progress = messages.Progress(SimpleNamespace(crowding=1), xp)
    progress.begin(SimpleNamespace(advance=look))
    assert looked.wait(60)
    progress.end()
    xp.use(0)
    assert set(seen) == {1}


@pytest.mark.skipif(GPU, reason="there is a GPU")
def test_without_a_gpu(monkeypatch, capsys):
    import cupy

    monkeypatch.setattr(cupy, "DEVICES", 0)
    with config.override(array="cupy"), pytest.raises(DeviceError, match="no GPU here"):
        chosen()
    assert main(["gemm", "--threads", "2", "--array", "cupy"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_benchmark_in_threads(capsys):
    for algorithm in ("auto", "summa", "cannon"):
        words = ["-m", "40", "-n", "30", "-k", "50", "--repeats", "1", "--algorithm", algorithm]
        assert main(["gemm", *words, "--threads", "4", "--array", "cupy"]) == 0
        assert "exact, bound (NumPy)" in capsys.readouterr().out


@pytest.mark.parametrize("flat", [True, False])
def test_a_code_s_own_blocks_by_their_descriptor(flat):
    import cupy

    from pdla.scalapack import from_descriptor, to_descriptor

    whole = np.arange(64.0).reshape(8, 8)

    def program(comm):
        grid = pdla.ProcessGrid((2, 2))
        rows, cols = ([i for i in range(8) if i // 2 % 2 == place] for place in divmod(comm.rank, 2))
        mine = [cupy.asarray(np.asfortranarray(x[np.ix_(rows, cols)])) for x in (whole, 0 * whole)]
        desc = (1, 0, 8, 8, 2, 2, 0, 0, 4)
        A, C = (from_descriptor(desc, x.T.reshape(-1) if flat else x, grid) for x in mine)
        pdla.gemm(1, A[:, 2:], A[2:, :], 0, C)
        assert tuple(to_descriptor(C)) == desc and C.xp is xp
        return C.gather().get()

    with config.override(array="cupy"):
        for came in pdla.run(4, program):
            np.testing.assert_array_equal(came, whole[:, 2:] @ whole[2:])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_of_16_bit_floats(dtype):
    kind = getattr(pytest.importorskip("ml_dtypes"), dtype, np.float16)
    x = random((10, 8), "float32").astype(kind)

    def program(comm):
        scheme = nn.Serial(pdla.ProcessGrid((1,), comm=comm))
        layer = nn.SelfAttention(scheme, 8, 2, sequence=5, dtype=kind)
        y = layer.forward(scheme.shard(x, sequence=5))
        found = [y, layer.backward(y), *layer.gradients().values()]
        assert all(value.dtype == kind for value in found)
        return [value.xp.host(value.gather()).astype(np.float32) for value in found]

    with config.override(array="cupy"):
        made = pdla.run(1, program)[0]
    for found, wanted in zip(made, pdla.run(1, program)[0], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=0.05 * np.abs(wanted).max())


def test_parts_of_one_array_overlap_where_they_have_elements_in_common():
    x = xp.empty((6, 8), "float64")
    for one, two in [(x[:, :5], x[:, 4:]), (x[::-2], x[1]), (x[2:4], x[:, 3:4]), (x, x[5:, 7:].T)]:
        assert xp.overlap(one, two) and xp.overlap(two, one)
    for one, two in [(x[:, :4], x[:, 4:]), (x[::-2], x[::2]), (x[2:4], x[4:]), (x[:0], x), (x, xp.empty((6, 8), "float64"))]:
        assert not xp.overlap(one, two) and not xp.overlap(two, one)


def test_parts_of_one_matrix_multiply_into_another():
    def program(comm):
        A = pdla.random((8, 8), pdla.ProcessGrid((2, 2)), Layout("row", "col"), distribution="integers", high=9)
        whole = A.gather().get()
        pdla.gemm(-1, A[4:, :4], A[:4, 4:], 1, A[4:, 4:])
        return whole, A.gather().get()

    with config.override(array="cupy"):
        for whole, found in pdla.run(4, program):
            whole[4:, 4:] -= whole[4:, :4] @ whole[:4, 4:]
            np.testing.assert_array_equal(found, whole)


def test_arrays_that_differ_between_ranks_are_told_apart():
    def program(comm):
        grid, x = pdla.ProcessGrid(2), np.full((4, 4), float(comm.rank))
        for call in (lambda: pdla.from_global(x, grid, Layout("row")), lambda: pdla.from_global(there(x), grid, Layout("row"))):
            with pytest.raises(AgreementError, match="digest"):
                call()
        A = pdla.from_global(x * 0, grid, Layout("row"))
        with pytest.raises(AgreementError, match="digest"):
            pdla.matvec(A, x[0])

    with config.override(array="cupy"):
        pdla.run(2, program)


@pytest.mark.parametrize(("array", "says"), [("cupy", "array of numpy's"), ("numpy", "array of cupy's")])
def test_a_block_that_lies_elsewhere_than_matrices_is_refused(array, says):
    """No kernel reads the host's memory; and no message of a device's arrays is staged where matrices are the host's."""

    def program(comm):
        block = np.ones((2, 4))
        pdla.from_local(there(block) if array == "numpy" else block, (4, 4), pdla.ProcessGrid(2), Layout("row"))

    with config.override(array=array), pytest.raises(DeviceError, match=says):
        pdla.run(2, program)


MAKERS = {
    "zeros": lambda dtype, *on: pdla.zeros((4, 4), *on, dtype=dtype),
    "eye": lambda dtype, *on: pdla.eye(4, *on, dtype=dtype),
    "random": lambda dtype, *on: pdla.random((4, 4), *on, dtype=dtype, distribution="integers", high=3),
    "from_function": lambda dtype, *on: pdla.from_function(lambda i, j: i + j, (4, 4), *on, dtype=dtype),
    "astype": lambda dtype, *on: pdla.zeros((4, 4), *on).astype(dtype),
    "from_global": lambda dtype, *on: pdla.from_global(np.zeros((4, 4), dtype), *on),
    "x": lambda dtype, grid, _: nn.Linear(nn.Megatron1D(grid), 4, 4, name="x", dtype=dtype),
    "x positions": lambda dtype, grid, _: nn.Positions(nn.Megatron1D(grid), 4, sequence=2, name="x", dtype=dtype),
}


@pytest.mark.parametrize(("dtype", "makers"), [
    ("longdouble", [*MAKERS][:6]), (np.clongdouble, [*MAKERS][:6]), (ml_dtypes.float8_e4m3fn, [*MAKERS][:6]),
    (">i2", [*MAKERS][:5]), (">f8", [*MAKERS][:5] + [*MAKERS][6:]),
])
def test_dtypes_of_which_there_are_no_device_arrays(dtype, makers):
    for call in makers:
        with config.override(array="cupy"), pytest.raises(ShapeError, match=f"^{call}: .* has no arrays: give float64"):
            pdla.run(2, lambda comm, call=call: MAKERS[call](dtype, pdla.ProcessGrid(2), Layout("row")))


def test_files_of_which_there_are_no_device_arrays(tmp_path):
    """Those in the other byte order become matrices in this machine's, as NumPy's arrays do."""
    x = np.arange(16.0).reshape(4, 4)
    for dtype in (">f8", "longdouble"):
        np.save(tmp_path / f"{dtype}.npy", x.astype(dtype))

    def program(comm, dtype):
        return pdla.load(tmp_path / f"{dtype}.npy", pdla.ProcessGrid(2), Layout("row")).gather()

    with config.override(array="cupy"):
        same(pdla.run(2, program, ">f8")[0], x)
        with pytest.raises(ShapeError, match=r"^load .*longdouble\.npy: .* has no arrays: give float64"):
            pdla.run(2, program, "longdouble")


def test_dry_runs_count_the_flops_of_triangles_as_devices_compute_them():
    def program(comm):
        grid = pdla.ProcessGrid((1, 2))
        with pdla.record() as ledger:
            pdla.syrk(pdla.zeros((37, 31), grid, Layout("row", "col")))
        return ledger.flops

    for array in ("cupy", "numpy"):
        with config.override(array=array):
            assert pdla.run(2, program) == [pdla.dry_run(2, program, rank=rank)[0] for rank in range(2)]


def test_idle_ranks_have_arrays_of_the_same_kind_as_others():
    whole = np.arange(24.0).reshape(4, 6)

    def program(comm):
        one, both = pdla.ProcessGrid(1), pdla.ProcessGrid(2)
        A = pdla.from_local(None if comm.rank else there(whole), (4, 6), one, Layout("row"))
        return A.redistribute(Layout("row"), both).local

    with config.override(array="cupy"):
        for came, wanted in zip(pdla.run(2, program), (whole[:2], whole[2:]), strict=True):
            same(came, wanted)


@pytest.mark.parametrize("words", [["--dry-run", "-P", "4"], ["calibrate"]])
def test_what_has_no_device_arrays(words, capsys):
    assert main([*words, "--array", "cupy"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(GPU, reason="an event may be seen late even where nothing is before it")
def test_clocks_of_the_benchmark_are_read_when_the_device_is_done(monkeypatch):
    idle = []

    def program(comm, timed):
        x, y = (xp.empty((4, 4), "float64") for _ in range(2))
        xp.copies([(x, y)])
        timed(comm, lambda: xp.copies([(y, x)]))

    def clock():
        idle.append(xp.mark().done)
        return 0.0

    monkeypatch.setattr(split, "now", clock)
    monkeypatch.setattr(peak, "time", SimpleNamespace(perf_counter=clock))
    for timed in (split.measured, peak.elapsed):
        with config.override(array="cupy"):
            pdla.run(1, program, timed)
    assert idle == [True] * 4


def test_the_peak_is_that_of_blocks_that_take_a_while(monkeypatch):
    monkeypatch.setattr(peak, "_product", lambda comm, side, dtype: 2e-12 * side**3)
    monkeypatch.setattr(peak, "LARGEST", 200)
    assert pdla.run(1, peak.peak, "float64")[0] == pytest.approx(1e12)


def test_without_cupy(monkeypatch):
    import sys

    import pdla.array

    monkeypatch.setitem(sys.modules, "pdla.array.cupy", None)
    monkeypatch.delattr(pdla.array, "cupy")
    with config.override(array="cupy"), pytest.raises(DeviceError, match="no CuPy here"):
        chosen()


# ---------------------------------------------------------------------------------------------- LAPACK


def positive(n, dtype):
    a = numbers((n, n), dtype) / 64
    return (a @ a.conj().T + n * np.eye(n)).astype(dtype)


@pytest.mark.parametrize("how", ["C", "F", "gaps", "steps"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_lapack_is_numpys(dtype, how):
    for n in (0, 1, 40):
        a = positive(n, dtype)
        x, y = there(a, how), a.copy()
        assert xp.potrf(x) == host.potrf(y) == (0, 0.0)
        close(x, y, y, n)
        xp.trtri(x), host.trtri(y)
        close(x, y, y, n)
        a = numbers((n + 3, n), dtype) / 64
        x, y = there(a, how), a.copy()
        (pivots, singular), (wanted, _) = xp.getrf(x), host.getrf(y)
        assert np.array_equal(pivots, wanted) and singular == 0
        close(x, y, y, n)
    a = np.eye(9, dtype=dtype)
    a[4, 4] = -0.5
    assert xp.potrf(there(a, how)) == (5, -0.5)
    assert xp.getrf(there(np.diag(np.arange(3, -2, -1.0)).astype(dtype), how))[1] == 4


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_trsm_is_numpys(dtype, lower):
    t, b = numbers((33, 33), dtype) / 2048 + np.eye(33, dtype=dtype), numbers((33, 5), dtype)
    for one, other, (unit, conjugate) in product(LIE[:4], LIE[:4], product((False, True), repeat=2)):
        x, y = there(b, other), b.copy()
        xp.trsm(there(t, one), x, lower, unit, conjugate)
        host.trsm(t, y, lower, unit, conjugate)
        close(x, y, y, 33)


def test_what_is_known_and_finite():
    x = np.array([[1.0, np.inf]])
    assert xp.known(xp.asarray(x), x[:0]).tolist() == x.tolist()
    assert not xp.finite(xp.asarray(x)) and xp.finite(xp.asarray(x[:, :1]))
