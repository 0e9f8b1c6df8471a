"""`predict`: the fastest ways to train a transformer, or to multiply two matrices, on a described machine."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from math import inf
from typing import Any

from pdla.bench.arguments import Parser, add_wide, machine, positive, rank_count
from pdla.bench.commands import problem
from pdla.bench.commands.command import Command
from pdla.bench.commands.problem import record, write_csv
from pdla.bench.leave import check_path, write_file, write_json
from pdla.bench.screen import Screen
from pdla.bench.stop import refuse
from pdla.bench.table import Column, Table
from pdla.errors import plural
from pdla.matmul.search.fastest import Found, watch
from pdla.simulate.networks import STATES
from pdla.simulate.scaling import Problem

PARTS = {"transformer": ("parameters", "kept"), "product": ("matrices", "workspace")}  # of the memory needed
CHOICES = {"transformer": ("scheme", "grid"), "product": ("algorithm", "grid")}
MEANS = {
    "transformer": (
        "bound: of the ranks that are used, of each of the linears' products by itself, no matrix held twice",
        f"memory needed: {STATES} times the parameters (gradients, AdamW's two moments), and what is kept for the way back",
    ),
    "product": (
        "bound: of the ranks that are used, all of them with the same work, no matrix held twice",
        "memory needed: a rank's parts of A, B and C, and workspace",
    ),
}


def add(to: Parser) -> None:
    """Add the command's arguments."""
    to.add_argument("-P", dest="ranks", type=rank_count, metavar="RANKS", required=True, help="number of ranks")
    problem.add(to)
    to.add_argument("--best", type=positive, metavar="N", default=10, help="how many to show, the fastest first (default 10)")
    to.add_argument("--csv", metavar="FILE", help="write the table to FILE")
    add_wide(to)


def run(arguments: argparse.Namespace) -> int:
    """Print the fastest ways and return the exit status; raises Stop if there is none."""
    of, on, ranks = problem.read_problem(arguments), machine(arguments.machine), arguments.ranks
    for option in ("csv", "json"):
        check_path(getattr(arguments, option), f"--{option}")
    screen = Screen()
    screen.print_text(*problem.describe(of, on, f"on {ranks} {plural(ranks, 'rank')}"))
    with watch(partial(screen.show_progress, "candidates run dry")):
        found = of.fastest(ranks, on, arguments.best, arguments.memory)
    if not found.best:
        least = f", {found.smallest / 1e9:.3g} GB at least" if found.smallest < inf else ""
        raise refuse(f"nothing for {ranks} {plural(ranks, 'rank')}: {found.words(CHOICES[of.kind])}{least}")
    rows = [record(result, of) for result in found.best]
    table = Table(screen, _columns(of.kind), arguments.wide)
    for row in rows:
        table.add(_cells(row, of.kind, ranks))
    table.end()
    screen.print_text("", *write_notes(found, of))
    content = {"command": "predict", "ranks": ranks, "machine": asdict(on), "problem": problem.to_json(of), "rows": rows}
    write_file(arguments.csv, lambda path: write_csv(path, rows), "--csv")
    write_file(arguments.json, lambda path: write_json(path, content), "--json")
    return 0


def _columns(kind: str) -> list[Column]:
    parts = [Column(f"GB {part}", more=True) for part in PARTS[kind]]
    return [
        Column("s", 8, name=True), Column("computing", more=True), Column("GB received"), Column("messages", more=True),
        Column("x bound"), Column("GB needed"), *parts, Column("way", text=True),
    ]


def _cells(row: dict[str, Any], kind: str, ranks: int) -> dict[str, str]:
    """A row of the table, by column."""
    sizes = {f"GB {part}": f"{row[f'bytes_of_{part}'] / 1e9:.3g}" for part in PARTS[kind]}
    return problem.cells(row, ranks) | sizes | {"messages": str(row["messages"]), "GB needed": f"{row['bytes_needed'] / 1e9:.3g}"}


def write_notes(found: Found[Any], of: Problem) -> list[str]:
    """Report the search, and explain the columns."""
    return [found.words(CHOICES[of.kind]), *MEANS[of.kind]]


COMMAND = Command(
    "predict", "find the fastest schemes and grids for a transformer, or algorithms for a product, on a machine", """\
  python -m pdla.bench predict -P 64 --machine a100x4
      the fastest schemes and grids for a transformer
  python -m pdla.bench predict -P 64 --product 8192x8192x8192
      the fastest algorithms and grids for a product
""", run, add, alone=True, lacks=("threads", "array", "dry_run"),
)
