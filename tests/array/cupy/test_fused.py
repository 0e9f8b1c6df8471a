"""The layers' kernels against NumPy's functions."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from helpers.device_arrays import close, end_memory, epsilon, random, same, there, xp
from helpers.devices import GPU

from pdla.array import numpy as host
from pdla.array.composed import sum_dtype


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


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 5), (70, 70), (1, 4097), (0, 4)])
def test_uniform_is_numpys_bit_by_bit(m, n):
    rows, cols = np.arange(m)[::-1] * 10**12 + 7, np.arange(n) * 3
    for key in (0, -1, 2**64 - 1, 12345):
        same(xp.uniform(rows, cols, key), host.uniform(rows, cols, key))


@pytest.mark.skipif(GPU, reason="a device has no end of memory at an array's end")
def test_uniform_reads_nothing_past_its_lists(monkeypatch):
    monkeypatch.setattr("cupy.asarray", lambda x, real=xp.cupy.asarray: end_memory(real(x)))
    same(xp.uniform(np.arange(3), np.arange(5), 1), host.uniform(np.arange(3), np.arange(5), 1))


def test_erf():
    x = random((5, 6), "float64")
    np.testing.assert_allclose(xp.erf(there(x)).get(), host.erf(x), rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (3, 5), (70, 33)])
@pytest.mark.parametrize("how", ["C", "F", "odd", "steps"])
def test_gelu(shape, dtype, how):
    x = 3 * random(shape, dtype)
    bound = 8 * epsilon(x.dtype) * (1 + np.abs(x))
    for slope in (False, True):
        found, wanted = xp.gelu(there(x, how), slope), host.gelu(x, slope)
        for y, expected in zip(found, wanted, strict=True):
            assert (y is None) == (expected is None)
            if y is not None:
                assert y.dtype == expected.dtype and (np.abs(y.get() - expected) <= bound).all(), (y.get(), expected)


def test_gelu_where_nothing_is_aligned():
    for n in (1, 2, 3, 5, 257):
        memory, x = xp.memory(4 * n + 16), random((1, n), "float32")
        odd = xp.view_at(memory, 4, (1, n), np.float32)
        odd[...] = xp.asarray(x)
        np.testing.assert_allclose(xp.gelu(odd, False)[0].get(), host.gelu(x, False)[0], rtol=0, atol=1e-6)


WIDE = [(0, 3), (1, 1), (3, 0), (1, 8), (2, 9), (9, 32), (5, 1032), (2, 2200)]  # a row is a warp's or a block's
TALL = [(0, 3), (1, 1), (3, 0), (65, 32), (300, 5), (257, 140)]  # columns, in tiles


FLOATS = ("float16", "bfloat16", "float32", "float64")


def cases(shapes):
    """Each shape in each dtype of the kernels, aligned or not; one in another order."""
    given = [*product(shapes, FLOATS, ("C", "odd")), ((9, 32), "float32", "F"), ((9, 32), "bfloat16", "F")]
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
    """Of integers, so that they are exact in any order: in float32, as 16 bits have no room for them."""
    x, y = np.round(200 * random(shape, dtype, 1)), np.clip(np.round(random(shape, dtype, 2)), -2, 2)
    same(xp.sum_columns(there(x, how)), host.sum_columns(x))
    for name in ("product_sums", "column_sums"):
        found, wanted = getattr(xp, name)(there(x, how), there(y)), getattr(host, name)(x, y)
        for part, expected in zip(found, wanted, strict=True):
            same(part, expected, name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_floats_of_16_bits_are_read_and_rounded_as_numpys(dtype):
    """All of them, NaN and infinities too, times themselves and times others: float32 has the exact product."""
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(256, 256)
    with np.errstate(all="ignore"):
        for y in (np.ones_like(x), x, random(x.shape, dtype), x[::-1, ::-1]):
            wanted = (x.astype(np.float32) * y.astype(np.float32)).astype(dtype)
            found = xp.product_sums(there(x), there(y))[0].get()
            np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_devices_nan_stays_one_in_16_bits(dtype):
    """All bits after its sign are set: rounded like a number it would be -0."""
    x, nan, sums = np.ones((1, 8), dtype), np.full((1, 1), 2**31 - 1, np.int32).view(np.float32), np.zeros((1, 1, 1), np.float32)
    found = xp.norm_gradient(there(x), there(x), there(nan), there(x), xp.asarray(sums), 8)
    assert np.isnan(found.get()).all()


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
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
    wide = sum_dtype(x.dtype)
    sums, squares = (1 + np.abs(random((m, 1), wide, seed)) for seed in (3, 4))
    for mean, shift, keep in ((sums, offset, True), (None, None, False)):
        given = mean, squares, count, 1e-3, gain, shift, keep
        here = plus(mean, there(sums)), there(squares), count, 1e-3, there(gain), plus(shift, there(offset, "odd")), keep
        found, wanted = xp.normalise(there(x, how), *here), host.normalise(x, *given)
        for part, expected in zip(found, wanted, strict=True):
            assert (part is None) == (expected is None)
            if part is not None:
                close(part, expected, expected)
        for weight in (gain, None):
            out, expected = xp.empty((1 + keep, m, 1), wide), np.empty((1 + keep, m, 1), wide)
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
    wide = sum_dtype(x.dtype)
    found, wanted = xp.empty((2, m), wide), np.empty((2, m), wide)
    powers, expected = xp.exponentials(there(x, how), there(top), places, found), host.exponentials(x, top, places, wanted)
    close(powers, expected, np.ones(1))
    close(found[1], wanted[1], 4 * np.ones(1))
    exact = np.exp(x.astype(wide) - top.astype(wide)).sum(axis=1)
    close(found[0], exact, 4 * np.ones(1), terms=max(1, n))
    sums = 1 + np.abs(random((m, 1), wide, 5))[:, 0]
    xp.softmax_gradient(powers, xp.asarray(sums), places, ignored, 3)
    host.softmax_gradient(expected, sums, places, ignored, 3)
    close(powers, expected, np.ones(1))
    assert (powers.get()[ignored] == 0).all()


SCORES = [(1, 1, 1, 1, 1), (2, 3, 5, 5, 1), (1, 2, 4, 24, 21), (2, 1, 3, 40, 40), (1, 1, 9, 1032, 1024), (1, 1, 2, 2200, 2199)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", SCORES)  # sequences, heads, queries, keys, and the keys that the first query sees
def test_softmax(shape, dtype):
    """Large scores neither overflow nor lose digits; hidden keys have no weight, whatever their scores are."""
    *shape, seen = shape
    wide = sum_dtype(np.dtype(dtype))
    scores, slopes = (5 * random(shape, wide, seed) for seed in (1, 2))
    scores += 1000
    hidden = np.arange(shape[3]) >= seen + np.arange(shape[2])[:, None]
    scores[:, :, hidden] = 1e30
    up, down = xp.asarray(scores), xp.asarray(slopes)
    alone = xp.softmax(xp.asarray(scores), seen, dtype)
    weights, gradient = xp.softmax_backward(up, down, seen, dtype)
    scores[:, :, hidden] = 0  # NumPy adds -inf
    expected, wanted = host.softmax_backward(scores, slopes, seen, dtype)
    for part, right in ((alone, expected), (weights, expected), (gradient, wanted)):
        assert part.shape == right.shape and not part.get()[:, :, hidden].any()
        close(part, right, right)


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


def use_kernels(dtype, n):
    """What the kernels of layers make of rows of n numbers."""
    x, y, bias, gain, offset = (there(random((m, n), dtype, seed)) for seed, m in enumerate((9, 9, 1, 1, 1)))
    sums, squares = made = [*xp.moments(x)]
    places, ignored, out, cross = np.arange(9), np.arange(9) == 4, xp.empty((2, 9, 1), sums.dtype), xp.empty((2, 9), sums.dtype)
    made += [out, cross, *xp.gelu(x, True), *xp.product_sums(x, y), *xp.column_sums(x, y)]
    made += xp.normalise(x, sums, squares, n, 1, gain, offset, True)
    xp.row_sums(x, y, gain, out)
    made += [xp.norm_gradient(x, y, squares, gain, out, n), xp.exponentials(x, xp.asarray(y.get()[:, :1]), places, cross)]
    xp.softmax_gradient(made[-1], cross[0] + 1, places, ignored, 3)
    scores, slopes = (xp.asarray(random((1, 1, 9, n), sums.dtype, seed)) for seed in (6, 7))
    return [*made, *xp.gelu(x, True, bias), *xp.softmax_backward(scores, slopes, 20, dtype)]


def begin_astray(x):
    return there(x.reshape(1, -1), "odd").reshape(x.shape)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("place", "n"), [(begin_astray, 32), (end_memory, 31), (end_memory, 32)])
def test_each_array_of_a_launch_may_lie_anywhere(place, n, dtype, monkeypatch):
    """One after another, with all others at multiples of 16 bytes, and memory around them."""
    if GPU and place is end_memory:
        pytest.skip("a device has no end of memory at an array's end")
    from pdla.array.cupy import fused  # which imports CuPy, or the stand-in, once that is found

    launch, wanted = fused.launch, [x.get() for x in use_kernels(dtype, n)]

    def launch_with_one_elsewhere(number, source, name, grid, block, *args):
        if number >= len(args) or not isinstance(args[number], xp.cupy.ndarray):
            return launch(source, name, grid, block, *args)
        given, elsewhere = args[number], place(args[number])
        launch(source, name, grid, block, *(elsewhere if x is given else x for x in args))
        given[...] = elsewhere

    for number in range(8):
        monkeypatch.setattr(fused, "launch", partial(launch_with_one_elsewhere, number))
        for x, expected in zip(use_kernels(dtype, n), wanted, strict=True):
            close(x, expected, expected)
