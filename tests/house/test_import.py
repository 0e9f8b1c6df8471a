"""What `import pdla` does not load: it stays quick, and sends no messages."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import pdla

ROOT = Path(__file__).parents[2]
HEAVY = ["scipy.linalg", "rich", "jsonschema", "h5py", "mpi4py", "cupy", "threadpoolctl", "torch"]


def test_import_loads_nothing_heavy():
    program = f"import sys, pdla; print(*(name for name in {HEAVY} if name in sys.modules))"
    job = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert job.stdout.split() == []


def test_numpy_knows_bfloat16_from_the_import_on():
    """Not only after pdla has met the name: a program's lines could not be put in another order."""
    pytest.importorskip("ml_dtypes")
    program = "import numpy as np, pdla; print(np.arange(3).astype('bfloat16').dtype)"
    job = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert job.stdout.split() == ["bfloat16"]


def test_the_public_names_are_there():
    for name in ["ProcessGrid", "Layout", "Cyclic", "Cuts", "Balanced", "DistMatrix", "matmul", "run", "dry_run"]:
        assert hasattr(pdla, name)


@pytest.mark.parametrize("face", [pdla, pdla.linalg, pdla.nn, pdla.scalapack], ids=lambda module: module.__name__)
def test_what_a_face_imports_it_exports(face):
    """Type checkers and editors take a name of a typed package for its own business where `__all__` lacks it."""
    imports = [node for node in ast.parse(inspect.getsource(face)).body if isinstance(node, ast.ImportFrom)]
    assert sorted(face.__all__) == sorted(alias.name for node in imports for alias in node.names)


def test_every_script_of_bench_finds_what_it_imports():
    """One named a module by the folder in which it had lain."""
    names = sorted(f"bench.{file.stem}" for file in (ROOT / "bench").glob("*.py"))
    program = "import importlib\nfor name in " + repr(names) + ": importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
