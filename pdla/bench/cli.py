"""The command line: which commands there are, and how each is started."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pdla
from pdla import config
from pdla.bench import calibrate, compare, hpl, measure, predict, report, scale
from pdla.bench.arguments import Parser, add_machine, add_ranks, machine
from pdla.bench.leave import apart
from pdla.bench.stop import Stop, refuse
from pdla.errors import DeviceError, NoMPIError, ShapeError

ABOUT = "Distributed matrix products: checked, then timed, and set beside what theory says they must move."
EXAMPLES = """\
examples:
  mpirun -n 4 python -m pdla.bench                          every algorithm that fits 4 ranks, on made-up and real input
  mpirun -n 6 python -m pdla.bench gemm -m 3000 -n 2000 -k 500 --grid 2x3 --algorithm summa --panel 128
  mpirun -n 4 python -m pdla.bench gemm --transa T --dtype complex128 --json result.json
  mpirun -n 4 python -m pdla.bench gemm --a A.npy --b B.npy --out C.npy        matrices from files
  mpirun -n 4 python -m pdla.bench hpl -n 20000             a system of 20,000 equations by HPL's rules
  mpirun -n 64 python -m pdla.bench info                    which MPI and BLAS, and how ranks wait
  mpirun -n 4 python -m pdla.bench --array cupy             matrices on GPUs, one a rank or shared
  python -m pdla.bench --threads 6                          6 ranks as threads: no MPI needed
  python -m pdla.bench --dry-run -P 4096                    bytes, messages and workspace of 4096 ranks, predicted
  mpirun -n 4 python -m pdla.bench calibrate --out here.toml         measure this machine
  python -m pdla.bench predict -P 64 --machine a100x4       the fastest scheme and grid for a transformer
  python -m pdla.bench predict -P 64 --product 8192x8192x8192        the fastest algorithms and grids for a product
  python -m pdla.bench scale --machine a100x4 --from 64 --to 1000000 --plot scaling.svg
  python -m pdla.bench compare before.json after.json       which products became slower
  python -m pdla.bench report result.json --html page.html  a run as a page to look at
"""
ON_RANKS = {
    "gemm": (measure.add_gemm, measure.program, "check and time one product C = op(A) op(B), of sizes and options of your choice"),
    "hpl": (hpl.add, hpl.program, "solve a random system of linear equations by the rules of HPL: its residual, its GFLOP/s"),
    "info": (None, measure.program, "show machine, MPI, BLAS, threads and cores as the ranks see them, and how ranks wait"),
    "calibrate": (calibrate.add, calibrate.program, "measure this job's machine, so that times can be predicted on it"),
}  # a command that all ranks run: what adds its arguments, what each rank runs, and its help
ALONE = {
    "predict": (predict, "find the fastest schemes and grids for a transformer, or algorithms for a product, on a machine"),
    "scale": (scale, "find the fastest ways on ever more ranks, up to a million: strong or weak scaling"),
    "compare": (compare, "set two results of --json side by side: what became slower, or receives more bytes"),
    "report": (report, "show results of --json as a table, as plots, or as one page of HTML"),
}  # a command that one process runs: its module, which has add and run, and its help
COMMON = {
    "threads": "--threads", "array": "--array", "dry_run": "--dry-run", "ranks": "-P", "json": "--json", "machine": "--machine",
}  # options that may stand before a command
# Those of COMMON that a command has, and those that it reads only to say why it has no use for them. Others have all.
MEANT = {"predict": ("ranks", "json", "machine"), "scale": ("json", "machine"), "compare": (), "report": ()}
REFUSES = {"hpl": ("dry_run", "ranks", "json"), "info": ("dry_run", "ranks"), "calibrate": ("dry_run", "ranks", "json")}
MEANT |= dict.fromkeys(REFUSES, tuple(name for name in COMMON if name != "machine"))


def parser() -> Parser:
    as_written = argparse.RawDescriptionHelpFormatter
    made = Parser("python -m pdla.bench", description=ABOUT, epilog=EXAMPLES, formatter_class=as_written)
    made.set_defaults(command="suite", program=measure.program, threads=None, dry_run=False, ranks=None, json=None)
    made.set_defaults(machine=None, array=None)
    add_ranks(made)
    add_machine(made)
    commands = made.add_subparsers(metavar="COMMAND", help="without one: the suite, all algorithms that fit this number of ranks")
    for name, (add, program, about) in ON_RANKS.items():
        command = commands.add_parser(name, help=about, **_text(name, about))
        command.set_defaults(command=name, program=program)
        add_ranks(command, REFUSES.get(name, ()))
        if add:
            add(command)
    for name, (module, about) in ALONE.items():
        command = commands.add_parser(name, help=about, **_text(name, about))
        command.set_defaults(command=name)
        module.add(command)
    return made


def _text(name: str, about: str) -> dict[str, Any]:
    """For the parser of a command: what its help says before and after the options, what it is for and its examples."""
    examples = "".join(line for line in EXAMPLES.splitlines(keepends=True) if re.search(rf"bench\b.* {name}\b", line))
    as_written = argparse.RawDescriptionHelpFormatter
    return {"description": f"{about[0].upper()}{about[1:]}.", "epilog": f"examples:\n{examples}", "formatter_class": as_written}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, checked against each other, too; raises Stop."""
    arguments = parser().parse_args(argv)
    for name in sorted(set(COMMON) - set(MEANT.get(arguments.command, COMMON))):
        if getattr(arguments, name) not in (None, False):
            raise refuse(f"{COMMON[name]} before {arguments.command}: {arguments.command} has no such option")
    apart(arguments)
    if arguments.command in ALONE:
        return arguments
    dry, ranks = arguments.dry_run, arguments.ranks is not None
    if (dry or ranks) and (arguments.threads or arguments.command in REFUSES):
        raise refuse("a dry run has no " + ("threads" if arguments.threads else "machine to tell about"))
    if dry != ranks:
        raise refuse("--dry-run and -P go together: --dry-run -P 4096")
    if arguments.array and arguments.dry_run:
        raise refuse(f"--array {arguments.array}: a dry run has no arrays")
    if arguments.command == "calibrate" and "cupy" in (arguments.array, config.settings.array):
        raise refuse("calibrate measures processors, not GPUs: give --array numpy, and leave out PDLA_ARRAY")
    if arguments.command == "calibrate" and arguments.json:
        raise refuse(f"--json {arguments.json}: calibrate writes a machine, as TOML: give --out FILE")
    if arguments.command == "hpl" and arguments.json:
        raise refuse(f"--json {arguments.json}: hpl prints HPL's own table")
    if arguments.command == "gemm":
        measure.check_files(arguments)
    machine(None)  # refuses a PDLA_MACHINE, for which plans are made, that cannot be read
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; gives the exit status, the same on every rank."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _launch(parse(words), words)
    except Stop as stop:
        if _first_of_the_job():
            stop.say()
        return stop.status


def _first_of_the_job() -> bool:
    try:
        return pdla.world().rank == 0
    except NoMPIError:
        return True
    except DeviceError:
        from pdla.comm.mpi import libmpi

        return libmpi.first()


def _launch(arguments: argparse.Namespace, words: list[str]) -> int:
    if arguments.command in ALONE:
        return _alone(lambda: ALONE[arguments.command][0].run(arguments))
    if arguments.dry_run:  # plans are made for the machine for which times are predicted
        with config.override(machine=arguments.machine or config.settings.machine):
            return _here(lambda: pdla.dry_run(arguments.ranks, arguments.program, arguments, words)[0])
    with config.override(array=arguments.array or config.settings.array):
        if arguments.threads:
            return _here(lambda: pdla.run(arguments.threads, arguments.program, arguments, words)[0])
        return _on_ranks(arguments, words)


def _on_ranks(arguments: argparse.Namespace, words: list[str]) -> int:
    try:
        from pdla.comm.mpi import abort

        abort.abort_on_exception()
        comm = pdla.world()
        work = partial(arguments.program, comm, arguments, words)
        return _stopped(work) if comm.size == 1 else work()
    except NoMPIError as error:
        raise refuse(f"{error}; here: --threads 4") from error
    except DeviceError as error:
        raise refuse(error) from error


def _here(work: Callable[[], int]) -> int:
    """Run threads or a dry run, in one process and without MPI, which is not even looked for unless a launcher has started this."""
    return _alone(work) if launched() else _stopped(work)


def launched() -> bool:
    """Whether a launcher has started this process, as one of several."""
    return any(name.startswith(config.LAUNCHERS) for name in os.environ)


def _alone(work: Callable[[], int]) -> int:
    """Run work() on the first rank alone; the others, if any, wait as long as it takes. All end with its status."""
    try:
        with config.override(array="numpy"):  # a login node, where reports are made, may have no GPU
            comm = pdla.world()
    except NoMPIError:
        return _stopped(work)
    if comm.size > 1:
        pdla.abort_on_exception()
    status = _stopped(work) if comm.rank == 0 else 0
    with config.override(timeout=0.0):
        return comm.share(status)[0]


def _stopped(work: Callable[[], int]) -> int:
    """Run work() in one process; gives the exit status, also where it raises what users can mend, which is printed."""
    try:
        return work()
    except Stop as stop:
        stop.say()
        return stop.status
    except (DeviceError, MemoryError, ShapeError) as error:  # the last two: sizes that no memory holds
        refused = refuse(str(error) or "out of memory")  # Python's own MemoryError says nothing
        refused.say()
        return refused.status
