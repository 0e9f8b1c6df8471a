"""`calibrate`: this job's machine, and verbs beside the times that a dry run on it predicts."""

from __future__ import annotations

import argparse
from pathlib import Path

from pdla import config
from pdla.bench.arguments import Parser
from pdla.bench.commands.command import Command
from pdla.bench.leave import foresee, leave
from pdla.bench.measure.calibration import measured
from pdla.bench.measure.verbs import Row, compared
from pdla.bench.stop import refuse
from pdla.comm.communicator import Communicator


def add(to: Parser) -> None:
    """Add the command's arguments."""
    to.add_argument("--out", metavar="FILE", help="write the machine to FILE, as TOML")


def check(arguments: argparse.Namespace) -> None:
    """Raises Stop where the command has no use for an option."""
    if "cupy" in (arguments.array, config.settings.array):
        raise refuse("calibrate measures processors, not GPUs: give --array numpy, and leave out PDLA_ARRAY")
    if arguments.json:
        raise refuse(f"--json {arguments.json}: calibrate writes a machine, as TOML: give --out FILE")


def run(comm: Communicator, arguments: argparse.Namespace, words: list[str]) -> int:
    """Collective: print the machine, and verbs as measured and predicted on it; write it if asked. Gives the exit status."""
    foresee(arguments.out, "--out", comm)
    machine = measured(comm)
    rows = list(compared(comm, machine))
    if comm.rank == 0:
        print(machine.text(), *(table(rows) if rows else []), sep="\n")
    leave(arguments.out, lambda path: Path(path).write_text(machine.text()), "--out", comm)
    return 0


def table(rows: list[Row]) -> list[str]:
    """Lines of text: a heading, and one for each row; a barrier is not predicted."""
    lines = [f"{'':16}{'ranks':>6}{'stride':>8}{'bytes':>10}{'measured, us':>14}{'predicted, us':>15}{'ratio':>8}"]
    for row in rows:
        line = f"{row.verb:16}{row.ranks:6}{row.stride:8}{row.size:10}{1e6 * row.measured:14.1f}"
        told = f"{1e6 * row.predicted:15.1f}{row.predicted / row.measured:8.2f}" if row.predicted else ""
        lines.append(line + told)
    return [*lines, "stride: how far apart a group's ranks are; bytes: a rank's part; ratio: predicted / measured"]


COMMAND = Command(
    "calibrate", "measure this job's machine, so that times can be predicted on it", """\
  mpirun -n 4 python -m pdla.bench calibrate --out here.toml         measure this machine
""", run, add, check, lacks=("machine",), refuses=("dry_run", "ranks", "json"),
)
