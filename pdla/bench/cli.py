"""The command line: arguments, and what they start."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

import pdla
from pdla.bench import calibrate, info, networks, report, suite
from pdla.bench.case import Case, file_case, file_operands, random_operands
from pdla.bench.check import Checker
from pdla.bench.gemm import Bench, planned, predict
from pdla.bench.info import oversubscribed
from pdla.bench.peak import Peaks
from pdla.bench.stop import REFUSED, WRONG, Stop, refuse
from pdla.bench.suite import Results
from pdla.errors import FileError, GridError, LayoutError, NoMPIError, PlanError, ShapeError
from pdla.io import save
from pdla.model.machine import Machine

DTYPES = ("float32", "float64", "complex64", "complex128")
SIZE = 2048  # of each of m, n and k, where they are not given
REPEATS = 5
CHECKED = (
    "every product was checked before it was timed: exact = bit for bit on small integers, bound = each element within "
    "its error bound;\n(NumPy) against NumPy's product, (Freivalds) by products with vectors of +1 and -1"
)
USERS_FAULT = (GridError, LayoutError, ShapeError, PlanError, FileError)  # and the same on every rank
ABOUT = "Distributed matrix products: checked, then timed, and set beside what theory says they must move."
EXAMPLES = """\
examples:
  mpirun -n 4 python -m pdla.bench                          every algorithm that fits 4 ranks, on made-up and real input
  mpirun -n 6 python -m pdla.bench gemm -m 3000 -n 2000 -k 500 --grid 2x3 --algorithm summa --panel 128
  mpirun -n 4 python -m pdla.bench gemm --transa T --dtype complex128 --json result.json
  mpirun -n 4 python -m pdla.bench gemm --a A.npy --b B.npy --out C.npy        matrices from files
  mpirun -n 64 python -m pdla.bench info                    which MPI and BLAS, and how ranks wait
  python -m pdla.bench --threads 6                          6 ranks as threads: no MPI needed
  python -m pdla.bench --dry-run -P 4096                    bytes, messages and workspace of 4096 ranks, predicted
  mpirun -n 4 python -m pdla.bench calibrate --out here.toml         this machine's figures
  python -m pdla.bench predict -P 64 --machine a100x4       the fastest scheme and grid for a transformer
"""


# ---------------------------------------------------------------------------------------------- arguments


class Parser(argparse.ArgumentParser):
    """Says what it has to say by a Stop, so that one rank prints it."""

    def print_help(self, file: Any = None) -> NoReturn:
        raise Stop(0, self.format_help())

    def error(self, message: str) -> NoReturn:
        raise Stop(REFUSED, f"{self.prog}: {message} (see {self.prog} --help)")


def parser() -> Parser:
    as_written = argparse.RawDescriptionHelpFormatter
    made = Parser("pdla.bench", description=ABOUT, epilog=EXAMPLES, formatter_class=as_written)
    made.set_defaults(command="suite", threads=None, dry_run=False, ranks=None, json=None)
    _add_common(made)
    commands = made.add_subparsers(metavar="COMMAND", help="without one: the suite for this many ranks")
    gemm = commands.add_parser("gemm", help="one product C = op(A) op(B), sizes and all else by choice")
    info = commands.add_parser("info", help="machine, MPI, BLAS, threads, cores, and how ranks wait")
    measure = commands.add_parser("calibrate", help="measure this job's machine, for predictions")
    measure.add_argument("--out", metavar="FILE", help="write it to FILE, as TOML")
    for command, name in ((gemm, "gemm"), (info, "info"), (measure, "calibrate")):
        command.set_defaults(command=name)
        _add_common(command)
    _add_gemm(gemm)
    _add_predict(commands.add_parser("predict", help="a transformer's training step: the fastest schemes and grids"))
    return made


def _add_common(to: Parser) -> None:
    """Options that may stand before the command or after it."""
    group = to.add_argument_group("where it runs, and what it leaves", argument_default=argparse.SUPPRESS)
    group.add_argument("--threads", type=positive, metavar="P", help="P ranks as threads of this process, no MPI")
    group.add_argument("--dry-run", action="store_true", help="predict for -P ranks, without data and times")
    group.add_argument("-P", dest="ranks", type=positive, metavar="RANKS", help="ranks of a dry run")
    group.add_argument("--json", metavar="FILE", help="write machine, versions and all figures to FILE")


def _add_gemm(to: Parser) -> None:
    for name, what in (("m", "rows of C"), ("n", "columns of C"), ("k", "columns of op(A), rows of op(B)")):
        to.add_argument(f"-{name}", type=natural, help=f"{what} (default {SIZE})")
    to.add_argument("--dtype", choices=DTYPES, help="default float64")
    to.add_argument("--algorithm", choices=("auto", *pdla.algorithms), default="auto")
    to.add_argument("--grid", type=grid_shape, metavar="PRxPC", help="2x3; default: all ranks, most nearly square")
    to.add_argument("--panel", type=positive, metavar="WIDTH", help="SUMMA's panel width in indices")
    to.add_argument("--repeats", type=positive, default=REPEATS, help=f"times that it is timed (default {REPEATS})")
    for name in "AB":
        how = f"{name} is stored as it is, transposed, or conjugate-transposed"
        to.add_argument(f"--trans{name.lower()}", choices=("N", "T", "C"), default="N", help=how)
    for name in "AB":
        to.add_argument(f"--{name.lower()}", metavar="FILE", help=f"read {name} from FILE (.npy, .mtx, .h5)")
    to.add_argument("--out", metavar="FILE", help="write C to FILE")


def _add_predict(to: Parser) -> None:
    to.set_defaults(command="predict")
    to.add_argument("-P", dest="ranks", type=positive, metavar="RANKS", required=True)
    to.add_argument("--machine", metavar="NAME", default="", help=f"a TOML file, or {', '.join(Machine.known())}")
    sizes = (("hidden", 3072, "features"), ("heads", 64, "of attention"), ("sequence", 512, "tokens of one"))
    for name, default, what in (*sizes, ("batch", 64, "sequences of a step"), ("layers", 24, "of the transformer")):
        to.add_argument(f"--{name}", type=positive, default=default, help=f"{what} (default {default})")
    to.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    to.add_argument("--best", type=positive, default=10, help="how many are shown (default 10)")


def positive(text: str) -> int:
    return _number(text, 1)


def natural(text: str) -> int:
    return _number(text, 0)


def _number(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
    return int(text)


def grid_shape(text: str) -> tuple[int, int]:
    words = text.lower().split("x")
    if len(words) != 2 or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not a grid: give rows x columns, such as 2x3")
    return int(words[0]), int(words[1])


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, with what one of them alone cannot tell; raises Stop."""
    arguments = parser().parse_args(argv)
    if arguments.command == "predict":
        return arguments
    if arguments.dry_run != (arguments.ranks is not None):
        raise refuse("--dry-run and -P go together: --dry-run -P 4096")
    if arguments.dry_run and (arguments.threads or arguments.command in ("info", "calibrate")):
        raise refuse("a dry run has no " + ("threads" if arguments.threads else "machine to tell about"))
    if arguments.command == "gemm":
        _check_files(arguments)
    return arguments


def _check_files(arguments: argparse.Namespace) -> None:
    if (arguments.a is None) != (arguments.b is None):
        raise refuse("--a and --b go together: both matrices from files, or none")
    made_up = [name for name in ("m", "n", "k", "dtype") if getattr(arguments, name) is not None]
    if arguments.a and (made_up or arguments.dry_run):
        raise refuse(f"--a and --b give the sizes and the dtype: leave out {', '.join(made_up) or '--dry-run'}")
    if arguments.out and arguments.dry_run:
        raise refuse("a dry run has no C to write to --out")


# ---------------------------------------------------------------------------------------------- what they start


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; gives the exit status, the same on every rank."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = parse(words)
    except Stop as stop:
        return _end(stop, first=_first_of_the_job())
    try:
        return _launch(arguments, words)
    except Stop as stop:
        return _end(stop, first=bool(arguments.dry_run or arguments.threads) or _first_of_the_job())


def _end(stop: Stop, first: bool) -> int:
    if first:
        stop.say()
    return stop.status


def _first_of_the_job() -> bool:
    try:
        return pdla.world().rank == 0
    except NoMPIError:
        return True


def _launch(arguments: argparse.Namespace, words: list[str]) -> int:
    if arguments.command == "predict":
        return _predict(arguments)
    if arguments.dry_run:
        return pdla.dry_run(arguments.ranks, _program, arguments, words)[0]
    if arguments.threads:
        return pdla.run(arguments.threads, _program, arguments, words)[0]
    try:
        from pdla.comm import mpi
    except NoMPIError as error:
        raise refuse(f"{error}; here: --threads 4") from error
    mpi.abort_on_exception()
    return _program(pdla.world(), arguments, words)


def _predict(arguments: argparse.Namespace) -> int:
    net = networks.Net(*(getattr(arguments, one.name) for one in fields(networks.Net)))
    if net.hidden % net.heads:
        raise refuse(f"--hidden {net.hidden} is not --heads {net.heads} equal heads")
    try:
        machine = Machine.load(arguments.machine) if arguments.machine else Machine()
    except (OSError, ValueError) as error:
        raise refuse(f"--machine: {error}") from error
    if _first_of_the_job():
        print(networks.table(networks.best(arguments.ranks, net, machine, arguments.best), net, machine, arguments.ranks))
    return 0


def _calibrate(comm: pdla.Communicator, arguments: argparse.Namespace) -> int:
    machine = calibrate.measured(comm)
    if comm.rank == 0:
        print(machine.text(), end="")
    _leave(arguments.out, lambda path: Path(path).write_text(machine.text()), "--out", comm)
    return 0


def _program(comm: pdla.Communicator, arguments: argparse.Namespace, words: list[str]) -> int:
    """One rank's part of any command."""
    if arguments.command == "calibrate":
        return _calibrate(comm, arguments)
    world = "dry" if arguments.dry_run else "threads" if arguments.threads else "mpi"
    known = info.facts(comm, world)
    if arguments.command == "info":
        waits = info.waiting(comm, world)
        if comm.rank == 0:
            print("\n".join(info.lines(known, comm, world, waits)))
        results, peaks = Results(), Peaks(comm)
    else:
        results, peaks = _multiply(comm, arguments, world)
    if comm.rank == 0:
        _show(results, peaks, known, comm.size)
    content = report.report(known, world, comm.size, words, results, peaks.measured)
    _leave(arguments.json, lambda path: report.write(path, content), "--json", comm)
    return 0 if results.right else WRONG


def _multiply(comm: pdla.Communicator, arguments: argparse.Namespace, world: str) -> tuple[Results, Peaks]:
    bench = Bench(comm, Checker(comm), Peaks(comm))
    if arguments.command == "gemm":
        results = _gemm(replace(bench, repeats=arguments.repeats, explain=True), arguments)
    else:
        results = suite.predicted(comm.size) if world == "dry" else suite.run(bench)
    return results, bench.peaks


def _gemm(bench: Bench, arguments: argparse.Namespace) -> Results:
    comm, case = bench.comm, _case(arguments, bench.comm.size)
    try:
        if arguments.dry_run:
            return Results([predict(case, comm.size)])
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
        raise refuse(f"--grid {first}x{second} needs {first * second} ranks, there are {ranks}")
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
    """What stands below the table."""
    lines = [row.explained for row in results.rows if row.explained] if len(results.rows) == 1 else []
    for dtype, rate in peaks.measured.items():
        lines.append(f"peak, {dtype}: {rate / 1e9:.1f} GFLOP/s, local GEMMs of all {ranks} ranks at once, in this run")
    if peaks.measured and oversubscribed(known):
        machine = known["machine"]
        shared = f"{machine['ranks_a_host']} ranks share {machine['cores']} cores"
        lines.append(f"{shared}: times measure the scheduler, too")
    faults = [fault for row in results.rows for fault in row.faults]
    for row in results.rows:
        lines += [f"{row.algorithm} on {row.case.grid}, {row.case.title}: {fault}" for fault in row.faults]
    if any(row.checks for row in results.rows):
        lines.append(CHECKED if not faults else f"{len(faults)} checks failed")
    return lines


def _leave(path: str | None, write: Callable[[str], object], option: str, comm: pdla.Communicator) -> None:
    """Collective: rank 0 writes what an option asks for; where it cannot, every rank stops."""
    fault = ""
    if path and comm.rank == 0:
        try:
            write(path)
        except OSError as error:
            fault = str(error)
    if path and (fault := comm.share(fault)[0]):
        raise refuse(f"{option} {path}: {fault}")
