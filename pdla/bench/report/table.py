"""What rank 0 prints: a table for each product; on a narrow terminal several, each of as many columns as fit."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pdla.bench.measure.check import WRONG
from pdla.bench.measure.product import Row

WIDTH = 220  # characters of a line where the output is no terminal: more than any table has

WIDEST = 34  # characters of a cell: longer text takes another line
GAP = 2  # characters between two columns
NAMES = 2  # columns that name a row: algorithm and grid
WORDS = ("algorithm", "grid", "layout", "checked")  # headings of the columns of text

Cell = tuple[str, str]  # a column's heading and what stands below it


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def show(rows: Iterable[Row], left_out: Iterable[str], notes: Iterable[str]) -> None:
    """Print a table for each product, what was left out, and the notes."""
    screen = console()
    for made in tables(list(rows), screen.width):
        screen.print(made)
    for line in left_out:
        screen.print(Text(f"left out: {line}", style="dim"))
    for line in notes:
        screen.print(Text(line))


def tables(rows: list[Row], room: int = WIDTH) -> list[Table]:
    """A table for each product, titled; columns are equally wide in all tables, which are split where they do not fit `room`."""
    timed, predicted = any(row.checks for row in rows), any(row.predicted for row in rows)
    lines = [(row, cells(row, timed, predicted)) for row in rows]
    widths = [max(len(text) for cell in column for text in cell) for column in zip(*(c for _, c in lines), strict=True)]
    shown = parts([min(width, WIDEST) for width in widths], room)
    groups = [(title, list(group)) for title, group in groupby(lines, key=lambda line: line[0].case.title)]
    return [_table("" if i else title, group, widths, part) for title, group in groups for i, part in enumerate(shown)]


def parts(widths: list[int], room: int) -> list[list[int]]:
    """The columns of each part of a table: all, or the columns that name the row and as many others as fit."""
    names, found = list(range(min(NAMES, len(widths)))), []
    part: list[int] = []
    for i in range(len(names), len(widths)):
        if part and sum(widths[j] + GAP for j in [*names, *part, i]) + GAP > room:
            found.append(part)
            part = []
        part.append(i)
    return [[*names, *part] for part in [*found, part]]


def _table(title: str, lines: list[tuple[Row, list[Cell]]], widths: list[int], part: list[int]) -> Table:
    """A table of the columns `part`."""
    made = Table(title=title or None, title_style="bold", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for i in part:
        heading, _ = lines[0][1][i]
        made.add_column(heading, justify="left" if heading in WORDS else "right", min_width=min(widths[i], WIDEST))
    for row, line in lines:
        made.add_row(*(line[i][1] for i in part), style=None if row.right else "bold red")
    return made


def cells(row: Row, timed: bool, predicted: bool) -> list[Cell]:
    told = [("predicted ms", f"{1e3 * row.predicted.seconds:.3g}" if row.predicted else "–")] if predicted else []
    return [*_how(row), *(_times(row) if timed else []), *told, *_volumes(row), *(_checked(row) if timed else [])]


def _how(row: Row) -> list[Cell]:
    chosen = row.algorithm if row.case.algorithm != "auto" else f"auto: {row.algorithm}"
    return [("algorithm", chosen), ("grid", "x".join(map(str, row.case.grid))), ("layout", _layout(row))]


def _layout(row: Row) -> str:
    """The cuts of A, B and C, such as row/col; once where they are equal."""
    short = [text.removeprefix("Layout(").removesuffix(")").replace("'", "") for text in row.layouts.values()]
    words = [text.replace("rows=", "").replace("cols=", "").replace(", ", "/") for text in short]
    return words[0] if len(set(words)) == 1 else " ".join(words)


def _times(row: Row) -> list[Cell]:
    seconds, rate = row.seconds, row.flops_per_second
    return [
        ("median ms", f"{1e3 * median(seconds):.1f}" if seconds else "–"),
        ("min ms", f"{1e3 * min(seconds):.1f}" if seconds else "–"),
        ("GFLOP/s", f"{rate / 1e9:.1f}" if rate else "–"),
        ("of peak", f"{row.share_of_peak:.0%}" if row.share_of_peak else "–"),
        ("comp/comm/wait", _split(row)),
    ]


def _split(row: Row) -> str:
    """Shares of the counted run: computing, communicating, waiting."""
    told = row.split
    if told is None:
        return "–"
    return "/".join(f"{part / told.seconds:.0%}" for part in (told.computing, told.communicating, told.waiting))


def _volumes(row: Row) -> list[Cell]:
    formula, multiple = row.bytes_by_formula, row.multiple_of_bound
    return [
        ("received", size(row.bytes_received)),
        ("formula", "–" if formula is None else ("= " if formula == row.bytes_received else "") + size(formula)),
        ("x bound", "–" if multiple is None else f"{multiple:.2f}"),
        ("messages", str(row.messages)),
        ("workspace", size(row.peak_workspace)),
    ]


def _checked(row: Row) -> list[Cell]:
    """The checks, such as "exact, bound (NumPy)": the method comes once where it is the same."""
    words = [check.partition(" (") for check in row.checks]
    ways = {way for _, _, way in words}
    text = f"{', '.join(kind for kind, _, _ in words)} ({ways.pop()}" if len(ways) == 1 else ", ".join(row.checks)
    return [("checked", text if row.right else WRONG)]


def size(count: float) -> str:
    """Bytes in three figures."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"
