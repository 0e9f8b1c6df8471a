"""The local GEMM against NumPy's, wherever its operands lie and whatever was in C before."""

import ctypes
import os
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from helpers.arrays import DTYPES, SIZES, laid, likeness
from helpers.jobs import LONGEST, mpirun, run_job
from helpers.matmuls import numbers

import pdla
from pdla import config
from pdla.array import blas, meta, numpy
from pdla.array.meta import Meta
from pdla.errors import DeviceError

HOWS = ["C", "F", "gaps", "steps", "backwards", "between bytes", "same rows"]


def expected(a, b, c, alpha, beta):
    return (alpha * (a.astype(object) @ b.astype(object)) + beta * c.astype(object)).astype(c.dtype)


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
    assert numpy.can_square(a, c) and meta.can_square(Meta(a.shape, dtype), Meta(c.shape, dtype))
    numpy.square(a, c, 3)
    assert np.array_equal(np.tril(c), np.tril(3 * (a @ a.T)), equal_nan=False)
    assert np.isnan(np.triu(c, 1)[np.triu_indices(7, 1)]).all() and np.isnan(around).sum() == 99 - 28


def test_what_BLAS_does_not_square():
    a, c = np.ones((4, 3)), np.ones((4, 4))
    pairs = [(a.astype(int), c.astype(int)), (a.astype(np.float32), c), (a, c.astype(">f8")), (a[:, :0], c)]
    pairs += [(np.ones((4, 6))[:, ::2], c), (a, np.ones((4, 8))[:, ::2]), (a, np.asfortranarray(c))]
    for left, into in pairs:
        assert not numpy.can_square(left, into)
        assert not meta.can_square(*(Meta(x.shape, x.dtype, likeness(x)) for x in (left, into)))


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


needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def compiled(folder, *options):
    path = folder / "libsmall.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", *options, "-o", path, Path(__file__).with_name("named_blas.c")], check=True)
    return str(path)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("blas"))


def products(library):
    return ctypes.c_long.in_dll(blas.load_library(library), "products").value


@needs_cc
@pytest.mark.parametrize("transposed", ["", "A", "B", "AB"])
@pytest.mark.parametrize("beta", [0, 2])
def test_it_multiplies(library, transposed, beta):
    rng = np.random.default_rng(5)
    a, b, c = (rng.integers(-9, 9, shape).astype(float) for shape in ((7, 5), (5, 6), (7, 6)))

    def program(comm):
        grid, blocks = pdla.ProcessGrid((2, 2), comm=comm), pdla.Layout("row", "col")
        A = pdla.from_global(a.T, grid, blocks).T if "A" in transposed else pdla.from_global(a, grid, blocks)
        B = pdla.from_global(b.T, grid, blocks).T if "B" in transposed else pdla.from_global(b, grid, blocks)
        C = pdla.from_global(c, grid, blocks)
        pdla.matmul(A, B, out=C, alpha=3, beta=beta)
        return C.gather()

    with config.override(blas=library):
        before = products(library)
        for made in pdla.run(4, program):
            assert np.array_equal(made, 3 * a @ b + beta * c)
        assert products(library) >= before + 4


@needs_cc
def test_it_multiplies_triangles_and_parts_with_gaps(library):
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-9, 9, (40, 30)).astype(float) for _ in range(2))

    def program(comm):
        grid = pdla.ProcessGrid(2, comm=comm)
        A, B = (pdla.from_global(x, grid, pdla.Layout("row")) for x in (a, b))
        return (A[:, 3:20] @ B[:, 3:20].T).gather(), pdla.syrk(A, mirror=True).gather()

    with config.override(blas=library):
        before = products(library)
        for product, square in pdla.run(2, program):
            assert np.array_equal(product, a[:, 3:20] @ b[:, 3:20].T) and np.array_equal(square, a @ a.T)
        assert products(library) >= before + 4


@needs_cc
def test_a_name_is_looked_for_where_packages_put_libraries(tmp_path, monkeypatch):
    with pytest.raises(DeviceError, match=r"PDLA_BLAS='libsmall.so': .* give a BLAS library, by its path, or"):
        blas.load_library("libsmall.so")
    (tmp_path / "lib").mkdir()
    there = compiled(tmp_path / "lib")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert products("libsmall.so") == products(there) == 0


@needs_cc
def test_integers_are_numpys(library):
    def squared(comm):
        ones = pdla.ones((3, 3), pdla.ProcessGrid(1, comm=comm), pdla.Layout("row"), dtype=int)
        return (ones @ ones).local

    with config.override(blas=library):
        assert np.array_equal(pdla.run(1, squared)[0], np.full((3, 3), 3))


def test_scipys_routines_are_loaded_alone_by_ranks_that_begin_together_and_scipy_can_be_imported_later():
    """Two tiles are added up: a product that only adds is NumPy's. The module is SciPy's own, whoever loads it first."""
    program = """
import sys, pdla

def program(comm):
    A = pdla.ones((64, 64), pdla.ProcessGrid((4, 4), comm=comm), pdla.Layout("row", "col"))
    return (pdla.matmul(A, A, schedule="gather") - 64 * A).norm()

assert pdla.run(16, program)[0] == 0
assert "scipy.linalg" not in sys.modules
import scipy.linalg, scipy.linalg.cython_blas, scipy.linalg.lapack
from pdla.array import blas
assert scipy.linalg.cython_blas is blas._module("cython_blas")
print(scipy.linalg.solve([[2.0]], [4.0])[0])
"""
    job = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert job.stdout.split() == ["2.0"], job.stderr


@needs_cc
def test_one_that_lacks_a_routine_is_refused_before_ranks_without_a_block_leave_a_product_that_others_fail_in(tmp_path):
    doubles = compiled(tmp_path, "-DDOUBLES_ALONE")
    job = run_job(
        """
import pdla
grid = pdla.ProcessGrid(2)
ones = pdla.ones((2, 2), grid, pdla.Layout(pdla.Cuts("row", (0, 2, 2))), dtype=complex)
ones @ ones
comm.barrier()
""",
        ranks=2, PDLA_BLAS=doubles, PDLA_TIMEOUT="120",
    )
    told = r"libsmall.so' has no sgemm_: give a BLAS library with Fortran's names"
    assert job.returncode != 0 and job.stdout.count(told) == 2, job.stdout


@needs_cc
def test_a_library_that_takes_64_bit_sizes_is_refused(tmp_path):
    wide = compiled(tmp_path, "-DINT=int64_t")
    with pytest.raises(DeviceError, match="it takes 64-bit sizes: give its build for 32-bit integers"):
        blas.load_library(wide)


def test_what_is_no_blas_is_refused():
    with pytest.raises(DeviceError, match=r"PDLA_BLAS='libnone.so': libnone.so: .*: give a BLAS library"):
        blas.load_library("libnone.so")
    with pytest.raises(DeviceError, match=r"'libm.so.6' has no dscal_"):
        blas.load_library("libm.so.6")


def test_one_that_is_missing_is_an_error_on_every_rank_when_the_job_begins(tmp_path):
    told = f"""
import os, pathlib, sys, time
from pdla.comm import world
from pdla.errors import DeviceError
try:
    world()
except DeviceError as error:  # each to a file: on one pipe the ranks' lines may mix
    folder, own = pathlib.Path({str(tmp_path)!r}), str(os.getpid())
    (folder / own).write_text(str(error))
    (folder / own).rename(folder / f"{{own}}.told")
    end = time.monotonic() + 30  # mpirun ends the others when the first has ended
    while len([*folder.glob("*.told")]) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    raise
"""
    command = [*mpirun(), "-n", "3", sys.executable, "-c", told]
    job = subprocess.run(command, env=os.environ | {"PDLA_BLAS": "libnone.so"}, timeout=LONGEST, capture_output=True)
    said = [file.read_text() for file in tmp_path.glob("*.told")]
    assert job.returncode != 0 and len(said) == 3
    assert all(text.startswith("PDLA_BLAS='libnone.so'") for text in said)


@pytest.mark.parametrize("dtype", "fdFD")
def test_one_column_or_row_of_a_product(dtype):
    """By gemv, of arrays that lie in any order, with gaps; NaN in c is not read where beta is 0."""
    rng = np.random.default_rng(0)

    def laid(m, n, how):
        x = rng.integers(-4, 5, (2 * m + 1, 2 * n + 1)) + (1j * rng.integers(-4, 5, (2 * m + 1, 2 * n + 1)) if dtype in "FD" else 0)
        x = x.astype(dtype)
        ways = x, np.asfortranarray(x), x[::2], x.T.copy().T
        return ways[how][:m, :n]

    shapes = (5, 7, 1), (1, 7, 5), (1, 1, 1), (6, 1, 1)
    for (m, k, n), how, (alpha, beta) in product(shapes, range(4), ((-1, 0), (-1, 1), (2, 3))):
        a, b, c = laid(m, k, how), laid(k, n, how), laid(m, n, how)
        if beta == 0:
            c[...] = np.nan
        wanted = alpha * (a @ b) + (beta * c if beta else 0)
        numpy.gemm(a, b, c, alpha, beta)
        assert np.array_equal(c, wanted)
