"""`cholesky`, `lu`, `solve` and `trsm`: random matrices factored and systems solved, checked, timed, and beside what must move.

Matrices lie in square blocks, and are worked on in place. Checked is LAPACK's ratio, the residual
over n eps and the norms, which is right below 30: of a factorization for the products with COLUMNS
random vectors. The lines below the table say what its columns mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
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
from pdla.bench.measure.peak import elapsed
from pdla.bench.stop import FAILED, refuse
from pdla.errors import plural
from pdla.linalg import cho_factor, lu_factor, norm, predict, solve, solve_triangular
from pdla.linalg.factorizations import price
from pdla.linalg.factorizations.block_cyclic import in_blocks
from pdla.linalg.factorizations.price import LAYERED, Blocking, Task
from pdla.linalg.products.triangle import triangle
from pdla.model.machine import Machine

SIZE, COLUMNS, THRESHOLD = 4096, 4, 30.0
DTYPES = ("float32", "float64", "complex64", "complex128")
WIDTHS = {
    "n": 8, "columns": 9, "block": 7, "grid": 9, "seconds": 12, "GFLOP/s": 10, "predicted s": 13, "bytes received": 16,
    "by formula": 14, "x bound": 9, "ratio": 8,
}
SAMPLE = 64  # ranks of a dry run, the mean of which is told
SIDES = ("solve", "trsm")  # that take right-hand sides
BOUNDS = {"cholesky": "n^3 / (3 P sqrt(S))", "lu": "2 n^3 / (3 P sqrt(S))", "solve": "the least of its LU, 2 n^3 / (3 P sqrt(S))"}
ROUTINES = {"cholesky": "cholesky", "lu": "lu", "solve": "lu", "trsm": "triangular"}  # that are priced


def add(to: Parser, name: str) -> None:
    """Add the command's arguments."""
    to.add_argument("-n", type=positives, metavar="N,...", default=[SIZE], help=f"rows and columns (default {SIZE})")
    if name in SIDES:
        to.add_argument("-m", type=positive, metavar="M", help="right-hand sides (default: n)")
    to.add_argument("--nb", type=block_length, metavar="NB", help="rows of a square block (default: as pdla chooses)")
    layers = name in LAYERED
    such = "2x3, or 4x4x4 for 4 layers" if layers else "2x3"
    shape, words = (layers_shape, "PRxPC[xC]") if layers else (grid_shape, "PRxPC")
    to.add_argument("--grid", type=shape, metavar=words, help=f"such as {such} (default: as pdla chooses)")
    to.add_argument("--dtype", choices=DTYPES, default="float64", help="element type (default float64)")
    to.add_argument("--repeats", type=positive, metavar="N", default=5, help="how often to time it (default 5)")
    add_machine(to)


def check(arguments: argparse.Namespace) -> None:
    """Raises Stop where the command has no use for an option."""
    if arguments.json:
        raise refuse(f"--json {arguments.json}: {arguments.command.name} prints its own table")


@dataclass(frozen=True)
class System:
    """What is done: the command's name, n, and how many right-hand sides; where."""

    name: str
    n: int
    m: int
    dtype: np.dtype
    blocking: Blocking

    @property
    def task(self) -> Task:
        return Task(ROUTINES[self.name], self.n, self.m if self.name == "trsm" else self.n, self.dtype, Machine.chosen())

    def tasks(self, on: Machine) -> Iterator[Task]:
        """What it consists of, for their prices and bounds."""
        yield Task(self.task.routine, self.n, self.task.n, self.dtype, on)
        if self.name == "solve":
            yield from 2 * [Task("triangular", self.n, self.m, self.dtype, on)]

    @property
    def flops(self) -> float:
        """Additions and multiplications, in real arithmetic."""
        return sum(2 * each.multiplications for each in self.tasks(Machine())) * (4 if self.dtype.kind == "c" else 1)

    def words(self) -> float:
        """By formula, in the mean."""
        return sum(predict.words(each, self.blocking) for each in self.tasks(Machine()))

    def bound(self) -> float:
        """Words that a rank must receive."""
        return sum(price.bound(each, self.blocking.shape) for each in self.tasks(Machine()))


@dataclass(frozen=True)
class Found:
    """Seconds of each repeat, bytes that a rank receives in the mean, the ratio unless run dry."""

    seconds: list[float]
    received: float
    ratio: float | None = None

    @property
    def right(self) -> bool:
        return self.ratio is None or self.ratio < THRESHOLD


def run(comm: pdla.Communicator, arguments: argparse.Namespace, words: list[str]) -> int:
    """Collective: work through all sizes and print the table. Gives the exit status."""
    on = None if arguments.machine is None else machine(arguments.machine)
    wrong, cells = 0, dict[str, str]()
    for n in arguments.n:
        system = _system(arguments, n, comm.size)
        found = _foretold(comm.size, system) if arguments.dry_run else _measured(comm, system, arguments.repeats)
        wrong += not found.right
        if comm.rank == 0:
            row = _cells(system, found, on)
            if not cells:
                print(_title(arguments, comm.size), _line({name: name for name in row}), sep="\n")
            print(_line(row), flush=True)
            cells = row
    if comm.rank == 0:
        print(*_notes(arguments, cells, comm.size, on), sep="\n")
        if wrong:
            print(f"WRONG: {wrong} of {len(arguments.n)} ratios are {THRESHOLD:.0f} or more")
    return FAILED if wrong else 0


def _system(arguments: argparse.Namespace, n: int, ranks: int) -> System:
    name, dtype = arguments.command.name, np.dtype(arguments.dtype)
    m = getattr(arguments, "m", None) or n
    best = price.cheapest(System(name, n, m, dtype, Blocking((1, 1), 1)).task, ranks)[0]
    grid, block = arguments.grid or best.shape, arguments.nb or best.block
    check_ranks(grid, ranks)
    return System(name, n, m, dtype, Blocking(grid, block))


def _measured(comm: pdla.Communicator, system: System, repeats: int) -> Found:
    """Collective: work once, counted and checked, and then so many times."""
    A, B = _drawn(comm, system)
    X, Y = A.copy(), None if B is None else B.copy()
    with pdla.record() as ledger:
        done = _work(system, X, Y)
    received = ledger.total(comm)["bytes_received"] / comm.size
    ratio, seconds = _ratio(system, A, B, done), []
    for _ in range(repeats):
        X, Y = A.copy(), None if B is None else B.copy()
        seconds.append(elapsed(comm, partial(_work, system, X, Y)))
    return Found(seconds, received, ratio)


def _foretold(ranks: int, system: System) -> Found:
    """By dry runs of all ranks or, of many, of some all over the grid.

    What ranks receive depends on where they lie: for Cholesky the first one receives half the mean.
    """

    def received(comm: pdla.Communicator) -> int:
        A, B = _drawn(comm, system)
        with pdla.record() as ledger:
            _work(system, A, B)
        return ledger.bytes_received

    step = next(step for step in range(round(0.618 * ranks), ranks + 2) if gcd(step, ranks) == 1)
    sample = [i * step % ranks for i in range(min(ranks, SAMPLE))]
    return Found([], sum(pdla.dry_run(ranks, received, rank=rank)[0] for rank in sample) / len(sample))


def _drawn(comm: pdla.Communicator, system: System) -> tuple[pdla.DistMatrix, pdla.DistMatrix | None]:
    """Collective: A, for Cholesky Hermitian and positive definite, for trsm well-conditioned; and B, where there is one."""
    (shape, block), n = system.blocking, system.n
    grid, layout = pdla.ProcessGrid(shape, comm=comm), in_blocks(shape, block)
    A = pdla.random((n, n), grid, layout, low=-0.5, high=0.5, dtype=system.dtype, seed=1)
    if system.name == "cholesky":
        A = (A + A.H.redistribute(layout)) * 0.5
    if system.name in ("cholesky", "trsm"):
        A += pdla.eye(n, grid, layout, dtype=system.dtype) * n
    if system.name in ("cholesky", "lu"):
        return A, None
    return A, pdla.random((n, system.m), grid, Layout(Cyclic("row", block), "col"), dtype=system.dtype, seed=2)


def _work(system: System, A: pdla.DistMatrix, B: pdla.DistMatrix | None) -> Any:
    """Collective: what is timed; A and B are overwritten."""
    how: dict[str, Any] = {"check_finite": False}
    by: dict[str, Callable[[], Any]] = {
        "cholesky": lambda: cho_factor(A, overwrite_a=True, **how)[0],
        "lu": lambda: lu_factor(A, overwrite_a=True, **how),
        "solve": lambda: solve(A, B, overwrite_a=True, overwrite_b=True, **how),
        "trsm": lambda: solve_triangular(A, B, lower=True, overwrite_b=True, **how),
    }
    return by[system.name]()


def _ratio(system: System, A: pdla.DistMatrix, B: pdla.DistMatrix | None, done: Any) -> float:
    """Collective: LAPACK's ratio."""
    size = norm(A, 1)
    if system.name in ("cholesky", "lu"):
        given, found, length = _applied(system, A, done)
        return float(np.abs(found - given).sum(0).max()) / (size * length * system.n * np.finfo(system.dtype).eps)
    T = triangle(A, True) if system.name == "trsm" else A
    return norm(B - T @ done, 1) / (size * norm(done, 1) * system.n * np.finfo(system.dtype).eps)


def _applied(system: System, A: pdla.DistMatrix, done: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Collective: A x and the product of its factors with x, for some random columns x, and the norm of x."""
    x = pdla.random((system.n, COLUMNS), A.grid, Layout(), low=-1, high=1, dtype=system.dtype, seed=3)
    given = _host(A @ x)
    if system.name == "cholesky":
        return given, _host(done @ (done.H @ x)), norm(x, 1)
    X, pivots = done
    for i, j in enumerate(pivots.tolist()):
        given[[i, j]] = given[[j, i]]
    return given, _host(triangle(X, True, True) @ (triangle(X, False) @ x)), norm(x, 1)


def _host(X: pdla.DistMatrix) -> np.ndarray:
    return X.xp.host(X.gather())


def _title(arguments: argparse.Namespace, ranks: int) -> str:
    dry = ", run dry" if arguments.dry_run else ""
    return f"{arguments.command.name}, {arguments.dtype}, random, on {ranks} {plural(ranks, 'rank')}{dry}"


def _line(cells: dict[str, str]) -> str:
    return "".join(f"{text:>{WIDTHS[name]}}" for name, text in cells.items())


def _cells(system: System, found: Found, on: Machine | None) -> dict[str, str]:
    """A row of the table, by the columns that there are."""
    (shape, block), size, bound = system.blocking, system.dtype.itemsize, system.bound()
    cells = {"n": f"{system.n}", "block": f"{block}", "grid": by_x(shape)}
    if system.name in SIDES:
        cells["columns"] = f"{system.m}"
    if found.seconds:
        taken = median(found.seconds)
        cells |= {"seconds": f"{taken:.4g}", "GFLOP/s": f"{system.flops / taken / 1e9:.1f}"}
    if on is not None:
        cells["predicted s"] = f"{sum(price.seconds(each, shape, block) for each in system.tasks(on)):.4g}"
    cells |= {"bytes received": f"{found.received:.0f}", "by formula": f"{size * system.words():.0f}"}
    if system.name in BOUNDS:
        cells["x bound"] = f"{found.received / bound / size:.2f}" if bound else "–"
    if found.ratio is not None:
        cells["ratio"] = f"{found.ratio:.2g}"
    return {name: cells[name] for name in WIDTHS if name in cells}


def _notes(arguments: argparse.Namespace, cells: dict[str, str], ranks: int, on: Machine | None) -> Iterator[str]:
    """What the columns mean."""
    name, of = arguments.command.name, f"{SAMPLE} of the {ranks}" if arguments.dry_run and ranks > SAMPLE else "all"
    notes = {
        "columns": "right-hand sides",
        "seconds": f"the median of {arguments.repeats}",
        "predicted s": f"by a closed form, on {on.name if on else ''}",
        "bytes received": f"by a rank, the mean of {of} ranks",
        "by formula": "the mean of all ranks, in closed form; exact for Cholesky in blocks that divide n",
        "x bound": f"received over {BOUNDS.get(name)} words, S those of a rank's share, and of layers' addends",
        "ratio": f"LAPACK's, of the residual; right below {THRESHOLD:.0f}",
    }
    yield from (f"{column}: {note}" for column, note in notes.items() if column in cells)


def _command(name: str, about: str, example: str) -> Command:
    return Command(name, about, example, run, partial(add, name=name), check, refuses=("json",))


ALL = [
    _command("cholesky", "factor a random positive definite matrix: LAPACK's ratio, GFLOP/s, bytes received and the bound", """\
  mpirun -n 4 python -m pdla.bench cholesky -n 4096,8192    Cholesky factors: checked, timed, and the bytes beside the bound
"""),
    _command("lu", "factor a random matrix by LU with row pivoting: LAPACK's ratio, GFLOP/s, bytes received and the bound", """\
  python -m pdla.bench lu --dry-run -P 1024 -n 65536        what LU of 65536 rows moves on 1024 ranks
"""),
    _command("solve", "solve a random system by LU: LAPACK's ratio, GFLOP/s, bytes received and the bound", """\
  mpirun -n 4 python -m pdla.bench solve -n 4096 -m 1       one right-hand side
"""),
    _command("trsm", "solve a random triangular system: LAPACK's ratio, GFLOP/s, bytes received and the bound", """\
  mpirun -n 4 python -m pdla.bench trsm -n 4096 --grid 2x2 --nb 64
"""),
]
