"""Device arrays over true MPI, on the stand-in or a GPU: products right whichever way they travel, and how that is chosen."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from devices import GPU, STANDIN, cupy_namespace
from unit.test_harness import mpirun

cupy_namespace()
HERE = Path(__file__).parents[1]
PROGRAM = """
import logging
logging.basicConfig(level=logging.INFO)
import numpy as np
import pdla

comm = pdla.world()
assert comm.xp.name == "cupy"
grid = pdla.ProcessGrid(pdla.balanced_shape(comm.size))
blocks, cyclic = pdla.Layout("row", "col"), pdla.Layout(pdla.Cyclic("row", 3), pdla.Cyclic("col", 2))
A, B = (pdla.random((60, 60), grid, layout, seed=i, distribution="integers", high=9) for i, layout in enumerate((blocks, cyclic)))
a, b = A.gather().get(), B.gather().get()
for algorithm in ("gather", "summa", "cannon"):
    C = pdla.matmul(A, B.T, algorithm=algorithm, panel=7)
    assert np.array_equal(C.gather().get(), a @ b.T), algorithm
if comm.rank == 0:
    print("aware" if comm.aware else "staged")
"""


def job(ranks=2, program=PROGRAM, **environ):
    paths = [str(HERE), *[str(STANDIN)] * (not GPU), os.environ.get("PYTHONPATH", "")]
    asked = {"PDLA_ARRAY": "cupy", "OMP_NUM_THREADS": "1", "STANDIN_QUICK": "1", "PYTHONPATH": os.pathsep.join(paths)} | environ
    command = [*mpirun(), "-n", str(ranks), sys.executable, "-c", program]
    return subprocess.run(command, env=os.environ | asked, capture_output=True, text=True)


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("asked", ["on", "off"] if not GPU else ["off"])
def test_products(asked, ranks):
    done = job(ranks, PDLA_GPU_MPI=asked)
    assert (done.returncode, done.stdout) == (0, "aware\n" if asked == "on" else "staged\n"), done.stderr


@pytest.mark.skipif(GPU, reason="what is played here is another MPI than the one at hand")
@pytest.mark.parametrize(("mpi", "way", "says"), [
    ("aware", "aware", "takes device memory"),
    ("zeros", "staged", "the probe ended with 1"),
    ("crash", "staged", "the probe ended with -6"),
])  # fmt: skip
def test_the_probe(mpi, way, says):
    done = job(STANDIN_MPI=mpi)
    assert (done.returncode, done.stdout) == (0, f"{way}\n"), done.stderr
    assert done.stderr.count(says) == 1


@pytest.mark.skipif(GPU, reason="there is a GPU")
def test_a_rank_without_a_gpu_is_every_ranks_error():
    program = """
import os
os.environ["STANDIN_DEVICES"] = "0" if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1" else "1"
import pdla
try:
    pdla.world()
except pdla.errors.DeviceError as error:
    os.write(1, f"{error}\\n".encode())
"""
    done = job(3, program)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 3 and len(set(lines)) == 1, done.stderr
    assert "no GPU here" in lines[0] and "(rank 1, 1 of 3 ranks)" in lines[0]
