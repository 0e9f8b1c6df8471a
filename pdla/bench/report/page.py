"""One page of HTML that needs no other file: page.html with page.css, page.js and the data put in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files as packaged
from typing import Any

from pdla.bench.report.lines import File, Line


def page(files: Sequence[File], lines: Sequence[Line]) -> str:
    """The page that shows these lines below what is known of their files."""
    data = {"files": [file.about for file in files], "lines": [asdict(line) for line in lines]}
    text = _part("page.html")
    for name, content in (("page.css", _part("page.css")), ("page.js", _part("page.js")), ("data", safe(data))):
        text = text.replace(f"/* {name} */", content)
    return text


def _part(name: str) -> str:
    return packaged("pdla.bench.report").joinpath(name).read_text()


def safe(data: Any) -> str:
    """JSON that cannot end the script element it stands in: the characters that mean something in HTML are escaped."""
    text = json.dumps(data, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
