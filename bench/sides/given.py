"""Starts a script whose arguments stand in a row and have no names."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from inspect import signature
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
