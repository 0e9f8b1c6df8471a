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
    """A table's columns, each with its heading and format: "10.3f" for numbers, "<20" for text."""

    columns: tuple[tuple[str, str], ...]

    @staticmethod
    def of(text: str) -> Table:
        """Parse a table whose columns are written as "head:form | head:form"."""
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
        return [parameter for parameter in signature(self.work, eval_str=True).parameters.values() if parameter.name != "comm"]

    def add_words(self, parser: ArgumentParser) -> None:
        """Add the words to a parser. An annotation reads a word, or lists its choices."""
        for parameter in self.parameters:
            annotation, default = parameter.annotation, parameter.default
            is_option = parameter.kind is Parameter.KEYWORD_ONLY
            options: dict[str, Any] = {"choices": annotation}
            if callable(annotation):
                options = {"type": annotation, "metavar": parameter.name.upper()}
            if annotation is bool:
                options = {"action": "store_true"}
            elif default is not Parameter.empty:
                options |= {"default": default, "help": f"default {default}" if default else ""}
                options |= {} if is_option else {"nargs": "?"}
            parser.add_argument(f"--{parameter.name}" if is_option else parameter.name, **options)

    def run(self, given: Namespace) -> None:
        """Run the case and print its lines and rows as they come; a job's first rank prints."""
        words, show = {parameter.name: getattr(given, parameter.name) for parameter in self.parameters}, print
        if "comm" in signature(self.work).parameters:
            pdla.abort_on_exception()
            words["comm"] = pdla.world()
            show = choose_print(words["comm"])
        rows = []
        for row in self.work(**words):
            if not isinstance(row, str) and not rows:
                show(self.table.head())
            show(row if isinstance(row, str) else self.table.line(row), flush=True)
            rows += [] if isinstance(row, str) else [row]
        if given.json and rows and show is print:
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
    """Make the parser of all cases."""
    parser = ArgumentParser("python -m bench", description="Run a case and print its figures; NAME --help explains one.")
    parser.add_argument("--json", type=to_write, metavar="FILE", help="write the rows to FILE")
    names = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, registered in sorted(CASES.items()):
        about = cleandoc(registered.work.__doc__ or "")
        options = {"description": about, "formatter_class": RawDescriptionHelpFormatter}
        registered.add_words(names.add_parser(name, help=about.partition("\n")[0].replace("%", "%%"), **options))
    return parser
