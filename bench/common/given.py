"""Read scripts' command lines, and choose the rank that prints."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pdla.bench.arguments import sizes


def make_parser(about: str) -> ArgumentParser:
    """The parser of a script; `about`: its docstring."""
    return ArgumentParser(Path(sys.argv[0]).name, description=about, formatter_class=RawDescriptionHelpFormatter)


def read_shapes(text: str) -> list[tuple[int, int, int]]:
    """m x n x k of several products, separated by commas."""
    return [sizes(shape) for shape in text.split(",")]


def choose_print(comm: Any) -> Callable[..., None]:
    """`print` on the first rank of a communicator, pdla's or mpi4py's; silence on the others."""
    return print if comm.rank == 0 else lambda *_, **__: None
