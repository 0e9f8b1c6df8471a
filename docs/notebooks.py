"""Notebooks of the pages in docs/notebooks: `make docs` writes docs/notebooks/*.ipynb beside them.

A python block is a code cell, a text block after it what the cell prints, all else text. One that begins with `# name.py` is put
into that file.
"""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).parent / "notebooks"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\([\w./]+\.md(?:#[\w-]+)?\)")  # to another page: its words remain
DRAWN = re.compile(r"^!\[.*?\]\(.*?\)\n", re.MULTILINE)  # the cell before it draws it


def cells(page):
    """The cells of a page, in its order."""
    end = 0
    for block in [*BLOCK.finditer(page), None]:
        text = LINK.sub(r"\1", DRAWN.sub("", page[end : block.start() if block else None])).strip()
        if text:
            yield {"cell_type": "markdown", "metadata": {}, "source": text}
        if block and block[1] == "python":
            source = re.sub(r"\A# (\w+\.py)$", r"%%writefile \1", block[2].strip(), count=1, flags=re.MULTILINE)
            code = {"cell_type": "code", "metadata": {}, "execution_count": None, "source": source, "outputs": []}
            yield code
        elif block:
            code["outputs"].append({"output_type": "stream", "name": "stdout", "text": block[2]})
        end = block.end() if block else end


def notebook(page):
    """A page as a notebook, a dict that json writes."""
    numbered = [cell | {"id": f"cell-{number}"} for number, cell in enumerate(cells(page))]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": numbered}


def write():
    """Write them all."""
    for page in FOLDER.glob("*.md"):
        page.with_suffix(".ipynb").write_text(json.dumps(notebook(page.read_text()), indent=1))


if __name__ == "__main__":
    write()
