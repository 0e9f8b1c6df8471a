"""Write a command's files, and check their paths before the work."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pdla
from pdla.bench.stop import refuse

READ, WRITTEN = ("machine", "a", "b"), ("json", "csv", "plot", "out")  # arguments of commands that name files


def write_file(path: str | None, write: Callable[[str], object], option: str, comm: pdla.Communicator | None = None) -> None:
    """Write an option's file; raises Stop if that fails. Collective over comm, if given: rank 0 writes."""
    fault = ""
    if path is not None and (comm is None or comm.rank == 0):
        try:
            write(path)
        except OSError as error:
            fault = str(error)
    if path is not None and comm is not None:
        fault = comm.share(fault)[0]
    if fault:
        raise refuse(f"{option} {path}: {fault}")


def check_path(path: str | None, option: str, comm: pdla.Communicator | None = None) -> None:
    """Raise Stop before the work if `path` is a folder or in none. Collective over comm, if given."""
    write_file(path, check_file, option, comm)


def check_file(path: str) -> None:
    """Raise OSError if `path` is a folder, or its folder does not exist."""
    if Path(path).is_dir():
        raise IsADirectoryError("this is a folder; give a file")
    if not (folder := Path(path).resolve().parent).is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")


def write_json(path: str, content: Any) -> None:
    """Write `content` as JSON; raises OSError if that fails."""
    Path(path).write_text(json.dumps(content, indent=1) + "\n")


def check_apart(arguments: argparse.Namespace) -> None:
    """Raise Stop if a command would write a file that it reads, or one file twice."""
    taken: dict[Path, str] = {}
    for name in (*READ, *WRITTEN):
        if path := getattr(arguments, name, None):
            does = f"--{name} writes" if name in WRITTEN else f"{arguments.command.name} reads"
            other = taken.setdefault(Path(path).resolve(), does)
            plain = Path(path).is_file() or not Path(path).exists()  # unlike /dev/null
            if name in WRITTEN and other != does and plain:
                raise refuse(f"--{name} {path}: {other} this file; give another")
