"""`report`: result files shown as a table, or as plots."""

from __future__ import annotations

import argparse

from pdla.bench.arguments import COMMON, Parser, add_wide
from pdla.bench.commands.command import Command
from pdla.bench.report import plots, table
from pdla.bench.report.lines import lines, read
from pdla.bench.screen import Screen


def add(to: Parser) -> None:
    """Add the command's arguments."""
    to.add_argument("results", nargs="+", metavar="RESULT.json", help="results of runs, written by --json")
    to.add_argument("--plots", metavar="DIR", help="draw figures into the folder DIR; needs matplotlib")
    to.add_argument("--format", choices=("svg", "png"), default="svg", help="format of the figures (default svg)")
    add_wide(to)


def run(arguments: argparse.Namespace) -> int:
    """Draw plots for --plots, else print the table. Returns the exit status; raises Stop."""
    screen, files = Screen(), read(arguments.results)
    if arguments.plots is not None:
        screen.print(*plots.save(lines(files), arguments.plots, arguments.format))
        return 0
    for file in files:
        rows = sorted(file.rows, key=lambda row: row.case.title)
        table.show(screen, rows, arguments.wide)
        screen.print_text("", "; ".join(filter(None, file.about.values())))
    return 0


COMMAND = Command(
    "report", "show results of --json as a table, or as plots", """\
  python -m pdla.bench report two.json four.json --plots plots
      runs on two numbers of ranks, as figures
""", run, add, alone=True, lacks=set(COMMON) - {"wide"},
)
