"""Programs that tests start, and jobs of several ranks."""

import os
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 240  # seconds that a program which a test starts may take: for one that hangs, no measure of speed
HEADER = """
from dataclasses import replace
import sys
import numpy as np
from pdla import config
from pdla.comm import world
from pdla.comm.mpi import abort, libmpi
from pdla.comm.mpi.attach import attach
comm = world()

def patience(seconds):  # PDLA_TIMEOUT from here on: before, ranks may be slow to start and to import
    comm.barrier()
    config.settings = replace(config.settings, timeout=seconds)
"""


def mpirun():
    """The launcher that belongs to this Python, with its options: the Makefile's, else the one beside it or on PATH."""
    name, *options = shlex.split(os.environ.get("PDLA_TEST_MPIRUN", "mpirun"))
    found = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if not found:
        pytest.skip(f"no {name} beside this Python or on PATH")
    return [os.path.abspath(found), *options]


def run_job(body, ranks=3, **env):
    """Run a program on some ranks."""
    command = [*mpirun(), "-n", str(ranks), sys.executable, "-c", HEADER + body]
    joined = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(command, env=os.environ | env, timeout=LONGEST, **joined)


def ended_here(capsys, script, *words):
    """Exit status, output and errors of a script of bench/ that refuses its words: in this process, as a start takes longer."""
    with patch.object(sys, "argv", [script, *words]), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "bench" / script), run_name="__main__")
    out, err = capsys.readouterr()
    told = isinstance(ended.value.code, str)
    return 1 if told else ended.value.code, out, err + ended.value.code if told else err
