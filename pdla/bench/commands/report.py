"""`report`: result files shown as a table, or as plots."""

from __future__ import annotations

import argparse

from pdla.bench.arguments import COMMON, Parser
from pdla.bench.commands.command import Command
from pdla.bench.report import plots, table
from pdla.bench.report.lines import lines, read


def add(to: Parser) -> None:
    """Add the command's arguments."""
    to.add_argument("results", nargs="+", metavar="RESULT.json", help="results of runs, written by --json")
    to.add_argument("--plots", metavar="DIR", help="draw figures into the folder DIR; needs matplotlib")
    to.add_argument("--format", choices=("svg", "png"), default="svg", help="format of the figures (default svg)")


def run(arguments: argparse.Namespace) -> int:
    """Draw the plots that are asked for, or, if none are, print the table. Gives the exit status; raises Stop."""
    files = read(arguments.results)
    if arguments.plots is not None:
        print("\n".join(plots.save(lines(files), arguments.plots, arguments.format)))
        return 0
    for file in files:
        rows = sorted(file.rows, key=lambda row: row.case.title)
        table.show(rows, [], ["; ".join(filter(None, file.about.values()))])
    return 0


COMMAND = Command(
    "report", "show results of --json as a table, or as plots", """\
  python -m pdla.bench report two.json four.json --plots plots  runs on two numbers of ranks as figures
""", run, add, alone=True, lacks=COMMON,
)
