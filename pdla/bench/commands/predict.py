"""`predict`: the fastest ways to train a transformer, or to multiply two matrices, on a described machine."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from math import inf
from typing import Any

from pdla.bench.arguments import Parser, machine, positive, rank_count
from pdla.bench.commands import problem
from pdla.bench.commands.command import Command
from pdla.bench.commands.problem import record, write_csv
from pdla.bench.leave import foresee, leave, write_json
from pdla.bench.stop import refuse
from pdla.errors import plural
from pdla.matmul.search.fastest import Found
from pdla.simulate.networks import STATES
from pdla.simulate.scaling import Problem

GAP = 2  # characters between two columns
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


def run(arguments: argparse.Namespace) -> int:
    """Print the fastest ways; gives the exit status, raises Stop where there is none."""
    of, on, ranks = problem.problem(arguments), machine(arguments.machine), arguments.ranks
    for option in ("csv", "json"):
        foresee(getattr(arguments, option), f"--{option}")
    found = of.fastest(ranks, on, arguments.best, arguments.memory)
    if not found.best:
        least = f", {found.smallest / 1e9:.3g} GB at least" if found.smallest < inf else ""
        raise refuse(f"nothing for {ranks} {plural(ranks, 'rank')}: {found.words(CHOICES[of.kind])}{least}")
    rows = [record(result, of) for result in found.best]
    table = lines(rows, ranks, of.kind == "transformer")
    print("\n".join([problem.heading(of, on, f"on {ranks} {plural(ranks, 'rank')}"), *table, "", *notes(found, of)]))
    content = {"command": "predict", "ranks": ranks, "machine": asdict(on), "problem": problem.described(of), "rows": rows}
    leave(arguments.csv, lambda path: write_csv(path, rows), "--csv")
    leave(arguments.json, lambda path: write_json(path, content), "--json")
    return 0


def lines(rows: list[dict[str, Any]], ranks: int, network: bool) -> list[str]:
    """A table as lines: a heading, and one for each row."""
    parts = ("parameters", "kept") if network else ("matrices", "workspace")
    heads = [f"{'s':>8}", "computing", "GB received", "messages", "x bound", *(f"GB {part}" for part in parts)]
    cells = [["", *heads]]
    for row in rows:
        idle = ranks - row["ranks_used"]
        multiple = "–" if row["multiple_of_bound"] is None else f"{row['multiple_of_bound']:.2f}"
        first = [f"{row['seconds']:.3g}", f"{row['computing']:.0%}", f"{row['bytes_received'] / 1e9:.3g}", str(row["messages"])]
        memory = (f"{row[f'bytes_of_{part}'] / 1e9:.3g}" for part in parts)
        cells.append([row["choice"] + (f", {idle} idle" if idle else ""), *first, multiple, *memory])
    wide, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    return [f"{name:{wide}}" + "".join(f"{cell:>{GAP + n}}" for cell, n in zip(line, widths, strict=True)) for name, *line in cells]


def notes(found: Found[Any], of: Problem) -> list[str]:
    """What was looked at, and what the columns mean."""
    return [found.words(CHOICES[of.kind]), *MEANS[of.kind]]


COMMAND = Command(
    "predict", "find the fastest schemes and grids for a transformer, or algorithms for a product, on a machine", """\
  python -m pdla.bench predict -P 64 --machine a100x4       the fastest scheme and grid for a transformer
  python -m pdla.bench predict -P 64 --product 8192x8192x8192        the fastest algorithms and grids for a product
""", run, add, alone=True, lacks=("threads", "array", "dry_run"),
)
