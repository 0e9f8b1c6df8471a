"""C and Fortran programs over libpdla_pblas.so and libpdla.so: ours, ScaLAPACK's own testers, and an application.

Built for Debian's Open MPI and run under its mpirun; skipped, with the reason, where it or ScaLAPACK is not installed. Those that
take a minute (Debian's MPICH, whose ranks poll; CP2K), and the level 3 tester in single precision, are run by `make test-clients`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest
from helpers.jobs import LONGEST

ROOT = Path(__file__).parents[2]
TESTERS = Path("/usr/lib/x86_64-linux-gnu/scalapack")
INPUTS = Path("/usr/share/scalapack")
PACKAGES = "apt-get install gfortran libopenmpi-dev libscalapack-openmpi-dev scalapack-mpi-test"
PBLAS = ["pdla_pblas", "scalapack-openmpi"]
ALL = {"PDLA_PBLAS_LEAST": "0", "PDLA_PBLAS_FLOPS": "0", "PDLA_PBLAS_REPORT": "1"}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
slow = pytest.mark.skipif(not os.environ.get("PDLA_TEST_CLIENTS"), reason="takes long: make test-clients")


def need(*programs):
    absent = [name for name in programs if not shutil.which(name)]
    if absent:
        pytest.skip(f"no {', '.join(absent)} here: {PACKAGES}")


def build(folder, **environment):
    need("cc")
    pytest.importorskip("cffi")
    command = [sys.executable, "-m", "pdla.native.build", "--to", folder]
    subprocess.run(command, env=os.environ | environment, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """The folder of the libraries, pdla.h and pdla.f90."""
    return build(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="session")
def programs(libraries):
    """Our clients, compiled for Open MPI."""
    need("mpicc.openmpi", "mpif90.openmpi", "gfortran")
    if not find_library("scalapack-openmpi"):
        pytest.skip(f"no ScaLAPACK here: {PACKAGES}")
    make = ["make", "-C", ROOT / "bench" / "clients", f"LIB={libraries}", f"TO={libraries}", "FLAVOUR=openmpi"]
    made = subprocess.run(make, capture_output=True, text=True)
    assert made.returncode == 0 and "warning" not in made.stderr, made.stderr
    return libraries


def test_the_build_writes_to_its_folder_alone_and_the_path_may_have_blanks(tmp_path, monkeypatch):
    need("cc")
    native = pytest.importorskip("pdla.native.build")
    monkeypatch.setattr(native, "HERE", tmp_path / "to be read")
    folder = tmp_path / "a folder"
    folder.mkdir()
    native.build_alias(folder)
    assert [path.name for path in tmp_path.glob("**/*")] == ["a folder", native.ALIAS]


def test_what_the_build_lacks_is_one_line(tmp_path):
    command = [sys.executable, "-m", "pdla.native.build", "--to", tmp_path]
    job = subprocess.run(command, env=os.environ | {"CC": "/no/compiler"}, capture_output=True, text=True)
    assert job.returncode == 1 and "'/no/compiler'; needed are a C compiler" in job.stderr and job.stderr.count("\n") == 1
    code = "import sys; sys.modules['cffi'] = None; from pdla.native import build; build.build_alias = str; build.main()"
    job = subprocess.run([sys.executable, "-c", code, "--to", tmp_path], capture_output=True, text=True)
    assert job.returncode == 1 and "cffi (pip install" in job.stderr and job.stderr.count("\n") == 1


def test_clients_are_compiled_where_paths_have_blanks(programs, tmp_path):
    folder = tmp_path / "a folder"
    shutil.copytree(ROOT / "bench" / "clients", folder / "bench" / "clients")
    (folder / "build" / "native").mkdir(parents=True)
    for name in ("libpdla.so", "pdla.h"):
        shutil.copy(programs / name, folder / "build" / "native")
    subprocess.run(["make", "-C", folder / "bench" / "clients", "../../build/native/rows_c"], check=True, capture_output=True)
    assert "rows: right" in run([folder / "build" / "native" / "rows_c"], 1)


def run(command, ranks=4, flavour="openmpi", cwd=None, limit=LONGEST, fails=False, **environment):
    """The output of a program on so many ranks, its status 0 unless it is to fail."""
    need(f"mpirun.{flavour}")
    options = ["--oversubscribe", "--bind-to", "none"] if flavour == "openmpi" else []
    mine = os.environ | AS_ROOT | ONE_THREAD | environment
    preload = mine.pop("PRELOAD", None)
    if preload:  # for the program alone, not for the launcher
        command = ["env", f"LD_PRELOAD={preload}", *command]
    job = subprocess.run(
        [f"mpirun.{flavour}", *options, "-n", str(ranks), *map(str, command)],
        env=mine, cwd=cwd, timeout=limit, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    assert (job.returncode != 0) == fails, job.stdout
    return job.stdout


def compiled(source, programs, folder, libraries):
    """A program in C over some of the libraries, made for Open MPI in the folder; its path."""
    (folder / "program.c").write_text(source)
    paths = [f"-I{ROOT}/bench/clients", f"-I{programs}", f"-L{programs}", f"-Wl,-rpath,{programs}"]
    command = ["mpicc.openmpi", "program.c", "-o", "program", *paths, *(f"-l{name}" for name in libraries)]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "program"


def counted(output):
    """Calls that pdla took, by its report."""
    return max((int(n) for n in re.findall(r"pdla: took (\d+) PBLAS calls", output)), default=0)


def line(output):
    return json.loads(next(text for text in output.splitlines() if text.startswith("{")))


# ---------------------------------------------------------------------------------------------- our own


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_pdla_h_from_c(programs, ranks):
    assert "rows: right" in run([programs / "rows_c"], ranks)


@pytest.mark.parametrize("ranks", [2, 5])
def test_pdla_h_from_fortran_on_two_communicators_at_once(programs, ranks):
    assert "blocks: right" in run([programs / "blocks_f"], ranks)


def test_the_fortran_program_of_the_page(programs, tmp_path):
    code = re.search(r"```fortran\n(.*?)```", (ROOT / "docs" / "codes.md").read_text(), re.DOTALL)
    (tmp_path / "product.f90").write_text(code[1])
    flags = [f"-L{programs}", f"-Wl,-rpath,{programs}", "-lpdla"]
    subprocess.run(["mpif90.openmpi", "-o", "product", programs / "pdla.f90", "product.f90", *flags], cwd=tmp_path, check=True)
    assert run([tmp_path / "product"], 4).count("right") == 4


@pytest.mark.parametrize(("ranks", "block"), [(1, 64), (4, 16), (6, 7)])
def test_pdgemm_from_c_equals_scalapack(programs, ranks, block):
    said = line(run([programs / "gemm_c", 150, block, 2], ranks, **ALL))
    assert said["equal"] and said["taken"] == 4 and said["passed"] == 3


def test_a_call_is_planned_once_its_repetitions_are_work_enough(programs):
    least, flops = 2 * 150**3 // 4 - 1, 3 * 2 * 150**3 // 4  # the third call of those through pdla pays
    environment = {"PDLA_PBLAS_LEAST": str(least), "PDLA_PBLAS_FLOPS": str(flops)}
    said = line(run([programs / "gemm_c", 150, 16, 2], 4, **environment))
    assert (said["taken"], said["passed"]) == (2, 5)


def test_a_solver_whose_updates_are_parts_of_one_matrix(programs):
    said = line(run([programs / "lu_f", 300, 32, 1, 0], 4, **ALL))
    assert said["error_pdla"] < 1e-12 and said["taken"] > 0


@slow
def test_calls_and_contexts_leave_nothing_behind(programs):
    said = line(run([programs / "many_c", 1000], 2, **ALL))
    assert said["calls"] == 1000 and said["grown"] < 2  # megabytes


NO_COLUMNS = r"""
#include "scalapack.h"
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int context, rows, cols, row, col, zero = 0, one = 1, n = 8;
    Cblacs_get(-1, 0, &context);
    Cblacs_gridinit(&context, "R", 1, 2);
    Cblacs_gridinfo(context, &rows, &cols, &row, &col);
    int desc[9] = {1, context, n, n, n, n, 0, 0, numroc_(&n, &n, &col, &zero, &cols) ? n : 1};
    double a[64] = {2}, c[64], alpha = 3, beta = 0;
    pdgemm_("N", "N", &n, &n, &n, &alpha, a, &one, &one, desc, a, &one, &one, desc, &beta, c, &one, &one, desc);
    if (!col) printf("c = %g\n", c[0]);
    MPI_Finalize();
}
"""


def test_a_process_without_columns_may_say_that_its_leading_dimension_is_one(programs, tmp_path):
    program = compiled(NO_COLUMNS, programs, tmp_path, PBLAS)
    output = run([program], 2, limit=30, **ALL)
    assert "c = 12\n" in output and counted(output) == 1
    output = run([program], 2, limit=30, **ALL | {"PDLA_PBLAS_LEAST": "all"})
    assert "c = 12\n" in output and "PDLA_PBLAS_LEAST=all is no number" in output and counted(output) == 0


WRONG = r"""
#include "scalapack.h"
#include <mpi.h>
#include <stdio.h>
#include <string.h>

extern void pdsyrk_(const char *, ...);

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int context, rows, cols, row, col, one = 1, n = 4, m = n;
    Cblacs_get(-1, 0, &context);
    Cblacs_gridinit(&context, "R", 2, 1);
    Cblacs_gridinfo(context, &rows, &cols, &row, &col);
    int desc[9] = {1, context, n, n, n, n, 1, 0, n}; /* all is on the second process */
    double a[16] = {2}, c[16], alpha = 3, beta = 0;
    const char wrong = argc > 1 && row ? *argv[1] : 0;
    if (wrong == 'm') m = 3;
    const double *x[] = {wrong == 'l' ? NULL : &alpha, wrong == 'A' && row ? NULL : a, row ? a : NULL, wrong == 'b' ? NULL : &beta};
    if (wrong == 'B') x[2] = NULL;
    double *y = wrong == 'C' || !row ? NULL : c;
    if (argc > 2)
        pdsyrk_("L", "N", &m, &n, x[0], x[1], &one, &one, desc, x[3], y, &one, &one, desc);
    else
        pdgemm_("N", "N", &m, &n, &n, x[0], x[1], &one, &one, desc, x[2], &one, &one, desc, x[3], y, &one, &one, desc);
    if (row) printf("c = %g\n", c[0]);
    MPI_Finalize();
}
"""


def test_null_ends_the_job_with_a_line_where_it_has_to_be_read_or_written(programs, tmp_path):
    """ScaLAPACK would crash, and NumPy takes NULL for memory that it is to allocate: the result would be any."""
    program = compiled(WRONG, programs, tmp_path, PBLAS)
    for routine, numbers in (([], {"l": 6, "A": 7, "B": 11, "b": 15, "C": 16}), (["syrk"], {"l": 5, "A": 6, "b": 10, "C": 11})):
        output = run([program, "-", *routine], 2, limit=30, **ALL)
        assert "c = 12\n" in output and counted(output) == 1
        for wrong, number in numbers.items():
            output = run([program, wrong, *routine], 2, limit=30, fails=True, **ALL)
            name = {"l": "alpha", "b": "beta"}.get(wrong, wrong)
            assert f"parameter number {number}: {name} is NULL on process {{1,0}}, which has to" in output, output
            assert f"pdla: pd{(routine or ['gemm'])[0]}, " in output and "Traceback" not in output, output


def test_ranks_whose_calls_differ_end_the_job_with_a_line(programs, tmp_path):
    output = run([compiled(WRONG, programs, tmp_path, PBLAS), "m"], 2, limit=30, fails=True, **ALL)
    assert "ranks disagree: rank 0: gemm NN of float64: " in output and "((3, 4), (4, 4), (3, 4))" in output, output
    assert "Traceback" not in output, output


LONG_BLOCKS = r"""
#include "scalapack.h"
#include <limits.h>
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int context, rows, cols, row, col, one = 1, n = 4;
    Cblacs_get(-1, 0, &context);
    Cblacs_gridinit(&context, "R", 2, 1);
    Cblacs_gridinfo(context, &rows, &cols, &row, &col);
    int desc[11] = {2, context, n, n, 1, n, INT_MAX, n, 0, 0, row ? 3 : 1};
    double a[12], c[12], alpha = 3, beta = 0;
    for (int i = 0; i < 12; i++) a[i] = 2;
    pdgemm_("N", "N", &n, &n, &n, &alpha, a, &one, &one, desc, a, &one, &one, desc, &beta, c, &one, &one, desc);
    printf("c = %g\n", c[0]);
    MPI_Finalize();
}
"""


def test_blocks_as_long_as_integers_go_behind_a_first_one_that_is_short(programs, tmp_path):
    """The first process holds a row, the second three: were one of them wrong about it, they would part ways."""
    program = compiled(LONG_BLOCKS, programs, tmp_path, PBLAS)
    output = run([program], 2, limit=30, **ALL)
    assert output.count("c = 48\n") == 2 and counted(output) == 1


WORDS = r"""
#include "scalapack.h"
#include <mpi.h>
#include <stdio.h>

extern void pdla_pblas_least(double), pdla_pblas_calls(long *, long *), pdgeadd_(const char *, ...), pztranc_(const int *, ...);

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int context, one = 1, n = 10;
    Cblacs_get(-1, 0, &context);
    Cblacs_gridinit(&context, "R", 1, 1);
    int desc[9] = {1, context, n, n, n, n, 0, 0, n};
    double a[200] = {0}, c[200] = {0}, alpha[2] = {1};
    long taken[2], passed;
    for (int more = 0; more < 2; more++) {
        pdla_pblas_least(200 * n * n + more);
        pdgeadd_("N", &n, &n, alpha, a, &one, &one, desc, alpha, c, &one, &one, desc);
        pztranc_(&n, &n, alpha, a, &one, &one, desc, alpha, c, &one, &one, desc);
        pdla_pblas_calls(&taken[more], &passed);
    }
    printf("%ld %ld\n", taken[0], taken[1]);
    MPI_Finalize();
}
"""


def test_a_word_that_is_moved_counts_as_200_operations(programs, tmp_path):
    program = compiled(WORDS, programs, tmp_path, PBLAS)
    assert run([program], 1, **ALL).splitlines()[0] == "2 2"


def test_where_python_does_not_start_one_line_says_so_and_scalapack_does_all(programs, tmp_path):
    program = compiled(WORDS, programs, tmp_path, PBLAS)
    output = run([program], 1, PDLA_TIMEOUT="wide", **ALL)
    assert "0 0\n" in output
    said = output.replace("0 0\n", "")  # which mpirun may put amid a line of what went wrong
    assert "PDLA_TIMEOUT='wide' is not a number" in said and said.count("the Python inside did not start") == 1
    assert "initialization code failed" not in said


OUTSIDE = r"""
#include <mpi.h>
#include <pdla.h>
#include <stdio.h>

#define ASK(call) printf("%d %s\n", call, pdla_error())

int main(int argc, char **argv)
{
    const int one = 1;
    const double number = 1;
    double a[4] = {0}, c[4] = {0};
    pdla_handle grid = 0, A = 0, C = 0;
    ASK(pdla_grid(0, 1, &one, &grid));
    MPI_Init(&argc, &argv);
    ASK(pdla_grid(MPI_Comm_c2f(MPI_COMM_WORLD), 1, &one, &grid));
    ASK(pdla_matrix(grid, 'd', 2, 2, "", a, 1, 2, &A));
    ASK(pdla_matrix(grid, 'd', 2, 2, "", c, 1, 2, &C));
    MPI_Finalize();
    ASK(pdla_gemm('N', 'N', &number, A, A, &number, C));
    ASK(pdla_copy('N', A, C));
    ASK(pdla_free(C));
}
"""


def test_outside_of_mpi_calls_fail_and_the_program_lives(programs, tmp_path):
    program = compiled(OUTSIDE, programs, tmp_path, ["pdla"])
    refused = "7 MPI is not running: call pdla after MPI_Init and before MPI_Finalize"
    assert run([program], 1).splitlines() == [refused, "0 ", "0 ", "0 ", refused, refused, "0 "]


OWN = r"""
#include <mpi.h>
#include <pdla.h>
#include <signal.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    const int one = 1;
    pdla_handle grid;
    MPI_Errhandler errors;
    struct sigaction interrupt;
    MPI_Init(&argc, &argv);
    printf("%d\n", pdla_grid(MPI_Comm_c2f(MPI_COMM_WORLD), 1, &one, &grid));
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &errors);
    sigaction(SIGINT, NULL, &interrupt);
    printf("%d %d\n", errors == MPI_ERRORS_ARE_FATAL, interrupt.sa_handler == SIG_DFL);
    MPI_Finalize();
}
"""


def test_errors_of_mpi_and_interrupts_stay_the_program_s_own(programs, tmp_path):
    program = compiled(OWN, programs, tmp_path, ["pdla"])
    assert run([program], 1).splitlines() == ["0", "1 1"]


ALONE = """
#include <stdlib.h>
extern void pdgemm_(const char *, ...);
int main(void)
{
    int *d = calloc(9, sizeof *d);
    pdgemm_("N", "N", d, d, d, d, d, d, d, d, d, d, d, d, d, d, d, d, d);
}
"""


def test_without_scalapack_behind_it_says_what_is_missing(libraries, tmp_path):
    (tmp_path / "alone.c").write_text(ALONE)
    subprocess.run(["cc", "alone.c", "-o", "alone", f"-L{libraries}", "-lpdla_pblas"], cwd=tmp_path, check=True)
    found = os.environ | {"LD_LIBRARY_PATH": str(libraries)}
    job = subprocess.run(["./alone"], cwd=tmp_path, env=found, capture_output=True, text=True)
    assert job.returncode and "link ScaLAPACK after it, or name its file in PDLA_SCALAPACK" in job.stderr


MODULE = r"""
#include "scalapack.h"
#include <mpi.h>
#include <stdlib.h>

double multiply(void)
{
    int size, context, rows, cols, row, col, zero = 0, one = 1, n = 8;
    MPI_Init(NULL, NULL);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    Cblacs_get(-1, 0, &context);
    Cblacs_gridinit(&context, "R", size, 1);
    Cblacs_gridinfo(context, &rows, &cols, &row, &col);
    int desc[9] = {1, context, n, n, one, n, 0, 0, numroc_(&n, &one, &row, &zero, &rows)};
    double *a = calloc(n * n, sizeof *a), *c = calloc(n * n, sizeof *c), alpha = 3, beta = 0;
    for (int i = 0; i < n * n; i++) a[i] = 1;
    pdgemm_("N", "N", &n, &n, &n, &alpha, a, &one, &one, desc, a, &one, &one, desc, &beta, c, &one, &one, desc);
    return c[0];
}

void finish(void) { MPI_Finalize(); }
"""
PYTHON = """
import ctypes, sys
module = ctypes.PyDLL(sys.argv[1])  # for itself alone, as Python loads an extension, and what it is linked with
module.multiply.restype = ctypes.c_double
sys.stdout.write(f"c = {module.multiply()}\\n")
sys.stdout.flush()
module.finish()
"""


@pytest.mark.parametrize("flavour", ["openmpi", pytest.param("mpich", marks=slow)])
@pytest.mark.parametrize(("least", "taken"), [("0", 1), ("1e9", 0)])
def test_a_python_program_s_extension_brings_scalapack_along(programs, tmp_path, flavour, least, taken):
    """As GPAW's does: neither the linker's order nor the names that all may use lead to it, nor to MPI."""
    need(f"mpicc.{flavour}")
    (tmp_path / "module.c").write_text(MODULE)
    flags = ["-shared", "-fPIC", f"-I{ROOT}/bench/clients", f"-lscalapack-{flavour}"]
    subprocess.run([f"mpicc.{flavour}", "module.c", "-o", "module.so", *flags], cwd=tmp_path, check=True)
    options = ALL | {"PDLA_PBLAS_LEAST": least, "PRELOAD": f"{programs}/libpdla_pblas.so"}
    output = run([sys.executable, "-c", PYTHON, tmp_path / "module.so"], 2, flavour, limit=60, **options)
    assert output.count("c = 24.0\n") == 2 and counted(output) == taken, output


THREADS = r"""
#include <pdla.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void *call(void *number)
{
    char expected[99];
    const long handle = (long)number;
    sprintf(expected, "handle %ld is nothing: freed already?", handle);
    return pdla_free(handle) == PDLA_HANDLE && !strcmp(pdla_error(), expected) ? NULL : number;
}

int main(void)
{
    pthread_t threads[8];
    void *wrong, *any = NULL;
    for (long i = 0; i < 8; i++) pthread_create(&threads[i], NULL, call, (void *)(i + 100));
    for (int i = 0; i < 8; i++) pthread_join(threads[i], &wrong), any = wrong ? wrong : any;
    return any != NULL;
}
"""


def test_many_threads_start_it_at_once_and_have_errors_of_their_own(libraries, tmp_path):
    (tmp_path / "threads.c").write_text(THREADS)
    flags = [f"-I{libraries}", f"-L{libraries}", "-lpdla", "-lpthread", f"-Wl,-rpath,{libraries}"]
    subprocess.run(["cc", "threads.c", "-o", "threads", *flags], cwd=tmp_path, check=True)
    job = subprocess.run(["./threads"], cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST)
    assert job.returncode == 0, job.stderr


NO_PYTHON = r"""
#include <pdla.h>
#include <stdio.h>

int main(void)
{
    pdla_free(1);
    const int status = pdla_free(1);
    printf("%d %s\n", status, pdla_error());
}
"""


def test_where_python_does_not_start_the_error_says_so_and_the_reason_is_printed_once(libraries, tmp_path):
    (tmp_path / "call.c").write_text(NO_PYTHON)
    flags = [f"-I{libraries}", f"-L{libraries}", "-lpdla", f"-Wl,-rpath,{libraries}"]
    subprocess.run(["cc", "call.c", "-o", "call", *flags], cwd=tmp_path, check=True)
    (tmp_path / "pdla.py").write_text("raise ImportError('another pdla')")
    job = subprocess.run(["./call"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert job.stdout.startswith("7 the Python inside did not start") and job.stderr.count("ImportError: another pdla") == 1
    assert "initialization code failed" not in job.stderr


# ---------------------------------------------------------------------------------------------- ScaLAPACK's testers


def scalapacks(flavour, name, folder):
    program = TESTERS / f"{flavour}-tests" / name
    if not program.exists():
        pytest.skip(f"no {program}: {PACKAGES}")
    for data in [*INPUTS.glob("*.dat"), *(INPUTS / "PBLAS").glob("*.dat")]:
        shutil.copy(data, folder)
    for name in ("LU.dat", "LLT.dat"):
        without_refinement(folder / name)
    return program


def without_refinement(data):
    """ScaLAPACK's iterative refinement hangs on some machines, also without pdla: its processes part ways in PDLACON."""
    text, asked = data.read_text().rstrip().rsplit("\n", 1)
    assert "Cond. Est. and Iter. Ref." in asked
    data.write_text(f"{text}\n{asked.replace('T', 'F', 1)}\n")


def level_3(flavour, type, folder, libraries, preload="", **environment):
    options = {"PRELOAD": f"{preload}{libraries}/libpdla_pblas.so", **environment, **ALL}
    output = run([scalapacks(flavour, f"PBLAS/{type}pb3tst", folder)], 4, flavour, folder, **options)
    rows = re.findall(r"\|\s+P\w+\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", output)
    assert "Error-exit tests completed." in output and "FAILED " not in output.split("Testing Summary")[0]
    assert len(rows) >= 8 and all(total == passed != "0" for total, passed, _, _ in rows), output
    assert counted(output) >= 64
    return output


@pytest.mark.parametrize("type", [*(pytest.param(type, marks=slow) for type in "sc"), "d", "z"])  # sanitizers have c, too
def test_level_3_of_pblas(libraries, tmp_path, type):
    level_3("openmpi", type, tmp_path, libraries)


def test_the_c_part_is_clean_under_sanitizers(libraries, tmp_path):
    """libpdla_pblas.so once more, instrumented, under a whole tester: what it reads and writes out of bounds ends the job."""
    need("gcc")
    asked = [["gcc", f"-print-file-name={name}.so"] for name in ("libasan", "libubsan")]
    found = [subprocess.check_output(command, text=True).strip() for command in asked]
    if not all(map(os.path.isabs, found)):
        pytest.skip("no libasan and libubsan of gcc here")
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -g"
    build(tmp_path, CC="gcc", CFLAGS=flags, LDFLAGS=flags)
    output = level_3("openmpi", "c", tmp_path, tmp_path, f"{':'.join(found)}:", ASAN_OPTIONS="detect_leaks=0")
    assert "ERROR: AddressSanitizer" not in output and "runtime error" not in output
    (tmp_path / "alone.c").write_text(ALONE)  # a descriptor of nine integers and of no type
    subprocess.run(["gcc", *flags.split(), "alone.c", "-o", "alone", f"-L{tmp_path}", "-lpdla_pblas"], cwd=tmp_path, check=True)
    alone = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "ASAN_OPTIONS": "detect_leaks=0"}
    said = subprocess.run(["./alone"], cwd=tmp_path, env=alone, capture_output=True, text=True).stderr
    assert "link ScaLAPACK after it" in said and "ERROR: AddressSanitizer" not in said, said


@slow
def test_level_3_of_pblas_on_mpich(libraries, tmp_path):
    level_3("mpich", "d", tmp_path, libraries)


@pytest.mark.parametrize(("name", "uses"), [*(pytest.param(name, True, marks=slow) for name in ("xdlu", "xdllt")), ("xdqr", False)])
def test_factorisations(libraries, tmp_path, name, uses):
    """xdqr calls none of the routines taken over, and has to go on as before."""
    output = run([scalapacks("openmpi", name, tmp_path)], 4, cwd=tmp_path, PRELOAD=f"{libraries}/libpdla_pblas.so", **ALL)
    passed, failed = (int(re.search(rf"(\d+) tests completed and {how}", output)[1]) for how in ("passed", "failed"))
    assert passed >= 96 and failed == 0, output
    assert (counted(output) > 0) == uses


# ---------------------------------------------------------------------------------------------- an application


@slow
def test_cp2k_finds_the_same_energy(libraries, tmp_path):
    need("cp2k.psmp")
    shutil.copy(Path(__file__).with_name("water.inp"), tmp_path)
    command = ["cp2k.psmp", "-i", "water.inp"]
    outputs = [run(command, 2, cwd=tmp_path, limit=500, **how, **ALL) for how in ({}, {"PRELOAD": f"{libraries}/libpdla_pblas.so"})]
    alone, over = (float(re.search(r"ENERGY\|.*:\s+(\S+)", output)[1]) for output in outputs)
    assert abs(alone - over) < 1e-8 and counted(outputs[1]) > 0
