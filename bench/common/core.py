"""Calibrate a core of this machine, and describe a rank's share of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.common.launch import CORES, find_mpirun
from pdla.model.machine import Machine


def calibrate_core() -> Machine:
    """The machine's figures by `python -m pdla.bench calibrate` on all cores at once, one rank on each."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "here.toml")
        command = [find_mpirun(), "-n", CORES, sys.executable, "-m", "pdla.bench", "calibrate", "--out", file]
        subprocess.run(list(map(str, command)), check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=sys.stderr)
        return Machine.load(file)


def share_core(core: Machine, crowd: float) -> Machine:
    """The figures of a rank if `crowd` ranks share a core."""
    part = {name: getattr(core, name) / crowd for name in ("flops", "memory", "erf", "bandwidth")}
    return replace(core, call=core.call * crowd, gap=core.gap * crowd, **part)
