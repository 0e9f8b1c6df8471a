"""A core of this machine, calibrated, and what of it is left for each of the ranks that share it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from sides.launch import CORES

from pdla.model.machine import Machine


def calibrated() -> Machine:
    """By `python -m pdla.bench calibrate` on one rank a core, all at once."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "here.toml")
        mpirun = Path(sys.executable).parent / "mpirun"
        command = [mpirun, "-n", CORES, sys.executable, "-m", "pdla.bench", "calibrate", "--out", file]
        subprocess.run(list(map(str, command)), check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=sys.stderr)
        return Machine.load(file)


def shared(core: Machine, crowd: float) -> Machine:
    """A rank's of so many to a core."""
    part = {name: getattr(core, name) / crowd for name in ("flops", "memory", "erf", "bandwidth")}
    return replace(core, call=core.call * crowd, gap=core.gap * crowd, **part)
