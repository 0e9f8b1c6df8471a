"""How the job of each side is started, and what is missing where it cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from ctypes.util import find_library
from dataclasses import dataclass
from functools import cache
from math import isqrt
from pathlib import Path

from sides.product import Product

BENCH = Path(__file__).resolve().parent.parent
SCALAPACK = "scalapack-openmpi"  # as the linker names it
TORCH = Path.home() / ".cache" / "pdla-peers" / "torch" / "bin" / "python"
CORES = len(os.sched_getaffinity(0))
TORCH_BYTES = 240 * 2**20  # memory of a process that has imported PyTorch
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
SETS = 8  # of A and B, held by the other sides of the job of by_hand; from 2-D blocks these gather sqrt(ranks) sets, twice
OPEN_MPI = {"MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": "libmpi.so.40"}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

Variant = tuple[str, str]  # a module of sides/, and the variant that its make() is given
OURS = ("native", "shared", "few", "blocks")


@dataclass(frozen=True)
class Job:
    """Sides that run in one mpirun: start(ranks) is the command that precedes the module; missing(): why it cannot be, or ""."""

    name: str
    sides: tuple[Variant, ...]
    start: Callable[[int], list[str]]
    missing: Callable[[], str] = lambda: ""
    environment: Callable[[], dict[str, str]] = dict
    threads: int = 1

    def run(self, ranks: int, spec: str, limit: float) -> str:
        """Run the job to its end; gives "", or what went wrong in a few words. An exception here, as by a signal, ends the job."""
        threads = {f"{library}_NUM_THREADS": str(self.threads) for library in ("OMP", "OPENBLAS", "MKL")}
        mine = os.environ | threads | {"PDLA_THREADS": "1", "PYTHONPATH": str(BENCH)} | self.environment()
        command = [*self.start(ranks), "-m", "sides.job", spec]
        with subprocess.Popen(command, env=mine, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as job:
            try:
                _, errors = job.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                return f"took more than {limit:g} s"
            finally:
                job.terminate()  # if it still runs; mpirun then ends the ranks
        return _why(errors, job.returncode) if job.returncode else ""


def _why(errors: str, status: int) -> str:
    """The exit status, with the last line that names an error, or else the last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if line.split(":")[0].split(".")[-1].endswith("Error")]
    return f"exit status {status}: {[*lines[-1:], *named][-1] if lines else 'no message'}"


def jobs(torch: Path) -> list[Job]:
    def ranks_of(mpirun: str, python: str, *options: str) -> Callable[[int], list[str]]:
        return lambda ranks: [mpirun, *options, "-n", str(ranks), python]

    here = ranks_of(_mpirun(), sys.executable)
    openly = ranks_of("mpirun.openmpi", sys.executable, "--oversubscribe", "--bind-to", "none")
    widths = tuple(("pdgemm", str(width)) for width in (32, 64, 128, 256))
    return [
        Job("NumPy", (("numpy_alone", ""),), lambda ranks: here(1), threads=CORES),
        Job("pdla", (("ceiling", ""), ("ceiling", "barriers"), *(("ours", variant) for variant in OURS), ("by_hand", "")), here),
        Job("ScaLAPACK", widths, openly, no_scalapack, lambda: OPEN_MPI | AS_ROOT | core_type()),
        Job(
            "DTensor",
            (("dtensor", "rows"), ("dtensor", "depth"), ("dtensor", "blocks")),
            ranks_of(_mpirun(), str(torch)),
            lambda: no_torch(torch),
        ),
    ]


def _mpirun() -> str:
    """The mpirun beside this Python, which its mpi4py finds first, or the one on PATH."""
    beside = shutil.which("mpirun", path=Path(sys.executable).parent)
    return beside or "mpirun"


def no_scalapack() -> str:
    libraries = [name for name in (SCALAPACK, "openblas") if not find_library(name)]
    absent = libraries + ([] if shutil.which("mpirun.openmpi") else ["mpirun.openmpi"])
    install = "apt-get install libscalapack-openmpi2.2 libopenblas0-pthread openmpi-bin"
    return f"no {', '.join(absent)} here; as root: {install}" if absent else ""


@cache
def core_type() -> dict[str, str]:
    """The variable by which the system's OpenBLAS, if it does not know this processor, uses its vector instructions; else {}."""
    asks = "from ctypes import CDLL, c_char_p as s; f = CDLL('libopenblas.so.0').openblas_get_corename; f.restype = s; print(f())"
    says = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True).stdout
    if "Prescott" not in says or "OPENBLAS_CORETYPE" in os.environ:
        return {}
    vectors = Path("/proc/cpuinfo").read_text()
    types = {"avx512bw": "SkylakeX", "avx2": "Haswell"}
    return next(({"OPENBLAS_CORETYPE": name} for flag, name in types.items() if flag in vectors), {})


def no_torch(python: Path) -> str:
    folder = TORCH.parent.parent
    install = f"python3 -m venv {folder} && {folder}/bin/pip install torch==2.13.0 numpy mpi4py mpich"
    if not python.exists():
        return f"no {python}; {install} (or --torch-python)"
    tried = subprocess.run([python, "-c", "import torch, mpi4py"], capture_output=True, text=True)
    return f"{python}: {_why(tried.stderr, tried.returncode)}; {install}" if tried.returncode else ""


def unfit(side: Variant, product: Product, ranks: int) -> str:
    """Why a side cannot do a product on this machine; "" where it can. Some sides hold whole matrices on every rank."""
    m, n, k = product.m, product.n, product.k
    if side == ("ours", "few") and ranks <= CORES:
        return "each rank has a core in any case"
    if side[0] == "dtensor" and (m % ranks or n % ranks or k % ranks):
        return f"{ranks} ranks do not divide all sizes"
    copies = {("by_hand", ""): k * n, ("dtensor", "rows"): 2 * k * n, ("dtensor", "depth"): 3 * m * n}.get(side, 0)
    beside = (SETS + 2 * isqrt(ranks)) * (m * k + k * n) if side[0] == "by_hand" else 0
    size = (ranks * copies + beside) * (8 if product.dtype == "float64" else 4)
    size += ranks * TORCH_BYTES if side[0] == "dtensor" else 0
    return f"would take {size / 2**30:.0f} GiB on a machine of {MEMORY / 2**30:.0f}" if size > MEMORY * 3 / 4 else ""
