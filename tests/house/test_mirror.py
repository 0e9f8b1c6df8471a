"""The tests are where their modules are: those of pdla/grid.py in tests/test_grid.py."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PDLA = TESTS.parent / "pdla"
OTHERWISE = {"bench_scripts", "clients", "house"}  # folders of tests of what is no module of pdla
RENAMED = {"mpi_world": "mpi"}  # pytest-mpi skips all that is in a folder `mpi`, without mpirun
ROOMS = {  # tests of several modules together
}


@pytest.mark.parametrize("base", [TESTS, TESTS / "mpi"], ids=["tests", "tests/mpi"])
def test_each_file_of_tests_has_its_module(base):
    """A room's own tests have its name: tests/io/test_io.py are those of pdla/io/__init__.py."""
    homeless = []
    for file in sorted(base.rglob("test_*.py")):
        folder, name = file.relative_to(base).parent, file.stem.removeprefix("test_")
        if folder.parts[:1] in ((other,) for other in OTHERWISE) or (base == TESTS and folder.parts[:1] == ("mpi",)):
            continue
        room = PDLA.joinpath(*(RENAMED.get(part, part) for part in folder.parts))
        if not ((room / f"{name}.py").exists() or (name == room.name and (room / "__init__.py").exists())):
            homeless.append((folder / file.stem).as_posix())
    assert sorted(set(homeless) - set(ROOMS)) == []


def test_each_exception_is_one():
    places = TESTS, TESTS / "mpi"
    files = {file.relative_to(top).with_suffix("").as_posix() for top in places for file in top.rglob("test_*.py")}
    assert set(ROOMS) <= files


def test_only_what_needs_mpirun_is_in_a_folder_called_mpi():
    folders = [folder.relative_to(TESTS) for folder in TESTS.rglob("mpi") if folder.is_dir()]
    assert {folder.parts[0] for folder in folders} == {"mpi"}
