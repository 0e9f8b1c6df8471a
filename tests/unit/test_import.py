"""What `import pdla` does not load: it stays quick, and talks to nobody."""

import subprocess
import sys

HEAVY = ["scipy.linalg", "rich", "h5py", "mpi4py", "cupy", "threadpoolctl"]


def test_import_loads_nothing_heavy():
    program = f"import sys, pdla; print(*(name for name in {HEAVY} if name in sys.modules))"
    job = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert job.stdout.split() == []


def test_the_public_names_are_there():
    import pdla

    for name in ["ProcessGrid", "Layout", "Cyclic", "Cuts", "Balanced", "DistMatrix", "matmul", "run", "dry_run"]:
        assert hasattr(pdla, name)
