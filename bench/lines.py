"""How much code there is: of each room its files, and the lines of code in them, without docstrings, comments and blank lines.

    python -m bench.lines [folder]

Also how many lines are longer than 100 columns.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER
}
LONG = 100


def docstring_lines(text: str) -> set[int]:
    """The numbers of the lines of docstrings."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def code_lines(text: str) -> int:
    """How many lines have code: a line of a string that is no docstring counts."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(text))


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "pdla")
    rooms: dict[str, list[int]] = defaultdict(list)
    long = 0
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        rooms[str(path.parent.relative_to(root.parent))].append(code_lines(text))
        long += sum(len(line) > LONG for line in text.splitlines())
    print(f"{'room':28}{'files':>7}{'code lines':>12}")
    for room, files in sorted(rooms.items()):
        print(f"{room:28}{len(files):7}{sum(files):12}")
    print(f"{'in all':28}{sum(map(len, rooms.values())):7}{sum(map(sum, rooms.values())):12}")
    print(f"{long} lines over {LONG} columns")


if __name__ == "__main__":
    main()
