"""The kernels compile for every device that pdla names, use vector accesses and spill nothing; what they compute: tests/array.

For the oldest device alone, unless PDLA_TEST_FULL=1 (`make test-full`): the others take a quarter of a minute.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from helpers.cuda_host import kernels

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "cuda").glob("*.cu"))
FULL = os.environ.get("PDLA_TEST_FULL") == "1"
OLDEST = "sm_75"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")


@needs_nvcc
def test_make_cuda():
    command = [sys.executable, ROOT / ".ci" / "kernels.py", *[OLDEST] * (not FULL)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    known = {line.split()[0] for line in lines[1:]}
    assert known >= {"sm_75", "sm_80", "sm_90"} if FULL else known == {OLDEST}
    assert len(lines) == 1 + len(known) * sum(len(kernels(source.read_text())) for source in SOURCES)
    assert all(int(line.split()[-1]) == 0 for line in lines[1:])


def test_make_cuda_without_nvcc(tmp_path):
    command = [sys.executable, ROOT / ".ci" / "kernels.py"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "make cuda: no nvcc on PATH; the kernels were not compiled\n")


WIDE = [("pack", f"pack_{name}_{name}{turned}") for name in ("float32", "float64", "complex128") for turned in ("", "_turned")]
WIDE += [("uniform", "uniform")]
WIDE += [("philox", f"{kernel}_{name}") for kernel in ("uniform", "normal", "integers")
         for name in ("float32", "float64", "complex64", "complex128")]
WIDE += [(source, f"{kernel}_{name}") for source, names in {
    "gelu": ("gelu",), "columns": ("columns",),
    "rows": ("moments", "normalise", "row_sums", "norm_gradient", "exponentials", "softmax_gradient", "softmax"),
}.items() for kernel in names for name in ("float16", "bfloat16", "float32", "float64")]
SUMS = ("moments", "row_sums")  # a number a row: nothing wide to write


@cache
def compiled(source):
    """All kernels of a source, as PTX."""
    path = ROOT / "cuda" / f"{source}.cu"
    command = ["nvcc", "-arch=sm_80", "-ptx", "-std=c++17", "-o", "-", path]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@needs_nvcc
@pytest.mark.parametrize(("source", "kernel"), WIDE)
def test_16_bytes_at_a_time(source, kernel):
    body = re.search(rf"\.entry {kernel}\(.*?^}}", compiled(source), re.DOTALL | re.MULTILINE)[0]
    wide = r"(?:\.global)?\.v(?:4\.[bfu]32|2\.[bfu]64)"
    assert kernel.startswith(SUMS) or re.search(rf"st{wide}", body)
    assert source in ("uniform", "philox") or re.search(rf"ld{wide}", body)
