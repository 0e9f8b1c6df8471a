"""Parse the command line and start its command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pdla
from pdla import config
from pdla.bench.arguments import COMMON, Help, Parser, Version, add_machine, add_ranks, add_wide, machine
from pdla.bench.commands import COMMANDS, suite
from pdla.bench.commands.command import Command
from pdla.bench.leave import check_apart
from pdla.bench.screen import Screen
from pdla.bench.stop import Stop, refuse
from pdla.errors import DeviceError, NoMPIError, ShapeError, plural

ABOUT = "Distributed linear algebra: checked, then timed, and set beside what theory says must move."
MORE = "\nCOMMAND --help says more about a command."


def parser() -> Parser:
    made = Parser("python -m pdla.bench", description=ABOUT, **_help_texts(suite.COMMAND, MORE))
    made.set_defaults(command=suite.COMMAND, dry_run=False, wide=False)
    made.set_defaults(**dict.fromkeys(("threads", "ranks", "json", "machine", "array")))
    made.add_argument("--version", action=Version, nargs=0, help="show pdla's version and exit")
    add_ranks(made)
    add_wide(made)
    add_machine(made)
    made._positionals.title = "commands"
    commands = made.add_subparsers(prog=made.prog, metavar="COMMAND", help="without one: the suite, all algorithms that fit")
    for command in COMMANDS.values():
        sentence = f"{command.about[0].upper()}{command.about[1:]}."
        of = commands.add_parser(command.name, help=command.about, description=sentence, **_help_texts(command))
        of.set_defaults(command=command)
        if not command.alone:
            add_ranks(of, command.refuses)
        command.add(of)
    return made


def _help_texts(command: Command, more: str = "") -> dict[str, Any]:
    """A parser's epilogue of examples, and its formatter."""
    return {"epilog": f"examples:\n{command.examples}{more}", "formatter_class": Help}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments and check them against each other; raises Stop."""
    arguments = parser().parse_args(argv)
    command = arguments.command
    for name in sorted(command.lacks):
        if getattr(arguments, name) not in (None, False):
            raise refuse(f"{COMMON[name]} before {command.name}: {command.name} has no such option")
    check_apart(arguments)
    if command.alone:
        return arguments
    dry, ranks = arguments.dry_run, arguments.ranks is not None
    if (dry or ranks) and "dry_run" in command.refuses:
        raise refuse(f"{command.name} measures a machine, and a dry run has none: leave out --dry-run and -P")
    if (dry or ranks) and arguments.threads:
        raise refuse("a dry run has no threads: give --dry-run -P, or --threads")
    if dry != ranks:
        raise refuse("--dry-run and -P go together: --dry-run -P 4096")
    if arguments.array and arguments.dry_run:
        raise refuse(f"--array {arguments.array}: a dry run has no arrays")
    command.check(arguments)
    machine(None)  # refuses an unreadable PDLA_MACHINE, which plans are made for
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit status, the same on every rank."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _launch(parse(words), words)
    except Stop as stop:
        if _is_first():
            stop.print()
        return stop.status


def _is_first() -> bool:
    try:
        return pdla.world().rank == 0
    except NoMPIError:
        return True
    except DeviceError:
        from pdla.comm.mpi import libmpi

        return libmpi.is_first()


def _launch(arguments: argparse.Namespace, words: list[str]) -> int:
    if arguments.command.alone:
        return _run_on_first(lambda: arguments.command.run(arguments))
    if arguments.dry_run:  # plans are made for the machine for which times are predicted
        with config.override(machine=arguments.machine or config.settings.machine):
            return _run_in_process(lambda: pdla.dry_run(arguments.ranks, _start, arguments, words)[0])
    with config.override(array=arguments.array or config.settings.array):
        if arguments.threads:
            return _run_in_process(lambda: pdla.run(arguments.threads, _start, arguments, words)[0])
        return _on_ranks(arguments, words)


def _start(comm: pdla.Communicator, arguments: argparse.Namespace, words: list[str]) -> int:
    """Collective: print the command and its ranks, then run it. Returns the exit status."""
    world = "run dry" if arguments.dry_run else "threads of one process" if arguments.threads else "processes of MPI"
    ranks = f"{comm.size} {plural(comm.size, 'rank')}"
    Screen(comm.rank == 0).print(f"pdla {pdla.__version__}: {arguments.command.name} on {ranks}, {world}")
    return arguments.command.run(comm, arguments, words)


def _on_ranks(arguments: argparse.Namespace, words: list[str]) -> int:
    try:
        from pdla.comm.mpi import abort

        abort.abort_on_exception()
        comm = pdla.world()
        return _run_or_refuse(lambda: _start(comm, arguments, words)) if comm.size == 1 else _start(comm, arguments, words)
    except NoMPIError as error:
        raise refuse(f"{error}; here: --threads 4") from error
    except DeviceError as error:
        raise refuse(error) from error
    except ShapeError as error:  # sizes that no memory holds
        if not hasattr(error, "known_to"):  # as agreement.py marks what all ranks raise
            raise
        raise refuse(error) from error


def _run_in_process(work: Callable[[], int]) -> int:
    """Run threads or a dry run, in one process. Without a launcher this does not even look for MPI."""
    return _run_on_first(work) if has_launcher() else _run_or_refuse(work)


def has_launcher() -> bool:
    """Whether a launcher has started this process, as one of several."""
    return any(name.startswith(config.LAUNCHERS) for name in os.environ)


def _run_on_first(work: Callable[[], int]) -> int:
    """Collective under a launcher: run work() on rank 0, for whose exit status the others wait without a limit."""
    try:
        with config.override(array="numpy"):  # a login node, where reports are made, may have no GPU
            comm = pdla.world()
    except NoMPIError:
        return _run_or_refuse(work)
    if comm.size > 1:
        pdla.abort_on_exception()
    status = _run_or_refuse(work) if comm.rank == 0 else 0
    with config.override(timeout=0.0):
        return comm.share(status)[0]


def _run_or_refuse(work: Callable[[], int]) -> int:
    """Run work() in one process and return the exit status; errors that users can mend are printed."""
    try:
        return work()
    except Stop as stop:
        stop.print()
        return stop.status
    except (DeviceError, MemoryError, ShapeError) as error:  # the last two: sizes that no memory holds
        refused = refuse(str(error) or "out of memory")  # Python's own MemoryError says nothing
        refused.print()
        return refused.status
