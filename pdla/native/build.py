"""python -m pdla.native.build --to FOLDER builds the libraries by which C and Fortran call pdla; needs cffi and a C compiler.

The libraries contain no MPI: one build serves every MPI that mpi4py can use. The Python that builds
them also runs in them, with its packages; PDLA_PYTHON names another executable.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent

CALL = """
typedef struct {
    double flops;
    int routine, type, scalar, words[2], has_b;
    int comm, nprow, npcol, myrow, mycol;
    int shape[3][2], at[3][2], desc[3][11]; /* all above is the same on every process, but for its own myrow and mycol */
    int lld[3];
} pdla_call;
"""

# An empty library with MPICH's usual soname, for Debian's MPICH: see start.py. The file has another
# name, so that no program linked with MPICH finds it.
MPICH, ALIAS = "libmpi.so.12", "pdla_mpich.so"

TAKE = "int pdla_take(pdla_call *, void *alpha, void *a, void *b, void *beta, void *c);"

INTERFACE = """
void py_grid(int comm, int axes, int *shape, int64_t *grid, int *status, char *said);
void py_local_shape(int64_t grid, int64_t m, int64_t n, char *layout, int64_t *rows, int64_t *cols, int *status, char *said);
void py_matrix(int64_t grid, char type, int64_t m, int64_t n, char *layout, void *local, int64_t down, int64_t across, int64_t *matrix, int *status, char *said);
void py_part(int64_t matrix, int64_t i0, int64_t i1, int64_t j0, int64_t j1, int64_t *part, int *status, char *said);
void py_gemm(char opa, char opb, void *alpha, int64_t A, int64_t B, void *beta, int64_t C, int *status, char *said);
void py_copy(char op, int64_t A, int64_t C, int *status, char *said);
void py_free(int64_t handle, int *status, char *said);
"""  # noqa: E501

START = """
import pdla.native.start
from _{name} import ffi
from pdla.native import {module}
{module}.serve(ffi)
"""


@dataclass(frozen=True)
class Library:
    """A library for C and Fortran."""

    types: str  # C's declarations of the types that C and Python share
    functions: str  # C's declarations, a line each, of the functions that Python defines
    source: str  # the C source's file
    module: str  # the module of pdla.native that defines the functions


LIBRARIES = {
    "pdla_pblas": Library(CALL, TAKE, "pblas.c", "pblas"),
    "pdla": Library("", INTERFACE, "pdla.c", "interface"),
}


def build(name: str, folder: Path) -> Path:
    """Build lib<name>.so in a folder; return its path."""
    import cffi

    library = LIBRARIES[name]
    ffi = cffi.FFI()
    ffi.embedding_api("")
    ffi.cdef(f'{library.types} extern "Python" {{ {library.functions} }}')
    ffi.embedding_init_code(START.format(name=name, module=library.module))
    head = f'#define PDLA_PYTHON L"{sys.executable}"\n#include <stdint.h>\n' + library.types
    declared = "".join(f"static {line}\n" for line in library.functions.split("\n") if line)  # cffi defines them further down
    text = head + declared + "".join((HERE / source).read_text() for source in ("start.c", library.source))
    flags = ["-Wno-deprecated-declarations"]  # Py_SetProgramName is deprecated, but needed to find a virtual environment
    ffi.set_source(f"_{name}", text, libraries=["dl"], include_dirs=[str(HERE)], extra_compile_args=flags)
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(ffi.compile(tmpdir=scratch, target=f"lib{name}.so"))
        made = folder / built.name
        made.unlink(missing_ok=True)  # not overwritten, as a process may have the old one mapped
        made.write_bytes(built.read_bytes())
    made.chmod(0o755)
    return made


def build_alias(folder: Path) -> Path:
    """Build the empty library with MPICH's usual soname in a folder; return its path."""
    compiler, made = shlex.split(os.environ.get("CC", "cc")), folder / ALIAS
    subprocess.run([*compiler, "-shared", f"-Wl,-soname,{MPICH}", "-o", made, "-x", "c", "/dev/null"], check=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pdla.native.build", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="where they go, with pdla.h and pdla.f90")
    folder = parser.parse_args().to.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = [build_alias(folder), *(build(name, folder) for name in LIBRARIES)]
        for name in ("pdla.h", "pdla.f90"):
            made.append(Path(shutil.copy(HERE / name, folder)))
    except Exception as error:  # the compiler's, cffi's, or that of a folder that cannot be written to
        sys.exit(f"pdla.native.build: {error}; needed are a C compiler (cc, or CC) and cffi (pip install 'pdla[native]')")
    sys.stdout.writelines(f"{path}\n" for path in made)


if __name__ == "__main__":
    main()
