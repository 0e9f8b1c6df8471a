"""The suite, which runs without arguments: every algorithm that fits the ranks, on synthetic and on real input."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import pdla
from pdla.bench.commands.command import Command
from pdla.bench.commands.results import report_results
from pdla.bench.measure.case import Case, Make, digits, digits_operands, digits_path, random_operands
from pdla.bench.measure.product import Bench, Row, predict
from pdla.errors import PlanError
from pdla.matmul.schedules import ON_GRID

SIDE, MANY_RANKS_SIDE = 1536, 1024  # n of the square product, rounded up to a multiple of the ranks; on more than
MANY = 16  # ranks; more take long on few cores
NO_DIGITS = (
    "the digits (real input): scikit-learn, which ships them, is not installed; `pip install scikit-learn` brings it"
)


def list_grids(ranks: int) -> list[tuple[int, int]]:
    """The most nearly square grid, and that of one row."""
    balanced = pdla.balanced_shape(ranks)
    return list(dict.fromkeys([(balanced[0], balanced[1]), (1, ranks)]))


def list_synthetic(ranks: int) -> Iterator[Case]:
    """A square product whose sizes are multiples of the ranks; a flat one; and an uneven complex one with transposes."""
    n = -(-(SIDE if ranks <= MANY else MANY_RANKS_SIDE) // ranks) * ranks
    square = Case(n, n, n)
    flat = Case(n, n, max(ranks, n // 8 // ranks * ranks), "float32")
    ragged = Case(401, 299, 353, "complex128", transa="C", transb="T")
    grids = list_grids(ranks)
    names = (*ON_GRID, "auto") if ranks <= MANY else ("auto",)
    yield from (replace(square, grid=grids[0], algorithm=name) for name in pdla.algorithms)
    yield from (replace(square, grid=line, algorithm=name) for line in grids[1:] for name in names)
    yield from (replace(case, grid=grids[0], algorithm=name) for case in (flat, ragged) for name in names)


def list_real(ranks: int) -> Iterator[Case]:
    """The Gram matrices of scikit-learn's digits, 1797 images of 64 points: X X^T and X^T X."""
    grid = list_grids(ranks)[0]
    yield Case(1797, 1797, 64, grid=grid, transb="T", source="digits")
    yield Case(64, 64, 1797, grid=grid, transa="T", source="digits")


def run(comm: pdla.Communicator, arguments: argparse.Namespace, words: list[str]) -> int:
    """Collective: run the suite; returns the exit status."""
    work = predict_suite if arguments.dry_run else measure_suite
    return report_results(comm, arguments, words, lambda bench, known: work(bench))


def measure_suite(bench: Bench) -> Iterator[Row | str]:
    """Collective: measure the suite; takes at most about two minutes, even with 64 ranks on two cores."""
    comm = bench.comm
    path = comm.share(digits_path() if comm.rank == 0 else None)[0]
    X = digits(path) if path and comm.rank == 0 else None
    work: list[tuple[Case, Make]] = [(case, random_operands) for case in list_synthetic(comm.size)]
    work += [(case, digits_operands(X)) for case in list_real(comm.size)] if path else []
    if not path:
        yield NO_DIGITS
    for done, (case, make) in enumerate(work):
        bench.screen.show_progress(f"{case.algorithm}: making A and B", done, len(work))
        try:
            with pdla.ProcessGrid(case.grid, comm=comm) as grid:
                found: Row | str = bench.measure(case, *make(case, grid))
        except PlanError as reason:
            found = say_left_out(case, reason)
        yield found


def say_left_out(case: Case, reason: Exception) -> str:
    return f"{case.algorithm} on {case.grid[0]} x {case.grid[1]}, {case.title}: {reason}"


def predict_suite(bench: Bench) -> Iterator[Row | str]:
    """Predict the suite's figures for any number of ranks, by dry runs; times only for a machine."""
    cases = list(list_synthetic(bench.comm.size))
    for done, case in enumerate(cases):
        bench.screen.show_progress(case.algorithm, done, len(cases))
        try:
            found: Row | str = predict(case, bench.comm.size, bench.machine)
        except PlanError as reason:
            found = say_left_out(case, reason)
        yield found


COMMAND = Command(
    "suite", "check and time every algorithm that fits this number of ranks, on made-up and real input", """\
  mpirun -n 4 python -m pdla.bench
      every algorithm that fits 4 ranks, on made-up and real input
  mpirun -n 4 python -m pdla.bench --array cupy
      matrices on GPUs, one a rank or shared
  python -m pdla.bench --threads 6
      6 ranks as threads: no MPI needed
  python -m pdla.bench --dry-run -P 4096
      bytes, messages and workspace of 4096 ranks, predicted
""", run,
)
