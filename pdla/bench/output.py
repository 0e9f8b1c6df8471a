"""Standard output, of which a fault, as a full disk, is one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from pdla.bench.stop import refuse


class Output(TextIOWrapper):
    """A text file that raises Stop where it cannot be written."""

    def write(self, text: str) -> int:
        with self._refuse_failures():
            return super().write(text)

    def flush(self) -> None:
        with self._refuse_failures():
            super().flush()

    @contextmanager
    def _refuse_failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # else Python, when it ends, would write the rest in vain
            raise refuse(f"standard output: {error.strerror}") from error


def take_output(alone: bool) -> None:
    """Prepare sys.stdout. alone: this is the only process, so a Stop in it leaves no other waiting."""
    if sys.stdout is None:  # closed, as by >&-
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    old = sys.stdout
    assert isinstance(old, TextIOWrapper)
    old.reconfigure(errors="replace")  # a terminal may know fewer characters than tables have
    if alone:
        how = old.encoding, old.errors, None, old.line_buffering, old.write_through
        sys.stdout = Output(old.detach(), *how)
