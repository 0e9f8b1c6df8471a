"""What a sub-command is."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from dataclasses import dataclass

from pdla.bench.arguments import Parser


@dataclass(frozen=True)
class Command:
    """A sub-command, as its file describes it.

    about     what it is for, in words;  examples: lines of command lines, each with what it does
    run       gives the exit status: run(comm, arguments, words), which all ranks call, or, `alone`, run(arguments) in one process
    add       adds its arguments;  check: raises Stop where they contradict each other
    lacks     those of COMMON that it has not
    refuses   those of COMMON that it reads only to say why it has no use for them; its help does not list them
    """

    name: str
    about: str
    examples: str
    run: Callable[..., int]
    add: Callable[[Parser], object] = lambda to: None
    check: Callable[[argparse.Namespace], object] = lambda arguments: None
    alone: bool = False
    lacks: Collection[str] = ()
    refuses: Collection[str] = ()
