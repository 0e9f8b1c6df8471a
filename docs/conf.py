"""Sphinx: `make docs` builds docs/_build/index.html."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

project = "pdla"
author = "pdla contributors"
project_copyright = "2026, pdla contributors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # so that one page can point into another
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "pdla"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
default_role = "code"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

COLUMNS = re.compile(r"\S {2,}\S|^ {2,}")


def as_written(app, what, name, obj, options, lines):
    """Docstrings are plain text: paragraphs with columns or indented lines are set as written, the others as prose."""
    paragraphs = [text.split("\n") for text in re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))]
    lines[:] = [line for paragraph in paragraphs for line in (*_set(paragraph), "")]


def _set(paragraph):
    if any(COLUMNS.search(line) for line in paragraph):
        return [".. code-block:: text", "", *("   " + line for line in paragraph)]
    code = re.compile(r"(`[^`]*`)")
    return ["".join(_prose(part) for part in code.split(line)) for line in paragraph]


def _prose(part):
    return part if part.startswith("`") else re.sub(r"([*|]|_\b)", r"\\\1", part)


def setup(app):
    app.connect("autodoc-process-docstring", as_written)
