"""Standard output whose faults, such as a full disk, are one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from pdla.bench.stop import refuse


class Output(TextIOWrapper):
    """A text file that raises Stop if it cannot be written."""

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
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # else Python would fail again at exit
            raise refuse(f"standard output: {error.strerror}") from error


def take_output(alone: bool) -> None:
    """Prepare sys.stdout. alone: this is the only process, so that a Stop leaves no other waiting."""
    if sys.stdout is None:  # closed, as by >&-
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    old = sys.stdout
    assert isinstance(old, TextIOWrapper)
    old.reconfigure(errors="replace")  # a terminal may know fewer characters than tables have
    if alone:
        how = old.encoding, old.errors, None, old.line_buffering, old.write_through
        sys.stdout = Output(old.detach(), *how)
