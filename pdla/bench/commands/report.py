"""`report`: result files shown as a table, as plots, or as one page of HTML."""

from __future__ import annotations

import argparse
from pathlib import Path

from pdla.bench.arguments import COMMON, Parser
from pdla.bench.commands.command import Command
from pdla.bench.leave import foresee, leave
from pdla.bench.report import page, plots, table
from pdla.bench.report.lines import lines, read


def add(to: Parser) -> None:
    """Add the command's arguments."""
    to.add_argument("results", nargs="+", metavar="RESULT.json", help="results of runs, written by --json")
    to.add_argument("--html", metavar="FILE", help="write one page of HTML, which needs no other file, to FILE")
    to.add_argument("--plots", metavar="DIR", help="draw figures into the folder DIR; needs matplotlib")
    to.add_argument("--format", choices=("svg", "png"), default="svg", help="format of the figures (default svg)")


def run(arguments: argparse.Namespace) -> int:
    """Write the page and the plots that are asked for, or, if none are, print the table. Gives the exit status; raises Stop."""
    foresee(arguments.html, "--html")
    files = read(arguments.results)
    shown = lines(files)
    if arguments.html is arguments.plots is None:
        for file in files:
            rows = sorted(file.rows, key=lambda row: row.case.title)
            table.show(rows, [], ["; ".join(filter(None, file.about.values()))])
    if arguments.plots is not None:
        print("\n".join(plots.save(shown, arguments.plots, arguments.format)))
    if arguments.html is not None:
        leave(arguments.html, lambda path: Path(path).write_text(page.page(files, shown)), "--html")
        print(f"written: {arguments.html}")
    return 0


COMMAND = Command(
    "report", "show results of --json as a table, as plots, or as one page of HTML", """\
  python -m pdla.bench report result.json --html page.html  a run as a page to look at
""", run, add, alone=True, lacks=COMMON,
)
