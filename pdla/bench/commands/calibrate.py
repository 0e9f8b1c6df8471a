"""`calibrate`: measure this job's machine, and verbs beside their predicted times."""

from __future__ import annotations

import argparse
from pathlib import Path

from pdla import config
from pdla.bench.arguments import Parser
from pdla.bench.commands.command import Command
from pdla.bench.leave import check_path, write_file
from pdla.bench.measure.calibration import measure_machine
from pdla.bench.measure.verbs import Row, compare_verbs
from pdla.bench.screen import Screen
from pdla.bench.stop import refuse
from pdla.bench.table import Column, Table
from pdla.comm.communicator import Communicator


def add(to: Parser) -> None:
    """Add the command's arguments."""
    to.add_argument("--out", metavar="FILE", help="write the machine to FILE, as TOML")


def check(arguments: argparse.Namespace) -> None:
    """Raise Stop for an option that the command does not use."""
    if "cupy" in (arguments.array, config.settings.array):
        raise refuse("calibrate measures processors, not GPUs: give --array numpy, and leave out PDLA_ARRAY")
    if arguments.json:
        raise refuse(f"--json {arguments.json}: calibrate writes a machine, as TOML: give --out FILE")


def run(comm: Communicator, arguments: argparse.Namespace, words: list[str]) -> int:
    """Collective: print the machine, and verbs measured and predicted; write the machine for --out. Returns the exit status."""
    check_path(arguments.out, "--out", comm)
    screen = Screen(comm.rank == 0)
    machine = measure_machine(comm, screen)
    screen.print("", *machine.text().splitlines(), "")
    verbs = Table(screen, COLUMNS)
    for row in compare_verbs(comm, machine):
        verbs.add(_cells(row))
        screen.show_progress(f"{row.verb} in groups of {row.ranks} ranks")
    verbs.end()
    if comm.size > 1:
        screen.print_text("", *MEANS)
    write_file(arguments.out, lambda path: Path(path).write_text(machine.text()), "--out", comm)
    return 0


def _cells(row: Row) -> dict[str, str]:
    """A row of the table of verbs; barriers have no prediction."""
    return {
        "verb": row.verb,
        "ranks": f"{row.ranks}",
        "stride": f"{row.stride}",
        "bytes": f"{row.size}",
        "measured us": f"{1e6 * row.measured:.1f}",
        "predicted us": f"{1e6 * row.predicted:.1f}" if row.predicted else "–",
        "ratio": f"{row.predicted / row.measured:.2f}" if row.predicted else "–",
    }


COLUMNS = [
    Column("verb", 14, left=True, name=True), Column("ranks"), Column("stride"), Column("bytes", 8), Column("measured us"),
    Column("predicted us"), Column("ratio", 6),
]
MEANS = "stride: how far apart a group's ranks are", "bytes: a rank's part", "ratio: predicted / measured"


COMMAND = Command(
    "calibrate", "measure this job's machine, so that times can be predicted on it", """\
  mpirun -n 4 python -m pdla.bench calibrate --out here.toml
      measure this machine
""", run, add, check, lacks=("machine", "wide"), refuses=("dry_run", "ranks", "json"),
)
