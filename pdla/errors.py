"""Exceptions: a collective call raises them on every rank, with the same text.

Some calls differ, as their documentation says. A rank that was given no valid grid or matrix cannot
reach the others, and raises alone.
"""

from __future__ import annotations

import numbers
import sys
import warnings
from collections import abc

import numpy as np


class PdlaError(Exception):
    """Base of pdla's own exceptions.

    Some wrong arguments raise Python's ValueError or TypeError instead.
    """


class GridError(PdlaError, ValueError):
    """A process grid that does not fit its communicator, or two grids that do not go together."""


class LayoutError(PdlaError, ValueError):
    """A layout that does not fit its grid or its matrix, or layouts that do not go together."""


class ShapeError(PdlaError, ValueError):
    """Shapes or dtypes that do not go together."""


class PlanError(PdlaError, ValueError):
    """A word that is no choice, an algorithm that cannot run here, or a memory limit below all plans.

    Also a plan that is called with other matrices than its own.
    """


class ArgumentError(PdlaError, TypeError):
    """An argument of a wrong type: a text for a flag, a float for a number of rows.

    Any function may raise it, even if its documentation does not list it.
    """


class AgreementError(PdlaError, ValueError):
    """Ranks made different calls, or one call with different arguments.

    Also a message that is longer than the array of its receiver.
    """


class RemoteError(PdlaError, RuntimeError):
    """Another rank failed; the text quotes its error."""


class DeadlockError(PdlaError, RuntimeError):
    """Every rank waits for another one; the text names each rank's call."""


class VerificationError(PdlaError, ArithmeticError):
    """A product, factor or solution that was computed wrongly.

    The text names the ranks, and where in the matrix.
    """


class LinAlgError(PdlaError, np.linalg.LinAlgError):
    """A matrix that is singular, not positive definite, or has NaN or infinity.

    It is NumPy's and SciPy's LinAlgError, too.
    """


class FileError(PdlaError, OSError):
    """A file that is missing, damaged, truncated or of the wrong shape."""


class NoMPIError(PdlaError, RuntimeError):
    """No MPI where one is needed.

    mpi4py or an MPI library is missing; MPI is not initialised yet, or finalised; or this process
    was forked from a rank.
    """


class DeviceError(PdlaError, RuntimeError):
    """A GPU or a library that is missing, or an array in the wrong memory.

    PDLA_ARRAY needs CuPy and a GPU. The library of PDLA_BLAS must exist and fit. An array must be
    on the device of this rank's matrices, the host or a GPU.
    """


class HandleError(PdlaError, LookupError):
    """A handle for one of pdla.h's functions that is not of a grid, or of a matrix, as is needed."""


AN = ("a", "e", "i", "o", "nd")  # prefixes of types after "an": an int, an ndarray


def kind_of(thing: object) -> str:
    """The type of an argument, in words: "a list", "an ndarray"."""
    name = type(thing).__name__
    return f"{'an' if name.lower().startswith(AN) else 'a'} {name}"


def misfit(otherwise: type[PdlaError], *given: object) -> type[PdlaError]:
    """Choose the error for numbers that do not fit: ArgumentError if one is no integer, else `otherwise`."""
    return otherwise if all(isinstance(number, numbers.Integral) for number in given) else ArgumentError


def find_closest(given: object, known: abc.Iterable[object], alike: float = 0.65) -> str:
    """Find the known name that is most similar to the given one; "" if none is.

    The case of letters does not matter; a name with the same letters comes first. alike: the least
    similarity, from 0 to 1.
    """
    if not isinstance(given, str):
        return ""
    from difflib import get_close_matches

    text, names = given.lower(), {name.lower(): name for name in known if isinstance(name, str)}
    turned = [name for name in names if name and sorted(name) == sorted(text)]
    meant = turned or get_close_matches(text, names, 1, alike)
    return names[meant[0]] if meant else ""


def suggest(given: object, known: abc.Iterable[object]) -> str:
    """"; did you mean 'summa'?": suggest the closest name, or one that is a prefix or an extension; "" if there is none."""
    names = [name for name in known if isinstance(name, str)]
    meant = find_closest(given, names)
    if not meant and isinstance(given, str):
        begun = (name for name in names if min(len(name), len(given)) >= 3 and (name.startswith(given) or given.startswith(name)))
        meant = next(begun, "")
    return f"; did you mean {meant!r}?" if meant else ""


def list_choices(given: object, known: abc.Iterable[object]) -> str:
    """"one of 'gather', 'summa'; did you mean 'summa'?": list the choices, and suggest the most similar one."""
    choices = [*known]
    return f"one of {', '.join(map(repr, choices))}{suggest(given, choices)}"


def shorten(text: str, most: int) -> str:
    """Shorten a text of more than `most` characters to its start and its end."""
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def warn_user(said: str, kind: type[Warning]) -> None:
    """Local: warn at the line of the first caller outside pdla."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pdla."):
        level, frame = level + 1, frame.f_back
    warnings.warn(said, kind, stacklevel=level)


def plural(count: int, one: str, several: str = "") -> str:
    """The word after a count: `one` if the count is 1, else `several`, or `one` with an s."""
    return one if count == 1 else several or f"{one}s"
