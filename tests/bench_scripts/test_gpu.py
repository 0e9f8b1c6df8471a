"""bench/gpu.py: every section runs, on the stand-in for CuPy where there is no GPU, so that none fails where there is one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cuda_host import COMPILER
from helpers.devices import GPU, STANDIN

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not GPU and COMPILER is None, reason="no GPU, and no C++ compiler to run the kernels on this processor")
def test_every_section_gives_its_figures(tmp_path):
    paths = [*([] if GPU else [str(STANDIN)]), str(ROOT / "tests")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "STANDIN_QUICK": "1"}
    command = [sys.executable, "-m", "bench.gpu", "--small", "--json", str(tmp_path / "gpu.json")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    sections = json.loads((tmp_path / "gpu.json").read_text())
    assert {name: len(rows) for name, rows in sections.items()} == {
        "gemm": 5, "calls": 7, "pack": 12, "fused": 12, "message": 2, "fill": 6, "factors": 2, "layer": 3,
    }
