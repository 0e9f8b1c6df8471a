"""The jobs of the sides: their commands, and reasons why a job cannot run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

from bench.common.launch import (
    AS_ROOT,
    CORES,
    OPEN_MPI,
    ROOT,
    find_core_type,
    find_mpirun,
    find_scalapack_fault,
    make_thread_limits,
)
from bench.common.product import Product

TORCH = Path.home() / ".cache" / "pdla-peers" / "torch" / "bin" / "python"
TORCH_BYTES = 240 * 2**20  # memory of a process that has imported PyTorch
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
SETS = 8  # of A and B in the other sides of by_hand's job; from 2-D blocks these gather sqrt(ranks) sets, twice

Variant = tuple[str, str]  # a module of sides/, and its make()'s variant
OURS = ("native", "shared", "few", "blocks")


@dataclass(frozen=True)
class Job:
    """Sides in one mpirun. start(ranks): the command before the module; find_missing(): why it cannot run, or ""."""

    name: str
    sides: tuple[Variant, ...]
    start: Callable[[int], list[str]]
    find_missing: Callable[[], str] = lambda: ""
    environment: Callable[[], dict[str, str]] = dict
    threads: int = 1

    def run(self, ranks: int, spec: dict[str, Any], limit: float) -> tuple[list[dict[str, Any]], str]:
        """Run the job to its end; return its lines of results, and "" or its fault in a few words."""
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder, "results")
            results.touch()
            fault = self._run_to_end(ranks, json.dumps(spec | {"results": str(results)}), limit)
            return [json.loads(line) for line in results.read_text().splitlines()], fault

    def _run_to_end(self, ranks: int, spec: str, limit: float) -> str:
        """Run the job; an exception here, as by a signal, ends it."""
        environment = os.environ | make_thread_limits(self.threads) | {"PYTHONPATH": str(ROOT)} | self.environment()
        command = [*self.start(ranks), "-m", "bench.sides.job", spec]
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as job:
            try:
                _, errors = job.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                return f"took more than {limit:g} s"
            finally:
                job.terminate()  # if it still runs; mpirun then ends the ranks
        return _explain(errors, job.returncode) if job.returncode else ""


def _explain(errors: str, status: int) -> str:
    """The exit status, with the last line that names an error, or else the last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    error_lines = [line for line in lines if line.split(":")[0].split(".")[-1].endswith("Error")]
    return f"exit status {status}: {[*lines[-1:], *error_lines][-1] if lines else 'no message'}"


def list_jobs(torch: Path) -> list[Job]:
    def ranks_of(launcher: str, python: str, *options: str) -> Callable[[int], list[str]]:
        return lambda ranks: [launcher, *options, "-n", str(ranks), python]

    mpich = ranks_of(find_mpirun(), sys.executable)
    open_mpi = ranks_of("mpirun.openmpi", sys.executable, "--oversubscribe", "--bind-to", "none")
    widths = tuple(("pdgemm", str(width)) for width in (32, 64, 128, 256))
    return [
        Job("NumPy", (("numpy_alone", ""),), lambda ranks: mpich(1), threads=CORES),
        Job("pdla", (("ceiling", ""), ("ceiling", "barriers"), *(("ours", variant) for variant in OURS), ("by_hand", "")), mpich),
        Job("ScaLAPACK", widths, open_mpi, find_scalapack_fault, lambda: OPEN_MPI | AS_ROOT | find_core_type()),
        Job(
            "DTensor",
            (("dtensor", "rows"), ("dtensor", "depth"), ("dtensor", "blocks")),
            ranks_of(find_mpirun(), str(torch)),
            lambda: find_torch_fault(torch),
        ),
    ]


def find_torch_fault(python: Path) -> str:
    folder = TORCH.parent.parent
    install = f"python3 -m venv {folder} && {folder}/bin/pip install torch==2.13.0 numpy mpi4py mpich"
    if not python.exists():
        return f"no {python}; {install} (or --torch-python)"
    tried = subprocess.run([python, "-c", "import torch, mpi4py"], capture_output=True, text=True)
    return f"{python}: {_explain(tried.stderr, tried.returncode)}; {install}" if tried.returncode else ""


def explain_unfit(side: Variant, product: Product, ranks: int) -> str:
    """Why a side cannot run a product on this machine; "": it can. Some sides hold whole matrices on every rank."""
    m, n, k = product.m, product.n, product.k
    if side == ("ours", "few") and ranks <= CORES:
        return "each rank has a core in any case"
    if side[0] == "dtensor" and (m % ranks or n % ranks or k % ranks):
        return f"{ranks} ranks do not divide all sizes"
    copies = {("by_hand", ""): k * n, ("dtensor", "rows"): 2 * k * n, ("dtensor", "depth"): 3 * m * n}.get(side, 0)
    gathered = (SETS + 2 * isqrt(ranks)) * (m * k + k * n) if side[0] == "by_hand" else 0
    size = (ranks * copies + gathered) * (8 if product.dtype == "float64" else 4)
    size += ranks * TORCH_BYTES if side[0] == "dtensor" else 0
    return f"would take {size / 2**30:.0f} GiB on a machine of {MEMORY / 2**30:.0f}" if size > MEMORY * 3 / 4 else ""
