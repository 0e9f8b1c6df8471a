"""PDGEMM from C: through pdla, beside ScaLAPACK's own and beside native pdla."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench.common.case import case
from bench.common.launch import AS_ROOT, OPEN_MPI, ROOT, find_core_type, find_scalapack_fault, make_thread_limits
from bench.sides.jobs import Job
from pdla.bench.arguments import positive, positives

START = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-n"]
LIMIT = 600  # seconds of a job


@case(
    "n:6 | block:6 | ScaLAPACK, ms:14.1f | through pdla:13.1f | native pdla:13.1f | ScaLAPACK / through:20.2f"
    " | through / native:18.2f | equal:6"
)
def pblas(
    *, ranks: positive = 4, sizes: positives = "1024,2048,4096", blocks: positives = "64,256", rounds: positive = 3,
    turns: positive = 5,
):
    """PDGEMM through pdla beside ScaLAPACK's own and beside native pdla, in one run.

    A C program (bench/clients/gemm.c) calls pdgemm_. In turns libpdla_pblas.so computes the product,
    or calls ScaLAPACK. Native pdla multiplies matrices in its own layouts, from Python, under the
    same MPI. The two jobs alternate, --rounds times; figures are the slowest process's medians over
    all rounds. Every process has one BLAS thread. A BLAS that does not know the processor gets the
    name of its kernels. The C program compares each product of integers with ScaLAPACK's, element
    by element. A scratch folder holds the programs; their build needs Debian's
    libscalapack-openmpi-dev, libopenmpi-dev and a C compiler.
    """
    no_compiler = "" if shutil.which("mpicc.openmpi") else "no mpicc.openmpi here; as root: apt-get install libopenmpi-dev"
    if missing := find_scalapack_fault() or no_compiler:
        sys.exit(f"pblas: {missing}")
    yield f"n x n x n, float64, {ranks} ranks; medians"
    figures = {(n, block): [True, [], [], []] for n in sizes for block in blocks}
    with tempfile.TemporaryDirectory() as scratch:
        program = build(Path(scratch))
        for _ in range(rounds):
            for n in sizes:
                own = run_native(ranks, n)
                for block in blocks:
                    result, row = run_c(program, ranks, n, block, turns), figures[n, block]
                    row[0] &= result["equal"]
                    for times, further in zip(row[1:], (result["scalapack"], result["pdla"], own), strict=True):
                        times += further
    for (n, block), (equal, *times) in figures.items():
        alone, through, own = (1e3 * median(each) for each in times)
        yield n, block, alone, through, own, alone / through, through / own, "yes" if equal else "NO"


def build(folder: Path) -> Path:
    """Build the C program, with the libraries beside it; return its path."""
    for command in (
        [sys.executable, "-m", "pdla.native.build", "--to", folder],
        ["make", "-C", ROOT / "bench" / "clients", f"LIB={folder}", f"TO={folder}", folder / "gemm_c"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "gemm_c"


def run_c(program, ranks, n, block, turns):
    command = [*START, str(ranks), program, str(n), str(block), str(turns)]
    environment = os.environ | make_thread_limits(1) | AS_ROOT | find_core_type() | {"PDLA_PBLAS_FLOPS": "0"}
    output = subprocess.run(command, env=environment, timeout=LIMIT, check=True, capture_output=True, text=True).stdout
    return json.loads(output[output.index("{") :])


def run_native(ranks, n):
    start, environment = (lambda count: [*START, str(count), sys.executable]), (lambda: OPEN_MPI | AS_ROOT | find_core_type())
    job = Job("pdla", (("ours", "native"),), start, environment=environment)
    work = [{"sizes": [n, n, n, "float64"], "sides": [["ours", "native"]]}]
    lines, fault = job.run(ranks, {"work": work, "check": True, "turns": 4, "turn": 0.1}, LIMIT)
    if fault:
        sys.exit(f"native pdla: {fault}")
    return lines[0]["seconds"]
