"""PDGEMM through pdla beside ScaLAPACK's own and beside native pdla, in one run: python -m bench.pblas [--json FILE]

A C program (bench/clients/gemm.c) calls pdgemm_, which libpdla_pblas.so in turn computes itself and passes on to ScaLAPACK. Native
pdla multiplies matrices in its own layouts, from Python, under the same MPI. The two jobs alternate, --rounds times; figures are
medians over all rounds, of the slowest process. Every process has one BLAS thread; where the system's BLAS is older than the
processor, it is told which kernels to use. The C program compares each product with ScaLAPACK's, element for element. What runs is
built in a scratch folder; this needs Debian's libscalapack-openmpi-dev, libopenmpi-dev and a C compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from bench.common.given import parser
from bench.common.launch import AS_ROOT, OPEN_MPI, ROOT, core_type, no_scalapack, threads
from bench.common.table import console, headed
from bench.sides.jobs import Job
from pdla.bench.arguments import positive, positives, to_write
from pdla.bench.leave import write_json

START = ["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-n"]
LIMIT = 600  # seconds of a job


def arguments() -> argparse.Namespace:
    told = parser(__doc__)
    told.add_argument("--ranks", type=positive, default=4, help="processes (default 4)")
    told.add_argument("--sizes", type=positives, default="1024,2048,4096", help="n of n x n x n (default 1024,2048,4096)")
    told.add_argument("--blocks", type=positives, default="64,256", help="block sizes of the C program (default 64,256)")
    told.add_argument("--rounds", type=positive, default=3, help="rounds of both jobs (default 3)")
    told.add_argument("--turns", type=positive, default=5, help="products of each side in a job (default 5)")
    told.add_argument("--json", metavar="FILE", type=to_write, help="write everything to FILE")
    return told.parse_args()


def built(folder: Path) -> Path:
    """Build the C program, with the libraries beside it; gives its path."""
    for command in (
        [sys.executable, "-m", "pdla.native.build", "--to", folder],
        ["make", "-C", ROOT / "bench" / "clients", f"LIB={folder}", f"TO={folder}", folder / "gemm_c"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "gemm_c"


def through_c(program: Path, asked: argparse.Namespace, n: int, block: int) -> dict[str, Any]:
    command = [*START, str(asked.ranks), program, str(n), str(block), str(asked.turns)]
    environment = os.environ | threads(1) | AS_ROOT | core_type() | {"PDLA_PBLAS_FLOPS": "0"}
    said = subprocess.run(command, env=environment, timeout=LIMIT, check=True, capture_output=True, text=True).stdout
    return json.loads(said[said.index("{") :])


def native(asked: argparse.Namespace, n: int) -> list[float]:
    start, environment = (lambda ranks: [*START, str(ranks), sys.executable]), (lambda: OPEN_MPI | AS_ROOT | core_type())
    job = Job("pdla", (("ours", "native"),), start, environment=environment)
    work = [{"sizes": [n, n, n, "float64"], "sides": [["ours", "native"]]}]
    lines, failed = job.run(asked.ranks, {"work": work, "check": True, "turns": 4, "turn": 0.1}, LIMIT)
    if failed:
        sys.exit(f"native pdla: {failed}")
    return lines[0]["seconds"]


def measured(asked: argparse.Namespace) -> list[dict[str, Any]]:
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        program = built(Path(scratch))
        for _ in range(asked.rounds):
            for n in asked.sizes:
                own = native(asked, n)
                for block in asked.blocks:
                    said = through_c(program, asked, n, block)
                    row = rows.setdefault((n, block), {**said, "native": [], "pdla": [], "scalapack": []})
                    row["equal"] = row["equal"] and said["equal"]
                    row["native"] += own
                    for side in ("pdla", "scalapack"):
                        row[side] += said[side]
    return list(rows.values())


def table(rows: list[dict[str, Any]], ranks: int) -> Table:
    heads = "n", "block", "ScaLAPACK", "through pdla", "native pdla", "ScaLAPACK / through", "through / native", "equal"
    made = headed(f"n x n x n, float64, {ranks} ranks; medians, ms; equal: to ScaLAPACK's product of integers", *heads)
    for row in rows:
        alone, through, own = (median(row[side]) for side in ("scalapack", "pdla", "native"))
        figures = [f"{seconds * 1e3:.1f}" for seconds in (alone, through, own)]
        ratios = [f"{alone / through:.2f}", f"{through / own:.2f}"]
        made.add_row(f"{row['n']}", f"{row['block']}", *figures, *ratios, "yes" if row["equal"] else "NO")
    return made


def main() -> None:
    asked = arguments()
    no_compiler = "" if shutil.which("mpicc.openmpi") else "no mpicc.openmpi here; as root: apt-get install libopenmpi-dev"
    if missing := no_scalapack() or no_compiler:
        sys.exit(f"pblas.py: {missing}")
    rows = measured(asked)
    console(110).print(table(rows, asked.ranks))
    if asked.json:
        write_json(asked.json, rows)


if __name__ == "__main__":
    main()
