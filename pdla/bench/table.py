"""Tables that are printed row by row; the first row decides the widths of columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pdla.bench.screen import Screen, width

GAP = 2  # characters between two columns
PROSE = 24  # characters of the column of text, at least


@dataclass(frozen=True)
class Column:
    """A column of a table.

    width  the least characters
    left   align left
    name   repeat the column in each part of a divided table
    more   show the column with --wide alone
    text   align left and wrap; for the last column
    """

    heading: str
    width: int = 0
    left: bool = False
    name: bool = False
    more: bool = False
    text: bool = False

    @property
    def room(self) -> int:
        return max(len(self.heading), PROSE if self.text else self.width)

    def set(self, cell: str) -> str:
        return f"{cell:<{self.room}}" if self.left or self.text else f"{cell:>{self.room}}"


class Table:
    """A table on a screen. Columns that do not fit a narrow screen follow in further parts, by `end`."""

    screen: Screen
    columns: list[Column]

    def __init__(self, screen: Screen, columns: Sequence[Column], wide: bool = False) -> None:
        self.screen, self.columns = screen, [column for column in columns if wide or not column.more]
        self.parts: list[list[Column]] = []
        self.rows: list[tuple[str, Mapping[str, str], str]] = []  # title, cells by heading, style

    def add(self, cells: Mapping[str, str], title: str = "", style: str = "") -> None:
        """Print a row; before the first row, and after a change of title, the headings."""
        if not self.rows:
            columns = [replace(column, width=max(column.width, len(cells[column.heading]))) for column in self.columns]
            self.parts = _parts(columns, width())
        self._print(self.parts[0], self.rows[-1][0] if self.rows else None, title, cells, style)
        self.rows.append((title, cells, style))

    def end(self) -> None:
        """Print the further parts."""
        for part in self.parts[1:]:
            last = None
            for title, cells, style in self.rows:
                self._print(part, last, title, cells, style)
                last = title

    def _print(self, part: list[Column], last: str | None, title: str, cells: Mapping[str, str], style: str) -> None:
        if title != last:
            if title:
                self.screen.print("", title, style="bold")
            elif last is None and self.rows:
                self.screen.print("")
            self.screen.print(*_lines(part, {column.heading: column.heading for column in part}), style="dim")
        self.screen.print(*_lines(part, cells), style=style)


def _parts(columns: list[Column], room: int) -> list[list[Column]]:
    """The columns of each part: the names, and as many others as fit. The first part has the text."""
    names, text = [c for c in columns if c.name], [c for c in columns if c.text]
    found, part, begin = [], [*names], [*names, *text]
    for column in columns:
        if column.name or column.text:
            continue
        if sum(c.room + GAP for c in [*begin, *part[len(names) :], column]) - GAP > room and len(part) > len(names):
            found.append([*part, *(begin[len(names) :])])
            part, begin = [*names], names
        part.append(column)
    return [*found, [*part, *begin[len(names) :]]]


def _lines(part: list[Column], cells: Mapping[str, str]) -> Iterator[str]:
    """The lines of a row; a long text takes several."""
    *columns, last = part
    start = (" " * GAP).join(column.set(cells[column.heading]) for column in (columns if last.text else part))
    if not last.text:
        yield start.rstrip()
        return
    before, room = len(start) + GAP, max(PROSE, width() - len(start) - GAP)
    first, *more = textwrap.wrap(cells[last.heading], room, break_long_words=False, break_on_hyphens=False) or [""]
    yield (start + " " * GAP + first).rstrip()
    yield from (" " * before + line for line in more)
