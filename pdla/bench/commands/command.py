"""The description of a sub-command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from dataclasses import dataclass

from pdla.bench.arguments import Parser


@dataclass(frozen=True)
class Command:
    """A sub-command, as its file describes it.

    about     its purpose, in words
    examples  command lines, each with its effect
    run       returns the exit status; run(comm, arguments, words) on all ranks, or run(arguments) if `alone`
    add       adds its arguments
    check     raises Stop if arguments contradict each other
    alone     run in one process
    lacks     options of COMMON that it does not have
    refuses   options of COMMON that it refuses with a reason; its help does not list them
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
