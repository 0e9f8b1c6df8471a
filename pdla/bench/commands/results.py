"""Run the suite, gemm and info: first the facts about the job; then a table, its notes and the JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import pdla
from pdla.bench.arguments import machine
from pdla.bench.leave import check_path, write_file
from pdla.bench.measure.check import Checker
from pdla.bench.measure.facts import facts, is_oversubscribed
from pdla.bench.measure.peak import Peaks
from pdla.bench.measure.product import Bench, Results, Row
from pdla.bench.report import table
from pdla.bench.report.content import report, write
from pdla.bench.screen import Screen
from pdla.bench.stop import FAILED
from pdla.errors import plural

BOUND = "x bound: received over the least that some rank must receive"
MOST = "the most of any rank"
FORMULA = "formula: received, in closed form"
CHECKED = "every product was checked before it was timed"
HOW = (
    "exact = bit for bit on small integers, bound = each element within its error bound; "
    "(NumPy) against NumPy's product, (Freivalds) by products with vectors of +1 and -1"
)
WIDE = "--wide shows all columns, --json FILE keeps all figures"
Work = Callable[[Bench, dict[str, Any]], Iterator[Row | str]]


def name_world(arguments: argparse.Namespace) -> str:
    return "dry" if arguments.dry_run else "threads" if arguments.threads else "mpi"


def report_results(comm: pdla.Communicator, arguments: argparse.Namespace, words: list[str], work: Work) -> int:
    """Collective: run work(bench, known), print its results as they come and write the JSON; returns the exit status.

    work   yields rows, and the reasons for cases left out, in words
    known  facts(...): {} except at rank 0
    """
    check_path(arguments.json, "--json", comm)
    screen = Screen(comm.rank == 0)
    screen.show_progress("looking at the machine")
    known = facts(comm, name_world(arguments))
    on = None if arguments.machine is None else machine(arguments.machine)
    bench, results = Bench(comm, Checker(comm), Peaks(comm), screen, machine=on), Results()
    shown, peaks = table.make_table(screen, not arguments.dry_run, on is not None, arguments.wide), bench.peaks.measured
    for found in work(bench, known):
        if isinstance(found, str):
            results.left_out.append(found)
        else:
            results.rows.append(found)
            table.add(shown, found)
    shown.end()
    if results.rows:
        screen.print("")
    screen.print_text(*(f"left out: {line}" for line in results.left_out), style="dim")
    if comm.rank == 0:
        screen.print_text(*write_notes(results, peaks, known, comm.size, arguments.wide))
    content = report(known, name_world(arguments), comm.size, words, results, peaks, on)
    write_file(arguments.json, lambda path: write(path, content), "--json", comm)
    return 0 if results.right else FAILED


def write_notes(results: Results, peaks: dict[str, float], known: dict[str, Any], ranks: int, wide: bool) -> list[str]:
    """The lines below the table."""
    lines = [row.explained for row in results.rows if row.explained] if len(results.rows) == 1 else []
    at_once = "one rank" if ranks == 1 else f"all {ranks} ranks at once"
    for dtype, rate in peaks.items():
        lines.append(f"peak, {dtype}: {rate / 1e9:.1f} GFLOP/s, local GEMMs of {at_once}, in this run")
    if peaks and is_oversubscribed(known):
        machine = known["machine"]
        shared = f"{machine['ranks_a_host']} ranks share {machine['cores']} {plural(machine['cores'], 'core')}"
        lines.append(f"{shared}: times measure the scheduler, too")
    if results.rows:
        columns = "received, messages, workspace" if wide or not any(row.checks for row in results.rows) else "received"
        lines += [f"{columns}: {MOST}", *([FORMULA] if wide else []), BOUND]
    faults = [fault for row in results.rows for fault in row.faults]
    for row in results.rows:
        lines += [f"{row.algorithm} on {row.case.grid}, {row.case.title}: {fault}" for fault in row.faults]
    if any(row.checks for row in results.rows):
        checked = f"{CHECKED}: {HOW}" if wide else CHECKED
        lines.append(checked if not faults else f"{len(faults)} {plural(len(faults), 'check')} failed")
    return [*lines, WIDE] if results.rows and not wide else lines
