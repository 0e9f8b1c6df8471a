"""pdla beside ScaLAPACK and an allgather by hand on an emulated network, all in one run: python -m bench.network [--json FILE]

For each rate of the links and each number of ranks a host, the script builds a cluster (bench/cluster.py) and runs three jobs:

* pdla in its native layouts and from 2-D blocks to 2-D blocks, and the ranks' own GEMMs without communication ("computing");
* allgather and numpy.matmul by hand;
* ScaLAPACK's pdgemm under Open MPI, in the best of two block sizes.

Every rank has one BLAS thread. PDLA_MACHINE describes the cluster to pdla: the links' rate, and a rank's share of a calibrated
core. Times are medians over turns of a second of products. Sides that alternate leave out the first product of a turn. MB are bytes
of one product on the link of the host that received most, as the kernel counted them. The floor is computing, plus pdla's volume by
its ledger over the link's rate.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from functools import partial
from itertools import product as cross
from math import exp, log
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median

from rich.console import Console
from rich.table import Table

from bench import cluster
from bench.common import core
from bench.common.given import make_parser, read_shapes
from bench.common.launch import AS_ROOT, CORES, OPEN_MPI, ROOT, find_core_type, find_scalapack_fault, make_thread_limits
from bench.common.table import make_console, start_table
from pdla.bench.arguments import positive, positives, to_write
from pdla.bench.leave import write_json
from pdla.model.machine import Machine

SHAPES = ("2048x2048x2048", "512x512x32768", "2048x2048x128", "32768x512x512")
PDLA = (("ceiling", ""), ("ours", "native"), ("ours", "blocks"))
JOBS = {"pdla": PDLA, "by hand": (("by_hand", ""),), "ScaLAPACK": (("pdgemm", "64"), ("pdgemm", "256"))}
PEERS = ("by_hand", "pdgemm")
NEAR = 9e8  # bytes a second and core between ranks of a host: measured with 64 ranks on two cores, messages of 1 to 2 MiB
FAR = 1e-3  # seconds until a rank that naps sees a message of another host: measured with 2 ranks of 16 that sum 11 kB
TURN = 1.0  # seconds of products in a side's turn
WIDTH = 170  # columns, where the output is no terminal


def read_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--hosts", type=int, default=16, help="default 16")
    parser.add_argument("--ranks-per-host", type=positives, default="1,4", help="numbers (default 1,4)")
    parser.add_argument("--rates", default="200mbit,50mbit", help="of links (default 200mbit,50mbit)")
    parser.add_argument("--shapes", type=read_shapes, default=",".join(SHAPES), help=f"m x n x k, default {','.join(SHAPES)}")
    parser.add_argument("--sides", default=",".join(JOBS), help=f"jobs to run (default {','.join(JOBS)})")
    parser.add_argument("--turns", type=positive, default=3, help="times that sides of one job take turns (default 3)")
    parser.add_argument("--unchecked", action="store_true", help="do not check the products first: it takes two of each")
    parser.add_argument("--limit", type=float, default=1200, help="seconds of all jobs on a cluster (default 1200)")
    parser.add_argument("--json", type=to_write, metavar="FILE", help="write everything to FILE")
    return parser.parse_args()


def check(given: argparse.Namespace) -> None:
    """Raise Refused before the measurements if sides or clusters cannot run."""
    if unknown := [name for name in given.sides.split(",") if name not in JOBS]:
        raise cluster.Refused(f"--sides {','.join(unknown)}: give some of {','.join(JOBS)}")
    for rate, ranks in cross(given.rates.split(","), given.ranks_per_host):
        options = {"hosts": given.hosts, "ranks": ranks, "rate": rate, "limit": given.limit}
        cluster.check(argparse.Namespace(**options, command=["python", "-m", "bench.sides.job"]))


# ---------------------------------------------------------------------------------------------- jobs


def run_jobs(given: argparse.Namespace, ranks: int, rate: str, results: Path) -> int:
    """Run all jobs on one cluster, which ends with this process; write their lines to `results`."""
    cluster.hide()
    cluster.FOLDER.mkdir(parents=True)
    cluster.build(given.hosts, rate)
    work = [[*shape, "float64"] for shape in given.shapes]
    for name in given.sides.split(","):
        lines_file = cluster.FOLDER / "results"
        lines_file.write_text("")
        spec = {"check": not given.unchecked, "turns": given.turns, "turn": TURN}
        spec["work"] = [{"sizes": sizes, "sides": JOBS[name]} for sizes in work]
        start = run_open_mpi if name == "ScaLAPACK" else cluster.mpirun
        if name == "pdla":
            os.environ["PDLA_MACHINE"] = write_machine(given.core, given.hosts, ranks, rate)
        words = json.dumps(spec | {"results": str(lines_file)})
        status = start(given.hosts, ranks, [sys.executable, "-m", "bench.sides.job", words])
        lines = [json.loads(line) for line in lines_file.read_text().splitlines()]
        with results.open("a") as file:
            for line in lines:
                json.dump(line | {"hosts": given.hosts, "ranks": given.hosts * ranks, "rate": rate}, file)
                file.write("\n")
        if status:
            print(f"network: {name} ended with exit status {status}", file=sys.stderr)
    return 0


def write_machine(core_machine: Machine, hosts: int, ranks: int, rate: str) -> str:
    """Write the machine that describes the cluster; return the file."""
    file = cluster.FOLDER / "machine.toml"
    link = cluster.parse_rate(rate)
    rank_machine = core.share_core(replace(core_machine, bandwidth=NEAR), max(1.0, hosts * ranks / CORES))
    name = f"{hosts} emulated hosts of {ranks} ranks, links of {rate}"
    links = {"network": link / ranks, "injection": link, "far_latency": FAR}
    file.write_text(replace(rank_machine, **links, node=ranks, name=name, source="bench/network.py").text())
    return str(file)


def run_open_mpi(hosts: int, ranks: int, command: list[str]) -> int:
    """Run a command on `ranks` ranks a host under Debian's Open MPI, which its ScaLAPACK needs."""
    machines = cluster.FOLDER / "slots"
    machines.write_text("".join(f"{cluster.address(i)} slots={ranks}\n" for i in range(1, hosts + 1)))
    parameters = {
        "plm_rsh_agent": cluster.write_launcher(), "plm_rsh_no_tree_spawn": 1, "btl": "tcp,vader,self", "pml": "ob1",
        "btl_tcp_if_include": "eth0", "oob_tcp_if_include": "eth0", "mpi_yield_when_idle": 1,
    }
    options = [word for name, value in parameters.items() for word in ("--mca", name, value)]
    environment = OPEN_MPI | find_core_type()
    for name in (*environment, "PYTHONPATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        options += ["-x", name]
    words = ["mpirun.openmpi", "--hostfile", machines, "--bind-to", "none", *options, "-np", hosts * ranks, *command]
    return cluster.run_on_first_host(words, dict(os.environ) | environment | AS_ROOT)


# ---------------------------------------------------------------------------------------------- figures


class Row:
    """One product on one cluster: the lines of its sides."""

    def __init__(self, lines: list[dict]) -> None:
        self.sides = {(line["side"], line["variant"]): line for line in lines}
        self.first = lines[0]

    def best(self, side: str, variant: str = "") -> dict | None:
        lines = [line for (name, line_variant), line in self.sides.items() if name == side and variant in ("", line_variant)]
        return min(lines, key=lambda line: median(line["seconds"]), default=None)

    def over_pdla(self, side: str) -> float | None:
        """Compute a peer's median time over pdla's in its native layouts."""
        ours, theirs = self.best("ours", "native"), self.best(side)
        return median(theirs["seconds"]) / median(ours["seconds"]) if ours and theirs else None

    def over_floor(self) -> float | None:
        """Compute pdla's median time over the floor: its volume over the link's rate, plus computing."""
        ours, alone = self.best("ours", "native"), self.best("ceiling")
        if ours is None or alone is None:
            return None
        return median(ours["seconds"]) / (ours["volume"] / cluster.parse_rate(self.first["rate"]) + median(alone["seconds"]))

    def cells(self) -> list[str]:
        sizes = " x ".join(str(self.first[name]) for name in "mnk")
        lines = [self.best("ours", "native"), self.best("ours", "blocks"), *map(self.best, PEERS)]
        alone = self.best("ceiling")
        ratios = [self.over_floor(), *map(self.over_pdla, PEERS)]
        return [
            sizes,
            *("–" if line is None else f"{median(line['seconds']):.3f}  {mean(line['link_bytes']) / 1e6:.1f}" for line in lines),
            "–" if alone is None else f"{median(alone['seconds']):.3f}",
            *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        ]


def group_rows(lines: list[dict]) -> dict[tuple[str, int], list[Row]]:
    """Group lines by rate and number of ranks, with a row for each product."""
    groups: dict[tuple, list[dict]] = {}
    for line in lines:
        groups.setdefault((line["rate"], line["ranks"], line["m"], line["n"], line["k"]), []).append(line)
    rows: dict[tuple[str, int], list[Row]] = {}
    for (rate, ranks, *_), lines_of_product in groups.items():
        rows.setdefault((rate, ranks), []).append(Row(lines_of_product))
    return rows


def make_table(rate: str, ranks: int, hosts: int, rows: list[Row]) -> Table:
    title = f"{ranks} ranks on {hosts} hosts, links of {rate}: seconds, and MB on the busiest link"
    times = "pdla, own layouts", "pdla, 2-D blocks", "by hand", "ScaLAPACK", "computing"
    table = start_table(title, "m x n x k", *times, "over floor", "by hand / pdla", "ScaLAPACK / pdla")
    for row in rows:
        table.add_row(*row.cells())
    return table


def summarize(found: dict[tuple[str, int], list[Row]]) -> list[str]:
    rows = [row for rows_of_cluster in found.values() for row in rows_of_cluster]
    ratios = {side: [ratio for row in rows if (ratio := row.over_pdla(side))] for side in PEERS}
    floors = [floor for row in rows if (floor := row.over_floor())]
    lines = [
        f"pdla against {side}: faster in {sum(r > 1 for r in values)} of {len(values)} rows, "
        f"{exp(mean(map(log, values))):.2f} times on average"
        for side, values in ratios.items()
        if values
    ]
    exact = [line["exact"] for row in rows for line in row.sides.values() if line["exact"] is not None]
    if floors:
        lines.append(f"pdla over its volume / rate + computing: median {median(floors):.2f}, largest {max(floors):.2f}")
    return [*lines, f"exact on integers, twice: {sum(exact)} of {len(exact)} products of a side"]


def measure_all(given: argparse.Namespace, folder: Path, out: Console) -> list[dict]:
    """Measure all sides on all clusters; return their lines. Each cluster has a process of its own, and ends with it."""
    all_lines: list[dict] = []
    for rate in given.rates.split(","):
        for ranks in given.ranks_per_host:
            results = folder / f"{rate}-{ranks}"
            results.touch()
            work = partial(run_jobs, given, ranks, rate, results)
            job = get_context("fork").Process(target=lambda work=work: sys.exit(cluster.run_contained(work, given.limit)))
            job.start()
            job.join()
            lines = [json.loads(line) for line in results.read_text().splitlines()]
            all_lines += lines
            for (_, total), rows in group_rows(lines).items():
                out.print(make_table(rate, total, given.hosts, rows))
    return all_lines


def main() -> int:
    given = read_arguments()
    os.environ |= make_thread_limits(1) | {"PYTHONPATH": str(ROOT)}
    out = make_console(WIDTH)
    if "ScaLAPACK" in given.sides and (why := find_scalapack_fault()):
        out.print(f"left out: ScaLAPACK: {why}")
        given.sides = ",".join(name for name in given.sides.split(",") if name != "ScaLAPACK")
    try:
        check(given)
        given.core = core.calibrate_core() if "pdla" in given.sides else None
        with tempfile.TemporaryDirectory() as folder:
            lines = measure_all(given, Path(folder), out)
    except cluster.Refused as reason:
        return cluster.refuse(reason)
    if given.json:
        write_json(given.json, {"command": sys.argv, "lines": lines})
    for line in summarize(group_rows(lines)):
        out.print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
