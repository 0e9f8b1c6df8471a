"""Reports of a run: the JSON that it leaves, and what is made of it to look at: a table, plots, one page of HTML.

content  rows to JSON (schema.json), and back           lines  rows of many files, ready to be drawn
plots    figures by matplotlib                          page   one HTML file (page.html, page.css, page.js)
command  python -m pdla.bench report
"""

from pdla.bench.report.command import add, run
from pdla.bench.report.content import SCHEMA, VERSION, entry, report, write

__all__ = ["SCHEMA", "VERSION", "add", "entry", "report", "run", "write"]
