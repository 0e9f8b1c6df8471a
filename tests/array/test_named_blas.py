"""PDLA_BLAS: another library multiplies. Here a small one, compiled for it, which counts its products."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.jobs import run_job

import pdla
from pdla import config
from pdla.array import blas
from pdla.errors import DeviceError

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


def compiled(folder, *options):
    path = folder / "libsmall.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", *options, "-o", path, Path(__file__).with_name("named_blas.c")], check=True)
    return str(path)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("blas"))


def products(library):
    return ctypes.c_long.in_dll(blas.named(library), "products").value


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
        blas.named("libsmall.so")
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
        blas.named(wide)


def test_what_is_no_blas_is_refused():
    with pytest.raises(DeviceError, match=r"PDLA_BLAS='libnone.so': libnone.so: .*: give a BLAS library"):
        blas.named("libnone.so")
    with pytest.raises(DeviceError, match=r"'libm.so.6' has no dscal_"):
        blas.named("libm.so.6")


def test_one_that_is_missing_is_an_error_on_every_rank_when_the_job_begins():
    job = run_job("", ranks=3, PDLA_BLAS="libnone.so")
    assert job.returncode != 0 and job.stdout.count("DeviceError: PDLA_BLAS='libnone.so'") == 3
