"""The table of measured products: six columns, or, with --wide, all."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pdla.bench.measure.check import WRONG
from pdla.bench.measure.product import Row
from pdla.bench.screen import Screen
from pdla.bench.table import Column, Table

NAMES = [Column("algorithm", 14, left=True, name=True), Column("grid", 5, left=True, name=True)]
TIMES = [
    Column("median ms", 8), Column("min ms", 8, more=True), Column("GFLOP/s", 7), Column("of peak", more=True),
    Column("comp/comm/wait", more=True),
]
PREDICTED = [Column("predicted ms")]
LAYOUT = [Column("layout", more=True, text=True)]
CHECKS = [Column("layout and checks", more=True, text=True)]


def volume_columns(timed: bool) -> list[Column]:
    """The columns of bytes and messages; a table without times shows all by default."""
    return [
        Column("received", 8), Column("formula", 9, more=True), Column("x bound"), Column("messages", more=timed),
        Column("workspace", more=timed),
    ]


def make_table(screen: Screen, timed: bool, predicted: bool, wide: bool) -> Table:
    """An empty table. timed: rows have times; predicted: rows have predicted times, too."""
    how = [*(TIMES if timed else []), *(PREDICTED if predicted else [])]
    return Table(screen, [*NAMES, *how, *volume_columns(timed), *(CHECKS if timed else LAYOUT)], wide)


def add(table: Table, row: Row) -> None:
    """Print a row; a new product has a title."""
    table.add(cells(row), row.case.title, "" if row.right else "wrong")


def show(screen: Screen, rows: Sequence[Row], wide: bool) -> None:
    """Print a whole table."""
    table = make_table(screen, any(row.checks for row in rows), any(row.predicted for row in rows), wide)
    for row in rows:
        add(table, row)
    table.end()


def cells(row: Row) -> dict[str, str]:
    """The cell of each possible column."""
    return _name_way(row) | _times(row) | _volumes(row)


def _name_way(row: Row) -> dict[str, str]:
    chosen = row.algorithm if row.case.algorithm != "auto" else f"auto: {row.algorithm}"
    layout = _layout(row)
    return {
        "algorithm": chosen, "grid": "x".join(map(str, row.case.grid)), "layout": layout,
        "layout and checks": f"{layout}; {_name_checks(row)}",
    }


def _layout(row: Row) -> str:
    """The cuts of A, B and C, such as row/col; one cut if all are equal."""
    short = [text.removeprefix("Layout(").removesuffix(")").replace("'", "") for text in row.layouts.values()]
    words = [text.replace("rows=", "").replace("cols=", "").replace(", ", "/") for text in short]
    return words[0] if len(set(words)) == 1 else " ".join(words)


def _times(row: Row) -> dict[str, str]:
    seconds, rate = row.seconds, row.flops_per_second
    return {
        "median ms": WRONG if not row.right else f"{1e3 * median(seconds):.1f}" if seconds else "–",
        "min ms": f"{1e3 * min(seconds):.1f}" if seconds else "–",
        "GFLOP/s": f"{rate / 1e9:.1f}" if rate else "–",
        "of peak": f"{row.share_of_peak:.0%}" if row.share_of_peak else "–",
        "comp/comm/wait": _split(row),
        "predicted ms": f"{1e3 * row.predicted.seconds:.3g}" if row.predicted else "–",
    }


def _split(row: Row) -> str:
    """Shares of the counted run: computing, communicating, waiting."""
    split = row.split
    if split is None:
        return "–"
    return "/".join(f"{part / split.seconds:.0%}" for part in (split.computing, split.communicating, split.waiting))


def _volumes(row: Row) -> dict[str, str]:
    formula, multiple = row.bytes_by_formula, row.multiple_of_bound
    return {
        "received": size(row.bytes_received),
        "formula": "–" if formula is None else ("= " if formula == row.bytes_received else "") + size(formula),
        "x bound": "–" if multiple is None else f"{multiple:.2f}",
        "messages": str(row.messages),
        "workspace": size(row.peak_workspace),
    }


def _name_checks(row: Row) -> str:
    """The checks, such as "exact, bound (NumPy)"; one method if all are equal."""
    words = [check.partition(" (") for check in row.checks]
    ways = {way for _, _, way in words}
    text = f"{', '.join(kind for kind, _, _ in words)} ({ways.pop()}" if len(ways) == 1 else ", ".join(row.checks)
    return text if row.right else WRONG


def size(count: float) -> str:
    """Bytes in three figures."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"
