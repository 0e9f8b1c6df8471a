"""The papers' claims, predicted and measured: python -m bench.experiments [--quick] [--only NAME] [--json FILE] [--write]

| part | content |
|---|---|
| full | dry runs of every case at the papers' sizes on the described machines a100x4 and v100x4 |
| steps | the same with bandwidth as the only cost, then also latency, nodes and computing, one after the other |
| placement | the same with other axes of the grid inside a node |
| calibrated | this machine's core, by `python -m pdla.bench calibrate` on one rank a core |
| measured | every case, scaled down, on an emulated cluster of 16 hosts of 4 ranks (bench/cluster.py needs Linux and root) |
| same | dry runs of the measured cases, on a machine that describes that cluster |

FILE.part keeps each part as soon as it is done; a stopped run continues from it. FILE is written at the end. --write renders
docs/experiments.md and its picture from FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.claims import dry, page, tables
from bench.claims.cases import CASES, MPI_TREES
from bench.claims.claims import CLAIMS
from bench.cluster import RATE, parse_rate
from bench.common import core
from bench.common.given import make_parser
from bench.common.launch import CORES, ROOT
from pdla.bench.arguments import to_write
from pdla.bench.measure.facts import processor
from pdla.model.machine import Machine

DOCS = ROOT / "docs"
FILE = DOCS / "experiments.json"
PLACED = "strong"  # the cases whose placements are compared
PROBES = "probes"  # claims.job's name for its measurements of the network itself
HOSTS, PER_HOST = 16, 4
MACHINES = ("a100x4", "v100x4")
PARTS = ("full", "steps", "placement", "calibrated", "measured", "same")
DRY = PARTS[:3]
JOB = {"OMP_NUM_THREADS": "1", "PDLA_TIMEOUT": "600"}


def read_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="only the dry runs at full size, which take seconds")
    parser.add_argument("--only", metavar="NAME", help="repeat one part, or the measurements of cases whose names contain NAME")
    json_options = {"type": lambda path: Path(to_write(path)), "default": FILE, "help": "default docs/experiments.json"}
    parser.add_argument("--json", metavar="FILE", **json_options)
    parser.add_argument("--write", action="store_true", help="render docs/experiments.md and its picture")
    parser.add_argument("--rate", default="50mbit", help="rate of each host's link (default 50mbit)")
    parser.add_argument("--repeats", type=int, default=10, help="repeats of each pass on the cluster (default 10)")
    parser.add_argument("--limit", type=float, default=1500, help="seconds the measurements may take (default 1500)")
    given = parser.parse_args()
    if not RATE.fullmatch(given.rate) or given.repeats < 1:
        parser.error(f"--rate {given.rate} --repeats {given.repeats}: a rate such as 50mbit, and at least one repeat")
    return given


class Results:
    """The results so far, kept in FILE.part until the run ends; the cluster's ranks add lines to FILE.lines."""

    def __init__(self, file: Path, again: bool) -> None:
        self.file, self.part, self.lines = (file.with_name(file.name + end) for end in ("", ".part", ".lines"))
        source = self.part if self.part.exists() else file if again and file.exists() else None
        self.told: dict[str, Any] = json.loads(source.read_text()) if source else {}

    def keep(self, part: str, figures: Any) -> None:
        self.told[part] = figures
        self.part.write_text(page.format_json(self.told))

    def add_lines(self) -> None:
        """Add the lines of the cluster's ranks to the results."""
        lines = self.lines.read_text().splitlines() if self.lines.exists() else []
        by_case = dict(pair for line in lines for pair in json.loads(line).items())
        self.keep("measured", self.told.get("measured", {}) | by_case)
        self.lines.unlink(missing_ok=True)

    def finish(self) -> None:
        self.part.replace(self.file)


def describe_host() -> dict[str, Any]:
    return {
        "cpu": processor(),
        "cores": CORES,
        "date": time.strftime("%B %Y"),
        "load": os.getloadavg()[0],
    }


# ---------------------------------------------------------------------------------------------- dry


def predict_full(results: Results, given: argparse.Namespace) -> dict[str, Any]:
    """Figures by machine and case."""
    results.keep("parameters", dry.count_parameters(CASES["CNN Tensor3D"].full))
    return {
        name: {case.name: dry.run_dry(case.full, Machine.load(name)) for case in CASES.values() if not case.undry}
        for name in MACHINES
    }


def predict_steps(results: Results, given: argparse.Namespace) -> dict[str, Any]:
    """Figures by machine and case, for the cases of claims on that machine."""
    claimed = {(claim.machine, case) for claim in CLAIMS for case in (claim.faster, claim.slower)}
    return {
        name: {case: dry.run_steps(CASES[case].full, Machine.load(name)) for machine, case in sorted(claimed) if machine == name}
        for name in MACHINES
    }


def predict_placements(results: Results, given: argparse.Namespace) -> dict[str, Any]:
    strong = [case for case in CASES.values() if case.name.startswith(PLACED) and not case.undry and not case.full.way.tile]
    return {name: {case.name: dry.run_placements(case, Machine.load(name)) for case in strong} for name in MACHINES}


def predict_measured(results: Results, given: argparse.Namespace) -> dict[str, Any]:
    """Figures by case; none without a measurement of the cluster's network."""
    parts = results.told
    if PROBES not in parts.get("measured", {}):
        return {}
    machine = describe_cluster(parts)
    return {name: dry.run_dry(CASES[name].small, machine) for name in parts["measured"] if name in CASES and not CASES[name].undry}


def describe_cluster(parts: dict[str, Any]) -> Machine:
    """The cluster as a machine: measured links, and a rank's share of a core's figures."""
    probes = parts["measured"][PROBES]
    gap = probes["gap"]  # part of the time of a single message, too
    network = {"gap": gap} | {name: max(0.0, probes[name] - gap) for name in ("latency", "far_latency")}
    rate = probes["one_to_one"]  # TCP's share of the rate; all_to_all also has waits, which the clock models
    return replace(
        core.share_core(Machine(**parts["calibrated"]), parts["crowd"]), **network, network=rate, injection=rate, node=PER_HOST,
        overlap=1.0, name=f"{HOSTS} emulated hosts of {PER_HOST} ranks, links of {parts['rate']}", source="bench/experiments.py",
    )


# ---------------------------------------------------------------------------------------------- measured


def calibrate_core(results: Results, given: argparse.Namespace) -> dict[str, Any]:
    """The figures of a core, by one rank on each core, all at once."""
    return asdict(core.calibrate_core())


def measure_cases(results: Results, given: argparse.Namespace) -> dict[str, Any]:
    """Figures by case, kept at the same rate and repeats, else measured now; "absent" has the reason of a failure."""
    parts, settings = results.told, {"rate": given.rate, "repeats": given.repeats}
    if given.only == "measured" or {key: parts.get(key) for key in settings} != settings:
        parts["measured"] = {}
        results.lines.unlink(missing_ok=True)
    parts.update(settings, hosts=HOSTS, bytes_a_second=parse_rate(given.rate), crowd=HOSTS * PER_HOST / CORES)
    results.add_lines()
    parts["measured"].pop("absent", None)
    missing = [name for name in (PROBES, *CASES) if name not in parts["measured"]]
    missing = [name for name in missing if name == PROBES or not CASES[name].unmeasured]
    return parts["measured"] | (run_on_cluster(results, given, missing) if missing else {})


def run_on_cluster(results: Results, given: argparse.Namespace, cases: list[str]) -> dict[str, Any]:
    """All measured figures, and "wire": the job's bytes by the kernel over those by the ledgers; or "absent"."""
    spec = json.dumps({"cases": cases, "repeats": given.repeats, "results": str(results.lines.absolute())})
    shape = ["--hosts", HOSTS, "--ranks-per-host", PER_HOST, "--rate", given.rate, "--limit", given.limit]
    command = [sys.executable, "-m", "bench.cluster", *shape, "--", "python", "-m", "bench.claims.job", spec]
    try:
        status, lines = run_shown(list(map(str, command)))
    finally:
        results.add_lines()
    if status:
        reasons = [line for line in lines if line.startswith("cluster: ")]
        reason = reasons[-1] if reasons else f"bench/cluster.py ended with exit status {status}"
        return results.told["measured"] | {"absent": reason}
    (wire,) = (line.rpartition("= ")[2] for line in lines if line.startswith("received / by ledgers"))
    return results.told["measured"] | {"wire": float(wire)}


def run_shown(command: list[str]) -> tuple[int, list[str]]:
    """Run a command and print its output; return its exit status, and the lines."""
    lines, env = [], os.environ | JOB | MPI_TREES
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        for line in job.stdout or ():
            lines.append(line.rstrip())
            print(line, end="", file=sys.stderr, flush=True)
    return job.returncode, lines


# ---------------------------------------------------------------------------------------------- a run

RUN = {
    "full": predict_full, "steps": predict_steps, "placement": predict_placements, "calibrated": calibrate_core,
    "measured": measure_cases, "same": predict_measured,
}


def list_parts(results: Results, given: argparse.Namespace) -> list[str]:
    """The parts to run: those of --only or --quick, or else those that a stopped run lacks."""
    cases = [case for case in CASES if given.only and given.only in case]
    if given.only and given.only not in PARTS and not cases:
        names = f"{', '.join(PARTS)}, nor in a case's name: {'; '.join(CASES)}"
        raise SystemExit(f"experiments.py: --only {given.only}: none of {names}")
    if given.only and not results.told:
        raise SystemExit(f"experiments.py: --only {given.only}: {given.json} is not there yet; run without --only first")
    if given.only in PARTS or given.quick:
        return [part for part in PARTS if part == given.only or (given.quick and part in DRY)]
    if not given.only:
        return [part for part in PARTS if part not in results.told or part in ("measured", "same")]
    measured = results.told.get("measured", {})
    results.told["measured"] = {case: figures for case, figures in measured.items() if case not in cases}
    return ["measured", "same"]


def main() -> int:
    given = read_arguments()
    results = Results(given.json, again=bool(given.only or given.quick))
    parts = list_parts(results, given)
    if "about" not in results.told or not {*parts} <= {*DRY, "same"}:  # dry runs do not depend on this machine
        results.keep("about", describe_host())
    for part in parts:
        start = time.perf_counter()
        results.keep(part, RUN[part](results, given))
        print(f"{part}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    absent = results.told.get("measured", {}).get("absent")
    if absent:
        print(f"not all is measured: {absent}; {results.part} keeps the rest", file=sys.stderr)
    else:
        results.finish()
    print(tables.make_claims_table(results.told))
    if given.write:
        machines = {name: Machine.load(name) for name in MACHINES}
        if PROBES in results.told.get("measured", {}):
            machines["emulated"] = describe_cluster(results.told)
        page.write(results.told, DOCS, machines)
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
