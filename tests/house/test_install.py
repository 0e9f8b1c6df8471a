"""What an installed pdla carries."""

import ast
import tomllib
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_cuda_sources_are_in_the_package():
    for name in ("pack", "uniform", "gelu", "columns", "rows"):
        assert "extern" in files("pdla.cuda").joinpath(f"{name}.cu").read_text()


def test_every_file_that_is_no_python_is_installed():
    """`make dist` runs what is built; here is what setup.py names, so that a new kind of file is not forgotten."""
    calls = (node for node in ast.walk(ast.parse((ROOT / "setup.py").read_text())) if isinstance(node, ast.Call))
    words = {word.arg: word.value for call in calls for word in call.keywords}
    named = {file for pattern in ast.literal_eval(words["package_data"])["pdla"] for file in (ROOT / "pdla").glob(pattern)}
    others = {file for file in (ROOT / "pdla").rglob("*.*") if file.suffix not in (".py", ".pyc") and file.is_file()}
    assert others <= named
    assert {file.suffix for file in named} >= {".toml", ".json", ".h", ".f90", ".cu"}


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "pdla.__version__"}
    assert "version:" not in (ROOT / "CITATION.cff").read_text().replace("cff-version:", "")
