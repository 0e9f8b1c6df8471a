"""How much code there is."""

import ast
import io
import tokenize
from collections import defaultdict
from pathlib import Path

from bench.common.case import case
from bench.common.launch import ROOT

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER
}
LONG = 100


@case("room:<28 | files:7 | code lines:12")
def lines(folder: Path = ROOT / "pdla"):
    """Files and lines of code of each room, without docstrings, comments and blank lines.

    Also how many lines are longer than 100 columns.
    """
    rooms: dict[str, list[int]] = defaultdict(list)
    long = 0
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        rooms[str(path.parent.relative_to(folder.parent))].append(count_code_lines(text))
        long += sum(len(line) > LONG for line in text.splitlines())
    yield from ((room, len(files), sum(files)) for room, files in sorted(rooms.items()))
    yield "in all", sum(map(len, rooms.values())), sum(map(sum, rooms.values()))
    yield f"{long} lines over {LONG} columns"


def find_docstring_lines(text: str) -> set[int]:
    """The numbers of the lines of docstrings."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def count_code_lines(text: str) -> int:
    """Count lines with code. Lines of strings count, except docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - find_docstring_lines(text))
