"""Device arrays over true MPI, on the stand-in or a GPU: products right whichever way they travel, and how that is chosen."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.devices import GPU, STANDIN, cupy_namespace
from helpers.jobs import LONGEST, mpirun

from pdla.comm.mpi import transport

cupy_namespace()
HERE = Path(__file__).parents[2]
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
    print("NCCL" if hasattr(comm, "nccl") else "staged" if comm.staged else "aware")
"""


def job(ranks=2, program=("-c", PROGRAM), **environ):
    paths = [str(HERE), *[str(STANDIN)] * (not GPU), os.environ.get("PYTHONPATH", "")]
    asked = {"PDLA_ARRAY": "cupy", "OMP_NUM_THREADS": "1", "STANDIN_QUICK": "1", "PYTHONPATH": os.pathsep.join(paths)} | environ
    command = [*mpirun(), "-n", str(ranks), sys.executable, *program]
    return subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, timeout=LONGEST)


@pytest.mark.parametrize(("asked", "ranks"), [*[("on", 1), ("on", 4)] * (not GPU), ("off", 3), ("off", 4)])
def test_products(asked, ranks):
    done = job(ranks, PDLA_GPU_MPI=asked)
    assert (done.returncode, done.stdout) == (0, "aware\n" if asked == "on" else "staged\n"), done.stderr


def each_a_gpu(ranks):
    """What lets ranks use NCCL; skips the test where there is a GPU, but not one for each."""
    if not GPU:
        return {"STANDIN_NCCL": "1", "STANDIN_DEVICES": str(ranks)}
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines()
    if len(listed) < ranks or importlib.util.find_spec("nccl") is None:
        pytest.skip(f"NCCL needs nccl4py and a GPU for each of {ranks} ranks; there are {len(listed)}")
    return {}


@pytest.mark.parametrize(("asked", "ranks"), [
    ("off", 2), ("off", 4), *([("nccl", 2)] if GPU else [("on", 4)]), ("nccl", 4),  # of GPUs there may be but two
])
def test_messages(asked, ranks, tmp_path):
    way = each_a_gpu(ranks) if asked == "nccl" else {}
    messages = ("-m", "pytest", "-q", "-x", "--with-mpi", str(HERE / "mpi" / "comm" / "mpi" / "test_staging.py"))
    done = job(ranks, messages, PDLA_GPU_MPI=asked, TMPDIR=str(tmp_path), **way)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


def test_products_by_nccl(tmp_path):
    done = job(4, TMPDIR=str(tmp_path), **each_a_gpu(4))
    assert (done.returncode, done.stdout) == (0, "NCCL\n"), done.stderr
    assert done.stderr.count("arrays go by NCCL") == 1


@pytest.mark.skipif(GPU, reason="the devices at hand may be fewer")
def test_a_rank_keeps_its_device_in_every_communicator():
    """In a part of the job it has another number, and its matrices would be on one device, what multiplies them on another."""
    program = """
import cupy, pdla
from mpi4py import MPI
world = MPI.COMM_WORLD
pdla.ProcessGrid(4)
pdla.ProcessGrid(2, comm=world.Split(world.rank // 2, -world.rank))
assert cupy.cuda.Device().number == world.rank, cupy.cuda.Device().number
"""
    done = job(4, ("-c", program), PDLA_GPU_MPI="off", STANDIN_DEVICES="4")
    assert done.returncode == 0, done.stderr


NCCL_OR_NOT = """
import logging
logging.basicConfig(level=logging.INFO)
import os
from mpi4py import MPI
import pdla
os.write(1, f"{type(pdla.world()).__name__}\\n".encode())
try:
    with pdla.config.override(gpu_mpi="nccl"):
        pdla.ProcessGrid(3, comm=MPI.COMM_WORLD.Dup())
except pdla.errors.DeviceError as error:
    os.write(1, f"{error}\\n".encode())
"""


@pytest.mark.skipif(GPU, reason="what is played here is another machine than the one at hand")
@pytest.mark.parametrize(("has", "why"), [
    ({"STANDIN_NCCL": "1", "STANDIN_DEVICES": "2"}, "ranks 0 and 2 share a GPU"),
    ({"STANDIN_NCCL": "0", "STANDIN_DEVICES": "3"}, "nccl4py is missing (STANDIN_NCCL does not ask for it)"),
    ({"STANDIN_NCCL": "1", "STANDIN_DEVICES": "3", "STANDIN_NCCL_FAULT": "1"}, "NCCL on rank 1: NCCL_ERROR_SYSTEM_ERROR"),
    ({"STANDIN_NCCL": "1", "STANDIN_DEVICES": "3", "STANDIN_NCCL_FAULT": "name"}, "NCCL on rank 0: NCCL_ERROR_SYSTEM_ERROR"),
    ({"STANDIN_NCCL": "1", "STANDIN_DEVICES": "3", "STANDIN_NCCL_FAULT": "send"}, "NCCL on rank 0: NCCL_ERROR_UNHANDLED"),
], ids=["shared", "missing", "failing", "failing at once", "failing at work"])
def test_where_nccl_is_not_to_be_had(has, why, tmp_path):
    """Neither where it is looked for nor, on a second communicator, where it is asked for."""
    done = job(3, ("-c", NCCL_OR_NOT), TMPDIR=str(tmp_path), **has)
    assert done.returncode == 0 and done.stderr.count(f"no NCCL here ({why})") == 1, done.stderr
    refused = f"PDLA_GPU_MPI=nccl, but {why}: auto takes another transport then"
    assert sorted(done.stdout.splitlines()) == sorted(3 * ["MPIComm", refused]), done.stderr


@pytest.mark.parametrize(("call", "says"), [
    ("comm.allreduce(comm.xp.asarray([1.0, 2.0])).wait()", "allreduce on 'all'"),
    pytest.param("comm.close()", "freeing a communicator on 'all'",
                 marks=pytest.mark.skipif(GPU, reason="NCCL may wait for the others or not")),
], ids=["sums", "closes"])
def test_who_waits_for_nccl_gives_up(call, says, tmp_path):
    program = """
import time
from dataclasses import replace
import pdla
from pdla import config
comm = pdla.world()
comm.barrier()
config.settings = replace(config.settings, timeout=3.0)  # ranks may take longer to start
if comm.rank == 1:
    time.sleep(60)
"""
    done = job(2, ("-c", program + call), PDLA_GPU_MPI="nccl", TMPDIR=str(tmp_path), **each_a_gpu(2))
    assert done.returncode != 0
    assert f"has waited 3 s (PDLA_TIMEOUT) for other ranks in {says}" in done.stderr


@pytest.mark.skipif(GPU, reason="what is played here is another MPI than the one at hand")
@pytest.mark.parametrize(("mpi", "way", "says"), [
    ("aware", "aware", "takes device memory"),
    ("zeros", "staged", "the probe ended with 1"),
    ("crash", "staged", "the probe ended with -6"),
])
def test_the_probe(mpi, way, says):
    done = job(STANDIN_MPI=mpi)
    assert (done.returncode, done.stdout) == (0, f"{way}\n"), done.stderr
    assert done.stderr.count(says) == 1


@pytest.mark.skipif(GPU, reason="what is played here is another MPI than the one at hand")
def test_the_probe_sends_a_device_s_arrays_where_a_program_has_chosen_them():
    """As `pdla.bench --array cupy` does: the environment of the probe's process does not say so."""
    chosen = "from pdla import config\nconfig.settings = config.replace(config.settings, array='cupy')\n"
    done = job(2, ("-c", chosen + PROGRAM), PDLA_ARRAY="", STANDIN_MPI="crash")
    assert (done.returncode, done.stdout) == (0, "staged\n"), done.stderr


def test_a_process_is_sent_to_find_out_once(monkeypatch):
    ran = []
    monkeypatch.setattr(subprocess, "run", lambda *args, **how: ran.append(args) or SimpleNamespace(returncode=3, stderr="no\nway"))
    transport._probe_alone.cache_clear()
    assert [transport._probe_alone() for _ in range(2)] == 2 * ["the probe ended with 3: no way"] and len(ran) == 1
    transport._probe_alone.cache_clear()


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
    done = job(3, ("-c", program))
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 3 and len(set(lines)) == 1, done.stderr
    assert "no GPU here" in lines[0] and "(rank 1, 1 of 3 ranks)" in lines[0]
