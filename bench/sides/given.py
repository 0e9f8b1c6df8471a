"""Starts a script whose arguments stand in a row and have no names."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from inspect import signature
from math import inf
from pathlib import Path
from typing import Any


def started(main: Callable[..., Any], kind: Callable[[str], Any], about: str) -> None:
    """`main` with the words of the command line, each as a `kind`; what is wrong with them and --help are told with `about`."""
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(about)
        return
    try:
        words = [kind(word) for word in sys.argv[1:]]
        signature(main).bind(*words)
    except (ArgumentTypeError, TypeError, ValueError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}\n\n{about}")
    main(*words)


def above_zero(word: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = 0.0
    if not 0 < found < inf:
        raise ArgumentTypeError(f"{word!r} is not a number above 0")
    return found
