"""Calls of packages whose names are functions elsewhere, as np.array: the error names pdla's function."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NoReturn

INSTEAD = {
    "array": "pdla.from_global([[1, 2], [3, 4]]) makes a matrix of an array",
    "matrix": "pdla.from_global([[1, 2], [3, 4]]) makes a matrix of an array",
    "grid": "pdla.ProcessGrid((2, 2)) makes a grid",
    "layout": "pdla.Layout('row', 'col') makes a layout",
    "cuts": "pdla.Cuts('row', (0, 7, 10)) makes a cut",
    "comm": "pdla.world() is the communicator of all ranks",
    "io": "pdla.load('A.npy') reads a matrix",
}


class Called(ModuleType):
    """A package, which cannot be called."""

    def __call__(self, *args: Any, **named: Any) -> NoReturn:
        name = self.__name__.removeprefix("pdla.")
        raise TypeError(f"pdla.{name} is a package, and is not called: {INSTEAD[name]}")


for _name in INSTEAD:
    sys.modules[f"pdla.{_name}"].__class__ = Called
