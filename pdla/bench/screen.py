"""The screen: lines of a report as they come, and where the command is in between."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from typing import TextIO

DEFAULT, LEAST = 80, 40  # columns: of no terminal; the fewest that text is set for
SILENCE = 2.0  # seconds without a word, after which a line says where the command is, where no bar can be drawn
BAR = 20  # characters
STYLES = {"": "", "bold": "1", "dim": "2", "wrong": "1;31"}
ERASE = "\r\x1b[K"


class Screen:
    """What a command prints, at the first rank; no other rank prints. `first`: whether this is that rank."""

    first: bool
    said: float
    done: int
    total: int

    def __init__(self, first: bool = True) -> None:
        self.first, self.said = first, time.monotonic()
        self.done = self.total = 0

    def print(self, *lines: str, style: str = "") -> None:
        """Print lines at once: they appear in a pipe, too."""
        if self.first and lines:
            clear()
            print(*(_paint(line, style) for line in lines), sep="\n", flush=True)
            self.said = time.monotonic()

    def print_text(self, *lines: str, style: str = "") -> None:
        """Print prose, of which long lines take several."""
        self.print(*(part for text in lines for line in text.splitlines() or [""] for part in _wrap(line)), style=style)

    def show_progress(self, what: str, done: int = 0, total: int = 0) -> None:
        """Say where the command is: a bar on a terminal; elsewhere a line, after SILENCE.

        done, total  how much of the command is done, which holds until it is said again
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
    """Columns of a line: COLUMNS, else the terminal's, of which the ranks of a launcher may know none, else 80."""
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
    """Whether standard output takes colours: as NO_COLOR or FORCE_COLOR says, else where it is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or _is_terminal(sys.stdout)


def clear() -> None:
    """Erase what `show_progress` has drawn."""
    if live := _find_stream():
        live.write(ERASE)
        live.flush()


def _find_stream() -> TextIO | None:
    """Where a line can be drawn again; None where that is no terminal.

    FORCE_COLOR stands for the terminal of a launcher, which takes the ranks' output from a pipe. Lines and bars
    then go one way, so that they keep their order.
    """
    if _is_terminal(sys.stderr):
        return sys.stderr
    return sys.stdout if os.environ.get("FORCE_COLOR") and has_colours() else None


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def _paint(line: str, style: str) -> str:
    return f"\x1b[{STYLES[style]}m{line}\x1b[0m" if style and line and has_colours() else line


def _wrap(line: str) -> list[str]:
    """A line in lines that fit; further ones stand below its words, beside the name before them if there is one."""
    name = re.match(r" *(\S.*?  +)?", line)
    indent = " " * (name.end() if name and name[1] else 2 + len(line) - len(line.lstrip()))
    return textwrap.wrap(line, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]
