"""What the tests of CuPy's arrays run on: a GPU where there is one, else the stand-in, on this processor."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
from cuda_host import COMPILER

STANDIN = Path(__file__).parent / "standin"
GPU = bool(shutil.which("nvidia-smi") and importlib.util.find_spec("cupy"))


def cupy_namespace():
    """pdla/array/cupy.py; skips the module where there is nothing to run it on."""
    if not GPU:
        if COMPILER is None:
            pytest.skip("no GPU, and no C++ compiler to run the kernels on this processor", allow_module_level=True)
        if str(STANDIN) not in sys.path:
            sys.path.insert(0, str(STANDIN))
    from pdla.array import cupy

    return cupy
