"""A command for each routine, and `solve`: factor or solve in place, check, time, and compare with the lower bound.

Matrices are random, in square blocks. The check is LAPACK's ratio, the residual over n eps and the
norms; results are right below 30. A factorization's residual is that of products with two vectors of
1 and -1.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import gcd
from statistics import median
from typing import Any

import numpy as np

import pdla
from pdla import Cyclic, Layout
from pdla.bench.arguments import (
    Parser,
    add_machine,
    add_wide,
    block_length,
    by_x,
    check_ranks,
    grid_shape,
    layers_shape,
    machine,
    positive,
    positives,
)
from pdla.bench.commands.command import Command
from pdla.bench.measure.peak import time_once
from pdla.bench.screen import Screen
from pdla.bench.stop import FAILED, refuse
from pdla.bench.table import Column, Table
from pdla.linalg import norm
from pdla.linalg.panels.blocks import cut_in_blocks
from pdla.linalg.plan import price
from pdla.linalg.plan.call import Call
from pdla.linalg.plan.predict import find_fastest_on
from pdla.linalg.plan.price import Blocking
from pdla.linalg.plan.routine import Routine, Task
from pdla.linalg.products.triangle import triangle
from pdla.linalg.routines import LU, ROUTINES, TRIANGULAR, Factorization
from pdla.linalg.solve import SOLVE
from pdla.linalg.triangular import SOLVE_TRIANGULAR
from pdla.linalg.verify import Claim
from pdla.matmul.images import Images
from pdla.model.machine import Machine

SIZE, THRESHOLD = 4096, 30.0
DTYPES = ("float32", "float64", "complex64", "complex128")
SAMPLE = 64  # ranks that a dry run samples for the mean
Routines = tuple[Routine, ...]  # one after another


def add(to: Parser, routines: Routines) -> None:
    """Add the command's arguments."""
    to.add_argument("-n", type=positives, metavar="N,...", default=[SIZE], help=f"rows and columns (default {SIZE})")
    if TRIANGULAR in routines:
        to.add_argument("-m", type=positive, metavar="M", help="right-hand sides (default: n)")
    to.add_argument("--nb", type=block_length, metavar="NB", help="rows of a square block (default: as pdla chooses)")
    layers = routines[0].layered
    such = "2x3, or 4x4x4 for 4 layers" if layers else "2x3"
    shape, words = (layers_shape, "PRxPC[xC]") if layers else (grid_shape, "PRxPC")
    to.add_argument("--grid", type=shape, metavar=words, help=f"such as {such} (default: as pdla chooses)")
    to.add_argument("--dtype", choices=DTYPES, default="float64", help="element type (default float64)")
    to.add_argument("--repeats", type=positive, metavar="N", default=5, help="how often to time it (default 5)")
    add_machine(to)
    add_wide(to)


def check(arguments: argparse.Namespace) -> None:
    """Raise Stop for an option that the command does not use."""
    if arguments.json:
        raise refuse(f"--json {arguments.json}: {arguments.command.name} prints its own table")


@dataclass(frozen=True)
class System:
    """The routines, one after another, on n x n matrices with m right-hand sides; and the blocking."""

    routines: Routines
    n: int
    m: int
    dtype: np.dtype
    blocking: Blocking

    @property
    def sides(self) -> bool:
        """Whether there are right-hand sides."""
        return TRIANGULAR in self.routines

    def tasks(self, on: Machine) -> list[Task]:
        """The tasks of the routines, for prices and bounds."""
        return [Task(routine, self.n, self.m if routine is TRIANGULAR else self.n, self.dtype, on) for routine in self.routines]

    @property
    def call(self) -> Call:
        """The function that runs the routines."""
        first = self.routines[0]
        if first is TRIANGULAR:
            return SOLVE_TRIANGULAR
        return SOLVE if self.sides else Call(first.name, (first,), first.run)  # type: ignore[attr-defined]

    def seconds(self, ranks: int, on: Machine) -> float:
        """Predicted seconds on a machine."""
        plan = self.call.imagine((self.n, self.n), self.m, self.dtype, self.blocking, ranks, on)
        return plan.with_blocking(self.blocking).seconds

    @property
    def flops(self) -> float:
        """Additions and multiplications, in real arithmetic."""
        return sum(2 * each.multiplications for each in self.tasks(Machine())) * (4 if self.dtype.kind == "c" else 1)

    def words(self) -> float:
        """The mean words that a rank receives, by formula."""
        return sum(each.words(*self.blocking) for each in self.tasks(Machine()))

    def bound(self) -> float:
        """The lower bound of the words that a rank receives."""
        return sum(each.bound(self.blocking.shape) for each in self.tasks(Machine()))


@dataclass(frozen=True)
class Found:
    """Seconds of each repeat, mean bytes received by a rank, and LAPACK's ratio unless run dry."""

    seconds: list[float]
    received: float
    ratio: float | None = None

    @property
    def right(self) -> bool:
        return self.ratio is None or self.ratio < THRESHOLD


def run(comm: pdla.Communicator, arguments: argparse.Namespace, words: list[str], routines: Routines) -> int:
    """Collective: run all sizes and print the table. Returns the exit status."""
    on = None if arguments.machine is None else machine(arguments.machine)
    screen, columns = Screen(comm.rank == 0), _columns(arguments, routines, on is not None)
    table, wrong = Table(screen, columns, arguments.wide), 0
    for n in arguments.n:
        screen.show_progress(f"n = {n}: choosing a grid")
        system = _choose_system(arguments, routines, n, comm.size, on if arguments.dry_run and on else Machine.choose())
        found = _count_dry(screen, comm.size, system) if arguments.dry_run else _measure(screen, comm, system, arguments.repeats)
        wrong += not found.right
        if comm.rank == 0:
            table.add(_cells(system, found, comm.size, on), style="" if found.right else "wrong")
    table.end()
    shown = [column.heading for column in columns if arguments.wide or not column.more]
    screen.print_text("", *_notes(arguments, shown, comm.size, on))
    if wrong:
        screen.print_text(f"WRONG: {wrong} of {len(arguments.n)} ratios are {THRESHOLD:.0f} or more", style="wrong")
    return FAILED if wrong else 0


def _choose_system(arguments: argparse.Namespace, routines: Routines, n: int, ranks: int, on: Machine) -> System:
    """The system of the arguments; the machine decides a missing grid or block."""
    dtype, m = np.dtype(arguments.dtype), getattr(arguments, "m", None) or n
    any_blocks = System(routines, n, m, dtype, Blocking((1, 1), 1))
    task = any_blocks.tasks(on)[0]
    best = find_fastest_on(any_blocks.call, task, ranks).blocking if on.is_custom else price.sort_by_price(task, ranks)[0]
    grid, block = arguments.grid or best.shape, arguments.nb or best.block
    check_ranks(grid, ranks)
    return System(routines, n, m, dtype, Blocking(grid, block))


def _measure(screen: Screen, comm: pdla.Communicator, system: System, repeats: int) -> Found:
    """Collective: run once, counted and checked; then time the repeats."""
    screen.show_progress(f"n = {system.n}: counting and checking")
    A, B = _draw(comm, system)
    X, Y = A.copy(), None if B is None else B.copy()
    with pdla.record() as ledger:
        done = _run_system(system, X, Y)
    count_bytes = ledger.total(comm)["bytes_received"] / comm.size
    ratio, seconds = _compute_ratio(system, A, B, done), []
    for turn in range(repeats):
        screen.show_progress(f"n = {system.n}: timing, {turn + 1} of {repeats}")
        X, Y = A.copy(), None if B is None else B.copy()
        seconds.append(time_once(comm, partial(_run_system, system, X, Y)))
    return Found(seconds, count_bytes, ratio)


def _count_dry(screen: Screen, ranks: int, system: System) -> Found:
    """Count received bytes by dry runs of all ranks, or of SAMPLE ranks spread over the grid.

    Bytes depend on the place in the grid: in Cholesky the first rank receives half the mean.
    """

    def count_bytes(comm: pdla.Communicator) -> int:
        screen.show_progress(f"n = {system.n}: rank {comm.rank} of {ranks}, run dry")
        A, B = _draw(comm, system)
        with pdla.record() as ledger:
            _run_system(system, A, B)
        return ledger.bytes_received

    step = next(step for step in range(round(0.618 * ranks), ranks + 2) if gcd(step, ranks) == 1)
    sample = [i * step % ranks for i in range(min(ranks, SAMPLE))]
    return Found([], sum(pdla.dry_run(ranks, count_bytes, rank=rank)[0] for rank in sample) / len(sample))


def _draw(comm: pdla.Communicator, system: System) -> tuple[pdla.DistMatrix, pdla.DistMatrix | None]:
    """Collective: draw A for the first routine, and B if there are right-hand sides."""
    (shape, block), n = system.blocking, system.n
    grid, layout = pdla.ProcessGrid(shape, comm=comm), cut_in_blocks(shape, block)
    A = system.routines[0].draw(n, grid, layout, system.dtype)
    if not system.sides:
        return A, None
    return A, pdla.random((n, system.m), grid, Layout(Cyclic("row", block), "col"), dtype=system.dtype, seed=2)


def _run_system(system: System, A: pdla.DistMatrix, B: pdla.DistMatrix | None) -> Any:
    """Collective: run the routines, which overwrite A and B."""
    return system.call(A, overwrite_a=True) if B is None else system.call(A, B, overwrite_a=True, overwrite_b=True)


def _compute_ratio(system: System, A: pdla.DistMatrix, B: pdla.DistMatrix | None, done: Any) -> float:
    """Collective: LAPACK's ratio."""
    size, first = norm(A, 1) * system.n * np.finfo(system.dtype).eps, system.routines[0]
    if isinstance(first, Factorization) and not system.sides:
        images = Images.of(A.grid.comm, system.dtype)
        return _compute_residual(first.claim(A, None, images, ""), images.vectors(system.n), done) / (size * system.n)
    T = triangle(A, True) if first is TRIANGULAR else A
    return norm(B - T @ done, 1) / (size * norm(done, 1))


def _compute_residual(claim: Claim, x: Any, done: Any) -> float:
    """Collective: the 1-norm of A x minus the factors' product with x."""
    given, found = claim.expected(x)[0], x
    for step in claim.steps(done):
        found = step(found)
    return float(abs(found[0] - given[claim.rows(done)]).sum(0).max())


def _columns(arguments: argparse.Namespace, routines: Routines, predicted: bool) -> list[Column]:
    """The table's columns: six, one more with a machine, and the others with --wide."""
    timed, bounded = not arguments.dry_run, isinstance(routines[0], Factorization)
    columns = {
        Column("n", 7, name=True): True,
        Column("columns", more=True): TRIANGULAR in routines,
        Column("block", more=True): True,
        Column("grid", 9): True,
        Column("seconds", 9): timed,
        Column("GFLOP/s"): timed,
        Column("predicted s"): predicted,
        Column("bytes received", more=timed and bounded): True,
        Column("by formula", 14, more=timed): True,
        Column("x bound"): bounded,
        Column("ratio", 7): timed,
    }
    return [column for column, there in columns.items() if there]


def _cells(system: System, found: Found, ranks: int, on: Machine | None) -> dict[str, str]:
    """A row of the table, by column."""
    (shape, block), size, bound = system.blocking, system.dtype.itemsize, system.bound()
    taken = median(found.seconds) if found.seconds else 0.0
    return {
        "n": f"{system.n}",
        "columns": f"{system.m}",
        "block": f"{block}",
        "grid": by_x(shape),
        "seconds": f"{taken:.4g}",
        "GFLOP/s": f"{system.flops / taken / 1e9:.1f}" if taken else "–",
        "predicted s": f"{system.seconds(ranks, on):.4g}" if on is not None else "–",
        "bytes received": f"{found.received:.0f}",
        "by formula": f"{size * system.words():.0f}",
        "x bound": f"{found.received / bound / size:.2f}" if bound else "–",
        "ratio": "–" if found.ratio is None else f"{found.ratio:.2g}",
    }


def _notes(arguments: argparse.Namespace, columns: list[str], ranks: int, on: Machine | None) -> Iterator[str]:
    """Explain the columns."""
    yield f"matrices are random, in {arguments.dtype}, in square blocks"
    of = f"{SAMPLE} of the {ranks}" if arguments.dry_run and ranks > SAMPLE else "all"
    notes = {
        "columns": "right-hand sides",
        "seconds": f"the median of {arguments.repeats}",
        "predicted s": f"on {on.title if on else ''}: the slowest of some ranks run dry, or the chain from panel to panel",
        "bytes received": f"by a rank, the mean of {of} ranks",
        "by formula": "the mean of all ranks, in closed form; exact for Cholesky in blocks that divide n",
        "x bound": "received over 2 multiplications / (P sqrt(S)) words, S those of a rank's share, and of layers' addends",
        "ratio": f"LAPACK's, of the residual; right below {THRESHOLD:.0f}",
    }
    yield from (f"{column}: {note}" for column, note in notes.items() if column in columns)


def _command(routines: Routines, name: str, about: str) -> Command:
    say = f"{about}: LAPACK's ratio, GFLOP/s, bytes received and the bound"
    example = f"  mpirun -n 4 python -m pdla.bench {name} -n 4096,8192\n      two sizes\n"
    return Command(name, say, example, partial(run, routines=routines), partial(add, routines=routines), check, refuses=("json",))


ALL = [
    *(_command((routine,), routine.name, routine.about) for routine in ROUTINES.values()),
    _command((LU, TRIANGULAR, TRIANGULAR), "solve", "solve a random system by LU"),
]
