"""A progress bar on rank 0's terminal; none on other ranks, nor where stderr is a file or a pipe."""

from __future__ import annotations

import sys
from typing import Any

from pdla.bench.measure.case import Case


class Progress:
    """`with Progress(first, total) as progress: progress.begin(case)` once before each of `total` cases."""

    def __init__(self, first: bool, total: int) -> None:
        self.shown, self.total, self.begun = first and sys.stderr.isatty(), total, 0
        self.bar: Any = None

    def __enter__(self) -> Progress:
        if self.shown:
            from rich.console import Console
            from rich.progress import Progress as Bar

            self.bar = Bar(console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task("", total=self.total)
        return self

    def begin(self, case: Case) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=self.begun, description=f"{case.algorithm}: {case.title}")
        self.begun += 1

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()
