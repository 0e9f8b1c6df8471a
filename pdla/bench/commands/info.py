"""`info`: machine, MPI, BLAS, threads and cores as the ranks see them, and how ranks wait."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import pdla
from pdla.bench.commands.command import Command
from pdla.bench.commands.results import name_world, report_results
from pdla.bench.measure.facts import POLLS, is_oversubscribed, measure_waits
from pdla.bench.measure.product import Bench, Row
from pdla.errors import plural


def run(comm: pdla.Communicator, arguments: argparse.Namespace, words: list[str]) -> int:
    """Collective: rank 0 prints the facts; returns the exit status."""

    def print_facts(bench: Bench, known: dict[str, Any]) -> Iterator[Row]:
        waits = measure_waits(comm, name_world(arguments))
        if comm.rank == 0:
            bench.screen.print(*write_lines(known, comm, name_world(arguments), waits))
        return iter(())

    return report_results(comm, arguments, words, print_facts)


def write_lines(known: dict[str, Any], comm: pdla.Communicator, world: str, waits: dict[str, float]) -> list[str]:
    """The lines of `info`, at rank 0."""
    machine, versions = known["machine"], known["versions"]
    mpi = known["mpi"]
    return [
        f"pdla       {versions['pdla']}, commit {versions['commit'] or 'unknown (not a git checkout)'}",
        f"Python     {versions['python']} ({sys.executable}), NumPy {versions['numpy']}, SciPy {versions['scipy']}",
        f"machine    {machine['host']}, {machine['processor']}, {machine['system']}",
        f"MPI        {mpi['library'].splitlines()[0]}" if mpi else f"MPI        not used: ranks are {name_world}",
        *([f"           standard {mpi['standard']}, mpi4py {mpi['mpi4py']}"] if mpi else []),
        *(f"BLAS       {_name_library(b)}, {_count_threads(b)}" for b in known["blas"]),
        f"ranks      {comm.size} on {machine['hosts']} {plural(machine['hosts'], 'host')}, {machine['ranks_a_host']} a host; "
        f"{machine['cores']} {plural(machine['cores'], 'core')} here, {machine['cores_a_rank']} that rank 0 may use",
        *_describe_waits(known, comm, waits),
        f"devices    {_name_devices(comm)}",
    ]


def _name_library(blas: dict[str, Any]) -> str:
    """A BLAS in words; oneMKL does not name its processor."""
    return f"{blas['internal_api']} {blas['version']}" + (f" ({blas['architecture']})" if blas["architecture"] else "")


def _name_devices(comm: pdla.Communicator) -> str:
    if comm.xp.name == "numpy":
        return "none used; --array cupy puts matrices on GPUs, and finds out whether this MPI takes their memory"
    way = "gets copies in pinned memory of the host" if getattr(comm, "staged", False) else "takes device memory"
    return "CuPy's arrays, which go by NCCL" if hasattr(comm, "nccl") else f"CuPy's arrays; MPI {way}"


def _count_threads(pool: dict[str, Any]) -> str:
    return f"{pool['num_threads']} {plural(pool['num_threads'], 'thread')} a rank"


def _describe_waits(known: dict[str, Any], comm: pdla.Communicator, waits: dict[str, float]) -> list[str]:
    if not waits:
        return ["waiting    not measured: one rank waits for nobody"]
    crowded = is_oversubscribed(known)
    kinds = ", ".join(f"{way} {'polls' if used > POLLS else 'yields'} ({used:.0%} CPU)" for way, used in waits.items())
    found = [f"waiting    {kinds}; ranks {'outnumber the cores' if crowded else 'have a core each'}"]
    if crowded and waits.get("MPI_Barrier", 0) > POLLS:
        found.append(
            "WARNING    this MPI busy-polls in its own blocking calls and ranks share cores: programs that use those "
            "calls measure the scheduler. pdla waits in a loop of its own, which sleeps."
        )
    if waits["pdla"] > POLLS and crowded:
        found.append("WARNING    pdla's own wait polls although ranks share cores: times measure the scheduler")
    return found


COMMAND = Command(
    "info", "show machine, MPI, BLAS, threads and cores as the ranks see them, and how ranks wait", """\
  mpirun -n 64 python -m pdla.bench info
      which MPI and BLAS, and how ranks wait
""", run, lacks=("machine", "wide"), refuses=("dry_run", "ranks"),
)
