"""Tables of figures on a terminal or, of a given width, in a file."""

from __future__ import annotations

import sys

from rich import box
from rich.console import Console
from rich.table import Table


def make_console(width: int) -> Console:
    """The console of standard output, `width` characters wide unless it is a terminal."""
    return Console(width=None if sys.stdout.isatty() else width, highlight=False)


def start_table(title: str, first: str, *heads: str) -> Table:
    """A table without rows: names in the first column, figures in the others."""
    table = Table(first, title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table
