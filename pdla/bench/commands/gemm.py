"""`gemm`: one product, of sizes and options of your choice."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import pdla
from pdla.bench.arguments import Parser, add_machine, add_wide, check_ranks, grid_shape, natural, positive
from pdla.bench.commands.command import Command
from pdla.bench.commands.results import report_results
from pdla.bench.leave import check_path
from pdla.bench.measure.case import Case, file_case, file_operands, random_operands
from pdla.bench.measure.product import Bench, Row, plan_case, predict
from pdla.bench.stop import refuse
from pdla.errors import FileError, GridError, LayoutError, PlanError, ShapeError
from pdla.io import find_format, save

DTYPES = ("float32", "float64", "complex64", "complex128")
SIZE = 2048  # of each of m, n and k, where they are not given
REPEATS = 5
USERS_FAULT = (GridError, LayoutError, ShapeError, PlanError, FileError)  # the same on every rank


def add(to: Parser) -> None:
    """Add the command's arguments."""
    for name, what in (("m", "rows of C"), ("n", "columns of C"), ("k", "columns of op(A), rows of op(B)")):
        to.add_argument(f"-{name}", type=natural, help=f"{what} (default {SIZE})")
    to.add_argument("--dtype", choices=DTYPES, help="element type of A, B and C (default float64)")
    to.add_argument("--algorithm", choices=("auto", *pdla.algorithms), default="auto", help="default auto, whichever costs least")
    to.add_argument("--grid", type=grid_shape, metavar="PRxPC", help="such as 2x3 (default: all ranks, as nearly square as can be)")
    to.add_argument("--panel", type=positive, metavar="WIDTH", help="width of panels (summa, cannon), in indices, at most")
    to.add_argument("--repeats", type=positive, metavar="N", default=REPEATS, help=f"how often to time it (default {REPEATS})")
    for name in "AB":
        how = f"op({name}): N is {name} as it is, T its transpose, C its conjugate transpose (default N)"
        to.add_argument(f"--trans{name.lower()}", choices=("N", "T", "C"), default="N", help=how)
    add_wide(to)
    for name in "AB":
        to.add_argument(f"--{name.lower()}", metavar="FILE", help=f"read {name} from FILE (.npy, .mtx, .h5)")
    to.add_argument("--out", metavar="FILE", help="write C to FILE")
    add_machine(to)


def check(arguments: argparse.Namespace) -> None:
    """Raise Stop if arguments contradict each other."""
    if (arguments.a is None) != (arguments.b is None):
        raise refuse("--a and --b go together: both matrices from files, or none")
    made_up = [name for name in ("m", "n", "k", "dtype") if getattr(arguments, name) is not None]
    if arguments.a is not None and (made_up or arguments.dry_run):
        raise refuse(f"--a and --b give the sizes and the dtype: leave out {', '.join(made_up) or '--dry-run'}")
    if arguments.out is not None and arguments.dry_run:
        raise refuse("a dry run has no C to write to --out")


def run(comm: pdla.Communicator, arguments: argparse.Namespace, words: list[str]) -> int:
    """Collective: run the product; returns the exit status."""
    how = {"repeats": arguments.repeats, "explain": True}
    return report_results(comm, arguments, words, lambda bench, known: _run_product(replace(bench, **how), arguments))


def _run_product(bench: Bench, arguments: argparse.Namespace) -> Iterator[Row]:
    """Collective: check and time the product, and write it for --out."""
    comm, case = bench.comm, _read_case(arguments, bench.comm.size)
    check_path(arguments.out, "--out", comm)
    try:
        if arguments.out:
            find_format(arguments.out)
        if arguments.dry_run:
            yield predict(case, comm.size, bench.machine)
            return
        make = file_operands((arguments.a, arguments.b)) if arguments.a is not None else random_operands
        bench.screen.show_progress("making A and B")
        A, B = make(case, pdla.ProcessGrid(case.grid, comm=comm))
        case = file_case(case, A, B) if arguments.a is not None else case
        plan = plan_case(case, A, B)
    except USERS_FAULT as error:
        raise refuse(error) from error
    yield bench.measure(case, A, B)
    if arguments.out:
        _save(arguments.out, plan(A, B))


def _read_case(arguments: argparse.Namespace, ranks: int) -> Case:
    first, second = arguments.grid or pdla.balanced_shape(ranks)
    check_ranks((first, second), ranks)
    m, n, k = (SIZE if size is None else size for size in (arguments.m, arguments.n, arguments.k))
    how = {name: getattr(arguments, name) for name in ("algorithm", "transa", "transb", "panel")}
    return Case(m, n, k, arguments.dtype or "float64", grid=(first, second), **how)


def _save(path: str, C: pdla.DistMatrix) -> None:
    try:
        save(path, C)
    except FileError as error:
        raise refuse(error) from error


COMMAND = Command(
    "gemm", "check and time one product C = op(A) op(B), of sizes and options of your choice", """\
  mpirun -n 6 python -m pdla.bench gemm -m 3000 -n 2000 -k 500 --grid 2x3
      on a grid of 2 x 3 ranks
  mpirun -n 4 python -m pdla.bench gemm --algorithm summa --panel 128
      by SUMMA, in panels of 128 columns
  mpirun -n 4 python -m pdla.bench gemm --a A.npy --b B.npy --out C.npy
      matrices from files
""", run, add, check,
)
