"""Cases, the functions of `python -m bench`: read their words, and print their rows."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import Parameter, cleandoc, signature
from typing import Any

import pdla
from bench.common.given import choose_print
from pdla.bench.arguments import to_write
from pdla.bench.leave import write_json

Work = Callable[..., Iterable[Any]]


@dataclass(frozen=True)
class Table:
    """Columns of heads and forms, with widths: "10.3f" for numbers, "<20" for text."""

    columns: tuple[tuple[str, str], ...]

    @staticmethod
    def of(text: str) -> Table:
        """The table whose columns are written as "head:form | head:form"."""
        return Table(tuple((head.strip(), form) for head, _, form in (each.strip().rpartition(":") for each in text.split("|"))))

    def line(self, row: Iterable[Any]) -> str:
        """Format a row's values, None as a blank; two blanks precede a column of text behind another."""
        cells = []
        for value, (_, form) in zip(row, self.columns, strict=True):
            text = "" if value is None else value if isinstance(value, str) else format(value, form)
            width = int(re.match(r"<?(\d+)", form)[1])
            cells.append(("  " * bool(cells) + f"{text:<{width}}") if form.startswith("<") else f"{text:>{width}}")
        return "".join(cells).rstrip()

    def head(self) -> str:
        return self.line(head for head, _ in self.columns)


@dataclass(frozen=True)
class Case:
    """A function and its table. The docstring is the help; the parameters are the words."""

    work: Work
    table: Table

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters from the command line."""
        return [each for each in signature(self.work, eval_str=True).parameters.values() if each.name != "comm"]

    def add_words(self, parser: ArgumentParser) -> None:
        """Add the words to a parser. An annotation reads a word, or lists its choices."""
        for each in self.parameters:
            kind, default = each.annotation, each.default
            option = each.kind is Parameter.KEYWORD_ONLY
            how: dict[str, Any] = {"type": kind, "metavar": each.name.upper()} if callable(kind) else {"choices": kind}
            if kind is bool:
                how = {"action": "store_true"}
            elif default is not Parameter.empty:
                how |= {"default": default, "help": f"default {default}" if default else ""} | ({} if option else {"nargs": "?"})
            parser.add_argument(f"--{each.name}" if option else each.name, **how)

    def run(self, given: Namespace) -> None:
        """Run the case and print its lines and rows as they come; a job's first rank prints."""
        words, tell = {each.name: getattr(given, each.name) for each in self.parameters}, print
        if "comm" in signature(self.work).parameters:
            pdla.abort_on_exception()
            words["comm"] = pdla.world()
            tell = choose_print(words["comm"])
        rows = []
        for row in self.work(**words):
            if not isinstance(row, str) and not rows:
                tell(self.table.head())
            tell(row if isinstance(row, str) else self.table.line(row), flush=True)
            rows += [] if isinstance(row, str) else [row]
        if given.json and rows and tell is print:
            write_json(given.json, {"columns": [head for head, _ in self.table.columns], "rows": rows})


CASES: dict[str, Case] = {}


def case(columns: str = "") -> Callable[[Work], Work]:
    """Register a function that yields lines of text, and rows with a value for each column.

    Its parameters are the command line's: positional ones, and options after `*`. A case with a
    parameter `comm`, the communicator, runs on all ranks of the job.
    """

    def register(work: Work) -> Work:
        CASES[work.__name__] = Case(work, Table.of(columns))
        return work

    return register


def make_parser() -> ArgumentParser:
    """The parser of all cases."""
    whole = ArgumentParser("python -m bench", description="Run a case and print its figures; NAME --help explains one.")
    whole.add_argument("--json", type=to_write, metavar="FILE", help="write the rows to FILE")
    names = whole.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, each in sorted(CASES.items()):
        about = cleandoc(each.work.__doc__ or "")
        how = {"description": about, "formatter_class": RawDescriptionHelpFormatter}
        each.add_words(names.add_parser(name, help=about.partition("\n")[0].replace("%", "%%"), **how))
    return whole
