"""How scripts read their command lines, and what ranks print."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

from pdla.bench.arguments import sizes


def parser(about: str) -> ArgumentParser:
    """For a script with options; `about`: its docstring."""
    return ArgumentParser(Path(sys.argv[0]).name, description=about, formatter_class=RawDescriptionHelpFormatter)


def shapes(text: str) -> list[tuple[int, int, int]]:
    """m x n x k of several products, separated by commas."""
    return [sizes(shape) for shape in text.split(",")]


def started(main: Callable[..., Any], kind: Callable[[str], Any], about: str) -> None:
    """Start a script that has positional arguments only: call main with the words, each converted by `kind`.

    --help, or a wrong word, prints `about`.
    """
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(about)
        return
    try:
        words = [kind(word) for word in sys.argv[1:]]
        signature(main).bind(*words)
    except (ArgumentTypeError, TypeError, ValueError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}\n\n{about}")
    main(*words)


def say(comm: Any) -> Callable[..., None]:
    """`print` on the first rank of a communicator, pdla's or mpi4py's; silence on the others."""
    return print if comm.rank == 0 else lambda *_, **__: None
