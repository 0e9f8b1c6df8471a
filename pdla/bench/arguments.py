"""Read arguments, and add those that several commands share."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Collection
from itertools import takewhile
from math import inf, prod
from pathlib import Path
from typing import Any, NoReturn

import pdla
from pdla.bench.leave import check_file
from pdla.bench.screen import width
from pdla.bench.stop import REFUSED, Stop, refuse
from pdla.comm import threads
from pdla.config import ARRAYS
from pdla.cuts import LONGEST as LONGEST_BLOCK
from pdla.errors import list_choices, plural, suggest
from pdla.indices import MOST as LONGEST
from pdla.matmul.search.checks import MOST_RANKS
from pdla.model.machine import Machine

COMMON = {
    "threads": "--threads", "array": "--array", "dry_run": "--dry-run", "ranks": "-P", "json": "--json", "machine": "--machine",
    "wide": "--wide",
}  # options that may stand before a command
SHORT = 12  # characters of choices that stand beside an option


class Parser(argparse.ArgumentParser):
    """Raise help and errors as a Stop, so that one rank alone prints them, with a suggestion."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse misspelt options first, with those that are like them; then parse as argparse does.

        argparse would take the value behind a misspelt option for a command.
        """
        known = self._option_string_actions
        ends = {"--", *(name for action in self._actions if action.nargs == argparse.PARSER for name in action.choices or ())}
        for word in takewhile(lambda word: word not in ends, args):
            option = word.partition("=")[0]
            if word.startswith("--") and not any(name.startswith(option) for name in known):
                self.error(f"unrecognized argument: {word}{suggest(option, known)}")
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"{value!r}: {list_choices(value, action.choices)}")

    def print_help(self, file: Any = None) -> NoReturn:
        raise Stop(0, self.format_help())

    def error(self, message: str) -> NoReturn:
        raise Stop(REFUSED, f"{self.prog.removeprefix('python -m ')}: {message} (see {self.prog} --help)")


class Help(argparse.HelpFormatter):
    """Help as wide as the screen, up to 100 columns: a short usage, long choices in the text, examples verbatim."""

    OPTIONS = argparse.Action([], "options", metavar="[options]")

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=22, width=min(width(), 100))

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
        needed = [action for action in actions if action.required or not action.option_strings]
        super().add_usage(usage, [self.OPTIONS, *needed], [], prefix)

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return action.dest.upper()

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Any:
        known, action.choices = action.choices, None if _long(action) else action.choices
        try:
            return super()._metavar_formatter(action, default_metavar)
        finally:
            action.choices = known

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return f"{action.help}: {', '.join(map(str, action.choices or ()))}" if _long(action) else action.help

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else textwrap.fill(text, width)


def _long(action: argparse.Action) -> bool:
    """Whether an option has more choices than stand beside its name."""
    return action.metavar is None and action.choices is not None and len(",".join(map(str, action.choices))) > SHORT


class Version(argparse.Action):
    """Raise the version as a Stop, so that one rank alone prints it."""

    def __call__(self, *_: object) -> NoReturn:
        raise Stop(0, f"pdla {pdla.__version__}")


def positive(text: str) -> int:
    return _number(text, 1)


def natural(text: str) -> int:
    return _number(text, 0)


def positives(text: str) -> list[int]:
    """Numbers separated by commas."""
    return [positive(word) for word in text.split(",")]


def block_length(text: str) -> int:
    """Rows or columns of a block of a block-cyclic layout."""
    return _up_to(LONGEST_BLOCK, "rows or columns", text)


def block_lengths(text: str) -> list[int]:
    """Block lengths separated by commas."""
    return [block_length(word) for word in text.split(",")]


def above_zero(text: str, what: str = "a number above 0") -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return found


def to_write(text: str) -> str:
    """A file to write after the work. An unusable path is refused before the work."""
    try:
        check_file(text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error
    return text


def to_draw(text: str) -> str:
    """A picture to draw after the work. An unusable path or format is refused before the work."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise argparse.ArgumentTypeError("needs matplotlib: pip install 'pdla[plot]'") from error
    known = Figure().canvas.get_supported_filetypes()
    if Path(text).suffix[1:].lower() not in known:
        raise argparse.ArgumentTypeError(f"{text}: a file's ending is {list_choices(Path(text).suffix[1:], known)}")
    return to_write(text)


def rank_count(text: str) -> int:
    return _up_to(MOST_RANKS, "ranks", text)


def thread_count(text: str) -> int:
    found = rank_count(text)
    if found > threads.MOST:
        instead = f"--dry-run -P {text} says what it would take"
        raise argparse.ArgumentTypeError(f"{text!r} is too many: at most {threads.MOST}; {instead}")
    return found


def _up_to(most: int, what: str, text: str) -> int:
    found = positive(text)
    if found > most:
        raise argparse.ArgumentTypeError(f"{text!r} is too many: up to {most} {what}")
    return found


def _number(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
    return int(text)


def sides(text: str, count: int, what: str) -> list[int]:
    """Read `count` numbers of at least 1, separated by x. what: their name and an example, for the error."""
    words = text.lower().split("x")
    if len(words) != count or not all(word.isdecimal() and int(word) for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return [int(word) for word in words]


def sizes(text: str) -> tuple[int, int, int]:
    m, n, k = sides(text, 3, "a product: give m x n x k, such as 8192x8192x1024")
    if max(m, n, k) > LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is too long: m, n and k are up to {LONGEST}")
    return m, n, k


def grid_shape(text: str) -> tuple[int, int]:
    rows, cols = sides(text, 2, "a grid: give rows x columns, such as 2x3")
    return rows, cols


def by_x(shape: Collection[int]) -> str:
    """A grid's shape, such as 2x3."""
    return "x".join(map(str, shape))


def check_ranks(grid: Collection[int], ranks: int) -> None:
    """Raise Stop where a grid needs more ranks than there are."""
    if prod(grid) > ranks:
        raise refuse(f"--grid {by_x(grid)} needs {prod(grid)} ranks, there {plural(ranks, 'is', 'are')} {ranks}")


def layers_shape(text: str) -> tuple[int, ...]:
    """A grid, or several layers of at least 2 x 2 ranks."""
    if text.lower().count("x") < 2:
        return grid_shape(text)
    shape = sides(text, 3, "a grid: give rows x columns, such as 2x3, or with layers, such as 2x3x4")
    if min(shape) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: layers are 2 or more, of 2x2 ranks or more")
    return tuple(shape)


def add_ranks(to: argparse.ArgumentParser, refused: Collection[str] = ()) -> None:
    """Add the options of ranks and of --json, which may precede or follow the command.

    refused  options that the command reads only to refuse them with a reason; its help does not list them
    """

    def help_of(name: str, what: str) -> str:
        return argparse.SUPPRESS if name in refused else what

    group = to.add_argument_group("where it runs, and what it leaves", argument_default=argparse.SUPPRESS)
    group.add_argument("--threads", type=thread_count, metavar="P", help="run on P ranks, threads of this process; needs no MPI")
    arrays = "what the blocks of matrices are: NumPy's arrays, or CuPy's on each rank's GPU (default: PDLA_ARRAY, or numpy)"
    group.add_argument("--array", choices=ARRAYS, help=arrays)
    dry = "run without data, to predict bytes, messages and workspace of -P ranks; with --machine seconds, too"
    group.add_argument("--dry-run", action="store_true", help=help_of("dry_run", dry))
    group.add_argument("-P", dest="ranks", type=rank_count, metavar="RANKS", help=help_of("ranks", "number of ranks of a dry run"))
    leaves = "write machine, versions and all figures to FILE, for report and compare"
    group.add_argument("--json", metavar="FILE", help=help_of("json", leaves))


def add_wide(to: argparse.ArgumentParser) -> None:
    """Add --wide, which may precede or follow the command, for a command that prints a table."""
    what = "show all columns of the table; those beyond the screen's width (COLUMNS) follow in further tables"
    to.add_argument("--wide", action="store_true", default=argparse.SUPPRESS, help=what)


def add_machine(to: argparse.ArgumentParser) -> None:
    """Add --machine, which may precede or follow the command."""
    what = f"predict seconds on this machine, too: a TOML file that calibrate has written, or {', '.join(Machine.known())}; "
    what += "a dry run plans for it, too, a run for that of PDLA_MACHINE"
    to.add_argument("--machine", metavar="NAME", default=argparse.SUPPRESS, help=what)


def machine(name: str | None) -> Machine:
    """Load the machine of a name or TOML file; None: that of PDLA_MACHINE. Raises Stop if it is missing."""
    try:
        return Machine.choose() if name is None else Machine.load(name)
    except (OSError, ValueError) as error:
        raise refuse(str(error) if name is None else f"--machine: {error}") from error
