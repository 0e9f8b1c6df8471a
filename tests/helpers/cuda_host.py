"""The kernels of cuda/ on a CPU: the same sources, compiled by a C++ compiler against tests/helpers/cuda_host.h."""

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path

import numpy as np

HEADER = Path(__file__).with_name("cuda_host.h")
SOURCES = Path(__file__).parents[2] / "cuda"
BUILT = Path(__file__).parents[2] / "build" / "host"
COMPILER = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
FLAGS = [
    "-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-Wall", "-Wno-unknown-pragmas", "-Wno-unused-function",
    "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error",  # a misplaced vector ends the program, as it does a device's
]
KERNEL = re.compile(r'extern "C"\s+void\s+(\w+)\(')


def kernels(source):
    """The names of a source's kernels, as the preprocessor leaves them."""
    hidden = ["-D__global__=", "-D__launch_bounds__(...)=", f"-I{SOURCES}"]
    command = [COMPILER, "-std=c++17", "-E", *hidden, "-x", "c++", "-"]
    return KERNEL.findall(subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout)


@cache
def library(source):
    """A source's kernels as a library of launchers; it holds the interpreter's lock, since its threads are fibers.

    Compiled once for all processes: a test of four ranks would wait for four compilers.
    """
    kept = BUILT / f"{_digest(source)}.so"
    if not kept.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as folder:
            os.replace(_compiled(source, Path(folder)), kept)
    return ctypes.PyDLL(str(kept))


def _digest(source):
    """Of all that a library is made of."""
    made_of = [source, HEADER.read_text(), COMPILER, os.stat(COMPILER).st_mtime_ns, FLAGS]
    return sha256(repr(made_of).encode()).hexdigest()


def _compiled(source, folder):
    path, built = folder / "kernels.cpp", folder / "kernels.so"
    launchers = "".join(f"LAUNCH({name})\n" for name in kernels(source))
    path.write_text(f'#include "{HEADER}"\n{source}\n{launchers}')
    done = subprocess.run([COMPILER, *FLAGS, "-o", built, path], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return built


def launch(source, name, grid, block, args):
    """Run a kernel. args: scalars of NumPy's, structures as arrays of one, and addresses as integers."""
    values = [np.ascontiguousarray(np.uint64(x) if isinstance(x, int) else x) for x in args]
    pointers = (ctypes.c_void_p * len(values))(*(x.ctypes.data for x in values))
    sizes = [(ctypes.c_uint * 3)(*(*shape, 1, 1)[:3]) for shape in (grid, block)]
    getattr(library(source), f"launch_{name}")(*sizes, pointers)
