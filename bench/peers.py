"""pdla beside what one would use instead, all in one run: python -m bench.peers [--quick] [--json FILE]

| side | product |
|---|---|
| NumPy | one process on all cores |
| ceiling | the ranks' own GEMMs without communication, with and without a barrier after each |
| by hand | allgather and numpy.matmul |
| pdla | a plan: from 2-D blocks to 2-D blocks, and in native layouts |
| ScaLAPACK | pdgemm in the best of four block sizes, the largest of which may leave C to few ranks |
| DTensor | PyTorch's on gloo, in the best of three ways to cut A and B |

pdla's native layouts run on all ranks, and with A and B in memory that all ranks share. If ranks outnumber the cores, they also run
on as many ranks as there are cores, while the others wait. Every rank has one BLAS thread. For a side that is not installed, the
script prints the command that installs it.

All jobs repeat each product in turn, --repeats times, as the speed of a shared machine changes within minutes; short products are
measured together. pdla, its ceilings and the product by hand share an MPI, so they alternate in one job. No other job runs
meanwhile. A turn is a tenth of a second of products, back to back. Its time starts when all ranks do, ends with the last rank, and
is divided by the number of products. The tables show medians of a side's turns, and medians of ratios of consecutive turns. The
first round checks the product of integers twice, on every element, by a product with a vector.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import sys
import time
from itertools import product as cross
from pathlib import Path

from rich.console import Console

from bench.common.given import make_parser
from bench.common.launch import CORES
from bench.common.product import Product
from bench.common.table import make_console
from bench.sides.figures import Row, list_left_out, make_table, summarize, to_json
from bench.sides.jobs import TORCH, Job, explain_unfit, list_jobs
from pdla.bench.arguments import positive, positives, to_write
from pdla.bench.leave import write_json
from pdla.bench.measure.facts import processor

RANKS = (2, 4, 16)
SHAPES = ("256", "512", "1024", "2048", "4096", "512x512x131072", "4096x4096x128", "65536x256x256")
DTYPES = ("float64", "float32")  # which ScaLAPACK has, too
MANY, SQUARE = 64, "2048"  # the one product that is also run on many ranks
SHORT = 2**31  # multiplications: up to so many, a product takes less time than a job's start, and such products share jobs
TURNS, TURN = 4, 0.1  # times that sides of one job take turns at a product, and seconds of each turn
WIDTH = 240  # columns, where the output is no terminal


def read_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--ranks", type=positives, help=f"default {','.join(map(str, RANKS))}, and {MANY} for n = {SQUARE}")
    parser.add_argument("--shapes", help=f"n, or m x n x k (default {','.join(SHAPES)})")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help=f"default {','.join(DTYPES)}")
    parser.add_argument("--sides", help="jobs to run, of NumPy,pdla,ScaLAPACK,DTensor; default all")
    parser.add_argument("--repeats", type=positive, default=3, help="rounds of a product (default 3)")
    parser.add_argument("--quick", action="store_true", help="2 and 4 ranks, n = 256 and 512, one round")
    parser.add_argument("--torch-python", type=Path, default=TORCH, help=f"Python with PyTorch (default {TORCH})")
    parser.add_argument("--limit", type=float, default=1200, help="seconds a job may take (default 1200)")
    parser.add_argument("--json", type=to_write, metavar="FILE", help="write everything to FILE, after every product")
    return parser.parse_args()


def read_products(shapes: list[str], dtypes: list[str]) -> list[Product]:
    if unknown := [shape for shape in shapes if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*x[1-9]\d*)?", shape)]:
        raise SystemExit(f"peers.py: --shapes {','.join(unknown)}: give n, or m x n x k, such as 4096x4096x128")
    if unknown := [dtype for dtype in dtypes if dtype not in DTYPES]:
        raise SystemExit(f"peers.py: --dtypes {','.join(unknown)}: give some of {','.join(DTYPES)}")
    sizes = [tuple(map(int, shape.split("x"))) for shape in shapes]
    mnk = [size if len(size) == 3 else size * 3 for size in sizes]
    return [Product(*size, dtype) for size, dtype in cross(mnk, dtypes)]


def list_products(given: argparse.Namespace) -> dict[int, list[Product]]:
    """The products for each number of ranks."""
    dtypes = given.dtypes.split(",")
    ranks = given.ranks or ([2, 4] if given.quick else [*RANKS])
    shapes = given.shapes.split(",") if given.shapes else ["256", "512"] if given.quick else [*SHAPES]
    products = {r: read_products(shapes, dtypes) for r in ranks}
    if not (given.ranks or given.shapes or given.quick):
        products[MANY] = read_products([SQUARE], dtypes)
    return products


# ---------------------------------------------------------------------------------------------- a run


def group_rows(rows: list[Row]) -> list[list[Row]]:
    """Groups of rows that each job runs at a time, before the next job's turn: the short ones together, each other row alone."""
    short = [row for row in rows if row.product.m * row.product.n * row.product.k <= SHORT]
    alone = [[row] for row in rows if row not in short]
    return [short, *alone] if short else alone


def run_job(job: Job, rows: list[Row], first: bool, limit: float) -> str:
    """Run a job on the rows' products, and add its figures to the rows; gives what went wrong, or ""."""
    work = []
    for row in rows:
        p = row.product
        reasons = {side: explain_unfit(side, p, row.ranks) for side in job.sides}
        row.left_out |= {" ".join(side): why for side, why in reasons.items() if why}
        if sides := [side for side, why in reasons.items() if not why]:
            work.append({"sizes": [p.m, p.n, p.k, p.dtype], "sides": sides})
    if not work:
        return ""
    lines, fault = job.run(rows[0].ranks, {"work": work, "check": first, "turns": TURNS, "turn": TURN}, limit)
    by_product = {row.product: row for row in rows}
    for line in lines:
        by_product[Product(line["m"], line["n"], line["k"], line["dtype"])].add(line)
    return fault


def run_rounds(given: argparse.Namespace, run: list[Job], rows: list[Row], absent: dict[str, str], console: Console) -> None:
    """Run all rounds of some products; a job that has failed is left out of later ones."""
    for number in range(1 if given.quick else given.repeats):
        for job in run:
            name = f"{job.name} on {rows[0].ranks} ranks"
            if name in absent:
                continue
            start = time.perf_counter()
            fault = run_job(job, rows, number == 0, given.limit)
            title = rows[0].title + " and others" * (len(rows) > 1)
            console.print(f"{job.name}, {title}: {time.perf_counter() - start:.0f} s {fault}", style="dim")
            if fault:
                absent[name] = fault


def describe_machine() -> dict[str, object]:
    return {
        "cpu": [processor()], "cores": CORES, "load": os.getloadavg(), "python": platform.python_version(), "time": time.ctime(),
    }


def main() -> int:
    given = read_arguments()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # an exception, which ends the job under way, too
    out = make_console(WIDTH)
    console = Console(stderr=True, highlight=False)
    jobs = {job.name: job for job in list_jobs(given.torch_python)}
    names = given.sides.split(",") if given.sides else [*jobs]
    if unknown := [name for name in names if name not in jobs]:
        raise SystemExit(f"peers.py: --sides {','.join(unknown)}: give some of {','.join(jobs)}")
    chosen = [job for name, job in jobs.items() if name in names]
    absent = {job.name: why for job in chosen if (why := job.find_missing())}
    runnable = [job for job in chosen if job.name not in absent]
    products, before, finished = list_products(given), describe_machine(), []
    out.print(f"{before['cpu']}, {CORES} cores, load {before['load']}; NumPy on {CORES} threads; ms, and NumPy's time over it")
    for ranks, of_ranks in products.items():
        rows = [Row(ranks, product) for product in of_ranks]
        finished += rows
        for group in group_rows(rows):
            run_rounds(given, runnable, group, absent, console)
            if given.json:
                output = {"before": before, "after": describe_machine(), "command": sys.argv, "absent": absent}
                output["rows"] = to_json(finished)
                write_json(given.json, output)
        out.print(make_table(ranks, rows))
    for name, why in absent.items():
        out.print(f"absent: {name}: {why}")
    for line in list_left_out(finished):
        out.print(line)
    for line in summarize(finished):
        out.print(line)
    return 1 if any(row.wrong for row in finished) else 0


if __name__ == "__main__":
    sys.exit(main())
