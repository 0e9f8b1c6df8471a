"""`hpl`: solve a random system of linear equations, timed and checked by the rules of HPL.

The rules (A. Petitet, R. C. Whaley, J. Dongarra, A. Cleary: HPL, netlib.org/benchmark/hpl):

* A and b have numbers between -1/2 and 1/2;
* a solution counts as 2/3 n^3 + 3/2 n^2 operations;
* x is right if ||A x - b|| / (eps (||A|| ||x|| + ||b||) n) < 16, in the infinity norm, with eps = 2^-53.

--refine factors in a lower precision and refines x, as HPL-MxP (hpl-mxp.org). Unlike there, the matrix is
HPL's, and rows are exchanged.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import NamedTuple

import numpy as np

import pdla
from pdla.bench.arguments import Parser, block_lengths, check_ranks, grid_shape, positive, positives
from pdla.bench.commands.command import Command
from pdla.bench.measure.peak import time_once
from pdla.bench.screen import Screen
from pdla.bench.stop import FAILED, refuse
from pdla.errors import LinAlgError
from pdla.linalg import norm, solve
from pdla.linalg.panels.blocks import cut_in_blocks
from pdla.linalg.plan.price import Blocking, sort_by_price
from pdla.linalg.plan.routine import Task
from pdla.linalg.routines import LU
from pdla.model.machine import Machine

SIZE = 4096  # equations, where their number is not given
EPS, THRESHOLD = 2.0**-53, 16.0
HEAD = f"{'T/V':<16}{'N':>8}{'NB':>6}{'P':>6}{'Q':>6}{'Time':>19}{'Gflops':>19}"
RULE = "-" * len(HEAD)


def add(to: Parser) -> None:
    """Add the command's arguments."""
    to.add_argument("-n", type=positives, metavar="N,...", default=[SIZE], help=f"numbers of equations (default {SIZE})")
    to.add_argument("--nb", type=block_lengths, metavar="NB,...", default=[0], help="columns of a block (default: as pdla chooses)")
    to.add_argument("--grid", type=grid_shape, metavar="PxQ", help="such as 2x3 (default: as pdla chooses)")
    to.add_argument("--repeats", type=positive, metavar="N", default=1, help="how often to solve each system (default 1)")
    to.add_argument("--refine", choices=("float32",), help="factor in this precision, and refine x, as HPL-MxP does")


def check(arguments: argparse.Namespace) -> None:
    """Raise Stop for an option that the command does not use."""
    if arguments.json:
        raise refuse(f"--json {arguments.json}: hpl prints HPL's own table")


def run(comm: pdla.Communicator, arguments: argparse.Namespace, words: list[str]) -> int:
    """Collective: solve and print every system. Returns the exit status."""
    systems = [(n, _choose_blocking(comm.size, n, arguments.grid, block)) for n in arguments.n for block in arguments.nb]
    runs: list[Run] = []
    screen = Screen(comm.rank == 0)
    screen.print("", RULE.replace("-", "="), HEAD, RULE)
    solve_system(comm, 64, Blocking((1, comm.size), 16), 0, arguments.refine)  # a first call, which loads libraries
    for n, blocking in systems:
        for _ in range(arguments.repeats):
            screen.show_progress(f"N = {n}", len(runs), len(systems) * arguments.repeats)
            runs.append(solve_system(comm, n, blocking, len(runs), arguments.refine))
            screen.print(runs[-1].text())
    failed = [run for run in runs if not run.residual < THRESHOLD]
    screen.print(RULE.replace("-", "="), _summarize(len(runs), len(failed)))
    return FAILED if failed else 0


def _choose_blocking(ranks: int, n: int, grid: tuple[int, int] | None, block: int) -> Blocking:
    """The grid and the block of the arguments, or else pdla's choice."""
    best = sort_by_price(Task(LU, n, n, np.dtype(float), Machine.choose()), ranks)[0]
    check_ranks(grid or (), ranks)
    return Blocking(grid or best.shape, block or best.block)


class Run(NamedTuple):
    """One system. residual: scaled as HPL does; infinite for a singular matrix."""

    n: int
    blocking: Blocking
    seconds: float
    residual: float
    refine: str | None = None

    @property
    def rate(self) -> float:
        """Billions of operations a second."""
        return (2 / 3 * self.n**3 + 3 / 2 * self.n**2) / self.seconds / 1e9

    def text(self) -> str:
        (p, q), block = self.blocking
        how = f"pdla {self.refine or 'lookahead'}"
        line = f"{how:<16}{self.n:>8}{block:>6}{p:>6}{q:>6}{self.seconds:>19.2f}{self.rate:>19.4e}"
        verdict = "PASSED" if self.residual < THRESHOLD else "FAILED"
        return f"{line}\n{RULE}\n||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)= {self.residual:18.7e} ...... {verdict}"


def solve_system(comm: pdla.Communicator, n: int, blocking: Blocking, seed: int, refine: str | None = None) -> Run:
    """Collective: draw a system, solve it in place, and draw it again to check the solution."""
    grid = pdla.ProcessGrid(blocking.shape, comm=comm)
    seconds, x = _time(*_draw(grid, n, blocking.block, seed), refine)
    residual = float("inf") if x is None else _compute_residual(*_draw(grid, n, blocking.block, seed), x)
    return Run(n, blocking, seconds, residual, refine)


def _time(A: pdla.DistMatrix, b: pdla.DistMatrix, refine: str | None) -> tuple[float, pdla.DistMatrix | None]:
    """Collective: the seconds of a solution, and x; None for a singular A."""
    found: list[pdla.DistMatrix] = []

    def run() -> None:
        with suppress(LinAlgError):
            found.append(solve(A, b, overwrite_a=True, check_finite=False, refine=refine))

    return time_once(A.grid.comm, run), found[0] if found else None


def _draw(grid: pdla.ProcessGrid, n: int, block: int, seed: int) -> tuple[pdla.DistMatrix, pdla.DistMatrix]:
    """Collective: draw A in square blocks, and b on every rank."""
    A = pdla.random((n, n), grid, cut_in_blocks(grid.shape, block), low=-0.5, high=0.5, seed=2 * seed)
    return A, pdla.random((n, 1), grid, pdla.Layout(), low=-0.5, high=0.5, seed=2 * seed + 1)


def _compute_residual(A: pdla.DistMatrix, b: pdla.DistMatrix, x: pdla.DistMatrix) -> float:
    """Collective: the residual of A x = b, scaled as HPL does."""
    error, size, length, right = (norm(v, np.inf) for v in (pdla.matmul(A, x, layout=b.layout) - b, A, x, b))
    return error / (EPS * (size * length + right) * A.shape[0])


def _summarize(runs: int, failed: int) -> str:
    """HPL's last lines."""
    return "\n".join([
        "",
        f"Finished {runs:6} tests with the following results:",
        f"         {runs - failed:6} tests completed and passed residual checks,",
        f"         {failed:6} tests completed and failed residual checks,",
        f"         {0:6} tests skipped because of illegal input values.",
        RULE,
        "",
        "End of Tests.",
        RULE.replace("-", "="),
    ])


COMMAND = Command(
    "hpl", "solve a random system of linear equations by the rules of HPL: its residual, its GFLOP/s", """\
  mpirun -n 4 python -m pdla.bench hpl -n 20000
      a system of 20,000 equations by HPL's rules
""", run, add, check, lacks=("machine", "wide"), refuses=("dry_run", "ranks", "json"),
)
