"""Install each distribution in a folder into bare environments outside the checkout, and run it there: `python .ci/dist.py dist`.

One environment for each file and each Python from 3.11 on: those on PATH, and pyenv's. It has what `pip install 'pdla[mpich]'`
brings, and nothing that tests or reports need.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST = 11
PROGRAM = """
from importlib.metadata import version
from importlib.resources import files

import numpy as np

import pdla

def program(comm):
    grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size), comm=comm)
    A = pdla.from_function(lambda i, j: i - j, (60, 40), grid, pdla.Layout("row", "col"))
    return (A.T @ A).gather()

if __name__ == "__main__":
    i, j = np.mgrid[:60, :40]
    pdla.abort_on_exception()
    for product in [program(pdla.world())] if pdla.world().size > 1 else pdla.run(4, program):
        np.testing.assert_array_equal(product, (i - j).T @ (i - j))
    for path in ("py.typed", "cuda/pack.cu", "cuda/floats.h", "native/pdla.h", "native/pdla.f90", "bench/report/schema.json"):
        assert files("pdla").joinpath(path).is_file(), path
    assert pdla.Machine.load("a100x4").node and version("pdla") == pdla.__version__
    print(f"rank {pdla.world().rank} of {pdla.world().size}: {pdla.__file__}")
"""


def pythons():
    """A Python for each minor version that is here; pyenv's shims of versions that are not chosen fail."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    folders = [*os.environ["PATH"].split(os.pathsep), *map(str, sorted(pyenv.glob("*/bin")))]
    found = {}
    for file in (file for folder in folders for file in sorted(Path(folder).glob("python3.*"))):
        minor = re.fullmatch(r"python3\.(\d+)", file.name)
        if minor and int(minor[1]) >= OLDEST and minor[1] not in found and works(file):
            found[minor[1]] = file
    return [found[minor] for minor in sorted(found, key=int)]


def works(python):
    return subprocess.run([python, "-c", "import venv"], capture_output=True).returncode == 0


def say(*words, cwd=None, status=0):
    """What a command prints; where it ends otherwise than it should, so does this program."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([*map(str, words)], cwd=cwd, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != status:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}, not {status}:\n{done.stdout}")
    return done.stdout


def check(python, distribution):
    """Install it, multiply in threads and over MPI, and run the benchmark without and with its extra; what was printed."""
    with tempfile.TemporaryDirectory() as folder:
        say(python, ROOT / ".ci" / "make_venv.py", f"{folder}/venv")
        own = f"{folder}/venv/bin/python"
        # With its digest: pip keeps the wheel that it builds of an sdist by the address, which is that of the last one, too.
        address = f"file://{distribution}#sha256={hashlib.sha256(distribution.read_bytes()).hexdigest()}"
        say(own, "-m", "pip", "install", "--quiet", f"pdla[mpich] @ {address}")
        Path(folder, "program.py").write_text(PROGRAM)
        lines = say(own, "program.py", cwd=folder).splitlines()
        lines += say(f"{folder}/venv/bin/mpirun", "-n", "2", own, "program.py", cwd=folder).splitlines()
        bench = own, "-m", "pdla.bench"
        lines += say(*bench, "--version", cwd=folder).splitlines()
        say(*bench, "--threads", "2", "gemm", "-m", "100", "--json", "gemm.json", cwd=folder)
        lines += say(*bench, "report", "gemm.json", cwd=folder, status=2).splitlines()
        say(own, "-m", "pip", "install", "--quiet", f"pdla[bench] @ {address}")
        report = say(*bench, "report", "gemm.json", cwd=folder)
        if folder not in lines[0] or "pip install 'pdla[bench]'" not in lines[-1] or "x bound" not in report:
            sys.exit("\n".join([*lines, report]))
        return lines


def main(folder):
    found, files = pythons(), sorted(Path(folder).resolve().glob("pdla-*"))
    print(f"Pythons from 3.{OLDEST} on: {', '.join(map(str, found))}")
    for python in found:
        for file in files:
            print(f"{file.name} by {python}:", *check(python, file), sep="\n  ", flush=True)


main(sys.argv[1])
