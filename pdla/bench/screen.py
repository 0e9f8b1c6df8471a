"""Print a report's lines as they come, and the command's progress in between."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from typing import TextIO

DEFAULT, LEAST = 80, 40  # columns: of no terminal; the fewest that text is set for
SILENCE = 2.0  # seconds without output, after which a line reports progress if no bar can be drawn
BAR = 20  # characters
STYLES = {"": "", "bold": "1", "dim": "2", "wrong": "1;31"}
ERASE = "\r\x1b[K"


class Screen:
    """A command's output, which the first rank alone prints. `first`: whether this is that rank."""

    first: bool
    said: float
    done: int
    total: int

    def __init__(self, first: bool = True) -> None:
        self.first, self.said = first, time.monotonic()
        self.done = self.total = 0

    def print(self, *lines: str, style: str = "") -> None:
        """Print lines and flush them, so that they appear in a pipe at once."""
        if self.first and lines:
            clear()
            print(*(_paint(line, style) for line in lines), sep="\n", flush=True)
            self.said = time.monotonic()

    def print_text(self, *lines: str, style: str = "") -> None:
        """Print prose; long lines wrap."""
        self.print(*(part for text in lines for line in text.splitlines() or [""] for part in _wrap(line)), style=style)

    def show_progress(self, what: str, done: int = 0, total: int = 0) -> None:
        """Report progress: a bar on a terminal; elsewhere a line, after SILENCE.

        done, total  the command's progress, which holds until the next call that gives it
        """
        if not self.first:
            return
        if total:
            self.done, self.total = done, total
        text = f"{self.done}/{self.total} {what}" if self.total else what
        if live := _find_stream():
            full = BAR * self.done // self.total if self.total else 0
            bar = f"{'━' * full}{'╌' * (BAR - full)} " if self.total else ""
            live.write(ERASE + (bar + text)[: width() - 1])
            live.flush()
        elif time.monotonic() - self.said > SILENCE:
            print(f"... {text}", file=sys.stderr, flush=True)
            self.said = time.monotonic()


def width() -> int:
    """Columns of a line: COLUMNS, else the terminal's, else 80, as under some launchers."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return max(LEAST, int(given))
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return DEFAULT
    try:
        return max(LEAST, os.get_terminal_size(terminal).columns or DEFAULT)
    except OSError:
        return DEFAULT
    finally:
        os.close(terminal)


def has_colours() -> bool:
    """Whether standard output takes colours: by NO_COLOR or FORCE_COLOR, else if it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or _is_terminal(sys.stdout)


def clear() -> None:
    """Erase the bar of `show_progress`."""
    if live := _find_stream():
        live.write(ERASE)
        live.flush()


def _find_stream() -> TextIO | None:
    """The stream of the bar; None without a terminal.

    FORCE_COLOR stands for a launcher's terminal, which gets the ranks' output by a pipe. Lines and bars
    then share a stream, so that they keep their order.
    """
    if _is_terminal(sys.stderr):
        return sys.stderr
    return sys.stdout if os.environ.get("FORCE_COLOR") and has_colours() else None


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def _paint(line: str, style: str) -> str:
    return f"\x1b[{STYLES[style]}m{line}\x1b[0m" if style and line and has_colours() else line


def _wrap(line: str) -> list[str]:
    """Wrap a line to the screen's width; further lines are indented behind the name that the line starts with, if any."""
    name = re.match(r" *(\S.*?  +)?", line)
    indent = " " * (name.end() if name and name[1] else 2 + len(line) - len(line.lstrip()))
    return textwrap.wrap(line, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]
