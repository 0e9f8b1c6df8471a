"""Every example in README.md and docs/ runs and prints what the page says.

python   runs, after those before it on the page; one that begins with `# name.py` is put into that file instead
text     right after a python block: what that block printed
console  lines `$ python ...` and `$ mpirun ...` run; the lines after one are what it printed; other commands do not run
"""

import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.jobs import LONGEST, mpirun

import pdla
from docs.notebooks import notebook
from pdla.config import Settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)]
BLOCK = re.compile(r"^```(python|text|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\w+\.py)\n")
ENVIRON = {
    "OMP_NUM_THREADS": "1",  # ranks outnumber cores, and idle BLAS threads spin
    "COLUMNS": "80", "NO_COLOR": "1",  # whatever the terminal from which this is run
}


class Page:
    """One page's examples, which share names and a folder."""

    def __init__(self, path, folder, capsys):
        self.path, self.folder, self.capsys = path, folder, capsys
        self.names = {"__name__": "__main__"}
        self.printed = None

    def run(self):
        text = self.path.read_text()
        if "\nimport torch\n" in text:
            pytest.importorskip("torch", reason="a page for who has PyTorch: python -m pip install torch==2.13.0")
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start(2))
            getattr(self, block[1])(block[2], line)

    def python(self, code, line):
        if named := NAMED.match(code):
            (self.folder / named[1]).write_text(code)
            return
        exec(compile("\n" * line + code, self.path, "exec"), self.names)
        self.printed = self.capsys.readouterr().out

    def text(self, expected, line):
        if self.printed is not None:
            assert self.printed == expected, f"{self.path.name}:{line}"
        self.printed = None

    def console(self, code, line):
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", code, re.MULTILINE):
            if command.startswith(("python ", "mpirun ")):
                assert self.job(command) == expected, f"{self.path.name}:{line}: {command}"

    def job(self, command):
        launchers = {"python": [sys.executable], "mpirun": mpirun()}
        words = [part for word in shlex.split(command) for part in launchers.get(word, [word])]
        done = subprocess.run(words, cwd=self.folder, env=os.environ | ENVIRON, timeout=LONGEST, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_examples(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    Page(path, tmp_path, capsys).run()


def test_a_notebook_has_the_examples_of_its_page():
    """In order, and what they print; what draws is a cell, its picture on the page is none."""
    for path in (ROOT / "docs" / "notebooks").glob("*.md"):
        page = path.read_text()
        cells = notebook(page)["cells"]
        code = [cell["source"].replace("%%writefile ", "# ") for cell in cells if cell["cell_type"] == "code"]
        said = [output["text"] for cell in cells for output in cell.get("outputs", [])]
        words = "".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
        assert code == [block[2].strip() for block in BLOCK.finditer(page) if block[1] == "python"]
        assert said == [block[2] for block in BLOCK.finditer(page) if block[1] == "text"]
        assert "](../" not in words and ".md)" not in words, path.name


@pytest.mark.parametrize("module", [pdla, pdla.linalg, pdla.nn, pdla.scalapack, pdla.simulate], ids=lambda module: module.__name__)
def test_the_reference_has_all_that_is_exported(module):
    page = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    lists = re.findall(r"^\.\. autosummary::\n(?:   :.*\n)*\n((?:   [~.\w]+\n)+)", page, re.MULTILINE)
    told = {*" ".join(lists).split(), *re.findall(r"auto(?:class|function):: (?:pdla\.nn\.)?(\w+)$", page, re.MULTILINE)}
    assert {name for name in module.__all__ if callable(getattr(module, name))} <= told


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_examples_fit_a_page(path):
    blocks = [block[2] for block in BLOCK.finditer(path.read_text()) if block[1] == "python"]
    assert [line for block in blocks for line in block.splitlines() if len(line) > 88] == []


def test_the_table_of_settings_has_them_all():
    page = (ROOT / "docs" / "launch.md").read_text()
    assert not [name for name in map(str.upper, Settings.__annotations__) if f"`PDLA_{name}`" not in page]


def test_names_in_tables_are_names_of_the_code():
    """Of files, and of all else: a name that has gone from the code stands in no table either. Other packages' names may."""
    sources = [file for folder in ("pdla", "bench", "cuda", "tests") for file in (ROOT / folder).rglob("*.*")]
    code = " ".join(file.read_text() for file in sources if file.suffix in (".py", ".c", ".cu", ".h", ".f90", ".toml"))
    known = set(re.findall(r"[A-Za-z_]\w+", code + (ROOT / "Makefile").read_text())) | {"mpichversion", "libmpi_gtl_cuda"}
    rows = [(path.name, line) for path in PAGES if path.stem != "coming_from" for line in path.read_text().splitlines()
            if line.startswith("|")]
    assert len(rows) > 100
    for page, line in rows:
        for name in re.findall(r"`([A-Za-z_]\w{3,})(?:\(\))?`", line):
            assert name in known, (page, name)
        for file in re.findall(r"`([\w/]+\.py)`", line):
            assert (ROOT / file).exists() or (ROOT / "pdla" / file).exists(), (page, file)


def list_calls(comm, work):
    """The functions of pdla that `work` calls, in order: (file, name)."""
    calls, A = [], pdla.ones((413, 413), pdla.ProcessGrid((2, 2), comm=comm), pdla.Layout("row", "col"))

    def watch(frame, event, _):
        if event == "call" and "/pdla/" in frame.f_code.co_filename:
            calls.append((frame.f_code.co_filename.rpartition("/pdla/")[2], frame.f_code.co_qualname))

    sys.setprofile(watch)
    work(A)
    sys.setprofile(None)
    return calls


CALLS = {"A @ B": lambda A: A @ A, "solve(A, b)": lambda A: pdla.linalg.solve(A, np.ones(413))}


@pytest.mark.parametrize(("heading", "work"), CALLS.items(), ids=CALLS)
def test_the_architecture_s_tables_of_calls_are_in_order(heading, work):
    section = (ROOT / "docs" / "architecture.md").read_text().split(f"## {heading}, from top to bottom")[1].split("\n## ")[0]
    lines = re.findall(r"^\| \d+ \| (\S+) \| `(\S+)` \|", section.replace("\\", ""), re.MULTILINE)
    assert len(lines) == section.count("\n| ") - 1 > 20
    calls = iter(pdla.dry_run(4, list_calls, work)[0])
    for line in lines:
        assert line in calls, line  # reads on, up to this call


def test_a_link_into_a_page_finds_its_heading():
    """Sphinx makes anchors for headings down to a depth, and for none unless it is told: launch.md#another-blas led nowhere."""
    config = (ROOT / "docs" / "conf.py").read_text()
    depth = max(map(int, re.findall(r"^myst_heading_anchors = (\d)", config, re.MULTILINE)), default=0)
    for path in PAGES:
        for page, anchor in re.findall(r"\]\(([\w./]*\.md)#([\w-]+)\)", path.read_text()):
            titles = re.findall(rf"^#{{1,{depth}}} (.*)$", (path.parent / page).read_text(), re.MULTILINE) if depth else []
            anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in anchors, f"{path.name}: {page}#{anchor}"
