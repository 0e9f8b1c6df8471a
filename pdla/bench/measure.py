"""The commands that all ranks run together: the suite, one product (gemm), and facts about the machine (info)."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import pdla
from pdla.bench import info, report, suite
from pdla.bench.arguments import Parser, add_machine, grid_shape, machine, natural, positive
from pdla.bench.case import Case, file_case, file_operands, random_operands
from pdla.bench.check import Checker
from pdla.bench.gemm import Bench, planned, predict
from pdla.bench.info import oversubscribed
from pdla.bench.leave import foresee, leave
from pdla.bench.peak import Peaks
from pdla.bench.plural import plural
from pdla.bench.stop import FAILED, refuse
from pdla.bench.suite import Results
from pdla.errors import FileError, GridError, LayoutError, PlanError, ShapeError
from pdla.io import known, save
from pdla.model.machine import Machine

DTYPES = ("float32", "float64", "complex64", "complex128")
SIZE = 2048  # of each of m, n and k, where they are not given
REPEATS = 5
CHECKED = (
    "every product was checked before it was timed: exact = bit for bit on small integers, bound = each element within "
    "its error bound;\n(NumPy) against NumPy's product, (Freivalds) by products with vectors of +1 and -1"
)
USERS_FAULT = (GridError, LayoutError, ShapeError, PlanError, FileError)  # which are the same on every rank


def add_gemm(to: Parser) -> None:
    """Add the arguments of gemm."""
    for name, what in (("m", "rows of C"), ("n", "columns of C"), ("k", "columns of op(A), rows of op(B)")):
        to.add_argument(f"-{name}", type=natural, help=f"{what} (default {SIZE})")
    to.add_argument("--dtype", choices=DTYPES, help="element type of A, B and C (default float64)")
    to.add_argument("--algorithm", choices=("auto", *pdla.algorithms), default="auto", help="default auto: whichever costs least")
    to.add_argument("--grid", type=grid_shape, metavar="PRxPC", help="such as 2x3 (default: all ranks, as nearly square as can be)")
    to.add_argument("--panel", type=positive, metavar="WIDTH", help="width of panels (summa, cannon), in indices, at most")
    to.add_argument("--repeats", type=positive, metavar="N", default=REPEATS, help=f"how often to time it (default {REPEATS})")
    for name in "AB":
        how = f"op({name}): N is {name} as it is, T its transpose, C its conjugate transpose (default N)"
        to.add_argument(f"--trans{name.lower()}", choices=("N", "T", "C"), default="N", help=how)
    for name in "AB":
        to.add_argument(f"--{name.lower()}", metavar="FILE", help=f"read {name} from FILE (.npy, .mtx, .h5)")
    to.add_argument("--out", metavar="FILE", help="write C to FILE")
    add_machine(to)


def check_files(arguments: argparse.Namespace) -> None:
    """Raises Stop where arguments of gemm contradict each other."""
    if (arguments.a is None) != (arguments.b is None):
        raise refuse("--a and --b go together: both matrices from files, or none")
    made_up = [name for name in ("m", "n", "k", "dtype") if getattr(arguments, name) is not None]
    if arguments.a and (made_up or arguments.dry_run):
        raise refuse(f"--a and --b give the sizes and the dtype: leave out {', '.join(made_up) or '--dry-run'}")
    if arguments.out and arguments.dry_run:
        raise refuse("a dry run has no C to write to --out")


# ---------------------------------------------------------------------------------------------- running


def program(comm: pdla.Communicator, arguments: argparse.Namespace, words: list[str]) -> int:
    """Collective: run the command; gives the exit status."""
    world = "dry" if arguments.dry_run else "threads" if arguments.threads else "mpi"
    foresee(arguments.json, "--json", comm)
    known, on = info.facts(comm, world), None if arguments.machine is None else machine(arguments.machine)
    if arguments.command == "info":
        waits = info.waiting(comm, world)
        if comm.rank == 0:
            print("\n".join(info.lines(known, comm, world, waits)))
        results, peaks = Results(), Peaks(comm)
    else:
        results, peaks = _multiply(comm, arguments, world, on)
    if comm.rank == 0:
        _show(results, peaks, known, comm.size)
    content = report.report(known, world, comm.size, words, results, peaks.measured, on)
    leave(arguments.json, lambda path: report.write(path, content), "--json", comm)
    return 0 if results.right else FAILED


def _multiply(
    comm: pdla.Communicator, arguments: argparse.Namespace, world: str, on: Machine | None
) -> tuple[Results, Peaks]:
    bench = Bench(comm, Checker(comm), Peaks(comm), machine=on)
    if arguments.command == "gemm":
        results = _gemm(replace(bench, repeats=arguments.repeats, explain=True), arguments)
    else:
        results = suite.predicted(comm.size, on) if world == "dry" else suite.run(bench)
    return results, bench.peaks


def _gemm(bench: Bench, arguments: argparse.Namespace) -> Results:
    comm, case = bench.comm, _case(arguments, bench.comm.size)
    foresee(arguments.out, "--out", comm)
    try:
        if arguments.out:
            known(arguments.out)
        if arguments.dry_run:
            return Results([predict(case, comm.size, bench.machine)])
        make = file_operands((arguments.a, arguments.b)) if arguments.a else random_operands
        A, B = make(case, pdla.ProcessGrid(case.grid, comm=comm))
        case = file_case(case, A, B) if arguments.a else case
        plan = planned(case, A, B)
    except USERS_FAULT as error:
        raise refuse(error) from error
    results = Results([bench.measure(case, A, B)])
    if arguments.out:
        _save(arguments.out, plan(A, B))
    return results


def _case(arguments: argparse.Namespace, ranks: int) -> Case:
    first, second = arguments.grid or pdla.balanced_shape(ranks)
    if first * second > ranks:
        raise refuse(f"--grid {first}x{second} needs {first * second} ranks, there {plural(ranks, 'is', 'are')} {ranks}")
    m, n, k = (SIZE if size is None else size for size in (arguments.m, arguments.n, arguments.k))
    return Case(
        m,
        n,
        k,
        dtype=arguments.dtype or "float64",
        algorithm=arguments.algorithm,
        grid=(first, second),
        transa=arguments.transa,
        transb=arguments.transb,
        panel=arguments.panel,
    )


def _save(path: str, C: pdla.DistMatrix) -> None:
    try:
        save(path, C)
    except FileError as error:
        raise refuse(error) from error


# ---------------------------------------------------------------------------------------------- what they leave


def _show(results: Results, peaks: Peaks, known: dict[str, Any], ranks: int) -> None:
    """Print everything; at rank 0."""
    from pdla.bench import table

    table.show(results.rows, results.left_out, notes(results, peaks, known, ranks))


def notes(results: Results, peaks: Peaks, known: dict[str, Any], ranks: int) -> list[str]:
    """The lines below the table."""
    lines = [row.explained for row in results.rows if row.explained] if len(results.rows) == 1 else []
    at_once = "one rank" if ranks == 1 else f"all {ranks} ranks at once"
    for dtype, rate in peaks.measured.items():
        lines.append(f"peak, {dtype}: {rate / 1e9:.1f} GFLOP/s, local GEMMs of {at_once}, in this run")
    if peaks.measured and oversubscribed(known):
        machine = known["machine"]
        shared = f"{machine['ranks_a_host']} ranks share {machine['cores']} {plural(machine['cores'], 'core')}"
        lines.append(f"{shared}: times measure the scheduler, too")
    faults = [fault for row in results.rows for fault in row.faults]
    for row in results.rows:
        lines += [f"{row.algorithm} on {row.case.grid}, {row.case.title}: {fault}" for fault in row.faults]
    if any(row.checks for row in results.rows):
        lines.append(CHECKED if not faults else f"{len(faults)} {plural(len(faults), 'check')} failed")
    return lines
