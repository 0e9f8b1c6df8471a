"""python -m pdla.native.build [--to FOLDER]: the shared libraries by which C and Fortran call pdla; needs cffi and a C compiler.

They carry no MPI of their own: one build serves every MPI that mpi4py can use. The Python inside is the one that built them, its
packages too; PDLA_PYTHON names another one's executable.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import cffi

HERE = Path(__file__).parent

CALL = """
typedef struct {
    double flops;
    int routine, type, scalar, words[2], has_b;
    int comm, nprow, npcol, myrow, mycol;
    int shape[3][2], at[3][2], desc[3][11];
} pdla_call;
"""

ALIAS = "libmpi.so.12"  # as MPICH is called, but for Debian's: see entry.py

LIBRARIES = {
    "pdla_pblas": (
        CALL + 'extern "Python" int pdla_take(pdla_call *, void *alpha, void *a, void *b, void *beta, void *c);',
        "pblas.c",
        "serve_pblas",
    ),
}


def build(name: str, folder: Path) -> Path:
    """lib<name>.so in a folder."""
    declared, source, serve = LIBRARIES[name]
    ffi = cffi.FFI()
    ffi.embedding_api("")
    ffi.cdef(declared)
    types = CALL if "pdla_call" in declared else ""
    ffi.embedding_init_code(f"from _{name} import ffi\nfrom pdla.native import entry\nentry.{serve}(ffi)")
    text = f'#define PDLA_PYTHON L"{sys.executable}"\n' + (HERE / "start.c").read_text() + (HERE / source).read_text()
    ffi.set_source(f"_{name}", types + text, libraries=["dl"], extra_compile_args=["-Wno-deprecated-declarations"])
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(ffi.compile(tmpdir=scratch, target=f"lib{name}.so"))
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / built.name
        made.unlink(missing_ok=True)  # a process may have the old one mapped
        made.write_bytes(built.read_bytes())
    made.chmod(0o755)
    return made


def build_alias() -> None:
    """An empty library of MPICH's usual name, beside this file."""
    command = f"{os.environ.get('CC', 'cc')} -shared -Wl,-soname,{ALIAS} -o {HERE / ALIAS} -x c /dev/null"
    subprocess.run(shlex.split(command), check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pdla.native.build", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--to", type=Path, default=HERE, metavar="FOLDER", help="where they go (default: beside this file)")
    folder = parser.parse_args().to
    build_alias()
    for name in LIBRARIES:
        sys.stdout.write(f"{build(name, folder)}\n")


if __name__ == "__main__":
    main()
