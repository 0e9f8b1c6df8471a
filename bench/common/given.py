"""Starts a script that has positional arguments only, all of one kind."""

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any


def started(main: Callable[..., Any], kind: Callable[[str], Any], about: str) -> None:
    """Call main with the command line's words, each converted by `kind`. --help, or a wrong word, prints `about`."""
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(about)
        return
    try:
        words = [kind(word) for word in sys.argv[1:]]
        signature(main).bind(*words)
    except (ArgumentTypeError, TypeError, ValueError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}\n\n{about}")
    main(*words)
