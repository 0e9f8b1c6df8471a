"""Tables that are printed row by row, in columns whose widths the first row decides."""

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

    width  characters, at least;  left: set to the left;  name: it begins each part of a table that has several
    more   shown with --wide alone;  text: set to the left, in as many lines as it takes: of a table's last column
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
    """A table on a screen. On one that is too narrow, columns that do not fit follow in further parts, by `end`."""

    screen: Screen
    columns: list[Column]

    def __init__(self, screen: Screen, columns: Sequence[Column], wide: bool = False) -> None:
        self.screen, self.columns = screen, [column for column in columns if wide or not column.more]
        self.parts: list[list[Column]] = []
        self.rows: list[tuple[str, Mapping[str, str], str]] = []  # title, cells by heading, style

    def add(self, cells: Mapping[str, str], title: str = "", style: str = "") -> None:
        """Print a row; before the first one, and where the title changes, the headings."""
        if not self.rows:
            columns = [replace(column, width=max(column.width, len(cells[column.heading]))) for column in self.columns]
            self.parts = _parts(columns, width())
        self._print(self.parts[0], self.rows[-1][0] if self.rows else None, title, cells, style)
        self.rows.append((title, cells, style))

    def end(self) -> None:
        """Print the parts that are left."""
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
    """The columns of each part: the names, and as many others as fit; the text is in the first part."""
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
    """A row; several lines where its text is long."""
    *columns, last = part
    start = (" " * GAP).join(column.set(cells[column.heading]) for column in (columns if last.text else part))
    if not last.text:
        yield start.rstrip()
        return
    before, room = len(start) + GAP, max(PROSE, width() - len(start) - GAP)
    first, *more = textwrap.wrap(cells[last.heading], room, break_long_words=False, break_on_hyphens=False) or [""]
    yield (start + " " * GAP + first).rstrip()
    yield from (" " * before + line for line in more)
