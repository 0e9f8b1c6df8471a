"""The tests are where their modules are: those of pdla/grid.py in tests/test_grid.py."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
PDLA = TESTS.parent / "pdla"
OTHERWISE = {"bench_scripts", "clients", "house"}  # folders of tests of what is no module of pdla
RENAMED = {"mpi_world": "mpi"}  # pytest-mpi skips all that is in a folder `mpi`, without mpirun
ROOMS = {  # what several modules do together
    "test_agreed_arguments": "every argument of every function that is collective",
    "test_one_cost": "predictions of products, factorizations and networks, from all that tell any",
    "test_programs": "random programs of many steps",
    "linalg/test_backward_errors": "all factorizations and solutions, beside SciPy's",
    "linalg/test_level3": "over MPI: all of level 3",
    "linalg/test_range": "all factorizations, and what is made of them, near both ends of the range of numbers",
    "linalg/test_roles": "all routines, their roles cast in every way",
    "linalg/test_zoo": "all factorizations, and what is made of them",
    "matmul/test_cover": "a pairwise cover of all products",
    "nn/test_against_numpy": "all layers",
    "nn/test_against_torch": "all layers",
    "nn/test_device": "all that transformers are made of, on a device",
    "nn/test_dtypes": "all layers",
    "nn/test_made": "what cannot be made, of layers, schemes and optimizers",
    "nn/test_memory": "what networks hold",
    "nn/test_refused": "passes that are refused, of all layers",
    "nn/test_words": "what layers receive, in all schemes",
}


def test_each_file_of_tests_has_its_module():
    """A package's own tests have its name: tests/io/test_io.py are those of pdla/io/__init__.py."""
    assert sorted({name for name, home in found() if not home} ^ set(ROOMS)) == []


def found():
    """The name of each file of tests of pdla, without mpirun and with it, and whether a module stands where it says."""
    for file in sorted(TESTS.rglob("test_*.py")):
        folders, name = file.relative_to(TESTS).parts[:-1], file.stem.removeprefix("test_")
        if folders[:1] not in ((folder,) for folder in OTHERWISE):
            folders = folders[1:] if folders[:1] == ("mpi",) else folders
            package = PDLA.joinpath(*(RENAMED.get(folder, folder) for folder in folders))
            own = name == package.name and (package / "__init__.py").exists()
            yield "/".join([*folders, file.stem]), own or (package / f"{name}.py").exists()


def test_only_what_needs_mpirun_is_in_a_folder_called_mpi():
    folders = [folder.relative_to(TESTS) for folder in TESTS.rglob("mpi") if folder.is_dir()]
    assert {folder.parts[0] for folder in folders} == {"mpi"}
