"""Local blocks: the GEMM against NumPy's, wherever its operands lie and whatever was in C before."""

import subprocess
import sys
from itertools import permutations, product

import numpy as np
import pytest
from helpers.arrays import DTYPES, SIZES
from helpers.matmuls import numbers

from pdla.array import blas, meta, namespace, numpy, strips
from pdla.array.dtypes import promoted
from pdla.array.meta import Meta

HOWS = ["C", "F", "gaps", "steps", "backwards", "between bytes", "same rows"]


def laid(x, how):
    """x's elements, lying in memory so or so."""
    m, n = x.shape
    if how == "C":
        return x.copy()
    if how == "F":
        return np.asfortranarray(x)
    if how == "same rows":
        return np.broadcast_to(x[:1], x.shape)
    if how == "between bytes":  # rows as far apart as they are in a table with a field of 4 bytes besides
        gap = n * x.itemsize + 4
        view = np.ndarray((m, n), x.dtype, np.zeros(m * gap, np.uint8), 0, (gap, x.itemsize))
        view[...] = x
        return view
    step, turn = 3 if how == "steps" else 1, -1 if how == "backwards" else 1
    view = np.zeros((step * m + 1, step * n + 3), x.dtype)[1::step, 3::step][::turn, ::turn]
    view[...] = x
    return view


def expected(a, b, c, alpha, beta):
    return (alpha * (a.astype(object) @ b.astype(object)) + beta * c.astype(object)).astype(c.dtype)


# ---------------------------------------------------------------------------------------------- gemm


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (1, 1), (-2, 3), (0, 2), (2, 0)])
def test_gemm(dtype, m, n, k, alpha, beta):
    a, b, c = numbers((m, k), dtype, 1), numbers((k, n), dtype, 2), numbers((m, n), dtype, 3)
    wanted = expected(a, b, c, alpha, beta)
    numpy.gemm(a, b, c, alpha, beta)
    np.testing.assert_array_equal(c, wanted)
    assert c.dtype == dtype


@pytest.mark.parametrize("dtype", ["float64", "complex64", "int64"])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_gemm_wherever_its_operands_lie(dtype, m, n, k):
    for how_a, how_b, how_c in product(HOWS, HOWS, HOWS[:-1]):
        a, b = laid(numbers((m, k), dtype, 1), how_a), laid(numbers((k, n), dtype, 2), how_b)
        c = laid(numbers((m, n), dtype, 3), how_c)
        before, wanted = (a.copy(), b.copy()), expected(a, b, c, 2, -1)
        numpy.gemm(a, b, c, 2, -1)
        np.testing.assert_array_equal(c, wanted, err_msg=f"{how_a} {how_b} {how_c}")
        np.testing.assert_array_equal(a, before[0])
        np.testing.assert_array_equal(b, before[1])


@pytest.mark.parametrize(
    ("dtype", "hows", "beta", "besides"),
    [
        ("float64", "CFC", 3, []),
        ("complex64", "CCF", 0, []),
        ("float64", ("steps", "C", "C"), 0, [(5, 4)]),  # BLAS takes no factor without a unit stride
        ("float64", ("C", "steps", "F"), 1, [(4, 6)]),
        ("float64", ("C", "C", "steps"), 0, [(5, 6)]),
        ("float16", "CCC", 1, [(5, 4), (4, 6)]),  # added up in float32
        ("int64", ("steps", "C", "steps"), 0, []),
        ("int64", "CCC", 2, [(5, 6)]),
        ("longdouble", "CFC", 1, [(5, 6)]),
    ],
    ids=str,
)
@pytest.mark.parametrize("alpha", [1, 2])
def test_memory_besides_is_asked_for_and_a_dry_gemm_asks_for_the_same(dtype, hows, beta, besides, alpha):
    sums, asked = "float32" if dtype == "float16" else dtype, []

    def room(xp):
        return lambda shape, dtype: (asked.append((shape, dtype)), xp.empty(shape, dtype))[1]

    a, b, c = (laid(numbers(shape, dtype), how) for shape, how in zip(((5, 4), (4, 6), (5, 6)), hows, strict=True))
    c = c.astype(sums, copy=False)
    wanted = expected(a, b, c, alpha, beta)
    numpy.gemm(a, b, c, alpha, beta, room(numpy))
    np.testing.assert_array_equal(c, wanted)
    assert asked == [(shape, np.dtype(sums)) for shape in besides]
    meta.gemm(*(Meta(x.shape, x.dtype, likeness(x)) for x in (a, b, c)), alpha, beta, room(meta))
    assert asked == 2 * [(shape, np.dtype(sums)) for shape in besides]


def likeness(x):
    """Bytes that lie as x's elements do."""
    return np.lib.stride_tricks.as_strided(np.empty(1, np.bool_), x.shape, [step // x.itemsize for step in x.strides])


@pytest.mark.parametrize("how", ["gaps", "steps", "backwards"])
def test_gemm_writes_nothing_around_c(how):
    c = laid(np.zeros((5, 4)), how)
    room = c
    while room.base is not None:
        room = room.base
    room.fill(77)
    numpy.gemm(np.ones((5, 3)), np.ones((3, 4)), c)
    assert (c == 3).all() and np.count_nonzero(room != 77) == c.size


@pytest.mark.parametrize("dtype", ["float64", "complex64", "float16"])
@pytest.mark.parametrize("how", ["C", "F", "steps"])
@pytest.mark.parametrize("k", [0, 3])
def test_beta_0_never_reads_c(dtype, how, k):
    a, b = numbers((4, k), dtype, 1), numbers((k, 5), dtype, 2)
    for alpha in (0, 1, 2):
        c = laid(np.full((4, 5), np.nan, dtype), how)
        numpy.gemm(a, b, c, alpha, 0)
        np.testing.assert_array_equal(c, (alpha * (a.astype(object) @ b)).astype(dtype) if k else np.zeros((4, 5)))


@pytest.mark.parametrize("rows", [True, False])
def test_a_leading_dimension_beyond_32_bits_is_none_of_blas(rows):
    far, room = np.lib.stride_tricks.as_strided(np.zeros(1), (2, 3), (8 * blas.LIMIT, 8)), (8 * blas.LIMIT + 8, 8)
    farther = np.lib.stride_tricks.as_strided(np.zeros(1), (2, 3), room)
    assert blas.orientation(far if rows else far.T) == (b"N" if rows else b"T", blas.LIMIT)
    assert blas.orientation(farther if rows else farther.T) is None


@pytest.mark.parametrize("m", [5, 1])
def test_a_leading_dimension_is_a_number_of_elements(m):
    rows = laid(numbers((5, 3)), "between bytes")[:, :m]
    assert blas.orientation(rows) is None and blas.orientation(rows.T) is None


def test_nan_in_a_is_not_lost():
    c = np.zeros((2, 2))
    numpy.gemm(np.array([[np.nan, 1], [1, 1]]), np.ones((2, 2)), c)
    np.testing.assert_array_equal(c, [[np.nan, np.nan], [2, 2]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("lying", ["by rows", "by columns", "among others"])
def test_square_writes_the_lower_triangle_alone(dtype, lying):
    draw = np.random.default_rng(0)
    parts = draw.integers(-4, 5, (2, 13, 20))
    whole = (parts[0] + 1j * parts[1] if np.dtype(dtype).kind == "c" else parts[0]).astype(dtype)
    a = {"by rows": whole[:7, :5].copy(), "by columns": whole[:7, :5].T.copy().T, "among others": whole[3:10, 2:7]}[lying]
    around = np.full((9, 11), np.nan, dtype)
    c = around[1:8, 2:9]
    assert numpy.squares(a, c) and meta.squares(Meta(a.shape, dtype), Meta(c.shape, dtype))
    numpy.square(a, c, 3)
    assert np.array_equal(np.tril(c), np.tril(3 * (a @ a.T)), equal_nan=False)
    assert np.isnan(np.triu(c, 1)[np.triu_indices(7, 1)]).all() and np.isnan(around).sum() == 99 - 28


def test_what_BLAS_does_not_square():
    a, c = np.ones((4, 3)), np.ones((4, 4))
    pairs = [(a.astype(int), c.astype(int)), (a.astype(np.float32), c), (a, c.astype(">f8")), (a[:, :0], c)]
    pairs += [(np.ones((4, 6))[:, ::2], c), (a, np.ones((4, 8))[:, ::2]), (a, np.asfortranarray(c))]
    for left, into in pairs:
        assert not numpy.squares(left, into)
        assert not meta.squares(*(Meta(x.shape, x.dtype, likeness(x)) for x in (left, into)))


@pytest.mark.parametrize("beta", [0, 1, 3])
def test_no_inner_size(beta):
    c = numbers((3, 4))
    wanted = beta * c
    numpy.gemm(np.empty((3, 0)), np.empty((0, 4)), c, 5, beta)
    np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_no_product(shape):
    m, n = shape
    numpy.gemm(np.ones((m, 5)), np.ones((5, n)), np.empty(shape))


def test_complex_scalars():
    a, b, c = numbers((3, 4), "complex128", 1), numbers((4, 2), "complex128", 2), numbers((3, 2), "complex128", 3)
    wanted = (2 - 1j) * (a @ b) + 3j * c
    numpy.gemm(a, b, c, 2 - 1j, 3j)
    np.testing.assert_array_equal(c, wanted)


# ---------------------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize("rows", [slice(1, 4), slice(0, 6, 2), np.array([0, 2, 5])])
@pytest.mark.parametrize("cols", [slice(0, 0), slice(2, 5), np.array([1, 4])])
def test_put_is_the_reverse_of_take(rows, cols):
    x = numbers((6, 5))
    part = numpy.take(x, rows, cols)
    np.testing.assert_array_equal(part, x[rows][:, cols])
    y = np.full((6, 5), 9.0)
    numpy.put(y, rows, cols, part)
    np.testing.assert_array_equal(numpy.take(y, rows, cols), part)
    assert np.count_nonzero(y == 9) == 30 - part.size
    assert np.shares_memory(part, x) == (isinstance(rows, slice) and isinstance(cols, slice) and part.size > 0)


WAYS = {  # of choosing from 500 positions, and whether they are copied as strips
    "cyclic": (np.flatnonzero(np.arange(500) // 16 % 3 == 1), True),
    "first and last run shorter": (np.flatnonzero((np.arange(500) + 5) // 20 % 2 == 0), True),
    "two distances": (np.flatnonzero(np.isin(np.arange(500) // 10, [0, 2, 4, 6, 9, 12, 15, 18, 30, 31, 32, 33])), True),
    "single": (np.flatnonzero(np.arange(500) % 3 == 1), False),
    "random": (np.sort(np.random.default_rng(5).permutation(500)[:200]), False),
    "slice": (slice(3, 490, 2), None),
}


@pytest.mark.parametrize("how", ["C", "F", "gaps", "backwards"])
@pytest.mark.parametrize("down", WAYS)
@pytest.mark.parametrize("across", WAYS)
def test_large_parts_in_strips(down, across, how, monkeypatch):
    monkeypatch.setattr(strips, "LARGE", 1)
    (rows, by_rows), (cols, by_cols) = WAYS[down], WAYS[across]
    x = laid(np.arange(250_000, dtype="float32").reshape(500, 500), how)
    wanted = x[rows][:, cols]
    lists = [as_strips for as_strips in (by_rows, by_cols) if as_strips is not None]
    assert not lists or (strips.find(x, rows, cols) is not None) == all(lists)
    part = numpy.take(x, rows, cols)
    np.testing.assert_array_equal(part, wanted, strict=True)
    assert numpy.contiguous(part) or not lists  # as a dry run has it: else it would be copied again to travel
    y = laid(np.full((500, 500), -1, "float32"), how)
    numpy.put(y, rows, cols, laid(wanted, how))
    np.testing.assert_array_equal(y[rows][:, cols], wanted)
    assert np.count_nonzero(y == -1) == y.size - wanted.size


@pytest.mark.parametrize("beta", [0, 1, -2])
@pytest.mark.parametrize(("dtype", "strip"), [("float64", 2**16), ("float16", 1), ("float16", 9), ("float16", 2**16)])
def test_combine(beta, dtype, strip, monkeypatch):
    """Sums of 16-bit floats are made in float32, some rows at a time."""
    monkeypatch.setattr(numpy, "STRIP", strip)
    wide = "float32" if dtype == "float16" else dtype
    target, source = numbers((5, 4), dtype, seed=1), numbers((5, 4), wide, seed=2)
    wanted = beta * target + source
    if beta == 0:
        target.fill(np.nan)
    numpy.combine(target, beta, source)
    np.testing.assert_array_equal(target, wanted)


def test_copy_conjugates_on_the_way():
    x, out = numbers((3, 4), "complex64"), np.empty((4, 3), "complex64").T
    numpy.copy(out, x, conjugate=True)
    np.testing.assert_array_equal(out, x.conj())
    numpy.copy(x, x, conjugate=True)
    np.testing.assert_array_equal(out, x)
    np.testing.assert_array_equal(numpy.reinterpret(x, True), x.conj())
    assert numpy.reinterpret(x, False) is x


def test_overlap():
    x = np.zeros((6, 6))
    assert numpy.overlap(x, x.T) and numpy.overlap(x[:3], x[2:])
    assert not numpy.overlap(x[:3], x[3:])
    assert not numpy.overlap(x, x.copy())


def test_elements_are_apart_where_no_two_have_one_place():
    for rows, cols, down, across in product(range(1, 5), range(2, 5), range(-4, 5), range(-4, 5)):
        places = {i * down + j * across for i in range(rows) for j in range(cols)}
        assert numpy.apart((rows, cols), (down, across)) == (len(places) == rows * cols), (rows, cols, down, across)


def test_namespaces():
    assert namespace(np.zeros(1)).name == "numpy"
    assert namespace(Meta((1, 1))).name == "meta"


BY_NAME = """
import pdla
linear = lambda comm: pdla.nn.Linear(pdla.nn.Serial(pdla.ProcessGrid((1,), comm=comm)), 2, 2, dtype="bfloat16")
print(pdla.run(1, linear)[0].weight.value.dtype)
"""


@pytest.mark.parametrize(
    ("names", "common"), [("bfloat16 int64 float64", "float64"), ("bfloat16 int8 uint8", "bfloat16"), ("int8 uint8", "int16")]
)
def test_dtypes_of_which_numpy_knows_no_pair_have_a_common_one_in_any_order(names, common):
    """It has none for bfloat16 and int64, nor for bfloat16 and the int16 of the other two: with which it begins decides."""
    for dtypes in permutations(map(np.dtype, names.split())):
        assert promoted(*dtypes) == np.dtype(common)


def test_bfloat16_by_name_where_the_program_has_not_imported_ml_dtypes():
    job = subprocess.run([sys.executable, "-c", BY_NAME], capture_output=True, text=True, check=False)
    assert job.stdout == "bfloat16\n", job.stderr
