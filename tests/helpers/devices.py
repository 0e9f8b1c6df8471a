"""What the tests of CuPy's arrays run on: a GPU where there is one, else the stand-in for CuPy, on the CPU."""

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from helpers.cuda_host import COMPILER

STANDIN = Path(__file__).parents[1] / "standin"
GPU = bool(shutil.which("nvidia-smi") and importlib.util.find_spec("cupy"))


def down(x):
    """A device's array, or those in a sequence, as NumPy's; anything else as it is."""
    if type(x).__module__.partition(".")[0] == "cupy" and hasattr(x, "get"):
        return x.get()
    return type(x)(map(down, x)) if type(x) in (list, tuple) else x


class Hosted:
    """NumPy as tests see it where matrices lie on devices: arguments of its functions are first copied to the host."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        found = getattr(self._module, name)
        if isinstance(found, ModuleType):
            return Hosted(found)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *args, **kwargs: found(*map(down, args), **{key: down(value) for key, value in kwargs.items()})


def cupy_namespace():
    """pdla/array/cupy; skips the module where there is nothing to run it on."""
    if not GPU:
        if COMPILER is None:
            pytest.skip("no GPU, and no C++ compiler to run the kernels on this processor", allow_module_level=True)
        if str(STANDIN) not in sys.path:
            sys.path.insert(0, str(STANDIN))
    from pdla.array import cupy

    return cupy
