"""Start jobs: the checkout, its mpirun, Debian's Open MPI and ScaLAPACK, and the BLAS's kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from ctypes.util import find_library
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCALAPACK = "scalapack-openmpi"  # as the linker names it
CORES = len(os.sched_getaffinity(0))
OPEN_MPI = {"MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": "libmpi.so.40"}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def make_thread_limits(count: int) -> dict[str, str]:
    """The variables that give each rank `count` BLAS threads, whatever pdla would choose."""
    return {f"{library}_NUM_THREADS": str(count) for library in ("OMP", "OPENBLAS", "MKL")} | {"PDLA_THREADS": "1"}


def find_mpirun() -> str:
    """The mpirun beside this Python, which its mpi4py finds first, or the one on PATH."""
    own = shutil.which("mpirun", path=Path(sys.executable).parent)
    return own or "mpirun"


def find_scalapack_fault() -> str:
    libraries = [name for name in (SCALAPACK, "openblas") if not find_library(name)]
    absent = libraries + ([] if shutil.which("mpirun.openmpi") else ["mpirun.openmpi"])
    install = "apt-get install libscalapack-openmpi2.2 libopenblas0-pthread openmpi-bin"
    return f"no {', '.join(absent)} here; as root: {install}" if absent else ""


@cache
def find_core_type() -> dict[str, str]:
    """Find the environment variable that selects OpenBLAS's kernels for a processor that it does not know; else {}."""
    code = "from ctypes import CDLL, c_char_p as s; f = CDLL('libopenblas.so.0').openblas_get_corename; f.restype = s; print(f())"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    if "Prescott" not in output or "OPENBLAS_CORETYPE" in os.environ:
        return {}
    vectors = Path("/proc/cpuinfo").read_text()
    types = {"avx512bw": "SkylakeX", "avx2": "Haswell"}
    return next(({"OPENBLAS_CORETYPE": name} for flag, name in types.items() if flag in vectors), {})
